"""Laws of decoding with early exits, over every setting that has them."""

from __future__ import annotations

import pytest
import torch

from nmtgrid.adaptive.halting import (
    FixedExit,
    Thresholds,
)
from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import collate
from nmtgrid.models.api import ExitModel, with_exits
from nmtgrid.online.policies import AlongPaths, WaitK
from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.search.engine import search
from tests.laws.exit_helpers import build, halts, predicted, sites_at
from tests.laws.helpers import (
    LIMIT,
    Case,
    assert_close,
    basic_cases,
    batch_for,
    exit_cases,
    random_path,
    stepwise,
)

every_case = pytest.mark.parametrize("case", exit_cases(), ids=str)

SOURCES = (6, 2, 0, 9)
TARGETS = (4, 4, 4, 4)


@every_case
def test_never_halting_is_plain_decoding(case: Case) -> None:
    model = build(case)
    batch = batch_for(model, SOURCES, TARGETS)
    never = FixedExit(model.traits.num_exits)
    found, shares, _ = stepwise(model, batch, align=True, halt=never)
    wanted, plain, _ = stepwise(model, batch, align=True)
    assert shares is not None and plain is not None
    assert_close(found, wanted)
    assert_close(shares, plain)
    for beam in (1, 3):
        plan = SearchPlan(beam=beam, max_length_a=6, max_length_b=1)
        kept = search([model], batch.source, batch.source_lengths, plan, halt=never)
        for (one, *_), (two, *_) in zip(
            kept, search([model], batch.source, batch.source_lengths, plan), strict=True
        ):
            assert one.tokens == two.tokens
            assert one.exits == [model.traits.num_exits] * (len(one.tokens) + 1)
            assert two.exits is None


@every_case
@pytest.mark.parametrize("beam", [1, 3])
def test_alone_equals_in_a_batch(case: Case, beam: int) -> None:
    model = build(case)
    batch = batch_for(model, SOURCES, TARGETS)
    keys = torch.tensor([11, 12, 13, 14])
    plan = SearchPlan(beam=beam, max_length_a=5, max_length_b=1)
    for halt in halts(model):
        together = search(
            [model], batch.source, batch.source_lengths, plan, keys=keys, halt=halt, align=True
        )
        for row in range(len(batch)):
            one = batch.select(torch.tensor([row]))
            alone = search(
                [model], one.source, one.source_lengths, plan, keys=keys[row : row + 1], halt=halt
            )
            _assert_same(alone[0][0], together[row][0])


@pytest.mark.parametrize("exits", ["tied", "separate"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_one_sentence_equals_a_batch_of_64(exits: str, norm: str) -> None:
    settings = (("decoder_depth", 4), ("exits", exits), ("norm", norm), ("halting", "geometric"))
    model = build(Case("transformer", settings))
    lengths = [place % 9 for place in range(64)]
    batch = batch_for(model, lengths, [1] * 64)
    plan = SearchPlan(max_length_a=4, max_length_b=1)
    halt = Thresholds("geometric", (0.5,) * 3)
    together = search([model], batch.source, batch.source_lengths, plan, halt=halt)
    assert len({exit for (one,) in together for exit in one.exits or ()}) > 1
    for row in range(64):
        one = batch.select(torch.tensor([row]))
        (alone,) = search([model], one.source, one.source_lengths, plan, halt=halt)[0]
        _assert_same(alone, together[row][0])


def _assert_same(found: Hypothesis, wanted: Hypothesis) -> None:
    assert (found.tokens, found.exits) == (wanted.tokens, wanted.exits)
    assert found.score == pytest.approx(wanted.score, abs=LIMIT)
    assert (found.exit_scores is None) == (wanted.exit_scores is None)
    if found.exit_scores is not None and wanted.exit_scores is not None:
        assert torch.allclose(found.exit_scores, wanted.exit_scores, atol=LIMIT, equal_nan=True)


@every_case
def test_a_hypothesis_has_the_score_of_its_exits(case: Case) -> None:
    model = build(case)
    batch = batch_for(model, SOURCES, TARGETS)
    plan = SearchPlan(beam=3, nbest=3, max_length_a=5, max_length_b=1)
    for halt in halts(model):
        keys = torch.arange(4) + 20
        found = search([model], batch.source, batch.source_lengths, plan, keys=keys, halt=halt)
        for row, group in enumerate(found):
            for one in group:
                _assert_forced(model, batch.source[row, : SOURCES[row]].tolist(), one)


def _assert_forced(model: ExitModel, source: list[int], one: Hypothesis) -> None:
    batch = collate([source], [one.tokens])
    path = None if one.reads is None else torch.tensor([one.reads])
    sites = sites_at(batch, torch.tensor([one.exits]), mixed=True, path=path)
    values = predicted(model, batch, sites)[0]
    wanted = values.gather(1, batch.target_output[0, :, None])[:, 0].tolist()
    assert one.log_probabilities == pytest.approx(wanted, abs=LIMIT * len(wanted))


@every_case
def test_waiting_and_leaving_early_go_together(case: Case) -> None:
    model = build(case)
    batch = batch_for(model, SOURCES, TARGETS)
    plan = SearchPlan(beam=2, max_length_a=5, max_length_b=1)
    for halt in halts(model):
        if halt.needs == "sequence":
            with pytest.raises(ConfigError, match="whole source"):
                search([model], batch.source, batch.source_lengths, plan, agent=WaitK(2), halt=halt)
            continue
        for agent in (WaitK(2), AlongPaths(random_path(batch), batch.target_lengths)):
            found = search(
                [model], batch.source, batch.source_lengths, plan, agent=agent, halt=halt
            )
            for row, (one, *_) in enumerate(found):
                _assert_forced(model, batch.source[row, : SOURCES[row]].tolist(), one)


@pytest.mark.parametrize("case", basic_cases(), ids=str)
def test_models_of_one_exit_refuse(case: Case) -> None:
    model = case.build()
    batch = batch_for(model, SOURCES, TARGETS)
    with pytest.raises(ConfigError, match="one exit"):
        search([model], batch.source, batch.source_lengths, SearchPlan(), halt=FixedExit(1))
    with pytest.raises(ConfigError, match="one exit"):
        with_exits(model)
