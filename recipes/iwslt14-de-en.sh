#!/usr/bin/env bash
# IWSLT'14 German-English, preprocessed as in fairseq's recipe: Moses tokens, lower case, 1 to 175
# words, length ratio at most 1.5, every 23rd pair for validation, the five dev and test sets as test set.
#
#   bash recipes/iwslt14-de-en.sh          downloads the public archive (160,239 training pairs)
#   NMTGRID_DATA=DIR bash recipes/iwslt14-de-en.sh
#                                          reads DIR/iwslt14.de-en/{train,valid,test}.{de,en}[.xz],
#                                          tokenised and lower-cased, and its bpe10k.codes[.xz]
#   bash recipes/iwslt14-de-en.sh --dry-run   only prints the commands
#
# MINUTES=60 training time (0: the preset's limit), SEEDS=1 (several, such as "1 2", are also scored as an ensemble;
# JOBS=2 trains two in parallel), RUNS=runs (output folder), PRESET=iwslt14-de-en. The preset is the
# published model, meant for a GPU (34.67 with beam 5; 50,000 updates, an estimated 8 hours at 20 TFLOP/s):
# on two CPU cores, one epoch takes hours. PRESET=iwslt14-de-en-small is a small model for two hours
# on one core. SMALL=1: 40 updates of a tiny model (on the toy corpus unless NMTGRID_DATA is set).
# ARCH=pervasive, SETS="--set ..." after the preset, LABEL=word names the folder and the record of such a run;
# RESUME=1 resumes an interrupted run.
# BEAM=5, UPDATES=N instead of MINUTES, PAIRS=1000 pairs of the toy corpus with SMALL=1. CONFIG=FILE: a file for
# `nmtgrid train --config`, applied after the preset.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_arguments "$@"

ON=iwslt14-de-en
read -r -a SETS <<<"${SETS:-}"
MINUTES="${MINUTES:-60}"
SEEDS="${SEEDS:-${SEED:-1}}"
if [ "$SMALL" = 1 ] && [ -z "${NMTGRID_DATA:-}" ]; then ON=toy PRESET="${PRESET:-toy}"; fi
PRESET="${PRESET:-iwslt14-de-en}"
HERE="$RUNS/iwslt14-de-en"
DATA="$HERE/data"
MODEL="$HERE/${LABEL:-model}-$PRESET"

environment
dataset "$ON" "$DATA" "$HERE"
train_and_score "$PRESET"
