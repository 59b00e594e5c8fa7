"""What `nmtgrid adaptive-tune` does: record, replay, decode the finalists, measure, keep, draw."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
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
from nmtgrid.adaptive.tune import (
    Budgets,
    Choice,
    Refill,
    TuningPlan,
    by_thresholds,
    choices,
    choose_mechanism,
    draw_thresholds,
    frontier,
    halves,
    lost_budgets,
    predicted,
    recorded,
)
from nmtgrid.base import console
from nmtgrid.base.devices import find_device
from nmtgrid.base.errors import ConfigError, NmtgridError
from nmtgrid.base.io.atomic import split_label
from nmtgrid.cli.adaptive_tune.arguments import AdaptiveTuneArguments
from nmtgrid.cli.adaptive_tune.show import Report, Row, write
from nmtgrid.cli.options import check_same_text, check_vocabularies
from nmtgrid.data.dataset import Dataset
from nmtgrid.models.api import with_exits
from nmtgrid.models.directory import LoadedModel, load_model
from nmtgrid.search.translate import Translator, default_plan
from nmtgrid.text.pipeline import Pipeline


def calibrate(
    arguments: AdaptiveTuneArguments, full: System, mechanism: Mechanism, samples: Sequence[Sample],
    tests: Sequence[Sample] | None, setup: DecodeSetup, pipeline: Pipeline,
) -> tuple[Choice | None, dict[str, Any]]:  # fmt: skip
    """Return the fastest choice that is certified (None: none is), and JSON keys.

    Raises ConfigError where there are too few sentences for any to be.
    """
    assert arguments.allow_loss is not None
    # The promise needs fresh sentences: candidates are chosen on one half, tested on the other.
    first, second = halves(samples, arguments.seed)
    # Refused before the slow part: with too few sentences no test can ever pass.
    check_promise(arguments.allow_loss, arguments.guarantee_confidence, len(second))
    learned, held_out = [samples[p] for p in first], [samples[p] for p in second]
    candidates = _candidates(arguments, full, mechanism, learned, setup)
    # The full stack is decoded once, and every candidate is compared with that.
    theirs = decode([full], held_out, setup)[0]
    with console.progress("testing candidates", len(candidates)) as bar:

        def losses(choice: Choice) -> NDArray[Any]:
            bar.update(bar.task_ids[0], advance=1)
            ours = decode([choice.system], held_out, setup)[0]
            return _losses(arguments, theirs, ours, held_out, pipeline)

        bound = arguments.allow_loss / 100
        tested = fixed_sequence(candidates, losses, bound, arguments.guarantee_confidence)
    passed = [result for result in tested if result.passed]
    # Every candidate that passed carries the guarantee, so speed alone decides.
    best = min(passed, key=lambda result: _speed(result.candidate), default=None)
    report = _report(arguments, tested, best, len(second))
    if best is None:
        # Candidates are tested from the safest on: if none passed, the first one failed.
        report["needed"] = _tell(arguments, tested[0], len(second))
        return None, report
    # A check from outside only: the test split has no part in the certificate.
    if tests is not None:
        report["test"] = _holds_on_test(arguments, full, best.candidate, tests, setup, pipeline)
    return best.candidate, report


def _candidates(
    arguments: AdaptiveTuneArguments,
    full: System,
    mechanism: Mechanism,
    learned: Sequence[Sample],
    setup: DecodeSetup,
) -> list[Choice]:
    model = with_exits(full.model)
    # These predictors choose the exit themselves, so there are no thresholds to vary.
    if mechanism == "multinomial" or mechanism == "sequence":
        return [predicted(model, mechanism)]
    records = recorded(_plan(arguments), model, mechanism, learned, setup)
    drawn = draw_thresholds(arguments.samples, model.traits.num_exits, arguments.seed)
    truth = arguments.judge == "references"
    finalists = frontier(records, drawn, arguments.guarantee_candidates, truth=truth)
    return [by_thresholds(model, mechanism, finalist) for finalist in finalists]


def _speed(choice: Choice) -> float:
    return 0.0 if choice.replayed is None else choice.replayed.average_exit


def _losses(
    arguments: AdaptiveTuneArguments,
    full: Decoded,
    early: Decoded,
    samples: Sequence[Sample],
    pipeline: Pipeline,
) -> NDArray[Any]:
    """Return the loss of each sentence that has a source."""
    # Empty sources are not decoded; counted as losses of 0, they would flatter the mean.
    indices = [index for index, sample in enumerate(samples) if sample.source]
    if arguments.loss_measure == "bleu":
        sides = [translations(decoded, pipeline) for decoded in (full, early)]
        sides.append([sample.reference for sample in samples])
        return bleu_losses(*([side[index] for index in indices] for side in sides))
    tokens = [
        [hypothesis.tokens for hypothesis in decoded.hypotheses if hypothesis is not None]
        for decoded in (full, early)
    ]
    return agreement_losses(*tokens)


def _holds_on_test(
    arguments: AdaptiveTuneArguments,
    full: System,
    choice: Choice,
    tests: Sequence[Sample],
    setup: DecodeSetup,
    pipeline: Pipeline,
) -> dict[str, Any]:
    """Return whether the promise holds on other sentences."""
    assert arguments.allow_loss is not None
    full_stack, early = decode([full, choice.system], tests, setup)
    loss = 100 * float(_losses(arguments, full_stack, early, tests, pipeline).mean())
    return {
        "split": arguments.test_split,
        "sentences": sum(bool(sample.source) for sample in tests),
        "loss": loss,
        "holds": loss <= arguments.allow_loss,
    }


def _report(
    arguments: AdaptiveTuneArguments,
    tested: Sequence[Tested[Choice]],
    best: Tested[Choice] | None,
    count: int,
) -> dict[str, Any]:
    return {
        "risk": arguments.loss_measure,
        "allow_loss": arguments.allow_loss,
        "confidence": arguments.guarantee_confidence,
        "sentences": count,
        "certified": best is not None,
        "thresholds": None if best is None else list(best.candidate.thresholds),
        "loss": None if best is None else 100 * best.mean_loss,
        "p_value": None if best is None else best.p_value,
        "tested": [
            {
                "thresholds": list(result.candidate.thresholds),
                "loss": 100 * result.mean_loss,
                "p_value": result.p_value,
                "passed": result.passed,
            }
            for result in tested
        ],
    }


def _tell(arguments: AdaptiveTuneArguments, first: Tested[Choice], count: int) -> int | None:
    """Say why nothing is certified; return how many sentences would do, if any number would."""
    assert arguments.allow_loss is not None
    needed = least_count(
        arguments.allow_loss / 100, arguments.guarantee_confidence, first.mean_loss
    )
    lost = f"Even the safest thresholds lose {100 * first.mean_loss:.2f} ({arguments.loss_measure})"
    if needed is None:
        why = f"{lost}, which is not below {arguments.allow_loss:g}: allow more."
    else:
        why = f"{lost} on {count:,} sentences; about {needed:,} are needed to promise that."
    console.say(f"No thresholds are certified, so the full stack it stays. {why}")
    return needed


_REFILLS = 2
"""Rounds in which budgets that all their vectors left get others."""

Measure = Callable[[Sequence[System], int], list[Measured]]
"""Decodes systems on the split of a number, 0 being the one tuned on, and measures them."""


def tune(arguments: AdaptiveTuneArguments) -> None:
    """Tune, measure and report; see the command."""
    assert arguments.model is not None and arguments.data is not None
    dataset = Dataset.open(arguments.data)
    loaded, setup, others = _load(arguments, dataset)
    # A folder that cannot be written is refused now, not after hours of decoding.
    if arguments.keep:
        check_place(loaded.folder)
    model = with_exits(loaded.model)
    mechanism = choose_mechanism(arguments.mechanism, model)
    name = arguments.name or mechanism
    _check_name(name, mechanism, model)
    budgets = Budgets(arguments.budget, model.traits.num_exits)
    samples = [
        read_samples(loaded.pipeline, dataset.split(split), arguments.sentences, warn=console.warn)
        for split in (arguments.split, *([arguments.test_split] if arguments.test_split else []))
    ]
    full = System("full stack", model)
    report = Report(
        arguments, name, mechanism, model.traits.num_exits, setup.plan, list(map(len, samples))
    )
    chosen, refill = _choose(report, full, samples, setup, budgets, loaded.pipeline)
    beside = [*([] if arguments.only == "points" else _beside(model, arguments.seed)), *others]

    def measured(systems: Sequence[System], split_number: int) -> list[Measured]:
        with progress(
            f"decoding {report.splits[split_number]}", len(systems) * len(samples[split_number])
        ) as go:
            done = decode(systems, samples[split_number], setup, go)
        return [measure(decoded, samples[split_number], loaded.pipeline) for decoded in done]

    _measure(report, [full, *beside], chosen, refill, budgets, measured)
    # Presets that cannot be kept must not cost the results: the fault is raised after those.
    fault = _kept(arguments, report, loaded, budgets) if arguments.keep else None
    write(report, budgets, arguments.json)
    if fault is not None:
        raise fault


def _choose(
    report: Report,
    full: System,
    samples: Sequence[Sequence[Sample]],
    setup: DecodeSetup,
    budgets: Budgets,
    pipeline: Pipeline,
) -> tuple[list[Choice], Refill | None]:
    """Return what is worth decoding, and what finds more; enter a calibration into the report."""
    arguments, mechanism = report.arguments, report.mechanism
    if arguments.allow_loss is not None:
        tests = samples[1] if arguments.test_split else None
        certified, report.calibrated = calibrate(
            arguments, full, mechanism, samples[0], tests, setup, pipeline
        )
        return [] if certified is None else [certified], None
    if arguments.only == "fixed":
        return [], None
    model = with_exits(full.model)
    return choices(_plan(arguments), model, mechanism, samples[0], setup, budgets)


def _measure(
    report: Report,
    fixed: Sequence[System],
    chosen: Sequence[Choice],
    refill: Refill | None,
    budgets: Budgets,
    measured: Measure,
) -> None:
    """Decode the full stack, which is the first of `fixed`, its rivals and what was chosen.

    Enters all rows into the report, and the best of each budget as its points.
    """
    # In one call: systems take turns on each batch, so that a busy machine slows all alike.
    tuned = measured([*fixed, *(choice.system for choice in chosen)], 0)
    report.full = Row(tuned[0])
    report.beside = list(map(Row, tuned[1 : len(fixed)]))
    ran = list(zip(chosen, map(Row, tuned[len(fixed) :]), strict=True))
    for _ in range(_REFILLS):
        # Decoding exits at other depths than replay did: others are chosen with that shift in mind.
        shifts = _shifts(ran, budgets)
        if refill is None or not shifts:
            break
        more = refill(shifts, {choice.thresholds for choice, _ in ran})
        if not more:
            break
        ran += zip(more, map(Row, measured([choice.system for choice in more], 0)), strict=True)
    report.finalists = ran
    report.points = _best(ran, budgets)
    rows = [report.full, *report.beside, *(row for _, row in report.points)]
    shown = [row.tuned.decoded.system for row in rows]
    if len(ran) > len(chosen):
        # Times compare among what was decoded in turn.
        for row, again in zip(rows, measured(shown, 0), strict=True):
            row.tuned = again
    # Only what was already chosen: the test split must not influence the choice.
    if report.arguments.test_split:
        for row, test in zip(rows, measured(shown, 1), strict=True):
            row.test = test


def _plan(arguments: AdaptiveTuneArguments) -> TuningPlan:
    return TuningPlan(
        samples=arguments.samples,
        finalists=arguments.finalists,
        seed=arguments.seed,
        reference_source=arguments.judge,
    )


def _load(
    arguments: AdaptiveTuneArguments, dataset: Dataset
) -> tuple[LoadedModel, DecodeSetup, list[System]]:
    """Return the model, how to decode, and the baselines. Raises ConfigError of all faults."""
    assert arguments.model is not None
    device = find_device(arguments.device)
    loaded = load_model(arguments.model, device, arguments.weights)
    with_exits(loaded.model)
    plan = dataclasses.replace(default_plan(loaded), beam=arguments.beam, nbest=1, sample=False)
    bf16 = arguments.precision == "bf16"
    setup = DecodeSetup(plan, arguments.batch, arguments.repeats, arguments.clock, device, bf16)
    _checked(loaded, setup, arguments, dataset)
    # Faults are collected, so that one run names all baselines that cannot be used.
    faults, others, names = [], [], set()
    for text in arguments.baselines or ():
        label, path = split_label(text)
        try:
            other = load_model(path, device, arguments.weights)
        except NmtgridError as fault:
            faults.append(str(fault))
            continue
        try:
            _checked(other, setup, arguments, dataset)
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
    return loaded, setup, others


def _checked(
    loaded: LoadedModel, setup: DecodeSetup, arguments: AdaptiveTuneArguments, dataset: Dataset
) -> None:
    translator = Translator(
        [loaded], setup.plan, device=setup.device, precision=arguments.precision
    )
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
    shifts = {}
    for budget in lost:
        # A shift of its own for each budget: the error of replay may depend on the depth.
        own = [last - first for first, last in depths if budgets.budget(first) == budget]
        shifts[budget] = sum(own) / len(own)
    return shifts


def _best(ran: Sequence[tuple[Choice, Row]], budgets: Budgets) -> list[tuple[Choice, Row]]:
    """Return the best of each budget that decoding truly kept to; the faster on equal BLEU."""
    best: dict[int, tuple[Choice, Row]] = {}
    # Decoding may have moved a vector to another budget, so its decoded depth counts.
    for choice, row in sorted(ran, key=lambda pair: pair[1].tuned.average_exit):
        interval = budgets.place(row.tuned.average_exit)
        if interval not in best or row.tuned.bleu > best[interval][1].tuned.bleu:
            best[interval] = choice, row
    return [best[interval] for interval in sorted(best)]


def _kept(
    arguments: AdaptiveTuneArguments, report: Report, loaded: LoadedModel, budgets: Budgets
) -> NmtgridError | None:
    """Keep the points, instead of those of an earlier tuning; what is promised is kept beside.

    Returns what prevented it: the results are to be written in any case.
    """
    presets = []
    for choice, row in report.points:
        row.stored = report.stored_name(row, budgets)
        presets.append(
            ExitSettings(
                row.stored, report.mechanism, choice.thresholds, arguments.split, row.tuned.bleu,
                row.tuned.average_exit, loaded.weights, loaded.checksum,
            )
        )  # fmt: skip
    if presets:
        # A certified point has a name of its own and must not replace the presets of a tuning.
        tuning = report.name if arguments.allow_loss is None else None
        try:
            save_exits(loaded.folder, loaded.model, presets, tuning)
        except NmtgridError as error:
            for _, row in report.points:
                row.stored = None
            return error
    return None


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """Show how far the sentences are; yield what to tell of those that are done."""
    with console.progress(what, total) as bar:

        def advance(sentences: int, tokens: int) -> None:
            bar.update(bar.task_ids[0], advance=sentences)

        yield advance
