"""Which thresholds `nmtgrid adaptive-tune` decodes with: replayed on records of the full stack."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy

from nmtgrid.adaptive.exit_traces import Records, record
from nmtgrid.adaptive.halting import Mechanism, Predicted, Thresholds, check_halt
from nmtgrid.adaptive.measure import Decoded, DecodeSetup, Sample, System, batches, decode
from nmtgrid.adaptive.tune import Budgets, Finalist, draw_thresholds, finalists, refills
from nmtgrid.base import console
from nmtgrid.cli.adaptive_tune.arguments import Arguments, MechanismName
from nmtgrid.data.batches import collate
from nmtgrid.models.api import ExitModel

Refill = Callable[[Mapping[float, float], Collection[tuple[float, ...]]], list["Choice"]]
"""For budgets, by how much deeper than replayed vectors decode there, and vectors tried: others."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """A way to leave early, and how it did when it was replayed (None where nothing was)."""

    system: System
    thresholds: tuple[float, ...] = ()
    replayed: Finalist | None = None


def mechanism_of(asked: MechanismName | None, model: ExitModel) -> Mechanism:
    """Return what decides: what is asked for, the model's own predictor, or confidence.

    Raises ConfigError where the model has no such predictor.
    """
    own = model.traits.halting
    chosen: Mechanism = asked or ("confidence" if own == "none" else own)
    if chosen == "multinomial" or chosen == "sequence":
        check_halt(Predicted(chosen), model)
    else:
        check_halt(Thresholds(chosen, (0.5,) * (model.traits.num_exits - 1)), model)
    return chosen


def choices(
    order: Arguments, model: ExitModel, mechanism: Mechanism, samples: Sequence[Sample],
    way: DecodeSetup,
    budgets: Budgets,
) -> tuple[list[Choice], Refill | None]:  # fmt: skip
    """Return what is worth decoding: the best few of each budget, or the one predictor.

    And what finds more for budgets that decoding left empty, where there is more.
    """
    if mechanism == "multinomial" or mechanism == "sequence":
        return [predicted(model, mechanism)], None
    records = recorded(order, model, mechanism, samples, way)
    drawn = draw_thresholds(order.samples, model.traits.num_exits, order.seed)
    truth = order.judge == "references"
    found = finalists(records, drawn, budgets, order.finalists, truth=truth)

    def refill(shifts: Mapping[float, float], tried: Collection[tuple[float, ...]]) -> list[Choice]:
        more = refills(records, drawn, budgets, order.finalists, shifts, tried, truth=truth)
        return [by_thresholds(model, mechanism, one) for one in more]

    return [by_thresholds(model, mechanism, one) for one in found], refill


def predicted(model: ExitModel, mechanism: Mechanism) -> Choice:
    """Return the choice of a predictor without thresholds."""
    assert mechanism == "multinomial" or mechanism == "sequence"
    return Choice(System(mechanism, model, Predicted(mechanism)))


def by_thresholds(model: ExitModel, mechanism: Mechanism, one: Finalist) -> Choice:
    """Return the choice of a vector of thresholds."""
    assert mechanism == "confidence" or mechanism == "geometric"
    halt = Thresholds(mechanism, one.thresholds)
    return Choice(System(mechanism, model, halt), one.thresholds, one)


def recorded(
    order: Arguments, model: ExitModel, mechanism: Mechanism, samples: Sequence[Sample],
    way: DecodeSetup,
    full: Decoded | None = None,
) -> Records:  # fmt: skip
    """Return records of the samples (numbers are their places): what is forced is `order.judge`'s.

    `full` is what the full stack makes of them, where that is known.
    """
    assert mechanism == "confidence" or mechanism == "geometric"
    forced = [one.target for one in samples]
    if order.judge == "full":
        done = full or decode([System("full stack", model)], samples, way)[0]
        forced = [[] if one is None else one.tokens for one in done.hypotheses]
    chosen = (
        collate([samples[p].source for p in places], [forced[p] for p in places], places)
        for places in batches(samples, way.batch)
    )
    with console.progress("recording exits", len(samples)) as bar:
        return record(
            model,
            (batch.to(way.device) for batch in chosen),
            mechanism,
            bf16=way.bf16,
            advance=lambda sentences, tokens: bar.update(bar.task_ids[0], advance=sentences),
        )


def halves(samples: Sequence[Sample], seed: int) -> tuple[list[int], list[int]]:
    """Return the places of two random halves of the samples that have a source."""
    usable = numpy.array([place for place, one in enumerate(samples) if one.source], dtype=int)
    mixed = numpy.random.default_rng(seed).permutation(usable)
    half = len(mixed) // 2
    return sorted(mixed[:half].tolist()), sorted(mixed[half:].tolist())
