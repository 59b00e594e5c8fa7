"""The decoding loop against enumeration and a plain beam; constraints by hand."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch

from nmtgrid.base.errors import ConfigError, ModelError
from nmtgrid.search import engine, steps
from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.search.constraints import ForcedPrefix, MinLength, Rules, length_bounds
from nmtgrid.search.engine import search
from nmtgrid.search.select import Beam
from nmtgrid.text.vocabulary import BEGIN, END, PAD
from tests.unit.search.table_model import TableModel, TableState, batch

ROWS = torch.arange(3)


def allowed(values: torch.Tensor) -> list[list[int]]:
    return [(row > -math.inf).nonzero()[:, 0].tolist() for row in values]


class _NoFour:
    """A constraint of one's own."""

    def apply(
        self, log_probabilities: torch.Tensor, step: int | torch.Tensor, sentence: torch.Tensor
    ) -> torch.Tensor:
        log_probabilities[:, 4] = -math.inf
        return log_probabilities


def test_banned_tokens_and_bounds_of_length() -> None:
    rules = Rules((), torch.tensor([9, 9]))
    free = [token for token in range(5) if token not in (PAD, BEGIN)]
    assert allowed(rules.apply(torch.zeros(2, 5), 0, ROWS[:2], at_limit=False)) == [free] * 2
    rule = MinLength(torch.tensor([2, 0, 1]))
    everything = list(range(5))
    without_end = [token for token in everything if token != END]
    for step, short in ((0, [True, False, True]), (1, [True, False, False]), (2, [False] * 3)):
        expected = [without_end if is_short else everything for is_short in short]
        assert allowed(rule.apply(torch.zeros(3, 5), step, ROWS)) == expected
        by_row = rule.apply(torch.zeros(3, 5), step, torch.tensor([2, 2, 0]))
        assert allowed(by_row) == [expected[2], expected[2], expected[0]]
    # Sources of 0, 1 and 8 tokens and their ends, floor(1.5 + |x| / 2) tokens at most.
    lengths = torch.tensor([1, 2, 9])
    plan = SearchPlan(max_length_a=1.5, max_length_b=0.5)
    at_least = SearchPlan(max_length_a=1.5, max_length_b=0.5, min_length=4)

    for settings, hidden, expected in (
        (plan, False, [[0, 0, 0], [1, 2, 5]]),
        (at_least, False, [[4, 4, 4], [4, 4, 5]]),
        *((each, True, [[0, 1, 5]] * 2) for each in (plan, at_least)),
    ):
        bounds = length_bounds(settings, lengths, end_is_hidden=hidden)
        assert [side.tolist() for side in bounds] == expected


def test_forced_prefix_follows_the_sentence_not_the_row() -> None:
    rule = ForcedPrefix([[3, 4], [], [4]], torch.device("cpu"))
    sentence = torch.tensor([2, 0, 0, 1])
    everything = list(range(5))
    values = torch.arange(20.0).view(4, 5)
    first = rule.apply(values.clone(), 0, sentence)
    assert allowed(first) == [[4], [3], [3], everything] and first[1, 3] == values[1, 3]
    assert allowed(rule.apply(values.clone(), 1, sentence)) == [everything, [4], [4], everything]
    assert allowed(rule.apply(values.clone(), 2, sentence)) == [everything] * 4


def reference_beam(model: TableModel, source: list[int], plan: SearchPlan) -> list[Hypothesis]:
    """The beam of one sentence, in plain Python, without early stopping by bound."""
    rows, lengths = batch(source)
    limit = math.floor(plan.max_length_a + plan.max_length_b * len(source))
    live: list[tuple[float, list[int], TableState]] = [(0.0, [], model.begin(rows, lengths))]
    ended: list[tuple[float, list[int]]] = []
    for step in range(limit + 1):
        candidates: list[tuple[float, list[int], TableState]] = []
        for total, tokens, state in live:
            after = model.step(torch.tensor([tokens[-1] if tokens else BEGIN]), state)
            values = after.logits[0].log_softmax(0).tolist()
            for token, value in enumerate(values):
                may = token == END if step == limit else token not in (PAD, BEGIN)
                if may:
                    candidates.append((total + value, [*tokens, token], after.state))
        candidates.sort(key=lambda c: -c[0])
        for total, tokens, _ in candidates[: plan.beam]:
            if tokens[-1] == END:
                ended.append((total / len(tokens) ** plan.length_penalty, tokens[:-1]))
        live = [c for c in candidates if c[1][-1] != END][: plan.beam]
        ended.sort(key=lambda pair: -pair[0])
        ahead = max((c[0] for c in live), default=-math.inf) / (step + 1) ** plan.length_penalty
        if len(ended) >= plan.beam and ahead <= ended[plan.nbest - 1][0]:
            break
    return [Hypothesis(t, [], 0.0, s) for s, t in ended[: plan.nbest]]


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("beam", [2, 3, 5])
def test_batched_beam_is_the_beam_of_one_sentence(alpha: float, beam: int) -> None:
    model = TableModel(7, types=15, sharp=1.5)
    plan = SearchPlan(beam=beam, nbest=2, length_penalty=alpha, max_length_a=6)
    sources = [[3 + (5 * i + j) % 11 for j in range(1 + i % 4)] for i in range(12)]
    for source, hypotheses in zip(sources, search([model], *batch(*sources), plan), strict=True):
        expected = reference_beam(model, source, plan)
        assert [h.tokens for h in hypotheses] == [h.tokens for h in expected]
        assert [h.score for h in hypotheses] == pytest.approx([h.score for h in expected], abs=1e-5)


def forced_score(models: list[TableModel], source: list[int], tokens: list[int]) -> list[float]:
    """Log-probabilities of these tokens and the end symbol, one row, no search."""
    rows, lengths = batch(source)
    states = [m.begin(rows, lengths) for m in models]
    values, last = [], BEGIN
    for token in [*tokens, END]:
        steps = [m.step(torch.tensor([last]), s) for m, s in zip(models, states, strict=True)]
        states = [s.state for s in steps]
        shares = torch.stack([s.logits[0].softmax(0) for s in steps]).mean(0)
        values.append(float(shares[token].log()))
        last = token
    return values


def enumerate_all(
    models: list[TableModel], source: list[int], longest: int, types: int = 6
) -> dict[tuple[int, ...], float]:
    """Log-probability of every translation of at most `longest` tokens."""
    written = [t for t in range(types) if t not in (PAD, BEGIN, END)]
    return {
        tokens: sum(forced_score(models, source, list(tokens)))
        for length in range(longest + 1)
        for tokens in itertools.product(written, repeat=length)
    }


SOURCES = ([3, 4, 5], [5], [4, 4, 3, 5, 3], [3, 5])
FOUR = SearchPlan(max_length_a=4.0, max_length_b=0.0)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("members", [1, 2])
def test_wide_beam_is_brute_force(alpha: float, members: int) -> None:
    models = [TableModel(seed) for seed in range(members)]
    plan = dataclasses.replace(FOUR, beam=130, length_penalty=alpha, length_offset=1.5, nbest=7)
    results = search(models, *batch(*SOURCES), plan)
    for source, hypotheses in zip(SOURCES, results, strict=True):
        scores = {
            tokens: value / ((1.5 + len(tokens) + 1) / 2.5) ** alpha
            for tokens, value in enumerate_all(models, source, 4).items()
        }
        expected = sorted(scores, key=lambda tokens: -scores[tokens])[:7]
        assert [tuple(h.tokens) for h in hypotheses] == expected
        for hypothesis in hypotheses:
            assert hypothesis.score == pytest.approx(scores[tuple(hypothesis.tokens)], abs=1e-5)


def test_one_wide_nbest_holds_all_there_is() -> None:
    plan = dataclasses.replace(FOUR, beam=200, nbest=200)
    (hypotheses,) = search([TableModel()], *batch([3, 4]), plan)
    assert len(hypotheses) == 1 + 3 + 9 + 27 + 81
    assert sum(math.exp(h.log_probability) for h in hypotheses) < 1.0


@pytest.mark.parametrize("beam", [1, 2, 3, 5])
def test_score_is_teacher_forced_score(beam: int) -> None:
    models = [TableModel(3, types=9), TableModel(4, types=9)]
    plan = SearchPlan(beam=beam, nbest=beam, length_penalty=0.7)
    for source, hypotheses in zip(SOURCES, search(models, *batch(*SOURCES), plan), strict=True):
        for hypothesis in hypotheses:
            expected = forced_score(models, source, hypothesis.tokens)
            assert hypothesis.log_probabilities == pytest.approx(expected, abs=1e-5)
            assert hypothesis.log_probability == pytest.approx(sum(expected), abs=1e-5)
            steps = len(hypothesis.tokens) + 1
            assert hypothesis.score == pytest.approx(sum(expected) / steps**0.7)
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)


def test_greedy_takes_the_likeliest_token() -> None:
    model = TableModel(5, types=20)
    results = search([model], *batch(*SOURCES), SearchPlan())
    for source, (hypothesis,) in zip(SOURCES, results, strict=True):
        rows, lengths = batch(source)
        state, last = model.begin(rows, lengths), BEGIN
        written: list[int] = []
        limit = 10 + 2 * len(source)
        while len(written) < limit:
            step = model.step(torch.tensor([last]), state)
            state, logits = step.state, step.logits[0].clone()
            logits[[PAD, BEGIN]] = -math.inf
            last = int(logits.argmax())
            if last == END:
                break
            written.append(last)
        assert hypothesis.tokens == written


def test_beam_of_width_one_is_greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [[3 + (7 * i + j) % 5 for j in range(1 + i % 6)] for i in range(40)]
    model = TableModel(6, types=12)
    greedy = search([model], *batch(*sources), SearchPlan())
    monkeypatch.setattr(steps, "Greedy", lambda: Beam(1))
    assert search([model], *batch(*sources), SearchPlan()) == greedy
    assert len({len(h[0].tokens) for h in greedy}) > 3


@pytest.mark.parametrize(
    "plan",
    [
        SearchPlan(),
        SearchPlan(beam=4, nbest=3),
        SearchPlan(sample=True, nbest=3, seed=5),
        SearchPlan(beam=3, coverage_penalty=0.4),
    ],
)
def test_results_do_not_depend_on_the_batch(plan: SearchPlan) -> None:
    model = TableModel(8, types=10)
    keys = torch.tensor([11, 12, 13, 14])
    together = search([model], *batch(*SOURCES), plan, keys=keys)
    for index, source in enumerate(SOURCES):
        (alone,) = search([model], *batch(source), plan, keys=keys[index : index + 1])
        assert [h.tokens for h in alone] == [h.tokens for h in together[index]]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together[index]])


def test_looking_less_often_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an accelerator the loop looks every few steps at what is done."""
    model = TableModel(9, types=10, sharp=1.5)
    sources = [[3 + (5 * i + j) % 6 for j in range(1 + i % 4)] for i in range(40)]
    plans = [SearchPlan(), *(SearchPlan(beam, nbest=beam) for beam in (2, 3, 4))]
    often = [search([model], *batch(*sources), plan) for plan in plans]
    original = engine.SearchRun.advance

    def advance(run: engine.SearchRun, step: int) -> bool:
        run.check_every = 4
        return original(run, step)

    monkeypatch.setattr(engine.SearchRun, "advance", advance)
    assert often == [search([model], *batch(*sources), plan) for plan in plans]


def test_what_has_ended_costs_nothing() -> None:
    model = TableModel(10, types=8)
    results = search([model], *batch(*SOURCES), SearchPlan())
    lengths = [len(h[0].tokens) + 1 for h in results]
    expected = [sum(length > step for length in lengths) for step in range(max(lengths))]
    assert model.rows == expected
    # Without a length norm a live row can never rise: the search ends once it is behind.
    model = TableModel(11, types=30, sharp=2.0)
    model.bigrams[:, END] += 4.0
    plan = SearchPlan(beam=8, length_penalty=0.0, max_length_a=40.0, max_length_b=0.0)
    results = search([model], *batch(*SOURCES), plan)
    steps = len(model.rows)
    model.rows.clear()
    everything = search([model], *batch(*SOURCES), dataclasses.replace(plan, nbest=8))
    assert [h[0].tokens for h in results] == [h[0].tokens for h in everything]
    assert steps < len(model.rows)


def test_alignment_rows_belong_to_the_tokens() -> None:
    model = TableModel(12, types=10)
    plan = SearchPlan(beam=3, nbest=2)
    results = search([model], *batch(*SOURCES), plan, align=True)
    for source, hypotheses in zip(SOURCES, results, strict=True):
        for hypothesis in hypotheses:
            assert hypothesis.alignment is not None
            size = len(source) + 1
            assert hypothesis.alignment.shape == (len(hypothesis.tokens) + 1, size)
            expected = [min(t, size - 1) for t in range(len(hypothesis.tokens) + 1)]
            assert hypothesis.alignment.argmax(1).tolist() == expected


def test_coverage_penalty_by_hand() -> None:
    """The table model covers source token t with prediction t, so coverage is known."""
    model = TableModel(13)
    plain = dataclasses.replace(FOUR, beam=130, nbest=121, length_penalty=0.0)
    covered = dataclasses.replace(plain, coverage_penalty=0.5)
    source = [3, 4, 5]
    (without,) = search([model], *batch(source), plain)
    (with_penalty,) = search([model], *batch(source), covered)
    scores = {tuple(h.tokens): h.score for h in with_penalty}
    for hypothesis in without:
        missed = max(0, 3 - (len(hypothesis.tokens) + 1))
        expected = hypothesis.score + 0.5 * missed * math.log(0.01)
        assert scores[tuple(hypothesis.tokens)] == pytest.approx(expected, abs=1e-4)


def test_length_limits_and_constraints() -> None:
    model = TableModel(14)
    model.bigrams[:, END] = -20.0
    for beam in (1, 3):
        plan = SearchPlan(beam, max_length_a=1.0, max_length_b=1.5, length_penalty=0.0)
        results = search([model], *batch(*SOURCES), plan)
        for source, (hypothesis,) in zip(SOURCES, results, strict=True):
            assert len(hypothesis.tokens) == math.floor(1 + 1.5 * len(source))
            expected = sum(forced_score([model], source, hypothesis.tokens))
            assert hypothesis.score == pytest.approx(expected, abs=1e-4)
    model = TableModel(15, types=12)
    rows = batch(*SOURCES)
    for plan in (SearchPlan(min_length=5), SearchPlan(min_length=5, beam=3)):
        prefix = ForcedPrefix([[7, 8], [], [9], [6, 6, 6]], rows[0].device)
        results = search([model], *rows, plan, constraints=[prefix, _NoFour()])
        for start, (hypothesis,) in zip([[7, 8], [], [9], [6, 6, 6]], results, strict=True):
            assert hypothesis.tokens[: len(start)] == start and len(hypothesis.tokens) >= 5
            assert 4 not in hypothesis.tokens


def test_sampling_follows_the_distribution() -> None:
    model = TableModel(16)
    plan = dataclasses.replace(FOUR, sample=True, nbest=4000)
    (drawn,) = search([model], *batch([3, 4]), plan)
    chances = enumerate_all([model], [3, 4], 4)
    # What is never written or cut by the limit makes the drawn shares differ: compare first tokens.
    rows, lengths = batch([3, 4])
    first = model.step(torch.tensor([BEGIN]), model.begin(rows, lengths)).logits[0]
    first[[PAD, BEGIN]] = -math.inf
    for token, share in enumerate(first.softmax(0).tolist()):
        count = sum((h.tokens[0] if h.tokens else END) == token for h in drawn)
        assert count / 4000 == pytest.approx(share, abs=4 * math.sqrt(share / 4000) + 1e-9)
    for hypothesis in drawn[:50]:
        chance = chances[tuple(hypothesis.tokens)]
        assert hypothesis.log_probability == pytest.approx(chance, abs=1e-4)
    model = TableModel(17, types=30)
    plan = SearchPlan(sample=True, nbest=5, seed=2)
    sample = search([model], *batch(*SOURCES), plan)
    assert search([model], *batch(*SOURCES), plan) == sample
    assert search([model], *batch(*SOURCES), dataclasses.replace(plan, seed=3)) != sample


def test_what_cannot_be_done_is_refused_before_decoding() -> None:
    blind = TableModel(aligns=False)
    with pytest.raises(ConfigError, match="coverage_penalty"):
        search([blind], *batch([3]), SearchPlan(beam=2, coverage_penalty=0.2))
    with pytest.raises(ConfigError, match="alignments"):
        search([blind], *batch([3]), SearchPlan(), align=True)
    with pytest.raises(ModelError, match="different sizes"):
        search([TableModel(types=6), TableModel(types=7)], *batch([3]), SearchPlan())
    assert not blind.rows

    model = TableModel()
    model.bigrams[:] = math.nan  # scores that are no numbers
    for plan in (SearchPlan(), SearchPlan(beam=3), SearchPlan(sample=True)):
        with pytest.raises(ModelError, match="damaged"):
            search([model], *batch(*SOURCES), plan)
