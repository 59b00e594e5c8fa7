"""Tuning early-exit thresholds: traces of all exits, their replay, and decoding with the best.

One teacher-forced pass records, for every token, each exit's prediction and confidence; `replay`
then evaluates thousands of threshold vectors on these records without decoding. Unlike in decoding,
exits in the replay do not change the states of later tokens. For each budget (a range of average
exits) the few vectors that agree best with the full stack are therefore decoded.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtgrid.adaptive.halting import Thresholds, no_predictor
from nmtgrid.adaptive.measure import DecodeSetup, Measured, Sample, System, batches
from nmtgrid.base.devices import autocast
from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import Batch, collate
from nmtgrid.layers.kernels.linear import linear
from nmtgrid.models.api import Classifier, ExitModel, PredictionSites, with_exits

Recorded = Literal["confidence", "geometric"]
"""Mechanisms that decide by thresholds."""

_CHUNK = 1024
"""Number of predictions classified at once, instead of [M, V] for a whole batch."""


@dataclasses.dataclass(frozen=True)
class Records:
    """M tokens, including end symbols, of a decoder with N exits.

    `sentence` [M] are the sentences' numbers, scores [M, N - 1] the values that are compared with
    thresholds; hits [M, N] says whether an exit predicts the forced token, and agrees [M, N]
    whether it predicts the token of the full stack.
    """

    sentence: NDArray[Any]
    scores: NDArray[Any]
    hits: NDArray[Any]
    agrees: NDArray[Any]


@torch.no_grad()
def record(
    model: ExitModel,
    batches: Iterable[Batch],
    mechanism: Recorded,
    *,
    bf16: bool = False,
    advance: Callable[[int], None] = lambda sentences: None,
) -> Records:
    """Return the records of batches with forced targets, whose `indices` number the sentences.

    `advance` gets the number of sentences of each batch. Raises ConfigError if the model has no
    network for this mechanism, or if there are no batches.
    """
    if mechanism == "geometric" and model.traits.halting != "geometric":
        raise no_predictor(model, mechanism)
    parts: list[Records] = []
    for batch in batches:
        with autocast(batch.source.device, bf16):
            parts.append(_of_batch(model, batch, mechanism))
        advance(len(batch))
    if not parts:
        raise ConfigError(
            "There are too few sentences to choose thresholds on: those without a source do not "
            "count, and a guarantee uses half of the others.",
            "Give more sentences (`--sentences`, `--split`).",
        )
    names = [field.name for field in dataclasses.fields(Records)]
    return Records(*(numpy.concatenate([getattr(part, name) for part in parts]) for name in names))


def record_samples(
    system: System,
    samples: Sequence[Sample],
    forced: Sequence[Sequence[int]],
    setup: DecodeSetup,
    mechanism: Recorded,
    advance: Callable[[int], None] = lambda sentences: None,
) -> Records:
    """Return the records of samples with `forced` targets, numbered by their positions."""
    chosen = (
        collate([samples[p].source for p in part], [forced[p] for p in part], part)
        for part in batches(samples, setup.batch)
    )
    on_device = (batch.to(setup.device) for batch in chosen)
    model = with_exits(system.model)
    return record(model, on_device, mechanism, bf16=system.bf16, advance=advance)


def _of_batch(model: ExitModel, batch: Batch, mechanism: Recorded) -> Records:
    sites = PredictionSites.offline(batch)
    targets = batch.target_output[sites.sentence, sites.position]
    states = model.exit_features(batch, sites)
    predictions = [predict(state, model.classifier(exit)) for exit, state in enumerate(states, 1)]
    tokens = torch.stack([token for token, _ in predictions], 1)
    if mechanism == "confidence":
        scores = torch.stack([largest for _, largest in predictions[:-1]], 1)
    else:
        scores = model.halting_logits(batch, states).float().sigmoid()
    return Records(
        batch.indices[sites.sentence].cpu().numpy(),
        scores.cpu().numpy(),
        (tokens == targets[:, None]).cpu().numpy(),
        (tokens == tokens[:, -1:]).cpu().numpy(),
    )


def predict(state: Tensor, classifier: Classifier) -> tuple[Tensor, Tensor]:
    """Return the most probable token [M] of each state [M, D], and its probability. Eq. (5.18)."""
    weight = classifier.weight.to(state.dtype)
    bias = None if classifier.bias is None else classifier.bias.to(state.dtype)
    tokens, largest = [], []
    for part in state.split(_CHUNK):
        logits = linear(part, weight, bias).float()
        # exp(max - logsumexp): the largest probability without the other V - 1.
        best, likeliest = logits.max(1)
        tokens.append(likeliest)
        largest.append((best - logits.logsumexp(1)).exp())
    return torch.cat(tokens), torch.cat(largest)


_TOKENS, _VECTORS = 1 << 16, 1 << 10
"""Tokens and threshold vectors of one block: its bit sets fit into a processor's cache."""


@dataclasses.dataclass(frozen=True)
class Replayed:
    """For K vectors of thresholds [K]: mean exit per token, and share of tokens that are hits."""

    average_exit: NDArray[Any]
    agreement: NDArray[Any]


def replay(scores: NDArray[Any], hits: NDArray[Any], thresholds: NDArray[Any]) -> Replayed:
    """Return the results of K threshold vectors [K, N - 1] on M tokens, all at once.

    scores [M, N - 1] are the values compared (in float32) at each exit except the last, and hits
    [M, N] whether the exit's prediction is a hit. A token exits at the first exit n whose score
    exceeds threshold n. Fast if thresholds share their values, such as multiples of 0.001; correct
    for any.
    """
    count = len(thresholds)
    # For each exit and each threshold value in use: the set of tokens that continue there, as bits.
    # A vector of thresholds is then a chain of intersections of such sets, with 64 tokens per
    # operation.
    values = [numpy.unique(column, return_inverse=True) for column in _float(thresholds).T]
    gone_on, agreeing = numpy.zeros(count), numpy.zeros(count)
    for first in range(0, len(scores), _TOKENS):
        tokens = slice(first, first + _TOKENS)
        going = [
            _packed(_float(scores[tokens, exit])[None] <= distinct[:, None])
            for exit, (distinct, _) in enumerate(values)
        ]
        right = _packed(hits[tokens].T)
        for start in range(0, count, _VECTORS):
            vectors = slice(start, start + _VECTORS)
            sets = [on[index[vectors]] for on, (_, index) in zip(going, values, strict=True)]
            further, good = _walk(sets, right)
            gone_on[vectors] += further
            agreeing[vectors] += good
    total = max(len(scores), 1)
    return Replayed(1 + gone_on / total, agreeing / total)


def _walk(sets: list[NDArray[Any]], right: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the numbers [K] of blocks run beyond the first, summed over tokens, and of hits.

    `sets` has, for each exit except the last, the tokens [K, words] that would continue there;
    right [N, words] are those for which an exit has a hit. Padding is in none of these sets.
    """
    on = numpy.full_like(sets[0], numpy.iinfo(numpy.uint64).max)
    further = numpy.zeros(len(on))
    good = numpy.zeros(len(on))
    for exit, going in enumerate(sets):
        after = on & going
        good += _sizes((on ^ after) & right[exit])  # on ^ after: those that exit here
        further += _sizes(after)
        on = after
    return further, good + _sizes(on & right[-1])


def _packed(members: NDArray[Any]) -> NDArray[Any]:
    """Return sets [rows, tokens] (bool) as words of 64 bits, padded with tokens not in the set."""
    rows, tokens = members.shape
    packed = numpy.zeros((rows, -(-tokens // 64) * 8), dtype=numpy.uint8)
    bits = numpy.packbits(members, axis=1)
    packed[:, : bits.shape[1]] = bits
    return packed.view(numpy.uint64)


def _sizes(sets: NDArray[Any]) -> NDArray[Any]:
    sizes: NDArray[Any] = numpy.bitwise_count(sets).sum(1, dtype=numpy.int64)
    return sizes


def _float(values: NDArray[Any]) -> NDArray[Any]:
    # As compared in decoding, see `halting.Thresholds`.
    return numpy.ascontiguousarray(values, dtype=numpy.float32)


_STEPS = 1000
"""Number of values from which thresholds are drawn; the sets of tokens are made once for each."""
# Widths such as 0.1 are not exact in binary: an exit on an edge must stay in its range.
_EDGE = 1e-9
_LEAST = 1e-4
"""Share of tokens below which disagreements are not distinguished."""


@dataclasses.dataclass(frozen=True)
class Budgets:
    """Ranges of the average exit from 1 to N, each `width` wide, named by their upper ends."""

    width: float
    exits: int

    def __post_init__(self) -> None:
        """Raise ConfigError for an invalid width."""
        if not 0 < self.width < math.inf:
            raise ConfigError(f"`--budget` must be a number above 0, but is {self.width:g}.")

    def index_of(self, average_exit: float) -> int:
        """Return the index of the range, from 0; the lower end of a range belongs to it."""
        # An average exit of exactly N would otherwise open another range.
        last = math.ceil((self.exits - 1) / self.width - _EDGE) - 1
        return max(0, min(last, math.floor((average_exit - 1) / self.width + _EDGE)))

    def budget(self, average_exit: float) -> float:
        """Return the upper end of the range."""
        upper = 1 + (self.index_of(average_exit) + 1) * self.width
        return min(float(self.exits), round(upper, 9))


@dataclasses.dataclass(frozen=True)
class Finalist:
    """A vector of thresholds, and its average exit and agreement (a share) on the records."""

    thresholds: tuple[float, ...]
    average_exit: float
    agreement: float


def draw_thresholds(count: int, exits: int, seed: int = 1) -> NDArray[Any]:
    """Return `count` vectors [count, N - 1] drawn uniformly from (0, 1), in steps of 0.001."""
    drawn = numpy.random.default_rng(seed).integers(0, _STEPS, (count, exits - 1))
    # Midpoints of the steps: a threshold of exactly 0 or 1 would stop all tokens, or none.
    thresholds: NDArray[Any] = (drawn + 0.5) / _STEPS
    return thresholds.round(4)


def finalists(
    records: Records, thresholds: NDArray[Any], budgets: Budgets, keep: int, *, truth: bool = False
) -> list[Finalist]:
    """Return the `keep` vectors of each budget with the best agreement, by rising average exit.

    Agreement is with the full stack, or, if `truth`, with the forced tokens. Of vectors with the
    same results one is kept; at equal agreement the faster one comes first.
    """
    kept: dict[int, list[Finalist]] = defaultdict(list)
    for finalist in _ranked(records, thresholds, truth):
        _add(kept[budgets.index_of(finalist.average_exit)], finalist, keep)
    chosen = chain.from_iterable(kept.values())
    return sorted(chosen, key=lambda finalist: (finalist.average_exit, finalist.agreement))


def refills(
    records: Records, thresholds: NDArray[Any], budgets: Budgets, keep: int,
    shifts: Mapping[float, float], tried: Collection[tuple[float, ...]], *, truth: bool = False,
) -> list[Finalist]:  # fmt: skip
    """Return up to `keep` vectors for each budget of `shifts` that may meet it when decoded.

    A shift is how much deeper such vectors exit in decoding than in the replay. Those in `tried`
    are excluded.
    """
    kept: dict[float, list[Finalist]] = {budget: [] for budget in shifts}
    for finalist in _ranked(records, thresholds, truth):
        for budget, shift in shifts.items():
            keeps = budgets.budget(finalist.average_exit + shift) == budget
            if keeps and finalist.thresholds not in tried:
                _add(kept[budget], finalist, keep)
    return list(chain.from_iterable(kept.values()))


def _add(rivals: list[Finalist], finalist: Finalist, most: int) -> None:
    """Add a vector unless there are `most` already, or one with the same results."""
    if len(rivals) == most:
        return
    results = [(other.average_exit, other.agreement) for other in rivals]
    if (finalist.average_exit, finalist.agreement) not in results:
        rivals.append(finalist)


def _ranked(records: Records, thresholds: NDArray[Any], truth: bool) -> list[Finalist]:
    """Return all vectors by falling agreement, the faster of equals first."""
    replayed = replay(records.scores, records.hits if truth else records.agrees, thresholds)
    order = numpy.lexsort((replayed.average_exit, -replayed.agreement))
    columns = thresholds[order], replayed.average_exit[order], replayed.agreement[order]
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [Finalist(tuple(vector), depth, agreement) for vector, depth, agreement in rows]


def frontier(
    records: Records, thresholds: NDArray[Any], count: int, *, truth: bool = False
) -> list[Finalist]:
    """Return up to `count` vectors that none beats in both agreement and speed, safest first.

    They are spaced by even ratios of the disagreement, from the safest to the fastest.
    """
    best: list[Finalist] = []
    for finalist in _ranked(records, thresholds, truth):
        # Agreement only falls from here on: a vector is worth a test only if it is faster.
        if not best or finalist.average_exit < best[-1].average_exit:
            best.append(finalist)
    if len(best) <= count:
        return best
    # On a log scale, because near full agreement small differences decide what passes.
    levels = numpy.log([1 - finalist.agreement + _LEAST for finalist in best])
    targets = numpy.linspace(levels[0], levels[-1], count)
    # A set, as several targets may have the same nearest vector.
    indices = sorted({int(numpy.abs(levels - value).argmin()) for value in targets})
    return [best[index] for index in indices]


def lost_budgets(
    replayed: Sequence[float], decoded: Sequence[float], budgets: Budgets
) -> list[float]:
    """Return budgets that vectors met in the replay, but none in decoding.

    Both are average exits. The vector with the best agreement is often close to the upper end of
    its budget, and exits a little deeper in decoding; others exit earlier than in the replay.
    """
    kept = {budgets.budget(value) for value in decoded}
    return sorted({budgets.budget(value) for value in replayed} - kept)


@dataclasses.dataclass(frozen=True)
class Choice:
    """An exit mechanism, and its result in the replay (None: not replayed)."""

    system: System
    replayed: Finalist | None = None

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The thresholds of the mechanism, if it has any."""
        halt = self.system.halt
        return halt.values if isinstance(halt, Thresholds) else ()


Objective = Literal["exits", "flops", "seconds"]
"""How the cost of decoding is measured."""


def cost(measured: Measured, objective: Objective) -> float:
    """Return the measured cost, infinity if it is unknown."""
    value = {
        "exits": measured.average_exit,
        "flops": measured.flops_per_token,
        "seconds": measured.decoded.seconds,
    }[objective]
    return math.inf if value is None or math.isnan(value) else value


def beats(measured: Measured, other: Measured, objective: Objective) -> bool:
    """Return whether `measured` is at least as good as `other`, costs no more, and differs."""
    gains = measured.bleu - other.bleu, cost(other, objective) - cost(measured, objective)
    return min(gains) >= 0 and max(gains) > 0
