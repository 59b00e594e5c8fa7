#!/usr/bin/env bash
# Hyper-parameter search on your corpus: grid search, random search, or successive halving.
#
#   DATA=DIR ARCH=pervasive PRESET=multi30k MINUTES=30 bash recipes/tune.sh
#                                          DIR is a dataset of `nmtgrid preprocess` and `nmtgrid bpe`
#   ON=multi30k bash recipes/tune.sh       a corpus of the recipes, downloaded or from NMTGRID_DATA
#   MODE=random DRAWS=8 bash recipes/tune.sh             eight settings of the grid, each with the full budget
#   bash recipes/tune.sh --dry-run         prints the commands of the first rung
#
# GRID lists settings and values, as in `nmtgrid train --set`; all combinations are compared:
#   GRID="training.learning_rate=0.004,0.008,0.012 model.dropout=0.2,0.3"
# or names a file with one setting per line. Invalid settings are rejected before any
# training starts. MODE=grid trains each combination with the full budget, MODE=random DRAWS of them, and
# MODE=halving (the default; of DRAWS, or all) follows Jamieson and Talwalkar (2016): all are trained with
# a small budget, the best 1/ETA (a third) of them with ETA times as much, until one has the full budget;
# RUNGS=N limits the number of rungs by starting with larger budgets. Each rung trains from scratch, with a
# schedule as long as its budget: a learning rate that has decayed by the end of a short run cannot continue as in
# a long one, and complete runs are compared. This costs at most ETA / (ETA - 1) times as much as resuming
# (1.5), in all (number of rungs) x (settings) / ETA^(rungs - 1) full runs: 27 settings take four.
#
# The budget of a run is MINUTES=30 of processor time, which is comparable on a shared machine, or
# UPDATES=N; the schedule is a cosine over it, unless GRID or SETS set another. Runs are compared by
# validation loss only, never by a test set or BLEU. With one seed, differences as small as those between
# seeds mean nothing: train the finalists with `--seeds`. Device hours: the budget times the number of full runs;
# by default one and a half, of one CPU core.
#
# $RUNS/tune-LABEL/runs has the model directory, a record (JSON) and the log of each run; table and figure
# are $RUNS/tune-LABEL/table.{md,json,png}. After an interruption, the recipe skips runs that have ended,
# including failed ones (RETRY=1 repeats them), and resumes the current one. A run that fails, for example
# because of a loss that is not finite, is recorded and the others continue. Models may be deleted, records must not.
# LABEL (default: the name of the corpus or of DIR), ARCH=pervasive, PRESET (none with DATA), SEED=1, JOBS=1 runs in
# parallel, each on one core (OMP_NUM_THREADS=1), RUNS=runs, SETS="--set ..." for all runs. SMALL=1: the toy
# corpus, four settings, two rungs, at most 40 updates.
# PAIRS=10000 pairs of a toy corpus.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_arguments "$@"

MODE="${MODE:-halving}"
choices MODE grid random halving
if [ "$MODE" = grid ]; then no_effect DRAWS "with MODE=grid"; fi
if [ "$MODE" != halving ]; then no_effect ETA "with MODE=$MODE"; fi
if [ -n "${DATA:-}" ]; then
    no_effect ON "with DATA"
    pairs_of_toys DATA
fi
ARCH="${ARCH:-pervasive}"
if [ "$SMALL" = 1 ]; then
    ON="${ON:-toy}"
    GRID="${GRID:-training.learning_rate=0.01,0.02 model.dropout=0.1,0.3}"
fi
GRID="${GRID:-training.learning_rate=0.004,0.008,0.016 model.dropout=0.1,0.2,0.3}"
MINUTES="${MINUTES:-30}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
read -r -a SETS <<<"${SETS:-}"

environment
if [ -n "${DATA:-}" ]; then
    # The record must not contain the path of the user's folder.
    INVOKED="DATA=DIR $INVOKED"
    ON="${LABEL:-$(basename "$DATA")}"
    HERE="$RUNS/tune-$ON"
else
    CORPUS="${ON:-multi30k}"
    ON="${LABEL:-$CORPUS}"
    HERE="$RUNS/tune-$ON" PRESET="${PRESET:-$(preset_of "$CORPUS")}"
    DATA="$HERE/data"
    dataset "$CORPUS" "$DATA" "$HERE/text"
fi
LABEL="" # The record is already named after it, in place of the corpus.
tiny "$ARCH"
WORDS=("$DATA" --out "$HERE" --arch "$ARCH" --preset "${PRESET:-}" --grid "$GRID"
    --mode "$MODE" --draws "${DRAWS:-0}" --eta "${ETA:-3}" --rungs "${RUNGS:-0}"
    --updates "${UPDATES:-0}" --minutes "$MINUTES" --seed "${SEED:-1}" --jobs "${JOBS:-1}")
if [ "${RETRY:-0}" = 1 ]; then WORDS+=(--retry); fi
WORDS+=(-- "${TINY[@]}" "${SETS[@]}")
run python "$PROJECT/recipes/tune.py" "${WORDS[@]}"
if [ "$DRY_RUN" != 0 ]; then
    "${PYTHON:-python3}" "$PROJECT/recipes/tune_plan.py" "${WORDS[@]}"
fi
BUDGET="$MINUTES minutes"
if [ "${UPDATES:-0}" != 0 ]; then BUDGET="$UPDATES updates"; fi
record tune "Tuned settings, $ARCH, $BUDGET" "$HERE/table.json" "$HERE/table.png"
