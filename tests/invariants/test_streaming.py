"""Law of streams: the output while the source arrives is that of a search over the whole source.

Token for token and delay for delay, for every online model, and computing only what is new: a READ
is a column of the grid, a WRITE a row.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from nmtgrid.adaptive.halting import RandomExit
from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import Batch
from nmtgrid.models.api import Halt, TranslationModel
from nmtgrid.online.policies import AlignAtt, Bounded, EDAtt, Entropy, Threshold, WaitK
from nmtgrid.online.stream import TokenStream
from nmtgrid.search.api import Agent, Hypothesis, SearchPlan
from nmtgrid.search.engine import search
from tests.invariants.exit_helpers import build, halts
from tests.invariants.helpers import (
    LIMIT,
    Case,
    Picky,
    batch_for,
    every_architecture,
    every_exit_case,
    every_online_case,
    every_reader,
    model_and_batch,
)

SOURCES = (6, 0, 1, 8)
ROOMY = SearchPlan(max_length_a=4, max_length_b=1)
TIGHT = SearchPlan(max_length_a=0.5, max_length_b=0.6, min_length=3)


@dataclasses.dataclass(frozen=True)
class Moody(Agent):
    """Writes at some cells and not at others, like an agent with a reader."""

    finish_reading: bool = False

    def next_reads(
        self, step: int, sentence: Tensor, reads: Tensor, lengths: Tensor, rho: Tensor | None
    ) -> Tensor:
        columns = torch.arange(1, int(lengths.max()) + 1)
        writes = (columns * 5 + step * 3) % 7 < 2
        writes = writes & (columns >= reads[:, None])
        return torch.where(writes, columns, lengths[:, None]).amin(1).minimum(lengths)


AGENTS: dict[str, tuple[Agent, SearchPlan]] = {
    "wait-2": (WaitK(2), ROOMY),
    "wait-inf": (WaitK(math.inf), ROOMY),
    "moody": (Moody(), SearchPlan(max_length_a=12, max_length_b=0)),
    "picky": (Bounded(Picky(floor=1, cap=6, finish_reading=True), TIGHT), TIGHT),
    "entropy": (Entropy(2.0, floor=1, cap=4), ROOMY),
    "alignatt": (AlignAtt(1, floor=2, cap=5, finish_reading=True), ROOMY),
    "edatt": (EDAtt(0.4, last=2, floor=1, cap=6, finish_reading=True), ROOMY),
    "moody-tight": (Bounded(Moody(finish_reading=True), TIGHT), TIGHT),
}


def _searched(
    model: TranslationModel, batch: Batch, agent: Agent, plan: SearchPlan, halt: Halt | None = None
) -> list[Hypothesis]:
    if model.traits.hides_source_end:
        agent = Bounded(agent, plan, end_is_hidden=True)
    hypothesis = search(
        [model], batch.source, batch.source_lengths, plan,
        agent=agent, halt=halt, align=model.traits.aligns,
    )  # fmt: skip
    return [best for (best,) in hypothesis]


def _streamed(
    model: TranslationModel,
    source: list[int],
    agent: Agent,
    plan: SearchPlan,
    halt: Halt | None = None,
) -> tuple[Hypothesis, list[int]]:
    """Return the translation and, for each token, how many source tokens had actually arrived."""
    stream = TokenStream([model], agent, plan, halt=halt, align=model.traits.aligns)
    arrived: list[int] = []
    for count, token in enumerate(source, start=1):
        arrived += [count] * len(stream.read([token]))
        assert not (stream.is_finished and len(stream.reads) == len(stream.tokens))
    arrived += [len(source) + 1] * len(stream.end())
    assert stream.is_finished and stream.read([5]) == stream.end() == []
    return stream.hypothesis(), arrived


def _check_same(hypothesis: Hypothesis, expected: Hypothesis) -> None:
    assert hypothesis.tokens == expected.tokens
    assert hypothesis.reads == expected.reads
    assert hypothesis.log_probabilities == pytest.approx(expected.log_probabilities, abs=LIMIT)
    assert hypothesis.score == pytest.approx(expected.score, abs=LIMIT)
    assert (hypothesis.alignment is None) == (expected.alignment is None)
    if hypothesis.alignment is not None and expected.alignment is not None:
        # The tests continue after the end: further columns are those of unread tokens.
        both = hypothesis.alignment, expected.alignment
        width = min(alignment.shape[1] for alignment in both)
        first, second = (alignment[:, :width] for alignment in both)
        torch.testing.assert_close(first, second, atol=LIMIT, rtol=LIMIT)
        assert not any(alignment[:, width:].any() for alignment in both)


@every_online_case
@pytest.mark.parametrize("name", AGENTS)
def test_streaming_is_searching(case: Case, name: str) -> None:
    model, (agent, plan) = case.build(), AGENTS[name]
    batch = batch_for(model, SOURCES, (1, 1, 1, 1))
    if agent.wants_alignment and not model.traits.aligns:
        pytest.skip("this architecture yields no alignments")
    for row, expected in enumerate(_searched(model, batch, agent, plan)):
        source = batch.source[row, : SOURCES[row]].tolist()
        hypothesis, arrived = _streamed(model, source, agent, plan)
        _check_same(hypothesis, expected)
        assert hypothesis.reads is not None and hypothesis.reads[:-1] == arrived


@every_exit_case
def test_streaming_with_exits_is_searching(case: Case) -> None:
    """Tokens, reads and exits; except sequence-specific exits, which need the whole source."""
    model, (agent, plan) = build(case), AGENTS["wait-2"]
    batch = batch_for(model, SOURCES, (1, 1, 1, 1))
    for halt in halts(model):
        if isinstance(halt, RandomExit):
            continue  # random exits depend on the sentence's key, which a stream does not have
        if halt.needs == "sequence":
            with pytest.raises(ConfigError, match="chosen from the whole source"):
                TokenStream([model], agent, plan, halt=halt)
            continue
        for row, expected in enumerate(_searched(model, batch, agent, plan, halt)):
            source = batch.source[row, : SOURCES[row]].tolist()
            hypothesis, _ = _streamed(model, source, agent, plan, halt)
            _check_same(hypothesis, expected)
            assert hypothesis.exits == expected.exits and hypothesis.exits is not None
            assert len(hypothesis.exits) == len(hypothesis.tokens) + 1
            assert (hypothesis.exit_scores is None) == (expected.exit_scores is None)
            if hypothesis.exit_scores is not None and expected.exit_scores is not None:
                pairs = hypothesis.exit_scores, expected.exit_scores
                torch.testing.assert_close(*pairs, rtol=0, atol=LIMIT, equal_nan=True)


@every_reader
def test_dynamic_streaming_is_searching(case: Case) -> None:
    """At thresholds at which the reader sometimes reads and sometimes writes."""
    model, batch = model_and_batch(case, (6, 4, 9), (9, 9, 9))
    rho = model.reading(batch)[batch.is_target].sigmoid().detach()
    paths = set()
    for share in (0.4, 0.6, 0.8):
        threshold = float(rho.quantile(share))
        agent = Bounded(Threshold(threshold, finish_reading=share < 0.5), TIGHT)
        for row, expected in enumerate(_searched(model, batch, agent, TIGHT)):
            source = batch.source[row, : int(batch.source_lengths[row]) - 1].tolist()
            hypothesis, arrived = _streamed(model, source, agent, TIGHT)
            _check_same(hypothesis, expected)
            assert hypothesis.reads is not None and hypothesis.reads[:-1] == arrived
            paths.add(tuple(hypothesis.reads))
    assert len(paths) > 2


@every_online_case
def test_words_of_several_units_are_read_unit_by_unit(case: Case) -> None:
    """Units that arrive together change when tokens are written, but not which, nor their reads."""
    model = case.build()
    source = batch_for(model, (9,), (1,)).source[0, :9].tolist()
    expected, _ = _streamed(model, source, WaitK(2), ROOMY)
    stream = TokenStream([model], WaitK(2), ROOMY, align=model.traits.aligns)
    for start, stop in ((0, 4), (4, 4), (4, 5), (5, 9)):
        stream.read(source[start:stop])
    stream.end()
    _check_same(stream.hypothesis(), expected)


@every_architecture
def test_models_that_cannot_go_online_refuse(case: Case) -> None:
    model = case.build()
    if model.traits.prefix_safe:
        pytest.skip("this one can")
    with pytest.raises(ConfigError, match=r"cannot (translate|caption) simultaneously"):
        TokenStream([model], WaitK(2), ROOMY)


def test_an_ensemble_streams() -> None:
    torch.manual_seed(7)
    first, second = (Case("pervasive", (("source_causal", True),)).build() for _ in range(2))
    batch = batch_for(first, (6,), (1,))
    stream = TokenStream([first, second], WaitK(2), ROOMY)
    stream.read(batch.source[0, :6].tolist())
    stream.end()
    args = ([first, second], batch.source, batch.source_lengths, ROOMY)
    _check_same(stream.hypothesis(), search(*args, agent=WaitK(2))[0][0])


# Computational cost.


@contextmanager
def _counted(model: TranslationModel) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the most positions of any part since its last call."""
    counts: dict[str, int] = {}

    def watch(name: str) -> Callable[..., None]:
        def count(module: nn.Module, inputs: object, output: object) -> None:
            if isinstance(output, Tensor):
                counts[name] = counts.get(name, 0) + output.numel() // output.shape[-1]

        return count

    def most() -> int:
        hypothesis = max(counts.values(), default=0)
        counts.clear()
        return hypothesis

    parts = dict(model.named_modules())
    if getattr(model.config, "transparent", False):
        del parts["encoder_norm"]  # runs once for each decoder block, which all read their own
    hooks = [part.register_forward_hook(watch(name)) for name, part in parts.items()]
    try:
        yield most
    finally:
        for hook in hooks:
            hook.remove()


@every_online_case
@pytest.mark.parametrize("agent", [WaitK(2), Moody()], ids=["wait-2", "moody"])
def test_what_reads_and_writes_cost(case: Case, agent: Agent) -> None:
    _check_costs(case, agent)


@every_reader
def test_what_dynamic_reads_and_writes_cost(case: Case) -> None:
    _check_costs(case, Threshold(0.5))


def _check_costs(case: Case, agent: Agent) -> None:
    """A READ runs each layer over the rows that see the new column, a WRITE over the source read.

    Without a receptive field that is one position per token (for an encoder), and all rows if
    predictions use all of them. A bidirectional encoder starts again, once for each WRITE after a
    READ.
    """
    model = case.build()
    field = model.traits.target_receptive_field
    if not model.traits.every_cell:
        field = 1
    elif dict(case.settings).get("online_features") == "grid":
        field = None
    elif field is not None:
        depth = getattr(model.config, "reader_depth", None) or 0
        field = max(field, 1 + depth * (model.config.target_kernel // 2))
    plan = SearchPlan(max_length_a=3, max_length_b=2, min_length=20)
    stream = TokenStream([model], agent, plan)
    reads, writes, rows = 0, 0, 0
    with _counted(model) as most:
        extend, step = model.extend, model.step

        def read(tokens: Tensor, state: object) -> object:
            nonlocal reads
            most()
            state, reads = extend(tokens, state), reads + 1
            limit = max(1, rows if field is None else min(rows, field))
            assert most() <= limit, (reads, writes)
            return state

        def write(tokens: Tensor, state: object, **options: object) -> object:
            nonlocal writes, rows
            most()
            hypothesis, writes = step(tokens, state, **options), writes + 1  # type: ignore[arg-type]
            rows = writes
            lead = 1 if model.traits.reencodes else 0  # `<s>`, or a zero pair, before the source
            assert most() <= reads + lead, (reads, writes)
            return hypothesis

        def consider(tokens: Tensor, state: object) -> object:
            nonlocal rows
            most()
            hypothesis, rows = considered(tokens, state), writes + 1
            assert most() <= reads, (reads, writes)
            return hypothesis

        considered, model.consider = model.consider, consider  # type: ignore[method-assign]
        model.extend, model.step = read, write  # type: ignore[method-assign,assignment]
        for token in torch.randint(4, 11, (14,)).tolist():
            stream.read([token])
        stream.end()
    assert reads > 4 and writes == len(stream.tokens) + 1 > 10
