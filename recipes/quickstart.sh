#!/usr/bin/env bash
# From installation to scored translations in a few minutes on two CPU cores, downloading only packages:
# the embedded toy corpus, Pervasive Attention, scores and an alignment.
#
#   bash recipes/quickstart.sh             writes runs/toy/data and runs/toy/model
#   RUNS=elsewhere bash recipes/quickstart.sh
#   bash recipes/quickstart.sh --dry-run   only prints the commands
#
# SMALL=1: 1,000 pairs and 40 updates of a tiny model, only to show that it runs. Running it again
# overwrites earlier results.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_arguments "$@"

TOY="$RUNS/toy"

environment
began=$SECONDS
if [ "$DRY_RUN" = 0 ]; then mkdir -p "$TOY"; fi

say; say "1. A corpus: two made-up languages with verb-final clauses, split verbs and compounds"
run nmtgrid preprocess --toy "${PAIRS:-10000}" --overwrite --out "$TOY/data"
say; say "2. Subword units"
run nmtgrid bpe learn "$TOY/data" --merges 700 --separate
say; say "3. Training"
tiny pervasive
limits "${UPDATES:-0}" 0
run nmtgrid train "$TOY/data" --arch pervasive --preset toy "${TINY[@]}" "${LIMIT[@]}" \
    --overwrite --out "$TOY/model"
say; say "4. Translating and scoring the test split"
run nmtgrid decode "$TOY/model" --data "$TOY/data" --split test --beam 5 \
    --out "$TOY/test.qb" --traces "$TOY/traces.jsonl" --json "$TOY/scores.json"
say; say "5. Plotting one alignment"
run nmtgrid analyze alignments "$TOY/traces.jsonl" --out "$TOY/alignment.png"
say
say "Done in $((SECONDS - began)) s. Dataset: $TOY/data, model: $TOY/model, translations:"
say "$TOY/test.qb, scores: $TOY/scores.json, heat map: $TOY/alignment.png"
