"""Sentences near the true one: their distribution and their weights, against enumeration."""

import dataclasses
import itertools
import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from nmtgrid.data.batches import Batch, collate
from nmtgrid.layers.soft_targets import VectorDistribution
from nmtgrid.smoothing.objectives import Smoothed
from nmtgrid.smoothing.rewards import BleuReward, importance_weights, in_substitutions
from nmtgrid.smoothing.samplers import Choices, as_batch, change_cost, distance_logs, draw_samples
from nmtgrid.text.vocabulary import BEGIN, END, PAD, UNKNOWN
from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings
from nmtgrid.training.settings import SequenceSmoothing, SmoothingSettings, Vocabulary

SIZE = 8
"""Types: four symbols and 4 to 7."""
TRUTH, OTHER = [4, 5, 4], [6, 4]
DRAWS = 40_000


def batch() -> Batch:
    return collate([[3], [3]], [TRUTH, OTHER])


def distance(tokens: tuple[int, ...]) -> int:
    return sum(a != b for a, b in zip(tokens, TRUTH, strict=True))


def chi_square(counts: Counter[tuple[int, ...]], chances: dict[tuple[int, ...], float]) -> float:
    """Return how many standard deviations the statistic is above what it should be."""
    assert set(counts) <= set(chances)
    total = sum(counts.values())
    actual = sum(
        (counts[sentence] - total * chance) ** 2 / (total * chance)
        for sentence, chance in chances.items()
    )
    freedom = len(chances) - 1
    return (actual - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize(
    ("vocabulary", "types"), [("all", [4, 5, 6, 7]), ("batch", [4, 5, 6]), ("references", [4, 5])]
)
@pytest.mark.parametrize("rescale", [False, True])
def test_drawn_from_the_reward(vocabulary: Vocabulary, types: list[int], rescale: bool) -> None:
    """r(y | y*) of (E.5) with minus the Hamming distance, by enumerating all sentences."""
    torch.manual_seed(3)
    pairs = batch()
    choices = Choices.of(vocabulary, pairs, SIZE)
    samples = draw_samples(pairs, choices, DRAWS, 0.7, rescale=rescale)
    cost = 1 / 0.7 + (math.log(len(types) - 1) if rescale else 0)
    raw = {
        sentence: math.exp(-cost * distance(sentence))
        for sentence in itertools.product(types, repeat=len(TRUTH))
    }
    chances = {sentence: value / sum(raw.values()) for sentence, value in raw.items()}
    drawn = [tuple(row) for row in samples.tokens[0, :, : len(TRUTH)].tolist()]
    assert abs(chi_square(Counter(drawn), chances)) < 4
    assert (samples.tokens[0, :, 3] == END).all() and (samples.tokens[1, :, 2] == END).all()
    assert (samples.tokens[1, :, 3] == PAD).all()
    logs = torch.tensor([math.log(chances[sentence]) for sentence in drawn[:50]])
    torch.testing.assert_close(samples.logs[0, :50].float(), logs)
    assert samples.distances[0, :50].tolist() == [distance(sentence) for sentence in drawn[:50]]


def test_similar_substitutes() -> None:
    """Distances as with all types, substitutes as the token level spreads."""
    torch.manual_seed(4)
    angles = torch.tensor([0.0, 0.4, 1.0, 2.0])
    vectors = torch.zeros(SIZE, 2)
    vectors[4:] = torch.stack([angles.cos(), angles.sin()], 1)
    vectors[6] = 0.0
    spread = VectorDistribution(vectors, 0.5, torch.ones(SIZE))
    pairs = batch()
    choices = Choices.of("all", pairs, SIZE)
    samples = draw_samples(pairs, choices, DRAWS, 0.7, rescale=False, spread=spread)
    rows = spread.rows(torch.arange(SIZE))
    cost, others = 1 / 0.7, 3
    distances = {d: math.comb(3, d) * others**d * math.exp(-cost * d) for d in range(4)}
    chances = {}
    for sentence in itertools.product([4, 5, 7], repeat=3):
        d = distance(sentence)
        chance = distances[d] / sum(distances.values()) / math.comb(3, d)
        for mine, true in zip(sentence, TRUTH, strict=True):
            if mine != true:
                chance *= float(rows[true, mine] / (1 - rows[true, true]))
        chances[sentence] = chance
    drawn = [tuple(row) for row in samples.tokens[0, :, :3].tolist()]
    assert abs(chi_square(Counter(drawn), chances)) < 4
    logs = torch.tensor([math.log(chances[sentence]) for sentence in drawn[:50]])
    torch.testing.assert_close(samples.logs[0, :50].float(), logs, atol=1e-4, rtol=1e-4)
    # What has no vector has no substitute: of [6, 4] only the second token changes.
    assert (samples.tokens[1, :, 0] == 6).all()
    assert set(samples.tokens[1, :, 1].tolist()) == {4, 5, 7}


@pytest.mark.parametrize("vocabulary", ["all", "batch", "references"])
def test_unknown_tokens_stay_and_nothing_becomes_one(vocabulary: Vocabulary) -> None:
    pairs = collate([[3], [3]], [[4, UNKNOWN, 5], [UNKNOWN, UNKNOWN]])
    choices = Choices.of(vocabulary, pairs, SIZE)
    tokens = draw_samples(pairs, choices, 500, 2.0, rescale=True).tokens
    assert (tokens[0, :, 1] == UNKNOWN).all() and (tokens[1, :, :2] == UNKNOWN).all()
    changed = set(tokens[0, :, 0].tolist()) | set(tokens[0, :, 2].tolist())
    assert changed == ({4, 5, 6, 7} if vocabulary == "all" else {4, 5})


@pytest.mark.parametrize("vocabulary", ["batch", "references"])
def test_a_batch_of_unknown_tokens_alone_stays_as_it_is(vocabulary: Vocabulary) -> None:
    pairs = collate([[3], [3]], [[UNKNOWN], [UNKNOWN, UNKNOWN]])
    samples = draw_samples(pairs, Choices.of(vocabulary, pairs, SIZE), 5, 2.0, rescale=False)
    assert (samples.tokens == pairs.target_output[:, None]).all()
    # The one sentence that there is has the chance 1.
    assert (samples.distances == 0).all() and (samples.logs == 0).all()


def test_several_references_are_chosen_from() -> None:
    pairs = dataclasses.replace(
        collate([[3]], [TRUTH]), references=torch.tensor([[[4, 5, 4, 0], [6, 6, UNKNOWN, 4]]])
    )
    for vocabulary in ("batch", "references"):
        choices = Choices.of(vocabulary, pairs, SIZE)
        assert choices.types.tolist() == [[4, 5, 6]] and choices.counts.tolist() == [3]
    pairs = collate([[3], [3]], [[4, 4], []])
    samples = draw_samples(pairs, Choices.of("references", pairs, SIZE), 20, 9.0, rescale=False)
    assert (samples.tokens == pairs.target_output[:, None]).all()
    assert (samples.distances == 0).all() and torch.allclose(
        samples.logs, torch.tensor(0.0).double()
    )


def test_costs_and_rewards_in_substitutions() -> None:
    others = torch.tensor([1, 8])
    assert change_cost(others, 0.5, rescale=False).tolist() == [2.0, 2.0]
    expected = [2.0, 2.0 + math.log(8)]
    assert change_cost(others, 0.5, rescale=True).tolist() == pytest.approx(expected)
    logs = distance_logs(torch.tensor([2]), torch.tensor([3]), torch.tensor([1.0]), 3)
    raw = [1, 2 * 3 * math.exp(-1), 9 * math.exp(-2), 0]
    assert logs.exp()[0].tolist() == pytest.approx([sentence / sum(raw) for sentence in raw])
    rewards = torch.tensor([[1.0, 0.5], [3.0, 1.5], [0.0, 0.0]]).double()
    own, losses = torch.tensor([1.0, 3.0, 0.0]).double(), torch.tensor([0.25, 0.5, 0.5]).double()
    actual = in_substitutions(rewards, own, losses)
    assert actual.tolist() == [[0.0, 2.0], [0.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize("temperature", [0.2, 0.37, 1.5])
def test_changes_are_as_frequent_with_any_vocabulary(temperature: float) -> None:
    """Rescaled, each token changes for itself, with odds of exp(-1 / temperature)."""
    length, others = 12, torch.tensor([1, 15, 350, 44_000])
    cost = change_cost(others, temperature, rescale=True)
    logs = distance_logs(torch.full((4,), length), others, cost, length)
    share = 1 / (1 + math.exp(1 / temperature))
    expected = [
        math.comb(length, d) * share**d * (1 - share) ** (length - d) for d in range(length + 1)
    ]
    for row in logs.exp().tolist():
        assert row == pytest.approx(expected)


def test_samples_as_a_batch() -> None:
    pairs = batch()
    tokens = torch.tensor([[[4, 6, 4, END], [5, 5, 4, END]], [[3, 4, END, PAD], [6, 4, END, PAD]]])
    actual = as_batch(pairs, tokens, torch.tensor([[0.1, 0.2], [0.3, 0.4]]))
    assert actual.target_output.tolist() == tokens.flatten(0, 1).tolist()
    assert actual.target_input.tolist() == [
        [BEGIN, 4, 6, 4], [BEGIN, 5, 5, 4], [BEGIN, 3, 4, PAD], [BEGIN, 6, 4, PAD]
    ]  # fmt: skip
    assert actual.weights is not None
    assert actual.weights.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert actual.source.tolist() == [[3, END]] * 4 and actual.indices.tolist() == [0, 0, 1, 1]


def test_importance_weights_give_exact_expectations() -> None:
    """The mean of a function under r of (E.5) with BLEU, enumerated and by (E.8), (E.9)."""
    torch.manual_seed(5)
    pairs = collate([[3]], [TRUTH])
    choices = Choices.of("batch", batch(), SIZE)
    samples = draw_samples(pairs, choices, DRAWS, 0.6, rescale=False)
    temperature = 0.4
    weights = importance_weights(BleuReward()(pairs, samples.tokens) / temperature, samples.logs)
    assert float(weights.sum()) == pytest.approx(1.0)

    def worth(tokens: Tensor) -> Tensor:
        return 1.0 + (tokens[..., :3] != torch.tensor(TRUTH)).sum(-1).double()

    every = torch.tensor(list(itertools.product([4, 5, 6], repeat=3)))
    ended = torch.cat([every, torch.full((len(every), 1), END)], 1)[None]
    exact = (BleuReward()(pairs, ended) / temperature).softmax(1)
    expected = float((exact * worth(every)).sum())
    assert float((weights * worth(samples.tokens)).sum()) == pytest.approx(expected, rel=0.02)
    plain = float(worth(samples.tokens).mean())
    assert abs(plain - expected) > 0.05 * expected, "the proposal alone would do as well"


def test_bleu_of_units() -> None:
    """[4 5 6 4] has all of the unigrams and, of [4 5 4 6], one bigram of three and no more."""
    pairs = collate([[3]], [[4, 5, 4, 6]])
    tokens = torch.tensor([[[4, 5, 4, 6, END], [4, 5, 6, 4, END], [3, 3, 3, 3, END]]])
    actual = BleuReward()(pairs, tokens)[0].tolist()
    # Orders without a match count as 1/2, then 1/4 of one: of two trigrams and one 4-gram.
    expected = math.exp(
        (math.log(4 / 4) + math.log(1 / 3) + math.log(0.5 / 2) + math.log(0.25)) / 4
    )
    assert actual == pytest.approx([1.0, expected, 0.0])
    several = dataclasses.replace(pairs, references=torch.tensor([[[4, 5, 4, 6], [4, 5, 6, 4]]]))
    assert BleuReward()(several, tokens)[0].tolist() == pytest.approx([1.0, 1.0, 0.0])
    # By hand: of two tokens one unigram is left and half a bigram counts; of one nothing is.
    reward = BleuReward()
    assert reward.loss_of_one(2) == pytest.approx(1 - math.sqrt(0.5 * 0.5))
    assert reward.loss_of_one(1) == 1.0 and reward.loss_of_one(0) == 1.0
    # Of five, a change of an outer one leaves 4/5, 3/4, 2/3, 1/2; of the next 4/5, 2/4, 1/3 and
    # half of one of two; of the middle one 4/5, 2/4, a half of one of three, a fourth of two.
    outer = (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
    inner = (4 / 5 * 2 / 4 * 1 / 3 * 0.5 / 2) ** 0.25
    middle = (4 / 5 * 2 / 4 * 0.5 / 3 * 0.25 / 2) ** 0.25
    assert reward.loss_of_one(5) == pytest.approx(1 - (2 * outer + 2 * inner + middle) / 5)


@pytest.mark.parametrize(
    ("temperature", "proposal", "rescale"),
    [(0.37, 0.37, True), (0.37, 1.0, True), (1.5, 0.8, True), (0.2, 1.0, False)],
)
def test_weights_of_rewards(temperature: float, proposal: float, rescale: bool) -> None:
    """Drawn and weighed, against the distribution by enumeration, and what is told of them."""
    torch.manual_seed(6)
    pairs = collate([[3]], [TRUTH])
    sequence = SequenceSmoothing(
        alpha=0.3, reward="bleu", vocabulary="all", samples=10 * DRAWS,
        temperature=temperature, proposal_temperature=proposal, rescale=rescale,
    )  # fmt: skip
    reward = BleuReward()
    plain = Likelihood(LikelihoodSettings(label_smoothing=0.0))
    smoothed = Smoothed(plain, SmoothingSettings(sequence=sequence), SIZE, reward=reward)
    samples = smoothed.draw(pairs)
    weights = smoothed.weigh(pairs, samples)
    assert float(weights.sum()) == pytest.approx(1.0)
    every = list(itertools.product([3, 4, 5, 6], repeat=3))
    ended = torch.tensor([[*sentence, END] for sentence in every])[None]
    rewards = reward(pairs, ended)[0]
    away = torch.tensor([distance(sentence) for sentence in every]).double()
    if rescale:
        lacking = (1 - rewards) / reward.loss_of_one(3)
        exact = (-lacking / temperature - away * math.log(3)).softmax(0)
    else:
        exact = (rewards / temperature).softmax(0)
    expected = float((exact * away).sum())
    actual = float((weights * samples.distances).sum())
    assert actual == pytest.approx(expected, rel=0.03)
    assert abs(float(samples.distances.double().mean()) - expected) > 0.1 * expected
