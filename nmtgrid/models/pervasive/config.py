"""Configuration and presets of Pervasive Attention (chapter 3; online 4.3.2, 4.4.2).

`PervasiveConfig` has the options of tables 3.4 and 3.5; a preset is named after the dataset and,
for the rows of these tables, after the change.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Annotated, Any, Literal

from nmtgrid.base.config import BELOW_1, FROM_1, Range
from nmtgrid.layers.embedding import Positions
from nmtgrid.layers.grid.aggregation import Aggregation
from nmtgrid.layers.grid.networks import Accumulate, AccumulateScale, Skip
from nmtgrid.models.config_checks import DEPTH, KERNEL, LARGEST_DEPTH, FirstSymbol, ModelConfig
from nmtgrid.models.presets import (
    HALF_HOUR,
    PUBLISHED,
    Preset,
    batches,
    dropout_rates,
    model,
    search,
    toy,
    training,
    two_hours,
)

_READER_DEPTH = Range(
    f"from 1 to {LARGEST_DEPTH:,}, or 0 for the depth of the translation network",
    lambda value: 0 <= value <= LARGEST_DEPTH,
)


@dataclasses.dataclass(frozen=True)
class PervasiveConfig(ModelConfig):
    """Configuration of Pervasive Attention; the defaults are the base model of the thesis.

    The `printed` preset follows the text, all others the published checkpoint.
    """

    only_with = types.MappingProxyType(
        dict.fromkeys(("accumulate", "accumulate_scale"), ("skip", ("residual-cumulative",)))
        | dict.fromkeys(("growth", "bottleneck", "dense_norm"), ("skip", ("dense",)))
        | {
            "attention_activation": ("aggregation", ("attention", "max-attention")),
            "reader_depth": ("reader", ("own",)),
            "reader_detached": ("reader", ("shared",)),
        }
    )

    depth: Annotated[int, DEPTH] = 14
    """N, the number of blocks of the network over the grid, with two layers each."""
    size: Annotated[int, FROM_1] = 256
    """d, features per cell."""
    embedding_size: Annotated[int | None, FROM_1] = None
    """Size of an embedding; none: `size`."""
    feed_forward_size: Annotated[int, FROM_1] = 1024
    """d_FF, size of the hidden layer of a block."""
    target_kernel: Annotated[int, KERNEL] = 11
    """Height of a filter along the target (odd), including the rows that the causal mask
    removes."""
    source_kernel: Annotated[int, KERNEL] = 11
    """Width of a filter along the source (odd)."""
    source_causal: bool = False
    """Whether filters are also causal along the source, as simultaneous translation requires
    (section 4.3.2)."""
    online_features: Literal["cell", "row", "grid"] = "row"
    """Features of a prediction (fig. 4.4): `row`, the aggregated cells of the current row up to the
    last word read; `cell`, the last of these cells without aggregation; `grid`, the aggregated
    cells of the current and all earlier rows."""
    reader: Literal["none", "own", "shared"] = "none"
    """Network that estimates the probability of a READ: `own`, a second network over its own grid,
    as in the thesis (section 4.4.2); `shared`, a classifier on the cells of the translation
    network, which costs little."""
    reader_depth: Annotated[int, _READER_DEPTH] = 0
    """Blocks of the network of `reader=own`; 0: as many as the translation network."""
    reader_detached: bool = False
    """With `reader=shared`: whether the reader's gradient stops before the translation network."""
    skip: Skip = "residual-cumulative"
    """Skip connections between layers (section 3.2.4, table 3.4)."""
    aggregation: Aggregation = "attention"
    """How a row of cells is reduced to one vector (section 3.2.5, table 3.5)."""
    attention_activation: Literal["none", "tanh"] = "none"
    """Activation between the two linear maps that score cells for attention: none, as printed, or
    tanh."""
    accumulate: Accumulate = "blocks"
    """Terms of the sum of `residual-cumulative`: the outputs of all 2N + 1 layers, as printed, or
    one per block."""
    accumulate_scale: AccumulateScale = "count"
    """Divisor of that sum: the square root of its number of terms, as printed, or the number
    itself."""
    growth: Annotated[int, FROM_1] = 48
    """g, features that each layer adds (`skip=dense`)."""
    bottleneck: Annotated[int, FROM_1] = 4
    """Output size of a layer's 1 x 1 convolution, in multiples of g (`skip=dense`)."""
    dense_norm: bool = True
    """Whether a layer normalises its input (`skip=dense`)."""
    positions: Positions = "sinusoidal"
    """Position encodings added to the embeddings of both sides: none, sinusoidal as in Eq. (2.39),
    with fairseq's or Marian's order of sines and cosines, or learned."""
    scale_embeddings: bool = True
    """Whether embeddings are multiplied by the square root of their size."""
    grid_bias: bool = True
    """Whether a bias is added to the input cells of the grid."""
    output_map: bool = False
    """Whether there is a linear map before the classifier even if the sizes do not require one."""
    output_bias: bool = True
    """Whether the classifier has a bias."""
    tie: Literal["none", "target", "all"] = "target"
    """Shared weight matrices: `none`; `target`, the target embeddings and the classifier; `all`,
    the source embeddings as well, which needs a joint vocabulary."""
    first_symbol: FirstSymbol = "begin"
    """First input of the decoder: `begin` is `<s>`, `end` is `</s>`, as in fairseq."""
    dropout: Annotated[float, BELOW_1] = 0.2
    """Dropout on the output of each layer, before the skip connection."""
    embedding_dropout: Annotated[float, BELOW_1] = 0.2
    """Dropout on embeddings; all cells of a row or column of the grid share one mask."""
    output_dropout: Annotated[float, BELOW_1] = 0.2
    """Dropout on the input of the classifier."""
    checkpoint_activations: bool = False
    """Whether activations are recomputed in the backward pass: less memory, more time."""

    @property
    def embedded(self) -> int:
        """Features of an embedding."""
        return self.embedding_size or self.size

    @property
    def classified(self) -> int:
        """Features that the classifier reads."""
        return self.size if self.tie == "none" else self.embedded

    def faults(self) -> list[str]:
        faults = super().faults()
        if self.reader != "none" and not self.source_causal:
            faults.append(
                f"`model.reader={self.reader}` needs `model.source_causal=true`, because a reader "
                "must not see unread source tokens."
            )
        return faults


def cell_flops(config: PervasiveConfig) -> float:
    """Return the FLOPs of the forward pass in one cell of the grid, aggregation included."""
    # Only live taps count: the masked half of a filter is never multiplied.
    size, taps = config.size, (config.target_kernel // 2 + 1) * config.source_kernel
    if config.source_causal:
        taps = (config.target_kernel // 2 + 1) * (config.source_kernel // 2 + 1)
    aggregation = {"max": 0, "average": 2, "attention": 2 * size + 4, "gated-max": 4 * size}
    pooled = aggregation.get(config.aggregation, 2 * size + 4) * size
    if config.skip != "dense":
        block = 2 * size * size + 2 * taps * size + 4 * size * config.feed_forward_size
        return float(config.depth * block + pooled)
    # Dense layer n reads the d + n g features of all layers before it.
    growth, middle = config.growth, config.bottleneck * config.growth
    total = 0
    for layer in range(config.depth):
        total += 2 * (size + layer * growth) * middle + 2 * middle * growth + 2 * taps * growth
    grown_size = size + config.depth * growth
    return float(total + 2 * config.feed_forward_size * (grown_size + size) + pooled)


# Training of the published checkpoint, including what the text does not mention.
_PUBLISHED_TRAINING = PUBLISHED | batches(max_tokens=4200, max_length=100)
# The checkpoint projects the pooled vector although the sizes would agree without it.
_IWSLT14 = _PUBLISHED_TRAINING | model(output_map=True)
_IWSLT14_TYPES = (8848, 6632)

# As printed: Eq. (3.1) without positions, scaling or bias, every layer's output accumulated, pairs
# of up to 175 tokens. Clipping and weight decay, which the text omits, are the checkpoint's.
_PRINTED = (
    _PUBLISHED_TRAINING
    | model(positions="none", scale_embeddings=False, grid_bias=False, output_bias=False)
    | model(accumulate="layers", accumulate_scale="square-root")
    | batches(max_length=175)
)

_QUICK = model(accumulate_scale="square-root", output_map=True)
# An hour of two CPU cores, with small kernels; optimiser and rate from `recipes/tune.sh` (the
# record tune-multi30k-hour-pervasive.json), aggregation from table-3.5-multi30k.json.
_HOUR = (
    HALF_HOUR
    | model(depth=8, size=128, feed_forward_size=256, target_kernel=5, source_kernel=5)
    | _QUICK
    | dropout_rates(0.2)
    | training(optimiser="muon", learning_rate=0.004)
    | training(clock="wall", max_minutes=59.0, validate_minutes=8.0)
    | batches(max_cells=24000)
)
# Half an hour of one core, as in every architecture's `multi30k`; the depth is from
# `recipes/tune.sh` (the record tune-half-hour-depths.json).
_SMALL = (
    _HOUR
    | model(depth=3, target_kernel=7, source_kernel=7)
    | dropout_rates(0.15)
    | training(clock="processor", max_minutes=30.0, validate_minutes=6.0)
)


def _table(name: str, description: str, parameters: float, **values: Any) -> Preset:
    """Return the preset of a row of table 3.4 or 3.5: pairs of at most 75 tokens."""
    settings = _IWSLT14 | batches(max_length=75) | model(**values)
    return Preset(f"iwslt14-de-en-{name}", description, settings, _IWSLT14_TYPES, parameters)


PERVASIVE = (
    toy(
        model(depth=3, size=96, feed_forward_size=192, target_kernel=7, source_kernel=7)
        | _QUICK
        | model(aggregation="gated-max")
        | dropout_rates(0.05),
        0.004,
        650,
        max_cells=20000,
    ),
    Preset("multi30k", "Multi30k De-En, half an hour of one core: N=3, d=128, 7x7", _SMALL),
    Preset("multi30k-hour", "Multi30k De-En, an hour on two CPU cores: N=8, d=128, 5x5", _HOUR),
    two_hours(_SMALL | model(depth=5) | dropout_rates(0.1)),
    Preset(
        "iwslt14-de-en",
        "table 3.7: N=14, 11x11, residual-cumulative, attention, as in the published checkpoint",
        _IWSLT14,
        _IWSLT14_TYPES,
        12.9e6,
    ),
    Preset(
        "iwslt14-de-en-printed",
        "table 3.7 exactly as printed: no positions, no scaling, every layer accumulated",
        _PRINTED,
        _IWSLT14_TYPES,
        12.9e6,
    ),
    _table("dense", "table 3.4", 7.1e6, skip="dense", aggregation="max"),
    _table(
        "dense-without-norm", "table 3.4", 7.1e6, skip="dense", aggregation="max", dense_norm=False
    ),
    _table("residual", "table 3.4", 12.8e6, skip="residual", aggregation="max"),
    _table("residual-norm", "table 3.4", 12.8e6, skip="residual-norm", aggregation="max"),
    _table("residual-gated", "table 3.4", 12.8e6, skip="residual-gated", aggregation="max"),
    _table("max", "tables 3.4 (residual-cumulative) and 3.5", 12.8e6, aggregation="max"),
    _table("average", "table 3.5", 12.8e6, aggregation="average"),
    _table("gated-max", "table 3.5", 12.9e6, aggregation="gated-max"),
    _table("attention", "table 3.5", 12.9e6, aggregation="attention"),
    Preset(
        "iwslt15-en-vi",
        "table 3.8: N=14, 11x11, residual-cumulative, attention, on words",
        _PUBLISHED_TRAINING,
        (17192, 7710),
        15.2e6,
    ),
    Preset(
        "wmt16-en-ro",
        "table 3.8: joint vocabulary of 35K, all embeddings shared",
        _PUBLISHED_TRAINING
        | model(tie="all")
        | training(learning_rate=0.001)
        | batches(max_tokens=7250, accumulation=4)
        | search(length_penalty=0.5),
        (35000, 35000),
        17.9e6,
    ),
    Preset(
        "wmt15-de-en",
        "table 3.8: d=512, d_FF=2048, N=16, joint vocabulary of 32K, all embeddings shared. "
        "Embeddings of 296 are an assumption; those of size d would give 55.7M parameters",
        _PUBLISHED_TRAINING
        | model(depth=16, size=512, embedding_size=296, feed_forward_size=2048, tie="all")
        | training(learning_rate=0.0015, warmup_updates=2000)
        | batches(max_tokens=7200, accumulation=64)
        | search(length_penalty=0.6),
        (32000, 32000),
        49.0e6,
    ),
)
