"""Export of a Transformer as a CTranslate2 model; the only module that imports that package.

CTranslate2 is a C++ engine that decodes encoder-decoder Transformers quickly, in 8 bits too. Its
beam search scores like ours (mu = 0) when it is called with `return_end_token=True`, which makes
it count the end symbol in the length.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.atomic import write_text
from nmtgrid.data.directory import check_replaceable, new_folder
from nmtgrid.layers.embedding import WAVES, Embedding
from nmtgrid.layers.transformer.blocks import AddNorm, DecoderBlock, EncoderBlock, FeedForward
from nmtgrid.models.api import TranslationModel
from nmtgrid.models.directory import LoadedModel
from nmtgrid.models.transformer.model import Transformer
from nmtgrid.text.vocabulary import BEGIN, END, PAD, SPECIALS, UNKNOWN

# Number of exported positions: the longest source or translation.
POSITIONS = 2048
# Bias of symbols that no search may write; it fits into fp16 too.
NEVER = -1e4


def check(model: TranslationModel) -> Transformer:
    """Return `model` if CTranslate2 supports it. Raises ConfigError with the reason otherwise."""
    advice = "A `transformer` without `model.transparent` can be exported."
    if not isinstance(model, Transformer):
        raise ConfigError(
            f"`{model.architecture}` cannot be exported: CTranslate2 supports encoder-decoder "
            "Transformers only.",
            advice,
        )
    if model.mixtures is not None:
        raise ConfigError(
            "Transparent attention cannot be exported: in CTranslate2 all decoder blocks attend to "
            "the last encoder block.",
            advice,
        )
    if model.traits.readiness != "none":
        raise ConfigError(
            f"A Transformer with `model.reader={model.traits.readiness}` cannot be exported: "
            "CTranslate2 does not have its reading mechanism.",
            "Decode it with nmtgrid itself.",
        )
    config = model.config
    if config.encoder != "bidirectional" or config.source_marker != "end":
        raise ConfigError(
            f"A Transformer with `model.encoder={config.encoder}` and "
            f"`model.source_marker={config.source_marker}` cannot be exported: CTranslate2's "
            "encoder is bidirectional, and its source ends with the end symbol.",
            "Decode it with nmtgrid itself.",
        )
    return model


def export(
    loaded: LoadedModel,
    folder: Path,
    search: Mapping[str, Any],
    quantization: str = "float32",
) -> list[str]:
    """Write `loaded` and its text pipeline into the new folder; return the names of its files.

    `search` has the search settings that the README uses; `quantization` is one of CTranslate2's
    names, such as "float32" or "int8".

    Raises ConfigError if CTranslate2 does not support the model or is not installed, DataError if
    the folder exists, StorageError if it cannot be created.
    """
    model = check(loaded.model)
    specs = _package()
    check_replaceable(folder, overwrite=None)
    with new_folder(folder, task="nmtgrid export") as building, torch.no_grad():
        spec = _specification(specs, model)
        pipeline = loaded.pipeline
        spec.register_source_vocabulary(list(pipeline.source_vocabulary.types))
        spec.register_target_vocabulary(list(pipeline.target_vocabulary.types))
        spec.validate()
        spec.optimize(quantization=quantization)
        spec.save(str(building))
        pipeline.save(building)
        sizes = f"{search['max_length_b']:g} * (1 + max(map(len, sources)))"
        dropped = [
            f"`search.{name}={search[name]:g}`"
            for name in ("coverage_penalty", "length_offset")
            if search[name]
        ]
        readme = _README.format(
            folder=folder,
            beam=search["beam"],
            penalty=search["length_penalty"],
            longest=POSITIONS - 1,
            limit=f"min({POSITIONS}, int({search['max_length_a']:g} + {sizes}))",
            shortest=search["min_length"],
            dropped=f"\nCTranslate2 has no {' and no '.join(dropped)}, which nmtgrid uses for this "
            "model, so its beams differ.\n"
            if dropped
            else "",
        )
        write_text(building / "README.md", readme)
        return sorted(path.name for path in building.iterdir())


_README = """\
A translation model for CTranslate2, together with its text pipeline for nmtgrid.

```python
import ctranslate2
from nmtgrid.text.pipeline import Pipeline

folder = "{folder}"
pipeline, translator = Pipeline.load(folder), ctranslate2.Translator(folder)
lines = ["..."]
# Through ids, so that words that are not in the vocabulary, or look like a special symbol, are
# `<unk>`.
sources = [pipeline.source_vocabulary.decode(pipeline.encode_source(line)) for line in lines]
results = translator.translate_batch(
    sources,
    beam_size={beam}, length_penalty={penalty}, return_end_token=True,
    min_decoding_length={shortest},
    max_input_length={longest}, max_decoding_length={limit},
)
for result in results:
    units = [unit for unit in result.hypotheses[0] if unit != "</s>"]
    print(pipeline.restore(pipeline.target_vocabulary.encode(units)))
```
{dropped}
`return_end_token=True` counts the end symbol in the length, as nmtgrid does: the length penalty
is then that of nmtgrid with `search.length_offset=0`, and scores are those with
`search.renormalize=true`: `<pad>` and `<s>` are never written and have no probability. A beam
stops as soon as it has `beam_size` finished translations, that of nmtgrid when no unfinished one
is ahead of them; with `length_penalty=0` both return the same translation. Lines of more than
{longest} units are cut, while `nmtgrid decode` splits them into sentences; the length limit is
that of the longest line of the batch.
"""


def _package() -> Any:
    try:
        from ctranslate2 import specs
    except ImportError as fault:
        raise ConfigError(
            "The package `ctranslate2` is not installed.", "`pip install ctranslate2`."
        ) from fault
    return specs


def _specification(specs: Any, model: Transformer) -> Any:
    config = model.config
    depths = config.encoder_depth, config.decoder_depth
    spec = specs.TransformerSpec.from_config(
        depths, config.heads, pre_norm=config.norm == "pre",
        activation=specs.common_spec.Activation[config.activation.upper()],
    )  # fmt: skip
    settings = spec.config
    first = SPECIALS[END] if config.first_symbol == "end" else SPECIALS[BEGIN]
    settings.unk_token, settings.bos_token = SPECIALS[UNKNOWN], SPECIALS[BEGIN]
    settings.eos_token, settings.decoder_start_token = SPECIALS[END], first
    # Our sources end with `</s>` and have no `<s>`.
    settings.add_source_bos, settings.add_source_eos = False, True
    # All norms of a model have one epsilon.
    settings.layer_norm_epsilon = next(
        part.eps for part in model.modules() if isinstance(part, nn.LayerNorm)
    )
    encoder, decoder = spec.encoder, spec.decoder
    _embed(encoder, encoder.embeddings[0], model.source_embedding)
    _embed(decoder, decoder.embeddings, model.target_embedding)
    if config.norm == "pre":
        _norm(encoder.layer_norm, model.encoder_norm)
        _norm(decoder.layer_norm, model.decoder_norm)
    for layer, block in zip(encoder.layer, model.encoder, strict=True):
        assert isinstance(block, EncoderBlock)
        _self_attention(layer.self_attention, block.attention, block.add_attention)
        _feed_forward(layer.ffn, block.feed_forward, block.add_feed_forward)
    # In our model all blocks' projections to keys and values of the source are fused: [2D, D] each.
    fused = model.source_projection
    weights = _tensor(fused.weight).chunk(config.decoder_depth)
    biases = _tensor(fused.bias).chunk(config.decoder_depth)
    sources = zip(weights, biases, strict=True)
    for layer, block, (weight, bias) in zip(decoder.layer, model.decoder, sources, strict=True):
        assert isinstance(block, DecoderBlock)
        _self_attention(layer.self_attention, block.self_attention, block.add_self)
        _norm(layer.attention.layer_norm, block.add_source.norm)
        query, keys, output = layer.attention.linear
        _linear(query, block.source_attention.query_map)
        keys.weight, keys.bias = weight, bias
        _linear(output, block.source_attention.output_map)
        _feed_forward(layer.ffn, block.feed_forward, block.add_feed_forward)
    # `<pad>` and `<s>` get a bias so low that they are never written: their probability goes to the
    # other symbols, so scores rise very slightly.
    classifier, projection = model.classifier(), decoder.projection
    zeros = classifier.weight.new_zeros(len(classifier.weight))
    output_bias = zeros if classifier.bias is None else classifier.bias.clone()
    output_bias[[PAD, BEGIN]] = NEVER
    projection.weight, projection.bias = _tensor(classifier.weight), _tensor(output_bias)
    return spec


def _embed(side: Any, spec: Any, embedding: Embedding) -> None:
    spec.weight = _tensor(embedding.weight)
    side.scale_embeddings = embedding.scale != 1.0
    learned = embedding.position_weight
    if learned is not None:
        # The last learned vector serves all positions beyond it.
        vectors = learned[torch.arange(POSITIONS).clamp_(max=len(learned) - 1)]
    elif embedding.positions == "none":
        vectors = embedding.weight.new_zeros(POSITIONS, embedding.size)
    else:
        vectors = WAVES[embedding.positions](0, POSITIONS, embedding.weight)
    side.position_encodings.encodings = _tensor(vectors)


def _self_attention(spec: Any, attention: Any, around: AddNorm) -> None:
    _norm(spec.layer_norm, around.norm)
    inner, output = spec.linear
    _linear(inner, attention.input_map)
    _linear(output, attention.output_map)


def _feed_forward(spec: Any, network: FeedForward, around: AddNorm) -> None:
    _norm(spec.layer_norm, around.norm)
    _linear(spec.linear_0, network.widen)
    _linear(spec.linear_1, network.narrow)


def _linear(spec: Any, linear: nn.Linear) -> None:
    spec.weight, spec.bias = _tensor(linear.weight), _tensor(linear.bias)


def _norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm)
    spec.gamma, spec.beta = _tensor(norm.weight), _tensor(norm.bias)


def _tensor(tensor: Tensor) -> Tensor:
    return tensor.detach().float().cpu().contiguous()
