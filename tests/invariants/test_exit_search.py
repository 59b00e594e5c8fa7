"""Laws of decoding with early exits, over every setting that has them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from nmtgrid.adaptive.halting import FixedExit, GivenExits, Predicted, Thresholds
from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import collate
from nmtgrid.models.api import ExitModel, with_exits
from nmtgrid.models.transformer.exits import TransformerExits
from nmtgrid.online.policies import AlongPaths, WaitK
from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.search.engine import SearchRun, batches_together
from tests.invariants.exit_helpers import build, exits_and_batch, halts, predicted, sites_at
from tests.invariants.helpers import (
    LIMIT,
    Case,
    assert_close,
    batch_for,
    every_architecture,
    every_exit_case,
    model_and_batch,
    random_path,
    search_batch,
    stepwise,
)

SOURCES = (6, 2, 0, 9)
TARGETS = (4, 4, 4, 4)


@every_exit_case
def test_never_halting_is_plain_decoding(case: Case) -> None:
    model, batch = exits_and_batch(case, SOURCES, TARGETS)
    never = FixedExit(model.traits.num_exits)
    results, shares, _ = stepwise(model, batch, align=True, halt=never)
    expected, plain, _ = stepwise(model, batch, align=True)
    assert shares is not None and plain is not None
    assert_close(results, expected)
    assert_close(shares, plain)
    for beam in (1, 3):
        plan = SearchPlan(beam=beam, max_length_a=4, max_length_b=0.4)
        kept = search_batch([model], batch, plan, halt=never)
        for (first, *_), (second, *_) in zip(kept, search_batch([model], batch, plan), strict=True):
            assert first.tokens == second.tokens
            assert first.exits == [model.traits.num_exits] * (len(first.tokens) + 1)
            assert second.exits is None


@every_exit_case
@pytest.mark.parametrize("beam", [1, 3])
def test_alone_equals_in_a_batch(case: Case, beam: int) -> None:
    model, batch = exits_and_batch(case, SOURCES, TARGETS)
    keys = torch.tensor([11, 12, 13, 14])
    plan = SearchPlan(beam=beam, max_length_a=4, max_length_b=0.4)
    for halt in halts(model):
        together = search_batch([model], batch, plan, keys=keys, halt=halt, align=True)
        for row in range(len(batch)):
            own = batch.select(torch.tensor([row]))
            alone = search_batch([model], own, plan, keys=keys[row : row + 1], halt=halt)
            _assert_same(alone[0][0], together[row][0])


@pytest.mark.parametrize("exits", ["tied", "separate"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_one_sentence_equals_a_batch_of_64(exits: str, norm: str) -> None:
    settings = (("decoder_depth", 4), ("exits", exits), ("norm", norm), ("halting", "geometric"))
    model = build(Case("transformer", settings))
    lengths = [index % 9 for index in range(64)]
    batch = batch_for(model, lengths, [1] * 64)
    plan = SearchPlan(max_length_a=4, max_length_b=1)
    halt = Thresholds("geometric", (0.5,) * 3)
    together = search_batch([model], batch, plan, halt=halt)
    assert len({exit for (own,) in together for exit in own.exits or ()}) > 1
    for row in range(64):
        own = batch.select(torch.tensor([row]))
        (alone,) = search_batch([model], own, plan, halt=halt)[0]
        _assert_same(alone, together[row][0])


@every_exit_case
def test_searched_in_parts_by_exit(case: Case) -> None:
    """If exits are known in advance; all other halting mechanisms search all sentences together."""
    model, batch = exits_and_batch(case, SOURCES, TARGETS)
    keys = torch.tensor([11, 12, 13, 14])
    for plan in (
        SearchPlan(max_length_a=4, max_length_b=0.4),
        SearchPlan(beam=3, nbest=2, max_length_a=4, max_length_b=0.4),
        SearchPlan(sample=True, nbest=3, max_length_a=4, max_length_b=0.4),
    ):
        for halt in halts(model):
            options = {"keys": keys, "halt": halt, "align": True}
            together = search_batch([model], batch, plan, **options)
            for parts in (2, 3, 9) if batches_together(halt) > 1 else (3,):
                apart = search_batch([model], batch, plan, **options, parts=parts)
                for expected, results in zip(together, apart, strict=True):
                    for first, second in zip(results, expected, strict=True):
                        _assert_same(first, second)
                        assert first.alignment is not None and second.alignment is not None
                        assert_close(first.alignment, second.alignment)


def test_parts_hold_sentences_of_one_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = (("decoder_depth", 4), ("exits", "tied"), ("halting", "sequence"))
    model = build(Case("transformer", settings))
    assert isinstance(model, TransformerExits) and model.halting_map is not None
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(3)
        model.halting_map.weight.normal_(std=3.0)  # sentences differ in their exits
    batch = batch_for(model, [3 + index % 7 for index in range(32)], [1] * 32)
    exits = model.sentence_exits(model.begin(batch.source, batch.source_lengths))
    assert len(set(exits.tolist())) > 1
    seen: list[list[int]] = []
    begin = SearchRun.__init__

    def noted(self: SearchRun, models: Any, states: Any, *rest: Any, **options: Any) -> None:
        seen.append(model.sentence_exits(states[0]).tolist())
        begin(self, models, states, *rest, **options)

    plan, halt = SearchPlan(max_length_a=4, max_length_b=0.4), Predicted("sequence")
    together = search_batch([model], batch, plan, halt=halt)
    monkeypatch.setattr(SearchRun, "__init__", noted)
    apart = search_batch([model], batch, plan, halt=halt, parts=4)
    assert [len(part) for part in seen] == [8] * 4
    assert [exit for part in seen for exit in part] == sorted(exits.tolist())
    for exit, (results, *_), (expected, *_) in zip(exits.tolist(), apart, together, strict=True):
        _assert_same(results, expected)
        assert set(results.exits or ()) == {exit}


def _assert_same(results: Hypothesis, expected: Hypothesis) -> None:
    assert (results.tokens, results.exits) == (expected.tokens, expected.exits)
    assert results.score == pytest.approx(expected.score, abs=LIMIT)
    assert (results.exit_scores is None) == (expected.exit_scores is None)
    if results.exit_scores is not None and expected.exit_scores is not None:
        assert torch.allclose(results.exit_scores, expected.exit_scores, atol=LIMIT, equal_nan=True)


@every_exit_case
def test_a_hypothesis_has_the_score_of_its_exits(case: Case) -> None:
    model, batch = exits_and_batch(case, SOURCES, TARGETS)
    plan = SearchPlan(beam=3, nbest=3, max_length_a=4, max_length_b=0.4)
    for halt in halts(model):
        keys = torch.arange(4) + 20
        results = search_batch([model], batch, plan, keys=keys, halt=halt)
        for row, group in enumerate(results):
            _assert_forced(model, batch.source[row, : SOURCES[row]].tolist(), group)


@torch.no_grad()
def _assert_forced(model: ExitModel, source: list[int], group: list[Hypothesis]) -> None:
    """Score hypotheses of one source as a batch: test_exits.py shows that padding is harmless."""
    batch = collate([source] * len(group), [hypothesis.tokens for hypothesis in group])
    exits = _padded([hypothesis.exits for hypothesis in group])
    path = None if group[0].reads is None else _padded([each.reads for each in group])
    values = predicted(model, batch, sites_at(batch, exits, mixed=True, path=path))
    scores = values.gather(2, batch.target_output[:, :, None])[:, :, 0]
    for hypothesis, row in zip(group, scores.tolist(), strict=True):
        expected = row[: len(hypothesis.tokens) + 1]
        assert hypothesis.log_probabilities == pytest.approx(expected, abs=LIMIT * len(expected))


def _padded(rows: list[list[int] | None]) -> Tensor:
    """Return rows of exits or reads, padded with ones."""
    known = [torch.tensor(row) for row in rows if row is not None]
    assert len(known) == len(rows)
    return torch.nn.utils.rnn.pad_sequence(known, batch_first=True, padding_value=1.0)


@every_exit_case
def test_waiting_and_leaving_early_go_together(case: Case) -> None:
    model, batch = exits_and_batch(case, SOURCES, TARGETS)
    plan = SearchPlan(beam=2, max_length_a=4, max_length_b=0.4)
    for halt in halts(model):
        if halt.needs == "sequence":
            with pytest.raises(ConfigError, match="whole source"):
                search_batch([model], batch, plan, agent=WaitK(2), halt=halt)
            continue
        for agent in (WaitK(2), AlongPaths(random_path(batch), batch.target_lengths)):
            results = search_batch([model], batch, plan, agent=agent, halt=halt)
            for row, (hypothesis, *_) in enumerate(results):
                _assert_forced(model, batch.source[row, : SOURCES[row]].tolist(), [hypothesis])


@pytest.mark.parametrize("exits", ["tied", "separate"])
def test_rows_that_leave_together_are_not_gathered(
    monkeypatch: pytest.MonkeyPatch, exits: str
) -> None:
    """At a fixed exit; the same exits given one by one do gather rows, with the same output."""
    case = Case("transformer", (("decoder_depth", 3), ("exits", exits)))
    model, batch = exits_and_batch(case, (5, 2, 4), (1, 1, 1))
    plan = SearchPlan(max_length_a=5, max_length_b=1)
    gathered: list[int] = []
    classify = TransformerExits.classify_exits

    def counted(self: TransformerExits, features: Tensor, exits: Tensor) -> Tensor:
        gathered.append(len(exits))
        return classify(self, features, exits)

    monkeypatch.setattr(TransformerExits, "classify_exits", counted)
    alone = []
    for exit in (1, 2, 3):
        results = search_batch([model], batch, plan, halt=FixedExit(exit))
        assert all(set(best.exits or ()) == {exit} for (best,) in results)
        alone.append([best.tokens for (best,) in results])
    assert not gathered
    rows = GivenExits(torch.tensor([[1], [2], [3]]).expand(3, 40))
    mixed = search_batch([model], batch, plan, halt=rows)
    assert gathered
    assert [best.tokens for (best,) in mixed] == [alone[row][row] for row in range(3)]


@every_architecture
def test_models_of_one_exit_refuse(case: Case) -> None:
    model, batch = model_and_batch(case, SOURCES, TARGETS)
    with pytest.raises(ConfigError, match="one exit"):
        search_batch([model], batch, SearchPlan(), halt=FixedExit(1))
    with pytest.raises(ConfigError, match="one exit"):
        with_exits(model)
