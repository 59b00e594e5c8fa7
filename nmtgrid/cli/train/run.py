"""Running trainings for the command line: signals, progress, one line for each event."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError
from nmtgrid.cli import objectives  # noqa: F401  (enters them all)
from nmtgrid.cli.options import Leave
from nmtgrid.metrics.quality import shown, spread
from nmtgrid.training import events
from nmtgrid.training.api import Prepared
from nmtgrid.training.distributed import Processes, check_shared_folder
from nmtgrid.training.events import MetricsLog, perplexity
from nmtgrid.training.prepare import METRICS, check_folder, prepare
from nmtgrid.training.progress import StopRequest
from nmtgrid.training.resolve import Request, resolve, resolve_resumed
from nmtgrid.training.settings import RunSettings
from nmtgrid.training.trainer import Trainer
from nmtgrid.training.update import check_watch

_DAMAGED_SHOWN = 3
_MOST_SEEDS = 1000
_SIGNALS = {signal.SIGINT: "SIGINT", signal.SIGTERM: "SIGTERM"}


def run_all(
    request: Request,
    data: Path,
    out: Path,
    device: torch.device,
    seeds: Sequence[int] | None,
    processes: Processes,
    *,
    resume: bool,
    overwrite: bool,
    init: Path | None,
) -> tuple[int, dict[str, Any]]:
    """Train once, or once for each of `seeds`; return the exit code and the report."""
    check_shared_folder(out, processes)
    if seeds is None:
        settings = _settings(request, out, resume)
        code, report = run_one(
            data, settings, out, device, processes, resume=resume, overwrite=overwrite, init=init
        )
        return code, report
    reports = []
    folders = {seed: out / f"seed-{seed}" for seed in seeds}
    if processes.is_first and not resume:
        for folder in folders.values():
            check_folder(folder, overwrite=overwrite)
    for seed, folder in folders.items():
        started = resume and folder.exists()
        console.say(f"Seed {seed}, into {folder}:")
        flags = {**request.flags, "training.seed": seed}
        asked = Request(request.arch, request.preset, request.objective, request.changes, flags)
        settings = _settings(asked, folder, started)
        code, report = run_one(
            data, settings, folder, device, processes,
            resume=started, overwrite=overwrite, init=init,
        )  # fmt: skip
        reports.append({"seed": seed, **report})
        if code:
            return code, {"seeds": reports}
    return 0, {"seeds": reports, **_spread(reports)}


def run_one(
    data: Path,
    settings: RunSettings,
    out: Path,
    device: torch.device,
    processes: Processes,
    *,
    resume: bool,
    overwrite: bool,
    init: Path | None,
) -> tuple[int, dict[str, Any]]:
    """Train one model; return the exit code (0, or 128 + signal) and the report.

    Of several processes the first one tells of it and writes the log.
    """
    check_watch(settings)
    stop = StopRequest()
    trainer = prepare(
        data, settings, out, device,
        resume=resume, overwrite=overwrite, init=init, stop=stop, processes=processes,
    )  # fmt: skip
    log = MetricsLog(out / METRICS)
    if processes.is_first:
        console.say(
            f"{settings.arch}, preset {settings.preset or 'none'}, objective "
            f"{settings.objective_name}, seed {settings.training.seed}: {data} -> {out}"
        )
        objective = trainer.weights.objective
        notes = objective.notes if isinstance(objective, Prepared) else ()
        for words in [*settings.notes(), *notes]:
            console.warn(words)
        for number in log.keep_until(trainer.progress.update)[:_DAMAGED_SHOWN]:
            console.warn(f"{log.path}:{number}: it, or the line before it, has been altered.")
    else:
        # From here on the processes differ in what they do, so each tells of its own faults.
        console.speak()
    finished, ratio = None, None
    with (
        _stopping(stop, processes) as caught,
        console.progress("training (percent)", 100) as bar,
    ):
        for event in trainer.run():
            if processes.is_first:
                log.write(event)
                show(event, bar, ratio)
            if isinstance(event, events.Gradients):
                ratio = event.gradient_ratio
            if isinstance(event, events.Finished):
                finished = event
    assert finished is not None
    if processes.is_first:
        console.say(f"The model is in {out}.")
    code = 128 + caught[0] if caught else 0
    return code, _report(finished, trainer)


def show(event: events.Event, bar: Any, ratio: float | None = None) -> None:
    """Tell people of `event`; `bar` is a progress bar of `base.console`.

    `ratio` is the last one that was measured of gradients, first to last encoder layer.
    """
    if isinstance(event, events.Updated):
        share, left = 0.0, ""
        if event.minutes_left is not None:
            share = event.minutes / max(event.minutes + event.minutes_left, 1e-9)
            left = f", {event.minutes_left:.1f} min left"
        measured = "" if ratio is None else f"h1/hN {ratio:.2g}  "
        bar.update(
            bar.task_ids[0], completed=100 * share, note=f"{event.tokens_per_second:,.0f} tokens/s"
        )
        console.say(
            f"update {event.update:,}  epoch {event.epoch + 1}  {event.minutes:.1f} min  "
            f"loss {event.loss:.3f}  ppl {perplexity(event.nll):.2f}  "
            f"lr {event.learning_rate:.2e}  |g| {event.gradient_norm:.2f}  {measured}"
            f"{event.tokens_per_second:,.0f} tokens/s  {event.cells_per_second:,.0f} cells/s{left}"
        )
    elif isinstance(event, events.Started):
        console.say(_started(event))
    elif isinstance(event, events.Validated):
        quality = "".join(f"  {told}" for told in _quality(event))
        losses = ", ".join(
            f"{name} {loss:.4f} (ppl {perplexity(loss):.2f})" for name, loss in event.losses.items()
        )
        best = "  best so far" if event.is_best else ""
        console.say(
            f"validation at update {event.update:,}, {event.minutes:.1f} min: loss {losses}"
            f"{_criterion(event.criterion)}{quality}{best}  ({event.seconds:.0f} s)"
        )
    elif isinstance(event, events.Split):
        exact = "the update is exact" if event.is_exact else "halves are normalised each by itself"
        console.warn(
            f"update {event.update:,}: memory ran out; batches were halved {event.times} times "
            f"({exact}). A smaller `batches.max_tokens` or `max_cells` is faster."
        )
    elif isinstance(event, events.Finished):
        console.say(_finished(event))


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of a list such as `1,2,3` or `1..3`."""
    found: list[int] = []
    try:
        for part in text.split(","):
            first, dots, last = part.partition("..")
            span = range(int(first), int(last) + 1) if dots else [int(first)]
            found += span[: _MOST_SEEDS + 1]
    except ValueError:
        found = []
    if not found or len(set(found)) != len(found) or min(found) < 0 or len(found) > _MOST_SEEDS:
        raise ConfigError(
            f"`--seeds {text}` is not a list of different seeds (at most {_MOST_SEEDS:,}).",
            "Write 1,2,3 or 1..3.",
        )
    return found


def _settings(request: Request, out: Path, resume: bool) -> RunSettings:
    if resume:
        return resolve_resumed(out, request)
    return resolve(request)


@contextlib.contextmanager
def _stopping(stop: StopRequest, processes: Processes) -> Iterator[list[int]]:
    """Let SIGINT and SIGTERM ask for an end inside; a second one ends at once."""
    caught: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if caught:
            console.say("Interrupted.")
            raise Leave(128 + caught[0])
        caught.append(number)
        stop.reason = f"stopped by {_SIGNALS[signal.Signals(number)]}"
        if processes.is_first:
            console.say("Stopping after this update; the state will be saved.")

    before = {number: signal.signal(number, ask) for number in _SIGNALS}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _started(event: events.Started) -> str:
    skipped = f" ({event.skipped:,} skipped for their length)" if event.skipped else ""
    begun = f"Going on from update {event.update:,}" if event.update else "Training"
    shared = f", {event.processes} processes" if event.processes > 1 else ""
    anew = (
        "\nIt goes on with another number of processes than before: the same batches, dealt anew, "
        "and other random numbers."
    )
    return (
        f"{begun}: {event.parameters:,} parameters, {event.pairs:,} pairs{skipped}, "
        f"{event.device}{shared}, {event.precision}.{anew if event.world_size_changed else ''}"
    )


def _finished(event: events.Finished) -> str:
    kinds = {
        "last": "the weights", "ema": "the running average of the weights",
        "average": "the mean of the last checkpoints' weights",
    }  # fmt: skip
    text = f"Finished at update {event.update:,} after {event.minutes:.1f} minutes: {event.reason}."
    if event.best_nll is None:
        return text + " There was no validation: model.safetensors holds the last weights."
    quality = "".join(f", {told}" for told in _quality(event))
    return text + (
        f"\nBest on validation, now in model.safetensors: {kinds[event.best]} of update "
        f"{event.best_update:,}, loss {event.best_nll:.4f}, "
        f"ppl {perplexity(event.best_nll):.2f}{_criterion(event.best_criterion)}{quality}."
    )


def _criterion(value: float | None) -> str:
    """Return what is told of a criterion other than the loss."""
    return "" if value is None else f", chosen by the objective's criterion {value:.4f}"


def _quality(event: events.Validated | events.Finished) -> list[str]:
    """Return the scores of greedy translations as people read them."""
    scores = {"greedy BLEU": event.bleu, "greedy CIDEr-D": event.cider}
    return [f"{name} {score:.2f}" for name, score in scores.items() if score is not None]


def _report(event: events.Finished, trainer: Trainer) -> dict[str, Any]:
    return {
        "updates": event.update,
        "epochs": event.epoch,
        "minutes": event.minutes,
        "reason": event.reason,
        "best": event.best,
        "best_update": event.best_update,
        "valid_loss": event.best_nll,
        "valid_criterion": event.best_criterion,
        "valid_perplexity": None if event.best_nll is None else perplexity(event.best_nll),
        "valid_bleu": event.bleu,
        "valid_cider": event.cider,
        "parameters": trainer.model.count_parameters(),
    }


def _spread(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and standard deviation over the runs, and show them."""
    found: dict[str, Any] = {}
    rows = []
    for name in ("valid_loss", "valid_perplexity", "valid_bleu", "valid_cider"):
        values = [report[name] for report in reports if report[name] is not None]
        if len(values) < 2:
            continue
        found[name] = spread(values)
        rows.append([name, shown(found[name], ".4f")])
    if rows:
        console.table(f"{len(reports)} seeds", ["", "mean ± standard deviation"], rows)
    return found
