# How model-0.1.0 and model-0.1.0-transformer were made, by the checkout of 0.1.0 in PYTHONPATH.
set -euo pipefail
nmtgrid() { python -m nmtgrid "$@"; }
nmtgrid preprocess --toy 1500 --out data
nmtgrid bpe learn data --merges 60 --separate
common=(--seed 1 --preset toy --precision fp32 --device cpu --max-updates 400)
for setting in batches.max_tokens=1200 training.learning_rate=0.02 training.log_updates=50 \
    training.validate_sentences=20 training.warmup_updates=20 training.validate_epochs=0 \
    search.max_length_a=5 search.max_length_b=1.2 model.dropout=0 model.embedding_dropout=0 \
    training.average=0; do common+=(--set "$setting"); done
nmtgrid train data --arch pervasive "${common[@]}" --set model.depth=1 --set model.size=12 \
    --set model.feed_forward_size=16 --set model.target_kernel=3 --set model.source_kernel=3 \
    --set model.output_dropout=0 --out model-0.1.0
nmtgrid train data --arch transformer "${common[@]}" --set model.encoder_depth=1 \
    --set model.decoder_depth=3 --set model.norm=pre --set model.exits=tied --set model.size=16 \
    --set model.feed_forward_size=32 --set model.heads=2 --set model.encoder=unidirectional \
    --objective exits-aligned --out model-0.1.0-transformer
nmtgrid adaptive-tune model-0.1.0-transformer --data data --samples 100 --finalists 1 --sentences 30 \
    --only points --name kept
rm -r model-0.1.0-transformer/checkpoints model-0.1.0-transformer/last.safetensors
# expected.txt: lines 7, 143, 126, 27 and 138 of data/raw/test.qa, a tab, `decode --beam 1` of them.
