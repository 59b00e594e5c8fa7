#!/usr/bin/env bash
# Simultaneous translation, chapter 4: trains the models of a figure, evaluates them with wait-k, trained
# agents and oracle paths, and plots BLEU against average lagging.
#
#   bash recipes/online.sh                 figures 4.12 and 4.14
#   bash recipes/online.sh 4.2             table 4.2: offline, uni- against bi-directional (De-En, beam 5:
#                                          Pervasive Attention 34.36, Transformer 33.79 against 34.56)
#   bash recipes/online.sh 4.9             encoders of the Transformer: bi-directional, uni-directional,
#                                          windows of 7 and 3 tokens (table D.1)
#   bash recipes/online.sh 4.10            Pervasive Attention: max, gated max, attention, cell (D.2)
#   bash recipes/online.sh 4.11 4.12       one k against many, both architectures (D.3 to D.6): with
#                                          k = 3, 5, 7, many give 25.73, 29.96, 30.44 and 26.46, 29.33, 30.84
#   bash recipes/online.sh 4.13            the same for Transformers on WMT'15: ON=wmt15-de-en (D.7):
#                                          23.85, 26.36, 28.03
#   bash recipes/online.sh 4.14            oracle and dynamic agents, three initialisations (D.8 to D.19):
#                                          De-En 31.63 at an average lagging of 4.73
#   bash recipes/online.sh 4.15 4.16       lengths and difficulty: wait-1 (offline and many paths); agents
#   bash recipes/online.sh 4.17 4.18       paths of an agent and of wait-k, by words
#   bash recipes/online.sh C.1 C.2         reading to the end of the source; source markers (appendix C)
#   bash recipes/online.sh --dry-run ...   only prints the commands
#
# Data: ON=multi30k, multi30k-en-de (or others of cs, de, en, fr), toy, toy-words (words as units, so that the
# necessary delay of each word is known exactly), iwslt14-de-en, iwslt14-en-de, iwslt15-en-vi, iwslt15-vi-en,
# wmt15-de-en; downloaded, or from NMTGRID_DATA=DIR (WMT always; see common.sh).
# Device hours: the thesis gives none. Estimated from the FLOPs that `train --dry-run` counts, at 20
# TFLOP/s on a GPU: IWSLT'14, table 4.2 16, figures 4.9 4, 4.10 90, 4.11 33, 4.12 40, 4.14 45, C.1 and C.2
# 6; figure 4.13 800.
# MINUTES of processor time per model (10; toy: 3) or UPDATES=N; TUNE_MINUTES or TUNE_UPDATES for agents
# (half of it). The presets of the publications are meant for a GPU: MINUTES=0 keeps their limits,
# and trains agents for 10,000 updates. READER_RATE=0.001 is the learning rate of agents: with that of the preset,
# the translation model gets worse. START_MINUTES=14 initialises every Pervasive Attention with one
# offline model trained for that many minutes (0: random initialisation).
# ARCHS="pervasive transformer" of 4.2, 4.11 and 4.12, TRAIN_K="1 3 7 inf" (4.13: "1 3 5 7 9 inf"), ONLY_K="1 7" of
# 4.9 ("1 7 inf" of 4.10, "1 3" of C.1 and C.2), ENCODERS="bi uni window7 window3" of 4.9, K=1,3,5,7,9,
# THRESHOLDS=0.1..0.9:0.1, LAMBDAS=0,0.5,1,2,4 of the oracle, AGENTS="0 1" lambdas and STARTS="pa-uni-inf pa-k7
# pa-area" initialisations of agents, SEEDS=1 (4.2, 4.9 to 4.14, C.1 and C.2 report mean and deviation;
# figures show the first), PRESET=iwslt14-de-en-small (instead of the default for the corpus), RUNS=runs (output
# folder), SETS="--set ..." for every model, LABEL=word names the folder and the records of such a run. SMALL=1: the
# toy corpus, 40 updates, shorter lists. Existing results are kept.
# Table 4.2 has the p-value of each seed (paired bootstrap, 1,000 samples). Figures 4.9 to 4.13 compare each model with
# the wait-k curve of the first: mean difference in BLEU at equal latency, with a paired bootstrap
# (`nmtgrid online-eval --baseline`). Figure 4.14 compares each agent in the same way with wait-k of the same weights
# and with wait-k of the model that it was initialised from.
# CONFIG=FILE: a file for `nmtgrid train --config`, applied after the preset. PAIRS=10000 pairs of a toy corpus.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[ $# -gt 0 ] || set -- 4.12 4.14

if [ "$SMALL" = 1 ]; then
    ON="${ON:-toy}" K="${K:-1,5}" TRAIN_K="${TRAIN_K:-1 inf}" THRESHOLDS="${THRESHOLDS:-0.2,0.7}"
    LAMBDAS="${LAMBDAS:-0,1}" AGENTS="${AGENTS:-1}" STARTS="${STARTS:-pa-uni-inf}" ONLY_K="${ONLY_K:-7}"
fi
ON="${ON:-multi30k}"
SEEDS="${SEEDS:-${SEED:-1}}"
UPDATES="${UPDATES:-0}"
TUNE_UPDATES="${TUNE_UPDATES:-$((UPDATES / 2))}"
ARCHS="${ARCHS:-pervasive transformer}"
BEAMS="${BEAMS:-1 5}"
K="${K:-1,3,5,7,9}"
THRESHOLDS="${THRESHOLDS:-0.1..0.9:0.1}"
choices ARCHS pervasive transformer
for encoder in ${ENCODERS:-}; do
    [[ "$encoder" =~ ^(bi|uni|window[0-9]+)$ ]] || fail "invalid ENCODERS: $encoder (choose from: bi uni window7)"
done
for figure in "$@"; do
    case "$figure" in
    4.2 | 4.9 | 4.1[0-4] | C.1 | C.2) ;;
    4.1[5-8]) [[ "$SEEDS" != *" "* ]] || fail "figure $figure takes one seed, not SEEDS=\"$SEEDS\"" ;;
    *) fail "there is no table or figure $figure here: 4.2 4.9 4.10 to 4.18 C.1 C.2" ;;
    esac
done
HERE="$RUNS/online-$ON${LABEL:+-$LABEL}"
DATA="$HERE/data"
read -r -a SETS <<<"${SETS:-}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

declare -A TITLES=(
    [4.9]="Encoders of the Transformer, wait-k" [4.10]="Aggregation of Pervasive Attention, wait-k"
    [4.11]="Models trained for one k" [4.12]="One k against many" [4.13]="One k against many"
    [4.14]="Dynamic agents and the oracle" [4.15]="Translations of wait-1 by difficulty"
    [4.16]="An agent and wait-7 by difficulty" [4.17]="Paths at low latency"
    [4.18]="Paths at middle latency" [C.1]="Finish reading" [C.2]="Markers of the source"
)

environment
case "$ON" in
toy*) MINUTES="${MINUTES:-3}" ;;
multi30k*) MINUTES="${MINUTES:-10}" ;;
*) MINUTES="${MINUTES:-0}" ;;
esac
START_MINUTES="${START_MINUTES:-0}"
TUNE_MINUTES="${TUNE_MINUTES:-$(awk -v whole="$MINUTES" 'BEGIN { print whole / 2 }')}"
dataset "$ON" "$DATA" "$HERE/text"
PRESET="${PRESET:-$(preset_of "$ON")}"
PUBLISHED=()
case "$ON" in iwslt1* | wmt15-de-en) PUBLISHED=(--published "$ON") ;; esac

# `train NAME ARCHITECTURE MINUTES OPTION...`: train a model, unless it exists, for $UPDATES updates or
# MINUTES minutes.
train() {
    train_model "$HERE/$1-seed$SEED" "$2" "$PRESET" "$SEED" "$UPDATES" "$3" "${@:4}"
}

# `transformer NAME OPTION...`, `pervasive NAME OPTION...`: train a model that can translate simultaneously.
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

# `along ARCHITECTURE NAME K OPTION...`: train for one wait-k path or, if K is inf, offline.
along() {
    if [ "$3" = inf ]; then
        "$1" "$2" "${@:4}"
    else
        "$1" "$2" --objective wait-k --set "objective.k=$3" "${@:4}"
    fi
}

# `evaluate NAME OPTION...`: translate the test set, unless that was done.
evaluate() {
    local name="$1" out="$HERE/eval/$1-seed$SEED"
    shift
    once "$out/results.json" nmtgrid online-eval "$name=$HERE/${MODEL:-$name}-seed$SEED" --data "$DATA" --split test \
        --out "$out" "$@"
}

# `compare FIGURE NAME...`: translate the test set with all models along wait-k paths, unless that was
# done; draw a figure, and a table that compares each curve with that of the first model.
compare() {
    local figure="$1" name systems=() out="$HERE/eval/figure-$1-seed$SEED"
    shift
    for name in "$@"; do systems+=("$name=$HERE/$name-seed$SEED"); done
    once "$out/results.json" nmtgrid online-eval "${systems[@]}" --data "$DATA" --split test --k "$K,inf" \
        --baseline "$1" --out "$out"
    draw "$figure" "figure-$figure"
}

# `draw FIGURE NAME...`: after the last seed, write a table of the results over all seeds, and a figure of the
# first seed. Other policies than wait-k are also compared with wait-k of the first NAME.
draw() {
    local figure="$1" name seed results=()
    shift
    if [ "$SEED" != "${SEEDS##* }" ]; then return; fi
    for seed in $SEEDS; do
        for name in "$@"; do results+=("$HERE/eval/$name-seed$seed"); done
    done
    run nmtgrid analyze latency "${results[@]:0:$#}" "${PUBLISHED[@]}" --corpus "$ON" --out "$HERE/figure-$figure.png"
    run python "$PROJECT/recipes/policies_table.py" "${results[@]}" --start "$1" --out "$HERE/figure-$figure"
    record "figure-$figure" "${TITLES[${figure%%-*}]}" "$HERE/figure-$figure.json" \
        "$HERE/figure-$figure.png"
}

table_4_2() {
    local arch name beam names models
    for arch in $ARCHS; do
        case "$arch" in
        transformer)
            names=(tf-uni-inf tf-bi-inf)
            transformer tf-uni-inf
            train tf-bi-inf transformer "$MINUTES" --set model.encoder=bidirectional
            ;;
        *)
            names=(pa-uni-inf pa-bi-inf)
            pervasive pa-uni-inf
            train pa-bi-inf pervasive "$MINUTES" --set model.aggregation=max
            ;;
        esac
        models=()
        for name in "${names[@]}"; do
            for beam in $BEAMS; do translate "$HERE/$name-seed$SEED" test "$beam"; done
            models+=("$name=$HERE/$name")
        done
        if [ "$SEED" != "${SEEDS##* }" ]; then continue; fi
        significance "table-4.2-$arch" test "${names[@]}"
        run python "$PROJECT/recipes/pervasive_table.py" scores "${models[@]}" --seeds "$SEEDS" \
            --compare "$HERE/table-4.2-$arch" --out "$HERE/table-4.2-$arch"
        record "table-4.2-$arch" "Offline, encoders of one and of both directions" "$HERE/table-4.2-$arch.json"
    done
}

figure_4_9() {
    local k encoder names
    for k in ${ONLY_K:-1 7}; do
        names=()
        for encoder in ${ENCODERS:-bi uni window7 window3}; do
            local name="tf-$encoder-k$k" more=()
            case "$encoder" in
            uni) name="tf-k$k" ;;
            bi) more=(--set model.encoder=bidirectional) ;;
            window*) more=(--set model.encoder=window --set "model.window=${encoder#window}") ;;
            esac
            along transformer "$name" "$k" "${more[@]}"
            names+=("$name")
        done
        compare "4.9-k$k" "${names[@]}"
    done
}

figure_4_10() {
    local k kind names
    for k in ${ONLY_K:-1 7 inf}; do
        names=()
        for kind in max gated-max attention cell; do
            local name="pa-$kind-k$k" more=(--set "model.aggregation=$kind")
            case "$kind" in
            # The same command as in other figures, whose models all use the maximum.
            max) name="pa-k$k" more=() ;;
            cell) more=(--set model.aggregation=max --set model.online_features=cell) ;;
            esac
            if [ "$kind-$k" = max-inf ]; then name=pa-uni-inf; fi
            along pervasive "$name" "$k" "${more[@]}"
            names+=("$name")
        done
        compare "4.10-k$k" "${names[@]}"
    done
}

# `single ARCHITECTURE`: train a model for each k of TRAIN_K; adds to `names`.
single() {
    local k name prefix=pa
    if [ "$1" = transformer ]; then prefix=tf; fi
    for k in ${TRAIN_K:-1 3 7 inf}; do
        name="$prefix-k$k"
        if [ "$k" = inf ]; then name="$prefix-uni-inf"; fi
        along "$1" "$name" "$k"
        names+=("$name")
    done
}

figure_4_11() {
    local arch names
    for arch in $ARCHS; do
        names=()
        single "$arch"
        compare "4.11-$arch" "${names[@]}"
    done
}

several_paths() { transformer tf-sampled --objective wait-k-sampled; }

figure_4_12() {
    local arch names
    for arch in $ARCHS; do
        case "$arch" in
        pervasive)
            names=(pa-area)
            pervasive pa-area --objective wait-k-area
            ;;
        *)
            names=(tf-sampled)
            several_paths
            ;;
        esac
        single "$arch"
        compare "4.12-$arch" "${names[@]}"
    done
}

figure_4_13() {
    local names=(tf-sampled)
    several_paths
    TRAIN_K="${TRAIN_K:-1 3 5 7 9 inf}" single transformer
    compare 4.13 "${names[@]}"
}

# `agent START LAMBDA`: fine-tune the model START together with an agent, and evaluate it; sets NAME.
agent() {
    local UPDATES="$TUNE_UPDATES" limit=()
    NAME="$1-agent$2"
    if [ "$UPDATES-$TUNE_MINUTES" = 0-0 ]; then limit=(--max-updates 10000); fi
    train "$NAME" pervasive "$TUNE_MINUTES" "${limit[@]}" "${CAUSAL[@]}" --set model.reader=own \
        --objective dynamic --set "objective.delay_weight=$2" --init "$HERE/$1-seed$SEED" \
        --set "training.learning_rate=${READER_RATE:-0.001}"
    # Also wait-k with the same weights, with which the agent's curve is compared.
    evaluate "$NAME" --k "$K" --thresholds "$THRESHOLDS"
}

figure_4_14() {
    local start lambda names
    for start in ${STARTS:-pa-uni-inf pa-k7 pa-area}; do
        case "$start" in
        pa-uni-inf) along pervasive "$start" inf ;;
        pa-k*) along pervasive "$start" "${start#pa-k}" ;;
        pa-area) pervasive "$start" --objective wait-k-area ;;
        *) fail "agents cannot start from $start: pa-uni-inf, pa-k7 or another k, pa-area" ;;
        esac
        names=("$start" "$start-oracle")
        evaluate "$start" --k "$K,inf"
        MODEL="$start" evaluate "$start-oracle" --oracle "${LAMBDAS:-0,0.5,1,2,4}"
        for lambda in ${AGENTS:-0 1}; do
            agent "$start" "$lambda"
            names+=("$NAME")
        done
        draw "4.14-$start" "${names[@]}"
    done
}

figure_C_1() {
    local k names=()
    for k in ${ONLY_K:-1 3}; do
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
    for k in ${ONLY_K:-1 3}; do
        for marker in end none begin add-zero; do
            along transformer "tf-$marker-k$k" "$k" --set "model.source_marker=$marker"
            evaluate "tf-$marker-k$k" --k "$K"
            names+=("tf-$marker-k$k")
        done
    done
    draw C.2 "${names[@]}"
}

# `by_difficulty FIGURE NAME=FILE...`: lengths of translations relative to their references, and sentence BLEU
# by the lagging that is needed to write the reference.
by_difficulty() {
    # The dataset's tokenised text, not the raw text, since it is aligned together with the training text.
    local text=(--data "$DATA" --split test)
    run nmtgrid analyze lengths "${@:2}" "${text[@]}" --out "$HERE/figure-$1-lengths.png"
    run nmtgrid analyze difficulty "${@:2}" "${text[@]}" \
        --train "$DATA/text/train.$SOURCE" "$DATA/text/train.$TARGET" \
        --out "$HERE/figure-$1.png" --json "$HERE/figure-$1-difficulty.json"
    run python "$PROJECT/recipes/pervasive_table.py" buckets "$1=$HERE/figure-$1-difficulty.json" \
        --out "$HERE/figure-$1"
    record "figure-$1" "${TITLES[$1]}" "$HERE/figure-$1.json"
}

figure_4_15() {
    along transformer tf-uni-inf inf
    evaluate tf-uni-inf --k "$K,inf"
    several_paths
    evaluate tf-sampled --k "$K,inf"
    by_difficulty 4.15 "offline=$HERE/eval/tf-uni-inf-seed$SEED/k-inf.txt" \
        "offline-wait-1=$HERE/eval/tf-uni-inf-seed$SEED/k-1.txt" \
        "many-paths-wait-1=$HERE/eval/tf-sampled-seed$SEED/k-1.txt"
}

# Train and evaluate an agent initialised offline, and a Transformer for wait-7, as compared in figures 4.16 to 4.18.
agent_and_wait_7() {
    along pervasive pa-uni-inf inf
    evaluate pa-uni-inf --k "$K,inf"
    agent pa-uni-inf 1
    along transformer tf-k7 7
    evaluate tf-k7 --k "$K,inf"
}

# Set THRESHOLD (of the agent) and WAIT (the k of the wait-7 model) to the pair whose lagging is closest, OFFLINE_WAIT
# to the k of the offline model whose lagging is closest to that agent's, and NOTE to a sentence about them.
operating_points() {
    THRESHOLD=0.2 WAIT=5 OFFLINE_WAIT=5 NOTE=""
    if [ "$DRY_RUN" != 0 ]; then return; fi
    read -r THRESHOLD WAIT OFFLINE_WAIT NOTE < <(
        python "$PROJECT/recipes/nearest_points.py" \
            "$HERE/eval/"{"$NAME","tf-k7","pa-uni-inf"}"-seed$SEED/results.json"
    )
}

figure_4_16() {
    local THRESHOLD WAIT OFFLINE_WAIT NOTE
    agent_and_wait_7
    operating_points
    by_difficulty 4.16 "offline=$HERE/eval/pa-uni-inf-seed$SEED/k-inf.txt" \
        "agent=$HERE/eval/$NAME-seed$SEED/threshold-$THRESHOLD.txt" \
        "offline-wait-k=$HERE/eval/pa-uni-inf-seed$SEED/k-$OFFLINE_WAIT.txt" \
        "wait-7=$HERE/eval/tf-k7-seed$SEED/k-$WAIT.txt"
}

# `paths FIGURE THRESHOLD K`: plot the READ/WRITE paths of an agent and of wait-k.
paths() {
    agent_and_wait_7
    run nmtgrid analyze paths "agent=$HERE/eval/$NAME-seed$SEED/threshold-$2.traces.jsonl" \
        "wait-7=$HERE/eval/tf-k7-seed$SEED/k-$3.traces.jsonl" --line 1 --words \
        --train "$DATA/text/train.$SOURCE" "$DATA/text/train.$TARGET" \
        --out "$HERE/figure-$1.png" --json "$HERE/figure-$1.json"
    record "figure-$1" "${TITLES[$1]}" "$HERE/figure-$1.json" "$HERE/figure-$1.png"
}

figure_4_17() { paths 4.17 0.7 1; }
figure_4_18() { paths 4.18 0.2 5; }

for figure in "$@"; do
    case "$figure" in
    4.2) experiment_function=table_4_2 ;;
    *) experiment_function="figure_${figure//./_}" ;;
    esac
    for SEED in $SEEDS; do "$experiment_function"; done
done
