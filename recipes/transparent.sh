#!/usr/bin/env bash
# Deep post-norm Transformer encoders, plain and with transparent attention: loss curves, gradient norms
# between layers, and their ratio of the first to the last encoder layer.
#
#   bash recipes/transparent.sh            Multi30k De-En, 30 minutes of one core per model
#   ON=toy bash recipes/transparent.sh     the embedded toy corpus
#   DEPTHS="12 20" bash recipes/transparent.sh           encoders of 12 and of 20 layers
#   NMTGRID_DATA=DIR ...                   reads DIR/multi30k/{train,valid,test}.{de,en}[.xz]
#   bash recipes/transparent.sh --dry-run  only prints the commands
#
# Expected (poster, WMT'14 En-De base): encoders of 6, 12, 16 and 20 layers give 27.26 and then fail,
# with transparent attention 27.52, 27.79, 28.04 and 27.96. To train these, use the presets
# wmt14-en-de-transparent-6 to -20 and your own corpus. Device hours: the poster gives none; estimated from
# the FLOPs that `train --dry-run` counts, at 20 TFLOP/s on a GPU: 16 to 28 per model.
# MINUTES=30 (toy: 5) of processor time or UPDATES=N, SEED=1, WATCH=20 updates between gradient measurements,
# RUNS=runs (output folder), SETS="--set ..." for both kinds. OMP_NUM_THREADS=1 trains each model on one
# core; JOBS=2 trains two in parallel. SMALL=1: the toy corpus, 40 updates, encoders of DEPTHS=4. Existing
# models are not retrained.
# CONFIG=FILE: a file for `nmtgrid train --config`, applied after the preset. PAIRS=10000 pairs of a toy corpus.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_arguments "$@"

if [ "$SMALL" = 1 ]; then ON="${ON:-toy}" DEPTHS="${DEPTHS:-4}"; fi
ON="${ON:-multi30k}"
DEPTHS="${DEPTHS:-12}"
UPDATES="${UPDATES:-0}"
SEED="${SEED:-1}"
WATCH="${WATCH:-20}"
read -r -a SETS <<<"${SETS:-}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

case "$ON" in
toy) HERE="$RUNS/transparent-toy" MINUTES="${MINUTES:-5}" PRESET=toy ;;
multi30k) HERE="$RUNS/transparent" MINUTES="${MINUTES:-30}" PRESET=multi30k-deep ;;
*) fail "there is no corpus $ON here: multi30k toy" ;;
esac

environment
DATA="$HERE/data"
dataset "$ON" "$DATA" "$HERE/text"

# Train and score one model: `one NAME DEPTH IS_TRANSPARENT`.
one() {
    local model="$HERE/$1"
    train_model "$model" transformer "$PRESET" "$SEED" "$UPDATES" "$MINUTES" \
        --set "model.encoder_depth=$2" --set model.norm=post --set "model.transparent=$3" \
        --set "training.watch_gradients=$WATCH"
    translate "$model" test "${BEAM:-5}"
}

models=()
for depth in $DEPTHS; do
    plain="plain-$depth-seed$SEED" transparent="transparent-$depth-seed$SEED"
    beside "$HERE/$plain.log" one "$plain" "$depth" false
    beside "$HERE/$transparent.log" one "$transparent" "$depth" true
    models+=("plain $depth=$HERE/$plain" "transparent $depth=$HERE/$transparent")
done
all_done

run nmtgrid analyze curves "${models[@]}" --out "$HERE/curves.png" --json "$HERE/curves.json"
run nmtgrid analyze curves "${models[@]}" --out "$HERE/curves" --format svg
record transparent "Deep encoders, plain and transparent" "$HERE/curves.json"
