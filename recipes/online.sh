#!/usr/bin/env bash
# Online translation, chapter 4: trains what a figure compares, evaluates it along wait-k paths, with
# agents and along the oracle's, and draws BLEU against average lagging.
#
#   bash recipes/online.sh                 figures 4.12 and 4.14
#   bash recipes/online.sh 4.9             encoders of the Transformer: bi-directional, uni-directional,
#                                          windows of 7 and 3 tokens (table D.1)
#   bash recipes/online.sh 4.10            Pervasive Attention: max, gated max, attention, cell (D.2)
#   bash recipes/online.sh 4.11 4.12       one k against many, both architectures (D.3 to D.6)
#   bash recipes/online.sh 4.13            the same for Transformers on WMT'15: ON=wmt15-de-en (D.7)
#   bash recipes/online.sh 4.14            oracle and dynamic agents, three initialisations (D.8 to D.19)
#   bash recipes/online.sh 4.2             table 4.2: offline, uni- against bi-directional
#   bash recipes/online.sh C.1 C.2         finish reading; markers of the source (appendix C)
#   bash recipes/online.sh --dry-run ...   prints the commands alone
#
# ON=multi30k, or toy, toy-words (words as units, so that the delay that each needs is known exactly),
# iwslt14-de-en, iwslt14-en-de, iwslt15-en-vi, iwslt15-vi-en, wmt15-de-en.
# MINUTES of processor time for each model (10; toy 3), those of agents TUNE_MINUTES (half of it);
# the presets of the publications are for a GPU: MINUTES=0 trains as long as they say. START_MINUTES=14
# lets every Pervasive Attention begin from one offline model of that many minutes (0: from nothing).
# TRAIN_K="1 3 7 inf" (4.13: "1 3 5 7 9 inf"), K=1,3,5,7,9, THRESHOLDS=0.1..0.9:0.1, LAMBDAS=0,0.5,1,2,4
# of the oracle, AGENTS="0 1" lambdas and STARTS="pa-uni-inf pa-k7 pa-area" initialisations of agents,
# SEED=1, RUNS=runs where the results go, SETS="--set ..." for every model. NMTGRID_DATA=DIR reads the corpora from there (see common.sh). What has been trained
# or evaluated already is not done again.
set -euo pipefail
[ "${1:-}" = "--dry-run" ] && { DRY_RUN=1; shift; }
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[ $# -gt 0 ] || set -- 4.12 4.14

ON="${ON:-multi30k}"
SEED="${SEED:-1}"
RUNS="${RUNS:-runs}"
K="${K:-1,3,5,7,9}"
THRESHOLDS="${THRESHOLDS:-0.1..0.9:0.1}"
HERE="$RUNS/online-$ON"
DATA="$HERE/data"
read -r -a SETS <<<"${SETS:-}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

environment
case "$ON" in
toy*) MINUTES="${MINUTES:-3}" ;;
multi30k) MINUTES="${MINUTES:-10}" ;;
*) MINUTES="${MINUTES:-0}" ;;
esac
START_MINUTES="${START_MINUTES:-0}"
TUNE_MINUTES="${TUNE_MINUTES:-$(awk -v whole="$MINUTES" 'BEGIN { print whole / 2 }')}"
dataset "$ON" "$DATA" "$HERE/text"
PRESET="$(preset_of "$ON")"
PUBLISHED=()
case "$ON" in iwslt1* | wmt15-de-en) PUBLISHED=(--published "$ON") ;; esac

# `train NAME ARCHITECTURE MINUTES OPTION...`: train a model, unless it is there.
train() {
    local name="$1" arch="$2" minutes="$3" model="$HERE/$1-seed$SEED"
    local limit=()
    shift 3
    if [ -s "$model/done.json" ]; then say "$model is trained already."; return; fi
    if [ "$minutes" != 0 ]; then
        limit=(--max-minutes "$minutes" --max-updates 0 --set training.clock=processor
            --set training.schedule=cosine-time)
    fi
    run nmtgrid train "$DATA" --arch "$arch" --preset "$PRESET" --seed "$SEED" --overwrite \
        "${limit[@]}" "$@" "${SETS[@]}" --out "$model" --json "$model.train.json"
    run mv "$model.train.json" "$model/done.json"
}

# A Transformer or a Pervasive Attention that can go online: `transformer NAME OPTION...`.
transformer() { train "$1" transformer "$MINUTES" --set model.encoder=unidirectional "${@:2}"; }
CAUSAL=(--set model.source_causal=true --set model.aggregation=max)
pervasive() {
    local from=()
    if [ "$START_MINUTES" != 0 ]; then
        train pa-start pervasive "$START_MINUTES" "${CAUSAL[@]}"
        from=(--init "$HERE/pa-start-seed$SEED" --set training.learning_rate=0.002)
    fi
    train "$1" pervasive "$MINUTES" "${CAUSAL[@]}" "${from[@]}" "${@:2}"
}

# Train for one wait-k path, or offline: `along ARCHITECTURE NAME K OPTION...`, K may be inf.
along() {
    if [ "$3" = inf ]; then
        "$1" "$2" "${@:4}"
    else
        "$1" "$2" --objective wait-k --set "objective.k=$3" "${@:4}"
    fi
}

# `evaluate NAME OPTION...`: translate the test set, unless that is done.
evaluate() {
    local name="$1" out="$HERE/eval/$1-seed$SEED"
    shift
    if grep -qs '"complete": true' "$out/results.json"; then say "$out is there already."; return; fi
    run nmtgrid online-eval "$name=$HERE/${MODEL:-$name}-seed$SEED" --data "$DATA" --split test \
        --out "$out" "$@"
}

# `draw FIGURE NAME...`: one picture and table of what was evaluated.
draw() {
    local figure="$1" name results=()
    shift
    for name in "$@"; do results+=("$HERE/eval/$name-seed$SEED"); done
    run nmtgrid analyze latency "${results[@]}" "${PUBLISHED[@]}" \
        --out "$HERE/figure-$figure.png" --json "$HERE/figure-$figure.json"
}

figure_4_2() {
    local name
    transformer tf-uni-inf
    train tf-bi-inf transformer "$MINUTES" --set model.encoder=bidirectional
    pervasive pa-uni-inf
    train pa-bi-inf pervasive "$MINUTES" --set model.aggregation=max
    for name in tf-uni-inf tf-bi-inf pa-uni-inf pa-bi-inf; do
        for beam in 1 5; do
            run nmtgrid decode "$HERE/$name-seed$SEED" --data "$DATA" --split test --beam "$beam" \
                --json "$HERE/$name-seed$SEED/beam$beam.json"
        done
    done
}

figure_4_9() {
    local k encoder names=()
    for k in 1 7; do
        for encoder in bi uni window7 window3; do
            local name="tf-$encoder-k$k" more=()
            case "$encoder" in
            bi) more=(--set model.encoder=bidirectional) ;;
            window*) more=(--set model.encoder=window --set "model.window=${encoder#window}") ;;
            esac
            along transformer "$name" "$k" "${more[@]}"
            evaluate "$name" --k "$K"
            names+=("$name")
        done
    done
    draw 4.9 "${names[@]}"
}

figure_4_10() {
    local k kind names=()
    for k in 1 7 inf; do
        for kind in max gated-max attention cell; do
            local name="pa-$kind-k$k" more=(--set "model.aggregation=$kind")
            if [ "$kind" = cell ]; then more=(--set model.online_features=cell); fi
            along pervasive "$name" "$k" "${more[@]}"
            evaluate "$name" --k "$K"
            names+=("$name")
        done
    done
    draw 4.10 "${names[@]}"
}

# `single PREFIX ARCHITECTURE`: a model for each k of TRAIN_K, evaluated at every k.
single() {
    local k
    for k in ${TRAIN_K:-1 3 7 inf}; do
        local name="$1-uni-$k"
        if [ "$k" != inf ]; then name="$1-k$k"; fi
        along "$2" "$name" "$k"
        evaluate "$name" --k "$K,inf"
        names+=("$name")
    done
}

figure_4_11() {
    local names=()
    single pa pervasive
    draw 4.11-pervasive "${names[@]}"
    names=()
    single tf transformer
    draw 4.11-transformer "${names[@]}"
}

several_paths() {
    transformer tf-sampled --objective wait-k-sampled
    evaluate tf-sampled --k "$K,inf"
}

figure_4_12() {
    local names=()
    single pa pervasive
    pervasive pa-area --objective wait-k-area
    evaluate pa-area --k "$K,inf"
    draw 4.12-pervasive "${names[@]}" pa-area
    names=()
    single tf transformer
    several_paths
    draw 4.12-transformer "${names[@]}" tf-sampled
}

figure_4_13() {
    local names=()
    TRAIN_K="${TRAIN_K:-1 3 5 7 9 inf}" single tf transformer
    several_paths
    draw 4.13 "${names[@]}" tf-sampled
}

figure_4_14() {
    local start lambda names
    for start in ${STARTS:-pa-uni-inf pa-k7 pa-area}; do
        case "$start" in
        pa-uni-inf) along pervasive "$start" inf ;;
        pa-k*) along pervasive "$start" "${start#pa-k}" ;;
        pa-area) pervasive "$start" --objective wait-k-area ;;
        *) fail "no agent begins from $start: pa-uni-inf, pa-k7 or another k, pa-area" ;;
        esac
        names=("$start" "$start-oracle")
        evaluate "$start" --k "$K,inf"
        MODEL="$start" evaluate "$start-oracle" --oracle "${LAMBDAS:-0,0.5,1,2,4}"
        for lambda in ${AGENTS:-0 1}; do
            local name="$start-agent$lambda"
            train "$name" pervasive "$TUNE_MINUTES" "${CAUSAL[@]}" --set model.reader=own \
                --objective dynamic --set "objective.delay_weight=$lambda" \
                --init "$HERE/$start-seed$SEED"
            evaluate "$name" --thresholds "$THRESHOLDS"
            names+=("$name")
        done
        draw "4.14-$start" "${names[@]}"
    done
}

figure_C_1() {
    local k names=()
    for k in 1 3; do
        along transformer "tf-k$k" "$k"
        evaluate "tf-k$k" --k "$K,inf"
        MODEL="tf-k$k" evaluate "tf-k$k-finish-evaluation" --k "$K" --finish-reading
        along transformer "tf-k$k-finish-training" "$k" --set objective.finish_reading=true
        evaluate "tf-k$k-finish-training" --k "$K"
        names+=("tf-k$k" "tf-k$k-finish-evaluation" "tf-k$k-finish-training")
    done
    draw C.1 "${names[@]}"
}

figure_C_2() {
    local k marker names=()
    for k in 1 3; do
        for marker in end none begin add-zero; do
            along transformer "tf-$marker-k$k" "$k" --set "model.source_marker=$marker"
            evaluate "tf-$marker-k$k" --k "$K"
            names+=("tf-$marker-k$k")
        done
    done
    draw C.2 "${names[@]}"
}

for figure in "$@"; do
    case "$figure" in
    4.2 | 4.9 | 4.1[0-4] | C.1 | C.2) "figure_${figure//./_}" ;;
    *) fail "there is no figure $figure here: 4.2 4.9 4.10 4.11 4.12 4.13 4.14 C.1 C.2" ;;
    esac
done
