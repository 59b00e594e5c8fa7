"""Shared by the invariant tests: the cases, ragged batches, slow references."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmtgrid.base.rows import take
from nmtgrid.data.batches import Batch, collate
from nmtgrid.data.captioning.dataset import collate_pictures
from nmtgrid.layers.normalisation import BatchStatistics
from nmtgrid.models.api import Halt, PredictionSites, TranslationModel, with_exits
from nmtgrid.online.policies import Policy
from nmtgrid.search.api import Hypothesis, Proposal, SearchPlan
from nmtgrid.search.engine import search
from nmtgrid.text.vocabulary import BEGIN, PAD
from tests.invariants.cases import SOURCE_TYPES as SOURCE_TYPES
from tests.invariants.cases import TARGET_TYPES as TARGET_TYPES
from tests.invariants.cases import Case as Case
from tests.invariants.cases import basic_cases as basic_cases
from tests.invariants.cases import cases as cases
from tests.invariants.cases import exit_cases as exit_cases
from tests.invariants.cases import online_cases as online_cases
from tests.invariants.cases import reader_cases as reader_cases
from tests.invariants.cases import shake as shake

every_case = pytest.mark.parametrize("case", cases(), ids=str)
every_architecture = pytest.mark.parametrize("case", basic_cases(), ids=str)
every_online_case = pytest.mark.parametrize("case", online_cases(), ids=str)
every_reader = pytest.mark.parametrize("case", reader_cases(), ids=str)
every_exit_case = pytest.mark.parametrize("case", exit_cases(), ids=str)

Source = Sequence[int] | Tensor
"""Token ids without the end symbol, or a picture's features [regions, F]."""
LIMIT = 1e-5
"""Maximum difference of log-probabilities."""


def ragged_batch(
    source_lengths: Sequence[int],
    target_lengths: Sequence[int],
    source_types: int = SOURCE_TYPES,
    target_types: int = TARGET_TYPES,
) -> Batch:
    """Return random sentences of these lengths, the end symbol not counted."""

    def draw(lengths: Sequence[int], types: int) -> list[list[int]]:
        return [torch.randint(3, types, (length,)).tolist() for length in lengths]

    return collate(draw(source_lengths, source_types), draw(target_lengths, target_types))


def batch_for(
    model: TranslationModel,
    source_lengths: Sequence[int] = (7, 4, 0, 9),
    target_lengths: Sequence[int] = (3, 21, 5, 0),
) -> Batch:
    """Return random sentences of these lengths, with tokens in the vocabularies of `model`.

    One source and one target are empty; one target is long enough for every cache to wrap around.
    A picture has one region more than the length, as a sentence has its end symbol.
    """
    types = model.classifier().weight.shape[0]
    batch = ragged_batch(source_lengths, target_lengths, min(types, SOURCE_TYPES), types)
    size = model.traits.source_features
    return show(batch, [torch.randn(n + 1, size) for n in source_lengths]) if size else batch


def model_and_batch(case: Case, *lengths: Sequence[int]) -> tuple[TranslationModel, Batch]:
    """Return the model of a case and sentences of these lengths for it (see `batch_for`)."""
    model = case.build()
    return model, batch_for(model, *lengths)


def show(batch: Batch, pictures: Sequence[Tensor]) -> Batch:
    """Return the batch with pictures as sources."""
    source, lengths = collate_pictures([picture.numpy() for picture in pictures])
    return dataclasses.replace(batch, source=source, source_lengths=lengths)


class Pictured:
    """Pairs in the form that the trainer reads, with pictures instead of source sentences."""

    def __init__(self, pairs: Any, size: int) -> None:
        self.pairs, self.size = pairs, size
        self.source_lengths, self.target_lengths = pairs.source_lengths, pairs.target_lengths

    def batch(self, indices: Any) -> Batch:
        batch: Batch = self.pairs.batch(indices)
        pictures = []
        for index, length in zip(batch.indices.tolist(), batch.source_lengths, strict=True):
            draw = torch.Generator().manual_seed(index)
            pictures.append(torch.randn(int(length), self.size, generator=draw))
        return show(batch, pictures)


def readable(pairs: Any, model: TranslationModel) -> Any:
    """Return `pairs` of sentences in a form that `model` can read."""
    size = model.traits.source_features
    return Pictured(pairs, size) if size else pairs


def pair(source: Source, *targets: Sequence[int]) -> Batch:
    """Return a batch that pairs a source with each of the targets."""
    if isinstance(source, Tensor):
        return show(collate([[]] * len(targets), targets), [source] * len(targets))
    return collate([source] * len(targets), targets)


def source_of(batch: Batch, row: int) -> Source:
    """Return one of a batch's sources."""
    length = int(batch.source_lengths[row])
    if batch.source.dim() == 3:
        return batch.source[row, :length]
    tokens: list[int] = batch.source[row, : length - 1].tolist()
    return tokens


def with_padding(batch: Batch, value: int) -> Batch:
    """Return the batch with `value` where there is padding, on both sides."""
    is_source = batch.is_source if batch.source.dim() == 2 else batch.is_source[:, :, None]
    return dataclasses.replace(
        batch,
        source=batch.source.masked_fill(~is_source, value),
        target_input=batch.target_input.masked_fill(~batch.is_target, value),
    )


def widened(batch: Batch, columns: int) -> Batch:
    """Return the batch with so many additional columns of padding in its source."""
    shape = (batch.source.shape[0], columns, *batch.source.shape[2:])
    return dataclasses.replace(
        batch, source=torch.cat([batch.source, batch.source.new_full(shape, PAD)], 1)
    )


def teacher_forced(
    model: TranslationModel, batch: Batch, sites: PredictionSites | None = None
) -> Tensor:
    """Return log-probabilities [B, T, V] after each true prefix, zero on padding."""
    sites = sites or PredictionSites.offline(batch)
    logits = model.classify(model.features(batch, sites))
    values = logits.new_zeros(*batch.target_input.shape, logits.shape[-1])
    return values.index_put((sites.sentence, sites.position), logits.log_softmax(-1))


def random_path(batch: Batch, seed: int = 0) -> Tensor:
    """Return reads [B, T] that rise at random from 1 or more to at most each source's length."""
    draw = torch.Generator().manual_seed(seed)
    shares = torch.rand(batch.target_input.shape, generator=draw).sort(1).values
    return 1 + (shares * batch.source_lengths[:, None]).long()


def random_exits(batch: Batch, count: int, seed: int = 0) -> Tensor:
    """Return exits [B, T], each drawn uniformly from 1 to `count`."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(1, count + 1, batch.target_input.shape, generator=draw)


def stepwise(
    model: TranslationModel,
    batch: Batch,
    steps: int | None = None,
    *,
    align: bool = False,
    path: Tensor | None = None,
    halt: Halt | None = None,
) -> tuple[Tensor, Tensor | None, Any]:
    """Feed the true prefixes step by step, reading along `path` [B, T] if there is one.

    Rows exit early from the decoder according to `halt`.

    Returns log-probabilities [B, T, V], alignments [B, T, S] (None unless asked) and the state.
    """
    state = model.begin(batch.source, batch.source_lengths)
    values, alignments = [], []
    for position in range(batch.target_input.shape[1] if steps is None else steps):
        tokens = batch.target_input[:, position]
        reads = None if path is None else path[:, position]
        if halt is None:
            step = model.step(tokens, state, reads=reads, align=align)
        else:
            step = with_exits(model).step(tokens, state, reads=reads, align=align, halt=halt)
        state = step.state
        values.append(step.logits.log_softmax(-1))
        if align:
            assert step.alignment is not None
            alignments.append(step.alignment)
    return torch.stack(values, 1), torch.stack(alignments, 1) if align else None, state


def readings(
    model: TranslationModel, batch: Batch, path: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Consider and write the true prefixes; return reading logits and log-probabilities.

    The first are [B, T, S], the second [B, T, V], with reads along `path` [B, T] (None: the whole
    source).
    """
    state = model.begin(batch.source, batch.source_lengths)
    logits, values = [], []
    for position in range(batch.target_input.shape[1]):
        tokens = batch.target_input[:, position]
        state = model.consider(tokens, state)
        logits.append(model.reading_row(state))
        reads = None if path is None else path[:, position]
        step = model.step(tokens, state, reads=reads)
        state = step.state
        values.append(step.logits.log_softmax(-1))
    return torch.stack(logits, 1), torch.stack(values, 1)


@torch.no_grad()
def score_sentences(
    model: TranslationModel,
    source: Source,
    targets: Sequence[Sequence[int]],
    paths: Sequence[Sequence[int]] | None = None,
) -> list[list[float]]:
    """Return the log-probability of each target token and the end symbol, by teacher forcing.

    Each is read along its path, if there are paths. All are in one batch: test_models.py and
    test_reading.py show that padding has no effect.
    """
    batch = pair(source, *targets)
    sites = PredictionSites.offline(batch)
    if paths is not None:
        reads = torch.ones_like(batch.target_input)
        for row, path in enumerate(paths):
            reads[row, : len(path)] = torch.tensor(path)
        sites = PredictionSites.along(batch, reads)
    values = teacher_forced(model, batch, sites).gather(2, batch.target_output[:, :, None])
    return [row[: len(target) + 1, 0].tolist() for row, target in zip(values, targets, strict=True)]


@torch.no_grad()
def next_log_probabilities(
    model: TranslationModel, source: Source, target: Sequence[int]
) -> Tensor:
    """Return log-probabilities [len(target) + 1, V] after each prefix, by teacher forcing."""
    return teacher_forced(model, pair(source, target))[0]


def target_embeddings(model: TranslationModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return log-probabilities [B, T, V] and the embedded target [B, T, D] they came from.

    The embeddings are detached as leaves. They are detected as the output of the module that
    receives the target's token ids, so no architecture has to declare them.
    """
    caught: list[Tensor] = []

    def catch(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        first = inputs[0] if inputs else None
        tokens = batch.target_input
        if caught or not isinstance(first, Tensor) or not isinstance(output, Tensor):
            return None
        if first.dtype != tokens.dtype or first.shape != tokens.shape or output.dim() != 3:
            return None
        if not torch.equal(first, tokens):
            return None
        caught.append(output.detach().requires_grad_())
        return caught[0]

    hooks = [module.register_forward_hook(catch) for module in model.modules()]
    try:
        values = teacher_forced(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    assert caught, "no module of this model was called with the target's token ids"
    return values, caught[0]


def take_rows(state: Any, rows: Sequence[int]) -> Any:
    """Return `state` with `rows`, using the only function that search uses."""
    return take(state, torch.tensor(rows))


def begin_tokens(rows: int) -> Tensor:
    return torch.full((rows,), BEGIN)


def assert_close(actual: Tensor, expected: Tensor, limit: float = LIMIT) -> None:
    """Fail if two sets of log-probabilities differ by more than `limit` anywhere."""
    assert actual.shape == expected.shape
    difference = (actual - expected).abs().max().item()
    assert difference <= limit, f"differs by {difference:.2e}, allowed are {limit:.0e}"


@dataclasses.dataclass(frozen=True)
class Picky(Policy):
    """Writes only some of the proposed tokens, like a policy that uses predictions."""

    def decide(self, proposal: Proposal) -> Tensor:
        return (proposal.tokens * 5 + proposal.reads * 3 + proposal.step) % 7 < 3


@dataclasses.dataclass(frozen=True)
class Stubborn(Policy):
    """Writes always, or never."""

    always: bool = False

    def decide(self, proposal: Proposal) -> Tensor:
        return torch.full_like(proposal.reads, self.always, dtype=torch.bool)


def search_batch(
    models: list[Any], batch: Batch, plan: SearchPlan, **options: Any
) -> list[list[Hypothesis]]:
    """Return the results of a search over the batch's sources."""
    return search(models, batch.source, batch.source_lengths, plan, **options)


@contextlib.contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Let a model in training mode use its running statistics without updating them."""
    norms = [module for module in model.modules() if isinstance(module, BatchStatistics)]
    for norm in norms:
        # Updates put the whole model into training mode: these modules stay as they are.
        norm.eval().train = lambda mode=True, norm=norm: norm  # type: ignore[method-assign,misc]
    try:
        yield
    finally:
        for norm in norms:
            del norm.train
            norm.train()
