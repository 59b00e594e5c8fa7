#!/usr/bin/env bash
# Sequence-level knowledge distillation (Kim and Rush, 2016): a teacher translates the training source, and a
# student is trained on these translations instead of the references.
#
#   NMTGRID_DATA=DIR bash recipes/distill.sh             reads DIR/multi30k; without it, downloads the corpus
#   TEACHER=MODEL NMTGRID_DATA=DIR bash recipes/distill.sh    with this model directory as the teacher
#   bash recipes/distill.sh --dry-run                    only prints the commands
#
# The table has test scores of the student trained on the original pairs, of the student trained on the distilled
# pairs, and of the teacher, with p-values of a paired bootstrap against the first. Empty translations, those that
# reach the search's length limit, and those that detokenising would alter (such as `<unk>`) are removed
# and counted. Device hours: 3 of one CPU core (half an hour for each of three models, plus
# translating 29,000 lines).
# ON=multi30k (any corpus of common.sh that has a preset), TEACHER_ARCH=transformer (without TEACHER),
# STUDENT=pervasive, ORIGINALS=1 trains on the original pairs as well as the distilled ones, MINUTES=30 of
# processor time or UPDATES=N per model, SEED=1, BEAM=5, SPLIT=2000 lines translated per
# file, JOBS=1 files in parallel, RUNS=runs (output folder), SETS="--set ..." for the student, on both the
# original and the distilled pairs. Existing results are kept:
# an interrupted run continues after the last translated file. SMALL=1: tiny models of
# 40 updates, on the toy corpus.
# CONFIG=FILE: a file for `nmtgrid train --config`, applied after the preset. PAIRS=10000 pairs of a toy corpus.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_arguments "$@"

if [ "$SMALL" = 1 ]; then
    # After so few updates, a tiny Transformer never generates the end symbol.
    ON="${ON:-toy}" SPLIT="${SPLIT:-400}" TEACHER_ARCH="${TEACHER_ARCH:-pervasive}"
fi
ON="${ON:-multi30k}"
PRESET="$(preset_of "$ON")"
TEACHER_ARCH="${TEACHER_ARCH:-transformer}"
STUDENT="${STUDENT:-pervasive}"
MINUTES="${MINUTES:-30}"
UPDATES="${UPDATES:-0}"
SEED="${SEED:-1}"
BEAM="${BEAM:-5}"
KEPT=()
NAME=distilled
if [ "${ORIGINALS:-0}" = 1 ]; then KEPT=(--originals) NAME=both; fi
HERE="$RUNS/distill-$ON"
DATA="$HERE/data"
TABLE="$PROJECT/recipes/distill_table.py"
# SETS is for the student only: the teacher may have another architecture.
read -r -a STUDENT_SETS <<<"${SETS:-}"
SETS=()

environment
dataset "$ON" "$DATA" "$HERE/text"
if [ -n "${TEACHER:-}" ]; then
    INVOKED="TEACHER=DIR $INVOKED"
else
    # With the same architecture and seed, teacher and student would be the same model.
    TEACHER="$HERE/teacher-$TEACHER_ARCH-seed$((SEED + 1))"
    train_model "$TEACHER" "$TEACHER_ARCH" "$PRESET" "$((SEED + 1))" "$UPDATES" "$MINUTES"
fi

# In parts, so that an interrupted run loses at most one; the report is written last for each part.
LINES="$HERE/lines"
run python "$TABLE" split "$DATA" "$LINES" --size "${SPLIT:-2000}" --teacher "$TEACHER" --beam "$BEAM"
parts=("$LINES"/*.source)
if [ "$DRY_RUN" != 0 ]; then parts=("$LINES/0001.source"); fi
for source in "${parts[@]}"; do
    part="${source%.source}"
    if [ -s "$part.json" ]; then continue; fi
    beside "$part.log" run nmtgrid decode "$TEACHER" "$source" --beam "$BEAM" --traces "$part.jsonl" \
        --out "$part.txt" --json "$part.json"
done
all_done
run python "$TABLE" dataset "$DATA" "$LINES" "${KEPT[@]}" --out "$HERE/$NAME"

# `student NAME`: train a student on $DATA, and translate the test split.
student() {
    train_model "$HERE/$1-$STUDENT-seed$SEED" "$STUDENT" "$PRESET" "$SEED" "$UPDATES" "$MINUTES" \
        "${STUDENT_SETS[@]}"
    translate "$HERE/$1-$STUDENT-seed$SEED" test "$BEAM"
    COMPARED+=("$1=${SCORES%.json}.txt")
}

COMPARED=()
student original
DATA="$HERE/$NAME"
student "$NAME"
DATA="$HERE/data"
# Write no files to the directory of a teacher given by the user.
TEACHER_TEXT="$HERE/teacher-test-beam$BEAM.txt"
if [ ! -s "$TEACHER_TEXT" ]; then
    run nmtgrid decode "$TEACHER" --data "$DATA" --split test --beam "$BEAM" --out "$TEACHER_TEXT"
fi
run nmtgrid analyze compare "${COMPARED[@]}" "teacher=$TEACHER_TEXT" --reference "$DATA/raw/test.$TARGET" \
    --lowercase --bootstrap 1000 --json "$HERE/compare.json" --out "$HERE/compare"
run python "$TABLE" table "$HERE/compare.json" "$HERE/$NAME.json" --out "$HERE/table"
record distill "Sequence-level knowledge distillation" "$HERE/table.json"
