#!/usr/bin/env bash
# Skip connections of Pervasive Attention, appendix A: how fast each converges (figure A.1), and the
# mean and deviation of the activations along the trained networks (figures A.2 to A.4).
#
#   bash recipes/activations.sh                 the embedded toy corpus, a few minutes
#   ON=multi30k bash recipes/activations.sh     Multi30k De-En, 30 minutes of one core per model
#   ON=iwslt14-de-en MINUTES=0 ...              IWSLT'14 De-En, as published: gated and cumulative skip
#                                               connections converge faster, profiles are U-shaped
#   bash recipes/activations.sh --dry-run       only prints the commands
#
# Data: the embedded corpus, or downloads, or NMTGRID_DATA=DIR (see common.sh). Device hours: the thesis
# gives none; estimated from the FLOPs that `train --dry-run` counts, at 20 TFLOP/s on a GPU: 33 for the
# five models of IWSLT'14.
# SKIPS="residual residual-norm residual-cumulative residual-gated dense", MINUTES of processor time
# per model (30; toy: 1; 0: the preset's limit) or UPDATES=N, DEPTH in blocks (the preset's; toy: 6, Multi30k: 5),
# SENTENCES=64 of the validation split whose activations are recorded, WATCH=20 updates between
# gradient measurements (0: none), SEED=1, RUNS=runs (output folder), SETS="--set ..." for all models.
# OMP_NUM_THREADS=1 trains each model on one core; JOBS=2 trains two in parallel. SMALL=1: the toy corpus,
# 40 updates, two blocks. Existing models are not retrained; with ON=multi30k the models of `pervasive.sh
# table-3.4` are reused (without measured gradients), unless MINUTES, UPDATES, DEPTH, CONFIG or SETS is set.
# CONFIG=FILE: a file for `nmtgrid train --config`, applied after the preset. PAIRS=10000 pairs of a toy corpus.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_arguments "$@"

ON="${ON:-toy}"
SKIPS="${SKIPS:-residual residual-norm residual-cumulative residual-gated dense}"
choices SKIPS residual residual-norm residual-cumulative residual-gated dense
SEED="${SEED:-1}"
WATCH="${WATCH:-20}"
UPDATES_ASKED="${UPDATES:-}" UPDATES="${UPDATES:-0}"
SENTENCES="${SENTENCES:-64}"
HERE="$RUNS/activations-$ON"
DATA="$HERE/data"
read -r -a SETS <<<"${SETS:-}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# Models of pervasive.sh may have been trained with other settings.
OWN_MODELS="${MINUTES:-}${UPDATES_ASKED}${CONFIG:-}${SETS[*]}"
if [ "$SMALL" = 1 ]; then DEPTH="${DEPTH:-2}"; fi
if [ "$ON" = toy ]; then MINUTES="${MINUTES:-1}" DEPTH="${DEPTH:-6}"; fi
MINUTES="${MINUTES:-30}"
if [ -n "${DEPTH:-}" ]; then SETS=(--set "model.depth=$DEPTH" "${SETS[@]}"); fi

environment
dataset "$ON" "$DATA" "$HERE/text"

# `model_of SKIP`: set MODEL to the model of `pervasive.sh table-3.4` if it exists, else to this recipe's own.
model_of() {
    local name="$1"
    if [ "$name" = residual-cumulative ]; then name=max; fi
    MODEL="$RUNS/pervasive-$ON/pa-$name-seed$SEED"
    if [ -n "$OWN_MODELS${DEPTH:-}" ] || [ ! -e "$MODEL/done.json" ]; then MODEL="$HERE/$1-seed$SEED"; fi
}

# Train and score one model: `one SKIP`.
one() {
    local MODEL
    model_of "$1"
    if [ "$MODEL" = "$HERE/$1-seed$SEED" ]; then
        five_blocks
        train_model "$MODEL" pervasive "$(preset_of "$ON")" "$SEED" "$UPDATES" "$MINUTES" "${SHAPE[@]}" \
            --set "model.skip=$1" --set "training.watch_gradients=$WATCH"
    fi
    translate "$MODEL" test 1
}

models=()
for skip in $SKIPS; do
    beside "$HERE/$skip-seed$SEED.log" one "$skip"
done
all_done
for skip in $SKIPS; do
    model_of "$skip"
    models+=("$skip=$MODEL")
    if [ "$MODEL" != "$HERE/$skip-seed$SEED" ]; then
        NOTE="${NOTE:-Some models are those of pervasive.sh table-3.4.}"
    fi
done

run nmtgrid analyze curves "${models[@]}" --out "$HERE/curves.png" --json "$HERE/curves.json"
record figure-A.1 "Skip connections: trainings" "$HERE/curves.json" "$HERE/curves.png"
run nmtgrid analyze activations "${models[@]}" --data "$HERE/data" --split valid \
    --sentences "$SENTENCES" --out "$HERE" --json "$HERE/activations.json"
record figure-A.2 "Activations along the networks (figures A.2 to A.4)" "$HERE/activations.json"
