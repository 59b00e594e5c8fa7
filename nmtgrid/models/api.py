"""The one protocol that every architecture obeys; search, training and analysis know only this.

Letters: B sentences, R rows (sentences x beam), T target positions, S source positions,
D features, V target vocabulary, M sites, N blocks.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from nmtgrid.data.batches import Batch
from nmtgrid.layers.kernels.products import linear


@dataclasses.dataclass(frozen=True)
class Traits:
    """What an architecture can do, asked instead of its name."""

    prefix_safe: bool = False
    """A limited read equals a truncated source (uni-directional models)."""
    every_cell: bool = False
    """Predictions exist at every cell of the grid, not only at the end of the source."""
    num_exits: int = 1
    """Number of depths at which a prediction can be made."""
    source_receptive_field: int | None = None
    """Source tokens that one feature sees, or None for all."""
    target_receptive_field: int | None = None
    """Target tokens that one feature sees, itself included, or None for all."""
    aligns: bool = False
    """Alignments come as a by-product of decoding."""
    batch_statistics: bool = False
    """In training mode a prediction depends on the other sentences of its batch and on later target
    tokens, through normalisation statistics; in evaluation mode it does not."""


@dataclasses.dataclass(frozen=True)
class Sites:
    """Which predictions are wanted: M of them, one for each entry.

    sentence [M] and position [M] (int64) name the row of the grid: position t predicts
    `target_output[sentence, t]`. reads [M] is the number of source tokens read at that moment
    (None: the whole source); depth [M] the exit taken (None: the last).
    """

    sentence: Tensor
    position: Tensor
    reads: Tensor | None = None
    depth: Tensor | None = None

    @classmethod
    def offline(cls, batch: Batch) -> Sites:
        """One prediction for each target position, end symbol included, with the whole source."""
        places = batch.is_target.nonzero()
        return cls(places[:, 0], places[:, 1])

    def __len__(self) -> int:
        return self.sentence.shape[0]


@dataclasses.dataclass(frozen=True)
class Step:
    """What one decoding step yields: logits [R, V], the new state, alignment [R, S] if asked."""

    logits: Tensor
    state: Any
    alignment: Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Classifier:
    """The output map: weight [V, D] and bias [V] (or None), read by the fused loss."""

    weight: Tensor
    bias: Tensor | None


@dataclasses.dataclass(frozen=True)
class Report:
    """What `train --dry-run` tells of a configuration (tables 2.1 and 3.1).

    flops_per_pair counts the multiply-adds of one training pair as two each, forward and
    backward, for the lengths asked. The texts are the orders of growth as the tables print them.
    """

    flops_per_pair: float
    receptive_field: str
    computation: str
    sequential: str
    target_path: str
    source_path: str


class TranslationModel(nn.Module):
    """A model of p(y | x): teacher-forced features for training, steps for decoding.

    Subclasses set `traits` and `config` (a frozen dataclass) in their constructor and implement
    `features`, `classifier`, `begin`, `step`, and, where `traits.aligns`, `alignments`.
    """

    architecture: ClassVar[str]
    traits: Traits
    config: Any

    def features(self, batch: Batch, sites: Sites) -> Tensor:
        """Return [M, D]: the vector that predicts each site's token, given the true prefix."""
        raise NotImplementedError

    def classifier(self) -> Classifier:
        """Return the output map, for the fused loss."""
        raise NotImplementedError

    def classify(self, features: Tensor) -> Tensor:
        """Return logits [M, V] for features [M, D]."""
        held = self.classifier()
        bias = None if held.bias is None else held.bias.to(features.dtype)
        return linear(features, held.weight.to(features.dtype), bias)

    def begin(self, source: Tensor, source_lengths: Tensor) -> Any:
        """Return the state before the first step, for source [R, S] and lengths [R]."""
        raise NotImplementedError

    def step(self, tokens: Tensor, state: Any, *, align: bool = False) -> Step:
        """Feed the last written tokens [R] (`<s>` first) and return what may follow.

        The state that was passed in must not be used again: caches are written in place.
        """
        raise NotImplementedError

    def alignments(self, batch: Batch, kind: Literal["weights", "energies"] = "weights") -> Tensor:
        """Return soft alignments [B, T, S] of the true target, zero on padding.

        "weights" are shares of each source token, "energies" what it adds to the true token's
        score.
        """
        raise NotImplementedError

    def report(self, source_length: float, target_length: float) -> Report:
        """Return properties and cost for sentences of these lengths."""
        raise NotImplementedError

    def stages(self) -> dict[str, nn.Module]:
        """Return the parts whose outputs are points along the network, in order and by name.

        Names are "encoder.1", "decoder.2", "network.3" ("….0" for embeddings); each part is called
        once by `features`, and its output is a tensor [..., D]. What gradients and activations are
        reported for. Empty where the architecture has no such parts.
        """
        return {}

    def count_parameters(self) -> int:
        """Return the number of parameters, shared ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())
