"""Runs `nmtgrid train`: one run or several seeds, signals, one printed line per event.

With `--tensorboard` the values of `metrics.jsonl` are written as TensorBoard events too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch

from nmtgrid.base import console
from nmtgrid.base.config_file import dotted
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.spans import plural, whole_numbers
from nmtgrid.cli.decode.arguments import DecodeArguments
from nmtgrid.cli.decode.run import make_translator, translate_split
from nmtgrid.cli.objectives import objectives
from nmtgrid.cli.options import Leave
from nmtgrid.cli.train.arguments import TrainArguments
from nmtgrid.data.dataset import Dataset
from nmtgrid.metrics.quality import shown, spread
from nmtgrid.models.card import initial_weights, update_card
from nmtgrid.training import events
from nmtgrid.training.api import StatefulObjective
from nmtgrid.training.distributed import Processes, check_shared_folder
from nmtgrid.training.metrics_log import MetricsLog, perplexity
from nmtgrid.training.prepare import (
    METRICS,
    TENSORBOARD,
    Request,
    check_folder,
    check_init,
    check_parts,
    data_of_run,
    is_begun,
    prepare,
    resolve,
)
from nmtgrid.training.settings import RunSettings
from nmtgrid.training.trainer import Trainer

_DAMAGED_SHOWN = 3
_MOST_SEEDS = 1000
_TEST_SCORES = (
    "bleu_tokenized", "bleu", "chrf", "bleu_1", "bleu_2", "bleu_3", "bleu_4", "cider",
)  # fmt: skip
"""Scores of translations and of captions, as `decode --json` has them."""


def run_all(
    arguments: TrainArguments,
    request: Request,
    seeds: Sequence[int] | None,
    device: torch.device,
    processes: Processes,
) -> tuple[int, dict[str, Any]]:
    """Train once, or once for each of `seeds`; return the exit code and the report."""
    out, resume = arguments.out, arguments.resume
    assert out is not None
    check_shared_folder(out, processes)
    find_test_split(arguments)  # an unknown name must not surface after hours of training
    if seeds is None:
        settings = resolve(request, objectives, out if resume else None)
        code, report = _train(
            arguments, request, settings, out, device, processes,
            resume=resume, overwrite=arguments.overwrite,
        )  # fmt: skip
        if processes.is_first and not code:
            report |= _test_scores(arguments, out)
        return code, report
    reports: list[dict[str, Any]] = []
    folders = {seed: out / f"seed-{seed}" for seed in seeds}
    # Looked up now: in the loop, one process may begin a seed before another one looks.
    other = find_begun(out, seeds) if resume else None
    if other is not None and arguments.init is None:
        _check_init(other, folders.values())
    if processes.is_first and not resume:
        # All of them now: the last run should not be refused after the others have taken hours.
        for folder in folders.values():
            check_folder(folder, overwrite=arguments.overwrite)
    for seed, folder in folders.items():
        # After an interruption `--resume` continues one run and begins the remaining ones,
        # including one that was killed before it saved a state.
        begun = resume and is_begun(folder)
        console.say(f"Seed {seed}, into {folder}:")
        settings = settings_of_seed(request, seed, folder if begun else other)
        overwrite = arguments.overwrite or (resume and not begun)
        code, report = _train(
            arguments, request, settings, folder, device, processes,
            resume=begun, overwrite=overwrite,
        )  # fmt: skip
        reports.append({"seed": seed, **report})
        if code:
            # Interrupted: the remaining seeds are not begun.
            return code, {"seeds": reports}
    if processes.is_first:
        for report, folder in zip(reports, folders.values(), strict=True):
            report |= _test_scores(arguments, folder)
    return 0, {"seeds": reports, **_print_spread(reports)}


def _test_scores(arguments: TrainArguments, folder: Path) -> dict[str, float]:
    """Translate the test split as `decode --data` does and print its scores; return them.

    Their keys begin with `test_`; there are none if no test split is requested.
    """
    assert arguments.data is not None
    split = find_test_split(arguments)
    if split is None:
        return {}
    decoding = DecodeArguments(
        model=folder, data=arguments.data, split=split, device=arguments.device
    )
    report = translate_split(make_translator(decoding), decoding)
    return {f"test_{name}": report[name] for name in _TEST_SCORES if name in report}


def find_test_split(arguments: TrainArguments) -> str | None:
    """Return the split to translate at the end, if any. Raises DataError if it is not there."""
    assert arguments.data is not None
    if arguments.test_split == "none" or (arguments.test_split is None and arguments.seeds is None):
        return None
    dataset = Dataset.open(arguments.data)
    if arguments.test_split is not None:
        return dataset.split(arguments.test_split).name
    return "test" if "test" in dataset.names else None


def find_begun(out: Path | None, seeds: Sequence[int] | None) -> Path | None:
    """Return `out`, or with `seeds` the folder of the first run that was begun there, if any."""
    if out is None or seeds is None:
        return out
    folders = [out / f"seed-{seed}" for seed in seeds]
    return next((folder for folder in folders if (folder / "config.json").is_file()), None)


def find_data(out: Path | None, seeds: Sequence[int] | None) -> Path:
    """Return the dataset of the run in `out`, or of the first of `seeds` that was begun there."""
    assert out is not None
    return data_of_run(find_begun(out, seeds) or out / f"seed-{(seeds or [0])[0]}")


def _other_init(arguments: TrainArguments, resume: bool) -> list[str]:
    """Return a note if `--config` is a model's whose initial weights were another model's."""
    file = arguments.config
    if file is None or not file.is_model or arguments.init is not None or resume:
        return []
    init = initial_weights(Path(file.path).parent)
    if not init:
        return []
    return [
        f"The model of {file.path} began with the weights of {init}, but this one begins with "
        "random weights: change this with `--init`."
    ]


def check_begin(arguments: TrainArguments, settings: RunSettings) -> None:
    """Raise the errors that training would raise before reading data, for `--dry-run`."""
    # No real device: a plan can be made on any machine, also for another one.
    check_parts(settings, torch.device("meta"))
    if arguments.resume or arguments.seeds is not None:
        return
    if arguments.init is not None:
        check_init(arguments.init)
    if arguments.out is not None:
        check_folder(arguments.out, overwrite=arguments.overwrite)


def _check_init(begun: Path, folders: Iterable[Path]) -> None:
    """Raise ConfigError if the remaining seeds lack the `--init` that others began with."""
    if (init := initial_weights(begun)) and not all(map(is_begun, folders)):
        raise ConfigError(
            f"The run in {begun} began with the weights of {init}; the remaining seeds would begin "
            "with random ones.",
            "Give the same `--init` again.",
        )


def settings_of_seed(request: Request, seed: int, resumed: Path | None) -> RunSettings:
    """Return the settings of one of several runs: those of the folder `resumed`, if there is one.

    That is the seed's own folder, or, if its run has not begun, the folder of another seed.
    """
    # The run in `resumed` keeps its seed, even if a file has yet another one.
    own = seed if resumed is None else int(resumed.name.removeprefix("seed-"))
    flags = {**request.flags, "training.seed": own}
    settings = resolve(dataclasses.replace(request, flags=flags), objectives, resumed)
    training = dataclasses.replace(settings.training, seed=seed)
    return dataclasses.replace(settings, training=training)


def _train(
    arguments: TrainArguments,
    request: Request,
    settings: RunSettings,
    out: Path,
    device: torch.device,
    processes: Processes,
    *,
    resume: bool,
    overwrite: bool,
) -> tuple[int, dict[str, Any]]:
    """Train one model; return the exit code (0, or 128 + signal) and the report.

    The first of several processes prints and writes the log.
    """
    assert arguments.data is not None
    if processes.is_first:
        for note in [*request.without_effect(settings), *_other_init(arguments, resume)]:
            console.warn(note)
    check_parts(settings, device)
    trainer = prepare(
        arguments.data,
        settings,
        out,
        device,
        objectives,
        resume=resume,
        overwrite=overwrite,
        init=arguments.init,
        processes=processes,
    )
    # A failure outside of the run, such as in its log, must not leave the folder locked.
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(trainer))
        board = None
        if arguments.tensorboard and processes.is_first:
            board = TensorBoard(out / TENSORBOARD, trainer.progress.update)
            stack.enter_context(contextlib.closing(board))
        log = MetricsLog(out / METRICS)
        return _follow(trainer, log, board, arguments.data)


def _follow(
    trainer: Trainer, log: MetricsLog, board: TensorBoard | None, data: Path
) -> tuple[int, dict[str, Any]]:
    """Run a training, print and log its events; return the exit code and the report."""
    settings, out = trainer.settings, log.path.parent
    is_first = trainer.processes.is_first
    if is_first:
        console.say(
            f"{settings.arch}, preset {settings.preset or 'none'}, objective "
            f"{settings.objective_name}, seed {settings.training.seed}: {data} -> {out}"
        )
        _print_warnings(trainer, log)
    else:
        # Until here all processes meet the same errors, and one of them reports each.
        # From here on the processes do different things, so each reports its own errors.
        console.messages.quiet = False
    # Gradients are measured occasionally: all lines in between show the last ratio.
    finished, gradient_ratio = None, None
    with (
        _stop_on_signals(trainer) as signals,
        console.progress("training (percent)", 100) as bar,
    ):
        for event in trainer.run():
            if is_first:
                log.write(event)
                if board is not None:
                    board.write(event)
                print_event(event, bar, gradient_ratio)
                if isinstance(event, events.Finished):
                    update_card(out, training=_card_rows(event, trainer))
            if isinstance(event, events.Gradients):
                gradient_ratio = event.gradient_ratio
            if isinstance(event, events.Finished):
                finished = event
    assert finished is not None
    if is_first:
        if not finished.update:
            console.warn("The run ended before its first update: nothing has been learned.")
        console.say(f"The model is in {out}.")
    else:
        # What follows, such as the next seed, is the same in all processes again.
        console.messages.quiet = True
    # A signal to another process stops this one, too.
    stopped_by = signals[0] if signals else signal.SIGTERM if finished.interrupted else 0
    return 128 + stopped_by if stopped_by else 0, _report(finished, trainer, out)


def _card_rows(finished: events.Finished, trainer: Trainer) -> dict[str, str]:
    """Return the rows of the model card on the training."""
    settings, rows = trainer.settings, {"parameters": f"{trainer.model.count_parameters():,}"}
    rows["preset"] = settings.preset or "none"
    rows["objective"] = settings.objective_name
    rows["training"] = (
        f"{plural(finished.update, 'update')}, {plural(finished.epoch, 'full epoch')}, "
        f"{finished.minutes:.1f} minutes ({trainer.device.type}, "
        f"{plural(trainer.processes.count, 'process')}, seed {settings.training.seed})"
    )
    if finished.best_nll is not None:
        rows["best on validation"] = (
            f"update {finished.best_update:,}, perplexity {perplexity(finished.best_nll):.2f}"
            f"{_format_scores(finished.best_criterion, finished.bleu, finished.cider, ', ')}"
        )
    return rows


def _report(finished: events.Finished, trainer: Trainer, out: Path) -> dict[str, Any]:
    settings = trainer.settings
    return {
        "out": str(out),
        "arch": settings.arch,
        "preset": settings.preset,
        "objective": settings.objective_name,
        "seed": settings.training.seed,
        "precision": "bf16" if trainer.bf16 else "fp32",
        "device": trainer.device.type,
        "updates": finished.update,
        "epochs": finished.epoch,
        "minutes": finished.minutes,
        "reason": finished.reason,
        "best": finished.best,
        "best_update": finished.best_update,
        "valid_nll": finished.best_nll,
        "valid_criterion": finished.best_criterion,
        "valid_perplexity": None if finished.best_nll is None else perplexity(finished.best_nll),
        "valid_bleu": finished.bleu,
        "valid_cider": finished.cider,
        "parameters": trainer.model.count_parameters(),
    }


def _print_warnings(trainer: Trainer, log: MetricsLog) -> None:
    """Print warnings before training; remove from the log the lines that a resumed run repeats."""
    objective = trainer.trained.objective
    notes = objective.notes if isinstance(objective, StatefulObjective) else ()
    for note in [*trainer.settings.notes(), *trainer.notes, *notes]:
        console.warn(note)
    for number in log.keep_until(trainer.progress.update)[:_DAMAGED_SHOWN]:
        console.warn(f"{log.path}:{number}: it, or the line before it, has been altered.")


def print_event(event: events.Event, bar: console.Bar, gradient_ratio: float | None = None) -> None:
    """Print `event`; `bar` is a progress bar of `base.console`.

    `gradient_ratio` is the last one measured: first to last encoder layer.
    """
    match event:
        case events.Started():
            _print_started(event)
        case events.Updated():
            # Without a limit on time or updates the end is unknown, and the bar stays empty.
            share, minutes = 0.0, _format_minutes(event.minutes)
            if event.minutes_left is not None:
                total = event.minutes + event.minutes_left
                share = event.minutes / max(total, 1e-9)
                minutes = f"{minutes}/{_format_minutes(total)}"
            rate = event.tokens_per_second
            speed = f"{rate / 1000:.0f}k tok/s" if rate >= 10_000 else f"{rate:,.0f} tok/s"
            norm = event.gradient_norm
            bar.update(completed=100 * share, note=speed)
            # `loss` is the objective's, with smoothing; `ppl` is that of the likelihood only.
            console.say(
                f"update {event.update:,}  epoch {event.epoch + 1}  {minutes} min  "
                f"loss {event.loss:.3f}  ppl {perplexity(event.nll):.3g}  "
                f"lr {event.learning_rate:.1e}  |g| {norm:.{0 if norm >= 10 else 2}f}  "
                + (speed if gradient_ratio is None else f"h1/hN {gradient_ratio:.2g}")
            )
        case events.BatchSplit():
            exact = "each half is normalised separately"
            if event.is_exact:
                exact = "the update is exact"
            console.warn(
                f"update {event.update:,}: memory ran out; batches were halved {event.times} times "
                f"({exact}). A smaller `batches.max_tokens` or `max_cells` is faster."
            )
        case events.Validated():
            losses = ", ".join(
                f"{loss:.4f}" if name == "last" else f"{name} {loss:.4f}"
                for name, loss in event.losses.items()
            )
            best = "  best so far" if event.is_best else ""
            console.say(
                f"validation {event.update:,}  {_format_minutes(event.minutes)} min  nll {losses}  "
                f"ppl {perplexity(event.nll):.2f}"
                f"{_format_scores(event.criterion, event.bleu, event.cider, '  ')}{best}"
            )
        case events.Averaged():
            _print_averaged(event)
        case events.Finished():
            _print_finished(event)


def _print_started(event: events.Started) -> None:
    begun = f"Continuing from update {event.update:,}" if event.update else "Training"
    shared = f", {event.processes} processes" if event.processes > 1 else ""
    anew = (
        "\nThe number of processes has changed: the batches are the same, redistributed, "
        "with other random numbers."
    )
    console.say(
        f"{begun}: {event.parameters:,} parameters, {plural(event.pairs, 'pair')}, "
        f"{event.device}{shared}, {event.precision}."
        f"{anew if event.world_size_changed else ''}"
    )
    if event.skipped:
        verb = "exceeds" if event.skipped == 1 else "exceed"
        console.say(f"{plural(event.skipped, 'pair')} {verb} `batches.max_length`: skipped.")


def _print_averaged(event: events.Averaged) -> None:
    count = plural(event.checkpoints, "checkpoint")
    if event.checkpoints == event.most:
        console.say(f"average.safetensors is the mean of {count}.")
        return
    console.warn(
        f"average.safetensors is the mean of {count}, not of {event.most:,}: there are no more. "
        "They are kept at scheduled validations while `training.average` is set."
    )


def _print_finished(event: events.Finished) -> None:
    text = f"Finished at update {event.update:,} after {event.minutes:.1f} minutes: {event.reason}."
    if event.best_nll is None:
        what = "No validation had a finite loss"
        if not event.was_validated:
            what = "There was no validation"
        console.say(f"{text} {what}: model.safetensors contains the last weights.")
        return
    weights = {
        "last": "",
        "ema": " (running average)",
        "average": " (mean of checkpoints)",
    }[event.best]
    scores = _format_scores(event.best_criterion, event.bleu, event.cider, ", ")
    console.say(
        f"{text}\nBest: update {event.best_update:,}{weights}, "
        f"nll {event.best_nll:.4f}, ppl {perplexity(event.best_nll):.2f}{scores}"
    )


def _format_minutes(minutes: float) -> str:
    return f"{minutes:.1f}" if minutes < 100 else f"{minutes:.0f}"


def _format_scores(
    criterion: float | None, bleu: float | None, cider: float | None, separator: str
) -> str:
    """Return the scores of a validation, each after `separator`."""
    text = ""
    if criterion is not None:
        text = f"{separator}criterion {criterion:.4f}"
    if bleu is not None:
        text += f"{separator}BLEU {bleu:.2f}"
    if cider is not None:
        text += f"{separator}CIDEr-D {cider:.2f}"
    return text


def parse_seeds(text: str, request: Request) -> list[int]:
    """Return the seeds of a list such as `1,2,3` or `1..3`. Raises ConfigError if a seed is set."""
    if any(change.split("=")[0].strip() == "training.seed" for change in request.changes):
        raise ConfigError("`--set training.seed` and `--seeds` set the same value: give only one.")
    file = request.file
    # A model's `config.json` has every setting, whether chosen or not.
    if file is not None and not file.is_model:
        names = dotted(file.settings)
        for name in ("seed", "training.seed"):
            if name in names:
                fault = f"`{name}` and `--seeds` set the same value: give only one."
                raise ConfigError(file.located([fault], {name: name}))
    values = whole_numbers(text, "--seeds", limit=_MOST_SEEDS)
    return [int(seed) for seed in values]


@contextlib.contextmanager
def _stop_on_signals(trainer: Trainer) -> Iterator[list[int]]:
    """Let SIGINT and SIGTERM request a stop within the block; a second signal stops at once."""
    caught: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if caught:
            console.say("Interrupted.")
            # The second signal: only the state of the last save is kept.
            raise Leave(128 + caught[0])
        caught.append(number)
        trainer.stop_request.reason = f"stopped by {signal.Signals(number).name}"
        if trainer.processes.is_first:
            console.say(
                "Stopping after this update or validation; the state will be saved. A second "
                "signal stops at once and loses what was done since the last save."
            )

    # Python allows handlers only in the main thread; a notebook or a server may train in another.
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_spread(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Print mean and standard deviation over the runs; return them."""
    spreads: dict[str, Any] = {}
    names = ("valid_nll", "valid_perplexity", "valid_bleu", "valid_cider")
    for name in (*names, *(f"test_{name}" for name in _TEST_SCORES)):
        values = [report[name] for report in reports if report.get(name) is not None]
        if len(values) >= 2:
            spreads[name] = spread(values)
    if spreads:
        rows = [[name, shown(values, ".4f")] for name, values in spreads.items()]
        console.table(f"{len(reports)} seeds", ["", "mean ± standard deviation"], rows)
    return spreads


def import_tensorboard() -> ModuleType:
    """Return the module that writes events. Raises ConfigError if TensorBoard is missing."""
    try:
        from torch.utils import tensorboard
    except ImportError as fault:
        raise ConfigError(
            f"`--tensorboard` needs the package tensorboard, which is not installed ({fault}).",
            "`pip install tensorboard`, or leave the option out: `metrics.jsonl` has the same "
            "values.",
        ) from fault
    return tensorboard


class TensorBoard:
    """The TensorBoard events of one run; those after `update` are written again."""

    def __init__(self, folder: Path, update: int) -> None:
        self._writer = import_tensorboard().SummaryWriter(
            str(folder), purge_step=update + 1 if update else None
        )

    def write(self, event: events.Event) -> None:
        """Write the values of `event`, if it has any, at its update."""
        scalars: dict[str, float | None]
        match event:
            case events.Updated():
                scalars = {
                    "train/loss": event.loss,
                    "train/nll": event.nll,
                    "train/perplexity": perplexity(event.nll),
                    "train/learning_rate": event.learning_rate,
                    "train/gradient_norm": event.gradient_norm,
                    "train/tokens_per_second": event.tokens_per_second,
                    **{f"train/{name}": value for name, value in event.extra.items()},
                }
            case events.Gradients():
                scalars = {
                    "gradients/ratio": event.gradient_ratio,
                    **{f"gradients/{name}": value for name, value in event.gradients.items()},
                }
            case events.Validated():
                scalars = {
                    "valid/nll": event.nll,
                    "valid/perplexity": perplexity(event.nll),
                    "valid/bleu": event.bleu,
                    "valid/cider": event.cider,
                    "valid/criterion": event.criterion,
                    **{f"valid/nll_{name}": value for name, value in event.losses.items()},
                    **{f"valid/{name}": value for name, value in event.extra.items()},
                }
            case _:
                return
        for name, value in scalars.items():
            if value is not None:
                self._writer.add_scalar(name, value, event.update)
        if isinstance(event, events.Validated):
            self._writer.flush()

    def close(self) -> None:
        self._writer.close()
