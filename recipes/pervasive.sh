#!/usr/bin/env bash
# Pervasive Attention offline: chapter 3 of the thesis, and the CoNLL paper.
#
#   bash recipes/pervasive.sh              table 3.7: Bi-LSTM, ConvS2S, Transformer, Pervasive Attention
#                                          (De-En 31.03, 32.66, 34.53, 34.67: test set, beam 5)
#   bash recipes/pervasive.sh table-3.1    properties: receptive field, computation, paths
#   bash recipes/pervasive.sh table-3.2    lengths of the corpora, percentiles 5, 50 and 95
#   bash recipes/pervasive.sh table-3.3    learning rates, batch sizes and search settings of the presets
#   bash recipes/pervasive.sh table-3.4    skip connections (development set: 33.69 to 35.24)
#   bash recipes/pervasive.sh table-3.5    aggregation (34.84 to 35.65)
#   bash recipes/pervasive.sh table-3.6    entropy and coverage of alignments under teacher forcing (max
#                                          1.17 and 0.78, attention 2.06 and 0.82), and alignment error rate
#                                          against a statistical aligner (`nmtgrid analyze align`)
#   bash recipes/pervasive.sh table-3.8    En-Vi 30.17, 29.20, 30.49 (Transformer base, small, Pervasive),
#                                          En-Ro 33.26, 33.46, 33.54, WMT'15 De-En 32.80, 30.49, 29.61
#   bash recipes/pervasive.sh figure-3.8   depth and kernel: KERNELS="3 5 9 11" DEPTHS="8 10 14 20 24"
#   bash recipes/pervasive.sh figure-3.9   alignments of five models side by side
#   bash recipes/pervasive.sh figure-3.10  BLEU by length and by length ratio
#   bash recipes/pervasive.sh conll        its tables 1 (pooling: 31.57 to 33.81 with beam 5), 2 (depth and
#                                          kernel) and 3 (33.86 and 34.18), figures 4 (embeddings, growth)
#                                          and 5 (lengths); PARTS="1 2 3 4": tables 1 to 3, figure 4
#   bash recipes/pervasive.sh --dry-run ...    only prints the commands
#
# Data: ON=iwslt14-de-en or iwslt14-en-de; table 3.8 iwslt15-en-vi, iwslt15-vi-en, wmt16-en-ro and
# wmt15-de-en; also multi30k, multi30k-en-de (or others of cs, de, en, fr), toy; several of them in
# sequence. IWSLT and Multi30k are downloaded, or read from NMTGRID_DATA, which must contain the WMT texts (see
# common.sh).
# Device hours: the publications give none. Estimated from the FLOPs that `train --dry-run` counts, at 20
# TFLOP/s on a GPU, per seed: one Pervasive Attention on IWSLT 8, table 3.4 35, 3.5 30, 3.7 9,
# 3.8 9 (En-Vi), 37 (En-Ro), 2,000 (WMT'15), figure 3.8 some 150, a CoNLL model 1 to 2.
# SEEDS="1 2 3" (mean and deviation), BEAMS="1 5", UPDATES=N or MINUTES of processor time per
# model (0: the preset's limit; multi30k 10, toy 3 minutes), JOBS=1 models trained in parallel,
# RUNS=runs, SETS="--set ..." for every model, LABEL=word names the folder and the records of such a run. SMALL=1:
# the toy corpus, 40 updates each, greedy, perplexities in two tables only. On Multi30k, tables 3.4 to 3.6 and figure
# 3.8 use models of five blocks, more than the preset; they share models. Tables 3.4, 3.5 and
# 3.7 have the p-value of BLEU against their first row for each seed (paired bootstrap, 1,000 samples).
# CONFIG=FILE: a file for `nmtgrid train --config`, applied after the preset. PAIRS=10000 pairs of a toy corpus.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[ $# -gt 0 ] || set -- table-3.7

CORPORA="${ON:-}"
SEEDS="${SEEDS:-${SEED:-1 2 3}}"
UPDATES="${UPDATES:-0}"
PARTS="${PARTS:-1 2 3 4}"
SPLITS="valid test"
if [ "$SMALL" = 1 ]; then
    CORPORA="${CORPORA:-toy}"
    BEAMS="${BEAMS:-1}" KERNELS="${KERNELS:-3 5}" DEPTHS="${DEPTHS:-1 2}"
    POOLINGS="${POOLINGS:-max-gated}" SHAPES="${SHAPES:-k5-l2}"
    EMBEDDINGS="${EMBEDDINGS:-16}" GROWTHS="${GROWTHS:-4}" BASE_SIZE="${BASE_SIZE:-64}" SPLITS=test
fi
BASE_SIZE="${BASE_SIZE:-512}"
BEAMS="${BEAMS:-1 5}"
KERNELS="${KERNELS:-3 5 9 11}"
DEPTHS="${DEPTHS:-8 10 14 20 24}"
POOLINGS="${POOLINGS:-average max attention max-gated max-attention}"
SHAPES="${SHAPES:-k3-l16 k3-l20 k5-l8 k5-l12 k5-l16 k5-l20 k5-l24 k5-l28 k7-l12 k7-l16}"
EMBEDDINGS="${EMBEDDINGS:-64 128 256}"
GROWTHS="${GROWTHS:-8 16 32}"
PLANS="$RUNS/pervasive"
GIVEN_MINUTES="${MINUTES:-}"
read -r -a SETS <<<"${SETS:-}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

# Set the variables that depend on the corpus ON, and make its dataset.
begin() {
    HERE="$RUNS/pervasive-$ON${LABEL:+-$LABEL}"
    DATA="$HERE/data"
    PRESET="$(preset_of "$ON")"
    case "$ON" in
    toy) MINUTES="${GIVEN_MINUTES:-3}" ;;
    multi30k*) MINUTES="${GIVEN_MINUTES:-10}" ;;
    *) MINUTES="${GIVEN_MINUTES:-0}" ;;
    esac
    dataset "$ON" "$DATA" "$HERE/text"
}

# `train NAME ARCHITECTURE PRESET OPTION...`: train a model with each seed, unless it exists, JOBS at a time.
train() {
    local seed
    for seed in $SEEDS; do
        beside "$HERE/$1-seed$seed.log" \
            train_model "$HERE/$1-seed$seed" "$2" "$3" "$seed" "$UPDATES" "$MINUTES" "${@:4}"
    done
}

# `score NAME SPLIT...`: translate splits with each beam size, unless that was done.
score() {
    local seed model split beam
    all_done
    for seed in $SEEDS; do
        model="$HERE/$1-seed$seed"
        for split in "${@:2}"; do
            for beam in $BEAMS; do
                translate "$model" "$split" "$beam"
            done
        done
    done
}

# `force_all NAME`: score the references of the development set by forced decoding, for perplexity and alignments.
force_all() {
    local seed model
    all_done
    for seed in $SEEDS; do
        model="$HERE/$1-seed$seed"
        force "$model" valid --traces "$model/valid.traces.jsonl"
    done
}

# `tabulate EXPERIMENT TITLE KIND NAME=PATH...`: write a table, and save its record.
tabulate() {
    run python "$PROJECT/recipes/pervasive_table.py" "$3" "${@:4}" --seeds "$SEEDS" \
        --out "${HERE:-$PLANS}/$1"
    record "$1" "$2" "${HERE:-$PLANS}/$1.json"
}

# `variant NAME`: train a variant of Pervasive Attention of tables 3.4 and 3.5, with the preset of its name or, if the
# corpus has no such preset, with settings.
variant() {
    local change=(--set "model.aggregation=$1")
    case "$ON" in iwslt14-*) train "pa-$1" pervasive "$PRESET-$1"; return ;; esac
    case "$1" in
    dense-without-norm)
        change=(--set model.skip=dense --set model.dense_norm=false --set model.aggregation=max) ;;
    dense | residual*) change=(--set "model.skip=$1" --set model.aggregation=max) ;;
    esac
    five_blocks
    train "pa-$1" pervasive "$PRESET" "${SHAPE[@]}" "${change[@]}"
}

# `ablation EXPERIMENT TITLE VARIANT[=LABEL]...`: compare variants with the first on the development set.
ablation() {
    local row name names=() models=()
    for row in "${@:3}"; do variant "${row%%=*}"; done
    for row in "${@:3}"; do
        name="${row%%=*}"
        score "pa-$name" valid
        if [ "$SMALL" != 1 ]; then force_all "pa-$name"; fi
        models+=("${row#*=}=$HERE/pa-$name")
        names+=("pa-$name")
    done
    significance "$1" valid "${names[@]}"
    tabulate "$1" "$2" scores "${models[@]}" --compare "$HERE/$1"
}

# `plan NAME ARCHITECTURE PRESET`: dry run of a preset's training, for tables 3.1 and 3.3; adds to FOUND.
plan() {
    [ "$DRY_RUN" != 0 ] || mkdir -p "$PLANS"
    run nmtgrid train --arch "$2" --preset "$3" --source-vocab-size "${4:-8848}" \
        --target-vocab-size "${5:-6632}" --dry-run --json "$PLANS/plan-$2-$3.json"
    FOUND+=("$1=$PLANS/plan-$2-$3.json")
}

table_3_1() {
    FOUND=()
    plan "Bi-LSTM" bilstm iwslt14-de-en
    plan "ConvS2S" convs2s iwslt14-de-en
    plan "Transformer small" transformer iwslt14-de-en
    plan "Pervasive Attention" pervasive iwslt14-de-en
    tabulate table-3.1 "Properties" plans "${FOUND[@]}"
}

table_3_3() {
    FOUND=()
    plan "IWSLT'14 De-En" pervasive iwslt14-de-en
    plan "IWSLT'15 En-Vi" pervasive iwslt15-en-vi 17192 7710
    plan "WMT'16 En-Ro" pervasive wmt16-en-ro 35000 35000
    plan "WMT'15 De-En" pervasive wmt15-de-en 32000 32000
    tabulate table-3.3 "Settings of Pervasive Attention" plans "${FOUND[@]}"
}

table_3_2() { tabulate table-3.2 "Lengths in units" lengths "$ON=$DATA"; }

table_3_4() {
    ablation table-3.4 "Skip connections, development set" \
        residual max=residual-cumulative residual-gated residual-norm dense dense-without-norm
}

table_3_5() { ablation table-3.5 "Aggregation, development set" max average gated-max attention; }

# Train the baselines of table 3.7.
baselines() {
    train bilstm bilstm "$PRESET"
    train convs2s convs2s "$PRESET"
    train transformer transformer "$PRESET"
}

# Score the references of the development set by forced decoding; sets TRACES for five models of the first seed.
forced() {
    local name
    TRACES=()
    for name in max gated-max attention; do variant "$name"; done
    baselines
    for name in max gated-max attention; do
        force_all "pa-$name"
        TRACES+=("$name=$HERE/pa-$name-seed$SEEDS/valid.traces.jsonl")
    done
    force_all bilstm
    force_all transformer
    TRACES+=("bilstm=$HERE/bilstm-seed$SEEDS/valid.traces.jsonl")
    TRACES+=("transformer=$HERE/transformer-seed$SEEDS/valid.traces.jsonl")
}

table_3_6() {
    local SEEDS="${SEEDS%% *}" links="$HERE/valid.links"
    forced
    run nmtgrid analyze alignments "${TRACES[@]}" --json "$HERE/alignments.json"
    # Word links of a statistical aligner serve as gold alignments.
    run nmtgrid analyze align "$DATA/text/valid.$SOURCE" "$DATA/text/valid.$TARGET" \
        --train "$DATA/text/train.$SOURCE" "$DATA/text/train.$TARGET" --out "$links"
    run nmtgrid analyze alignments "${TRACES[@]}" --words --gold "$links" --json "$HERE/links.json"
    run python "$PROJECT/recipes/pervasive_table.py" blocks \
        "transformer=$HERE/transformer-seed$SEEDS" --data "$DATA" --out "$HERE/blocks"
    tabulate table-3.6 "Alignments of the development set, teacher forced" alignments \
        "models=$HERE/alignments.json" "blocks=$HERE/blocks.json" --gold "$HERE/links.json"
}

table_3_7() {
    local name names=(pa bilstm convs2s transformer) models=()
    baselines
    train pa pervasive "$PRESET"
    for name in "${names[@]}"; do
        score "$name" $SPLITS
        force_all "$name"
        models+=("$name=$HERE/$name")
    done
    significance table-3.7 test "${names[@]}"
    tabulate table-3.7 "Four architectures" scores "${models[@]}" --compare "$HERE/table-3.7"
}

table_3_8() {
    local name models=()
    case "$ON" in
    iwslt15-* | wmt16-*)
        train transformer transformer "$PRESET"
        train transformer-base transformer "$PRESET-base"
        ;;
    wmt15-*)
        train transformer transformer "$PRESET-small"
        train transformer-base transformer "$PRESET"
        ;;
    *)
        train transformer transformer "$PRESET"
        train transformer-base transformer "$PRESET" --set "model.size=$BASE_SIZE" \
            --set "model.feed_forward_size=$((2 * BASE_SIZE))" --set model.heads=8
        ;;
    esac
    train pa pervasive "$PRESET"
    for name in transformer-base transformer pa; do
        score "$name" $SPLITS
        force_all "$name"
        models+=("$name=$HERE/$name")
    done
    tabulate table-3.8 "Pervasive Attention and Transformers" scores "${models[@]}"
}

figure_3_8() {
    local SEEDS="${SEEDS%% *}" kernel depth preset="$PRESET" models=()
    case "$ON" in iwslt14-*) preset="$PRESET-max" ;; esac
    five_blocks
    for kernel in $KERNELS; do
        for depth in $DEPTHS; do
            train "pa-k$kernel-n$depth" pervasive "$preset" "${SHAPE[@]}" --set model.aggregation=max \
                --set "model.target_kernel=$kernel" --set "model.source_kernel=$kernel" \
                --set "model.depth=$depth"
        done
    done
    for kernel in $KERNELS; do
        for depth in $DEPTHS; do
            score "pa-k$kernel-n$depth" valid
            if [ "$SMALL" != 1 ]; then force_all "pa-k$kernel-n$depth"; fi
            models+=("$kernel,$depth=$HERE/pa-k$kernel-n$depth")
        done
    done
    tabulate figure-3.8 "Depth and kernel, development set" grid "${models[@]}"
}

figure_3_9() {
    local SEEDS="${SEEDS%% *}"
    forced
    run nmtgrid analyze alignments "${TRACES[@]}" --line 1 --line 2 --out "$HERE/figure-3-9" \
        --json "$HERE/figure-3.9.json"
    record figure-3.9 "Alignments of the development set (pictures: lines 1 and 2)" \
        "$HERE/figure-3.9.json"
}

# `by_length EXPERIMENT TITLE NAME...`: BLEU in buckets of the test set, first seed, largest beam.
by_length() {
    local SEEDS="${SEEDS%% *}" name files=()
    for name in "${@:3}"; do
        files+=("$name=$HERE/$name-seed$SEEDS/test-beam${BEAMS##* }.txt")
    done
    run nmtgrid analyze buckets "${files[@]}" --reference "$DATA/raw/test.$TARGET" \
        --source "$DATA/raw/test.$SOURCE" --lowercase --out "$HERE/${1//./-}" --json "$HERE/$1-buckets.json"
    tabulate "$1" "$2" buckets "$1=$HERE/$1-buckets.json"
}

figure_3_10() {
    table_3_7
    by_length figure-3.10 "BLEU by length and by length ratio" bilstm convs2s transformer pa
}

# `conll_data VERSION`: set DATA to the corpus in the units of the CoNLL paper: 14,000 merges, joint
# (v1) or separate (v2).
conll_data() {
    case "$ON-$1" in
    iwslt14-*-v1) DATA="$HERE/data-v1" merges=--joint ;;
    iwslt14-*-v2) DATA="$HERE/data-v2" merges=--separate ;;
    *) return ;;
    esac
    iwslt14_dataset "$SOURCE" "$TARGET" "$DATA" "$HERE/text" --merges 14000 "$merges"
}

# `dense TITLE NAME OPTION...`: train a DenseNet of the ablations, with the preset of its name or with settings.
# Adds to ROWS.
dense() {
    local name="conll-$2"
    case "$ON-$2" in
    iwslt14-*-embedding* | iwslt14-*-growth*) train "$name" pervasive-densenet "$PRESET-max" "${@:3}" ;;
    iwslt14-*) train "$name" pervasive-densenet "$PRESET-$2" ;;
    *) train "$name" pervasive-densenet "$PRESET" "${@:3}" ;;
    esac
    score "$name" $SPLITS
    ROWS+=("$1=$HERE/$name")
}

# `compared TITLE NAME ARCHITECTURE PRESET`: train a model of table 3. Adds to ROWS and NAMES.
compared() {
    train "conll-$2" "$3" "$4"
    score "conll-$2" $SPLITS
    ROWS+=("table 3: $1=$HERE/conll-$2")
    NAMES+=("conll-$2")
}

# Table 3 of the CoNLL paper, and its figure 5.
conll_3() {
    NAMES=()
    case "$ON" in
    iwslt14-*)
        compared "RNNsearch, V1" rnnsearch bilstm "$PRESET-conll"
        compared "ConvS2S, V1" convs2s convs2s "$ON-conll"
        compared "Transformer of the first version" transformer-base transformer "$PRESET-base"
        compared "Transformer, V1" transformer-v1 transformer "$PRESET-v1"
        compared "Pervasive Attention, V1" pa-v1 pervasive-densenet "$ON-v1"
        conll_data v2
        compared "Transformer, V2" transformer-v2 transformer "$PRESET-v2"
        compared "Pervasive Attention, V2" pa-v2 pervasive-densenet "$ON"
        ;;
    *)
        compared RNNsearch rnnsearch bilstm "$PRESET"
        compared ConvS2S convs2s convs2s "$PRESET"
        compared Transformer transformer transformer "$PRESET"
        compared "Pervasive Attention" pa pervasive-densenet "$PRESET"
        ;;
    esac
    by_length conll-figure-5 "CoNLL paper, BLEU by length" "${NAMES[@]}"
}

conll() {
    local part name merges gates
    ROWS=()
    for part in $PARTS; do
        conll_data v1
        case "$part" in
        1)
            for name in $POOLINGS; do
                gates=none
                if [ "$name" = max-gated ]; then gates=convolution; fi
                dense "table 1: $name" "$name" --set "model.aggregation=${name%-gated}" \
                    --set "model.gates=$gates"
            done
            ;;
        2)
            for name in $SHAPES; do
                dense "table 2: $name" "$name" --set "model.kernel=${name:1:1}" \
                    --set "model.depth=${name#*-l}"
            done
            ;;
        3) conll_3 ;;
        4)
            for name in $EMBEDDINGS; do
                dense "figure 4: embeddings of $name" "embedding$name" \
                    --set "model.embedding_size=$name"
            done
            for name in $GROWTHS; do
                dense "figure 4: growth $name" "growth$name" --set "model.growth=$name"
            done
            ;;
        esac
    done
    tabulate conll "CoNLL paper" scores "${ROWS[@]}"
}

choices PARTS 1 2 3 4
for experiment in "$@"; do
    case "$experiment" in
    table-3.[1-8] | figure-3.8 | figure-3.9 | figure-3.10 | conll) ;;
    *) fail "there is no experiment $experiment here: table-3.1 to table-3.8, figure-3.8, figure-3.9, \
figure-3.10, conll" ;;
    esac
done

environment
for experiment in "$@"; do
    experiment_function="${experiment//[.-]/_}"
    case "$experiment" in
    table-3.1 | table-3.3)
        ON="" HERE=""
        "$experiment_function"
        continue
        ;;
    table-3.2) corpora="iwslt14-de-en iwslt15-en-vi wmt16-en-ro wmt15-de-en" ;;
    table-3.8) corpora="iwslt15-en-vi iwslt15-vi-en wmt16-en-ro wmt15-de-en" ;;
    *) corpora=iwslt14-de-en ;;
    esac
    for ON in ${CORPORA:-$corpora}; do
        begin
        "$experiment_function"
    done
done
