"""`nmtgrid train`: runs, refusals, plans and lists from the command line."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from nmtgrid.base.errors import ConfigError, DataError, ModelError, StorageError
from nmtgrid.base.io.arrays import CHECKSUM, load_tensors, read_header
from nmtgrid.base.io.atomic import remove_folder
from nmtgrid.cli.app import main
from nmtgrid.cli.train.run import parse_seeds
from nmtgrid.data.build import TextPlan, preprocess_files
from nmtgrid.data.subwords import SubwordPlan, learn_subwords
from nmtgrid.models.directory import load_model
from nmtgrid.training import checkpoint, events, prepare
from nmtgrid.training.checkpoint import Checkpoints, Snapshot
from nmtgrid.training.metrics_log import MetricsLog
from nmtgrid.training.prepare import Request, check_folder
from nmtgrid.training.settings import BatchSettings, TrainingSettings
from nmtgrid.training.trainer import Trainer
from tests.unit.helpers.damage import contents, cut, flip
from tests.unit.helpers.documented import documented_keys
from tests.unit.helpers.tiny_run import Sentences, trainer
from tests.unit.helpers.toy_model import toy_model
from tests.unit.helpers.train_command import TINY_MODEL, train

SMALL = [
    *TINY_MODEL,
    "--set", "batches.max_tokens=400", "--set", "training.log_updates=1",
    "--set", "training.validate_sentences=5", "--precision", "fp32",
]  # fmt: skip


@pytest.fixture
def data(toy_dataset: Path) -> Path:
    return toy_dataset


def test_a_run_leaves_a_whole_model(data: Path, tmp_path: Path, messages: list[str]) -> None:
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
    ran = {"out": str(out), "arch": "pervasive", "objective": "likelihood", "seed": 1}
    assert values.items() >= (ran | {"preset": None, "precision": "fp32"}).items()
    assert values.keys() <= documented_keys()
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    updates = [line for line in lines if line["event"] == "updated"]
    assert [line["update"] for line in updates] == [1, 2, 3, 4]
    keys = {"epoch", "minutes", "loss", "nll", "perplexity", "gradient_norm",
              "tokens_per_second", "cells_per_second", "learning_rate"}  # fmt: skip
    assert keys <= updates[0].keys()
    assert any(line["event"] == "validated" and line["bleu"] is not None for line in lines)
    assert any("tok/s" in line for line in messages)


def test_resuming_goes_on_where_it_stopped(data: Path, tmp_path: Path, messages: list[str]) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    options = [*SMALL, "--set", "training.ema_decay=0.9"]
    assert train(data, "--out", straight, "--max-updates", 4, *options) == 0
    assert train(data, "--out", broken, "--max-updates", 2, *options) == 0
    # A log that is ahead of the saved state is truncated.
    with open(broken / "metrics.jsonl", "a") as file:
        file.write('{"event": "updated", "update": 3}\n{"torn')
    assert train(data, "--out", broken, "--resume", "--max-updates", 4) == 0
    whole, other = (load_tensors(folder / "last.safetensors") for folder in (straight, broken))
    assert all((whole[name] == other[name]).all() for name in whole)
    lines = [json.loads(line) for line in (broken / "metrics.jsonl").read_text().splitlines()]
    assert [x["update"] for x in lines if x["event"] == "updated"] == [1, 2, 3, 4]
    assert any("Continuing from update 2" in line for line in messages)
    assert any("pervasive, preset" in line and f"{data} -> {broken}" in line for line in messages)


def test_muon_trains_and_goes_on(data: Path, tmp_path: Path, messages: list[str]) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    options = [*SMALL, "--set", "training.optimiser=muon", "--set", "training.average=2"]
    assert train(data, "--out", straight, "--max-updates", 4, *options) == 0
    assert train(data, "--out", broken, "--max-updates", 2, *options) == 0
    assert train(data, "--out", broken, "--resume", "--max-updates", 4) == 0
    whole, other = (load_tensors(folder / "last.safetensors") for folder in (straight, broken))
    assert all((whole[name] == other[name]).all() for name in whole)
    assert train(data, "--out", broken, "--resume", "--set", "training.optimiser=adamw") == 2
    assert "`training.optimiser` would change" in messages[-1]
    sharded = ["--overwrite", *options, "--set", "training.shard=true"]
    assert train(data, "--out", broken, *sharded) == 2
    assert "does not support `training.shard`" in messages[-1]
    assert (broken / "last.safetensors").exists()


RESUMED: dict[str, tuple[list[str], list[str], str]] = {
    # The peak is 0.08: a hundredth of it at the end of 2 updates, a half in the middle of 4.
    "a cosine is stretched": (
        ["training.schedule=cosine", "training.warmup_updates=0", "training.learning_rate=0.08"],
        ["--max-updates", "6"],
        "of update 3 is 0.0404 with the new settings (`training.max_updates` was 2, is 6); with "
        "the previous ones it would have been 0.0008.",
    ),
    "the end is later": (["training.schedule=constant"], ["--max-updates", "6"], ""),
    "the height": (
        ["training.schedule=constant", "training.warmup_updates=0", "training.learning_rate=0.08"],
        ["--set", "training.learning_rate=0.04", "--max-updates", "6"],
        "would have been 0.08",
    ),
}  # fmt: skip
"""Settings of the run, changes when it is resumed after two updates, and the message."""


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_says_that_its_rate_changes(
    data: Path, tmp_path: Path, messages: list[str], name: str
) -> None:
    settings, changes, words = RESUMED[name]
    options = [text for setting in settings for text in ("--set", setting)]
    assert train(data, "--out", tmp_path / "m", *SMALL, *options, "--max-updates", 2) == 0
    messages.clear()
    assert train(data, "--out", tmp_path / "m", "--resume", *changes) == 0
    said = [line for line in messages if "learning rate of update" in line]
    assert len(said) == bool(words) and all(words in line for line in said)
    # The next resumption is compared with the changed settings.
    messages.clear()
    assert train(data, "--out", tmp_path / "m", "--resume") == 0
    assert not any("learning rate of update" in line for line in messages)


def test_a_resumed_run_says_what_a_later_limit_switches_off(
    data: Path, tmp_path: Path, messages: list[str]
) -> None:
    options = ["--set", "training.schedule=constant", "--set", "training.r_drop=1"]
    options += ["--set", "training.r_drop_from=0.5", "--max-updates", "2"]
    assert train(data, "--out", tmp_path / "m", *SMALL, *options) == 0
    messages.clear()
    assert train(data, "--out", tmp_path / "m", "--resume", "--max-updates", 6) == 0
    said = [line for line in messages if "r_drop_from" in line]
    assert len(said) == 1 and "has not begun yet with the new limit: 33 %" in said[0]


def test_a_config_of_a_model_with_initial_weights_says_so(
    data: Path, tmp_path: Path, messages: list[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert train(data, "--out", first, *SMALL, "--max-updates", 1) == 0
    assert train(data, "--out", second, *SMALL, "--init", first, "--max-updates", 1) == 0
    words = [data, "--config", second / "config.json", "--max-updates", "1"]
    messages.clear()
    assert train(*words, "--out", tmp_path / "third", "--init", first) == 0
    assert not any("random ones" in line for line in messages)
    assert train(*words, "--out", tmp_path / "fourth") == 0
    assert any("began with the weights of" in line and "`--init`" in line for line in messages)


@pytest.mark.parametrize("lines", ["seed = 3", "[training]\nseed = 3"])
def test_a_seed_beside_seeds_is_refused(
    data: Path, tmp_path: Path, messages: list[str], lines: str
) -> None:
    file = tmp_path / "seeds.toml"
    file.write_text(lines, encoding="utf-8")
    assert train(data, "--config", file, "--seeds", "1,2", "--out", tmp_path / "m") == 2
    assert "and `--seeds` set the same value" in messages[-1] and f"{file}:" in messages[-1]


def test_a_plan_refuses_what_a_training_would(
    data: Path, tmp_path: Path, messages: list[str]
) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "a").touch()
    compiled = ["--arch", "bilstm", "--set", "training.compile=true"]
    for words, message in (
        (compiled, "works with Transformers only"),
        (["--init", tmp_path / "nosuch"], "there is no model directory"),
        (["--out", taken], "exists already and is not empty"),
    ):
        assert train(data, "--dry-run", *words) == 2 and message in messages[-1]
    assert train(data, "--out", tmp_path / "m", "--json", tmp_path / "m") == 2
    assert "is also the model directory" in messages[-1] and not (tmp_path / "m").exists()
    (taken / "seed-1").mkdir()
    (taken / "seed-1/config.json").touch()
    assert train("--resume", "--out", taken) == 2 and "give `--seeds` too" in messages[-1]


def test_a_model_that_was_not_trained_here_is_no_run(
    data: Path, tmp_path: Path, messages: list[str]
) -> None:
    model = toy_model(tmp_path / "model", data)
    for words in ([], [data]):
        assert train(*words, "--resume", "--out", model) == 2
        assert "no run to resume" in messages[-1] and f"`--init {model}`" in messages[-1]


def test_means_of_too_few_checkpoints_are_told(
    data: Path, tmp_path: Path, messages: list[str]
) -> None:
    out = tmp_path / "model"
    assert train(data, "--out", out, "--max-updates", 1, *SMALL) == 0
    messages.clear()
    assert train("--resume", "--out", out, "--average", 5) == 0
    assert "average.safetensors is the mean of 1 checkpoint, not of 5" in " ".join(messages)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save_and_leave(
    data: Path, tmp_path: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch, number: int
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
    assert any(f"stopped by {signal.Signals(number).name}" in line for line in messages)
    assert any("after this update or validation" in line for line in messages)
    assert "Interrupted." not in messages
    monkeypatch.undo()
    state = json.loads(next((out / "checkpoints").iterdir()).joinpath("training.json").read_text())
    assert state["progress"]["update"] in (2, 3)
    assert signal.getsignal(number) is not None
    assert train(data, "--out", out, "--resume", "--max-updates", 4) == 0


def test_a_taken_folder_is_refused(data: Path, tmp_path: Path, messages: list[str]) -> None:
    out = tmp_path / "model"
    out.mkdir()
    (out / "mine.txt").write_text("keep")
    assert train(data, "--out", out, "--max-updates", 1, *SMALL) == 2
    assert "--resume" in messages[-1] and "--overwrite" in messages[-1]
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
    "seeds": (["--seeds", "1,1"], ["`--seeds`: 1 is listed twice"]),
    "cuda": (["--device", "cuda"], ["no CUDA device"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_faults_are_told_before_data_is_read(
    tmp_path: Path, messages: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    options, words = REFUSED[name]
    # The dataset does not exist: all of these errors are reported without looking for it.
    assert train(tmp_path / "nowhere", "--out", tmp_path / "model", *options) == 2
    assert all(word in messages[-1] for word in words), messages[-1]
    assert not (tmp_path / "model").exists()


def test_a_resumed_run_keeps_what_made_it(data: Path, tmp_path: Path, messages: list[str]) -> None:
    out = tmp_path / "model"
    assert train(data, "--out", out, "--resume") == 2
    assert "no run to resume" in messages[-1]
    assert train(data, "--out", out, "--max-updates", 1, *SMALL) == 0
    for change in ("model.depth=2", "batches.max_tokens=10", "training.seed=9"):
        assert train(data, "--out", out, "--resume", "--set", change) == 2
        assert change.split("=")[0] in messages[-1]
    assert train(data, "--out", out, "--resume", "--preset", "toy") == 2
    assert "was started with none" in messages[-1]


def test_init_begins_from_other_weights(data: Path, tmp_path: Path, messages: list[str]) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert train(data, "--out", first, "--max-updates", 1, *SMALL) == 0
    frozen = ["--set", "training.learning_rate=1e-30", "--set", "training.weight_decay=0",
              "--set", "training.initial_learning_rate=0", "--seed", "5"]  # fmt: skip
    assert train(data, "--out", second, "--init", first, "--max-updates", 1, *SMALL, *frozen) == 0
    before, other = (load_tensors(folder / "last.safetensors") for folder in (first, second))
    best = load_tensors(first / "model.safetensors")
    assert all((other[name] == best[name]).all() for name in before)
    wider = ["--set", "model.size=16"]
    assert train(data, "--out", tmp_path / "x", "--init", first, *SMALL, *wider) == 2
    assert "shape" in messages[-1] and "grid_map" in messages[-1]


def test_several_seeds_are_summed_up(data: Path, tmp_path: Path, messages: list[str]) -> None:
    out, report = tmp_path / "models", tmp_path / "report.json"
    options = ["--seeds", "1..2", "--max-updates", 1, "--json", report, *SMALL]
    options += ["--set", "search.max_length_b=0"]
    assert train(data, "--out", out, *options) == 0
    values = json.loads(report.read_text())
    # The test split is translated too, as `decode --data` does.
    chrf = [run["test_chrf"] for run in values["seeds"]]
    assert values["test_chrf"]["mean"] == pytest.approx(sum(chrf) / 2)
    decoded = ["decode", f"{out}/seed-2", "--data", data, "--json", report]
    assert main(list(map(str, decoded))) == 0
    assert json.loads(report.read_text())["chrf"] == chrf[1]
    for mode in (("--out", out, "--overwrite"), ("--dry-run",)):
        assert train(data, *mode, *options, "--test-split", "tset") == 2
        assert "no split `tset`" in messages[-1]
    losses = [run["valid_nll"] for run in values["seeds"]]
    assert [run["seed"] for run in values["seeds"]] == [1, 2] and losses[0] != losses[1]
    loss = values["valid_nll"]
    assert loss["mean"] == pytest.approx(sum(losses) / 2)
    assert loss["standard_deviation"] == pytest.approx(abs(losses[0] - losses[1]) / 2**0.5)
    assert (out / "seed-2" / "model.safetensors").is_file()


def test_a_seed_that_was_killed_before_its_first_state_begins_again(
    data: Path, tmp_path: Path, messages: list[str]
) -> None:
    """And no other seed begins again."""
    out = tmp_path / "models"
    options = ["--max-updates", 1, "--test-split", "none", "--out", out, *SMALL]
    assert train(data, "--seeds", "1..2", *options) == 0
    first, second = out / "seed-1", out / "seed-2"
    before = (first / "last.safetensors").stat()
    lost = second / "model.safetensors"
    remove_folder(second / "checkpoints")
    assert train(data, "--seeds", "1..3", "--resume", *options) == 2
    assert "seed-2 contains no saved state" in messages[-1] and "--overwrite" not in messages[-1]
    assert f"`--init {second}`" in messages[-1]
    for name in (lost.name, "last.safetensors"):
        (second / name).unlink()
    assert train(data, "--seeds", "1..3", "--resume", *options) == 0
    # Killed while the next run was being prepared: there is nothing but a lock.
    remove_folder(out / "seed-3")
    (out / "seed-3").mkdir()
    (out / "seed-3" / ".lock").write_text("")
    assert train(data, "--seeds", "1..3", "--resume", *options) == 0
    assert lost.is_file() and (out / "seed-3" / lost.name).is_file()
    assert (first / "last.safetensors").stat().st_ino == before.st_ino


def test_seeds_that_had_to_wait_have_the_settings_of_those_that_are_resumed(
    data: Path, tmp_path: Path
) -> None:
    """Also if the only option is `--resume`: otherwise they would be other models."""
    out = tmp_path / "models"
    limits = ["--max-updates", 1, "--test-split", "none", "--out", out]
    assert train(data, "--seeds", "1", *limits, *SMALL) == 0
    plan = tmp_path / "plan.json"
    command = ["--seeds", "1..2", "--resume", "--out", out]
    assert train(*command, "--dry-run", "--json", plan) == 0
    assert train(*command, *limits[:4]) == 0
    first, second = (json.loads((out / f"seed-{n}/config.json").read_text()) for n in (1, 2))
    assert second["settings"].pop("training") == first["settings"].pop("training") | {"seed": 2}
    assert second["settings"] == first["settings"] and second["model"] == first["model"]
    card = (out / "seed-2/README.md").read_text()
    assert f"{json.loads(plan.read_text())['parameters']:,}" in card


def test_seeds_go_on_with_the_settings_of_a_model_whatever_its_seed_is(
    data: Path, tmp_path: Path
) -> None:
    """A model's `config.json` has a seed, which is ignored with several seeds."""
    limits = ["--max-updates", 1, "--test-split", "none"]
    model, out = tmp_path / "model", tmp_path / "models"
    assert train(data, "--out", model, "--seed", 7, *limits, *SMALL) == 0
    command = [data, "--config", model / "config.json", *limits, "--out", out]
    assert train(*command, "--seeds", "2") == 0
    for more in (["--dry-run"], []):
        assert train(*command, "--seeds", "2,3", "--resume", *more) == 0
    settings = [json.loads((out / f"seed-{n}/config.json").read_text()) for n in (2, 3)]
    assert [each["settings"]["training"]["seed"] for each in settings] == [2, 3]


def test_all_settings_of_several_seeds_are_a_file_that_trains_them(
    data: Path, tmp_path: Path
) -> None:
    file, out = tmp_path / "all.toml", tmp_path / "models"
    limits = ["--max-updates", 1, "--test-split", "none"]
    assert train(data, "--seeds", "2,3", "--max-updates", 1, *SMALL, "--dump-config", file) == 0
    assert train("--config", file, "--out", out, *limits) == 0
    more = ["--test-split", "none", "--tensorboard", "--dump-config", tmp_path / "more.toml"]
    assert train("--config", file, *more) == 0
    text = (tmp_path / "more.toml").read_text()
    assert 'test_split = "none"\n' in text and "tensorboard = true\n" in text
    assert sorted(path.name for path in out.iterdir()) == ["seed-2", "seed-3"]


def test_the_card_names_the_weights_that_a_training_began_with(
    data: Path, tmp_path: Path, messages: list[str]
) -> None:
    """The remaining seeds begin with them too, or not at all."""
    limits = ["--max-updates", 1, "--test-split", "none"]
    begin, out = tmp_path / "begin", tmp_path / "models"
    assert train(data, "--out", begin, *limits, *SMALL) == 0
    assert "initial weights" not in (begin / "README.md").read_text(encoding="utf-8")
    some = [*limits, "--out", out]
    assert train(data, "--seeds", "1", "--init", begin, *some, *SMALL) == 0
    checksum = read_header(begin / "model.safetensors")[1][CHECKSUM]
    row = f"| initial weights | `begin`, SHA-256 {checksum[:12]} |\n"
    assert row in (out / "seed-1/README.md").read_text(encoding="utf-8")
    assert train("--seeds", "1..2", "--resume", *some) == 2
    assert "began with the weights of `begin`" in messages[-1] and "`--init`" in messages[-1]
    assert not (out / "seed-2").exists()
    assert train("--seeds", "1..2", "--resume", "--init", begin, *some) == 0
    for seed in (1, 2):
        assert row in (out / f"seed-{seed}/README.md").read_text(encoding="utf-8")


def test_the_card_counts_full_epochs_and_no_update_is_told(
    data: Path, tmp_path: Path, messages: list[str]
) -> None:
    options = ["--max-updates", 0, "--test-split", "none", *SMALL]
    assert train(data, "--out", tmp_path / "a", "--max-epochs", 2, *options) == 0
    assert ", 2 full epochs, " in (tmp_path / "a" / "README.md").read_text(encoding="utf-8")
    assert not any("nothing has been learned" in message for message in messages)
    assert train(data, "--out", tmp_path / "b", "--max-minutes", 1e-9, *options) == 0
    assert any("nothing has been learned" in message for message in messages)


def test_seeds_are_lists_and_spans() -> None:
    request = Request()
    assert parse_seeds("1,2,3", request) == [1, 2, 3]
    assert parse_seeds("4..6,9", request) == [4, 5, 6, 9]
    for text in ("", "a", "1..", "3..1", "2,2"):
        with pytest.raises(ConfigError):
            parse_seeds(text, request)
    for text in ("1..100000000000000", "0..1000"):
        with pytest.raises(ConfigError, match="more than 1,000"):
            parse_seeds(text, request)


@pytest.mark.parametrize(
    ("preset", "source", "target"),
    # 14 blocks of 11x11 see 1 + 14*10 source and 1 + 14*5 target tokens; 16 blocks 161 and 81.
    [("iwslt14-de-en", 141, 71), ("wmt15-de-en", 161, 81)],
)
def test_plans(tmp_path: Path, messages: list[str], preset: str, source: int, target: int) -> None:
    report = tmp_path / "plan.json"
    assert train("--dry-run", "--preset", preset, "--json", report) == 0
    values = json.loads(report.read_text())
    assert values["arch"] == "pervasive"
    assert values["receptive_field"] == {"source": source, "target": target}
    published = {"iwslt14-de-en": 12.9e6, "wmt15-de-en": 49.0e6}[preset]
    assert values["parameters"] == pytest.approx(published, rel=0.01)
    flops = values["flops_per_pair"] * values["pairs_per_update"]
    assert values["flops_per_update"] == pytest.approx(flops)
    assert {row["model"] for row in values["architectures"]} >= {"Transformer", "ConvS2S"}


def test_plans_of_data_and_of_sizes(data: Path, tmp_path: Path, messages: list[str]) -> None:
    report = tmp_path / "plan.json"
    assert train(data, "--dry-run", "--json", report, *SMALL, "--set", "batches.max_tokens=1") == 0
    assert json.loads(report.read_text())["pairs_per_update"] == 1.0
    assert not list(tmp_path.glob("model*"))
    assert train("--dry-run") == 2 and "--source-vocab-size" in messages[-1]
    assert train("--dry-run", "--source-vocab-size", 50, "--target-vocab-size", 60) == 0
    # The special symbols count.
    assert train("--dry-run", "--source-vocab-size", 4, "--target-vocab-size", 0) == 2
    assert "`--source-vocab-size`" in messages[-1] and "`--target-vocab-size`" in messages[-1]


@pytest.mark.parametrize("columns", ["80", None])
def test_the_list_goes_out_with_whole_names(
    columns: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    assert train("--list", "--arch", "transformer") == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("smoothing.sequence.proposal_temperature │" in line for line in lines)
    assert max(map(len, lines)) <= int(columns or 100)


def test_the_list_shows_names_and_settings(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert train("--list", "--json", "-") == 0
    shown = capfdbinary.readouterr()
    values = json.loads(shown.out)
    assert b"architectures" in shown.err, "the tables make room for it"
    assert "multi30k" in [preset["name"] for preset in values["presets"]]
    assert "likelihood" in [objective["name"] for objective in values["objectives"]]
    names = {setting["name"]: setting for setting in values["settings"]["pervasive"]}
    assert names["model.depth"]["default"] == 14
    assert names["model.depth"]["meaning"].startswith("N, the number of blocks")
    assert names["training.schedule"]["type"].startswith("inverse-sqrt")


ONE_UPDATE = [*TINY_MODEL, "--set", "training.validate_bleu=false", "--max-updates", "1"]


def snapshot(update: int) -> Snapshot:
    return Snapshot({"w": torch.full((3,), float(update))}, {}, {"update": update})


@pytest.mark.parametrize("harm", [cut, flip, Path.unlink])
@pytest.mark.parametrize(
    "name", ["last.safetensors", "model.safetensors", "training.safetensors", "training.json"]
)
def test_all_of_a_state_is_checked(tmp_path: Path, name: str, harm: Callable[[Path], None]) -> None:
    """Including the best weights: a damaged file must not replace good ones."""
    states = Checkpoints(tmp_path)
    path = states.save(snapshot(1), {"w": torch.full((3,), 7.0)}) / name
    # The model directory's files are links to the state's, so a copy is damaged.
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    harm(path)
    before = contents(tmp_path, "*.safetensors")
    with pytest.raises(StorageError, match=name.replace(".", r"\.")) as caught:
        states.load()
    assert "--init" in caught.value.advice
    assert contents(tmp_path, "*.safetensors") == before


def test_only_folders_of_numbers_are_states(tmp_path: Path) -> None:
    states = Checkpoints(tmp_path)
    counters = states.save(snapshot(1), None) / "training.json"
    states.load()
    states.publish(states.existing()[-1])
    links = ["last.safetensors", "model.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", *links]
    (states.folder / "000009").write_text("a file")
    for name in ("²", "notes"):
        (states.folder / name).mkdir()
    state = states.load()
    assert state is not None and state.facts == {"update": 1}
    counters.write_text(counters.read_text().replace('"update": 1', '"update": 2'))
    with pytest.raises(StorageError, match=r"training\.json has been altered"):
        states.load()


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = StorageError("x could not be written: the disk is full.", "Free some space.")
    full, states = Mock(side_effect=fault), Checkpoints(tmp_path)
    for advice in ("begin again: with `--overwrite`", "continue with `--resume`"):
        monkeypatch.setattr(checkpoint, "save_tensors", full)
        with pytest.raises(StorageError, match="could not be saved: the disk is full") as caught:
            states.save(snapshot(1), None)
        assert advice in caught.value.advice
        monkeypatch.undo()
        states.save(snapshot(1), None)


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    event = events.Validated(1, 0, 0.1, 2.0, "last", {"last": 2.0}, None, True, 0.1)
    with pytest.raises(StorageError, match=r"metrics\.jsonl could not be written") as caught:
        MetricsLog(tmp_path / "metrics.jsonl").write(event)
    assert "--resume" in caught.value.advice


def test_a_log_is_cut_back_to_what_the_state_knows(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.keep_until(5)
    assert not log.path.exists()
    log.path.write_text('{"update": 1}\n{"update": 6}\n{"update": 5}\n{"upd')
    log.keep_until(5)
    assert log.path.read_text() == '{"update": 1}\n{"update": 5}\n'
    unreadable = b'{"update": 1}\n\xff\xfe\n' + b"[" * 100_000 + b"\n"
    log.path.write_bytes(unreadable + b'{"update": 2}\n{"update": 10}\n{"upd')
    log.keep_until(9)
    assert log.path.read_bytes() == unreadable + b'{"update": 2}\n'


def test_as_many_other_pairs_are_not_the_same_data(tmp_path: Path) -> None:
    list(trainer(tmp_path).run())
    assert trainer(tmp_path, max_updates=8).resume()
    for sentences, words in (
        (Sentences(seed=4), "other training pairs"),
        (Sentences(39), "40 usable training pairs, but now there are 39"),
    ):
        with pytest.raises(DataError, match=words):
            trainer(tmp_path, max_updates=8, sentences=sentences).resume()


def test_validation_pairs_stay_the_same(tmp_path: Path) -> None:
    """The best loss is measured on them; runs of older versions have not recorded them."""
    for folder, valid in ((tmp_path / "new", Sentences(9)), (tmp_path / "old", None)):
        list(trainer(folder, valid=valid).run())
        assert trainer(folder, valid=valid, max_updates=8).resume()
    assert trainer(tmp_path / "old", valid=Sentences(8), max_updates=8).resume()
    with pytest.raises(DataError, match="other validation pairs"):
        trainer(tmp_path / "new", valid=Sentences(8), max_updates=8).resume()


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1.0])
def test_settings_are_finite(value: float) -> None:
    for name in ("learning_rate", "max_minutes", "weight_decay", "clip_norm"):
        changes: dict[str, Any] = {name: value}
        faults = TrainingSettings(**changes).faults()
        assert any(f"`training.{name}`" in fault for fault in faults)
    assert BatchSettings(max_tokens=-1).faults()
    assert "2^63" in TrainingSettings(seed=2**63).faults()[0]


def test_overwrite_spares_what_is_no_model(tmp_path: Path, data: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "bert"}')
    for folder in (data, tmp_path):
        with pytest.raises(ModelError, match="other files"):
            check_folder(folder, overwrite=True)
    for ours in ('{"arch": "pervasive"}', '{"torn'):
        config.write_text(ours)
        check_folder(tmp_path, overwrite=True)
        with pytest.raises(ModelError, match="--overwrite"):
            check_folder(tmp_path, overwrite=False)


def test_a_full_disk_at_the_start_leaves_no_folder(
    data: Path, tmp_path: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, *_: Any) -> None:
        folder.mkdir()
        (folder / "vocab.qa.txt").write_text("x")
        raise StorageError("The disk is full.")

    monkeypatch.setattr(prepare, "save_description", full)
    assert train(data, "--out", tmp_path / "m", *ONE_UPDATE) == 2
    assert not (tmp_path / "m").exists()

    refuse = Mock(side_effect=OSError(errno.EROFS, "Read-only file system"))
    monkeypatch.setattr(prepare, "save_description", refuse)
    assert train(data, "--out", tmp_path / "m", *ONE_UPDATE) == 2
    assert "cannot be created: Read-only file system" in messages[-1]


@pytest.mark.parametrize("step", ["keep_until", "write"])
def test_a_log_that_cannot_be_written_leaves_no_lock(
    data: Path, tmp_path: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(MetricsLog, step, Mock(side_effect=StorageError("The disk is full.")))
    assert train(data, "--out", tmp_path / "m", *ONE_UPDATE) == 2
    assert "The disk is full" in messages[-1] and not (tmp_path / "m/.lock").exists()


def test_vocabularies_must_fit(data: Path, tmp_path: Path, messages: list[str]) -> None:
    out, other = tmp_path / "m", tmp_path / "other"
    tied = [*ONE_UPDATE, "--set", "model.tie=all"]
    for more in (["--out", out], ["--dry-run"]):
        assert train(data, *more, *tied) == 2
        assert "--joint-vocabulary" in messages[-1]
    assert train(data, "--out", out, *ONE_UPDATE) == 0
    # The same number of types, but other ones: shapes would not reveal it.
    assert main(["preprocess", "--toy", "60", "--toy-seed", "2", "--out", str(other)]) == 0
    assert main(["bpe", "learn", str(other), "--merges", "40"]) == 0
    assert train(other, "--out", tmp_path / "n", "--init", out, *ONE_UPDATE) == 2
    assert "--init" in messages[-1] and train(other, "--out", out, "--resume") == 2
    # With another number of types the message is the same rather than a list of tensors.
    words = ["bpe", "learn", str(other), "--words", "--overwrite"]
    assert "other vocabularies" in messages[-1] and main(words) == 0
    assert train(other, "--out", tmp_path / "n", "--init", out, *ONE_UPDATE) == 2
    assert "vocabularies of the model" in messages[-1]
    assert train(other, "--out", out, "--resume") == 2
    assert "other vocabularies" in messages[-1] and not (tmp_path / "n").exists()


REFUSED_AT_ONCE = {
    "sizes without a plan": (["--source-vocab-size", "9"], "only to `--dry-run`"),
    "init and resume": (["--init", "x", "--resume"], "contradict"),
    "twice": (["--set", "training.max_updates=3"], "`--max-updates` set the same value"),
    "seed twice": (["--seeds", "1,2", "--set", "training.seed=0"], "`--seeds` set the same value"),
    "seed": (["--seed", "99999999999999999999"], "too long a number (at most 18 digits)"),
    "large": (["--set", "training.seed=9300000000000000000"], "2^63"),
    "rate": (["--set", "training.learning_rate=1e999"], "learning_rate"),
    "no name": (["--arch", ""], "no architecture ``"),
    "json": (["--json", "{tmp}/none/x.json"], "there is no folder"),
    "init": (["--init", "{tmp}/none"], "no model directory"),
    "a report of settings": (["--dump-config", "{tmp}/a", "--json", "{tmp}/b"], "`--json` would"),
    "two things instead": (["--dump-config", "{tmp}/a", "--dry-run"], "`--dry-run` would be ign"),
    "list": (["--list"], "so DATA, `--out`, `--set`, `--max-updates` would be ignored."),
    "init from a dataset": (["--init", "{data}"], "is a dataset, not a model directory"),
}


@pytest.mark.parametrize("name", REFUSED_AT_ONCE)
def test_refused_at_once(data: Path, tmp_path: Path, messages: list[str], name: str) -> None:
    options, words = REFUSED_AT_ONCE[name]
    places = {"tmp": tmp_path, "data": data}
    arguments = [option.format(**places) for option in options]
    assert train(data, "--out", tmp_path / "m", *ONE_UPDATE, *arguments) == 2
    assert words in messages[-1] and list(tmp_path.iterdir()) == []


def test_validation_without_text_is_refused(tmp_path: Path, messages: list[str]) -> None:
    for language in ("de", "en"):
        (tmp_path / f"train.{language}").write_text("ab ab\n" * 3)
        (tmp_path / f"valid.{language}").write_text("\n\n")
    plan, folder = TextPlan("de", "en"), tmp_path / "data"
    preprocess_files(plan, {n: [str(tmp_path / n)] for n in ("train", "valid")}, folder)
    learn_subwords(folder, SubwordPlan(words=True))
    assert train(folder, "--out", tmp_path / "m", *ONE_UPDATE) == 2
    assert "`valid` has text on both sides" in messages[-1] and not (tmp_path / "m").exists()


def test_a_damaged_run_is_not_called_none(data: Path, tmp_path: Path, messages: list[str]) -> None:
    out, path = tmp_path / "m", tmp_path / "m" / "config.json"
    assert train(data, "--out", out, *ONE_UPDATE) == 0
    config = json.loads(path.read_text())
    config["settings"]["model"]["size"] = 16
    altered = json.dumps(config)
    del config["sha256"]
    for text, words in (
        ("{", ["is damaged"]),
        (altered, ["config.json has been altered", "`sha256`"]),
        (json.dumps(config), ["own architecture, have been changed"]),
    ):
        path.write_text(text)
        assert train(data, "--out", out, "--resume") == 2
        assert all(word in messages[-1] for word in words) and "no run" not in messages[-1]
        assert messages[-1].lower().count("restore") == 1, "advice is given once"
