"""The interface of every architecture, the only one that search, training and analysis use.

`Traits` are the capabilities of a model; `PredictionSites` list the predictions to compute (with
limited reads, section 4.3; at an exit, section 5.2); `TranslationModel` has the teacher-forced pass
of training and the steps of decoding; `ExitModel` adds early exits, decided by a `Halt` (section
5.3).

Letters: B sentences, R rows (sentences x beam), T target positions, S source positions, D features,
V target vocabulary, M sites, N blocks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from nmtgrid.base.config import FROM_1, CheckedSettings, check
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.rows import host_values, ragged_positions
from nmtgrid.data.batches import Batch
from nmtgrid.layers.embedding import Embedding
from nmtgrid.layers.kernels.linear import linear
from nmtgrid.layers.probes import ProbePoint

AlignmentKind = Literal["weights", "energies"]
"""Values of soft alignments: the share of each source token, or its contribution to a score."""
Halting = Literal["none", "sequence", "multinomial", "geometric"]
"""Networks that decide when to exit: Eq. (5.11), (5.19), (5.20)."""


Readiness = Literal["none", "transport", "information", "monotonic"]
"""Mechanism that scores how ready a model is to write: none, the information transported to the
next token (ITST), the information of the tokens read and written (Wait-info), or monotonic heads
that have selected a source token (MMA)."""


@dataclasses.dataclass(frozen=True)
class Traits:
    """Capabilities of an architecture, which callers check instead of its name."""

    prefix_safe: bool = False
    """The model supports limited reads, which are equivalent to a truncated source: uni-directional
    models, and bi-directional ones that re-encode every prefix. Other models reject reads."""
    every_cell: bool = False
    """The model can predict at every cell of the grid, whichever path led there."""
    reencodes: bool = False
    """A READ changes the states of earlier source tokens, so every limited read costs an encoding.
    """
    num_exits: int = 1
    """Number of depths at which a prediction can be made."""
    halting: Halting = "none"
    """The network that chooses the exit."""
    hides_source_end: bool = False
    """The model does not see where its source ends, so it cannot know when to stop (appendix C)."""
    source_receptive_field: int | None = None
    """Source tokens that one feature sees, or None for all."""
    target_receptive_field: int | None = None
    """Target tokens that one feature sees, itself included, or None for all."""
    reads: bool = False
    """The model has a reader, which estimates the probability of READ at every cell of the grid."""
    readiness: Readiness = "none"
    """Mechanism that scores, in each step, how ready the model is to write given the source read so
    far."""
    aligns: bool = False
    """Alignments come as a by-product of decoding."""
    batch_statistics: bool = False
    """In training mode a prediction depends on the other sentences of its batch and on later target
    tokens, through normalisation statistics; in evaluation mode it does not."""
    source_features: int = 0
    """For captioning, the number of features F of the picture's regions [B, S, F], which have no
    order and no end symbol; 0 for text."""


Needs = Literal["nothing", "confidence", "geometric", "multinomial", "sequence"]
"""Input of an exit decision: nothing from the model, the largest probability (5.18), or an output
of the halting network: chi (5.20), or the most likely exit according to (5.19) or (5.11)."""


class Halt(Protocol):
    """Decides after each block which rows exit."""

    @property
    def needs(self) -> Needs:
        """The input of the decisions."""
        ...

    def exits(self, exit: int, step: int, keys: Tensor, scores: Tensor | None) -> Tensor:
        """Return [R'] (bool), True where a row exits after block `exit` (from 1, never the last).

        Each row has `step` tokens so far; keys [R'] (int64) identify the sentences of rows; scores
        [R'] are the input in `needs`: probabilities, the exit chosen (int64), or None.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Verified(CheckedSettings):
    """Decoding that drafts tokens at an early exit and verifies them with the full stack.

    The translations equal those of the full stack (search/verified.py). At most `drafts` tokens of
    a row are drafted before each verification, from the first `types` of the vocabulary (None:
    all), which are the most frequent ones.
    """

    exit: Annotated[int, FROM_1] = 1
    drafts: Annotated[int, FROM_1] = 8
    types: Annotated[int | None, FROM_1] = 1024

    def __post_init__(self) -> None:
        """Raise ConfigError for numbers below 1."""
        check(self)

    def called(self, name: str) -> str:
        return f"`{name}` of verified exits"


class Drafts(Protocol):
    """The state of R rows with tokens drafted at an early exit and verified by the later blocks."""

    def feed(self, tokens: Tensor, positions: Tensor, last: int, *, predict: bool) -> Tensor | None:
        """Feed tokens [R] at positions [R], none beyond `last`, to the blocks up to the exit.

        Returns the exit's logits [R, V'] of the first V' types of the vocabulary, if `predict`.
        """
        ...

    def verify(self, cells: Tensor) -> tuple[Tensor, Tensor | None]:
        """Run the later blocks over some of the Q tokens that were fed since the last `keep`.

        cells [M] are numbers r * Q + q in ascending order, the first few of each row r. Returns the
        last exit's logits [M, V] of the token after each, and alignments [R, Q, S].
        """
        ...

    def keep(self, kept: Tensor) -> None:
        """Keep the first `kept` [R] (at least 1) of the Q tokens and discard the others."""
        ...

    def take_rows(self, rows: Tensor) -> None:
        """Keep only `rows` [R']."""
        ...


@dataclasses.dataclass(frozen=True)
class PredictionSites:
    """The predictions to compute: M of them, one per entry.

    sentence [M] and position [M] (int64) give the row of the grid: position t predicts
    `target_output[sentence, t]`. reads [M] is the number of source tokens read by then (None: the
    whole source; otherwise from 1 to the source's length, including its end symbol).

    depth [M], from 1 to N, is the exit that predicts (None: the last). The tokens before it count
    as having exited at the same depth ("aligned"), unless `mixed`: then each position exited at its
    own site's depth, positions without a site at the last exit, and the blocks that a position
    skipped hold copies of its state (section 5.2.3).

    `in_range`: reads are known to be in range; checking them would synchronise with the device.
    """

    sentence: Tensor
    position: Tensor
    reads: Tensor | None = None
    depth: Tensor | None = None
    mixed: bool = dataclasses.field(default=False, kw_only=True)
    in_range: bool = dataclasses.field(default=False, kw_only=True)

    @classmethod
    def offline(cls, batch: Batch) -> PredictionSites:
        """Return one prediction for each target position, with the whole source."""
        return cls(*batch.target_positions)

    @classmethod
    def along(cls, batch: Batch, path: Tensor, *, in_range: bool = False) -> PredictionSites:
        """Return one prediction for each target position, with the reads of `path` [B, T]."""
        sentence, position = batch.target_positions
        return cls(sentence, position, path[sentence, position], in_range=in_range)

    @classmethod
    def everywhere(cls, batch: Batch) -> PredictionSites:
        """Return one prediction for each cell of the grid: every position with every reads."""
        sentence, position = batch.target_positions
        widths = batch.source_widths
        row, column = ragged_positions(widths, sum(host_values(widths)))
        return cls(sentence[row], position[row], column + 1, in_range=True)

    @cached_property
    def cells(self) -> tuple[Tensor, Tensor, Tensor]:
        """Indices of the sites in a grid [B, T, S]; j + 1 tokens have been read at column j."""
        assert self.reads is not None
        return self.sentence, self.position, self.reads - 1

    def __len__(self) -> int:
        return self.sentence.shape[0]


def check_reads(batch: Batch, sites: PredictionSites) -> None:
    """Raise ValueError unless all reads are from 1 to their source's length."""
    if sites.reads is None or sites.in_range or not len(sites):
        return
    lengths = batch.source_lengths[sites.sentence]
    out_of_range = (sites.reads < 1) | (sites.reads > lengths)
    # One synchronisation with the device per batch; a second one only to name the faulty site.
    if bool(out_of_range.any()):
        site = int(out_of_range.nonzero()[0, 0])
        raise ValueError(
            f"reads must be from 1 to the length of their source, which is "
            f"{int(lengths[site])} tokens with its end symbol, but are {int(sites.reads[site])}"
        )


def path_of(batch: Batch, sites: PredictionSites) -> Tensor:
    """Return the path [B, T] on which all sites of a sentence lie.

    Positions without a site take the reads of the nearest earlier site, those before the first site
    its reads, and sentences without sites the whole source.

    Raises ValueError for reads out of range, two different reads for one position of a sentence,
    and decreasing reads.
    """
    assert sites.reads is not None
    check_reads(batch, sites)
    path = _by_position(
        batch, sites, sites.reads, -1,
        "this model's predictions depend on the path: a position cannot have two different reads "
        "in one pass; request them in separate passes",
    )  # fmt: skip
    count, length = path.shape
    # Positions without a site copy the last site before them, which the running maximum finds.
    # Those before the first site copy the first, so the path does not decrease.
    positions = torch.arange(length, device=path.device).expand(count, length)
    last = torch.where(path >= 0, positions, -1).cummax(1).values
    first = torch.where(path >= 0, positions, length - 1).amin(1, keepdim=True)
    path = path.gather(1, torch.where(last >= 0, last, first))
    # Only sentences without any site still have -1: they read their whole source.
    path = torch.where(path >= 0, path, batch.source_lengths[:, None].to(path.dtype))
    if bool((path[:, 1:] < path[:, :-1]).any()):
        raise ValueError("reads must not decrease along a path, but these do")
    return path


def _by_position(
    batch: Batch, sites: PredictionSites, values: Tensor, missing: int, conflict: str
) -> Tensor:
    """Return the values [M] of the sites as [B, T], `missing` where a position has no site.

    Raises ValueError(`conflict`) if one position of a sentence has two different values.
    """
    count, length = batch.target_input.shape
    grid = values.new_full((count * length,), missing)
    cells = sites.sentence * length + sites.position
    grid[cells] = values
    # Two sites at one position write to the same cell, so one of them reads back another value.
    if not torch.equal(grid[cells], values):
        raise ValueError(conflict)
    return grid.view(count, length)


def check_depth(sites: PredictionSites, exits: int) -> None:
    """Raise ValueError unless all depths are from 1 to `exits`."""
    if sites.depth is None or not len(sites):
        return
    out_of_range = (sites.depth < 1) | (sites.depth > exits)
    if bool(out_of_range.any()):
        depth = int(sites.depth[out_of_range][0])
        raise ValueError(f"exits are numbered from 1 to {exits}, but a site has exit {depth}")


def depths_of(batch: Batch, sites: PredictionSites, exits: int) -> Tensor:
    """Return the exits [B, T] of all positions, for mixed sites.

    Raises ValueError for two exits at one position of a sentence.
    """
    assert sites.depth is not None
    # Positions without a site run through all blocks.
    return _by_position(
        batch, sites, sites.depth, exits,
        "a position cannot take two exits in one pass; request them in separate passes",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Step:
    """The result of a decoding step: logits [R, V], the new state, optionally alignment [R, S].

    For a model with a reading mechanism (`Traits.readiness`), readiness [R] (float32) is its score
    for writing now, given the source read so far; it does not decrease as reads grow.

    With early exit, exits [R] (int64) are the blocks after which rows exited, and scores [R, N] the
    values that the decisions were based on, chi (5.20) or the largest probability (5.18), NaN where
    not computed.
    """

    logits: Tensor
    state: Any
    alignment: Tensor | None = None
    exits: Tensor | None = None
    scores: Tensor | None = None
    readiness: Tensor | None = None


def check_features(model: TranslationModel, features: object, count: int, size: int) -> None:
    """Raise ConfigError unless a model, possibly a user's own, returned features [M, D]."""
    if not isinstance(features, Tensor) or features.shape != (count, size):
        raise _misshapen(model, "features", features, f"a tensor of shape {[count, size]}")


def check_step(model: TranslationModel, step: object, rows: int) -> None:
    """Raise ConfigError unless a model, possibly a user's own, returned a step of R rows."""
    if not isinstance(step, Step):
        raise _misshapen(model, "step", step, "a Step")
    if step.logits.dim() != 2 or len(step.logits) != rows:
        raise _misshapen(model, "step", step.logits, f"logits of shape [{rows}, vocabulary]")


def _misshapen(model: TranslationModel, method: str, value: object, expected: str) -> ConfigError:
    shape = f" of shape {list(value.shape)}" if isinstance(value, Tensor) else ""
    return ConfigError(
        f"The method `{method}` of `{type(model).__name__}` has returned a "
        f"{type(value).__name__}{shape}.",
        f"Here it must return {expected}.",
    )


@dataclasses.dataclass(frozen=True)
class Classifier:
    """The output projection: weight [V, D] and bias [V] (or None), read by the fused loss."""

    weight: Tensor
    bias: Tensor | None

    def detached(self) -> Classifier:
        """Return the classifier without gradient."""
        return Classifier(self.weight.detach(), None if self.bias is None else self.bias.detach())


@dataclasses.dataclass(frozen=True)
class Steps:
    """Sequential steps in training, and the longest paths from a prediction to a token, in layers.

    These are orders of growth without constants: a layer counts once, a recurrent layer once per
    token. `layers` are the numbers of source and target layers, `kernel` the filter width, if any.
    """

    sequential: float
    target_path: float
    source_path: float
    layers: tuple[int, int]
    kernel: int | None = None


@dataclasses.dataclass(frozen=True)
class Report:
    """Properties of a configuration, as shown by `train --dry-run` (tables 2.1 and 3.1).

    flops_per_pair is for one training pair of the given lengths, forward and backward; a
    multiply-add counts as two. The strings are orders of growth, as in the tables.
    """

    flops_per_pair: float
    receptive_field: str
    computation: str
    sequential: str
    target_path: str
    source_path: str
    steps: Steps | None = None
    """The orders of growth as numbers."""


class TranslationModel(nn.Module):
    """A model of p(y | x): teacher-forced features for training, steps for decoding.

    Subclasses set `traits` and `config` (a frozen dataclass) in their constructor and implement
    `features`, `begin` and `step`, and, if `traits.aligns`, `alignments` or the methods that it
    calls.
    """

    architecture: ClassVar[str]
    why_no_energies: ClassVar[str] = ""
    """In models without energies, why a score is not a sum over source tokens: see `alignments`."""
    traits: Traits
    config: Any
    target_embedding: Embedding
    output_weight: nn.Parameter | None
    output_bias: nn.Parameter | None

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        """Return [M, D]: the vector that predicts each site's token, given the true prefix."""
        raise NotImplementedError

    def check_prefixes(self) -> None:
        """Raise ConfigError unless `features` supports limited reads."""
        if not self.traits.prefix_safe:
            raise self.refusal()

    def check_sites(self, sites: PredictionSites) -> None:
        """Raise ConfigError for limited reads or early exits; for models that support neither."""
        if sites.reads is not None:
            raise self.refusal()
        if sites.depth is not None:
            raise self.no_exits()

    def make_classifier(
        self, types: int, size: int, *, own: bool, bias: bool, std: float | None = None
    ) -> None:
        """Add a matrix [types, size] for `classifier` if it has its `own`, and optionally a bias.

        The matrix is drawn from a Gaussian of standard deviation `std` (None: 1 / sqrt(size)).
        """
        std = size**-0.5 if std is None else std
        self.output_weight = nn.Parameter(torch.empty(types, size).normal_() * std) if own else None
        self.output_bias = nn.Parameter(torch.zeros(types)) if bias else None

    def classifier(self) -> Classifier:
        """Return the output projection, tied to the target embeddings unless `tie` is none."""
        weight = self.target_embedding.weight if self.output_weight is None else self.output_weight
        return Classifier(weight, self.output_bias)

    def classify(self, features: Tensor) -> Tensor:
        """Return logits [M, V] for features [M, D]."""
        # Autocast converts the matrix once and caches it for the next steps of a search.
        classifier = self.classifier()
        return linear(features, classifier.weight, classifier.bias)

    def begin(self, source: Tensor, source_lengths: Tensor) -> Any:
        """Return the state before the first step, for source [R, S] and lengths [R]."""
        raise NotImplementedError

    def step(
        self, tokens: Tensor, state: Any, *, reads: Tensor | None = None, align: bool = False
    ) -> Step:
        """Feed the last written tokens [R] (`<s>` first) and return predictions of the next ones.

        reads [R] is how many source tokens each row may see, including the end symbol (None: all
        that have arrived); it never decreases from step to step. The state that was passed in must
        not be used again: caches are written in place.

        Raises ConfigError for reads if `traits.prefix_safe` is False.
        """
        raise NotImplementedError

    def extend(self, tokens: Tensor, state: Any) -> Any:
        """Return the state with one more source token [R] in each row, for streams.

        A stream begins with an empty source [R, 0] and ends with the end symbol. The state that
        was passed in must not be used again.

        Raises ConfigError if `traits.prefix_safe` is False.
        """
        raise self.refusal()

    def feed(self, tokens: Tensor, state: Any) -> Any:
        """Begin a step: feed the last written tokens [R] without predicting yet.

        `propose` then returns predictions, any number of times, `extend` may add source tokens in
        between, and `accept` ends the step. The state that was passed in must not be used again; a
        state that was fed must be accepted before the next tokens are fed.

        Raises ConfigError if `traits.prefix_safe` is False.
        """
        raise self.refusal()

    def propose(
        self, state: Any, reads: Tensor, *, rows: Tensor | None = None, align: bool = False
    ) -> Step:
        """Return what `step` would, for the `rows` [R'] (None: all) of a state that was fed.

        reads [R'] are those of the rows and never decrease from one proposal of a row to its next.
        If `traits.every_cell` is True, `rows` may name a row several times, with different reads.
        `Step.state` replaces the state.
        """
        raise self.refusal()

    def accept(self, state: Any) -> Any:
        """End the step that `feed` began: each row wrote with the reads of its last proposal."""
        raise self.refusal()

    def features_with_reading(
        self, batch: Batch, sites: PredictionSites, *, learn_features: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return `features` and `reading`, in one pass if they share a network.

        Without `learn_features` the features have no gradient.
        """
        # Never switches gradients on inside a caller's `no_grad`.
        with torch.set_grad_enabled(learn_features and torch.is_grad_enabled()):
            features = self.features(batch, sites)
        return features, self.reading(batch)

    def features_with_delays(self, batch: Batch, sites: PredictionSites) -> tuple[Tensor, Tensor]:
        """Return `features` and the delays [B, K, T] of K monotonic heads, from one pass.

        A delay is the number of source tokens read when a head selects for a target position: its
        expectation in training, with gradient, otherwise that of the hard decision; undefined on
        padding.

        Raises ConfigError if `traits.readiness` is not monotonic.
        """
        raise self.no_mechanism("monotonic")

    def choosing_from(self, threshold: float, state: Any) -> Any:
        """Return a state from `begin` with `threshold` as the threshold of the monotonic heads.

        A head selects a token whose selection probability reaches it; the default is one half.
        Raises ConfigError if `traits.readiness` is not monotonic.
        """
        raise self.no_mechanism("monotonic")

    def features_with_transport(
        self, batch: Batch, threshold: float | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return features [M, D] of all target positions, transport [B, N, T, S], paths [B, T].

        Each position sees the source tokens that it needs to receive the information `threshold`
        (None: all, and the path is the source's length). Transport is 0 on padding of the source
        and undefined on padding of the target. Raises ConfigError if `traits.readiness` is not
        transport.
        """
        raise self.no_mechanism("transport")

    def features_with_information(
        self, batch: Batch, k: float | Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return features [M, D] of all target positions, information [B, S] and [B, T], paths.

        Each position sees the source tokens needed for their information to exceed that written so
        far by k (a number, or [B]; None: all tokens). Information is that of source and target
        input tokens, 0 for the begin symbol and undefined on padding. Raises ConfigError if
        `traits.readiness` is not information.
        """
        raise self.no_mechanism("information")

    def readiness(self, batch: Batch, path: Tensor) -> Tensor:
        """Return `Step.readiness` [B, T] of the true target along the path [B, T].

        Raises ConfigError unless `traits.readiness` is transport or information.
        """
        raise self.no_mechanism("transport")

    def reading(self, batch: Batch) -> Tensor:
        """Return logits [B, T, S] of READ, teacher forced; undefined on padding.

        Cell (b, t, j) (0-based) has t target tokens written and j + 1 source tokens read.

        Raises ConfigError if `traits.reads` is False.
        """
        raise self.no_reader()

    def consider(self, tokens: Tensor, state: Any) -> Any:
        """Feed the last written tokens [R] to the reader, before `step` feeds them to the model.

        All rows of a search are considered, or none. The state that was passed in must not be
        used again.

        Raises ConfigError if `traits.reads` is False.
        """
        raise self.no_reader()

    def reading_row(self, state: Any) -> Tensor:
        """Return READ logits [R, S] of the grid row last considered; undefined on padding.

        `extend` adds a column to them.

        Raises ConfigError if `traits.reads` is False.
        """
        raise self.no_reader()

    def output_projections(self) -> list[Tensor]:
        """Return the weights of all classifiers, including those of halting networks."""
        return [self.classifier().weight]

    def hidden_matrices(self) -> list[nn.Parameter]:
        """Return the trainable parameters that map features to features, in order, for Muon.

        These are parameters of two or more dimensions with more than one output and input; a
        convolution kernel [D', D, ...] counts as a matrix [D', D ...]. Excluded are embeddings,
        `output_projections`, and the `vector_parameters` of modules: stacks of vectors, such as
        gains of several layers or depthwise kernels.
        """
        others = {id(weight) for weight in self.output_projections()}
        for module in self.modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                others.add(id(module.weight))
            for name in getattr(module, "vector_parameters", ()):
                others.add(id(getattr(module, name)))
        return [
            parameter
            for parameter in self.parameters()
            if parameter.requires_grad and parameter.dim() > 1 and min(parameter.shape[:2]) > 1
            and id(parameter) not in others
        ]  # fmt: skip

    def compilable(self) -> list[nn.Module]:
        """Return the modules that `training.compile` compiles with torch, for any shape."""
        return []

    def counterparts(self) -> dict[str, str | None]:
        """Return the tensors that may be missing when this model is initialised from another one.

        Each maps to the tensor whose values it takes instead, or to None if it keeps its initial
        values.
        """
        return {}

    @torch.no_grad()
    def alignments(self, batch: Batch, kind: AlignmentKind = "weights") -> Tensor:
        """Return soft alignments [B, T, S] of the reference, zero on padding.

        "weights" are the shares of the source tokens, "energies" their contributions to the score
        of the reference token. Raises ConfigError for energies, which only models that pool a grid
        have.
        """
        if kind == "energies" and self.why_no_energies:
            raise self.no_energies()
        present = batch.is_target[:, :, None] & batch.is_source[:, None, :]
        return self._attention(batch).masked_fill(~present, 0.0)

    def _attention(self, batch: Batch) -> Tensor:
        """Return the attention [B, T, S] of the true target to the source; undefined on padding."""
        raise NotImplementedError

    def report(self, source_length: float, target_length: float) -> Report:
        """Return properties and cost for sentences of these lengths."""
        raise NotImplementedError

    def stages(self) -> dict[str, nn.Module]:
        """Return the modules whose outputs are points along the network, in order and by name.

        Names are "encoder.1", "decoder.2", "network.3" ("….0" for embeddings); each module is
        called once by `features`, and its output is a tensor [..., D]. Gradients and activations
        are reported for these points. Empty if the architecture has none.
        """
        return {}

    def points(self) -> dict[str, ProbePoint]:
        """Return the probe points in order: the stages, and points between them.

        Names begin with the part of the network and, if there is one, the layer's number:
        "network.3.change", "output.pooled". `features` passes each of them.
        """
        # The default, for architectures without points between their stages.
        return {name: ProbePoint(module) for name, module in self.stages().items()}

    def refusal(self) -> ConfigError:
        """Return the error for limited reads of a model that must see the whole source."""
        return ConfigError(
            f"`{self.architecture}` reads its source in both directions, so it cannot translate "
            "simultaneously: every new source token changes its encoding of the earlier ones.",
            "Train a `transformer`, or a `pervasive` with `--set model.source_causal=true`. To "
            "decode, the policies `local-agreement` and `hold-n` work with any model.",
        )

    def no_reader(self) -> ConfigError:
        """Return the error for READ decisions of a model without a reader."""
        return ConfigError(
            f"This `{self.architecture}` has no reader, which decides when to read.",
            "Train a `pervasive` with `--set model.source_causal=true --set model.reader=own` and "
            "`--objective dynamic`.",
        )

    def no_mechanism(self, readiness: Readiness) -> ConfigError:
        """Return the error for a policy that needs a reading mechanism the model lacks."""
        return ConfigError(
            f"This `{self.architecture}` does not have the reading mechanism `{readiness}`, which "
            "the policy needs.",
            f"Train a `transformer` with `--set model.reader={readiness}`.",
        )

    def no_energies(self) -> ConfigError:
        """Return the error for energies of a model that has none."""
        return ConfigError(
            f"There are no energies for `{self.architecture}`: {self.why_no_energies}.",
            "Ask for the weights of its attention instead (without `--energies`).",
        )

    def no_exits(self) -> ConfigError:
        """Return the error for early exits of a model that has none."""
        return ConfigError(
            f"This `{self.architecture}` has one exit, after its last block: it cannot predict "
            "from an earlier one.",
            "Train a `transformer` with `--set model.exits=tied` (or separate) and an objective "
            "for exits.",
        )

    def count_masked(self) -> int:
        """Return the number of masked filter taps: parameters that are zero and never read."""
        return sum(getattr(module, "masked_taps", 0) for module in self.modules())

    def count_parameters(self) -> int:
        """Return the number of parameters, shared ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())


class ExitModel(TranslationModel):
    """A model that can predict after each of its N blocks if `traits.num_exits` is above 1."""

    def classifier(self, exit: int | None = None) -> Classifier:
        """Return the output projection of `exit`, from 1 to N (None: the last)."""
        return super().classifier()

    def output_projections(self) -> list[Tensor]:
        exits = range(1, self.traits.num_exits + 1)
        return [self.classifier(exit).weight for exit in exits]

    def exit_features(
        self,
        batch: Batch,
        sites: PredictionSites,
        *,
        own: bool = False,
        scales: Sequence[float] | None = None,
    ) -> list[Tensor]:
        """Return N features [M, D], from which each exit predicts the sites, aligned, in one pass.

        With `own`, N more follow: block_n(stop_gradient(h^{n-1})), which have the same values but
        whose gradient reaches the parameters of block n only. `scales` gamma_1 .. gamma_N multiply
        gradients in the forward pass, as printed in Algorithm 2.
        """
        raise NotImplementedError

    def halting_logits(self, batch: Batch, states: Sequence[Tensor]) -> Tensor:
        """Return the halting network's logits for `exit_features` (N tensors [M, D]).

        sequence [B, N], from the source only; multinomial [M, N]; geometric [M, N - 1].

        Raises ConfigError for a model without a halting network.
        """
        raise NotImplementedError

    def check_halt(self, halt: Halt, *, has_whole_source: bool = True) -> None:
        raise NotImplementedError

    def sentence_exits(self, state: Any) -> Tensor:
        """Return the exits [B] (int64) chosen for the sentences of a state from `begin`.

        For models whose halting is "sequence", Eq. (5.11).
        """
        raise NotImplementedError

    def drafts(self, state: Any, verified: Verified, align: bool) -> Drafts:
        """Return a state from `begin`, prepared for drafts; `align` adds alignments of all tokens.

        The state that was passed in must not be used again.
        """
        raise NotImplementedError

    def step(
        self,
        tokens: Tensor,
        state: Any,
        *,
        reads: Tensor | None = None,
        align: bool = False,
        halt: Halt | None = None,
    ) -> Step:
        """Feed the last written tokens [R]; `halt` (None: never) decides which rows exit early.

        The keys passed to `halt` are the row numbers.

        Raises ConfigError if `halt` needs a network that the model does not have.
        """
        raise NotImplementedError


def numbered(**sides: Iterable[nn.Module]) -> dict[str, nn.Module]:
    """Return the modules of each side as `stages`: "encoder.0" is the first one of `encoder`.

    A module that both sides share is named after the first side.
    """
    stages: dict[str, nn.Module] = {}
    for side, parts in sides.items():
        for number, part in enumerate(parts):
            if part not in stages.values():
                stages[f"{side}.{number}"] = part
    return stages


def with_exits(model: TranslationModel) -> ExitModel:
    """Return `model`. Raises ConfigError if it has a single exit."""
    # A Transformer is an `ExitModel` whatever its config says, so the number of exits decides.
    if isinstance(model, ExitModel) and model.traits.num_exits > 1:
        return model
    raise model.no_exits()
