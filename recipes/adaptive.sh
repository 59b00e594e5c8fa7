#!/usr/bin/env bash
# Depth-adaptive decoding, chapter 5: trains decoders with an exit behind every block, tunes where
# tokens leave them, and draws BLEU against average exit, operations and seconds.
#
#   bash recipes/adaptive.sh               figure 5.6
#   bash recipes/adaptive.sh 5.2 5.3 5.4   tables on the development set: aligned against mixed
#                                          training, weights, gradient ratios; baselines beside
#   bash recipes/adaptive.sh 5.5           table on the test set: aligned against baselines
#   bash recipes/adaptive.sh 5.6           figure: the six variants of table 5.1, confidence, fixed
#                                          exits, baselines; then traces for figures 5.9 to 5.13
#   bash recipes/adaptive.sh 5.7           figure: the average exit along lambda and sigma
#   bash recipes/adaptive.sh 5.8           figure, and table 5.6: four variants, for a large corpus
#   bash recipes/adaptive.sh promise       thresholds that lose at most ALLOW percent (1)
#   bash recipes/adaptive.sh --dry-run ... prints the commands alone
#
# ON=multi30k, or toy, iwslt14-de-en, wmt14-en-fr. MINUTES of processor time for each model (10; toy
# 3), those of fine-tuning TUNE_MINUTES (a quarter of it); the presets of the publications are for a
# GPU: MINUTES=0 trains as long as they say, and fine-tunes for 3,000 updates. UPDATES=N (and
# TUNE_UPDATES, a quarter of it) counts updates in place of minutes, as the tables do: one of aligned
# training costs up to three of a plain decoder. SMALL=1 runs in minutes: less of everything, and not
# the best of it.
# DEPTHS="1 2 3 4 5 6" of baselines, BEAM=1 (published: 5), SAMPLES=10000, BATCH=64,
# LAMBDAS and SIGMAS of token-specific oracles, LAMBDAS_SEQUENCE of the others, CLOCK=processor (0
# minutes: wall), SEED=1, RUNS=runs where the results go, SETS="--set ..." for every model.
# NMTGRID_DATA=DIR reads the corpora from there (see common.sh). What has been trained or measured
# already is not done again.
set -euo pipefail
[ "${1:-}" = "--dry-run" ] && { DRY_RUN=1; shift; }
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[ $# -gt 0 ] || set -- 5.6

ON="${ON:-multi30k}"
SMALL="${SMALL:-0}"
SEED="${SEED:-1}"
RUNS="${RUNS:-runs}"
BATCH="${BATCH:-64}"
BEAM="${BEAM:-1}"
HERE="$RUNS/adaptive-$ON"
DATA="$HERE/data"
read -r -a SETS <<<"${SETS:-}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

if [ "$SMALL" = 1 ]; then
    case "$ON" in toy) MINUTES="${MINUTES:-1}" ;; *) MINUTES="${MINUTES:-3}" ;; esac
    DEPTHS="${DEPTHS:-1 3 6}"
    LAMBDAS="${LAMBDAS:-0.1}" SIGMAS="${SIGMAS:-0}" LAMBDAS_SEQUENCE="${LAMBDAS_SEQUENCE:-1}"
    SAMPLES="${SAMPLES:-2000}" FINALISTS=1
fi
case "$ON" in
toy) MINUTES="${MINUTES:-3}" ;;
multi30k) MINUTES="${MINUTES:-10}" ;;
iwslt14-de-en | wmt14-en-fr) MINUTES="${MINUTES:-0}" ;;
*) fail "there is no corpus $ON here: toy multi30k iwslt14-de-en wmt14-en-fr" ;;
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
FINALISTS="${FINALISTS:-3}"
PRESET="$ON-exits"

# Make the dataset of WMT'14 En-Fr with 40,000 joint merges and one vocabulary, unless it is there,
# from NMTGRID_DATA's wmt14.en-fr/{train,test}.{en,fr}; 26,000 pairs are held out.
wmt14_dataset() {
    own_text wmt14.en-fr || fail "set NMTGRID_DATA to a folder with \
wmt14.en-fr/{train,test}.{en,fr}: all parallel texts in one file, and newstest2014, from \
https://www.statmt.org/wmt14/translation-task.html"
    if [ -e "$DATA/bpe.codes" ]; then return; fi
    run nmtgrid preprocess --source-lang en --target-lang fr --max-words 175 --max-ratio 1.5 \
        --train "$TEXT/train" --valid-every 1365 --test "$TEXT/test" \
        --overwrite --workers 0 --out "$DATA"
    run nmtgrid bpe learn "$DATA" --merges 40000 --joint-vocabulary
}

environment
if [ "$ON" = wmt14-en-fr ]; then wmt14_dataset; else dataset "$ON" "$DATA" "$HERE/text"; fi

# `train NAME MINUTES UPDATES OPTION...`: train a Transformer, unless it is there.
train() {
    local name="$1" minutes="$2" updates="$3" model="$HERE/$1-seed$SEED"
    local limit=()
    shift 3
    if [ -s "$model/done.json" ]; then say "$model is trained already."; return; fi
    if [ "$updates" != 0 ]; then
        limit=(--max-updates "$updates" --max-minutes 0 --set training.schedule=cosine
            --set "training.warmup_updates=$((updates / 12))" --set "training.clock=$CLOCK")
    elif [ "$minutes" != 0 ]; then
        limit=(--max-minutes "$minutes" --max-updates 0 --set training.clock=processor
            --set training.schedule=cosine-time)
    fi
    run nmtgrid train "$DATA" --arch transformer --preset "$PRESET" --seed "$SEED" --overwrite \
        "${limit[@]}" "$@" "${SETS[@]}" --out "$model" --json "$model.train.json"
    run mv "$model.train.json" "$model/done.json"
}

# `with_exits NAME OPTION...`: a decoder with exits, trained from nothing.
with_exits() { train "$1" "$MINUTES" "$UPDATES" "${@:2}"; }
aligned() { with_exits aligned --objective exits-aligned; }

# Train a decoder of each depth by itself; set BASELINES to what measures them beside.
BASELINES=()
baselines() {
    local depth
    BASELINES=()
    for depth in $DEPTHS; do
        train "blocks$depth" "$MINUTES" "$UPDATES" --set model.exits=none --set "model.decoder_depth=$depth"
        BASELINES+=(--baselines "blocks$depth=$HERE/blocks$depth-seed$SEED")
    done
}

# `tune NAME MODEL OPTION...`: tune and measure, unless that is done.
tune() {
    local out="$HERE/eval/$1-seed$SEED" model="$HERE/$2-seed$SEED"
    if [ -s "$out/results.json" ]; then say "$out is there already."; return; fi
    run nmtgrid adaptive-tune "$model" --data "$DATA" --split valid --test-split test \
        --samples "$SAMPLES" --finalists "$FINALISTS" --beam "$BEAM" --batch "$BATCH" \
        --clock "$CLOCK" --seed "$SEED" --name "$1" --out "$out" "${@:3}"
}

# `tabulate TABLE SPLIT NAME...`: random and fixed exits of what was measured, baselines first.
tabulate() {
    local name results=()
    for name in "${@:3}"; do results+=("$name=$HERE/eval/$name-fixed-seed$SEED"); done
    run python "$PROJECT/recipes/adaptive_table.py" exits "${results[@]}" --split "$2" \
        --out "$HERE/table-$1"
}

# `fixed NAME OPTION...`: measure random and fixed exits of a model.
fixed() { tune "$1-fixed" "$1" --only fixed "${@:2}"; }

table_5_2() {
    local count names=(aligned)
    aligned
    baselines
    fixed aligned "${BASELINES[@]}"
    for count in 1 3 6; do
        with_exits "mixed$count" --objective exits-mixed --set "objective.sequences=$count"
        fixed "mixed$count"
        names+=("mixed$count")
    done
    tabulate 5.2 tuned "${names[@]}"
}

# `ablation TABLE SETTING VALUE...`: aligned training with other values of a setting.
ablation() {
    local value names=(aligned)
    aligned
    baselines
    fixed aligned "${BASELINES[@]}"
    for value in "${@:3}"; do
        with_exits "aligned-$value" --objective exits-aligned --set "objective.$2=$value"
        fixed "aligned-$value"
        names+=("aligned-$value")
    done
    tabulate "$1" tuned "${names[@]}"
}

table_5_3() { ablation 5.3 weights linear root inverse-root inverse; }
table_5_4() { ablation 5.4 gradient_ratio 0.3 0.5 0.7 0.9 1.1; }

table_5_5() {
    aligned
    baselines
    fixed aligned "${BASELINES[@]}"
    tabulate "${1:-5.5}" test aligned
}

# `variant NAME HALTING ORACLE LAMBDA SIGMA`: fine-tune the aligned decoder with a predictor.
variant() {
    local limit=()
    if [ "$MINUTES" = 0 ]; then limit=(--max-updates 3000); fi
    train "$1" "$TUNE_MINUTES" "$TUNE_UPDATES" "${limit[@]}" --init "$HERE/aligned-seed$SEED" \
        --set "model.halting=$2" --objective exits-halting --set "objective.oracle=$3" \
        --set "objective.depth_penalty=$4" --set "objective.sigma=$5"
}

# `variants NAME...`: train and tune the variants of table 5.1 for all lambdas and sigmas; add what
# was measured to RESULTS.
variants() {
    local name halting oracle lambda sigma lambdas sigmas
    for name in "$@"; do
        case "$name" in
        Seq-*) halting=sequence lambdas="$LAMBDAS_SEQUENCE" sigmas=0 ;;
        *-multinomial) halting=multinomial lambdas="$LAMBDAS" sigmas="$SIGMAS" ;;
        *-geometric) halting=geometric lambdas="$LAMBDAS" sigmas="$SIGMAS" ;;
        esac
        case "$name" in *-LL*) oracle=likelihood ;; *) oracle=correctness ;; esac
        for lambda in $lambdas; do
            for sigma in $sigmas; do
                local one="$name-lambda$lambda-sigma$sigma"
                variant "$one" "$halting" "$oracle" "$lambda" "$sigma"
                tune "$one" "$one" --only points
                RESULTS+=(--results "$name=$HERE/eval/$one-seed$SEED")
            done
        done
    done
}

# `trade_off FIGURE NAME...`: confidence of the aligned decoder and variants in one picture.
trade_off() {
    local name last
    RESULTS=(--results "confidence=$HERE/eval/confidence-seed$SEED")
    aligned
    baselines
    tune confidence aligned "${BASELINES[@]}"
    variants "${@:2}"
    run nmtgrid adaptive-tune "${RESULTS[@]}" --out "$HERE/figure-$1.png" \
        --json "$HERE/figure-$1.json"
}

figure_5_6() {
    local model="$HERE/Tok-LL-geometric-lambda${LAMBDAS%% *}-sigma${SIGMAS%% *}-seed$SEED"
    trade_off 5.6 Seq-LL Seq-C Tok-LL-geometric Tok-LL-multinomial Tok-C-geometric Tok-C-multinomial
    run nmtgrid decode "$model" --data "$DATA" --split test --beam "$BEAM" --exit auto \
        --traces "$model/exits.traces.jsonl" --json "$model/exits.test.json"
}

figure_5_7() {
    local lambda sigma name found=()
    aligned
    sweep() {
        name="Tok-LL-geometric-lambda$1-sigma$2"
        variant "$name" geometric likelihood "$1" "$2"
        if [ ! -s "$HERE/$name-seed$SEED/auto.json" ]; then
            run nmtgrid decode "$HERE/$name-seed$SEED" --data "$DATA" --split valid --beam "$BEAM" \
                --exit auto --json "$HERE/$name-seed$SEED/auto.json"
        fi
        found+=("$1,$2=$HERE/$name-seed$SEED/auto.json")
    }
    for lambda in ${SWEEP_LAMBDAS:-0 0.05 0.1 0.2 0.5}; do sweep "$lambda" 0; done
    for lambda in ${SWEEP_FOR:-0.05 0.2}; do
        for sigma in ${SWEEP_SIGMAS:-0.5 1 5 20}; do sweep "$lambda" "$sigma"; done
    done
    run python "$PROJECT/recipes/adaptive_table.py" sweep "${found[@]}" --out "$HERE/figure-5.7"
}

figure_5_8() {
    table_5_5 5.6
    trade_off 5.8 Seq-LL Tok-LL-geometric Tok-C-geometric
}

promise() {
    aligned
    tune promise aligned --only points --allow-loss "${ALLOW:-1}"
}

for figure in "$@"; do
    case "$figure" in
    5.[2-5]) "table_${figure//./_}" ;;
    5.[6-8]) "figure_${figure//./_}" ;;
    promise) promise ;;
    *) fail "there is no table or figure $figure here: 5.2 5.3 5.4 5.5 5.6 5.7 5.8 promise" ;;
    esac
done
