"""Options and settings of other toolkits (`--lr`, `--beam-size`) and their names here.

The names are those of fairseq, Sockeye, Marian, OpenNMT, Joey NMT and Hugging Face.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def _by_name(table: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the keys of `table` by each of the space-separated names in its values."""
    by_name: dict[str, tuple[str, ...]] = {}
    for ours, names in table.items():
        for name in names.split():
            by_name[name] = (*by_name.get(name, ()), ours)
    return by_name


SETTINGS = _by_name({
    "training.learning_rate": "lr base-lr learn-rate",
    "training.warmup_updates": "warmup warmup-steps lr-warmup learning-rate-warmup",
    "training.schedule": "lr-scheduler scheduler scheduling lr-decay lr-schedule decay-method "
    "lr-scheduler-type learning-rate-scheduler-type",
    "training.optimiser": "optimizer optim",
    "training.momentum": "sgd-momentum",
    "training.max_epochs": "epochs epoch max-epoch num-epochs n-epochs num-train-epochs",
    "training.max_updates": "steps max-update max-steps train-steps updates num-updates",
    "training.clip_norm": "clip clip-gradient gradient-clip max-grad-norm clip-grad-norm "
    "gradient-clipping-threshold clip-threshold",
    "training.weight_decay": "wd decay l2",
    "training.beta1": "adam-betas optimizer-params adam-beta1 optimizer-betas",
    "training.beta2": "adam-betas optimizer-params adam-beta2 optimizer-betas",
    "training.epsilon": "adam-eps adam-epsilon optimizer-eps",
    "training.patience": "early-stopping early-stop early-stopping-patience "
    "max-num-checkpoint-not-improved",
    "training.validate_updates": "validate-interval-updates valid-freq valid-steps eval-steps "
    "validation-freq eval-every checkpoint-interval",
    "training.validate_epochs": "validate-interval eval-epochs",
    "training.save_minutes": "save-interval save-interval-updates save-freq save-steps "
    "save-checkpoint-steps",
    "training.log_updates": "log-interval disp-freq logging-freq logging-steps report-every "
    "log-every",
    "training.ema_decay": "ema exponential-smoothing moving-average-decay",
    "training.r_drop": "reg-alpha rdrop",
    "batches.max_tokens": "batch-size bsz batch max-sentences mini-batch "
    "mini-batch-words per-device-train-batch-size",
    "batches.accumulation": "update-freq update-interval accum-count accum-steps optimizer-delay "
    "gradient-accumulation-steps batch-multiplier",
    "batches.max_length": "max-source-positions max-target-positions max-seq-len src-seq-length "
    "tgt-seq-length max-sent-length max-seq-length",
    "batches.source_bpe_dropout": "bpe-dropout",
    "batches.target_bpe_dropout": "bpe-dropout",
    "model.dropout": "dropout-rate transformer-dropout p-dropout",
    "model.attention_dropout": "transformer-dropout-attention",
    "model.depth": "layers num-layers n-layers nlayers",
    "model.encoder_depth": "layers num-layers n-layers nlayers encoder-layers enc-layers "
    "enc-depth num-encoder-layers",
    "model.decoder_depth": "layers num-layers n-layers nlayers decoder-layers dec-layers "
    "dec-depth num-decoder-layers",
    "model.size": "hidden-size hidden-dim hidden rnn-size dim-rnn d-model model-dim embed-dim "
    "encoder-embed-dim decoder-embed-dim encoder-hidden-size transformer-model-size",
    "model.embedding_size": "embed-dim dim-emb emb-size embedding-dim word-vec-size",
    "model.feed_forward_size": "ffn-dim ff-size encoder-ffn-embed-dim decoder-ffn-embed-dim "
    "transformer-ff transformer-dim-ffn transformer-feed-forward-num-hidden",
    "model.heads": "num-heads n-heads nhead encoder-attention-heads decoder-attention-heads "
    "transformer-heads transformer-attention-heads",
    "model.tie": "share-all-embeddings share-decoder-input-output-embed tied-embeddings "
    "tied-embeddings-all share-embeddings weight-tying-type tied-softmax tied-embeddings-src",
    "objective.label_smoothing": "smoothing label-smoothing-factor ls",
})  # fmt: skip
"""Our settings (some exist only in some architectures) by their names in other toolkits."""

_EVERYWHERE = {
    "`--device`": "gpu gpus gpu-id cuda cpu use-gpu use-cuda no-cuda devices device-ids",
    "`--precision bf16`": "fp16 half amp bf16 mixed-precision memory-efficient-fp16 dtype",
    "`--import FILE`": "user-dir user-module plugin",
}
_PATHS = {
    "the argument MODEL": "path model models checkpoint model-dir model-path checkpoint-path",
}
OPTIONS = {
    "preprocess": _by_name({
        "`--train`": "trainpref train-prefix train-set train-sets",
        "`--valid`": "validpref valid-prefix valid-set valid-sets dev",
        "`--test`": "testpref test-prefix",
        "`--out`": "destdir dest-dir output output-dir save-data",
        "`--source-lang`": "src source src-lang",
        "`--target-lang`": "tgt target trg tgt-lang",
        "`--lowercase`": "lower lc lowercased do-lower-case",
        "`--max-words`": "max-len max-length max-seq-length",
        "`bpe learn DATA --vocab-source FILE`": "srcdict src-vocab",
        "`bpe learn DATA --vocab-target FILE`": "tgtdict tgt-vocab",
        "`bpe learn DATA --joint-vocabulary`": "joined-dictionary share-vocab shared-vocab",
        "`bpe learn DATA --min-count N`": "thresholdsrc thresholdtgt word-min-count",
        "`bpe learn DATA --merges N`": "bpe bpe-codes num-operations vocab-size",
    }),
    "bpe": _by_name({
        "`--merges`": "num-operations symbols operations vocab-size num-merges",
        "`--codes`": "bpe-codes bpe-merges codes-file",
        "`--min-count`": "vocabulary-threshold thresholdsrc thresholdtgt word-min-count",
        "`--joint-vocabulary`": "joined-dictionary share-vocab shared-vocab",
        "`--vocab-source`": "srcdict src-vocab",
        "`--vocab-target`": "tgtdict tgt-vocab",
        "`--out`": "output",
        "`--input`": "source file",
    }),
    "train": _by_name({
        **_EVERYWHERE,
        "`--out`": "save-dir save-model model-dir output output-dir checkpoint-dir model save "
        "save-path",
        "`--arch`": "architecture model-type encoder decoder type",
        "`--objective`": "criterion loss",
        "`--max-epochs`": "epochs epoch max-epoch num-epochs n-epochs after-epochs max-num-epochs "
        "num-train-epochs",
        "`--max-updates`": "steps max-update max-steps train-steps after-batches updates "
        "num-updates max-num-updates",
        "`--max-minutes`": "stop-time-hours max-time max-hours max-seconds",
        "`--average`": "avg num-epoch-checkpoints num-update-checkpoints keep-last-epochs",
        "`--init`": "restore-file pretrained pretrained-model finetune-from-model train-from load "
        "load-model params",
        "`--resume`": "continue restart resume-from resume-from-checkpoint",
        "`--tensorboard`": "tensorboard-logdir tensorboard-dir log-dir logdir tensorboard-log",
        "`torchrun`, see docs/several-processes.md": "world-size distributed-world-size "
        "num-gpus num-nodes local-rank nproc-per-node",
        "`preprocess`": "src tgt train-sets source-lang target-lang",
        "the argument DATA": "data data-dir data-bin dataset",
        "`--set NAME=VALUE`": "arg override opt",
    }),
    "decode": _by_name({
        **_EVERYWHERE,
        "`--beam`": "beam-size beam-width num-beams beams",
        "`--length-penalty`": "lenpen length-norm normalize alpha beam-alpha lp-alpha "
        "length-penalty-alpha beam-size-alpha",
        "`--coverage-penalty`": "beta coverage covpen coverage-penalty-beta",
        "`--nbest`": "n-best num-return-sequences nbest-size",
        "`--split`": "gen-subset subset",
        "`--batch-tokens`": "batch-size bsz batch max-tokens max-sentences mini-batch "
        "mini-batch-words",
        "`--set max_length_a=N`": "max-len-a max-len max-length max-output-length max-new-tokens",
        "`--set max_length_b=X`": "max-len-b max-len max-length max-length-factor "
        "max-output-length-num-stds max-decoding-ratio",
        "`--set min_length=N`": "min-len min-len-b",
        "`--sample`": "sampling random-sampling output-sampling do-sample",
        "`--top-k`": "sampling-topk random-sampling-topk topk",
        "`--top-p`": "sampling-topp random-sampling-topp topp",
        "`--replace-unknown`": "replace-unk unk-replace",
        "`--prefix`": "prefix-size tgt-prefix target-prefix",
        "`--alignments`": "print-alignment alignment report-align return-alignment",
        "`--forced`": "score-reference force-decoding force-decode scoring score",
        "`--out`": "output output-file tgt results-path translations",
        "`--stream --k N`": "waitk wait-k test-waitk wait",
        "the argument INPUT": "input src source file input-file",
        **_PATHS,
        "not needed: the text is always joined and detokenised": "remove-bpe post-process "
        "detokenize bpe tokenizer sentencepiece",
    }),
    "online-eval": _by_name({
        **_EVERYWHERE,
        "`--k`": "waitk wait-k test-waitk ks",
        "`--beam`": "beam-size beam-width num-beams",
        "`--split`": "gen-subset subset",
        "`--batch-tokens`": "batch-size bsz max-tokens max-sentences",
        "`--out`": "output output-dir",
        "`--unit`": "eval-latency-unit latency-unit",
        "`--simuleval`": "log-dir",
        **_PATHS,
    }),
}  # fmt: skip
"""Our options, by command and by their names in other toolkits."""


def option_hint(command: str, option: str) -> str:
    """Return a hint at our name of an unknown `option` (`--lr`) of a command, or ""."""
    name = option.lstrip("-").replace("_", "-").lower()
    if options := OPTIONS.get(command, {}).get(name):
        return f"Here it is {' or '.join(options)}."
    if command != "train":
        return ""
    last = name.replace("-", "_")
    ours = dict.fromkeys(each for settings in SETTINGS.values() for each in settings)
    settings = SETTINGS.get(name, tuple(each for each in ours if each.endswith(f".{last}")))
    if not settings:
        return ""
    return (
        f"Here it is a setting: {' or '.join(f'`--set {each}=...`' for each in settings)}. "
        "`nmtgrid train --list --arch NAME` shows those of an architecture."
    )


def setting_hint(setting: str, known: Iterable[str]) -> str:
    """Return a hint at the `known` settings that other toolkits call `setting`, or "".

    Only the last part of its dotted name counts.
    """
    name = setting.rpartition(".")[2].replace("_", "-").lower()
    known = set(known)
    settings = [f"`{each}`" for each in SETTINGS.get(name, ()) if each in known]
    return f"Did you mean {' or '.join(settings)}?" if settings else ""
