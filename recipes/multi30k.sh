#!/usr/bin/env bash
# Multi30k German-English (29,000 image captions): an hour of training on two CPU cores.
#
#   bash recipes/multi30k.sh               downloads the corpus from its public repository
#   NMTGRID_DATA=DIR bash recipes/multi30k.sh    reads DIR/multi30k/{train,valid,test}.{de,en}[.xz]
#   bash recipes/multi30k.sh --dry-run     prints the commands alone
#
# MINUTES=59 training time, SEED=1, RUNS=runs where the results go. No pair is filtered out.
set -euo pipefail
[ "${1:-}" = "--dry-run" ] && DRY_RUN=1
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

MINUTES="${MINUTES:-59}"
SEED="${SEED:-1}"
RUNS="${RUNS:-runs}"
HERE="$RUNS/multi30k"
MODEL="$HERE/model-seed$SEED"

environment
multi30k_dataset "$HERE/data" "$HERE/text"
run nmtgrid train "$HERE/data" --arch pervasive --preset multi30k-hour --seed "$SEED" \
    --max-minutes "$MINUTES" --overwrite --out "$MODEL"
run nmtgrid decode "$MODEL" --data "$HERE/data" --split test --beam 5 \
    --out "$MODEL/test.en" --json "$MODEL/test.json"
