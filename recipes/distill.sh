#!/usr/bin/env bash
# Sequence-level knowledge distillation (Kim and Rush, 2016): a teacher translates the training text, and a
# student learns from its translations instead of the references.
#
#   NMTGRID_DATA=DIR bash recipes/distill.sh             reads DIR/multi30k; without it, downloads the corpus
#   TEACHER=MODEL NMTGRID_DATA=DIR bash recipes/distill.sh    with that model directory as the teacher
#   bash recipes/distill.sh --dry-run                    only prints the commands
#
# The table has test scores of the student trained on the original pairs, of the one trained on the teacher's, and
# of the teacher, with the p-values of a paired bootstrap against the first. Empty translations, those that
# reach the search's limit of length, and those that do not survive detokenising (such as `<unk>`) are left
# out and counted. Device hours: 3, of one CPU core (half an hour for each of three models, and to
# translate 29,000 lines).
# ON=multi30k (any corpus of common.sh that has a preset), TEACHER_ARCH=transformer (without TEACHER),
# STUDENT=pervasive, ORIGINALS=1 keeps the original pairs beside the distilled ones, MINUTES=30 of
# processor time or UPDATES=N for each model, SEED=1, BEAM=5, SPLIT=2000 lines that are translated at a
# time, JOBS=1 of them side by side, RUNS=runs (output folder), SETS="--set ..." for the student, both on the
# original and on the distilled pairs. Existing results are kept:
# an interrupted run continues after the last translated file. SMALL=1: tiny models of
# 40 updates, on the toy corpus.
# CONFIG=FILE: settings of `nmtgrid train --config` after the preset's. PAIRS=10000 pairs of a toy corpus.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_arguments "$@"

if [ "$SMALL" = 1 ]; then
    # A tiny Transformer says nothing that ends after so few updates.
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
# For the student alone: the teacher may be of another architecture.
read -r -a STUDENT_SETS <<<"${SETS:-}"
SETS=()

environment
dataset "$ON" "$DATA" "$HERE/text"
if [ -n "${TEACHER:-}" ]; then
    INVOKED="TEACHER=DIR $INVOKED"
else
    # Another seed: of one architecture and seed, teacher and student would be the same model.
    TEACHER="$HERE/teacher-$TEACHER_ARCH-seed$((SEED + 1))"
    train_model "$TEACHER" "$TEACHER_ARCH" "$PRESET" "$((SEED + 1))" "$UPDATES" "$MINUTES"
fi

# In parts, so that a run that was stopped has lost one at most: the report is a part's last file.
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
# A teacher from elsewhere gets no files.
TEACHER_TEXT="$HERE/teacher-test-beam$BEAM.txt"
if [ ! -s "$TEACHER_TEXT" ]; then
    run nmtgrid decode "$TEACHER" --data "$DATA" --split test --beam "$BEAM" --out "$TEACHER_TEXT"
fi
run nmtgrid analyze compare "${COMPARED[@]}" "teacher=$TEACHER_TEXT" --reference "$DATA/raw/test.$TARGET" \
    --lowercase --bootstrap 1000 --json "$HERE/compare.json" --out "$HERE/compare"
run python "$TABLE" table "$HERE/compare.json" "$HERE/$NAME.json" --out "$HERE/table"
record distill "Sequence-level knowledge distillation" "$HERE/table.json"
