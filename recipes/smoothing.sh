#!/usr/bin/env bash
# Loss smoothing, table E.3: each loss with each architecture; test BLEU and gain over maximum likelihood
# with the same seed (mean and deviation over seeds), and minutes per epoch.
#
#   bash recipes/smoothing.sh                      Multi30k De-En, 20 minutes of one core each
#   ON=iwslt14-de-en bash recipes/smoothing.sh     as published, on a GPU (maximum likelihood 27.55, token
#                                                  27.83, sequence 28.56, both 28.74)
#   ON=wmt14-en-fr bash recipes/smoothing.sh       the same (30.03, 30.19, 31.29, 31.39)
#   bash recipes/smoothing.sh --dry-run            only prints the commands
#
# Data: ON=multi30k, toy, iwslt14-de-en, which are downloaded or read from NMTGRID_DATA, or wmt14-en-fr from
# NMTGRID_DATA (the published results use 12 million selected pairs of it, this recipe uses all).
# Device hours: the thesis gives none. Estimated from the FLOPs that `train --dry-run` counts, at 20
# TFLOP/s on a GPU: a Bi-LSTM on IWSLT'14 0.1, a Pervasive Attention 8, a Bi-LSTM on WMT'14 1; with one
# sampled sentence up to twice as much, with three up to four times. Recurrent networks come nowhere near that
# rate.
# ARCHS="bilstm pervasive" (WMT: bilstm), LOSSES="mle tok ..." (see losses.sh, also for their parameters),
# SEEDS="1 2 3", BEAM=5. UPDATES=N updates for each model, or MINUTES of processor time (multi30k
# 20, toy 2); both 0: the preset's limit. RUNS=runs (output folder; table and figure of the
# gains: smoothing-$ON/table-E.3.{md,json,png}), SETS="--set ..." for every model, DATA=DIR: your own
# dataset instead of that of ON. SMALL=1: the toy corpus, 40 updates, four losses. Existing results are kept.
# For captions, table E.1, see recipes/captions.sh, with the same LOSSES.
# CONFIG=FILE: a file for `nmtgrid train --config`, applied after the preset. PAIRS=10000 pairs of a toy corpus.
# LABEL=word: suffix of the record's name.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$PROJECT/recipes/losses.sh"
no_arguments "$@"

if [ "$SMALL" = 1 ]; then
    ON="${ON:-toy}"
    LOSSES="${LOSSES:-mle tok-freq seq-hamming-batch both-bleu-batch}"
fi
ON="${ON:-multi30k}"
if [ "$ON" = wmt14-en-fr ]; then ARCHS="${ARCHS:-bilstm}"; fi
ARCHS="${ARCHS:-bilstm pervasive}"
SEEDS="${SEEDS:-${SEED:-1 2 3}}"
BEAM="${BEAM:-5}"
UPDATES="${UPDATES:-0}"
SPLIT="${SPLIT:-test}"
LOSSES="${LOSSES:-mle mle-entropy tok tok-freq seq-hamming-all seq-hamming-batch seq-hamming-refs \
lazy-hamming-all lazy-hamming-batch lazy-hamming-refs seq-bleu-batch lazy-bleu-batch \
both-hamming-batch both-bleu-batch}"
case "$ON" in
toy) MINUTES="${MINUTES:-2}" ;;
multi30k) MINUTES="${MINUTES:-20}" ;;
iwslt14-de-en | wmt14-en-fr) MINUTES="${MINUTES:-0}" ;;
*) fail "there is no corpus $ON here: multi30k toy iwslt14-de-en wmt14-en-fr" ;;
esac
check_losses
# --import may define further architectures.
case "${SETS:-}" in
*--import*) no_repeats ARCHS ;;
*) choices ARCHS $ARCHITECTURES ;;
esac
HERE="$RUNS/smoothing-$ON"
read -r -a SETS <<<"${SETS:-}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

environment
[ "$DRY_RUN" != 0 ] || mkdir -p "$HERE"
if [ -n "${DATA:-}" ]; then
    INVOKED="DATA=DIR $INVOKED"
    pairs_of_toys DATA
else
    DATA="$HERE/data"
    dataset "$ON" "$DATA" "$HERE/text"
fi
RESULTS=()
for seed in $SEEDS; do
    for loss in $LOSSES; do
        for arch in $ARCHS; do
            learn "$HERE/$arch-$loss-seed$seed" "$arch" "$ON" "$loss" "$seed"
            RESULTS+=("$loss,$arch=$SCORES")
        done
    done
done
run python "$PROJECT/recipes/losses_table.py" "${RESULTS[@]}" --data "$DATA" \
    --out "$HERE/table-E.3"
record table-E.3 "Loss smoothing, test set" "$HERE/table-E.3.json"
