"""What people and TensorBoard are told of a training, and when it is validated."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.base import console
from nmtgrid.cli.train import run
from nmtgrid.cli.train.run import print_event
from nmtgrid.training import events
from nmtgrid.training.metrics_log import MetricsLog
from nmtgrid.training.progress import Progress, StopRequest, validation_is_due
from nmtgrid.training.settings import TrainingSettings
from tests.unit.helpers.tiny_run import trainer
from tests.unit.helpers.train_command import TINY_MODEL, toy_data, train

LARGE = events.Updated(
    update=345_678, epoch=123, minutes=2345.6, learning_rate=1.234e-3, loss=12.3456,
    nll=11.2345, gradient_norm=123.456, tokens_per_second=123_456.7, cells_per_second=1e7,
    minutes_left=1234.5, extra={},
)  # fmt: skip
VALIDATED = events.Validated(
    update=345_678, epoch=123, minutes=2345.6, nll=2.3026, weights="ema",
    losses={"last": 2.3512, "ema": 2.3026}, bleu=43.21, is_best=True, seconds=123.4,
)  # fmt: skip
FINISHED = events.Finished(
    update=345_678, epoch=123, minutes=2345.6, reason="no improvement in 12 evaluations",
    interrupted=False, best="average", best_update=345_678, best_nll=2.3026, bleu=43.21,
    best_criterion=2.5,
)  # fmt: skip


def test_lines_fit_and_tell_losses_apart(messages: list[str]) -> None:
    with console.progress("") as bar:
        print_event(LARGE, bar)
        print_event(LARGE, bar, 0.95)
        early = dataclasses.replace(LARGE, minutes=4.2, minutes_left=None)
        print_event(dataclasses.replace(early, tokens_per_second=9500.0), bar)
        print_event(VALIDATED, bar)
        print_event(dataclasses.replace(VALIDATED, criterion=2.5, losses={"last": 2.3026}), bar)
        print_event(FINISHED, bar)
        print_event(dataclasses.replace(FINISHED, best="last", best_criterion=None), bar)
        print_event(events.Started(345_678, 0.0, 4_500_000, 12_345, 61_234_567, "cuda", "bf16", 8),
                    bar)  # fmt: skip
    lines = "\n".join(messages).splitlines()
    assert max(map(len, lines)) <= 100, max(lines, key=len)
    update, watched, short, validation, judged, _, best = lines[:7]
    # The objective's loss is called so, and nothing else is.
    assert "loss 12.346  ppl 7.57e+04" in update and update.endswith("|g| 123  123k tok/s")
    assert "2346/3580 min" in update and "  4.2 min" in short and short.endswith("9,500 tok/s")
    assert watched.endswith("h1/hN 0.95")
    assert "nll 2.3512, ema 2.3026  ppl 10.00  BLEU 43.21  best so far" in validation
    assert "nll 2.3026  ppl 10.00  criterion 2.5000" in judged
    assert "update 345,678 (mean of checkpoints), nll 2.3026, ppl 10.00" in best
    assert not any("loss" in line for line in (validation, judged, *lines[5:]))


def test_a_signal_to_another_process_ends_this_one_with_a_code_too(
    tmp_path: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # This folder has no dataset's settings that a model card could name.
    monkeypatch.setattr(run, "update_card", lambda *_, **__: None)
    folder, stop = tmp_path / "m", StopRequest("stopped by a signal to another process")
    with contextlib.closing(trainer(folder, stop=stop)) as stopped:
        code, _ = run._follow(stopped, MetricsLog(folder / "m.jsonl"), None, folder)
    assert code == 128 + signal.SIGTERM and "signal to another process" in " ".join(messages)


def test_the_log_has_both_names(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write(VALIDATED)
    values = json.loads(log.path.read_text())
    assert values["losses"] == VALIDATED.losses


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # Fifths of 200 updates; of 60 (12 updates) at least 20; none in the last 20.
        ({"max_updates": 200}, [40, 80, 120, 160, 200]),
        ({"max_updates": 60}, [20, 40, 60]),
        ({"max_updates": 10}, []),
        # An update takes 0.1 minutes here: half a minute at least.
        ({"max_minutes": 10.0, "max_updates": 0}, [20, 40, 60, 80, 100]),
        ({"max_minutes": 2.0, "max_updates": 0}, [5, 10, 15, 20]),
        ({"max_minutes": 10.0, "max_updates": 60}, [20, 40, 60]),
        # What is said of validations holds as it is said.
        ({"max_updates": 200, "validate_share": 0.0}, []),
        ({"max_updates": 200, "validate_share": 0.5}, [100, 200]),
        ({"max_updates": 200, "validate_updates": 90}, [90, 180]),
        ({"max_updates": 60, "validate_minutes": 3.0}, [30, 60]),
        ({"max_updates": 200, "validate_epochs": 0}, []),
        ({"max_updates": 200, "patience": 3}, []),
        ({"max_updates": 200, "schedule": "plateau"}, []),
    ],
)
def test_runs_within_an_epoch_are_validated(settings: dict[str, Any], expected: list[int]) -> None:
    training, progress, due = TrainingSettings(**settings), Progress(), []
    limit = training.max_updates or round(training.max_minutes * 10)
    for progress.update in range(1, limit + 1):
        # In whole tenths: sums of 0.1 fall short of the minutes that they stand for.
        if validation_is_due(training, progress, progress.update / 10):
            due.append(progress.update)
            progress.validated(progress.update / 10, due=True)
    assert due == expected


def test_later_epochs_are_validated_at_their_ends() -> None:
    """Epochs of 50 updates in a run of 200: 40 is a fifth, then come the ends."""
    training, progress, due = TrainingSettings(max_updates=200), Progress(), []
    for progress.update in range(1, 201):
        progress.cursor = dataclasses.replace(progress.cursor, epoch=progress.update // 50)
        if validation_is_due(training, progress, 0.0):
            due.append(progress.update)
            progress.validated(0.0, due=True)
    assert due == [40, 50, 100, 150, 200]


def test_tensorboard_has_the_figures_of_the_log(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    data, out = toy_data(tmp_path / "data"), tmp_path / "model"
    options = (
        *TINY_MODEL, "--device", "cpu", "--tensorboard", "--set", "training.log_updates=1",
        *("--set", "training.validate_updates=2", "--set", "training.watch_gradients=1"),
        *("--set", "training.validate_bleu=false"),
    )  # fmt: skip
    assert train(data, "--out", out, "--max-updates", 2, *options) == 0
    assert train(data, "--out", out, "--max-updates", 4, "--resume", *options) == 0
    read = accumulator.EventAccumulator(str(out / "tensorboard"))
    read.Reload()

    def scalars(name: str) -> Any:
        return [(each.step, each.value) for each in read.Scalars(name)]

    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rows = {event: [line for line in lines if line["event"] == event]
            for event in ("updated", "validated", "gradients")}  # fmt: skip
    for event, group, names in (
        ("updated", "train", ("loss", "nll", "perplexity", "learning_rate", "gradient_norm")),
        ("validated", "valid", ("nll", "perplexity")),
    ):
        for name in names:
            logged = [(line["update"], pytest.approx(line[name], rel=1e-5)) for line in rows[event]]
            assert scalars(f"{group}/{name}") == logged, name
    assert [step for step, _ in scalars("train/loss")] == [1, 2, 3, 4]
    assert [step for step, _ in scalars("valid/nll_last")] == [2, 4]
    ratio = rows["gradients"][0]["gradient_ratio"]
    assert scalars("gradients/ratio")[0] == (1, pytest.approx(ratio, rel=1e-5))
    assert "valid/bleu" not in read.Tags()["scalars"], "nothing was translated"
    # A new run leaves no events of the old one.
    assert train(data, "--out", out, "--max-updates", 1, "--overwrite", *TINY_MODEL) == 0
    assert not (out / "tensorboard").exists()


def test_without_the_package_the_option_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(torch.utils, "tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert train(tmp_path, "--out", tmp_path / "no", "--tensorboard") == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "`pip install tensorboard`" in message and "metrics.jsonl" in message
    assert not (tmp_path / "no").exists()


def test_what_is_no_figure_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events without figures, and figures that were not measured."""
    written: list[tuple[str, float, int]] = []

    class Writer:
        def add_scalar(self, name: str, value: float, update: int) -> None:
            written.append((name, value, update))

        def flush(self) -> None: ...

    class Module:
        @staticmethod
        def SummaryWriter(folder: str, purge_step: int | None) -> Writer:
            assert (folder, purge_step) == (str(tmp_path), 6)
            return Writer()

    monkeypatch.setattr(run, "import_tensorboard", lambda: Module)
    board = run.TensorBoard(tmp_path, 5)
    board.write(FINISHED)
    board.write(dataclasses.replace(VALIDATED, bleu=None, losses={"last": 2.0}, nll=math.log(8)))
    names = [name for name, _, _ in written]
    assert names == ["valid/nll", "valid/perplexity", "valid/nll_last"]
    assert written[1][1] == pytest.approx(8) and {step for _, _, step in written} == {345_678}
