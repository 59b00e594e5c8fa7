#!/usr/bin/env bash
# Adds training techniques one at a time: each system has one more than the previous one. The last
# row is the ensemble of the final system's seeds.
#
#   bash recipes/ingredients.sh                    Pervasive Attention on Multi30k, one seed
#   ARCH=transformer SEEDS="1 2 3" bash recipes/ingredients.sh
#   STEPS="muon:training.optimiser=muon,training.learning_rate=0.008 last:training.average=5" bash ...
#   bash recipes/ingredients.sh --dry-run          only prints the commands
#
# The table has validation loss, tokens per second and test BLEU of each step (mean and deviation over seeds),
# and the p-values of a paired bootstrap against the previous step, one per seed. The first step, `base`,
# is PRESET (multi30k) with AdamW; then follow STEPS, name:setting=value,...: Muon (at RATE, 0.004),
# BPE-dropout, R-Drop in the second half. All have the same processor time, so
# a technique must pay for its slower updates. Device hours: MINUTES per step and seed; by default
# two, of one CPU core.
# ON=multi30k (any corpus of common.sh that has a preset), MINUTES=30 of processor time or UPDATES=N,
# SEEDS=1, BEAM=5, JOBS=1 systems in parallel, RESUME=1 resumes an interrupted one, SETS="--set ..."
# for all systems, RUNS=runs. Existing models are not retrained. SMALL=1: the toy corpus,
# two steps of 40 updates.
# CONFIG=FILE: a file for `nmtgrid train --config`, applied after the preset. PAIRS=10000 pairs of a toy corpus.
# LABEL=word: suffix of the record's name.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_arguments "$@"

MUON="muon:training.optimiser=muon,training.learning_rate=${RATE:-0.004}"
if [ "$SMALL" = 1 ]; then
    ON="${ON:-toy}" STEPS="${STEPS:-$MUON}"
fi
ON="${ON:-multi30k}"
ARCH="${ARCH:-pervasive}"
PRESET="${PRESET:-$(preset_of "$ON")}"
MINUTES="${MINUTES:-30}"
UPDATES="${UPDATES:-0}"
SEEDS="${SEEDS:-${SEED:-1}}"
BEAM="${BEAM:-5}"
STEPS="${STEPS:-$MUON bpe-dropout:batches.source_bpe_dropout=0.1,batches.target_bpe_dropout=0.1
r-drop:training.r_drop=1,training.r_drop_from=0.5}"
NAMES=" base "
for text in $STEPS; do
    [[ "$text" =~ ^[^:/=]+:[^=,]+=[^,]+(,[^=,]+=[^,]+)*$ ]] ||
        fail "STEPS has $text, which is not of the form name:setting=value,setting=value"
    [[ "$NAMES" != *" ${text%%:*} "* ]] || fail "STEPS has a second step ${text%%:*}: names must differ"
    NAMES+="${text%%:*} "
done
HERE="$RUNS/ingredients-$ON-$ARCH"
DATA="$HERE/data"
TABLE="$PROJECT/recipes/ingredients_table.py"
read -r -a SETS <<<"${SETS:-}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

environment
dataset "$ON" "$DATA" "$HERE/text"

# `step NAME SEED SETTING...`: train and translate a step of the ladder.
step() {
    local model="$HERE/$1-seed$2" settings=() setting
    for setting in "${@:3}"; do settings+=(--set "$setting"); done
    train_model "$model" "$ARCH" "$PRESET" "$2" "$UPDATES" "$MINUTES" "${settings[@]}"
    translate "$model" test "$BEAM"
}

names=(base) settings=(training.optimiser=adamw)
for seed in $SEEDS; do beside "$HERE/base-seed$seed.log" step base "$seed" "${settings[@]}"; done
for text in $STEPS; do
    names+=("${text%%:*}")
    IFS=, read -r -a more <<<"${text#*:}"
    settings+=("${more[@]}")
    for seed in $SEEDS; do
        beside "$HERE/${names[-1]}-seed$seed.log" step "${names[-1]}" "$seed" "${settings[@]}"
    done
done
all_done

# Compare each step with the previous one, for each seed.
for ((number = 1; number < ${#names[@]}; number++)); do
    for seed in $SEEDS; do
        systems=()
        for name in "${names[number - 1]}" "${names[number]}"; do
            systems+=("$name=$HERE/$name-seed$seed/test-beam$BEAM.txt")
        done
        run nmtgrid analyze compare "${systems[@]}" --reference "$DATA/raw/test.$TARGET" --lowercase \
            --bootstrap 1000 --json "$HERE/${names[number]}-seed$seed/compare.json"
    done
done

models=() ENSEMBLE=()
for seed in $SEEDS; do models+=("$HERE/${names[-1]}-seed$seed"); done
if [ ${#models[@]} -gt 1 ]; then
    ensemble "$HERE/ensemble" "$BEAM" "${models[@]}"
    ENSEMBLE=(--ensemble "$SCORES")
fi
run python "$TABLE" "${names[@]/#/$HERE/}" --seeds "$SEEDS" --beam "$BEAM" "${ENSEMBLE[@]}" \
    --out "$HERE/table"
record "ingredients-$ARCH" "What each ingredient of training gives, $ARCH" "$HERE/table.json"
