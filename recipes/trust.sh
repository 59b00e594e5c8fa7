#!/usr/bin/env bash
# Fault injection and fuzzing: killed processes, full disks, corrupted files, random command lines, concurrent
# processes, mutants; random logs of simultaneous translation, also scored by OmniSTEval.
#
#   bash recipes/trust.sh                    everything
#   ONLY="kills pairs" bash recipes/trust.sh
#   bash recipes/trust.sh --dry-run          only prints the commands
#
# The table has the number of cases, their outcomes and the number of faults; benchmarks/trust.md
# describes each series. It needs no data. Device hours: 3 of one CPU core.
# ONLY="kills disk flips pairs readers checkpoints commands logs mutants", SEED=1; rounds of each:
# KILL_ROUNDS=75, DISK_ROUNDS=25, FLIP_ROUNDS=20, PAIR_ROUNDS=40; READERS=1600 cases of each reader,
# CHECKPOINTS=500, COMMANDS=6000, LOGS=10000, MUTANTS=400 sampled from all mutants of MUTATED="base search online
# adaptive training", run against TESTS=tests/unit; survivors also against TESTS_AGAIN=tests/invariants (none:
# not at all). RUNS=runs (output folder), LABEL=word: suffix of the record's name.
# SMALL=1: a few cases of each.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_arguments "$@"
choices ONLY kills disk flips pairs readers checkpoints commands logs mutants

if [ "$SMALL" = 1 ]; then
    : "${KILL_ROUNDS:=1}" "${DISK_ROUNDS:=1}" "${FLIP_ROUNDS:=1}" "${PAIR_ROUNDS:=1}"
    : "${READERS:=20}" "${CHECKPOINTS:=20}" "${COMMANDS:=30}" "${LOGS:=50}" "${MUTANTS:=10}"
    : "${MUTATED:=search/select.py}" "${TESTS:=tests/unit/search/test_select.py}" "${TESTS_AGAIN:=tests/unit/search/test_engine.py}"
fi
SEED="${SEED:-1}"
HERE="$RUNS/trust"

environment test
cd "$PROJECT"
run mkdir -p "$HERE"
# A program that finds faults exits with 1; the table counts them, and the other series still run.
for series in ${ONLY:-kills disk flips pairs readers checkpoints commands logs mutants}; do
    out="$HERE/$series.json" program=()
    case "$series" in
    kills) program=(faults --only kills --rounds "${KILL_ROUNDS:-75}") ;;
    disk) program=(faults --only disk --rounds "${DISK_ROUNDS:-25}") ;;
    flips) program=(faults --only flips --rounds "${FLIP_ROUNDS:-20}") ;;
    pairs) program=(faults --pairs "${PAIR_ROUNDS:-40}") ;;
    readers) program=(fuzz --cases "${READERS:-1600}") ;;
    checkpoints) program=(fuzz.checkpoints --cases "${CHECKPOINTS:-500}") ;;
    commands) program=(fuzz.commands --cases "${COMMANDS:-6000}") ;;
    logs) program=(fuzz.latency_logs --cases "${LOGS:-10000}") ;;
    mutants)
        program=(mutants --sample "${MUTANTS:-400}" --seconds 60)
        for part in ${MUTATED:-base search online adaptive training}; do program+=("nmtgrid/$part"); done
        # shellcheck disable=SC2206
        again=("${program[@]}" --again "$out" --tests ${TESTS_AGAIN:-tests/invariants})
        # shellcheck disable=SC2206
        program+=(--tests ${TESTS:-tests/unit})
        ;;
    *) fail "ONLY has no series $series" ;;
    esac
    run rm -f "$out"
    run python -m "tests.${program[0]}" "${program[@]:1}" --seed "$SEED" --json "$out" || true
    # Slower tests may detect the mutants that survived the quicker ones.
    if [ "$series" = mutants ] && [ "${TESTS_AGAIN:-some}" != none ]; then
        run python -m "tests.${again[0]}" "${again[@]:1}" --seed "$SEED" --json "$out" || true
    fi
done
run python "$PROJECT/recipes/trust_table.py" "$HERE" --out "$HERE/table"
record trust "Fault injection" "$HERE/table.json"
