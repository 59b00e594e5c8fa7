#!/usr/bin/env bash
# Trains every architecture for the same processor time, or number of updates, and compares them in one table.
#
#   bash recipes/zoo.sh                    Multi30k De-En, 30 minutes of one core per system
#   ON=iwslt14-de-en bash recipes/zoo.sh   IWSLT'14 De-En, with small models, two hours each
#   ON=multi30k-en-de bash recipes/zoo.sh  Multi30k between other languages (cs, de, en, fr)
#   TRAIN_PAIRS=2500 MERGES=2000 bash recipes/zoo.sh     Multi30k with few, evenly spaced training pairs
#   ON=toy bash recipes/zoo.sh             the embedded toy corpus, with the toy presets
#   SYSTEMS="bilstm transformer" bash recipes/zoo.sh     some of them
#   NMTGRID_DATA=DIR ...                   reads DIR/multi30k/{train,valid,test}.{de,en}[.xz], or
#                                          DIR/iwslt14.de-en (see iwslt14-de-en.sh)
#   bash recipes/zoo.sh --dry-run          only prints the commands
#
# The publications have no such comparison. A paired bootstrap tests whether each system differs significantly
# from Pervasive Attention (or, without it, from the first system); a figure shows the losses over
# time, a second table BLEU by length, with 95 % intervals. Device hours: half an hour of one core per system.
# MINUTES=30 of processor time (toy: 3, IWSLT'14: 120) or UPDATES=N (saved as a separate record, zoo-updates), SEED=1,
# RUNS=runs (output folder), SETS="--set ..." after the presets, LABEL=word names the folder and the records of such a
# run. Existing models are not retrained; RESUME=1 resumes an interrupted one.
# OMP_NUM_THREADS=1 trains each system on one core; JOBS=2 trains two in parallel.
# SMALL=1: the toy corpus, 40 updates, tiny models.
# CONFIG=FILE: a file for `nmtgrid train --config`, applied after the preset. PAIRS=10000 pairs of a toy corpus.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_arguments "$@"

if [ "$SMALL" = 1 ]; then ON="${ON:-toy}"; fi
ON="${ON:-multi30k}"
UPDATES="${UPDATES:-0}"
SEED="${SEED:-1}"
read -r -a SETS <<<"${SETS:-}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

# name:architecture:preset
PRESET="$(preset_of "$ON")"
EVERY="pervasive:pervasive:$PRESET bilstm:bilstm:$PRESET convs2s:convs2s:$PRESET
transformer:transformer:$PRESET transparent:transformer:$PRESET-transparent
pervasive-densenet:pervasive-densenet:$PRESET convrnn:convrnn:$PRESET"
EXPERIMENT=zoo SAME="processor time" ALSO=""
if [ "$UPDATES" != 0 ]; then
    EXPERIMENT=zoo-updates SAME="number of updates"
    ALSO=", with the same $SAME"
fi
if [ -n "${TRAIN_PAIRS:-}${MERGES:-}" ]; then
    [[ "$ON" == multi30k* ]] || fail "TRAIN_PAIRS and MERGES are for Multi30k, not for $ON"
    LABEL="${LABEL:-${TRAIN_PAIRS:+pairs$TRAIN_PAIRS-}merges${MERGES:-8000}}"
fi
HERE="$RUNS/$EXPERIMENT${LABEL:+-$LABEL}-$ON"
case "$ON" in
toy) MINUTES="${MINUTES:-3}" ;;
multi30k-??-??) ;;
multi30k) HERE="$RUNS/$EXPERIMENT${LABEL:+-$LABEL}" ;;
iwslt14-*)
    EVERY="" MINUTES="${MINUTES:-120}"
    for name in pervasive bilstm convs2s transformer; do EVERY+="$name:$name:$PRESET-small "; done
    ;;
*) fail "there is no corpus $ON here: multi30k multi30k-en-de (or others of cs de en fr) iwslt14-de-en \
iwslt14-en-de toy" ;;
esac
MINUTES="${MINUTES:-30}"
choices SYSTEMS $(for system in $EVERY; do say "${system%%:*}"; done)

environment
DATA="$HERE/data"
dataset "$ON" "$DATA" "$HERE/text" "${TRAIN_PAIRS:-}" "${MERGES:-}"

# Train, translate and score one system: `one NAME ARCHITECTURE PRESET`.
one() {
    local model="$HERE/$1-seed$SEED"
    train_model "$model" "$2" "$3" "$SEED" "$UPDATES" "$MINUTES"
    translate "$model" test 1
    translate "$model" test 5
    force "$model" test
}

is_selected() { [ -z "${SYSTEMS:-}" ] || [[ " $SYSTEMS " == *" $1 "* ]]; }

models=() names=() runs=() translations=()
for system in $EVERY; do
    IFS=: read -r name arch preset <<<"$system"
    is_selected "$name" || continue
    models+=("$HERE/$name-seed$SEED") names+=("$name")
    runs+=("$name=$HERE/$name-seed$SEED")
    translations+=("$name=$HERE/$name-seed$SEED/test-beam5.txt")
    beside "$HERE/$name-seed$SEED.log" one "$name" "$arch" "$preset"
done
all_done
# Compare each system with the first one by a paired bootstrap.
compare=()
if [ ${#models[@]} -gt 1 ]; then
    compare=(--compare "$HERE/zoo-seed$SEED.compare.json")
    SEEDS="$SEED" BEAMS=5 significance zoo test "${names[@]}"
fi
run nmtgrid analyze curves "${runs[@]}" --out "$HERE/curves.png"
run python "$PROJECT/recipes/zoo_table.py" "${models[@]}" "${compare[@]}" --out "$HERE/table"
record "$EXPERIMENT" "Every architecture with the same $SAME" "$HERE/table.json" "$HERE/curves.png"
run nmtgrid analyze buckets "${translations[@]}" --data "$DATA" --split test \
    --out "$HERE/lengths" --json "$HERE/buckets.json"
run python "$PROJECT/recipes/pervasive_table.py" buckets "$ON=$HERE/buckets.json" --out "$HERE/lengths"
record "${EXPERIMENT/zoo/zoo-lengths}" "The same systems by length and length ratio$ALSO" \
    "$HERE/lengths.json"
