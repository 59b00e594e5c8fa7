#!/usr/bin/env bash
# A report on several systems: trains four that differ in architecture and decoding policy, translates the test
# split with traces, and runs every analysis of `nmtgrid analyze`.
#
#   bash recipes/report.sh                 the embedded toy corpus, 20 minutes on one core
#   ON=multi30k bash recipes/report.sh     Multi30k De-En, one hour on one core
#   bash recipes/report.sh --dry-run       only prints the commands
#
# MINUTES of processor time per system (toy: 4, Multi30k: 15) or UPDATES=N, SEED=1, RUNS=runs (output
# folder); writes $RUNS/report-$ON/report.html. NMTGRID_DATA=DIR reads the corpus from DIR (see common.sh).
# No published counterpart; recipes/figures/report-toy.html is an example. Device hours: a
# third (Multi30k: one) of one core. SMALL=1: the toy corpus, 40 updates, tiny models. Existing models are
# not retrained.
# CONFIG=FILE: a file for `nmtgrid train --config`, applied after the preset. PAIRS=10000 pairs of a toy corpus.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_arguments "$@"

ON="${ON:-toy}"
SEED="${SEED:-1}"
UPDATES="${UPDATES:-0}"
HERE="$RUNS/report-$ON"
DATA="$HERE/data"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

environment
case "$ON" in
toy) MINUTES="${MINUTES:-4}" ;;
multi30k) MINUTES="${MINUTES:-15}" ;;
*) fail "there is no corpus $ON here: toy multi30k" ;;
esac
dataset "$ON" "$DATA" "$HERE/text"

# `train NAME ARCHITECTURE PRESET OPTION...`: train a system, unless it exists.
train() {
    train_model "$HERE/$1" "$2" "$3" "$SEED" "$UPDATES" "$MINUTES" "${OFTEN[@]}" "${@:4}"
}

# `trace NAME OPTION...`: translate the test split greedily, with traces.
trace() { translate "$HERE/$1" test 1 --traces "$HERE/$1/test.traces.jsonl" "${@:2}"; }

# Validate often, so that curves have several points; not for tiny models.
OFTEN=()
if [ "$SMALL" != 1 ]; then OFTEN=(--set training.validate_minutes=0.3); fi
train pervasive pervasive "$ON"
train transformer transformer "$ON"
train early-exit transformer "$ON-exits" --objective exits-aligned
train wait-k pervasive "$ON" --objective wait-k-sampled --set model.source_causal=true

trace pervasive
trace transformer
run nmtgrid adaptive-tune "$HERE/early-exit" --data "$DATA" --split valid --test-split test \
    --samples "${SAMPLES:-2000}" --finalists 1 --batch 64 --clock processor --name confidence \
    --out "$HERE/early-exit/tuned"
trace early-exit --exit confidence-2
run nmtgrid online-eval "wait-k=$HERE/wait-k" --data "$DATA" --split test --k 1,2,3,5,7,inf \
    --out "$HERE/wait-k/online"

run nmtgrid analyze report \
    "pervasive=$HERE/pervasive/test.traces.jsonl" \
    "transformer=$HERE/transformer/test.traces.jsonl" \
    "early exit=$HERE/early-exit/test.traces.jsonl" \
    "wait-3=$HERE/wait-k/online/k-3.traces.jsonl" \
    --reference "$DATA/raw/test.$TARGET" --source "$DATA/raw/test.$SOURCE" \
    --title "Four systems on the ${ON/toy/toy corpus}" --bootstrap 1000 \
    --latency "$HERE/wait-k/online" --depth "$HERE/early-exit/tuned" \
    --curves "pervasive=$HERE/pervasive" --curves "transformer=$HERE/transformer" \
    --curves "early exit=$HERE/early-exit" --curves "wait-k=$HERE/wait-k" \
    --activations "pervasive=$HERE/pervasive" --activations "transformer=$HERE/transformer" \
    --data "$DATA" --out "$HERE/report.html" --json "$HERE/report.json"
record report "A report on four systems" "$HERE/report.json"
