"""Runs `nmtgrid adaptive-tune`: traces, replay, decoding of finalists, timing, storage, figures."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from nmtgrid.adaptive.exit_presets import EXIT_FILE, ExitPreset, save_exits
from nmtgrid.adaptive.halting import FixedExit, RandomExit, Thresholds, check_halt, halt_by
from nmtgrid.adaptive.measure import (
    Decoded,
    DecodeSetup,
    Measured,
    Sample,
    System,
    decode,
    measure,
    read_samples,
)
from nmtgrid.adaptive.tune import (
    Budgets,
    Choice,
    Finalist,
    Objective,
    Records,
    beats,
    cost,
    draw_thresholds,
    finalists,
    frontier,
    lost_budgets,
    record_samples,
    refills,
)
from nmtgrid.base import console
from nmtgrid.base.devices import find_device
from nmtgrid.base.errors import ConfigError, NmtgridError
from nmtgrid.base.io.atomic import folder_name, name_faults, split_label
from nmtgrid.base.io.lock import FolderLock
from nmtgrid.cli.adaptive_tune.arguments import AdaptiveTuneArguments, check_decoder
from nmtgrid.cli.adaptive_tune.output import Report, Row, untuned_exit, write, write_tuned
from nmtgrid.cli.guarantees import print_uncertified
from nmtgrid.cli.options import check_same_text, check_vocabularies
from nmtgrid.data.dataset import Dataset
from nmtgrid.metrics.risk_control import Guarantee, Tested, halves, sentence_losses
from nmtgrid.models.api import Verified, with_exits
from nmtgrid.models.directory import LoadedModel, load_model
from nmtgrid.search.translate import Translator, default_plan
from nmtgrid.search.verified import check_verified
from nmtgrid.text.scripts import bleu_tokenizer

_REFILLS = 2
"""Rounds in which budgets that none of their vectors met get new vectors."""
_CANDIDATES = 20
"""Number of threshold vectors to test for a guarantee, unless `--candidates` is given."""


def tune(arguments: AdaptiveTuneArguments) -> None:
    """Tune, measure and report; see the command."""
    assert arguments.model is not None and arguments.data is not None
    dataset = Dataset.open(arguments.data)
    loaded, full, setup, others = _load(arguments, dataset)
    with contextlib.ExitStack() as stack:
        if arguments.is_kept:
            # A folder that cannot be written is refused now, not after hours of decoding.
            EXIT_FILE.check_writable(loaded.folder)
            # No other tuning and no training may write there until the presets are stored.
            stack.enter_context(FolderLock(loaded.folder, "nmtgrid adaptive-tune"))
        model = with_exits(full.model)
        own, count = model.traits.halting, model.traits.num_exits
        mechanism = arguments.mechanism or ("confidence" if own == "none" else own)
        halt = halt_by(mechanism, (0.5,) * (count - 1))
        check_halt(halt, model)
        check_decoder(arguments, count, has_thresholds=isinstance(halt, Thresholds))
        budgets = Budgets(arguments.budget, count)
        report = Report(
            arguments, arguments.name or mechanism, mechanism, budgets, setup.device.type
        )
        samples = [
            read_samples(
                loaded.pipeline, dataset.split(split), arguments.sentences, warn=console.warn
            )
            for split in report.splits
        ]
        report.counts = list(map(len, samples))
        if arguments.files and arguments.files[0].exists():
            console.warn(f"{arguments.files[0]} of an earlier tuning will be replaced.")
        elif arguments.files and arguments.files[1].exists():
            console.warn(f"{arguments.files[1]} will be replaced by the figure.")
        tuning = _Tuning(report, loaded, full, setup, samples)
        chosen = tuning.choose()
        beside = []
        if arguments.only != "points":
            # The last exit is the full stack.
            beside = [full.by(f"exit {n}", FixedExit(n)) for n in range(1, count)]
            beside += tuning.verified
            beside.append(full.by("random exits", RandomExit(count, arguments.seed)))
        tuning.measure([full, *beside, *others], chosen)
        # Failing to store presets must not lose the results: the error is raised after them.
        fault = tuning.kept() if arguments.is_kept else None
        write(report, arguments.json)
        if fault is not None:
            raise fault


class _Tuning:
    """The stages of a tuning; `samples` are those of each split of the report."""

    def __init__(
        self,
        report: Report,
        loaded: LoadedModel,
        full: System,
        setup: DecodeSetup,
        samples: Sequence[Sequence[Sample]],
    ) -> None:
        self.report, self.loaded, self.setup, self.samples = report, loaded, setup, samples
        self.arguments, self.budgets = report.arguments, report.budgets
        self.full, self.model = full, with_exits(full.model)
        self.truth = self.arguments.judge == "references"
        """Whether vectors are replayed on the references instead of the full stack's output."""
        self.records: Records | None = None

    def choose(self) -> list[Choice]:
        """Return the choices to decode: the best few of each budget, or the only predictor.

        A calibration is added to the report.
        """
        arguments = self.arguments
        if arguments.guarantee is not None:
            certified = self.calibrate(arguments.guarantee)
            return [] if certified is None else [certified]
        if arguments.only == "fixed":
            return []
        # Kept for refills: replaying more vectors is cheap, but recording again is not.
        records = self.records = self.recorded(self.samples[0])
        if records is None:
            return [self.choice()]
        keep = arguments.finalists
        best = finalists(records, self.drawn, self.budgets, keep, truth=self.truth)
        return list(map(self.choice, best))

    def refill(self, ran: Sequence[tuple[Choice, Row]]) -> list[Choice]:
        """Return more choices for the budgets that none of their vectors met when decoded."""
        shifts = _shifts(ran, self.budgets)
        if self.records is None or not shifts:
            return []
        tried = {choice.thresholds for choice, _ in ran}
        keep = self.arguments.finalists
        more = refills(
            self.records, self.drawn, self.budgets, keep, shifts, tried, truth=self.truth
        )
        return list(map(self.choice, more))

    def choice(self, finalist: Finalist | None = None) -> Choice:
        """Return the choice of a threshold vector, or of a predictor without thresholds."""
        mechanism, thresholds = self.report.mechanism, finalist.thresholds if finalist else ()
        system = self.full.by(mechanism, halt_by(mechanism, thresholds))
        return Choice(system, finalist)

    @functools.cached_property
    def drawn(self) -> NDArray[Any]:
        return draw_thresholds(self.arguments.samples, self.budgets.exits, self.arguments.seed)

    def recorded(self, samples: Sequence[Sample]) -> Records | None:
        """Return records of the samples, numbered by their positions.

        None if the predictor chooses the exit itself, so that there are no thresholds to vary.
        """
        mechanism, setup = self.report.mechanism, self.setup
        if mechanism == "multinomial" or mechanism == "sequence":
            return None
        forced = [sample.target for sample in samples]
        if not self.truth:
            (done,) = self.decoded([self.full], samples, "decoding the full stack")
            forced = [[] if best is None else best.tokens for best in done.hypotheses]
        with progress("recording exits", len(samples)) as go:
            return record_samples(self.full, samples, forced, setup, mechanism, go)

    def calibrate(self, guarantee: Guarantee) -> Choice | None:
        """Return the fastest certified choice, or None; add the calibration to the report.

        Raises ConfigError if there are too few sentences to certify any.
        """
        arguments = self.arguments
        # A guarantee needs fresh sentences: candidates are chosen on one half, tested on the other.
        usable = [sample for sample in self.samples[0] if sample.source]
        first, second = halves(usable, arguments.seed)
        # Refused before the slow part: with too few sentences no test can ever pass.
        guarantee.check(len(second))
        candidates = [self.choice()]
        records = self.recorded(first)
        if records is not None:
            most = arguments.candidates or _CANDIDATES
            best_vectors = frontier(records, self.drawn, most, truth=self.truth)
            candidates = list(map(self.choice, best_vectors))
            if arguments.objective != "exits":
                candidates = self.with_fixed(candidates, records)
        elif arguments.objective != "exits":
            candidates = self.ranked([*candidates, *self.fixed()], first)
        if arguments.objective != "exits":
            # Tested first: their translations are those of the full stack.
            candidates = [*map(Choice, self.verified), *candidates]
        # The full stack is decoded once, and every candidate is compared with it.
        (theirs,) = self.decoded([self.full], second, "decoding the full stack")
        costs: dict[int, float] = {}
        with progress("testing candidates", len(candidates) * len(second)) as go:

            def losses(choice: Choice) -> NDArray[Any]:
                decoded = decode([choice.system], second, self.setup, go)[0]
                measured = measure(decoded, second, self.loaded.pipeline)
                costs[id(choice)] = cost(measured, arguments.objective)
                return self.losses(theirs, decoded, second)

            calibration = guarantee.test(candidates, losses, len(second))

        def price(result: Tested[Choice]) -> float:
            replayed = result.candidate.replayed
            if arguments.objective != "exits":
                return costs[id(result.candidate)]
            return 0.0 if replayed is None else replayed.average_exit

        # Every candidate that passed carries the guarantee, so its cost alone decides.
        best = min(calibration.passed, key=price, default=None)
        values = calibration.values(best, _describe)
        self.report.calibrated = values
        if best is None:
            print_uncertified(values, "thresholds", "the full stack")
            return None
        # Only an independent check: the test split has no part in the certificate.
        if self.arguments.test_split:
            tests = self.samples[1]
            systems = [self.full, best.candidate.system]
            decoded = self.decoded(systems, tests, f"decoding {self.arguments.test_split}")
            losses_of_tests = self.losses(decoded[0], decoded[1], tests)
            values["test"] = guarantee.outside(self.arguments.test_split, losses_of_tests)
        return best.candidate

    def with_fixed(self, candidates: Sequence[Choice], records: Records) -> list[Choice]:
        """Return the candidates and all fixed exits but the last, by decreasing agreement."""
        # By the same measure as the candidates.
        shares = (records.hits if self.truth else records.agrees).mean(0).tolist()[:-1]
        fixed = [
            dataclasses.replace(choice, replayed=Finalist((), float(n), share))
            for n, (choice, share) in enumerate(zip(self.fixed(), shares, strict=True), 1)
        ]
        # The order of the tests is determined on the half on which candidates are chosen.
        return sorted(
            [*candidates, *fixed],
            key=lambda choice: -(choice.replayed.agreement if choice.replayed else 0.0),
        )

    def fixed(self) -> list[Choice]:
        """Return all fixed exits but the last, from the first on."""
        exits = range(1, self.model.traits.num_exits)
        return [Choice(self.full.by(f"exit {n}", FixedExit(n))) for n in exits]

    @functools.cached_property
    def verified(self) -> list[System]:
        """Verified exits before the last; none, with a warning, if not supported by the search."""
        try:
            check_verified(self.model, Verified(), self.setup.plan)
        except ConfigError as fault:
            console.warn(f"Verified exits are left out. {' '.join(fault.faults)}")
            return []
        exits = range(1, self.model.traits.num_exits)
        return [self.full.by(f"verified {n}", Verified(n)) for n in exits]

    def ranked(self, candidates: Sequence[Choice], samples: Sequence[Sample]) -> list[Choice]:
        """Return the candidates by increasing mean loss on samples.

        For predictors, which have no records: all candidates are decoded.
        """
        (theirs,) = self.decoded([self.full], samples, "decoding the full stack")
        with progress("ranking candidates", len(candidates) * len(samples)) as go:

            def mean_loss(choice: Choice) -> float:
                decoded = decode([choice.system], samples, self.setup, go)[0]
                return float(self.losses(theirs, decoded, samples).mean())

            return sorted(candidates, key=mean_loss)

    def losses(self, full: Decoded, early: Decoded, samples: Sequence[Sample]) -> NDArray[Any]:
        """Return the loss of each sentence that has a source."""
        pipeline, guarantee = self.loaded.pipeline, self.arguments.guarantee
        assert guarantee is not None
        # An empty source has no hypothesis.
        theirs, ours = (
            [(best.tokens, pipeline.restore_tokenized(best.tokens)) for best in side if best]
            for side in (full.hypotheses, early.hypotheses)
        )
        references = [sample.reference for sample in samples if sample.source]
        raw = [sample.raw_reference for sample in samples]
        tokenize = bleu_tokenizer(pipeline.facts.target_lang, raw, "none")
        return sentence_losses(guarantee.risk, theirs, ours, references, tokenize)

    def decoded(
        self, systems: Sequence[System], samples: Sequence[Sample], what: str
    ) -> list[Decoded]:
        """Decode samples with all systems, with a progress bar."""
        with progress(what, len(systems) * len(samples)) as go:
            return decode(systems, samples, self.setup, go)

    def measured(self, systems: Sequence[System], split: int = 0) -> list[Measured]:
        """Decode systems on split number `split` (0: the tuning split), and measure them."""
        samples = self.samples[split]
        done = self.decoded(systems, samples, f"decoding {self.report.splits[split]}")
        return [measure(decoded, samples, self.loaded.pipeline) for decoded in done]

    def measure(self, fixed: Sequence[System], chosen: Sequence[Choice]) -> None:
        """Decode the full stack (the first of `fixed`), its baselines and the chosen vectors.

        Adds all rows to the report, and the best of each budget as its points.
        """
        report = self.report
        # In one call: systems take turns on each batch, so that a busy machine slows all alike.
        tuned = self.measured([*fixed, *(choice.system for choice in chosen)])
        report.full = Row(tuned[0])
        report.beside = list(map(Row, tuned[1 : len(fixed)]))
        ran = list(zip(chosen, map(Row, tuned[len(fixed) :]), strict=True))
        for _ in range(_REFILLS):
            # Decoding exits at other depths than the replay did: the new choices allow for that.
            more = self.refill(ran)
            if not more:
                break
            again = self.measured([choice.system for choice in more])
            ran += zip(more, map(Row, again), strict=True)
        report.finalists = ran
        report.points = _best(ran, self.budgets, self.arguments.objective)
        if len(ran) > len(chosen):
            # Times are comparable only among systems decoded together.
            for row, measured in self.measured_again():
                row.tuned = measured
            # With other times another point may be the better one.
            report.points = _undominated(report.points, self.arguments.objective)
        # Only what was already chosen: the test split must not influence the choice.
        if self.arguments.test_split:
            # Written now, in case the last decoding is interrupted.
            write_tuned(report)
            for row, measured in self.measured_again(split=1):
                row.test = measured

    def measured_again(self, split: int = 0) -> Iterator[tuple[Row, Measured]]:
        """Decode the systems of all rows on split number `split`; return rows and measurements."""
        rows = self.report.rows
        return zip(
            rows, self.measured([row.tuned.decoded.system for row in rows], split), strict=True
        )

    def kept(self) -> NmtgridError | None:
        """Store the points in the model directory, in place of earlier ones.

        Returns the error that prevented it, so that the results can be written in any case.
        """
        report, loaded = self.report, self.loaded
        presets = []
        for choice, row in report.points:
            row.stored = untuned_exit(choice)
            if row.stored is not None:
                continue
            loss = self.arguments.allow_loss
            budget = f"{report.budget(row):g}" if loss is None else f"loss{loss:g}"
            row.stored = f"{report.name}-{budget}"
            presets.append(
                ExitPreset(
                    row.stored,
                    report.mechanism,
                    choice.thresholds,
                    self.arguments.split,
                    row.tuned.bleu,
                    row.tuned.average_exit,
                    loaded.weights,
                    loaded.checksum,
                )
            )
        if presets:
            # A certified point has a name of its own and must not replace the presets of a tuning.
            tuning = report.name if self.arguments.allow_loss is None else None
            try:
                save_exits(loaded.folder, self.model, presets, tuning)
            except NmtgridError as error:
                for _, row in report.points:
                    row.stored = None
                return error
        return None


def _describe(choice: Choice) -> dict[str, Any]:
    halt, values = choice.system.halt, {"thresholds": list(choice.thresholds)}
    if isinstance(halt, FixedExit):
        return values | {"exit": halt.number}
    return values | {"verified": halt.exit} if isinstance(halt, Verified) else values


def _load(
    arguments: AdaptiveTuneArguments, dataset: Dataset
) -> tuple[LoadedModel, System, DecodeSetup, list[System]]:
    """Return the model, its full stack, the decoding setup, and the baselines.

    Raises ConfigError that names all unusable baselines.
    """
    assert arguments.model is not None
    device = find_device(arguments.device)
    loaded = load_model(arguments.model, device, arguments.weights)
    with_exits(loaded.model)
    plan = dataclasses.replace(default_plan(loaded), beam=arguments.beam, nbest=1, sample=False)
    setup = DecodeSetup(plan, arguments.batch, arguments.repeats, arguments.clock, device)
    full = _system("full stack", loaded, setup, arguments, dataset)
    # Faults are collected, so that one run names all baselines that cannot be used.
    faults, others, named = [], [], []
    for text in arguments.baselines or ():
        label, path = split_label(text)
        try:
            other = load_model(path, device, arguments.weights)
        except NmtgridError as fault:
            faults.append(str(fault))
            continue
        name = label or folder_name(path)
        try:
            others.append(_system(name, other, setup, arguments, dataset))
        except NmtgridError as fault:
            faults.append(f"{path}: {fault}")
            continue
        named.append((name, path))
    if faults := [*faults, *name_faults(named)]:
        raise ConfigError(faults)
    return loaded, full, setup, others


def _system(
    name: str,
    loaded: LoadedModel,
    setup: DecodeSetup,
    arguments: AdaptiveTuneArguments,
    dataset: Dataset,
) -> System:
    """Return the model with all its blocks, as `decode` runs it.

    Raises NmtgridError if it does not fit the dataset.
    """
    translator = Translator(
        [loaded], setup.plan, device=setup.device, precision=arguments.precision
    )
    check_same_text(translator, dataset)
    check_vocabularies(translator, dataset)
    # The measured decoder must be the one that runs later: packed weights, and their rounding.
    return System(name, translator.models[0], bf16=translator.bf16)


def _shifts(ran: Sequence[tuple[Choice, Row]], budgets: Budgets) -> dict[float, float]:
    """Return the mean change of the average exit from replay to decoding, per missed budget."""
    depths = [
        (choice.replayed.average_exit, row.tuned.average_exit)
        for choice, row in ran
        if choice.replayed
    ]
    lost = lost_budgets([first for first, _ in depths], [last for _, last in depths], budgets)
    shifts = {}
    for budget in lost:
        # A separate shift for each budget: the error of replay may depend on the depth.
        own = [last - first for first, last in depths if budgets.budget(first) == budget]
        shifts[budget] = sum(own) / len(own)
    return shifts


def _best(
    ran: Sequence[tuple[Choice, Row]], budgets: Budgets, objective: Objective
) -> list[tuple[Choice, Row]]:
    """Return the best of each budget by its decoded average exit; the cheaper on equal BLEU."""
    best: dict[int, tuple[Choice, Row]] = {}
    # Decoding may have moved a vector to another budget, so its decoded depth counts.
    for choice, row in sorted(ran, key=lambda pair: cost(pair[1].tuned, objective)):
        interval = budgets.index_of(row.tuned.average_exit)
        if interval not in best or row.tuned.bleu > best[interval][1].tuned.bleu:
            best[interval] = choice, row
    points = sorted(best.values(), key=lambda pair: pair[1].tuned.average_exit)
    return _undominated(points, objective)


def _undominated(
    points: list[tuple[Choice, Row]], objective: Objective
) -> list[tuple[Choice, Row]]:
    """Return the points that no other one beats; all of them if the cost is the average exit."""
    if objective == "exits":
        return points
    rows = [row.tuned for _, row in points]
    return [
        point for point in points if not any(beats(row, point[1].tuned, objective) for row in rows)
    ]


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show progress over sentences; yield a function that reports finished ones."""
    with console.progress(what, total) as bar:
        yield lambda count: bar.update(advance=count)
