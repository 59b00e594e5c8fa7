"""Laws of search: it finds what enumeration finds, and says what teacher forcing says."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from nmtgrid.models.api import TranslationModel
from nmtgrid.search import engine
from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.search.select import Beam
from nmtgrid.text.vocabulary import BEGIN, END, PAD
from tests.laws.helpers import (
    LIMIT,
    Case,
    Source,
    basic_cases,
    batch_for,
    cases,
    next_log_probabilities,
    score_sentence,
    source_of,
)

every_case = pytest.mark.parametrize("case", cases(), ids=str)
every_architecture = pytest.mark.parametrize("case", basic_cases(), ids=str)

SOURCES = (6, 2, 0, 9)
TARGETS = (4, 4, 4, 4)


def _search(
    model: TranslationModel, source: torch.Tensor, lengths: torch.Tensor, plan: SearchPlan
) -> list[list[Hypothesis]]:
    return engine.search([model], source, lengths, plan)


def _longest(model: TranslationModel, source: Source, limit: int) -> int:
    """Return the most target tokens; where the source's end is not shown, its own at most."""
    return min(limit, len(source)) if model.traits.hides_source_end else limit


def _greedy(model: TranslationModel, source: Source, limit: int) -> list[int]:
    """Return the likeliest token after each prefix, every prefix computed anew.

    Where the source's end is not shown, none is the last one before the longest.
    """
    found: list[int] = []
    longest = _longest(model, source, limit)
    while len(found) < longest:
        values = next_log_probabilities(model, source, found)
        values[[PAD, BEGIN]] = -math.inf
        if model.traits.hides_source_end:
            values[END] = -math.inf
        token = int(values.argmax())
        if token == END:
            break
        found.append(token)
    return found


@every_case
def test_width_one_is_greedy(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    model = case.build()
    batch = batch_for(model, SOURCES, TARGETS)
    plan = SearchPlan(beam=1, max_length_a=6, max_length_b=0.5)
    found = _search(model, batch.source, batch.source_lengths, plan)
    monkeypatch.setattr(engine, "Greedy", lambda: Beam(1))
    by_beam = _search(model, batch.source, batch.source_lengths, plan)
    for row, count in enumerate(SOURCES):
        # A picture counts as 20 tokens, whatever its regions.
        length = 20 if model.traits.source_features else count
        wanted = _greedy(model, source_of(batch, row), 6 + length // 2)
        assert found[row][0].tokens == wanted
        assert by_beam[row][0].tokens == wanted


@every_case
def test_a_wide_beam_is_brute_force(case: Case) -> None:
    """With <unk> and two words, 1 + 3 + 9 + 27 translations have at most three tokens.

    The 27 alone are left where the length must be the source's, or as near to it as may be.
    """
    model = case.build(source_types=6, target_types=6)
    source = batch_for(model, (4,), (1,))
    plan = SearchPlan(beam=40, nbest=40, length_penalty=0.7, max_length_a=3, max_length_b=0)
    found = _search(model, source.source, source.source_lengths, plan)[0]
    words = source_of(source, 0)
    every = [
        (sum(score_sentence(model, words, list(tokens))) / (length + 1) ** 0.7, list(tokens))
        for length in ([3] if model.traits.hides_source_end else range(4))
        for tokens in itertools.product((3, 4, 5), repeat=length)
    ]
    every.sort(reverse=True)
    assert len(found) == len(every) == (27 if model.traits.hides_source_end else 40)
    assert sorted(one.tokens for one in found) == sorted(tokens for _, tokens in every)
    for one, (score, _) in zip(found, every, strict=True):
        assert one.score == pytest.approx(score, abs=LIMIT)
    scores = {tuple(tokens): score for score, tokens in every}
    assert all(one.score == pytest.approx(scores[tuple(one.tokens)], abs=LIMIT) for one in found)


@every_case
def test_a_hypothesis_has_the_score_of_its_tokens(case: Case) -> None:
    """Eq. (2.28) with mu = 1 and alpha = 0.6 over the teacher-forced log-probabilities."""
    model = case.build()
    batch = batch_for(model, SOURCES, TARGETS)
    plan = SearchPlan(
        beam=4, nbest=4, length_penalty=0.6, length_offset=1.0, max_length_a=5, max_length_b=1
    )
    for row, group in enumerate(_search(model, batch.source, batch.source_lengths, plan)):
        source = source_of(batch, row)
        assert group
        assert [one.score for one in group] == sorted((one.score for one in group), reverse=True)
        assert len({tuple(one.tokens) for one in group}) == len(group)
        for one in group:
            wanted = score_sentence(model, source, one.tokens)
            assert one.log_probabilities == pytest.approx(wanted, abs=LIMIT * len(wanted))
            assert one.log_probability == pytest.approx(sum(wanted), abs=LIMIT * len(wanted))
            norm = ((1 + len(wanted)) / 2) ** 0.6
            assert one.score == pytest.approx(sum(wanted) / norm, abs=LIMIT * len(wanted))


def _wide(source: torch.Tensor) -> torch.Tensor:
    """Return token ids as they are, features of pictures in fp64."""
    return source.double() if source.is_floating_point() else source


@every_case
@pytest.mark.parametrize("beam", [1, 3])
def test_alone_equals_in_a_batch(case: Case, beam: int) -> None:
    """In fp64: in fp32 two prefixes may lie so near that rounding tells which one a beam drops."""
    model = case.build().double()
    batch = batch_for(model, SOURCES, TARGETS)
    plan = SearchPlan(beam=beam, nbest=beam, max_length_a=5, max_length_b=1)
    together = _search(model, _wide(batch.source), batch.source_lengths, plan)
    for row in range(len(batch)):
        one = batch.select(torch.tensor([row]))
        alone = _search(model, _wide(one.source), one.source_lengths, plan)[0]
        assert [found.tokens for found in alone] == [found.tokens for found in together[row]]
        for found, wanted in zip(alone, together[row], strict=True):
            assert found.score == pytest.approx(wanted.score, abs=LIMIT)


@every_architecture
def test_an_ensemble_of_one_model_twice_is_that_model(case: Case) -> None:
    model = case.build()
    batch = batch_for(model, SOURCES, TARGETS)
    plan = SearchPlan(beam=3, max_length_a=5, max_length_b=1)
    single = engine.search([model], batch.source, batch.source_lengths, plan)
    double = engine.search([model, model], batch.source, batch.source_lengths, plan)
    for (one, *_), (two, *_) in zip(single, double, strict=True):
        assert one.tokens == two.tokens
        assert one.score == pytest.approx(two.score, abs=LIMIT)


@every_architecture
def test_an_ensemble_averages_probabilities(case: Case) -> None:
    first, second = case.build(), case.build()
    batch = batch_for(first, (5,), (1,))
    plan = SearchPlan(beam=1, max_length_a=4, max_length_b=0)
    found = engine.search([first, second], batch.source, batch.source_lengths, plan)[0][0]
    source = source_of(batch, 0)
    pairs = zip(
        score_sentence(first, source, found.tokens),
        score_sentence(second, source, found.tokens),
        strict=True,
    )
    wanted = [math.log((math.exp(one) + math.exp(two)) / 2) for one, two in pairs]
    assert found.log_probabilities == pytest.approx(wanted, abs=LIMIT)


@every_architecture
def test_draws_do_not_depend_on_the_batch(case: Case) -> None:
    model = case.build()
    batch = batch_for(model, SOURCES, TARGETS)
    plan = SearchPlan(sample=True, nbest=2, seed=7, max_length_a=6, max_length_b=0)
    keys = torch.tensor([11, 12, 13, 14])
    together = engine.search([model], batch.source, batch.source_lengths, plan, keys=keys)
    for row in range(len(batch)):
        one = batch.select(torch.tensor([row]))
        alone = engine.search(
            [model], one.source, one.source_lengths, plan, keys=keys[row : row + 1]
        )[0]
        assert {tuple(found.tokens) for found in alone} == {
            tuple(found.tokens) for found in together[row]
        }
