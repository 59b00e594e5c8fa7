#!/usr/bin/env bash
# Compares reading policies: one model trained for all wait-k paths decodes with every policy that it
# supports, and readers are trained starting from its weights.
#
#   bash recipes/policies.sh               the toy corpus in words, where the necessary delay of each word is known
#   ON=multi30k bash recipes/policies.sh   Multi30k De-En, downloaded or from NMTGRID_DATA=DIR
#   ON=multi30k-en-de bash recipes/policies.sh     between other languages of it (cs, de, en, fr)
#   ON=iwslt14-de-en PRESET=iwslt14-de-en-small bash recipes/policies.sh     IWSLT'14 with small models
#   bash recipes/policies.sh --dry-run     only prints the commands
#
# Pervasive Attention is trained at all cells right of wait-1 (wait-k-area), the uni-directional Transformer
# along paths of random k (wait-k-sampled). Readers are trained from Pervasive Attention. For each delay
# weight in LAMBDAS: `marginal`, plain, with the likelihood at all cells added to the loss (marginal-area) or with
# the translation model frozen (marginal-fixed), and `dynamic`. Once, since they have no delay weight:
# `binary-search` (`dynamic` with labels by binary search, BS-SiMT) and `divergence` with the translation model
# frozen. Next to the Transformer, three models whose policy is part of the Transformer are trained for as long:
# monotonic heads (`mma`), and two that learn the information of tokens (`itst`, `wait-info`). The table has BLEU
# and latencies of each setting (mean and deviation over seeds), the area between each curve and that of
# wait-k, and the area between the curves of `marginal` and of each other reader. A second table has the processor
# time of each policy relative to wait-k (ROUNDS=7 interleaved rounds; 0: none).
# Device hours: 0.4 (toy), 3.5 (Multi30k) of one CPU core per seed.
# MINUTES of processor time per model (10; toy: 3) or UPDATES=N; TUNE_MINUTES or TUNE_UPDATES for readers (half
# of it); READER_RATE=0.001, the learning rate of readers: with that of the preset, the translation model gets worse.
# ARCHS="pervasive transformer", SEEDS="1 2 3", LAMBDAS="0.5 1", READERS="marginal marginal-area
# marginal-fixed dynamic binary-search divergence" (none: only policies without training),
# MECHANISMS="mma itst wait-info" (policies within the Transformer; none: omit them),
# POLICIES=edatt,alignatt (policies without training), K=1..9, THRESHOLDS=0.1..0.9:0.2,
# CELLS=4 trains the grid at that many random cells per target token (default: all cells).
# RUNS=runs (output folder), SETS="--set ..." for every model, LABEL=word names the folder and the records of
# such a run. SMALL=1: the toy corpus, 40 updates, one value of each list. Existing results are kept.
# CONFIG=FILE: a file for `nmtgrid train --config`, applied after the preset. PAIRS=10000 pairs of a toy corpus.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_arguments "$@"

if [ "$SMALL" = 1 ]; then
    K="${K:-1,3}" THRESHOLDS="${THRESHOLDS:-0.5}" LAMBDAS="${LAMBDAS:-1}" ON="${ON:-toy}"
    POLICIES="${POLICIES:-alignatt,local-agreement}"
fi
POLICIES="${POLICIES:-confidence,entropy,alignatt,edatt,local-agreement,hold-n,re-translation}"
ON="${ON:-toy-words}"
SEEDS="${SEEDS:-${SEED:-1 2 3}}"
K="${K:-1..9}"
THRESHOLDS="${THRESHOLDS:-0.1..0.9:0.2}"
UPDATES="${UPDATES:-0}"
TUNE_UPDATES="${TUNE_UPDATES:-$((UPDATES / 2))}"
case "$ON" in toy*) MINUTES="${MINUTES:-3}" ;; *) MINUTES="${MINUTES:-10}" ;; esac
TUNE_MINUTES="${TUNE_MINUTES:-$(awk -v whole="$MINUTES" 'BEGIN { print whole / 2 }')}"
HERE="$RUNS/policies-$ON${LABEL:+-$LABEL}"
DATA="$HERE/data"
read -r -a SETS <<<"${SETS:-}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

choices ARCHS pervasive transformer
choices MECHANISMS mma itst wait-info none
choices READERS marginal marginal-area marginal-fixed dynamic binary-search divergence none

environment
dataset "$ON" "$DATA" "$HERE/text"
PRESET="${PRESET:-$(preset_of "$ON")}"
GRID=(--set model.source_causal=true --set model.aggregation=max)

# `evaluate NAME SEED OPTION...`: translate the test set, unless that was done.
evaluate() {
    local out="$HERE/eval/$1-seed$2"
    once "$out/results.json" nmtgrid online-eval "$1=$HERE/$1-seed$2" --data "$DATA" --split test --out "$out" "${@:3}"
}

# `reader NAME SEED OBJECTIVE OPTION...`: train a reader from the weights of the grid, and evaluate it.
reader() {
    train_model "$HERE/$1-seed$2" pervasive "$PRESET" "$2" "$TUNE_UPDATES" "$TUNE_MINUTES" "${GRID[@]}" \
        --set model.reader=own --init "$HERE/pervasive-seed$2" --objective "$3" \
        --set "training.learning_rate=${READER_RATE:-0.001}" "${@:4}"
    # Also wait-k with the same weights, with which the reader's curve is compared.
    evaluate "$1" "$2" --k "$K" --thresholds "$THRESHOLDS"
}

# `mechanism POLICY READER SEED OPTION...`: train a Transformer with this reader from scratch, with the objective
# named after the policy, and evaluate it.
mechanism() {
    train_model "$HERE/$1-seed$3" transformer "$PRESET" "$3" "$UPDATES" "$MINUTES" --objective "$1" \
        --set model.encoder=unidirectional --set "model.reader=$2" "${@:4}"
    evaluate "$1" "$3" --k "$K" --policy "$1"
    results+=("$HERE/eval/$1-seed$3")
}

# Number of updates after which `itst` and `wait-info` see only the source that their policies would have read.
WHOLE=$((UPDATES ? UPDATES / 4 : 300))

results=()
for seed in $SEEDS; do
    for arch in ${ARCHS:-pervasive transformer}; do
        case "$arch" in
        pervasive)
            options=("${GRID[@]}" --objective wait-k-area ${CELLS:+--set "objective.cells_per_token=$CELLS"})
            ;;
        *) options=(--set model.encoder=unidirectional --objective wait-k-sampled) ;;
        esac
        train_model "$HERE/$arch-seed$seed" "$arch" "$PRESET" "$seed" "$UPDATES" "$MINUTES" "${options[@]}"
        evaluate "$arch" "$seed" --k "$K,inf" --policies "$POLICIES"
        results+=("$HERE/eval/$arch-seed$seed")
        if [ "$arch" = transformer ]; then
            for name in ${MECHANISMS:-mma itst wait-info}; do
                whole=(--set "objective.whole_source_updates=$WHOLE")
                case "$name" in
                mma) mechanism mma monotonic "$seed" ;;
                itst)
                    mechanism itst transport "$seed" "${whole[@]}" --set "objective.threshold_decay=$((WHOLE + 1))" ;;
                wait-info) mechanism wait-info information "$seed" "${whole[@]}" ;;
                esac
            done
        fi
        [ "$arch" = pervasive ] || continue
        for name in ${READERS:-marginal marginal-area marginal-fixed dynamic binary-search divergence}; do
            [ "$name" != none ] || continue
            case "$name" in
            binary-search) objective=(dynamic --set objective.labels=binary-search) ;;
            divergence) objective=(divergence --set objective.alpha=0) ;;
            *) objective=() ;;
            esac
            if [ ${#objective[@]} != 0 ]; then
                reader "$name" "$seed" "${objective[@]}"
                results+=("$HERE/eval/$name-seed$seed")
                continue
            fi
            more=()
            case "$name" in
            marginal-area) more=(--set objective.area=1) ;;
            marginal-fixed) more=(--set objective.alpha=0) ;;
            esac
            for weight in ${LAMBDAS:-0.5 1}; do
                reader "$name-$weight" "$seed" "${name%%-*}" "${more[@]}" \
                    --set "objective.delay_weight=$weight"
                results+=("$HERE/eval/$name-$weight-seed$seed")
            done
        done
    done
done
run python "$PROJECT/recipes/policies_table.py" "${results[@]}" --out "$HERE/table"
# The figure shows the models of the first seed.
read -r first _ <<<"$SEEDS"
curves=()
for folder in "${results[@]}"; do
    case "$folder" in *"-seed$first") curves+=("$folder") ;; esac
done
run nmtgrid analyze latency "${curves[@]}" --corpus "$ON" --out "$HERE/curves.png"
record policies "Reading policies" "$HERE/table.json" "$HERE/curves.png"

# Processor time of the policies, measured in interleaved rounds.
TIMED=("wait-k k=1,3,5,7,9" confidence entropy alignatt edatt "confidence floor=2 cap=8")
if [ "$SMALL" = 1 ]; then ROUNDS="${ROUNDS:-1}"; fi
if [ "${ROUNDS:-7}" = 0 ]; then exit; fi
for arch in ${ARCHS:-pervasive transformer}; do
    run python "$PROJECT/recipes/policies_speed.py" "$HERE/$arch-seed$first" --data "$DATA" \
        "${TIMED[@]/#/--policy=}" --rounds "${ROUNDS:-7}" --out "$HERE/speed-$arch"
    SEEDS="$first" record "policies-speed-$arch" "What reading policies cost, $arch" "$HERE/speed-$arch.json"
done
