#!/usr/bin/env bash
# Multi30k German-English (29,000 image captions): an hour of training on two CPU cores.
#
#   bash recipes/multi30k.sh               downloads the corpus from its public repository
#   NMTGRID_DATA=DIR bash recipes/multi30k.sh    reads DIR/multi30k/{train,valid,test}.{de,en}[.xz]
#   bash recipes/multi30k.sh --dry-run     only prints the commands
#
# The publications do not use this corpus. Device hours: one, of two CPU cores.
# MINUTES=59 training time, SEEDS=1 (of several, such as "1 2", also the ensemble; JOBS=2 trains two side by
# side), RUNS=runs (output folder), ARCH=pervasive and its PRESET=multi30k-hour (of others multi30k, for MINUTES as
# well), SETS="--set ..." beside the preset, LABEL=word (of other architectures their name) for the folder and the
# record of such a run. RESUME=1 resumes an interrupted run. No pair
# is filtered out.
# SMALL=1: 40 updates of a tiny model, on the toy corpus without NMTGRID_DATA.
# BEAM=5, UPDATES=N in place of MINUTES, and PAIRS=1000 pairs of the toy corpus of SMALL=1. CONFIG=FILE: settings of
# `nmtgrid train --config` after the preset's.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_arguments "$@"

ON=multi30k
if [ "$SMALL" = 1 ] && [ -z "${NMTGRID_DATA:-}" ]; then ON=toy PRESET="${PRESET:-toy}"; fi
# Of an hour there is a preset of Pervasive Attention alone. Other architectures have models of their own name.
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
