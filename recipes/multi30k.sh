#!/usr/bin/env bash
# Multi30k German-English (29,000 image captions): one hour of training on two CPU cores.
#
#   bash recipes/multi30k.sh               downloads the corpus from its public repository
#   NMTGRID_DATA=DIR bash recipes/multi30k.sh    reads DIR/multi30k/{train,valid,test}.{de,en}[.xz]
#   bash recipes/multi30k.sh --dry-run     only prints the commands
#
# The publications do not use this corpus. Device hours: one, of two CPU cores.
# MINUTES=59 training time, SEEDS=1 (several, such as "1 2", are also scored as an ensemble; JOBS=2 trains two in
# parallel), RUNS=runs (output folder), ARCH=pervasive with PRESET=multi30k-hour (other architectures: multi30k, also
# for MINUTES), SETS="--set ..." after the preset, LABEL=word (default for other architectures: their name) names the
# folder and the record of such a run. RESUME=1 resumes an interrupted run. No pair
# is filtered out.
# SMALL=1: 40 updates of a tiny model (on the toy corpus unless NMTGRID_DATA is set).
# BEAM=5, UPDATES=N instead of MINUTES, PAIRS=1000 pairs of the toy corpus with SMALL=1. CONFIG=FILE: a file for
# `nmtgrid train --config`, applied after the preset.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_arguments "$@"

ON=multi30k
if [ "$SMALL" = 1 ] && [ -z "${NMTGRID_DATA:-}" ]; then ON=toy PRESET="${PRESET:-toy}"; fi
# Only Pervasive Attention has a preset for one hour. Models of other architectures are named after them.
if [ "${ARCH:-pervasive}" = pervasive ]; then
    PRESET="${PRESET:-multi30k-hour}"
else
    PRESET="${PRESET:-multi30k}" LABEL="${LABEL:-$ARCH}"
fi
read -r -a SETS <<<"${SETS:-}"
MINUTES="${MINUTES:-59}"
SEEDS="${SEEDS:-${SEED:-1}}"
HERE="$RUNS/multi30k"
DATA="$HERE/data"
MODEL="$HERE/${LABEL:-model}"

environment
dataset "$ON" "$DATA" "$HERE/text"
train_and_score "$PRESET"
