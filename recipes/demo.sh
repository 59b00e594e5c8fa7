#!/usr/bin/env bash
# Latency of `nmtgrid demo`: time from a source word to the first output that it triggers, through the HTTP interface
# and on the page in a browser, and the behaviour with fifty concurrent streams.
#
#   bash recipes/demo.sh                the toy corpus; the models in runs/demo show every feature of the page
#   SHOT=FILE.png bash recipes/demo.sh  also a screenshot of the page, if Chromium is installed
#   bash recipes/demo.sh --dry-run      only prints the commands
#
# Models: Pervasive Attention trained at all cells right of wait-1, then a reader for it (`dynamic`); a
# uni-directional Transformer with six exits, then its exit predictor (`exits-halting`). No published counterpart.
# Device hours: 0.2 of one CPU core. MINUTES per model (3; half of it for the reader and the predictor) or
# UPDATES=N; SEED=1; SENTENCES=60 of the test split for each system; STREAMS=50 concurrent streams. Existing models
# are not retrained. SMALL=1: 40 updates of tiny models, 3 sentences, 5 streams, to show that it runs.
#
# Afterwards, `nmtgrid demo runs/demo/pervasive runs/demo/transformer` serves them.
# CONFIG=FILE: a file for `nmtgrid train --config`, applied after the preset. PAIRS=10000 pairs of a toy corpus.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_arguments "$@"

ON=toy
HERE="$RUNS/demo"
DATA="$HERE/data"
UPDATES="${UPDATES:-0}"
MINUTES="${MINUTES:-3}"
if [ "$SMALL" = 1 ]; then SENTENCES="${SENTENCES:-3}" STREAMS="${STREAMS:-5}"; fi
read -r -a SETS <<<"${SETS:-}"
export OMP_NUM_THREADS=1

environment
dataset "$ON" "$DATA" "$HERE/text"

# `model NAME ARCHITECTURE PRESET SHARE OPTION...`: train for the fraction SHARE of MINUTES.
model() {
    local limit=()
    if [ "$UPDATES" = 0 ]; then
        limit=(--max-minutes "$(awk -v whole="$MINUTES" -v share="$4" 'BEGIN { print whole * share }')")
    fi
    train_model "$HERE/$1" "$2" "$3" "${SEED:-1}" "$UPDATES" 0 "${limit[@]}" "${@:5}"
}

GRID=(--set model.source_causal=true --set model.aggregation=max)
DEEP=(--set model.encoder=unidirectional)
model grid pervasive toy 1 "${GRID[@]}" --objective wait-k-area
model pervasive pervasive toy 0.5 "${GRID[@]}" --set model.reader=own --init "$HERE/grid" --objective dynamic \
    --set objective.delay_weight=0.5
model exits transformer toy-exits 1 "${DEEP[@]}" --objective exits-aligned
model transformer transformer toy-exits 0.5 "${DEEP[@]}" --set model.halting=geometric --init "$HERE/exits" \
    --objective exits-halting
run python "$PROJECT/recipes/demo_table.py" "$HERE/pervasive" "$HERE/transformer" \
    --source "$DATA/raw/test.qa" --sentences "${SENTENCES:-60}" --streams "${STREAMS:-50}" --out "$HERE/table" \
    ${SHOT:+--picture "$SHOT"}
record demo "The demo page and its HTTP interface" "$HERE/table.json"
