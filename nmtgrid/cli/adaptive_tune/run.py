"""What `nmtgrid adaptive-tune` does: record, replay, decode the finalists, measure, keep, draw."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
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
from nmtgrid.adaptive.exit_presets import ExitSettings, check_place, save_exits
from nmtgrid.adaptive.halting import FixedExit, Mechanism, RandomExit, check_halt
from nmtgrid.adaptive.measure import (
    Decoded,
    DecodeSetup,
    Measured,
    Sample,
    System,
    decode,
    measure,
    read_samples,
    translations,
)
from nmtgrid.adaptive.tune import Budgets, draw_thresholds, frontier, lost_budgets
from nmtgrid.base import console
from nmtgrid.base.devices import find_device
from nmtgrid.base.errors import ConfigError, NmtgridError
from nmtgrid.base.io.atomic import split_label
from nmtgrid.cli.adaptive_tune.arguments import Arguments
from nmtgrid.cli.adaptive_tune.choice import (
    Choice,
    Refill,
    by_thresholds,
    choices,
    halves,
    mechanism_of,
    predicted,
    recorded,
)
from nmtgrid.cli.adaptive_tune.show import Report, Row, write
from nmtgrid.cli.options import check_same_text, check_vocabularies
from nmtgrid.data.dataset import Dataset
from nmtgrid.models.api import with_exits
from nmtgrid.models.directory import LoadedModel, load_model
from nmtgrid.search.translate import Translator, default_plan
from nmtgrid.text.pipeline import Pipeline


def calibrate(
    order: Arguments, full: System, mechanism: Mechanism, samples: Sequence[Sample],
    tests: Sequence[Sample] | None, way: DecodeSetup, pipeline: Pipeline,
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
        report["test"] = _holds_on_test(order, full, best.candidate, tests, way, pipeline)
    return best.candidate, report


def _candidates(
    order: Arguments,
    full: System,
    mechanism: Mechanism,
    learned: Sequence[Sample],
    way: DecodeSetup,
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
    order: Arguments, theirs: Decoded, ours: Decoded, samples: Sequence[Sample], pipeline: Pipeline
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


def _holds_on_test(
    order: Arguments, full: System, choice: Choice, tests: Sequence[Sample], way: DecodeSetup,
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
    order: Arguments, tested: Sequence[Tested[Choice]], best: Tested[Choice] | None, count: int
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


def _tell(order: Arguments, first: Tested[Choice], count: int) -> int | None:
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


_REFILLS = 2
"""Rounds in which budgets that all their vectors left get others."""


def tune(order: Arguments, json: Path | None) -> None:
    """Tune, measure and report; see the command."""
    assert order.model is not None and order.data is not None
    dataset = Dataset.open(order.data)
    loaded, way, others = _load(order, dataset)
    if order.keep:
        check_place(loaded.folder)
    model = with_exits(loaded.model)
    mechanism = mechanism_of(order.mechanism, model)
    name = order.name or mechanism
    _check_name(name, mechanism, model)
    budgets = Budgets(order.budget, model.traits.num_exits)
    samples = [
        read_samples(loaded.pipeline, dataset.split(split), order.sentences, warn=console.warn)
        for split in (order.split, *([order.test_split] if order.test_split else []))
    ]
    full = System("full stack", model)
    report = Report(
        order, name, mechanism, model.traits.num_exits, way.plan, list(map(len, samples))
    )
    found: list[Choice] = []
    refill: Refill | None = None
    if order.allow_loss is None and order.only != "fixed":
        found, refill = choices(order, model, mechanism, samples[0], way, budgets)
    elif order.allow_loss is not None:
        tests = samples[1] if order.test_split else None
        texts = loaded.pipeline
        chosen, report.calibrated = calibrate(order, full, mechanism, samples[0], tests, way, texts)
        found = [] if chosen is None else [chosen]
    beside = [*([] if order.only == "points" else _beside(model, order.seed)), *others]

    def measured(systems: Sequence[System], place: int) -> list[Measured]:
        with progress(f"decoding {report.splits[place]}", len(systems) * len(samples[place])) as go:
            done = decode(systems, samples[place], way, go)
        return [measure(one, samples[place], loaded.pipeline) for one in done]

    systems = [full, *beside, *(one.system for one in found)]
    tuned = measured(systems, 0)
    report.full, rest = Row(tuned[0]), tuned[1:]
    report.beside = list(map(Row, rest[: len(beside)]))
    ran = list(zip(found, map(Row, rest[len(beside) :]), strict=True))
    for _ in range(_REFILLS):
        shifts = _shifts(ran, budgets)
        if refill is None or not shifts:
            break
        more = refill(shifts, {choice.thresholds for choice, _ in ran})
        if not more:
            break
        ran += zip(more, map(Row, measured([one.system for one in more], 0)), strict=True)
    report.finalists = ran
    report.points = _best(ran, budgets)
    rows = [report.full, *report.beside, *(row for _, row in report.points)]
    shown = [row.tuned.decoded.system for row in rows]
    if len(ran) > len(found):
        # Times compare among what was decoded in turn.
        for row, again in zip(rows, measured(shown, 0), strict=True):
            row.tuned = again
    if order.test_split:
        for row, test in zip(rows, measured(shown, 1), strict=True):
            row.test = test
    fault = _kept(order, report, loaded, budgets) if order.keep else None
    write(report, budgets, json)
    if fault is not None:
        raise fault


def _load(order: Arguments, dataset: Dataset) -> tuple[LoadedModel, DecodeSetup, list[System]]:
    """Return the model, how to decode, and the baselines. Raises ConfigError of all faults."""
    assert order.model is not None
    device = find_device(order.device)
    loaded = load_model(order.model, device, order.weights)
    with_exits(loaded.model)
    plan = dataclasses.replace(default_plan(loaded), beam=order.beam, nbest=1, sample=False)
    bf16 = order.precision == "bf16"
    way = DecodeSetup(plan, order.batch, order.repeats, order.clock, device, bf16)
    _checked(loaded, way, order, dataset)
    faults, others, names = [], [], set()
    for text in order.baselines:
        label, path = split_label(text)
        try:
            other = load_model(path, device, order.weights)
        except NmtgridError as fault:
            faults.append(str(fault))
            continue
        try:
            _checked(other, way, order, dataset)
        except NmtgridError as fault:
            faults.append(f"{path}: {fault}")
            continue
        name = label or path.resolve().name
        if name in names:
            faults.append(f"Two baselines are called `{name}`: name one by `NAME=MODEL`.")
        names.add(name)
        others.append(System(name, other.model))
    if faults:
        raise ConfigError(faults)
    return loaded, way, others


def _checked(loaded: LoadedModel, way: DecodeSetup, order: Arguments, dataset: Dataset) -> None:
    translator = Translator([loaded], way.plan, device=way.device, precision=order.precision)
    check_same_text(translator, dataset)
    check_vocabularies(translator, dataset)


def _check_name(name: str, mechanism: Any, model: Any) -> None:
    """Raise ConfigError now for a name under which nothing could be kept later."""
    count = model.traits.num_exits - 1
    thresholds = (0.5,) * count if mechanism in ("confidence", "geometric") else ()
    settings = ExitSettings(f"{name}-1", mechanism, thresholds, "none")
    check_halt(settings.halt(), model)


def _beside(model: Any, seed: int) -> list[System]:
    """Return the fixed exits but the last, which is the full stack, and the random one."""
    count = model.traits.num_exits
    fixed = [System(f"exit {n}", model, FixedExit(n)) for n in range(1, count)]
    return [*fixed, System("random exits", model, RandomExit(count, seed))]


def _shifts(ran: Sequence[tuple[Choice, Row]], budgets: Budgets) -> dict[float, float]:
    """Return how much deeper than replayed vectors decoded, of each budget that they all left."""
    depths = [
        (choice.replayed.average_exit, row.tuned.average_exit)
        for choice, row in ran
        if choice.replayed
    ]
    lost = lost_budgets([first for first, _ in depths], [last for _, last in depths], budgets)
    found = {}
    for budget in lost:
        own = [last - first for first, last in depths if budgets.budget(first) == budget]
        found[budget] = sum(own) / len(own)
    return found


def _best(ran: Sequence[tuple[Choice, Row]], budgets: Budgets) -> list[tuple[Choice, Row]]:
    """Return the best of each budget that decoding truly kept to; the faster on equal BLEU."""
    best: dict[int, tuple[Choice, Row]] = {}
    for choice, row in sorted(ran, key=lambda pair: pair[1].tuned.average_exit):
        place = budgets.place(row.tuned.average_exit)
        if place not in best or row.tuned.bleu > best[place][1].tuned.bleu:
            best[place] = choice, row
    return [best[place] for place in sorted(best)]


def _kept(
    order: Arguments, report: Report, loaded: LoadedModel, budgets: Budgets
) -> NmtgridError | None:
    """Keep the points, instead of those of an earlier tuning; what is promised is kept beside.

    Returns what prevented it: the results are to be written in any case.
    """
    found = []
    for choice, row in report.points:
        row.stored = report.stored_name(row, budgets)
        found.append(
            ExitSettings(
                row.stored, report.mechanism, choice.thresholds, order.split, row.tuned.bleu,
                row.tuned.average_exit, loaded.weights, loaded.checksum,
            )
        )  # fmt: skip
    if found:
        tuning = report.name if order.allow_loss is None else None
        try:
            save_exits(loaded.folder, loaded.model, found, tuning)
        except NmtgridError as fault:
            for _, row in report.points:
                row.stored = None
            return fault
    return None


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """Show how far the sentences are; yield what to tell of those that are done."""
    with console.progress(what, total) as bar:

        def advance(sentences: int, tokens: int) -> None:
            bar.update(bar.task_ids[0], advance=sentences)

        yield advance
