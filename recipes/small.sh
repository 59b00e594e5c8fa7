#!/usr/bin/env bash
# Runs every experiment with SMALL=1, to show that each runs from its first command to its table or
# figure; the scores mean nothing. About 35 minutes of processor time.
#
#   bash recipes/small.sh                  all of them, two in parallel
#   bash recipes/small.sh online report    those of the named recipes
#   bash recipes/small.sh --dry-run        prints the list
#
# JOBS=2 in parallel, RUNS=runs: results go to $RUNS/small, logs to $RUNS/small/logs. Data: the embedded
# corpora; two experiments read NMTGRID_DATA if it is set. Experiments of one recipe run in sequence
# and share models; existing models are not retrained: delete $RUNS/small to start over. The exit code is 1 if
# any experiment failed.
set -euo pipefail
SMALL=0
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# One recipe per line, with its experiments (-: the recipe is a single experiment). Long ones first.
LIST="pervasive table-3.1 table-3.2 table-3.3 table-3.4 table-3.5 table-3.6 table-3.7 table-3.8 \
figure-3.8 figure-3.9 figure-3.10 conll
online 4.2 4.9 4.10 4.11 4.12 4.13 4.14 4.15 4.16 4.17 4.18 C.1 C.2
adaptive 5.2 5.3 5.4 5.5 5.6 5.7 5.8 5.9 5.10 5.11 5.12 5.13 guarantee speed clock
smoothing -
captions -
zoo -
activations -
transparent -
report -
iwslt14-de-en -
multi30k -
paragraphs -
policies -
guarantee -
trust -
demo -
distill -
ingredients -
extra -
tune -
slurm -
quickstart -"
if [ $# -gt 0 ]; then
    for recipe in "$@"; do
        grep -q "^$recipe " <<<"$LIST" || fail "there is no recipe $recipe here: $(cut -d' ' -f1 <<<"$LIST" | xargs)"
    done
    LIST="$(for recipe in "$@"; do grep "^$recipe " <<<"$LIST"; done)"
fi
JOBS="${JOBS:-2}"
LOGS="$RUNS/small/logs"
DONE="$LOGS/done.txt"
TOTAL="$(awk '{ count += NF - 1 } END { print count }' <<<"$LIST")"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

if [ "$DRY_RUN" != 0 ]; then
    while read -r recipe experiments; do
        for experiment in $experiments; do say "SMALL=1 bash recipes/$recipe.sh ${experiment#-}"; done
    done <<<"$LIST"
    exit
fi

# `one RECIPE EXPERIMENT`: run an experiment, add a line to DONE, and report the progress.
one() {
    local log="$LOGS/$1${2#-}.log" began=$SECONDS outcome=passed count left
    if [ "$2" != - ]; then log="$LOGS/$1-$2.log"; fi
    SMALL=1 RUNS="$RUNS" bash "$PROJECT/recipes/$1.sh" ${2#-} >"$log" 2>&1 || outcome=failed
    printf '%s %s %s %s %s\n' "$1" "$2" "$((SECONDS - began))" "$outcome" "$log" >>"$DONE"
    count="$(wc -l <"$DONE")"
    left=$((SECONDS * (TOTAL - count) / count / 60))
    say "[$count of $TOTAL] $outcome: $1 ${2#-} ($((SECONDS - began)) s; about $left minutes left)"
}

# `all RECIPE EXPERIMENT...`: run them one after the other.
all() {
    local experiment
    for experiment in "${@:2}"; do one "$1" "$experiment"; done
}

environment
mkdir -p "$LOGS"
: >"$DONE"
say "$TOTAL experiments, $JOBS in parallel; logs in $LOGS"
while read -r -a words; do
    while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n; done
    all "${words[@]}" &
done <<<"$LIST"
wait

say
printf '%-14s %-12s %7s  %s\n' recipe experiment seconds outcome
sort "$DONE" | while read -r recipe experiment seconds outcome log; do
    printf '%-14s %-12s %7s  %s\n' "$recipe" "${experiment#-}" "$seconds" "$outcome"
    if [ "$outcome" = failed ]; then
        say "    $log:"
        tail -n 5 "$log" | sed 's/^/    /'
    fi
done
say
failed="$(grep -c ' failed ' "$DONE" || true)"
say "$((TOTAL - failed)) of $TOTAL passed in $((SECONDS / 60)) minutes; total processor time:"
times >"$LOGS/times.txt"
tail -n 1 "$LOGS/times.txt"
[ "$failed" = 0 ]
