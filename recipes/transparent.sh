#!/usr/bin/env bash
# Deep post-norm Transformer encoders, plain and with transparent attention: loss curves, and the
# norms of the gradient between the layers with their ratio, first to last encoder layer.
#
#   bash recipes/transparent.sh            Multi30k De-En, 30 minutes of one core for each model
#   TOY=1 bash recipes/transparent.sh      the embedded toy corpus
#   DEPTHS="12 20" bash recipes/transparent.sh           encoders of 12 and of 20 layers
#   NMTGRID_DATA=DIR ...                   reads DIR/multi30k/{train,valid,test}.{de,en}[.xz]
#   bash recipes/transparent.sh --dry-run  prints the commands alone
#
# MINUTES=30 (TOY: 5) of processor time, SEED=1, WATCH=20 updates between two measurements, RUNS=runs
# where the results go, SETTINGS="--set ..." for both kinds. A model that has been trained already is
# not trained again. OMP_NUM_THREADS=1 keeps each on one core; JOBS=2 trains two side by side.
set -euo pipefail
[ "${1:-}" = "--dry-run" ] && DRY_RUN=1
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

DEPTHS="${DEPTHS:-12}"
SEED="${SEED:-1}"
WATCH="${WATCH:-20}"
RUNS="${RUNS:-runs}"
JOBS="${JOBS:-1}"
read -r -a SETTINGS <<<"${SETTINGS:-}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

environment
if [ "${TOY:-0}" = 1 ]; then
    HERE="$RUNS/transparent-toy"
    MINUTES="${MINUTES:-5}"
    PRESET=toy
    toy_dataset "$HERE/data"
else
    HERE="$RUNS/transparent"
    MINUTES="${MINUTES:-30}"
    PRESET=multi30k-deep
    multi30k_dataset "$HERE/data" "$HERE/text"
fi

# Train and score one model: `one NAME DEPTH IS_TRANSPARENT`.
one() {
    local model="$HERE/$1"
    if [ -s "$model/done.json" ]; then say "$model is trained already."; return; fi
    run nmtgrid train "$HERE/data" --arch transformer --preset "$PRESET" --seed "$SEED" --overwrite \
        --set "model.encoder_depth=$2" --set model.norm=post --set "model.transparent=$3" \
        --max-minutes "$MINUTES" --set training.clock=processor \
        --set "training.watch_gradients=$WATCH" "${SETTINGS[@]}" \
        --out "$model" --json "$model.train.json"
    run nmtgrid decode "$model" --data "$HERE/data" --split test --beam 5 \
        --out "$model/test.out" --json "$model/beam5.json"
    run mv "$model.train.json" "$model/done.json"
}

# The same, beside others as far as JOBS allows.
start() {
    if [ "$JOBS" -gt 1 ] && [ "$DRY_RUN" = 0 ]; then
        while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n; done
        one "$@" >"$HERE/$1.log" 2>&1 &
    else
        one "$@"
    fi
}

models=()
for depth in $DEPTHS; do
    plain="plain-$depth-seed$SEED" transparent="transparent-$depth-seed$SEED"
    start "$plain" "$depth" false
    start "$transparent" "$depth" true
    models+=("plain $depth=$HERE/$plain" "transparent $depth=$HERE/$transparent")
done
for job in $(jobs -rp); do wait "$job"; done

run nmtgrid analyze curves "${models[@]}" --out "$HERE/curves.png" --json "$HERE/curves.json"
run nmtgrid analyze curves "${models[@]}" --out "$HERE/curves" --format svg
