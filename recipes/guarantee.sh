#!/usr/bin/env bash
# Reading policies with a guaranteed maximum loss relative to offline translation; tests how often the guarantee fails.
#
#   bash recipes/guarantee.sh              the toy corpus in words, whose grammar generates new sentences
#   bash recipes/guarantee.sh --dry-run    only prints the commands
#
# Model: Pervasive Attention trained at all cells right of wait-1 (the one of recipes/policies.sh, if it exists).
# `online-eval --allow-loss` chooses a setting of each policy on the validation set and checks it on the test set.
# Then POOL sentences are translated with all settings. RESPLITS times (100), a setting is chosen on a random
# sample; the table counts how often its loss on the remaining sentences exceeds the bound (allowed: a fraction
# 1 - CONFIDENCE, with CONFIDENCE=0.9), and how often it would without a statistical test.
# Device hours: 0.3 of one CPU core.
# MINUTES of processor time for the model (3) or UPDATES=N, SEED=1, ALLOW="1 2 5 10" (percent), POOL=4000,
# COUNTS="400 1000" sentences to choose on, RUNS=runs (output folder), SETS="--set ..." for the model.
# SMALL=1: 40 updates, 200 sentences. An existing model is not retrained.
# CONFIG=FILE: a file for `nmtgrid train --config`, applied after the preset. PAIRS=10000 pairs of a toy corpus.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_arguments "$@"

if [ "$SMALL" = 1 ]; then POOL="${POOL:-200}" COUNTS="${COUNTS:-100}" ALLOW="${ALLOW:-50}"; fi
ON=toy-words
UPDATES="${UPDATES:-0}"
SEED="${SEED:-1}"
POOL="${POOL:-4000}"
CONFIDENCE="${CONFIDENCE:-0.9}"
HERE="$RUNS/guarantee"
DATA="$RUNS/policies-$ON/data"
MODEL="$RUNS/policies-$ON/pervasive-seed$SEED"
POLICIES=("wait-k k=1..9" "confidence threshold=0.3..0.95:0.05 floor=2" "alignatt last=1..6")
read -r -a SETS <<<"${SETS:-}"
read -r -a ALLOWED <<<"${ALLOW:-1 2 5 10}"
read -r -a COUNTS <<<"${COUNTS:-400 1000}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

environment
dataset "$ON" "$DATA" "$RUNS/policies-$ON/text"
train_model "$MODEL" pervasive toy "$SEED" "$UPDATES" "${MINUTES:-3}" \
    --set model.source_causal=true --set model.aggregation=max --objective wait-k-area

# Half of the 200 validation sentences are used for the test: enough to certify 5 percent, not 2.
run mkdir -p "$HERE"
policies=()
for policy in "${POLICIES[@]}"; do
    policies+=(--policy "$policy")
    run nmtgrid online-eval "$MODEL" --data "$DATA" --test-split test --policy "$policy" \
        --allow-loss "${ALLOWED[-1]}" --confidence "$CONFIDENCE" --json "$HERE/${policy%% *}.json"
done

# Each size of the POOL has its own dataset.
TESTED="$HERE/data-$POOL"
if ! has_units "$TESTED"; then run python "$PROJECT/recipes/resplits.py" pool "$HERE/pool" --sentences "$POOL"; fi
units "$TESTED" --source-lang qa --target-lang qb --max-ratio 9 --train "$HERE/pool" --test "$HERE/pool" \
    -- --words --min-count 1
run python "$PROJECT/recipes/resplits.py" "$MODEL" --data "$TESTED" --split test "${policies[@]}" \
    --allow "${ALLOWED[@]}" --confidence "$CONFIDENCE" --counts "${COUNTS[@]}" \
    --resplits "${RESPLITS:-100}" --out "$HERE/table"
record guarantee "Reading policies with a guaranteed loss" "$HERE/table.json"
