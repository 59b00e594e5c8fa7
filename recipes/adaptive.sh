#!/usr/bin/env bash
# Depth-adaptive decoding, chapter 5: trains decoders with an exit after every block, tunes the exit
# thresholds, and plots BLEU against average exit, operations and seconds.
#
#   bash recipes/adaptive.sh               figures 5.6 and 5.9
#   bash recipes/adaptive.sh 5.2 5.3 5.4   tables on the development set: aligned against mixed training
#                                          (random exits 35.48 against 34.12 to 35.30), loss weights,
#                                          gradient ratios; with baselines
#   bash recipes/adaptive.sh 5.5           table on the test set: aligned against baselines (mean 34.51
#                                          against 34.33)
#   bash recipes/adaptive.sh 5.6           figure: the six variants of table 5.1, confidence, fixed exits,
#                                          baselines (Tok-C geometric: 34.73 at an average exit of 1.42)
#   bash recipes/adaptive.sh 5.7           figure: average exit as a function of lambda and sigma
#   bash recipes/adaptive.sh 5.8           figure, and table 5.6: four variants on a large corpus (43.41 at
#                                          2.40, 43.62 at 3.25)
#   bash recipes/adaptive.sh 5.9           examples with their exits (and figure 5.10: ON=wmt14-en-fr)
#   bash recipes/adaptive.sh 5.11          exits by position, confidence and source length of three variants
#                                          (and 5.12); 5.13: Seq-LL with two lambdas
#   bash recipes/adaptive.sh guarantee     thresholds guaranteed to lose at most ALLOW percent (1; toy: 10)
#   bash recipes/adaptive.sh speed         decoding time of fixed, confidence, free, predicted and verified exits
#   bash recipes/adaptive.sh clock         BLEU against computation-aware lagging: exits together with wait-k
#   bash recipes/adaptive.sh --dry-run ... only prints the commands
#
# Data: ON=multi30k, multi30k-en-de (or others of cs de en fr), iwslt14-de-en, iwslt14-en-de (downloaded, or from
# NMTGRID_DATA=DIR), toy, toy-joint, toy-words, wmt14-en-fr (from NMTGRID_DATA). PRESET=multi30k-exits selects a
# preset with exits for other corpora of common.sh, or instead of the default for the corpus.
# Device hours: the thesis names 2 GPUs (IWSLT'14) and 128 (WMT'14), but no times. Estimated from the
# FLOPs that `train --dry-run` counts, at 20 TFLOP/s on a GPU: a model of 50,000 updates 2 on
# IWSLT'14, 860 on WMT'14; tables 5.2 to 5.4 20 each, figure 5.6 22, figure 5.8 7,500.
# MINUTES of processor time per model (10; toy: 3), TUNE_MINUTES for fine-tuning (a quarter of that).
# The presets of the publications are meant for a GPU: MINUTES=0 keeps their limits, and
# fine-tunes for 3,000 updates. UPDATES=N (and TUNE_UPDATES, a quarter of it) sets updates instead of
# minutes, as in the thesis: an update of aligned training costs up to three of a plain decoder. ROTATIONS="1 2"
# adds to table 5.2 aligned training with that many earlier exits per update.
# DEPTHS="1 2 3 4 5 6" of baselines, BEAM=1 (published: 5), SAMPLES=10000, BATCH=64,
# LAMBDAS and SIGMAS of token-specific oracles, LAMBDAS_SEQUENCE of the others, CLOCK=processor (with
# MINUTES=0: wall), SEED=1 (tables 5.2 to 5.5 take several: SEEDS="1 2 3"), RUNS=runs (output folder),
# SETS="--set ..." for every model, ALIGNED_SETS="--set objective.distillation=1" for aligned training only,
# START_MINUTES=18 initialises aligned training with a decoder without exits, trained for that many minutes,
# DISTILLED=DIR trains on the dataset that recipes/distill.sh made from ON (RUNS/distill-ON/distilled),
# LABEL=word names the folder and the records of such a run; for clock EXITS="all 1 2 3", K=1..9:2,
# SENTENCES=200. SMALL=1: the toy corpus, decoders of two blocks, 40 updates, shorter lists. Existing
# results are kept.
# CONFIG=FILE: a file for `nmtgrid train --config`, applied after the preset. PAIRS=10000 pairs of a toy corpus.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[ $# -gt 0 ] || set -- 5.6 5.9

if [ "$SMALL" = 1 ]; then
    ON="${ON:-toy}" DEPTHS="${DEPTHS:-1 2}" COUNTS="${COUNTS:-2}" WEIGHTS="${WEIGHTS:-linear inverse}"
    RATIOS="${RATIOS:-0.5 1.1}"
    LAMBDAS="${LAMBDAS:-0.1}" SIGMAS="${SIGMAS:-0}" LAMBDAS_SEQUENCE="${LAMBDAS_SEQUENCE:-0.5}"
    SWEEP_LAMBDAS="${SWEEP_LAMBDAS:-0.1}" SWEEP_FOR="${SWEEP_FOR:-0.1}" SWEEP_SIGMAS="${SWEEP_SIGMAS:-1}"
    SAMPLES="${SAMPLES:-200}" FINALISTS="${FINALISTS:-1}" SENTENCES="${SENTENCES:-24}" EXITS="${EXITS:-all 1}"
    K="${K:-1,3}"
fi
ON="${ON:-multi30k}"
SEEDS="${SEEDS:-${SEED:-1}}"
SEED="${SEEDS%% *}"
BATCH="${BATCH:-64}"
BEAM="${BEAM:-1}"
HERE="$RUNS/adaptive-$ON${LABEL:+-$LABEL}"
DATA="$HERE/data"
read -r -a SETS <<<"${SETS:-}"
read -r -a ALIGNED_SETS <<<"${ALIGNED_SETS:-}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

case "$ON" in
toy*) MINUTES="${MINUTES:-3}" ALLOW="${ALLOW:-10}" ;;
multi30k*) MINUTES="${MINUTES:-10}" ;;
iwslt14-* | wmt14-*) MINUTES="${MINUTES:-0}" ;;
*)
    [ -n "${PRESET:-}" ] || fail "there is no preset with exits for $ON: set PRESET, for example to multi30k-exits"
    MINUTES="${MINUTES:-0}"
    ;;
esac
TUNE_MINUTES="${TUNE_MINUTES:-$(awk -v whole="$MINUTES" 'BEGIN { print whole / 4 }')}"
UPDATES="${UPDATES:-0}"
TUNE_UPDATES="${TUNE_UPDATES:-$((UPDATES / 4))}"
if [ "$MINUTES" = 0 ]; then CLOCK="${CLOCK:-wall}"; else CLOCK="${CLOCK:-processor}"; fi
DEPTHS="${DEPTHS:-1 2 3 4 5 6}"
LAMBDAS="${LAMBDAS:-0 0.05 0.2}"
SIGMAS="${SIGMAS:-0 1}"
LAMBDAS_SEQUENCE="${LAMBDAS_SEQUENCE:-0 0.5 2}"
SAMPLES="${SAMPLES:-10000}"
START_MINUTES="${START_MINUTES:-0}"
FINALISTS="${FINALISTS:-3}"
PRESET="${PRESET:-$(preset_of "$ON")-exits}"
for figure in "$@"; do
    if [ "$figure" = clock ] && [ "$START_MINUTES" != 0 ]; then
        fail "START_MINUTES does not apply to clock, whose model has another encoder"
    fi
    case "$figure" in
    5.[2-9] | 5.1[0-3] | guarantee | speed | clock) ;;
    *) fail "there is no table or figure $figure here: 5.2 to 5.13 guarantee speed clock" ;;
    esac
    case "$SEEDS/$figure" in
    *\ */5.[2-5]) ;;
    *\ */*) fail "only tables 5.2 to 5.5 take several SEEDS; $figure takes one SEED" ;;
    esac
done

environment
if [ -n "${DISTILLED:-}" ]; then
    DATA="$DISTILLED" INVOKED="DISTILLED=DIR $INVOKED"
    pairs_of_toys DISTILLED
    run mkdir -p "$HERE"
else
    dataset "$ON" "$DATA" "$HERE/text"
fi

# `train NAME MINUTES UPDATES OPTION...`: train a Transformer, unless it exists.
train() {
    train_model "$HERE/$1-seed$SEED" transformer "$PRESET" "$SEED" "$3" "$2" "${@:4}"
}

# `with_exits NAME OPTION...`: train a decoder with exits for MINUTES or UPDATES.
with_exits() { train "$1" "$MINUTES" "$UPDATES" "${@:2}"; }

# `aligned [NAME OPTION...]`: train one by aligned training, with START_MINUTES from a decoder without exits.
aligned() {
    local from=()
    if [ "$START_MINUTES" != 0 ]; then
        train start "$START_MINUTES" "$UPDATES" --set model.exits=none
        from=(--init "$HERE/start-seed$SEED")
    fi
    with_exits "${1:-aligned}" --objective exits-aligned "${from[@]}" "${@:2}" "${ALIGNED_SETS[@]}"
}

# Train a separate decoder of each depth; set BASELINES to the options that include them in a measurement.
BASELINES=()
baselines() {
    local depth
    BASELINES=()
    for depth in $DEPTHS; do
        train "blocks$depth" "$MINUTES" "$UPDATES" --set model.exits=none --set "model.decoder_depth=$depth"
        BASELINES+=(--baselines "blocks$depth=$HERE/blocks$depth-seed$SEED")
    done
}

# `measure NAME MODEL OPTION...`: measure exits, and tune them, unless that was done.
measure() {
    local out="$HERE/eval/$1-seed$SEED" model="$HERE/$2-seed$SEED"
    once "$out/results.json" nmtgrid adaptive-tune "$model" --data "$DATA" --split valid --test-split test \
        --beam "$BEAM" --batch "$BATCH" --clock "$CLOCK" --seed "$SEED" --out "$out" "${@:3}"
}

# `tune NAME MODEL OPTION...`: tune and measure. Predictors that output the exit itself have no thresholds.
tune() {
    local thresholds=(--samples "$SAMPLES" --finalists "$FINALISTS")
    case "$1" in Seq-* | *-multinomial-*) thresholds=() ;; esac
    measure "$1" "$2" "${thresholds[@]}" --name "$1" "${@:3}"
}

# `tabulate TABLE TITLE SPLIT NAME...`: tabulate random and fixed exits of measured models, baselines first.
tabulate() {
    run python "$PROJECT/recipes/adaptive_table.py" exits "${@:4}" --folder "$HERE" \
        --seeds "$SEEDS" --split "$3" --out "$HERE/table-$1"
    record "table-$1" "$2" "$HERE/table-$1.json"
}

# `fixed NAME OPTION...`: measure random and fixed exits of a model.
fixed() { measure "$1-fixed" "$1" --only fixed "${@:2}"; }

# `each_seed FUNCTION ARGUMENT...`: call it with each seed of SEEDS as SEED.
each_seed() {
    local SEED
    for SEED in $SEEDS; do "$@"; done
}

aligned_and_baselines() {
    aligned
    baselines
    fixed aligned "${BASELINES[@]}"
}

# `mixed COUNT`: train a decoder by mixed training with COUNT sequences of exits.
mixed() {
    with_exits "mixed$1" --objective exits-mixed --set "objective.sequences=$1"
    fixed "mixed$1"
}

# `aligned_with NAME SETTING VALUE`: aligned training with one setting of the objective changed.
aligned_with() {
    aligned "$1" --set "objective.$2=$3"
    fixed "$1"
}

table_5_2() {
    local count names=(aligned)
    each_seed aligned_and_baselines
    for count in ${ROTATIONS:-}; do
        each_seed aligned_with "rotation$count" rotation "$count"
        names+=("rotation$count")
    done
    for count in ${COUNTS:-1 3 6}; do
        each_seed mixed "$count"
        names+=("mixed$count")
    done
    tabulate 5.2 "Aligned against mixed training, development set" tuned "${names[@]}"
}

# `ablation TABLE TITLE SETTING VALUE...`: aligned training with other values of a setting.
ablation() {
    local value names=(aligned)
    each_seed aligned_and_baselines
    for value in "${@:4}"; do
        each_seed aligned_with "aligned-$value" "$3" "$value"
        names+=("aligned-$value")
    done
    tabulate "$1" "$2" tuned "${names[@]}"
}

table_5_3() {
    ablation 5.3 "Weights of the losses, development set" weights \
        ${WEIGHTS:-linear root inverse-root inverse}
}
table_5_4() {
    ablation 5.4 "Gradient ratios, development set" gradient_ratio ${RATIOS:-0.3 0.5 0.7 0.9 1.1}
}

table_5_5() {
    each_seed aligned_and_baselines
    tabulate "${1:-5.5}" "Aligned against models trained alone, test set" test aligned
}

# `variant NAME LAMBDA SIGMA`: fine-tune the aligned decoder with the predictor of a variant of table
# 5.1. Sets ONE to its name.
variant() {
    local halting=geometric oracle=correctness updates=()
    case "$1" in Seq-*) halting=sequence ;; *-multinomial) halting=multinomial ;; esac
    case "$1" in *-LL*) oracle=likelihood ;; esac
    if [ "$TUNE_UPDATES-$TUNE_MINUTES" = 0-0 ]; then updates=(--max-updates 3000); fi
    ONE="$1-lambda$2-sigma$3"
    train "$ONE" "$TUNE_MINUTES" "$TUNE_UPDATES" "${updates[@]}" --init "$HERE/aligned-seed$SEED" \
        --set "model.halting=$halting" --objective exits-halting --set "objective.oracle=$oracle" \
        --set "objective.depth_penalty=$2" --set "objective.sigma=$3"
}

# `variants NAME...`: train and tune variants for all lambdas and sigmas; add the measurements to
# RESULTS.
variants() {
    local name lambda sigma lambdas sigmas
    for name in "$@"; do
        case "$name" in
        Seq-*) lambdas="$LAMBDAS_SEQUENCE" sigmas=0 ;;
        *) lambdas="$LAMBDAS" sigmas="$SIGMAS" ;;
        esac
        for lambda in $lambdas; do
            for sigma in $sigmas; do
                variant "$name" "$lambda" "$sigma"
                tune "$ONE" "$ONE" --only points
                RESULTS+=(--results "$name=$HERE/eval/$ONE-seed$SEED")
            done
        done
    done
}

# `trade_off FIGURE TITLE NAME...`: confidence of the aligned decoder and variants in one figure.
trade_off() {
    RESULTS=(--results "confidence=$HERE/eval/confidence-seed$SEED")
    aligned
    baselines
    tune confidence aligned "${BASELINES[@]}"
    variants "${@:3}"
    run nmtgrid adaptive-tune "${RESULTS[@]}" --out "$HERE/figure-$1.png" \
        --json "$HERE/figure-$1.json"
    record "figure-$1" "$2" "$HERE/figure-$1.json" "$HERE/figure-$1.png"
}

figure_5_6() {
    trade_off 5.6 "BLEU against average exit" Seq-LL Seq-C Tok-LL-geometric Tok-LL-multinomial \
        Tok-C-geometric Tok-C-multinomial
}

figure_5_7() {
    local lambda sigma pair pairs=() model results=()
    aligned
    for lambda in ${SWEEP_LAMBDAS:-0 0.05 0.1 0.2 0.5}; do pairs+=("$lambda,0"); done
    for lambda in ${SWEEP_FOR:-0.05 0.2}; do
        for sigma in ${SWEEP_SIGMAS:-0.5 1 5 20}; do pairs+=("$lambda,$sigma"); done
    done
    for pair in "${pairs[@]}"; do
        variant Tok-LL-geometric "${pair%,*}" "${pair#*,}"
        model="$HERE/$ONE-seed$SEED"
        once "$model/auto.json" nmtgrid decode "$model" --data "$DATA" --split valid --beam "$BEAM" \
            --exit auto --json "$model/auto.json"
        results+=("$pair=$model/auto.json")
    done
    run python "$PROJECT/recipes/adaptive_table.py" sweep "${results[@]}" --out "$HERE/figure-5.7"
    record figure-5.7 "Average exit along lambda and sigma" "$HERE/figure-5.7.json" "$HERE/figure-5.7.png"
}

figure_5_8() {
    table_5_5 5.6
    trade_off 5.8 "BLEU against average exit" Seq-LL Tok-LL-geometric Tok-C-geometric
}

# `exits FIGURE TITLE NAME,LAMBDA,SIGMA...`: plot at which block tokens exit, for these variants.
exits() {
    local one model name lambda sigma traces=()
    aligned
    for one in "${@:3}"; do
        IFS=, read -r name lambda sigma <<<"$one"
        variant "$name" "$lambda" "$sigma"
        model="$HERE/$ONE-seed$SEED"
        once "$model/test.traces.jsonl" nmtgrid decode "$model" --data "$DATA" --split test --beam "$BEAM" \
            --exit auto --traces "$model/test.traces.jsonl" --out "$model/test.txt"
        traces+=("$ONE=$model/test.traces.jsonl")
    done
    run nmtgrid analyze exits "${traces[@]}" --out "$HERE/figure-${1//./-}" --json "$HERE/figure-$1.json"
    record "figure-$1" "$2" "$HERE/figure-$1.json"
}

figure_5_9() { exits "$1" "Exits of examples" "Tok-LL-geometric,${LAMBDAS%% *},${SIGMAS%% *}"; }

figure_5_11() {
    exits "$1" "Exits by place, confidence and length" "Seq-LL,${LAMBDAS_SEQUENCE##* },0" \
        "Tok-LL-geometric,${LAMBDAS%% *},${SIGMAS%% *}" "Tok-C-geometric,${LAMBDAS%% *},${SIGMAS%% *}"
}

figure_5_13() { exits 5.13 "Exits of whole sequences" Seq-LL,0.5,0 Seq-LL,2,0; }

guarantee() {
    aligned
    measure guarantee aligned --samples "$SAMPLES" --name guarantee --only points --allow-loss "${ALLOW:-1}"
    record exit-guarantee "Exit thresholds with a guarantee" "$HERE/eval/guarantee-seed$SEED/results.json"
}

speed() {
    local models=("aligned=$HERE/aligned-seed$SEED")
    aligned
    variant Tok-LL-geometric "${LAMBDAS%% *}" 0
    models+=("geometric=$HERE/$ONE-seed$SEED")
    variant Seq-LL "${LAMBDAS_SEQUENCE##* }" 0
    models+=("sequence=$HERE/$ONE-seed$SEED")
    once "$HERE/speed-seed$SEED.json" python "$PROJECT/recipes/adaptive_speed.py" "${models[@]}" --data "$DATA" \
        --sentences "${SENTENCES:-256}" --out "$HERE/speed-seed$SEED.json"
    record speed "Early exits on the clock" "$HERE/speed-seed$SEED.json"
}

# One simultaneous model, by aligned training along sampled wait-k paths, decoded at each of several fixed
# exits. It measures wall-clock time: run nothing else on the machine meanwhile.
clock() {
    local exit name results=()
    aligned online --set model.encoder=unidirectional --set objective.reads=sampled
    for exit in ${EXITS:-all 1 2 3}; do
        name="exit-$exit" results+=("$HERE/eval/exit-$exit-seed$SEED")
        local leave=(--exit "$exit")
        if [ "$exit" = all ]; then leave=(); fi
        once "${results[-1]}/results.json" nmtgrid online-eval "$name=$HERE/online-seed$SEED" --data "$DATA" \
            --split test --clock --k "${K:-1..9:2}" --sentences "${SENTENCES:-200}" "${leave[@]}" --out "${results[-1]}"
    done
    run nmtgrid analyze latency "${results[@]}" --metric ca-al --corpus "$ON" --out "$HERE/clock-seed$SEED.png" \
        --json "$HERE/clock-seed$SEED.json"
    record exits-clock "Exits together with wait-k, on the clock" "$HERE/clock-seed$SEED.json" \
        "$HERE/clock-seed$SEED.png"
}

for figure in "$@"; do
    case "$figure" in
    5.[2-5]) "table_${figure//./_}" ;;
    5.[6-8] | 5.13) "figure_${figure//./_}" ;;
    5.9 | 5.10) figure_5_9 "$figure" ;;
    5.11 | 5.12) figure_5_11 "$figure" ;;
    guarantee) guarantee ;;
    speed) speed ;;
    clock) clock ;;
    esac
done
