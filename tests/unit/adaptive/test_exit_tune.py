"""Tuning of exits: oracles, replay, costs, thresholds for budgets, certified losses, settings."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from nmtgrid.adaptive import tune as module
from nmtgrid.adaptive.exit_presets import EXIT_FILE, ExitPreset, halt_of, load_exit, save_exits
from nmtgrid.adaptive.halting import AnyHalt, FixedExit, GivenExits, Predicted, Thresholds
from nmtgrid.adaptive.halting_objective import Kernel, sequence_oracle, smoothed, token_oracle
from nmtgrid.adaptive.measure import (
    Decoded,
    DecoderSizes,
    DecodeSetup,
    Measured,
    Sample,
    System,
    average_exit,
    corpus_flops,
    decode,
    depth_of,
    measure,
    read_samples,
    token_flops,
)
from nmtgrid.adaptive.tune import (
    Budgets,
    Records,
    draw_thresholds,
    finalists,
    frontier,
    lost_budgets,
    record,
    refills,
    replay,
)
from nmtgrid.base.errors import ConfigError, DataError, NmtgridError, StorageError
from nmtgrid.data.batches import Batch, collate
from nmtgrid.models import zoo
from nmtgrid.models.api import (
    ExitModel,
    Halting,
    Needs,
    PredictionSites,
    Traits,
    TranslationModel,
    Verified,
    with_exits,
)
from nmtgrid.models.directory import LoadedModel
from nmtgrid.search import engine
from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.text.pipeline import Pipeline, TextFacts
from nmtgrid.text.vocabulary import BEGIN, END, PAD, Vocabulary
from nmtgrid.training.prepare import clear_folder
from tests.unit.helpers.tiny_online import pipeline
from tests.unit.helpers.tiny_transformer import tiny

LENGTHS = torch.tensor([4, 2, 1])


def scores(kind: str) -> Tensor:
    """Return scores [3, 4, 5] with nonsense on padding."""
    draw = torch.Generator().manual_seed(4)
    values = -3 * torch.rand(3, 4, 5, generator=draw, dtype=torch.float64)
    if kind == "correctness":
        values = (values > -1.5).double()
    for sentence, length in enumerate(LENGTHS.tolist()):
        values[sentence, length:] = math.nan
    return values


def earliest(values: list[float]) -> int:
    return 1 + values.index(max(values))


def smooth_by_hand(values: Tensor, b: int, t: int, n: int, sigma: float, kernel: Kernel) -> float:
    """Return the smoothed score of one token and exit (0-based), as Eq. (5.24) reads."""
    places = range(int(LENGTHS[b]))
    shares = [math.exp(-((t - o) ** 2) / sigma) if sigma else float(o == t) for o in places]
    total = sum(s * float(values[b, o, n]) for s, o in zip(shares, places, strict=True))
    return total / sum(shares) if kernel == "normalised" else total


@pytest.mark.parametrize("kind", ["likelihood", "correctness"])
@pytest.mark.parametrize("sigma", [0.0, 0.5, 4.0, 1e6])
@pytest.mark.parametrize("kernel", ["plain", "normalised"])
@pytest.mark.parametrize("depth_penalty", [0.0, 0.1, 0.6])
def test_token_oracle(kind: str, sigma: float, kernel: Kernel, depth_penalty: float) -> None:
    values = scores(kind)
    exits = token_oracle(values, LENGTHS, depth_penalty, sigma, kernel)
    for b, length in enumerate(LENGTHS.tolist()):
        for t in range(length):
            by_hand = [
                smooth_by_hand(values, b, t, n, sigma, kernel) - depth_penalty * (n + 1)
                for n in range(5)
            ]
            assert int(exits[b, t]) == earliest([round(value, 9) for value in by_hand])


@pytest.mark.parametrize("kind", ["likelihood", "correctness"])
@pytest.mark.parametrize("penalty", [0.0, 0.3, 1.0])
def test_sequence_oracle(kind: str, penalty: float) -> None:
    values = scores(kind)
    exits = sequence_oracle(values, LENGTHS, penalty)
    for b, length in enumerate(LENGTHS.tolist()):
        sums = values[b, :length].sum(0).tolist()
        assert int(exits[b]) == earliest([round(v - penalty * n, 9) for n, v in enumerate(sums, 1)])


def test_wide_and_narrow_kernels_and_padding() -> None:
    values = scores("likelihood")
    actual = token_oracle(values, LENGTHS, 0.3, 1e12)
    expected = sequence_oracle(values, LENGTHS, 0.3)
    for b, length in enumerate(LENGTHS.tolist()):
        assert actual[b, :length].tolist() == [int(expected[b])] * length
    for narrow in ((0.0,), (1e-3,), (1e-3, "normalised")):
        torch.testing.assert_close(smoothed(values, LENGTHS, *narrow), values.nan_to_num(0.0))
    alone = smoothed(values[1:2, :2], LENGTHS[1:2], 2.0, "normalised")
    torch.testing.assert_close(alone, smoothed(values, LENGTHS, 2.0, "normalised")[1:2, :2])


def test_early_exits_are_preferred() -> None:
    equal = torch.tensor([[[0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]])
    lengths = torch.tensor([3])
    assert token_oracle(equal, lengths, 0.0).tolist() == [[2, 1, 1]]
    assert sequence_oracle(equal, lengths, 0.0).tolist() == [2]
    # 0.3 - 0.6 and 0.9 - 1.2 are equal, but not so in floating point.
    even = torch.tensor([[[0.1, 0.3]] * 3], dtype=torch.float64)
    assert sequence_oracle(even, lengths, 0.6).tolist() == [1]
    values, lengths = torch.tensor([[[-3.0, -2.0, -1.5]]]), torch.tensor([1])
    taken = [int(token_oracle(values, lengths, penalty)) for penalty in (0.0, 0.4, 0.6, 0.9, 1.1)]
    assert taken == [3, 3, 2, 2, 1]


def walk(scores: list[float], thresholds: list[float]) -> int:
    """Return the exit of one token, as section 5.3.2 tells it."""
    exits = (n for n, (s, t) in enumerate(zip(scores, thresholds, strict=True), 1) if s > t)
    return next(exits, len(thresholds) + 1)


def test_replay_by_hand() -> None:
    scores = numpy.array([[0.9, 0.1], [0.2, 0.8], [0.2, 0.3]])
    hits = numpy.array([[1, 0, 1], [0, 1, 1], [1, 1, 0]], dtype=bool)
    thresholds = numpy.array([[0.5, 0.5], [0.1, 0.0], [1.0, 1.0], [0.9, 0.25]])
    result = replay(scores, hits, thresholds)
    # Exits 1 2 3; then all at once at 1; then all at the end; then 3 (0.9 does not exceed 0.9) 2 2.
    assert result.average_exit.tolist() == pytest.approx([2, 1, 3, 7 / 3])
    assert result.agreement.tolist() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 1])
    result = replay(numpy.zeros((0, 1)), numpy.zeros((0, 2), dtype=bool), numpy.array([[0.5]]))
    assert result.average_exit.tolist() == [1] and result.agreement.tolist() == [0]


@pytest.mark.parametrize("digits", [1, 6])
def test_equals_walking(monkeypatch: pytest.MonkeyPatch, digits: int) -> None:
    monkeypatch.setattr(module, "_TOKENS", 70)
    monkeypatch.setattr(module, "_VECTORS", 7)
    draw = random.Random(digits)
    scores = [[round(draw.random(), digits) for _ in range(4)] for _ in range(150)]
    hits = [[draw.random() < 0.6 for _ in range(5)] for _ in scores]
    thresholds = [[round(draw.random(), digits) for _ in range(4)] for _ in range(30)]
    result = replay(numpy.array(scores), numpy.array(hits), numpy.array(thresholds))
    single = numpy.array(scores, dtype=numpy.float32).tolist()
    for index, vector in enumerate(numpy.array(thresholds, dtype=numpy.float32).tolist()):
        exits = [walk(row, vector) for row in single]
        right = [of_one[exit - 1] for of_one, exit in zip(hits, exits, strict=True)]
        assert result.average_exit[index] == pytest.approx(sum(exits) / len(exits))
        assert result.agreement[index] == pytest.approx(sum(right) / len(right))


SMALL: dict[str, Any] = {
    "encoder_depth": 1, "decoder_depth": 3, "size": 16, "feed_forward_size": 12, "heads": 2,
    "exits": "tied",
}  # fmt: skip
TYPES = len(pipeline().target_vocabulary)


def model(**changes: Any) -> ExitModel:
    torch.manual_seed(2)
    transformer = zoo.build(
        "transformer", None, SMALL | changes, source_vocab_size=TYPES, target_vocab_size=TYPES
    )
    for parameter in transformer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return with_exits(transformer.eval())


def samples() -> list[Sample]:
    sources = [[4, 5, 6], [], [7, 8], [9, 4, 5, 6, 7, 8]]
    return [Sample(n, ids, [5, 4], "b a", "b a") for n, ids in enumerate(sources, 1)]


def batch() -> Batch:
    return collate([[4, 5, 6], [7]], [[5, 6, 7, 8], [9, 4]], [3, 0])


def by_depth(network: ExitModel, exit: int) -> torch.Tensor:
    pairs = batch()
    sites = PredictionSites.offline(pairs)
    depth = torch.full_like(sites.sentence, exit)
    features = network.features(pairs, PredictionSites(sites.sentence, sites.position, depth=depth))
    classifier = network.classifier(exit)
    return torch.nn.functional.linear(features, classifier.weight, classifier.bias).softmax(1)


@torch.no_grad()
def test_records_are_what_each_exit_says() -> None:
    network = model(exits="separate")
    result = record(network, [batch()], "confidence")
    targets = torch.tensor([5, 6, 7, 8, END, 9, 4, END])
    assert result.sentence.tolist() == [3] * 5 + [0] * 3
    each = [by_depth(network, exit) for exit in (1, 2, 3)]
    last = each[-1].argmax(1)
    for index, values in enumerate(each):
        assert result.hits[:, index].tolist() == (values.argmax(1) == targets).tolist()
        assert result.agrees[:, index].tolist() == (values.argmax(1) == last).tolist()
        if index < 2:
            assert result.scores[:, index] == pytest.approx(values.amax(1).numpy(), abs=1e-5)


def test_records_of_the_geometric_predictor_and_of_the_full_stack() -> None:
    network = model(halting="geometric")
    result = record(network, [batch()], "geometric")
    assert result.scores.shape == (8, 2) and 0 < result.scores.min() < result.scores.max() < 1
    with pytest.raises(ConfigError, match="geometric"):
        record(model(halting="multinomial"), [batch()], "geometric")
    network = model(output_bias=True)
    with torch.no_grad():
        network.classifier().bias[[PAD, BEGIN]] = -99.0  # type: ignore[index]
    way = DecodeSetup(SearchPlan(max_length_a=4, max_length_b=1))
    done = decode([System("full", network)], samples(), way)[0]
    pairs = [(s.source, h.tokens) for s, h in zip(samples(), done.hypotheses, strict=True) if h]
    forced = collate([source for source, _ in pairs], [tokens for _, tokens in pairs])
    result = record(network, [forced], "confidence")
    assert len(result.hits) == sum(len(tokens) + 1 for _, tokens in pairs)
    # An end that the limit forced is nobody's choice.
    is_end = forced.target_output[forced.is_target].numpy() == END
    assert result.hits[~is_end, 2].all() and (result.hits == result.agrees)[~is_end].all()


@pytest.mark.parametrize(("batch", "parts"), [(2, 4), (100, 1), (1, 1)])
def test_exits_of_whole_sentences_are_searched_together(
    batch: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside another system, four batches at a time; sentences one by one stay alone."""
    network, calls = model(halting="sequence"), []
    search = engine.search

    def noted(*arguments: Any, **options: Any) -> list[list[Hypothesis]]:
        calls.append((arguments[0][0], options["parts"], len(arguments[1])))
        return search(*arguments, **options)

    draw = random.Random(1)
    drawn = [draw.choices(range(4, 10), k=draw.randint(1, 9)) for _ in range(12)]
    pairs = [Sample(line, ids, [5], "b", "b") for line, ids in enumerate(drawn, 1)]
    way = DecodeSetup(SearchPlan(max_length_a=4, max_length_b=1), batch=batch)
    systems = [System("by sentence", network, Predicted("sequence")), System("full", network)]
    expected = []
    for sample in pairs:
        ids, length = torch.tensor([[*sample.source, END]]), torch.tensor([len(sample.source) + 1])
        alone = [
            search([network], ids, length, way.plan, halt=system.halt)[0][0] for system in systems
        ]
        expected.append(alone)
    assert len({max(alone[0].exits or ()) for alone in expected}) > 1
    monkeypatch.setattr(engine, "search", noted)
    counts: list[int] = []
    results = decode(systems, pairs, way, counts.append)
    assert sum(counts) == 2 * len(pairs)
    assert max(count for _, count, _ in calls) == parts
    assert max(rows for *_, rows in calls) == min(batch * parts, 12)
    for turn in (0, 1):
        for hypothesis, alone in zip(results[turn].hypotheses, expected, strict=True):
            assert hypothesis is not None
            assert (hypothesis.tokens, hypothesis.exits) == (alone[turn].tokens, alone[turn].exits)


def test_budgets_and_drawn_thresholds() -> None:
    halves = Budgets(0.5, 3)
    means = [1.0, 1.49, 1.5, 2.0, 2.99, 3.0]
    assert [halves.index_of(value) for value in means] == [0, 0, 1, 2, 3, 3]
    assert [halves.budget(value) for value in means] == [1.5, 1.5, 2.0, 2.5, 3.0, 3.0]
    assert [Budgets(0.75, 3).budget(value) for value in (1.0, 2.6, 3.0)] == [1.75, 3.0, 3.0]
    assert Budgets(9.0, 3).budget(2.0) == 3.0
    with pytest.raises(ConfigError, match="--budget"):
        Budgets(0.0, 3)
    assert lost_budgets([1.4, 1.45, 1.9, 2.9], [1.5, 1.52, 1.95, 3.0], halves) == [1.5]
    assert lost_budgets([1.4, 2.4], [1.6, 2.6], halves) == [1.5, 2.5]
    assert lost_budgets([1.4, 1.9], [1.6, 1.4], halves) == lost_budgets([], [], halves) == []
    drawn = draw_thresholds(5_000, 4, 7)
    assert drawn.shape == (5_000, 3) and (drawn > 0).all() and (drawn < 1).all()
    assert drawn.mean(0) == pytest.approx([0.5] * 3, abs=0.02)
    assert (draw_thresholds(5_000, 4, 7) == drawn).all()
    assert (draw_thresholds(5_000, 4, 8) != drawn).any()


def records() -> Records:
    """Return four tokens; the higher the score, the surer is exit 1 right."""
    scores = numpy.array([[0.2], [0.4], [0.6], [0.8]])
    agrees = numpy.array([[0, 1], [1, 1], [0, 1], [1, 1]], dtype=bool)
    hits = numpy.array([[1, 0], [0, 0], [1, 1], [1, 0]], dtype=bool)
    return Records(numpy.arange(4), scores, hits, agrees)


def test_finalists_and_the_frontier() -> None:
    thresholds = numpy.array([[0.1], [0.3], [0.5], [0.55], [0.7], [0.9]])
    # Average exits 1, 1.25, 1.5, 1.5, 1.75, 2; agreement 0.5, 0.75, 0.75, 0.75, 1, 1.
    single, four = (finalists(records(), thresholds, Budgets(0.5, 2), count) for count in (1, 4))
    assert [(v.thresholds, v.average_exit, v.agreement) for v in single] == [
        ((0.3,), 1.25, 0.75),
        ((0.7,), 1.75, 1.0),
    ]
    assert [v.thresholds for v in four] == [(0.1,), (0.3,), (0.5,), (0.7,), (0.9,)]
    # By the tokens that were forced, exit 1 is better than the full stack.
    true = finalists(records(), thresholds, Budgets(0.5, 2), 1, truth=True)
    assert [v.thresholds for v in true] == [(0.1,), (0.5,)]
    nine, two = (frontier(records(), thresholds[[0, 1, 2, 4, 5]], count) for count in (9, 2))
    assert [v.thresholds for v in nine] == [(0.7,), (0.3,), (0.1,)]
    assert [v.thresholds for v in two] == [(0.7,), (0.1,)]


def test_a_lost_budget_is_refilled_from_further_below() -> None:
    thresholds = numpy.array([[0.1], [0.3], [0.5], [0.55], [0.7], [0.9]])

    # Average exits 1, 1.25, 1.5, 1.5, 1.75, 2; agreement 0.5, 0.75, 0.75, 0.75, 1, 1.
    def refilled(keep: int, shift: float, *tried: float) -> list[float]:
        options = Budgets(0.5, 2), keep, {1.5: shift}, {(candidate,) for candidate in tried}
        return [candidate.thresholds[0] for candidate in refills(records(), thresholds, *options)]

    assert refilled(1, 0.0) == [0.3] and refilled(1, 0.3) == [0.1] and refilled(2, 0.6) == []
    assert refilled(2, 0.0) == [0.3, 0.1] and refilled(2, 0.0, 0.3) == [0.1]
    assert refilled(2, -0.3) == [0.7, 0.3], "vectors that decode less deep come from above"


def test_measures_of_fixed_exits() -> None:
    network = model()
    systems = [System("two", network, FixedExit(2)), System("full", network),
               System("never", network, Thresholds("confidence", (1.0, 1.0)))]  # fmt: skip
    finished: list[int] = []
    way = DecodeSetup(SearchPlan(max_length_a=3, max_length_b=1), batch=2, repeats=2)
    done = decode(systems, samples(), way, finished.append)
    assert sum(finished) == 9, "three systems, three sentences that have a source"
    two, full, never = (measure(sample, samples(), pipeline()) for sample in done)
    assert done[0].hypotheses[1] is None and two.average_exit == 2 and two.shares == [0, 1, 0]
    assert full.average_exit == never.average_exit == 3 and full.bleu == never.bleu
    assert [h.tokens if h else None for h in done[1].hypotheses] == [
        h.tokens if h else None for h in done[2].hypotheses
    ]
    assert two.flops_per_token is not None and full.flops_per_token is not None
    assert never.flops_per_token == pytest.approx(full.flops_per_token + 2 * 2 * TYPES * 16)
    # Appendix B by hand: two blocks run, one is skipped, for each step t of each sentence.
    total, tokens = 0.0, 0
    for sample, hypothesis in zip(samples(), done[0].hypotheses, strict=True):
        if hypothesis is None:
            continue
        source, steps = len(sample.source) + 1, len(hypothesis.tokens) + 1
        total += 2 * 4 * source * 16 * 16
        for t in range(1, steps + 1):
            block = 12 * 16**2 + 4 * 12 * 16 + 4 * t * 16 + 4 * source * 16
            total += 2 * block + 4 * 16**2 + 2 * TYPES * 16
        tokens += steps
    assert two.flops_per_token == pytest.approx(total / tokens)
    assert two.values()["tokens"] == tokens and done[0].seconds > 0


def written(network: TranslationModel, exits: list[int] | None = None) -> Measured:
    hypothesis = Hypothesis([4, 5], [-1.0] * 3, -3.0, -1.0, exits=exits)
    hypotheses = [hypothesis if sample.source else None for sample in samples()]
    return measure(Decoded(System("x", network), hypotheses, 1.0, 1.0), samples(), pipeline())


def test_a_zero_pair_costs_nothing() -> None:
    """It needs no products: neither its own keys and values, nor with queries and shares."""
    end, zero, begin, none = (
        written(model(source_marker=marker), [2, 2, 2]).flops_per_token
        for marker in ("end", "add-zero", "begin", "none")
    )
    assert end is not None and begin is not None and none is not None
    assert zero == pytest.approx(end)
    # A state more: keys and values once for 3 steps, then queries and shares, in two blocks.
    state = 2 * (4 * 16 * 16 / 3 + 4 * 16)
    assert begin - end == pytest.approx(state) and end - none == pytest.approx(state)


def test_a_decoder_without_blocks_has_no_place_among_exits() -> None:
    grid = zoo.build("pervasive", None, {"depth": 2, "size": 8, "feed_forward_size": 8},
                     source_vocab_size=TYPES, target_vocab_size=TYPES)  # fmt: skip
    assert depth_of(grid) is None and depth_of(model()) == 3
    measures = written(grid)
    assert math.isnan(measures.average_exit)
    values = measures.values()
    assert values["average_exit"] is None and values["exit_shares"] == []
    assert values["flops_per_token"] is None and values["tokens"] == 9


def split_of(source: list[str], target: list[str]) -> Any:
    raw = [line.capitalize() for line in target]
    texts = {"raw_source": source, "raw_target": raw, "tokenized_target": target}
    sides = {name: lambda lines=lines: lines for name, lines in texts.items()}
    return SimpleNamespace(name="valid", **sides)


def test_text_without_spaces_is_measured_in_characters() -> None:
    """By raw references: Moses sets the mark apart, and the text seems to have spaces."""
    raw, tokenized = "我们今天去北京。", "我们今天去北京 。"
    words = "我们今天去 北海 。"
    vocabulary = Vocabulary(words.split())
    facts = TextFacts("en", "zh", subwords="words")
    text = Pipeline(facts, vocabulary, vocabulary)
    hypothesis = Hypothesis(vocabulary.encode(words.split()), [-1.0] * 4, -4.0, -1.0)
    decoded = Decoded(System("x", model()), [hypothesis], 1.0, 1.0)
    measured = measure(decoded, [Sample(1, [4], [4], tokenized, raw)], text)
    # 7 of 8 characters, 5 of 7 pairs, 4 of 6 triples, 3 of 5 fours.
    assert measured.bleu == pytest.approx(100 * (7 / 8 * 5 / 7 * 4 / 6 * 3 / 5) ** 0.25)
    assert "tok:zh" in measured.signature


def test_samples_and_splits_without_references() -> None:
    warnings: list[str] = []
    texts = split_of(["a b c", "", "a b c d"], ["ab c", "", "d"])
    read = read_samples(pipeline(), texts, None, 3, warnings.append)
    assert [len(sample.source) for sample in read] == [3, 0, 3] and read[0].reference == "ab c"
    assert read[2].line == 3 and "line 3" in warnings[0] and read[0].raw_reference == "Ab c"
    with pytest.raises(DataError, match="no sentence with a reference"):
        read_samples(pipeline(), split_of(["a b c"], [" "]))


SIZES = DecoderSizes(blocks=4, size=6, encoder_size=10, feed_forward_size=14, types=23)
EXITS = [[2, 1, 4, 1, 3], [1, 1], [3, 3, 3], [4]]
SOURCES = [7, 3, 1, 12]


def linear(inner: int, outer: int) -> int:
    """Return the cost of a map (table B.1)."""
    return 2 * inner * outer


class Machine:
    """Decodes a sentence with algorithm 3, adding up what each operation costs."""

    def __init__(self, mechanism: Needs, source_length: int) -> None:
        self.mechanism, self.source_length = mechanism, source_length
        self.flops = 0
        self.first_call = dict.fromkeys(range(1, SIZES.blocks + 1), True)

    def step(self, t: int, exit: int) -> int:
        """Return the cost of step t (from 1)."""
        self.flops = 0
        if self.mechanism == "sequence" and t == 1:
            self.flops += linear(SIZES.encoder_size, SIZES.blocks)
        for n in range(1, SIZES.blocks + 1):
            self.block(n, t)
            if n == 1 and self.mechanism == "multinomial":
                self.flops += linear(SIZES.size, SIZES.blocks)
            if self.mechanism == "geometric" and n < SIZES.blocks:
                self.flops += linear(SIZES.size, 1)
            if self.mechanism == "confidence":
                self.flops += linear(SIZES.size, SIZES.types)
            if n == exit:
                break
        for _ in range(exit + 1, SIZES.blocks + 1):
            self.flops += 2 * linear(SIZES.size, SIZES.size)
        if self.mechanism != "confidence":
            self.flops += linear(SIZES.size, SIZES.types)
        return self.flops

    def block(self, n: int, t: int) -> None:
        d = SIZES.size
        # Key, value, query and what leaves the attention; scores and the weighted sum.
        self.flops += 4 * linear(d, d) + t * (2 * d + 2 * d)
        if self.first_call[n]:
            self.first_call[n] = False
            self.flops += self.source_length * 2 * linear(SIZES.encoder_size, d)
        # The same for the source, of which there is a query alone.
        self.flops += 2 * linear(d, d) + self.source_length * (2 * d + 2 * d)
        self.flops += linear(d, SIZES.feed_forward_size) + linear(SIZES.feed_forward_size, d)


def padded(rows: list[list[int]]) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows])


@pytest.mark.parametrize("mechanism", get_args(Needs))
def test_tokens_cost_what_the_algorithm_adds_up(mechanism: Needs) -> None:
    flops = token_flops(SIZES, torch.tensor(SOURCES), padded(EXITS), mechanism)
    for index, (source, exits) in enumerate(zip(SOURCES, EXITS, strict=True)):
        machine = Machine(mechanism, source)
        expected = [machine.step(t, exit) for t, exit in enumerate(exits, 1)]
        assert flops[index].tolist() == expected + [0] * (5 - len(exits))


def test_the_mean_is_per_step_and_the_baseline_runs_all_blocks() -> None:
    lengths, exits = torch.tensor(SOURCES), padded(EXITS)
    assert corpus_flops(SIZES, lengths, exits) == pytest.approx(
        float(token_flops(SIZES, lengths, exits).sum()) / 11
    )
    machines = [Machine("nothing", source) for source in SOURCES]
    steps = [range(1, len(row) + 1) for row in EXITS]
    total = sum(m.step(t, 4) for m, ts in zip(machines, steps, strict=True) for t in ts)
    whole = torch.where(exits > 0, SIZES.blocks, 0)
    assert corpus_flops(SIZES, lengths, whole) == pytest.approx(total / 11)
    assert average_exit(exits) == pytest.approx(26 / 11)


SMALL_SIZES = DecoderSizes(blocks=6, size=256, encoder_size=512, feed_forward_size=1024, types=6600)
BIG_SIZES = DecoderSizes(6, size=1024, encoder_size=1024, feed_forward_size=4096, types=44000)


@pytest.mark.parametrize(
    ("sizes", "average", "mechanism", "share"),
    [
        (SMALL_SIZES, 1.42, "geometric", 0.50),
        (BIG_SIZES, 2.40, "geometric", 0.66),
        (BIG_SIZES, 2.40, "confidence", 1.13),
    ],
)
def test_savings_of_the_published_operating_points(
    sizes: DecoderSizes, average: float, mechanism: Needs, share: float
) -> None:
    """Section 5.4 corrected: 50 % and 34 % saved, while confidence costs 13 % more."""
    exits = exits_of_mean(average).view(40, 25)
    lengths = torch.full((40,), 25)
    whole = corpus_flops(sizes, lengths, torch.full_like(exits, sizes.blocks))
    ratio = corpus_flops(sizes, lengths, exits, mechanism) / whole
    assert ratio == pytest.approx(share, abs=0.03)


def exits_of_mean(average: float) -> torch.Tensor:
    """Return 1,000 exits of which most have the mean's neighbours and all blocks some."""
    draw = torch.Generator().manual_seed(1)
    low, high = 0.0, 1.0
    for _ in range(50):  # the rate of a geometric distribution, cut at 6, that has this mean
        rate = (low + high) / 2
        shares = rate ** torch.arange(6.0)
        mean = float((shares / shares.sum()) @ torch.arange(1.0, 7.0))
        low, high = (rate, high) if mean < average else (low, rate)
    return 1 + torch.multinomial(shares, 1000, replacement=True, generator=draw)


HALTS: list[tuple[Needs, Halting, AnyHalt]] = [
    ("nothing", "none", GivenExits(torch.tensor([[2, 1, 4, 1, 3, 1, 4, 2]]))),
    ("confidence", "none", Thresholds("confidence", (0.4, 0.312, 0.293))),
    ("geometric", "geometric", Thresholds("geometric", (0.5, 0.52, 0.3))),
    ("multinomial", "multinomial", Predicted("multinomial")),
    ("sequence", "sequence", Predicted("sequence")),
]


@pytest.mark.parametrize(("mechanism", "halting", "halt"), HALTS)
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_formula_counts_what_a_model_runs(
    mechanism: Needs, halting: Halting, halt: AnyHalt, norm: str
) -> None:
    """All products of each step of a Transformer, of torch's own count; those of `begin` apart."""
    model = tiny(
        exits="separate", halting=halting, norm=norm, decoder_depth=4, encoder_size=12,
        encoder="unidirectional",
    ).double()  # fmt: skip
    tokens = [5, 9, 4, 6, 7, 8, 3]
    if mechanism == "multinomial":  # all sorts of exits, not one by its bias
        batch = collate([[5, 6, 7, 8]], [tokens])
        states = model.exit_features(batch, PredictionSites.offline(batch))
        mean = model.halting_logits(batch, states).mean(0).detach()
        model.state_dict()["halting_map.bias"].sub_(mean)
    source = torch.tensor([[5, 6, 7, 8, 2]])
    state, counted, exits = model.begin(source, torch.tensor([5])), [], []
    for token in [1, *tokens]:
        count = FlopCounterMode(display=False, custom_mapping={_ATTENTION: _attention_flops})
        with torch.no_grad(), count:
            step = model.step(torch.tensor([token]), state, halt=halt)
        state = step.state
        assert step.exits is not None
        counted.append(count.get_total_flops())
        exits.append(int(step.exits))
    sizes = DecoderSizes.of(model)
    assert sizes == DecoderSizes(4, 8, 12, 10, 11)
    expected = token_flops(sizes, torch.tensor([5]), torch.tensor([exits]), mechanism)
    if mechanism == "sequence":
        counted[0] += 2 * 4 * 12  # asked once, with the encoder
    else:
        assert len(set(exits)) > 1, exits
    assert counted == expected[0].tolist()


_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def _attention_flops(query: list[int], key: list[int], *_: Any, **__: Any) -> int:
    """Return the cost of scores and weighted sums, for shapes [B, H, L, d]."""
    rows, heads, length, size = query
    return 4 * rows * heads * length * key[2] * size


FAST = ExitPreset("fast", "geometric", (0.25, 1.0), "valid", 34.7, 1.42)


def declared_model(halting: Halting = "geometric", count: int = 3) -> ExitModel:
    declared = ExitModel()
    declared.architecture = "transformer"  # type: ignore[misc]
    declared.traits = Traits(num_exits=count, halting=halting)
    return declared


def chosen(
    choice: str, folder: Path, declared: ExitModel, say: Callable[[str], None] = print,
    weights: str = "best", checksum: str | None = None,
) -> AnyHalt | Verified:  # fmt: skip
    none: Any = None
    return halt_of(choice, LoadedModel(declared, none, {}, folder, weights, checksum), say)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert EXIT_FILE.load(tmp_path) == {}
    safe = ExitPreset("safe-1.5", "confidence", (0.9, 0.8), "valid")
    save_exits(tmp_path, declared_model(), [FAST])
    save_exits(tmp_path, declared_model(), [safe])
    assert EXIT_FILE.load(tmp_path) == {"fast": FAST, "safe-1.5": safe}
    newer = ExitPreset("fast", "geometric", (0.5, 0.5), "valid")
    save_exits(tmp_path, declared_model(), [newer])
    assert load_exit(tmp_path, "fast", declared_model()) == newer
    assert json.loads((tmp_path / "exits.json").read_text())["settings"]["safe-1.5"] == {
        "mechanism": "confidence", "thresholds": [0.9, 0.8], "split": "valid", "bleu": None,
        "average_exit": None, "weights": None, "checksum": None,
    }  # fmt: skip


def test_a_tuning_replaces_what_an_earlier_one_of_its_name_left(tmp_path: Path) -> None:
    def kept(*names: str, tuning: str | None = None) -> set[str]:
        settings = [ExitPreset(name, "geometric", (0.5, 0.5), "valid") for name in names]
        save_exits(tmp_path, declared_model(), settings, tuning)
        return set(EXIT_FILE.load(tmp_path))

    others = {"fast", "fast-loss1", "fast-er-2", "faster-2"}
    assert kept(*others, "fast-1.5", "fast-2") == others | {"fast-1.5", "fast-2"}
    assert kept("fast-3", tuning="fast") == others | {"fast-3"}
    assert kept("fast-2") == others | {"fast-2", "fast-3"}


def test_a_choice_is_a_number_a_name_or_auto(tmp_path: Path) -> None:
    save_exits(tmp_path, declared_model(), [FAST])
    assert chosen("2", tmp_path, declared_model()) == FixedExit(2)
    assert chosen("fast", tmp_path, declared_model()) == Thresholds("geometric", (0.25, 1.0))
    assert chosen("auto", tmp_path, declared_model()) == Thresholds("geometric", (0.5, 0.5))
    assert chosen("auto", tmp_path, declared_model("sequence")) == Predicted("sequence")
    save_exits(tmp_path, declared_model(), [FAST])
    clear_folder(tmp_path)
    assert not (tmp_path / "exits.json").exists()


@pytest.mark.parametrize(
    ("choice", "declared", "message"),
    [
        ("4", declared_model(), "Exit 4 does not exist: the decoder has 3 blocks"),
        ("0", declared_model(), "Exits are numbered from 1"),
        ("-1", declared_model(), "Exits are numbered from 1"),
        ("fats", declared_model(), "named `fats`. Did you mean `fast`"),
        ("auto", declared_model("none"), "has no exit predictor"),
        (
            "fast",
            declared_model(count=6),
            "`fast` in .*2 thresholds are given, but .* 6 blocks needs 5",
        ),
        ("fast", declared_model("sequence"), "`fast` in .*predicts exits by `sequence`"),
        ("fast", declared_model("none", 1), "one exit"),
        ("1", declared_model("none", 1), "one exit"),
    ],
)
def test_misfits(choice: str, declared: ExitModel, message: str, tmp_path: Path) -> None:
    save_exits(tmp_path, declared_model(), [FAST])
    with pytest.raises(ConfigError, match=message):
        chosen(choice, tmp_path, declared)


def test_impossible_names_and_thresholds_are_refused(tmp_path: Path) -> None:
    for name in ("", "3", "-1", "auto", "a b", "../a"):
        with pytest.raises(ConfigError, match="cannot be named"):
            ExitPreset(name, "geometric", (), "valid")
    with pytest.raises(ConfigError, match=r"from 0 to 1, but is 1\.5"):
        ExitPreset("a", "geometric", (1.5,), "valid")
    with pytest.raises(ConfigError, match="has no thresholds"):
        ExitPreset("a", "multinomial", (0.5,), "valid")
    with pytest.raises(ConfigError, match="needs 3"):
        save_exits(tmp_path, declared_model(count=4), [FAST])
    assert not (tmp_path / "exits.json").exists()
    with pytest.raises(ConfigError, match="adaptive-tune"):
        load_exit(tmp_path, "fast", declared_model())


def test_thresholds_go_with_their_weights(tmp_path: Path) -> None:
    last = dataclasses.replace(FAST, weights="last", checksum="a")
    save_exits(tmp_path, declared_model(), [last, dataclasses.replace(FAST, name="old")])
    assert load_exit(tmp_path, "fast", declared_model()) == last
    warnings: list[str] = []
    options: Any = {"folder": tmp_path, "declared": declared_model(), "say": warnings.append}
    halt: Any = partial(chosen, **options)
    assert halt("fast", weights="last", checksum="a") == halt("fast", checksum="a") == FAST.halt()
    assert halt("old", checksum="b") == FAST.halt(), "nothing is known of its weights"
    assert halt("2", checksum="b") == FixedExit(2) and halt("auto", checksum="b") and not warnings
    for checksum in ("b", None):
        assert halt("fast", weights="last", checksum=checksum) == FAST.halt()
        assert "`fast`" in warnings[-1] and "tuned on other weights" in warnings[-1]
    assert len(warnings) == 2
    with pytest.raises(ConfigError, match=r"weights `last`, but `best`") as fault:
        halt("fast", checksum="b")
    assert "`--weights last`" in fault.value.advice


GOOD: dict[str, Any] = {"mechanism": "geometric", "thresholds": [0.5, 0.5], "split": "valid"}


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ([], StorageError, "must be an object|is not an object"),
        ({"format": 1, "settings": []}, StorageError, "must be an object|is not an object"),
        ({"format": 2, "settings": {}}, StorageError, "has format 2"),
        ({"format": 1, "settings": {"a": 1}}, StorageError, "`settings.a` must be an object"),
        (
            {"format": 1, "settings": {"a": GOOD | {"mechanism": "luck"}}},
            StorageError,
            '`mechanism` cannot be `"luck"`',
        ),
        (
            {"format": 1, "settings": {"a": GOOD | {"thresholds": [True]}}},
            StorageError,
            "in `a`, `thresholds.*must be a",
        ),
        (
            {"format": 1, "settings": {"a": GOOD | {"thresholds": "0.5"}}},
            StorageError,
            "in `a`, `thresholds.*must be a",
        ),
        ({"format": 1, "settings": {"a": GOOD | {"split": 1}}}, StorageError, "`split`"),
        ({"format": 1, "settings": {"a": GOOD | {"bleu": "high"}}}, StorageError, "`bleu`"),
        ({"format": 1, "settings": {"a": GOOD | {"weights": 1}}}, StorageError, "`weights`"),
        ({"format": 1, "settings": {"a": GOOD | {"thresholds": [2]}}}, ConfigError, "from 0 to 1"),
        ({"format": 1, "settings": {"7": GOOD}}, ConfigError, "cannot be named"),
    ],
)
def test_damaged(values: Any, kind: type[NmtgridError], message: str, tmp_path: Path) -> None:
    (tmp_path / "exits.json").write_text(json.dumps(values))
    with pytest.raises(kind, match=message):
        EXIT_FILE.load(tmp_path)
    (tmp_path / "exits.json").write_text("{")
    with pytest.raises(StorageError, match="not JSON"):
        EXIT_FILE.load(tmp_path)
