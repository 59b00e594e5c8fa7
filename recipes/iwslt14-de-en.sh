#!/usr/bin/env bash
# IWSLT'14 German-English, prepared as fairseq's recipe does: Moses tokens, lower case, 1 to 175
# words, ratio at most 1.5, every 23rd pair for validation, the five dev and test sets as test.
#
#   bash recipes/iwslt14-de-en.sh          downloads the public archive (160,239 training pairs)
#   NMTGRID_DATA=DIR bash recipes/iwslt14-de-en.sh
#                                          reads DIR/iwslt14.de-en/{train,valid,test}.{de,en}[.xz],
#                                          tokenised and lower-cased, and its bpe10k.codes[.xz]
#   bash recipes/iwslt14-de-en.sh --dry-run   prints the commands alone
#
# MINUTES=60 training time, SEED=1, RUNS=runs where the results go, PRESET=iwslt14-de-en.
# The preset is the publication's model, meant for a GPU: two CPU cores take hours for an epoch of
# it. PRESET=iwslt14-de-en-small is a small model that learns something within an hour there.
set -euo pipefail
[ "${1:-}" = "--dry-run" ] && DRY_RUN=1
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

MINUTES="${MINUTES:-60}"
SEED="${SEED:-1}"
RUNS="${RUNS:-runs}"
PRESET="${PRESET:-iwslt14-de-en}"
HERE="$RUNS/iwslt14-de-en"
MODEL="$HERE/model-$PRESET-seed$SEED"

environment
iwslt14_dataset de en "$HERE/data" "$HERE"
run nmtgrid train "$HERE/data" --arch pervasive --preset "$PRESET" --seed "$SEED" \
    --max-minutes "$MINUTES" --overwrite --out "$MODEL"
run nmtgrid decode "$MODEL" --data "$HERE/data" --split test --beam 5 \
    --out "$MODEL/test.en" --json "$MODEL/test.json"
