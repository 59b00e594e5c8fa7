#!/usr/bin/env bash
# Image captioning, table E.1: decoders with and without attention over regions, each trained with
# each loss; BLEU-1, BLEU-4 and CIDEr on the test split with beam 3 (published
# CIDEr without and with attention: maximum likelihood 93.6 and 101.6, token 97.5 and 102.8, both 99.9
# and 103.8).
#
#   bash recipes/captions.sh               the embedded toy pictures, minutes of one CPU core
#   ON=mscoco bash recipes/captions.sh     MS-COCO with features that you have (below), on a GPU
#   bash recipes/captions.sh --dry-run     only prints the commands
#
# Device hours: the thesis gives none. Estimated from the FLOPs that `train --dry-run` counts, at 20
# TFLOP/s on a GPU: per model 0.1 without and 1 with attention; with three sampled captions up to four times that.
# DECODERS="lstm top-down"; LOSSES="mle", rows of the table by their names in losses.sh; LOSSES=all
# trains every row.
# SEEDS="1" (or SEED=1): several give mean and deviation. UPDATES=N or MINUTES of processor time per
# model (default: the preset's limit: toy two to three minutes, mscoco 120,000 updates), BEAM=3,
# SPLIT=test, RUNS=runs (output folder; table and figure of the gains in CIDEr:
# captions-$ON/table-E.1.{md,json,png}), SETS="--set ..." for every model. SMALL=1: 300 toy pictures, 40
# updates, three losses. Existing results are kept.
# CONFIG=FILE: a file for `nmtgrid train --config`, applied after the preset. LABEL=word: suffix of the record's name.
#
# MS-COCO: NMTGRID_DATA=DIR with DIR/mscoco/dataset_coco.json, Karpathy's splits and captions
# (caption_datasets.zip of https://cs.stanford.edu/people/karpathy/deepimagesent/), and features in
# DIR/mscoco/features*.safetensors: a tensor [regions, features] for each picture, named by its
# COCO id or file name. From the public bottom-up features (trainval_36.zip of
# https://github.com/peteanderson80/bottom-up-attention, 36 regions of 2,048 features) in Python:
#
#   import base64, csv, itertools, sys, numpy
#   from safetensors.numpy import save_file
#   csv.field_size_limit(sys.maxsize)
#   rows = csv.reader(open("trainval_resnet101_faster_rcnn_genome_36.tsv"), delimiter="\t")
#   for part in itertools.count():
#       features = {}
#       for row in itertools.islice(rows, 10_000):
#           values = numpy.frombuffer(base64.b64decode(row[5]), "float32").reshape(int(row[3]), -1)
#           features[row[0]] = values.astype("float16")
#       if not features: break
#       save_file(features, f"features{part:02}.safetensors")
#
# For the ResNet baseline of the table, save the last convolutional layer of a ResNet instead, pooled
# to 10 x 10: [100, 2048] for each picture.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$PROJECT/recipes/losses.sh"
no_arguments "$@"

if [ "$SMALL" = 1 ]; then
    LOSSES="${LOSSES:-mle tok both-cider-refs}" PICTURES="${PICTURES:-300}"
fi
ON="${ON:-toy}"
UPDATES="${UPDATES:-0}"
SEEDS="${SEEDS:-${SEED:-1}}"
BEAM="${BEAM:-3}"
SPLIT="${SPLIT:-test}"
DECODERS="${DECODERS:-lstm top-down}"
LOSSES="${LOSSES:-mle}"
if [ "$LOSSES" = all ]; then
    LOSSES="mle mle-entropy tok tok-freq"
    for level in seq-hamming lazy-hamming seq-cider lazy-cider both-hamming both-cider; do
        for choices in all batch refs; do LOSSES+=" $level-$choices"; done
    done
fi
check_losses
choices DECODERS lstm top-down
PICTURES="${PICTURES:-4000}"
MINUTES="${MINUTES:-0}"
HERE="$RUNS/captions-$ON"
DATA="$HERE/data"
read -r -a SETS <<<"${SETS:-}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
case "$ON" in
toy) PRESET=toy-pictures ;;
mscoco) PRESET=mscoco ;;
*) fail "there is no corpus $ON here: toy mscoco" ;;
esac

# Make the dataset of toy pictures, unless it exists.
toy_pictures() { units "$DATA" --toy-pictures "$PICTURES" -- --words --min-count 5; }

# Make the dataset of MS-COCO, unless it exists; its vocabulary has the words that occur at least five times.
mscoco() {
    local file features=()
    must_own mscoco "mscoco/dataset_coco.json and mscoco/features*.safetensors; the head of $0 explains how \
to make them"
    for file in "$TEXT"/features*.safetensors; do features+=(--features "$file"); done
    units "$DATA" --captions "$TEXT/dataset_coco.json" "${features[@]}" -- --words --min-count 5
}

environment
case "$ON" in toy) toy_pictures ;; mscoco) mscoco ;; esac
RESULTS=()
for loss in $LOSSES; do
    for decoder in $DECODERS; do
        for seed in $SEEDS; do
            learn "$HERE/$decoder-$loss-seed$seed" "caption-$decoder" "$PRESET" "$loss" "$seed"
            RESULTS+=("$loss,$decoder=$SCORES")
        done
    done
done
run python "$PROJECT/recipes/losses_table.py" "${RESULTS[@]}" --data "$DATA" \
    --out "$HERE/table-E.1"
record table-E.1 "Captions, test split" "$HERE/table-E.1.json"
