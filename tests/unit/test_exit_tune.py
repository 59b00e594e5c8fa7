"""Recording exits, choosing thresholds for budgets, and measuring what systems give and cost."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
import torch

from nmtgrid.adaptive.exit_traces import Records, record
from nmtgrid.adaptive.halting import FixedExit, Thresholds
from nmtgrid.adaptive.measure import (
    Decoded,
    DecodeSetup,
    Measured,
    Sample,
    System,
    decode,
    depth_of,
    measure,
    read_samples,
)
from nmtgrid.adaptive.tune import (
    Budgets,
    draw_thresholds,
    finalists,
    frontier,
    lost_budgets,
    refills,
)
from nmtgrid.base.errors import ConfigError, DataError
from nmtgrid.data.batches import Batch, collate
from nmtgrid.models import zoo
from nmtgrid.models.api import ExitModel, PredictionSites, TranslationModel, with_exits
from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.text.vocabulary import BEGIN, END, PAD
from tests.unit.tiny_online import pipeline

SMALL: dict[str, Any] = {
    "encoder_depth": 1, "decoder_depth": 3, "size": 16, "feed_forward_size": 12, "heads": 2,
    "exits": "tied",
}  # fmt: skip
TYPES = len(pipeline().target_vocabulary)


def model(**changes: Any) -> ExitModel:
    """Return a small model with three exits and drawn weights."""
    torch.manual_seed(2)
    found = zoo.build(
        "transformer", None, SMALL | changes, source_vocab_size=TYPES, target_vocab_size=TYPES
    )
    for parameter in found.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return with_exits(found.eval())


def samples() -> list[Sample]:
    """Return four sentences; the second is empty."""
    sources = [[4, 5, 6], [], [7, 8], [9, 4, 5, 6, 7, 8]]
    return [Sample(n, ids, [5, 4], "b a") for n, ids in enumerate(sources, 1)]


def batch() -> Batch:
    return collate([[4, 5, 6], [7]], [[5, 6, 7, 8], [9, 4]], [3, 0])


def by_depth(held: ExitModel, exit: int) -> torch.Tensor:
    """Return the probabilities [M, V] at one exit, asked for by itself."""
    given = batch()
    sites = PredictionSites.offline(given)
    depth = torch.full_like(sites.sentence, exit)
    features = held.features(given, PredictionSites(sites.sentence, sites.position, depth=depth))
    classifier = held.classifier(exit)
    return torch.nn.functional.linear(features, classifier.weight, classifier.bias).softmax(1)


@torch.no_grad()
def test_records_are_what_each_exit_says() -> None:
    held = model(exits="separate")
    found = record(held, [batch()], "confidence")
    targets = torch.tensor([5, 6, 7, 8, END, 9, 4, END])
    assert found.sentence.tolist() == [3] * 5 + [0] * 3
    each = [by_depth(held, exit) for exit in (1, 2, 3)]
    last = each[-1].argmax(1)
    for place, values in enumerate(each):
        assert found.hits[:, place].tolist() == (values.argmax(1) == targets).tolist()
        assert found.agrees[:, place].tolist() == (values.argmax(1) == last).tolist()
        if place < 2:
            assert found.scores[:, place] == pytest.approx(values.amax(1).numpy(), abs=1e-5)
    part = found.of(numpy.array([0]))
    assert part.sentence.tolist() == [0, 0, 0] and part.scores.shape == (3, 2)


def test_records_of_the_geometric_predictor() -> None:
    held = model(halting="geometric")
    found = record(held, [batch()], "geometric")
    assert found.scores.shape == (8, 2) and 0 < found.scores.min() < found.scores.max() < 1
    with pytest.raises(ConfigError, match="geometric"):
        record(model(halting="multinomial"), [batch()], "geometric")


def test_what_the_full_stack_wrote_is_right_at_its_end() -> None:
    held = model(output_bias=True)
    with torch.no_grad():
        held.classifier().bias[[PAD, BEGIN]] = -99.0  # type: ignore[index]
    way = DecodeSetup(SearchPlan(max_length_a=4, max_length_b=1))
    done = decode([System("full", held)], samples(), way)[0]
    pairs = [(s.source, h.tokens) for s, h in zip(samples(), done.hypotheses, strict=True) if h]
    given = collate([source for source, _ in pairs], [tokens for _, tokens in pairs])
    found = record(held, [given], "confidence")
    assert len(found.hits) == sum(len(tokens) + 1 for _, tokens in pairs)
    # An end that the limit forced is nobody's choice.
    is_end = given.target_output[given.is_target].numpy() == END
    assert found.hits[~is_end, 2].all()
    assert (found.hits == found.agrees)[~is_end].all()


def test_budgets() -> None:
    held = Budgets(0.5, 3)
    given = [1.0, 1.49, 1.5, 2.0, 2.99, 3.0]
    assert [held.place(value) for value in given] == [0, 0, 1, 2, 3, 3]
    assert [held.budget(value) for value in given] == [1.5, 1.5, 2.0, 2.5, 3.0, 3.0]
    assert [Budgets(0.75, 3).budget(value) for value in (1.0, 2.6, 3.0)] == [1.75, 3.0, 3.0]
    assert Budgets(9.0, 3).budget(2.0) == 3.0
    with pytest.raises(ConfigError, match="--budget"):
        Budgets(0.0, 3)


def test_budgets_that_decoding_left_are_told() -> None:
    held = Budgets(0.5, 3)
    assert lost_budgets([1.4, 1.45, 1.9, 2.9], [1.5, 1.52, 1.95, 3.0], held) == [1.5]
    assert lost_budgets([1.4, 2.4], [1.6, 2.6], held) == [1.5, 2.5]
    assert lost_budgets([1.4, 1.9], [1.6, 1.4], held) == lost_budgets([], [], held) == []


def test_thresholds_are_drawn_evenly() -> None:
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
    return Records("confidence", numpy.arange(4), scores, hits, agrees)


def test_finalists_of_each_budget() -> None:
    thresholds = numpy.array([[0.1], [0.3], [0.5], [0.55], [0.7], [0.9]])
    # Average exits 1, 1.25, 1.5, 1.5, 1.75, 2; agreement 0.5, 0.75, 0.75, 0.75, 1, 1.
    best = finalists(records(), thresholds, Budgets(0.5, 2), 1)
    assert [(one.thresholds, one.average_exit, one.agreement) for one in best] == [
        ((0.3,), 1.25, 0.75),
        ((0.7,), 1.75, 1.0),
    ]
    more = finalists(records(), thresholds, Budgets(0.5, 2), 4)
    assert [one.thresholds for one in more] == [(0.1,), (0.3,), (0.5,), (0.7,), (0.9,)]
    # By the tokens that were forced, exit 1 is better than the full stack.
    true = finalists(records(), thresholds, Budgets(0.5, 2), 1, truth=True)
    assert [one.thresholds for one in true] == [(0.1,), (0.5,)]


def test_a_lost_budget_is_refilled_from_further_below() -> None:
    thresholds = numpy.array([[0.1], [0.3], [0.5], [0.55], [0.7], [0.9]])

    # Average exits 1, 1.25, 1.5, 1.5, 1.75, 2; agreement 0.5, 0.75, 0.75, 0.75, 1, 1.
    def found(keep: int, shift: float, *tried: float) -> list[float]:
        held = Budgets(0.5, 2), keep, {1.5: shift}, {(one,) for one in tried}
        return [one.thresholds[0] for one in refills(records(), thresholds, *held)]

    assert found(1, 0.0) == [0.3] and found(1, 0.3) == [0.1] and found(2, 0.6) == []
    assert found(2, 0.0) == [0.3, 0.1] and found(2, 0.0, 0.3) == [0.1]
    assert found(2, -0.3) == [0.7, 0.3], "vectors that decode less deep come from above"


def test_the_frontier_goes_from_safest_to_fastest() -> None:
    thresholds = numpy.array([[0.1], [0.3], [0.5], [0.7], [0.9]])
    best = frontier(records(), thresholds, 9)
    assert [one.thresholds for one in best] == [(0.7,), (0.3,), (0.1,)]
    assert [one.thresholds for one in frontier(records(), thresholds, 2)] == [(0.7,), (0.1,)]


def test_measures_of_fixed_exits() -> None:
    held = model()
    systems = [System("two", held, FixedExit(2)), System("full", held),
               System("never", held, Thresholds("confidence", (1.0, 1.0)))]  # fmt: skip
    told: list[int] = []
    way = DecodeSetup(SearchPlan(max_length_a=3, max_length_b=1), batch=2, repeats=2)
    done = decode(systems, samples(), way, lambda sentences, tokens: told.append(sentences))
    assert sum(told) == 9, "three systems, three sentences that have a source"
    two, full, never = (measure(one, samples(), pipeline()) for one in done)
    assert done[0].hypotheses[1] is None and two.average_exit == 2 and two.shares == [0, 1, 0]
    assert full.average_exit == never.average_exit == 3 and full.bleu == never.bleu
    assert [h.tokens if h else None for h in done[1].hypotheses] == [
        h.tokens if h else None for h in done[2].hypotheses
    ]
    assert two.flops_per_token is not None and full.flops_per_token is not None
    assert never.flops_per_token == pytest.approx(full.flops_per_token + 2 * 2 * TYPES * 16)
    # Appendix B by hand: two blocks run, one is skipped, for each step t of each sentence.
    total, tokens = 0.0, 0
    for one, found in zip(samples(), done[0].hypotheses, strict=True):
        if found is None:
            continue
        source = len(one.source) + 1
        steps = len(found.tokens) + 1
        total += 2 * 4 * source * 16 * 16
        for t in range(1, steps + 1):
            block = 12 * 16**2 + 4 * 12 * 16 + 4 * t * 16 + 4 * source * 16
            total += 2 * block + 4 * 16**2 + 2 * TYPES * 16
        tokens += steps
    assert two.flops_per_token == pytest.approx(total / tokens)
    assert two.values()["tokens"] == tokens and done[0].seconds > 0


def written(held: TranslationModel, exits: list[int] | None = None) -> Measured:
    """Return the measures of three sentences of two tokens each."""
    one = Hypothesis([4, 5], [-1.0] * 3, -3.0, -1.0, exits=exits)
    found = [one if given.source else None for given in samples()]
    return measure(Decoded(System("x", held), found, 1.0, 1.0), samples(), pipeline())


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
    found = written(grid)
    assert math.isnan(found.average_exit)
    values = found.values()
    assert values["average_exit"] is None and values["exit_shares"] == []
    assert values["flops_per_token"] is None and values["tokens"] == 9


class _Split:
    """A split as far as it is read."""

    name = "valid"

    def __init__(self, source: list[str], target: list[str]) -> None:
        self._source, self._target = source, target

    def raw_source(self) -> list[str]:
        return self._source

    def tokenized_target(self) -> list[str]:
        return self._target


def test_samples_and_splits_without_references() -> None:
    told: list[str] = []
    split: Any = _Split(["a b c", "", "a b c d"], ["ab c", "", "d"])
    found = read_samples(pipeline(), split, None, 3, told.append)
    assert [len(one.source) for one in found] == [3, 0, 3] and found[0].reference == "ab c"
    assert found[2].line == 3 and "line 3" in told[0]
    bare: Any = _Split(["a b c"], [" "])
    with pytest.raises(DataError, match="no sentence with a reference"):
        read_samples(pipeline(), bare)
