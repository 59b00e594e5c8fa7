#!/usr/bin/env bash
# Several sentences per line: models trained on single sentences of Multi30k translate lines of six sentences.
#
#   NMTGRID_DATA=DIR bash recipes/paragraphs.sh    reads DIR/multi30k; without it, downloads the corpus
#   bash recipes/paragraphs.sh --dry-run           only prints the commands
#
# The table has BLEU and output length for lines translated whole, for lines split into sentences (the
# default), and for one sentence per line. Device hours: 0.2 of one CPU core (4 minutes for each of three
# models).
# ARCHS="bilstm pervasive transformer", MINUTES=4 of processor time each, SEED=1, BEAM=5,
# SENTENCES=6 per line, RUNS=runs (output folder). SMALL=1: tiny models of 40 updates (on the toy
# corpus unless NMTGRID_DATA is set).
# CONFIG=FILE: a file for `nmtgrid train --config`, applied after the preset. PAIRS=1000 pairs of the toy corpus with
# SMALL=1.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_arguments "$@"

ON=multi30k
PRESET=multi30k
LANGUAGES="de en"
if [ "$SMALL" = 1 ] && [ -z "${NMTGRID_DATA:-}" ]; then ON=toy PRESET=toy LANGUAGES="qa qb"; fi
ARCHS="${ARCHS:-bilstm pervasive transformer}"
choices ARCHS $ARCHITECTURES
MINUTES="${MINUTES:-4}"
SEED="${SEED:-1}"
COUNT="${SENTENCES:-6}"
HERE="$RUNS/paragraphs"
DATA="$HERE/data"
TABLE="$PROJECT/recipes/paragraphs_table.py"
SETS=()

environment
dataset "$ON" "$DATA" "$HERE/text"
if [ "$ON" = toy ]; then TEXT="$DATA/raw"; fi
for language in $LANGUAGES; do run python "$TABLE" join "$TEXT" "$language" "$COUNT" "$HERE/lines"; done
FOLDERS=()
for arch in $ARCHS; do
    MODEL="$HERE/$arch-seed$SEED"
    train_model "$MODEL" "$arch" "$PRESET" "$SEED" "${UPDATES:-0}" "$MINUTES"
    for form in whole split sentences; do
        source="$HERE/lines.${LANGUAGES% *}" options=()
        case "$form" in
        whole) options=(--max-source 512) ;;
        sentences) source="$HERE/lines.sentences.${LANGUAGES% *}" ;;
        esac
        run nmtgrid decode "$MODEL" "$source" --beam "${BEAM:-5}" "${options[@]}" \
            --out "$MODEL/$form.txt"
    done
    FOLDERS+=("$arch=$MODEL")
done
run python "$TABLE" score "${FOLDERS[@]}" --reference "$HERE/lines.${LANGUAGES#* }" --sentences "$COUNT" \
    --out "$HERE/table"
record paragraphs "Several sentences in one line" "$HERE/table.json"
