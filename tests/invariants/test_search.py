"""Laws of search: its results are those of enumeration, its scores those of teacher forcing."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import pytest
import torch

from nmtgrid.models.api import TranslationModel
from nmtgrid.search import steps
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.select import Beam
from nmtgrid.text.vocabulary import BEGIN, END, PAD
from tests.invariants.helpers import (
    LIMIT,
    Case,
    Source,
    batch_for,
    every_architecture,
    every_case,
    model_and_batch,
    next_log_probabilities,
    score_sentences,
    search_batch,
    source_of,
    teacher_forced,
)

SOURCES = (6, 2, 0, 9)
TARGETS = (4, 4, 4, 4)


def _longest(model: TranslationModel, source: Source, limit: int) -> int:
    """Return the maximum target length; if the source's end is hidden, at most its length."""
    return min(limit, len(source)) if model.traits.hides_source_end else limit


def _is_greedy(model: TranslationModel, source: Source, tokens: Sequence[int], limit: int) -> bool:
    """Return whether each of `tokens` and the end is the most likely one after its prefix.

    If the source's end is hidden, there is no end before the maximum length.
    """
    values = next_log_probabilities(model, source, tokens)
    values[:, [PAD, BEGIN]] = -math.inf
    if model.traits.hides_source_end:
        values[:, END] = -math.inf
    longest = _longest(model, source, limit)
    likeliest = values.argmax(-1).tolist()[:longest]
    return len(tokens) <= longest and likeliest == [*tokens, END][:longest]


@every_case
def test_width_one_is_greedy(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = model_and_batch(case, SOURCES, TARGETS)
    plan = SearchPlan(beam=1, max_length_a=6, max_length_b=0.5)
    hypotheses = search_batch([model], batch, plan)
    monkeypatch.setattr(steps, "Greedy", lambda: Beam(1))
    by_beam = search_batch([model], batch, plan)
    for row, count in enumerate(SOURCES):
        # A picture counts as 20 tokens, however many regions it has.
        length = 20 if model.traits.source_features else count
        tokens = hypotheses[row][0].tokens
        assert _is_greedy(model, source_of(batch, row), tokens, 6 + length // 2)
        assert by_beam[row][0].tokens == tokens


@every_case
def test_a_wide_beam_is_brute_force(case: Case) -> None:
    """With <unk> and two words, 1 + 3 + 9 + 27 translations have at most three tokens.

    Only the 27 remain if the length must be that of the source, or as close to it as possible.
    """
    model = case.build(source_types=6, target_types=6)
    source = batch_for(model, (4,), (1,))
    plan = SearchPlan(beam=40, nbest=40, length_penalty=0.7, max_length_a=3, max_length_b=0)
    hypotheses = search_batch([model], source, plan)[0]
    words = source_of(source, 0)
    sentences = [
        list(tokens)
        for length in ([3] if model.traits.hides_source_end else range(4))
        for tokens in itertools.product((3, 4, 5), repeat=length)
    ]
    sums = map(sum, score_sentences(model, words, sentences))
    every = sorted(
        ((score / (len(tokens) + 1) ** 0.7, tokens)
         for score, tokens in zip(sums, sentences, strict=True)), reverse=True,
    )  # fmt: skip
    assert len(hypotheses) == len(every) == (27 if model.traits.hides_source_end else 40)
    assert sorted(hypothesis.tokens for hypothesis in hypotheses) == sorted(
        tokens for _, tokens in every
    )
    for hypothesis, (score, _) in zip(hypotheses, every, strict=True):
        assert hypothesis.score == pytest.approx(score, abs=LIMIT)
    scores = {tuple(tokens): score for score, tokens in every}
    assert all(
        hypothesis.score == pytest.approx(scores[tuple(hypothesis.tokens)], abs=LIMIT)
        for hypothesis in hypotheses
    )


@every_case
def test_a_hypothesis_has_the_score_of_its_tokens(case: Case) -> None:
    """Eq. (2.28) with mu = 1 and alpha = 0.6 over the teacher-forced log-probabilities."""
    model, batch = model_and_batch(case, SOURCES, TARGETS)
    plan = SearchPlan(
        beam=4, nbest=4, length_penalty=0.6, length_offset=1.0, max_length_a=5, max_length_b=1
    )
    for row, group in enumerate(search_batch([model], batch, plan)):
        source = source_of(batch, row)
        assert group
        assert [hypothesis.score for hypothesis in group] == sorted(
            (hypothesis.score for hypothesis in group), reverse=True
        )
        assert len({tuple(hypothesis.tokens) for hypothesis in group}) == len(group)
        scores = score_sentences(model, source, [hypothesis.tokens for hypothesis in group])
        for hypothesis, expected in zip(group, scores, strict=True):
            assert hypothesis.log_probabilities == pytest.approx(
                expected, abs=LIMIT * len(expected)
            )
            assert hypothesis.log_probability == pytest.approx(
                sum(expected), abs=LIMIT * len(expected)
            )
            norm = ((1 + len(expected)) / 2) ** 0.6
            assert hypothesis.score == pytest.approx(
                sum(expected) / norm, abs=LIMIT * len(expected)
            )


@every_case
@pytest.mark.parametrize("beam", [1, 3])
def test_alone_equals_in_a_batch(case: Case, beam: int) -> None:
    """In fp64: in fp32 two prefixes may be so close that rounding decides which one is dropped."""
    model = case.build().double()
    batch = batch_for(model, SOURCES, TARGETS)
    if batch.source.is_floating_point():  # features of pictures
        batch = dataclasses.replace(batch, source=batch.source.double())
    plan = SearchPlan(beam=beam, nbest=beam, max_length_a=5, max_length_b=1)
    for row, together in enumerate(search_batch([model], batch, plan)):
        alone = search_batch([model], batch.select(torch.tensor([row])), plan)[0]
        assert [mine.tokens for mine in alone] == [other.tokens for other in together]
        for mine, other in zip(alone, together, strict=True):
            assert mine.score == pytest.approx(other.score, abs=LIMIT)


@every_case
def test_a_search_leaves_nothing_that_training_cannot_use(case: Case) -> None:
    """It computes in inference mode, whose tensors can be neither modified nor used in training."""
    model, batch = model_and_batch(case, SOURCES, TARGETS)
    plan = SearchPlan(max_length_a=1, max_length_b=2)
    nbest_lists = search_batch([model], batch, plan, align=model.traits.aligns)
    for (hypothesis,) in nbest_lists:
        if hypothesis.alignment is not None:
            hypothesis.alignment.add_(1.0)
    teacher_forced(model, batch).sum().backward()
    assert model.classifier().weight.grad is not None


@every_architecture
def test_an_ensemble_of_one_model_twice_is_that_model(case: Case) -> None:
    model, batch = model_and_batch(case, SOURCES, TARGETS)
    plan = SearchPlan(beam=3, max_length_a=5, max_length_b=1)
    single = search_batch([model], batch, plan)
    double = search_batch([model, model], batch, plan)
    for (hypothesis, *_), (two, *_) in zip(single, double, strict=True):
        assert hypothesis.tokens == two.tokens
        assert hypothesis.score == pytest.approx(two.score, abs=LIMIT)


@every_architecture
def test_an_ensemble_averages_probabilities(case: Case) -> None:
    first, second = case.build(), case.build()
    batch = batch_for(first, (5,), (1,))
    plan = SearchPlan(beam=1, max_length_a=4, max_length_b=0)
    hypotheses = search_batch([first, second], batch, plan)[0][0]
    source = source_of(batch, 0)
    (ours,), (theirs,) = (
        score_sentences(model, source, [hypotheses.tokens]) for model in (first, second)
    )
    pairs = zip(ours, theirs, strict=True)
    expected = [math.log((math.exp(hypothesis) + math.exp(two)) / 2) for hypothesis, two in pairs]
    assert hypotheses.log_probabilities == pytest.approx(expected, abs=LIMIT)


@every_architecture
def test_draws_do_not_depend_on_the_batch(case: Case) -> None:
    model, batch = model_and_batch(case, SOURCES, TARGETS)
    plan = SearchPlan(sample=True, nbest=2, seed=7, max_length_a=6, max_length_b=0)
    keys = torch.tensor([11, 12, 13, 14])
    together = search_batch([model], batch, plan, keys=keys)
    for row in range(len(batch)):
        hypothesis = batch.select(torch.tensor([row]))
        alone = search_batch([model], hypothesis, plan, keys=keys[row : row + 1])[0]
        assert {tuple(hypotheses.tokens) for hypotheses in alone} == {
            tuple(hypotheses.tokens) for hypotheses in together[row]
        }
