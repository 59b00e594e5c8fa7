#!/usr/bin/env bash
# Extra training data: a model trained on Multi30k and Tatoeba De-En together and then fine-tuned on Multi30k,
# compared with a model trained on Multi30k only for the same time.
#
#   NMTGRID_DATA=DIR bash recipes/extra.sh     reads DIR/{multi30k,tatoeba.de-en}/{train,valid,test}.{de,en}[.xz]
#   SEEDS="1 2 3" ARCH=transformer bash recipes/extra.sh
#   bash recipes/extra.sh --dry-run            only prints the commands
#
# Tatoeba (CC BY 2.0) is at https://www.manythings.org/anki/ and https://tatoeba.org; pairs whose source or
# target occurs in Multi30k's validation or test set are removed. The model with extra data uses BPE and
# vocabularies learnt on both corpora. Results with extra data are not comparable with results on Multi30k
# only, and are named accordingly.
# The publications do not use these corpora. Device hours: 2 x (START_MINUTES + MINUTES) of one CPU core per
# seed.
# START_MINUTES=15 of processor time on both corpora, MINUTES=30 on Multi30k (the other model: their sum),
# or UPDATES=N (a third of them on both corpora), RATE=0.002 learning rate of the second stage,
# PRESET=multi30k, BEAM=5, SEEDS=1, SETS="--set ..." for all models, RUNS=runs. Existing models are not
# retrained; RESUME=1 resumes an interrupted one. SMALL=1: two toy corpora.
# CONFIG=FILE: a file for `nmtgrid train --config`, applied after the preset. PAIRS=10000 pairs of a toy corpus.
# LABEL=word: suffix of the record's name.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_arguments "$@"

if [ "$SMALL" = 1 ]; then ON="${ON:-toy}"; fi
ON="${ON:-multi30k}"
ARCH="${ARCH:-pervasive}"
PRESET="${PRESET:-$ON}"
UPDATES="${UPDATES:-0}"
START_MINUTES="${START_MINUTES:-15}"
MINUTES="${MINUTES:-30}"
SEEDS="${SEEDS:-${SEED:-1}}"
BEAM="${BEAM:-5}"
HERE="$RUNS/extra-$ON"
ALONE="$HERE/data" BOTH="$HERE/both" AFTER="$HERE/after"
read -r -a SETS <<<"${SETS:-}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

# Make the dataset ALONE of the corpus; set PLAIN and EXTRA to the folder of its texts and the prefix of
# the extra texts, READ to the options that read both, and MERGES.
alone() {
    pairs_of_toys "$ON"
    case "$ON" in
    multi30k)
        must_own tatoeba.de-en "tatoeba.de-en/train.{de,en}: https://www.manythings.org/anki/"
        EXTRA="$TEXT/train"
        multi30k_dataset de en "$ALONE" "$HERE/text"
        PLAIN="$TEXT" READ=(--source-lang de --target-lang en --lowercase --max-ratio 9) MERGES=8000
        ;;
    toy)
        toy_dataset "$ALONE"
        run nmtgrid preprocess --toy 800 --toy-seed 2 --overwrite --out "$HERE/toy-extra"
        EXTRA="$HERE/toy-extra/text/train" PLAIN="$ALONE/text"
        READ=(--source-lang qa --target-lang qb) MERGES=300
        ;;
    *) fail "there is no extra data for $ON here: multi30k toy" ;;
    esac
}

# `prepare DATA TRAIN OPTION...`: make a dataset with the corpus's validation and test sets, and units from OPTION.
prepare() {
    units "$1" "${READ[@]}" --train "$2" --valid "$PLAIN/valid" --test "$PLAIN/test" --workers 0 -- "${@:3}"
}

# Make the dataset BOTH, and AFTER: the corpus alone in the subwords of BOTH.
with_extra() {
    local source="${READ[1]}" target="${READ[3]}"
    if ! has_units "$BOTH"; then
        run python "$PROJECT/recipes/extra_data.py" "$source" "$target" --plain "$PLAIN" \
            --extra "$EXTRA" --out "$HERE/both-text/train"
    fi
    prepare "$BOTH" "$HERE/both-text/train" --merges "$MERGES" --joint
    prepare "$AFTER" "$PLAIN/train" --codes "$BOTH/bpe.codes" \
        --vocab-source "$BOTH/vocab.$source.txt" --vocab-target "$BOTH/vocab.$target.txt"
}

environment
alone
with_extra

whole="$(awk -v a="$START_MINUTES" -v b="$MINUTES" 'BEGIN { print a + b }')"
for seed in $SEEDS; do
    DATA="$ALONE"
    without="$HERE/without-extra-data-seed$seed" start="$HERE/start-seed$seed" after="$HERE/with-extra-data-seed$seed"
    train_model "$without" "$ARCH" "$PRESET" "$seed" "$UPDATES" "$whole"
    translate "$without" test "$BEAM"
    DATA="$BOTH"
    train_model "$start" "$ARCH" "$PRESET" "$seed" "$((UPDATES / 3))" "$START_MINUTES"
    DATA="$AFTER"
    train_model "$after" "$ARCH" "$PRESET" "$seed" "$((UPDATES - UPDATES / 3))" "$MINUTES" --init "$start" \
        --set "training.learning_rate=${RATE:-0.002}"
    translate "$after" test "$BEAM"
    run nmtgrid analyze compare "without-extra-data=$without/test-beam$BEAM.txt" \
        "with-extra-data=$after/test-beam$BEAM.txt" --data "$AFTER" --split test \
        --bootstrap 1000 --json "$HERE/table-seed$seed.compare.json"
done

run python "$PROJECT/recipes/pervasive_table.py" scores "without extra data=$HERE/without-extra-data" \
    "with extra data=$HERE/with-extra-data" --seeds "$SEEDS" --compare "$HERE/table" --out "$HERE/table"
record extra "Extra data: Tatoeba beside Multi30k" "$HERE/table.json"
