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
ADDRESS=http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz

environment
if [ -n "${NMTGRID_DATA:-}" ]; then
    TEXT="$NMTGRID_DATA/iwslt14.de-en"
    [ -d "$TEXT" ] || [ "$DRY_RUN" = 1 ] || fail "NMTGRID_DATA has no folder iwslt14.de-en: $TEXT"
    CODES="$TEXT/bpe10k.codes"
    [ -f "$CODES" ] || CODES="$CODES.xz"
    READ=(--tokenize none --train "$TEXT/train" --valid "$TEXT/valid" --test "$TEXT/test")
    UNITS=(--codes "$CODES")
else
    TEXT="$HERE/de-en"
    fetch "$ADDRESS" "$HERE/de-en.tgz"
    run tar -xzf "$HERE/de-en.tgz" -C "$HERE"
    READ=(--xml --lowercase --valid-every 23 --train "$TEXT/train.tags.de-en")
    for name in TED.dev2010 TEDX.dev2012 TED.tst2010 TED.tst2011 TED.tst2012; do
        READ+=(--test "$TEXT/IWSLT14.$name.de-en")
    done
    UNITS=(--merges 10000 --joint)
fi

run nmtgrid preprocess --source-lang de --target-lang en "${READ[@]}" \
    --max-words 175 --max-ratio 1.5 --overwrite --workers 0 --out "$HERE/data"
run nmtgrid bpe learn "$HERE/data" "${UNITS[@]}"
run nmtgrid train "$HERE/data" --arch pervasive --preset "$PRESET" --seed "$SEED" \
    --max-minutes "$MINUTES" --overwrite --out "$MODEL"
run nmtgrid decode "$MODEL" --data "$HERE/data" --split test --beam 5 \
    --out "$MODEL/test.en" --json "$MODEL/test.json"
