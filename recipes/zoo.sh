#!/usr/bin/env bash
# Trains every architecture for the same processor time and compares them in one table.
#
#   bash recipes/zoo.sh                    Multi30k De-En, 30 minutes of one core for each system
#   TOY=1 bash recipes/zoo.sh              the embedded toy corpus, each with its toy preset
#   SYSTEMS="bilstm transformer" bash recipes/zoo.sh     some of them
#   NMTGRID_DATA=DIR ...                   reads DIR/multi30k/{train,valid,test}.{de,en}[.xz]
#   bash recipes/zoo.sh --dry-run          only prints the commands
#
# The publications have no such comparison. The paired bootstrap says whether each system differs by more than
# chance from Pervasive Attention or, without that, from the first one. Device hours: half an hour of one core for each system.
# MINUTES=30 of processor time (TOY_MINUTES=3) or UPDATES=N, SEED=1, RUNS=runs (output folder). A
# system that has been trained already is not trained again. OMP_NUM_THREADS=1 keeps each on one core, so as
# many may run side by side as there are cores: JOBS=2. SMALL=1: the toy corpus, 40 updates, tiny models.
set -euo pipefail
[ "${1:-}" = "--dry-run" ] && { DRY_RUN=1; shift; }
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_arguments "$@"

if [ "$SMALL" = 1 ]; then TOY=1; fi
MINUTES="${MINUTES:-30}"
UPDATES="${UPDATES:-0}"
SEED="${SEED:-1}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

# name:architecture:preset
MULTI30K="pervasive:pervasive:multi30k bilstm:bilstm:multi30k convs2s:convs2s:multi30k
transformer:transformer:multi30k transparent:transformer:multi30k-transparent
pervasive-densenet:pervasive-densenet:multi30k convrnn:convrnn:multi30k"
TOY_SYSTEMS="pervasive:pervasive:toy bilstm:bilstm:toy convs2s:convs2s:toy
transformer:transformer:toy transparent:transformer:toy-transparent
pervasive-densenet:pervasive-densenet:toy convrnn:convrnn:toy"

environment
if [ "${TOY:-0}" = 1 ]; then
    ON=toy
    HERE="$RUNS/zoo-toy"
    MINUTES="${TOY_MINUTES:-3}"
    EVERY="$TOY_SYSTEMS"
else
    ON=multi30k
    HERE="$RUNS/zoo"
    EVERY="$MULTI30K"
fi
DATA="$HERE/data"
dataset "$ON" "$DATA" "$HERE/text"

# Train, translate and score one system: `one NAME ARCHITECTURE PRESET`.
one() {
    local model="$HERE/$1-seed$SEED"
    train_model "$model" "$2" "$3" "$SEED" "$UPDATES" "$MINUTES"
    translate "$model" test 1
    translate "$model" test 5
    force "$model" test
}

wanted() { [ -z "${SYSTEMS:-}" ] || [[ " $SYSTEMS " == *" $1 "* ]]; }

models=() translations=()
for system in $EVERY; do
    IFS=: read -r name arch preset <<<"$system"
    wanted "$name" || continue
    models+=("$HERE/$name-seed$SEED")
    translations+=("$name=$HERE/$name-seed$SEED/test-beam5.txt")
    beside "$HERE/$name-seed$SEED.log" one "$name" "$arch" "$preset"
done
all_done
# Each system beside the first one, by the paired bootstrap.
compare=()
if [ ${#models[@]} -gt 1 ]; then
    compare=(--compare "$HERE/compare.json")
    run nmtgrid analyze compare "${translations[@]}" --data "$DATA" --split test --bootstrap 1000 \
        --json "$HERE/compare.json"
fi
run python "$PROJECT/recipes/zoo_table.py" "${models[@]}" "${compare[@]}" --out "$HERE/table"
record zoo "Every architecture with the same processor time" "$HERE/table.json"
