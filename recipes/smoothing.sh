#!/usr/bin/env bash
# Loss smoothing, table E.3: each loss with each architecture, BLEU on the test set as mean and
# deviation over seeds, and minutes per epoch.
#
#   bash recipes/smoothing.sh                      Multi30k De-En, 20 minutes of a core each
#   ON=iwslt14-de-en bash recipes/smoothing.sh     as published, on a GPU; or wmt14-en-fr, toy
#   bash recipes/smoothing.sh --dry-run            prints the commands alone
#
# ARCHS="bilstm pervasive", LOSSES="mle tok ..." (see losses.sh, which has their parameters too),
# SEEDS="1 2 3", BEAM=5 (1 with SMALL=1). UPDATES=N trains all for as many updates, or MINUTES of
# processor time (multi30k 20, toy 2); 0 of both: as long as the presets say. SMALL=1 runs in
# minutes: the toy corpus unless ON says otherwise, one seed, 100 updates. RUNS=runs where the
# results go, SETS="--set ..." for every model. What has been done already is not done again.
# wmt14-en-fr is published on 12 million selected pairs with words: recipes/adaptive.sh 5.8 makes
# the dataset of all of them.
# Captions, table E.1: recipes/captions.sh, with the same LOSSES.
set -euo pipefail
[ "${1:-}" = "--dry-run" ] && { DRY_RUN=1; shift; }
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$PROJECT/recipes/losses.sh"
[ $# = 0 ] || fail "there is nothing to choose by \`$1\`: see the head of $0"

SMALL="${SMALL:-0}"
if [ "$SMALL" = 1 ]; then
    ON="${ON:-toy}" SEEDS="${SEEDS:-1}" UPDATES="${UPDATES:-100}" BEAM="${BEAM:-1}"
    LOSSES="${LOSSES:-mle tok-freq seq-hamming-batch lazy-hamming-batch both-bleu-batch}"
fi
ON="${ON:-multi30k}"
ARCHS="${ARCHS:-bilstm pervasive}"
SEEDS="${SEEDS:-1 2 3}"
BEAM="${BEAM:-5}"
UPDATES="${UPDATES:-0}"
RUNS="${RUNS:-runs}"
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
HERE="$RUNS/smoothing-$ON"
DATA="${DATA:-$HERE/data}"
read -r -a SETS <<<"${SETS:-}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

environment
[ "$DRY_RUN" != 0 ] || mkdir -p "$HERE"
[ "$ON" = wmt14-en-fr ] || dataset "$ON" "$DATA" "$HERE/text"
RESULTS=()
for seed in $SEEDS; do
    for loss in $LOSSES; do
        for arch in $ARCHS; do
            learn "$HERE/$arch-$loss-seed$seed" "$arch" "$ON" "$loss" "$seed"
            RESULTS+=("$loss,$arch=$SCORES")
        done
    done
done
run python "$PROJECT/recipes/smoothing_table.py" "${RESULTS[@]}" --data "$DATA" \
    --out "$HERE/table-E.3"
