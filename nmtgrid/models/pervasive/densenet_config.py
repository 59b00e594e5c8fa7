"""Configuration, costs and presets of Pervasive Attention as in the CoNLL paper, both versions.

Departs: The paper truncates training pairs to 80 tokens. Here longer pairs are skipped, because a
truncated target has no end symbol and would teach the model to stop in the middle of a sentence.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

from nmtgrid.base.config import BELOW_1, FROM_1, from_attributes
from nmtgrid.layers.embedding import Positions
from nmtgrid.layers.grid.aggregation import Aggregation
from nmtgrid.layers.grid.densenet import DensePlan, Gates, Normalisation
from nmtgrid.models.config_checks import DEPTH, KERNEL, ModelConfig
from nmtgrid.models.presets import (
    HALF_HOUR,
    Preset,
    batches,
    dropout_rates,
    model,
    objective,
    search,
    training,
)


@dataclasses.dataclass(frozen=True)
class PervasiveDensenetConfig(ModelConfig):
    """Configuration of Pervasive Attention on a DenseNet; defaults: CoNLL table 1, Max."""

    depth: Annotated[int, DEPTH] = 24
    """L, the number of layers."""
    growth: Annotated[int, FROM_1] = 32
    """g, features that each layer adds."""
    bottleneck: Annotated[int, FROM_1] = 4
    """Output size of the 1 x 1 convolution before the masked one, in multiples of g."""
    kernel: Annotated[int, KERNEL] = 5
    """k, size of a filter along both sides (odd), including the rows that the causal mask
    removes."""
    embedding_size: Annotated[int, FROM_1] = 128
    """d, size of the embeddings of each side."""
    halve_input: bool = True
    """Whether a linear map halves the number of features before the dense layers."""
    halve_output: bool = True
    """Whether a linear map halves the number of features after the dense layers."""
    normalise_input: bool = False
    """Whether the input cells of the grid are normalised."""
    gates: Gates = "none"
    """Gated linear units: none; on the masked convolution only, which agrees with the published
    parameter count; or on both convolutions of a layer, as the text says."""
    normalisation: Normalisation = "batch"
    """`batch` is the published normalisation. With `layer` or `none` predictions do not depend on
    the rest of the batch in training either."""
    aggregation: Aggregation = "max"
    """How a row of cells is reduced to one vector."""
    positions: Positions = "none"
    """Position encodings added to the embeddings of both sides: none, sinusoidal as in Eq. (2.39),
    with fairseq's or Marian's order of sines and cosines, or learned."""
    output_bias: bool = True
    """Whether the classifier has a bias."""
    tie: Literal["none", "target", "all"] = "target"
    """Shared weight matrices: `none`; `target`, the target embeddings and the classifier; `all`,
    the source embeddings as well, which needs a joint vocabulary."""
    dropout: Annotated[float, BELOW_1] = 0.2
    """Dropout on the features that each layer adds."""
    embedding_dropout: Annotated[float, BELOW_1] = 0.2
    """Dropout on embeddings; all cells of a row or column of the grid share one mask."""
    output_dropout: Annotated[float, BELOW_1] = 0.2
    """Dropout on the input of the classifier."""
    checkpoint_activations: bool = False
    """Whether activations are recomputed in the backward pass: less memory, more time."""

    @property
    def input_size(self) -> int:
        """f_0: features of the initial grid, halved or not."""
        return self.embedding_size if self.halve_input else 2 * self.embedding_size


def dense_cell_flops(config: PervasiveDensenetConfig) -> float:
    """Return the FLOPs of the forward pass in one cell of the grid, aggregation included.

    Only live taps are counted; a multiply-add counts as two.
    """
    plan, taps = from_attributes(DensePlan, config), (config.kernel // 2 + 1) * config.kernel
    # A gated linear unit needs twice the channels: of the convolution, or of both maps.
    middle = config.bottleneck * config.growth
    mapped = middle * (2 if config.gates == "both" else 1)
    grown = config.growth * (1 if config.gates == "none" else 2)
    total = 0
    for layer in range(config.depth):
        total += 2 * (plan.input_size + layer * config.growth) * mapped + 2 * taps * middle * grown
    if config.halve_output:
        total += 2 * plan.grown_size * plan.output_size
    pooled = {"max": 0, "average": 2, "attention": 4, "gated-max": 4 * plan.output_size}
    return float(total + pooled.get(config.aggregation, 4) * plan.output_size)


# The ablations of section 4: Adam, decays on plateau, 40 epochs, pairs of up to 80 positions. The
# text gives neither the dropout rates (0.2, as for the models that it compares with), nor the size
# of a batch (about 16 pairs), nor clipping.
_ABLATION = (
    training(optimiser="adam", learning_rate=0.0005, schedule="plateau", warmup_updates=0)
    | training(beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.0, clip_norm=1.0)
    | training(decay_factor=0.8, decay_patience=3, decay_threshold=0.01)
    | training(validate_updates=8000, validate_epochs=0, max_epochs=40, max_updates=0)
    | objective(label_smoothing=0.0)
    | batches(max_tokens=400, max_length=80)
    | search(beam=5)
)
# Joint BPE (V1) and one for each language (V2), 14K merges: types of German and English.
_V1_TYPES, _V2_TYPES = (12000, 8800), (13300, 13800)
# Table 3: large embeddings, label smoothing, the initial grid normalised, beam search with length
# and coverage penalties, the mean of ten checkpoints (poster). Sizes are chosen to match the
# published counts to the million: d = 256 (11M) and d = 512 (22M), nothing halved.
_TABLE_3 = (
    _ABLATION
    | model(halve_input=False, halve_output=False, normalise_input=True)
    | objective(label_smoothing=0.1)
    | training(average=10)
    | search(length_penalty=0.6, coverage_penalty=0.2)
)
_V1 = _TABLE_3 | model(embedding_size=256)
_V2 = _TABLE_3 | model(embedding_size=512) | dropout_rates(0.3)

# Half an hour of one core, as in every architecture's `multi30k`.
_SMALL = (
    HALF_HOUR
    | model(depth=10, growth=20, kernel=3, embedding_size=96)
    | model(dropout=0.15, embedding_dropout=0.2, output_dropout=0.2)
    | training(learning_rate=0.006)
    | batches(max_cells=24000)
)


def _row(name: str, description: str, parameters: float, **values: Any) -> Preset:
    """Return the preset of a row of table 1 or 2."""
    settings = _ABLATION | model(**values)
    return Preset(f"iwslt14-de-en-{name}", description, settings, _V1_TYPES, parameters)


PERVASIVE_DENSENET = (
    Preset(
        "toy",
        "the embedded synthetic corpus, in under two minutes on two CPU cores",
        _SMALL
        | model(depth=6, growth=24, kernel=5, embedding_size=96)
        | dropout_rates(0.05)
        | training(learning_rate=0.003, schedule="cosine", clock="wall", warmup_updates=100)
        | training(max_updates=650, max_minutes=0.0, ema_decay=0.0)
        | training(validate_minutes=0.0, validate_epochs=1)
        | batches(max_cells=20000),
    ),
    Preset("multi30k", "Multi30k De-En, half an hour of one core: L=10, g=20, 3x3, d=96", _SMALL),
    Preset("iwslt14-de-en", "table 3, V2 (published: 22M)", _V2, _V2_TYPES),
    Preset("iwslt14-de-en-v1", "table 3, V1 (published: 11M)", _V1, _V1_TYPES),
    Preset("iwslt14-en-de", "table 3, V2, English to German (22M)", _V2, _V2_TYPES[::-1]),
    Preset("iwslt14-en-de-v1", "table 3, V1, English to German (11M)", _V1, _V1_TYPES[::-1]),
    _row("average", "table 1", 7.18e6, aggregation="average"),
    _row("max", "table 1: L=24, g=32, k=5, d=128, both versions' ablations", 7.18e6),
    _row("attention", "table 1", 7.24e6, aggregation="attention"),
    _row("max-gated", "table 1", 9.64e6, gates="convolution"),
    _row("max-attention", "table 1", 7.24e6, aggregation="max-attention"),
    _row("k3-l16", "table 2", 4.32e6, kernel=3, depth=16),
    _row("k3-l20", "table 2", 4.92e6, kernel=3, depth=20),
    _row("k5-l8", "table 2", 3.88e6, kernel=5, depth=8),
    _row("k5-l12", "table 2", 4.59e6, kernel=5, depth=12),
    _row("k5-l16", "table 2", 5.37e6, kernel=5, depth=16),
    _row("k5-l20", "table 2", 6.23e6, kernel=5, depth=20),
    _row("k5-l24", "table 2", 7.18e6, kernel=5, depth=24),
    _row("k5-l28", "table 2", 8.21e6, kernel=5, depth=28),
    _row("k7-l12", "table 2", 5.76e6, kernel=7, depth=12),
    _row("k7-l16", "table 2, revised version", 6.94e6, kernel=7, depth=16),
)
