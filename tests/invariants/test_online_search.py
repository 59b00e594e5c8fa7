"""Laws of online decoding: along any path, decoding agrees with teacher forcing."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import Batch
from nmtgrid.models.api import Step, TranslationModel
from nmtgrid.online.policies import AlongPaths, WaitK
from nmtgrid.search.api import Agent, Hypothesis, SearchPlan
from tests.invariants.helpers import (
    LIMIT,
    Case,
    Picky,
    Source,
    Stubborn,
    batch_for,
    every_architecture,
    every_online_case,
    model_and_batch,
    online_cases,
    random_path,
    score_sentences,
    search_batch,
    source_of,
)

SOURCES = (6, 2, 0, 9)
TARGETS = (4, 4, 4, 4)
PLAN = SearchPlan(max_length_a=5, max_length_b=1)


def _blind_cases() -> list[Case]:
    """Return the cases whose models do not see the end of the source."""
    return [case for case in online_cases() if case.traits.hides_source_end]


def _decode(
    model: TranslationModel, batch: Batch, agent: Agent, beam: int = 1
) -> list[list[Hypothesis]]:
    plan = SearchPlan(beam=beam, nbest=beam, max_length_a=5, max_length_b=1)
    return search_batch([model], batch, plan, agent=agent)


def _assert_scores(
    model: TranslationModel, source: Source, hypotheses: Sequence[Hypothesis]
) -> None:
    """Check that token and end log-probabilities are those along the hypothesis' own path."""
    paths = [hypothesis.reads for hypothesis in hypotheses if hypothesis.reads is not None]
    assert len(paths) == len(hypotheses)
    tokens = [hypothesis.tokens for hypothesis in hypotheses]
    scores = score_sentences(model, source, tokens, paths)
    for hypothesis, expected in zip(hypotheses, scores, strict=True):
        assert hypothesis.log_probabilities == pytest.approx(expected, abs=LIMIT * len(expected))


@every_online_case
@pytest.mark.parametrize("beam", [1, 3])
def test_a_hypothesis_has_the_score_of_its_path(case: Case, beam: int) -> None:
    model, batch = model_and_batch(case, SOURCES, TARGETS)
    for row, group in enumerate(_decode(model, batch, WaitK(2), beam)):
        length = SOURCES[row] + 1
        for hypothesis in group:
            assert hypothesis.reads == [
                min(2 + t, length) for t in range(len(hypothesis.tokens) + 1)
            ]
        _assert_scores(model, source_of(batch, row), group)


@every_online_case
def test_a_policy_that_sees_predictions_has_the_score_of_its_path(case: Case) -> None:
    """Rows of a beam write at different reads; test_streaming.py tests greedy search."""
    model, batch = model_and_batch(case, SOURCES, TARGETS)
    for row, group in enumerate(_decode(model, batch, Picky(floor=1, cap=5), beam=3)):
        for hypothesis in group:
            assert hypothesis.reads is not None
            for step, reads in enumerate(hypothesis.reads):
                length = SOURCES[row] + 1
                assert min(1 + step, length) <= reads <= min(5 + step, length)
        _assert_scores(model, source_of(batch, row), group)


@dataclasses.dataclass(frozen=True)
class _PickyAlone(Picky):
    """The same decisions, which may be requested for several reads of a row at once."""

    judges_rows_alone = True


@every_online_case
@pytest.mark.parametrize(
    ("beam", "settings"),
    [(1, {}), (1, {"finish_reading": True}), (3, {"floor": 1, "cap": 3})],
    ids=["greedy", "reads-to-the-end", "beam-with-cap"],
)
def test_proposals_of_several_reads_at_once_change_nothing(
    case: Case, beam: int, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only models that predict at every cell use such requests, and need no more calls."""
    model, batch = model_and_batch(case, SOURCES, TARGETS)
    rows_asked: list[list[int]] = []
    propose = model.propose

    def counted(state: Any, reads: Tensor, rows: Tensor | None = None, align: bool = False) -> Step:
        rows_asked.append([] if rows is None else rows.tolist())
        return propose(state, reads, rows=rows, align=align)

    monkeypatch.setattr(model, "propose", counted)
    expected = _decode(model, batch, Picky(**settings), beam)
    calls, is_asked_again = len(rows_asked), any(rows_asked)
    assert all(len(set(rows)) == len(rows) for rows in rows_asked)
    rows_asked.clear()
    hypotheses = _decode(model, batch, _PickyAlone(**settings), beam)
    is_ahead = any(len(set(rows)) < len(rows) for rows in rows_asked)
    assert is_ahead == (is_asked_again and model.traits.every_cell) and len(rows_asked) <= calls
    for nbest, expected_nbest in zip(hypotheses, expected, strict=True):
        for one_call, by_column in zip(nbest, expected_nbest, strict=True):
            assert (one_call.tokens, one_call.reads) == (by_column.tokens, by_column.reads)
            assert one_call.score == pytest.approx(by_column.score, abs=LIMIT)


@every_online_case
def test_the_ends_of_what_a_policy_can_do(case: Case) -> None:
    """Never writing before the source's end is offline translation; always writing is wait-k."""
    model, batch = model_and_batch(case, SOURCES, TARGETS)
    for policy, same in ((Stubborn(), WaitK(math.inf)), (Stubborn(always=True, floor=2), WaitK(2))):
        pairs = zip(_decode(model, batch, policy), _decode(model, batch, same), strict=True)
        for (hypothesis,), (expected,) in pairs:
            assert (hypothesis.tokens, hypothesis.reads) == (expected.tokens, expected.reads)
            assert hypothesis.score == pytest.approx(expected.score, abs=LIMIT)


@every_online_case
@pytest.mark.parametrize("beam", [1, 3])
def test_any_path_alone_equals_in_a_batch(case: Case, beam: int) -> None:
    model, batch = model_and_batch(case, SOURCES, TARGETS)
    paths = random_path(batch)
    together = _decode(model, batch, AlongPaths(paths, batch.target_lengths), beam)
    for row in range(len(batch)):
        chosen = torch.tensor([row])
        alone = batch.select(chosen)
        agent = AlongPaths(paths[chosen], alone.target_lengths)
        # Only the best: two prefixes of nearly equal scores may be swapped further down.
        hypothesis, expected = _decode(model, alone, agent, beam)[0][0], together[row][0]
        assert (hypothesis.tokens, hypothesis.reads) == (expected.tokens, expected.reads)
        assert hypothesis.score == pytest.approx(expected.score, abs=LIMIT)


@every_online_case
def test_waiting_for_the_end_is_offline_decoding(case: Case) -> None:
    model, batch = model_and_batch(case, SOURCES, TARGETS)
    offline = search_batch([model], batch, PLAN)
    for (hypothesis,), (expected,) in zip(
        _decode(model, batch, WaitK(math.inf)), offline, strict=True
    ):
        assert hypothesis.tokens == expected.tokens
        assert hypothesis.reads is not None and expected.reads is None
        assert hypothesis.score == pytest.approx(expected.score, abs=LIMIT)


@pytest.mark.parametrize("case", _blind_cases(), ids=str)
@pytest.mark.parametrize(
    "plan",
    [PLAN, SearchPlan(beam=3, min_length=5), SearchPlan(max_length_a=2, max_length_b=0.5)],
    ids=["greedy", "beam-of-at-least-5", "short"],
)
def test_what_is_not_shown_the_end_is_as_long_as_the_source(case: Case, plan: SearchPlan) -> None:
    """Offline, with k = inf and with k = 2; the plan's maximum applies, its minimum does not."""
    model, batch = model_and_batch(case, SOURCES, TARGETS)
    longest = [5, 3, 2, 6] if plan.max_length_a == 2 else [99] * 4  # 2 + |x| / 2
    for agent in (None, WaitK(math.inf), WaitK(2), WaitK(2, finish_reading=True)):
        hypothesis = search_batch([model], batch, plan, agent=agent)
        lengths = [len(alone.tokens) for (alone,) in hypothesis]
        assert lengths == [min(pair) for pair in zip(SOURCES, longest, strict=True)]


@every_online_case
def test_finish_reading_ends_no_earlier(case: Case) -> None:
    model, batch = model_and_batch(case, SOURCES, TARGETS)
    free = _decode(model, batch, WaitK(1))
    for row, (hypothesis,) in enumerate(_decode(model, batch, WaitK(1, finish_reading=True))):
        assert hypothesis.reads is not None
        limit = 5 + SOURCES[row]
        assert hypothesis.reads[-1] == SOURCES[row] + 1 or len(hypothesis.tokens) == limit
        assert len(hypothesis.tokens) >= len(free[row][0].tokens)


@every_architecture
def test_models_that_cannot_go_online_refuse(case: Case) -> None:
    model = case.build()
    if model.traits.prefix_safe:
        pytest.skip("this one can")
    batch = batch_for(model, SOURCES, TARGETS)
    with pytest.raises(ConfigError, match=r"cannot (translate|caption) simultaneously"):
        _decode(model, batch, WaitK(2))
