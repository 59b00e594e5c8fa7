"""`nmtgrid adaptive-tune --allow-loss`: thresholds that keep a promise, and whether they do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from nmtgrid.adaptive.calibrate import (
    Tested,
    agreement_losses,
    bleu_losses,
    check_promise,
    fixed_sequence,
    least_count,
)
from nmtgrid.adaptive.halting import Mechanism
from nmtgrid.adaptive.measure import Decoded, System, Way, decode, translations
from nmtgrid.adaptive.samples import Sample
from nmtgrid.adaptive.tune import draw_thresholds, frontier
from nmtgrid.base import console
from nmtgrid.cli.adaptive_tune.arguments import Order
from nmtgrid.cli.adaptive_tune.choice import Choice, by_thresholds, halves, predicted, recorded
from nmtgrid.models.api import with_exits
from nmtgrid.text.pipeline import Pipeline


def calibrate(
    order: Order, full: System, mechanism: Mechanism, samples: Sequence[Sample],
    tests: Sequence[Sample] | None, way: Way, pipeline: Pipeline,
) -> tuple[Choice | None, dict[str, Any]]:  # fmt: skip
    """Return the fastest choice that is certified (None: none is), and JSON keys.

    Raises ConfigError where there are too few sentences for any to be.
    """
    assert order.allow_loss is not None
    first, second = halves(samples, order.seed)
    check_promise(order.allow_loss, order.confidence, len(second))
    learned, held_out = [samples[p] for p in first], [samples[p] for p in second]
    candidates = _candidates(order, full, mechanism, learned, way)
    theirs = decode([full], held_out, way)[0]
    with console.progress("testing candidates", len(candidates)) as bar:

        def losses(choice: Choice) -> NDArray[Any]:
            bar.update(bar.task_ids[0], advance=1)
            ours = decode([choice.system], held_out, way)[0]
            return _losses(order, theirs, ours, held_out, pipeline)

        bound = order.allow_loss / 100
        tested = fixed_sequence(candidates, losses, bound, order.confidence)
    passed = [one for one in tested if one.passed]
    best = min(passed, key=lambda one: _speed(one.candidate), default=None)
    report = _report(order, tested, best, len(second))
    if best is None:
        report["needed"] = _tell(order, tested[0], len(second))
        return None, report
    if tests is not None:
        report["test"] = _kept(order, full, best.candidate, tests, way, pipeline)
    return best.candidate, report


def _candidates(
    order: Order, full: System, mechanism: Mechanism, learned: Sequence[Sample], way: Way
) -> list[Choice]:
    model = with_exits(full.model)
    if mechanism == "multinomial" or mechanism == "sequence":
        return [predicted(model, mechanism)]
    records = recorded(order, model, mechanism, learned, way)
    drawn = draw_thresholds(order.samples, model.traits.num_exits, order.seed)
    truth = order.judge == "references"
    found = frontier(records, drawn, order.candidates, truth=truth)
    return [by_thresholds(model, mechanism, one) for one in found]


def _speed(choice: Choice) -> float:
    return 0.0 if choice.replayed is None else choice.replayed.average_exit


def _losses(
    order: Order, theirs: Decoded, ours: Decoded, samples: Sequence[Sample], pipeline: Pipeline
) -> NDArray[Any]:
    """Return the loss of each sentence that has a source."""
    kept = [place for place, one in enumerate(samples) if one.source]
    if order.risk == "bleu":
        sides = [translations(one, pipeline) for one in (theirs, ours)]
        sides.append([one.reference for one in samples])
        return bleu_losses(*([side[place] for place in kept] for side in sides))
    tokens = [
        [held.tokens for held in one.hypotheses if held is not None] for one in (theirs, ours)
    ]
    return agreement_losses(*tokens)


def _kept(
    order: Order, full: System, choice: Choice, tests: Sequence[Sample], way: Way,
    pipeline: Pipeline,
) -> dict[str, Any]:  # fmt: skip
    """Return whether the promise holds on other sentences."""
    assert order.allow_loss is not None
    theirs, ours = decode([full, choice.system], tests, way)
    loss = 100 * float(_losses(order, theirs, ours, tests, pipeline).mean())
    return {
        "split": order.test_split,
        "sentences": sum(bool(one.source) for one in tests),
        "loss": loss,
        "holds": loss <= order.allow_loss,
    }


def _report(
    order: Order, tested: Sequence[Tested[Choice]], best: Tested[Choice] | None, count: int
) -> dict[str, Any]:
    return {
        "risk": order.risk,
        "allow_loss": order.allow_loss,
        "confidence": order.confidence,
        "sentences": count,
        "certified": best is not None,
        "thresholds": None if best is None else list(best.candidate.thresholds),
        "loss": None if best is None else 100 * best.mean_loss,
        "p_value": None if best is None else best.p_value,
        "tested": [
            {
                "thresholds": list(one.candidate.thresholds),
                "loss": 100 * one.mean_loss,
                "p_value": one.p_value,
                "passed": one.passed,
            }
            for one in tested
        ],
    }


def _tell(order: Order, first: Tested[Choice], count: int) -> int | None:
    """Say why nothing is certified; return how many sentences would do, if any number would."""
    assert order.allow_loss is not None
    needed = least_count(order.allow_loss / 100, order.confidence, first.mean_loss)
    lost = f"Even the safest thresholds lose {100 * first.mean_loss:.2f} ({order.risk})"
    if needed is None:
        why = f"{lost}, which is not below {order.allow_loss:g}: allow more."
    else:
        why = f"{lost} on {count:,} sentences; about {needed:,} are needed to promise that."
    console.say(f"No thresholds are certified, so the full stack it stays. {why}")
    return needed
