"""Choosing thresholds: sample vectors, replay them on records, decode only those worth it.

For each budget (a range of average exits) the few vectors are kept that agree best with the full
stack on the records; what they truly give is found out by decoding.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import numpy
from numpy.typing import NDArray

from nmtgrid.adaptive.exit_traces import Records, record, replay
from nmtgrid.adaptive.halting import Mechanism, Predicted, Thresholds, check_halt
from nmtgrid.adaptive.measure import Decoded, DecodeSetup, Sample, System, batches, decode
from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import collate
from nmtgrid.models.api import ExitModel

_STEPS = 1000
"""Thresholds are drawn from so many values, evenly: their sets of tokens are made once for each."""
# Widths such as 0.1 are not exact in binary: an exit on an edge must keep to its range.
_EDGE = 1e-9
_LEAST = 1e-4
"""Share of tokens: disagreement below it is all one."""


@dataclasses.dataclass(frozen=True)
class Budgets:
    """Ranges of average exits from 1 to N, each `width` wide; a budget is its range's upper end."""

    width: float
    exits: int

    def __post_init__(self) -> None:
        """Raise ConfigError for a width that cannot be."""
        if not 0 < self.width < math.inf:
            raise ConfigError(f"`--budget` must be a number above 0, but is {self.width:g}.")

    def place(self, average_exit: float) -> int:
        """Return the range, from 0; its lower end belongs to it."""
        # An average exit of exactly N would open a range of its own.
        last = math.ceil((self.exits - 1) / self.width - _EDGE) - 1
        return max(0, min(last, math.floor((average_exit - 1) / self.width + _EDGE)))

    def budget(self, average_exit: float) -> float:
        """Return the upper end of the range."""
        upper = 1 + (self.place(average_exit) + 1) * self.width
        return min(float(self.exits), round(upper, 9))


@dataclasses.dataclass(frozen=True)
class Finalist:
    """A vector of thresholds, and its average exit and agreement (a share) on the records."""

    thresholds: tuple[float, ...]
    average_exit: float
    agreement: float


def draw_thresholds(count: int, exits: int, seed: int = 1) -> NDArray[Any]:
    """Return `count` vectors [count, N - 1] drawn evenly from (0, 1), to the thousandth."""
    drawn = numpy.random.default_rng(seed).integers(0, _STEPS, (count, exits - 1))
    # Midpoints of the steps: a threshold of exactly 0 or 1 would stop all tokens, or none.
    thresholds: NDArray[Any] = (drawn + 0.5) / _STEPS
    return thresholds.round(4)


def finalists(
    records: Records, thresholds: NDArray[Any], budgets: Budgets, keep: int, *, truth: bool = False
) -> list[Finalist]:
    """Return the `keep` vectors of each budget that agree best, by rising average exit.

    With the full stack, or, if `truth`, with the tokens that were forced. Of vectors that do the
    same one is kept; on equal agreement the faster comes first.
    """
    kept: dict[int, list[Finalist]] = {}
    for finalist in _ranked(records, thresholds, truth):
        rivals = kept.setdefault(budgets.place(finalist.average_exit), [])
        if len(rivals) < keep and not any(_alike(finalist, other) for other in rivals):
            rivals.append(finalist)
    chosen = [finalist for rivals in kept.values() for finalist in rivals]
    return sorted(chosen, key=lambda finalist: (finalist.average_exit, finalist.agreement))


def refills(
    records: Records, thresholds: NDArray[Any], budgets: Budgets, keep: int,
    shifts: Mapping[float, float], tried: Collection[tuple[float, ...]], *, truth: bool = False,
) -> list[Finalist]:  # fmt: skip
    """Return up to `keep` vectors for each budget of `shifts` that may keep to it when decoded.

    A shift is how much deeper than replayed such vectors decode. Those `tried` are left out.
    """
    ranked = _ranked(records, thresholds, truth)
    chosen = []
    for budget, shift in shifts.items():
        refill: list[Finalist] = []
        for finalist in ranked:
            if len(refill) == keep:
                break
            keeps = budgets.budget(finalist.average_exit + shift) == budget
            if (
                keeps
                and finalist.thresholds not in tried
                and not any(_alike(finalist, h) for h in refill)
            ):
                refill.append(finalist)
        chosen += refill
    return chosen


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

    From the safest to the fastest, in even ratios of what does not agree.
    """
    best: list[Finalist] = []
    for finalist in _ranked(records, thresholds, truth):
        # Agreement only falls from here on: a vector is worth a test only if it is faster.
        if not best or finalist.average_exit < best[-1].average_exit:
            best.append(finalist)
    return thinned(best, count)


def thinned(best: Sequence[Finalist], count: int) -> list[Finalist]:
    """Return up to `count` of them, the first and last among them: what may pass lies close."""
    if len(best) <= count:
        return list(best)
    # On a log scale, because near full agreement small differences decide what passes.
    levels = numpy.log([1 - finalist.agreement + _LEAST for finalist in best])
    targets = numpy.linspace(levels[0], levels[-1], count)
    # A set, as several targets may have the same nearest vector.
    indices = sorted({int(numpy.abs(levels - value).argmin()) for value in targets})
    return [best[index] for index in indices]


def lost_budgets(
    replayed: Sequence[float], decoded: Sequence[float], budgets: Budgets
) -> list[float]:
    """Return the budgets that vectors kept to when they were replayed, but none when decoded.

    Both are average exits. What agrees best often lies at its budget's upper end, and decodes a
    little deeper.
    """
    kept = {budgets.budget(value) for value in decoded}
    return sorted({budgets.budget(value) for value in replayed} - kept)


def _alike(first: Finalist, second: Finalist) -> bool:
    return (first.average_exit, first.agreement) == (second.average_exit, second.agreement)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuningPlan:
    """How thresholds are chosen."""

    samples: int
    """Vectors of thresholds that are sampled and replayed."""
    finalists: int
    """Vectors of each budget that are decoded."""
    seed: int
    reference_source: Literal["full", "references"]
    """What is forced, and compared with, when thresholds are replayed: the full stack's own
    translations, or the references."""


Refill = Callable[[Mapping[float, float], Collection[tuple[float, ...]]], list["Choice"]]
"""For budgets, by how much deeper than replayed vectors decode there, and vectors tried: others."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """A way to leave early, and how it did when it was replayed (None where nothing was)."""

    system: System
    thresholds: tuple[float, ...] = ()
    replayed: Finalist | None = None


def choose_mechanism(mechanism: Mechanism | None, model: ExitModel) -> Mechanism:
    """Return what decides: what is asked for, the model's own predictor, or confidence.

    Raises ConfigError where the model has no such predictor.
    """
    own = model.traits.halting
    chosen: Mechanism = mechanism or ("confidence" if own == "none" else own)
    if chosen == "multinomial" or chosen == "sequence":
        check_halt(Predicted(chosen), model)
    else:
        check_halt(Thresholds(chosen, (0.5,) * (model.traits.num_exits - 1)), model)
    return chosen


def choices(
    plan: TuningPlan, model: ExitModel, mechanism: Mechanism, samples: Sequence[Sample],
    setup: DecodeSetup,
    budgets: Budgets,
) -> tuple[list[Choice], Refill | None]:  # fmt: skip
    """Return what is worth decoding: the best few of each budget, or the one predictor.

    And what finds more for budgets that decoding left empty, where there is more.
    """
    if mechanism == "multinomial" or mechanism == "sequence":
        return [predicted(model, mechanism)], None
    records = recorded(plan, model, mechanism, samples, setup)
    drawn = draw_thresholds(plan.samples, model.traits.num_exits, plan.seed)
    truth = plan.reference_source == "references"
    chosen = finalists(records, drawn, budgets, plan.finalists, truth=truth)

    # Keeps the records: to replay more vectors is cheap, but to record again is not.
    def refill(shifts: Mapping[float, float], tried: Collection[tuple[float, ...]]) -> list[Choice]:
        more = refills(records, drawn, budgets, plan.finalists, shifts, tried, truth=truth)
        return [by_thresholds(model, mechanism, finalist) for finalist in more]

    return [by_thresholds(model, mechanism, finalist) for finalist in chosen], refill


def predicted(model: ExitModel, mechanism: Mechanism) -> Choice:
    """Return the choice of a predictor without thresholds."""
    assert mechanism == "multinomial" or mechanism == "sequence"
    return Choice(System(mechanism, model, Predicted(mechanism)))


def by_thresholds(model: ExitModel, mechanism: Mechanism, finalist: Finalist) -> Choice:
    """Return the choice of a vector of thresholds."""
    assert mechanism == "confidence" or mechanism == "geometric"
    halt = Thresholds(mechanism, finalist.thresholds)
    return Choice(System(mechanism, model, halt), finalist.thresholds, finalist)


def recorded(
    plan: TuningPlan, model: ExitModel, mechanism: Mechanism, samples: Sequence[Sample],
    setup: DecodeSetup,
    full: Decoded | None = None,
) -> Records:  # fmt: skip
    """Return records of the samples, numbered by their positions; the plan says what is forced.

    `full` is what the full stack makes of them, where that is known.
    """
    assert mechanism == "confidence" or mechanism == "geometric"
    forced = [sample.target for sample in samples]
    if plan.reference_source == "full":
        done = full or decode([System("full stack", model)], samples, setup)[0]
        forced = [[] if best is None else best.tokens for best in done.hypotheses]
    chosen = (
        collate([samples[p].source for p in places], [forced[p] for p in places], places)
        for places in batches(samples, setup.batch)
    )
    with console.progress("recording exits", len(samples)) as bar:
        return record(
            model,
            (batch.to(setup.device) for batch in chosen),
            mechanism,
            bf16=setup.bf16,
            advance=lambda sentences, tokens: bar.update(bar.task_ids[0], advance=sentences),
        )


def halves(samples: Sequence[Sample], seed: int) -> tuple[list[int], list[int]]:
    """Return the places of two random halves of the samples that have a source."""
    usable = numpy.array(
        [index for index, sample in enumerate(samples) if sample.source], dtype=int
    )
    mixed = numpy.random.default_rng(seed).permutation(usable)
    half = len(mixed) // 2
    return sorted(mixed[:half].tolist()), sorted(mixed[half:].tolist())
