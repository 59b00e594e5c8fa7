#!/usr/bin/env bash
# Skip connections of Pervasive Attention, appendix A: how fast each converges (figure A.1), and the
# mean and deviation of the activations along the trained networks (figures A.2 to A.4).
#
#   bash recipes/activations.sh                 the embedded toy corpus, a few minutes
#   ON=multi30k bash recipes/activations.sh     Multi30k De-En, 30 minutes of one core for each model
#   ON=iwslt14-de-en MINUTES=0 ...              IWSLT'14 De-En, as published: gated and cumulative skip
#                                               connections converge faster, profiles are U-shaped
#   bash recipes/activations.sh --dry-run       prints the commands alone
#
# Data: the embedded corpus, or downloads, or NMTGRID_DATA=DIR (see common.sh). Device hours: the thesis
# gives none; estimate, of the operations that `train --dry-run` counts at 20 TFLOP/s of a GPU: 33 for the
# five models of IWSLT'14.
# SKIPS="residual residual-norm residual-cumulative residual-gated dense", MINUTES of processor time
# for each model (30; toy: 1; 0: as the preset says) or UPDATES=N, DEPTH in blocks (the preset's; toy: 6),
# SENTENCES=64 of the validation split that activations are taken of, WATCH=20 updates between two
# measurements of gradients (0: none), SEED=1, RUNS=runs where the results go, SETTINGS="--set ..." for
# all. OMP_NUM_THREADS=1 keeps each on one core; JOBS=2 trains two side by side. SMALL=1: the toy corpus,
# 40 updates, two blocks. A model that has been trained already is not trained again.
set -euo pipefail
[ "${1:-}" = "--dry-run" ] && { DRY_RUN=1; shift; }
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

ON="${ON:-toy}"
SKIPS="${SKIPS:-residual residual-norm residual-cumulative residual-gated dense}"
SEED="${SEED:-1}"
WATCH="${WATCH:-20}"
UPDATES="${UPDATES:-0}"
JOBS="${JOBS:-1}"
SENTENCES="${SENTENCES:-64}"
HERE="$RUNS/activations-$ON"
read -r -a SETTINGS <<<"${SETTINGS:-}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
if [ "$SMALL" = 1 ]; then DEPTH="${DEPTH:-2}"; fi
if [ "$ON" = toy ]; then MINUTES="${MINUTES:-1}" DEPTH="${DEPTH:-6}"; fi
MINUTES="${MINUTES:-30}"
if [ -n "${DEPTH:-}" ]; then SETTINGS=(--set "model.depth=$DEPTH" "${SETTINGS[@]}"); fi

environment
dataset "$ON" "$HERE/data" "$HERE/text"

# Train and score one model, unless it is there: `train_one SKIP`.
train_one() {
    local model="$HERE/$1-seed$SEED"
    if [ -s "$model/done.json" ]; then say "$model is trained already."; return; fi
    tiny pervasive
    limits "$UPDATES" "$MINUTES"
    run nmtgrid train "$HERE/data" --arch pervasive --preset "$(preset_of "$ON")" --seed "$SEED" \
        --overwrite "${TINY[@]}" "${LIMIT[@]}" --set "model.skip=$1" \
        --set "training.watch_gradients=$WATCH" "${SETTINGS[@]}" \
        --out "$model" --json "$model.train.json"
    run nmtgrid decode "$model" --data "$HERE/data" --split test --beam 1 \
        --out "$model/test.out" --json "$model/greedy.json"
    run mv "$model.train.json" "$model/done.json"
}

# The same, beside others as far as JOBS allows.
start() {
    if [ "$JOBS" -gt 1 ] && [ "$DRY_RUN" = 0 ]; then
        while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n; done
        train_one "$@" >"$HERE/$1.log" 2>&1 &
    else
        train_one "$@"
    fi
}

models=()
for skip in $SKIPS; do
    start "$skip"
    models+=("$skip=$HERE/$skip-seed$SEED")
done
for job in $(jobs -rp); do wait "$job"; done

run nmtgrid analyze curves "${models[@]}" --out "$HERE/curves.png" --json "$HERE/curves.json"
record figure-A.1 "Skip connections: trainings" "$HERE/curves.json"
run nmtgrid analyze activations "${models[@]}" --data "$HERE/data" --split valid \
    --sentences "$SENTENCES" --out "$HERE" --json "$HERE/activations.json"
record figure-A.2 "Activations along the networks (figures A.2 to A.4)" "$HERE/activations.json"
