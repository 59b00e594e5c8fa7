"""`nmtgrid train`: runs, refusals, plans and lists from the command line."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.arrays import load_tensors
from nmtgrid.cli.train.run import parse_seeds
from nmtgrid.models import zoo
from nmtgrid.models.directory import load_model
from nmtgrid.training import events
from nmtgrid.training.events import MetricsLog
from nmtgrid.training.trainer import Trainer
from tests.unit.train_command import TINY_MODEL, toy_data, train

SMALL = [
    *TINY_MODEL,
    "--set", "batches.max_tokens=400", "--set", "training.log_updates=1",
    "--set", "training.validate_sentences=5", "--precision", "fp32",
]  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(toy_data(tmp_path_factory.mktemp("train") / "data"))


def test_a_run_leaves_a_whole_model_directory(data: str, tmp_path: Path, told: list[str]) -> None:
    out, report = tmp_path / "model", tmp_path / "report.json"
    code = train(data, "--out", out, "--max-updates", 4, "--average", 2, "--json", report, *SMALL)
    assert code == 0
    names = {path.name for path in out.iterdir()}
    assert {"config.json", "model.safetensors", "last.safetensors", "average.safetensors",
            "metrics.jsonl", "checkpoints", "text.json", "bpe.codes"} <= names  # fmt: skip
    for weights in ("best", "last", "average"):
        assert load_model(out, weights=weights).model.count_parameters() > 0
    values = json.loads(report.read_text())
    assert values["updates"] == 4 and values["valid_perplexity"] > 1
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    updates = [line for line in lines if line["event"] == "updated"]
    assert [line["update"] for line in updates] == [1, 2, 3, 4]
    wanted = {"epoch", "minutes", "loss", "nll", "perplexity", "gradient_norm",
              "tokens_per_second", "cells_per_second", "learning_rate"}  # fmt: skip
    assert wanted <= updates[0].keys()
    assert any(line["event"] == "validated" and line["bleu"] is not None for line in lines)
    assert any("tokens/s" in line for line in told)


def test_resuming_goes_on_where_it_stopped(data: str, tmp_path: Path, told: list[str]) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    options = [*SMALL, "--set", "training.ema_decay=0.9"]
    assert train(data, "--out", straight, "--max-updates", 4, *options) == 0
    assert train(data, "--out", broken, "--max-updates", 2, *options) == 0
    # A log that had gone further than the saved state is cut back.
    with open(broken / "metrics.jsonl", "a") as file:
        file.write('{"event": "updated", "update": 3}\n{"torn')
    assert train(data, "--out", broken, "--resume", "--max-updates", 4) == 0
    one, other = (load_tensors(folder / "last.safetensors") for folder in (straight, broken))
    assert all((one[name] == other[name]).all() for name in one)
    lines = [json.loads(line) for line in (broken / "metrics.jsonl").read_text().splitlines()]
    assert [x["update"] for x in lines if x["event"] == "updated"] == [1, 2, 3, 4]
    assert any("Going on from update 2" in line for line in told)
    assert any("pervasive, preset" in line and f"{data} -> {broken}" in line for line in told)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save_and_leave(
    data: str, tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    out = tmp_path / "model"
    original = Trainer.run

    def interrupted(self: Trainer) -> Any:
        for event in original(self):
            yield event
            if isinstance(event, events.Updated) and event.update == 2:
                os.kill(os.getpid(), number)

    monkeypatch.setattr(Trainer, "run", interrupted)
    assert train(data, "--out", out, "--max-updates", 50, *SMALL) == 128 + number
    assert any(f"stopped by {signal.Signals(number).name}" in line for line in told)
    assert "Interrupted." not in told
    monkeypatch.undo()
    state = json.loads(next((out / "checkpoints").iterdir()).joinpath("training.json").read_text())
    assert state["progress"]["update"] in (2, 3)
    assert signal.getsignal(number) is not None
    assert train(data, "--out", out, "--resume", "--max-updates", 4) == 0


def test_a_taken_folder_is_refused_and_nothing_lost(
    data: str, tmp_path: Path, told: list[str]
) -> None:
    out = tmp_path / "model"
    out.mkdir()
    (out / "mine.txt").write_text("keep")
    assert train(data, "--out", out, "--max-updates", 1, *SMALL) == 2
    assert "--resume" in told[-1] and "--overwrite" in told[-1]
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    assert train(data, "--out", out, "--overwrite", "--max-updates", 1, *SMALL) == 0
    assert (out / "mine.txt").read_text() == "keep"


REFUSED = {
    "all at once": (
        ["--set", "model.depht=3", "--set", "training.max_minutes=soon", "--set",
         "batches.max_tokens=-1", "--set", "model.source_kernel=4", "--set", "seed"],
        ["depth", "soon", "max_tokens", "source_kernel", "name=value"],
    ),
    "architecture": (["--arch", "pervasve"], ["`pervasive`"]),
    "objective": (["--objective", "likelihod"], ["`likelihood`"]),
    "preset": (["--preset", "multi31k"], ["`multi30k`"]),
    "name by set": (["--set", "arch=x"], ["`--arch`"]),
    "no end": (["--max-updates", "0"], ["has no end"]),
    "time without minutes": (["--set", "training.schedule=cosine-time"], ["--max-minutes"]),
    "both": (["--resume", "--overwrite"], ["contradict"]),
    "seeds": (["--seeds", "1,1"], ["different seeds"]),
    "cuda": (["--device", "cuda"], ["no CUDA device"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_faults_are_told_before_data_is_read(
    tmp_path: Path, told: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    options, words = REFUSED[name]
    # The dataset does not exist: any of these faults is told without looking for it.
    assert train(tmp_path / "nowhere", "--out", tmp_path / "model", *options) == 2
    assert all(word in told[-1] for word in words), told[-1]
    assert not (tmp_path / "model").exists()


def test_a_resumed_run_keeps_what_made_it(data: str, tmp_path: Path, told: list[str]) -> None:
    out = tmp_path / "model"
    assert train(data, "--out", out, "--resume") == 2
    assert "no run to resume" in told[-1]
    assert train(data, "--out", out, "--max-updates", 1, *SMALL) == 0
    for change in ("model.depth=2", "batches.max_tokens=10", "training.seed=9"):
        assert train(data, "--out", out, "--resume", "--set", change) == 2
        assert change.split("=")[0] in told[-1]
    assert train(data, "--out", out, "--resume", "--preset", "toy") == 2
    assert "was begun with none" in told[-1]


def test_init_begins_from_other_weights(data: str, tmp_path: Path, told: list[str]) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert train(data, "--out", first, "--max-updates", 1, *SMALL) == 0
    frozen = ["--set", "training.learning_rate=1e-30", "--set", "training.weight_decay=0",
              "--set", "training.initial_learning_rate=0", "--seed", "5"]  # fmt: skip
    assert train(data, "--out", second, "--init", first, "--max-updates", 1, *SMALL, *frozen) == 0
    one, other = (load_tensors(folder / "last.safetensors") for folder in (first, second))
    wanted = load_tensors(first / "model.safetensors")
    assert all((other[name] == wanted[name]).all() for name in one)
    wider = ["--set", "model.size=16"]
    assert train(data, "--out", tmp_path / "x", "--init", first, *SMALL, *wider) == 2
    assert "shape" in told[-1] and "grid_map" in told[-1]


def test_several_seeds_are_summed_up(data: str, tmp_path: Path, told: list[str]) -> None:
    out, report = tmp_path / "models", tmp_path / "report.json"
    options = ["--seeds", "1..2", "--max-updates", 1, "--json", report, *SMALL]
    assert train(data, "--out", out, *options) == 0
    values = json.loads(report.read_text())
    losses = [run["valid_loss"] for run in values["seeds"]]
    assert [run["seed"] for run in values["seeds"]] == [1, 2] and losses[0] != losses[1]
    found = values["valid_loss"]
    assert found["mean"] == pytest.approx(sum(losses) / 2)
    assert found["standard_deviation"] == pytest.approx(abs(losses[0] - losses[1]) / 2**0.5)
    assert (out / "seed-2" / "model.safetensors").is_file()


def test_seeds_are_lists_and_spans() -> None:
    assert parse_seeds("1,2,3") == [1, 2, 3]
    assert parse_seeds("4..6,9") == [4, 5, 6, 9]
    for text in ("", "a", "1..", "3..1", "2,2"):
        with pytest.raises(ConfigError):
            parse_seeds(text)


@pytest.mark.parametrize(
    ("preset", "source", "target"),
    # 14 blocks of 11x11 see 1 + 14*10 source and 1 + 14*5 target tokens; 16 blocks 161 and 81.
    [("iwslt14-de-en", 141, 71), ("wmt15-de-en", 161, 81)],
)
def test_the_plan_needs_no_data(
    tmp_path: Path, told: list[str], preset: str, source: int, target: int
) -> None:
    report = tmp_path / "plan.json"
    assert train("--dry-run", "--preset", preset, "--json", report) == 0
    values = json.loads(report.read_text())
    assert values["arch"] == "pervasive"
    assert values["receptive_field"] == {"source": source, "target": target}
    published = {"iwslt14-de-en": 12.9e6, "wmt15-de-en": 49.0e6}[preset]
    assert values["parameters"] == pytest.approx(published, rel=0.01)
    assert values["flops_per_update"] == pytest.approx(
        values["flops_per_pair"] * values["pairs_per_update"]
    )
    assert {row["model"] for row in values["architectures"]} >= {"Transformer", "ConvS2S"}


def test_the_plan_counts_the_real_batches(data: str, tmp_path: Path, told: list[str]) -> None:
    report = tmp_path / "plan.json"
    assert train(data, "--dry-run", "--json", report, *SMALL, "--set", "batches.max_tokens=1") == 0
    values = json.loads(report.read_text())
    assert values["pairs_per_update"] == 1.0
    assert not list(tmp_path.glob("model*"))


def test_the_plan_asks_for_vocabularies(told: list[str]) -> None:
    assert train("--dry-run") == 2
    assert "--source-vocab-size" in told[-1]
    sizes = ["--source-vocab-size", 50, "--target-vocab-size", 60]
    assert train("--dry-run", *sizes) == 0


@pytest.mark.parametrize("columns", ["80", None])
def test_the_list_goes_out_with_whole_names(
    columns: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    assert train("--list", "--arch", "transformer") == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("smoothing.sequence.proposal_temperature │" in line for line in lines)
    longest = zoo.preset("transformer", "iwslt14-de-en-exits").description
    whole = any(longest in line for line in lines)
    # A pipe is as wide as what goes through it.
    assert (max(map(len, lines)) <= 80 and not whole) if columns else whole


def test_the_list_shows_names_and_settings(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert train("--list", "--json", "-") == 0
    told = capfdbinary.readouterr()
    values = json.loads(told.out)
    assert b"architectures" in told.err, "the tables make room for it"
    assert "multi30k" in [preset["name"] for preset in values["presets"]]
    assert "likelihood" in [objective["name"] for objective in values["objectives"]]
    names = {setting["name"]: setting for setting in values["settings"]["pervasive"]}
    assert names["model.depth"]["default"] == 14
    assert names["model.depth"]["meaning"].startswith("N, blocks")
    assert names["training.schedule"]["type"].startswith("inverse-sqrt")


def test_the_log_keeps_what_the_state_knows(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.keep_until(5)
    assert not log.path.exists()
    log.path.write_text('{"update": 1}\n{"update": 6}\n{"update": 5}\n{"upd')
    log.keep_until(5)
    assert log.path.read_text() == '{"update": 1}\n{"update": 5}\n'
