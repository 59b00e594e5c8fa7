"""Training that must not begin, or must not go on: states, folders, and options."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.base.errors import ConfigError, DataError, ModelError, StorageError
from nmtgrid.cli.app import main
from nmtgrid.cli.train.run import parse_seeds
from nmtgrid.data.build import TextPlan, preprocess_files
from nmtgrid.data.subwords import SubwordPlan, learn_subwords
from nmtgrid.training import checkpoint, prepare
from nmtgrid.training.checkpoint import Checkpoints, Snapshot
from nmtgrid.training.events import MetricsLog
from nmtgrid.training.prepare import check_folder
from nmtgrid.training.settings import BatchSettings, TrainingSettings
from tests.unit.damage import cut, flip
from tests.unit.tiny_run import Sentences, trainer
from tests.unit.train_command import TINY_MODEL, toy_data, train

SMALL = [
    *TINY_MODEL,
    "--set", "training.validate_bleu=false", "--max-updates", "1",
]  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_data(tmp_path_factory.mktemp("bad") / "data")


def snapshot(update: int) -> Snapshot:
    return Snapshot({"w": torch.full((3,), float(update))}, {}, {"update": update})


@pytest.mark.parametrize("harm", [cut, flip, Path.unlink])
@pytest.mark.parametrize(
    "name", ["last.safetensors", "model.safetensors", "training.safetensors", "training.json"]
)
def test_every_part_of_a_state_is_checked(
    tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    """The best weights too: a damaged file must not take the place of good ones."""
    states = Checkpoints(tmp_path)
    place = states.save(snapshot(1), {"w": torch.full((3,), 7.0)})
    # The model directory's files are links to the state's: a copy is harmed.
    content = (place / name).read_bytes()
    (place / name).unlink()
    (place / name).write_bytes(content)
    harm(place / name)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.safetensors")}
    with pytest.raises(StorageError, match=name.replace(".", r"\.")) as caught:
        states.load()
    assert "--init" in caught.value.advice
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.safetensors")} == before


def test_altered_counters_are_found(tmp_path: Path) -> None:
    states = Checkpoints(tmp_path)
    path = states.save(snapshot(1), None) / "training.json"
    path.write_text(path.read_text().replace('"update": 1', '"update": 2'))
    with pytest.raises(StorageError, match=r"training\.json has been altered"):
        states.load()


def test_only_folders_of_numbers_are_states(tmp_path: Path) -> None:
    states = Checkpoints(tmp_path)
    states.save(snapshot(1), None)
    (states.folder / "000009").write_text("a file")
    for name in ("²", "notes"):
        (states.folder / name).mkdir()
    held = states.load()
    assert held is not None and held.facts == {"update": 1}


def test_nothing_is_left_beside_the_links(tmp_path: Path) -> None:
    states = Checkpoints(tmp_path)
    states.save(snapshot(1), None)
    states.load()
    states.publish(states.existing()[-1])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoints", "last.safetensors", "model.safetensors",
    ]  # fmt: skip


def test_a_full_disk_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: Any) -> None:
        raise StorageError(f"{path} could not be written: the disk is full.", "Free some space.")

    states = Checkpoints(tmp_path)
    for advice in ("begin again with `--overwrite`", "go on with `--resume`"):
        monkeypatch.setattr(checkpoint, "save_tensors", full)
        with pytest.raises(StorageError, match="could not be saved: the disk is full") as caught:
            states.save(snapshot(1), None)
        assert advice in caught.value.advice
        monkeypatch.undo()
        states.save(snapshot(1), None)


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path, data: Path) -> None:
    from nmtgrid.training.events import Validated

    (tmp_path / "metrics.jsonl").mkdir()
    event = Validated(1, 0, 0.1, 2.0, "last", {"last": 2.0}, None, True, 0.1)
    with pytest.raises(StorageError, match=r"metrics\.jsonl could not be written") as caught:
        MetricsLog(tmp_path / "metrics.jsonl").write(event)
    assert "--resume" in caught.value.advice


def test_a_log_of_any_bytes_is_cut_back(tmp_path: Path) -> None:
    """What cannot be read stays, for its readers to tell of; a torn last line goes."""
    log = MetricsLog(tmp_path / "metrics.jsonl")
    harmed = b'{"update": 1}\n\xff\xfe\n' + b"[" * 100_000 + b"\n"
    log.path.write_bytes(harmed + b'{"update": 2}\n{"update": 10}\n{"upd')
    log.keep_until(9)
    assert log.path.read_bytes() == harmed + b'{"update": 2}\n'


def test_as_many_other_pairs_are_not_the_same_data(tmp_path: Path) -> None:
    list(trainer(tmp_path).run())
    again = trainer(tmp_path, max_updates=8)
    assert again.resume()
    with pytest.raises(DataError, match="other training pairs"):
        trainer(tmp_path, max_updates=8, sentences=Sentences(seed=4)).resume()
    with pytest.raises(DataError, match="40 usable training pairs, but there are 39"):
        trainer(tmp_path, max_updates=8, sentences=Sentences(39)).resume()


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1.0])
def test_settings_are_finite(value: float) -> None:
    for name in ("learning_rate", "max_minutes", "weight_decay", "clip_norm"):
        changes: dict[str, Any] = {name: value}
        faults = TrainingSettings(**changes).faults()
        assert any(f"`training.{name}`" in fault for fault in faults)
    assert BatchSettings(max_tokens=-1).faults()
    assert "2^63" in TrainingSettings(seed=2**63).faults()[0]


def test_seeds_are_not_without_end() -> None:
    for text in ("1..1000000000000000", "0..1000"):
        with pytest.raises(ConfigError, match="at most 1,000"):
            parse_seeds(text)


def test_overwrite_spares_what_is_no_model(tmp_path: Path, data: Path) -> None:
    with pytest.raises(ModelError, match="something else"):
        check_folder(data, overwrite=True)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ModelError, match="something else"):
        check_folder(tmp_path, overwrite=True)
    for ours in ('{"arch": "pervasive"}', '{"torn'):
        (tmp_path / "config.json").write_text(ours)
        check_folder(tmp_path, overwrite=True)
        with pytest.raises(ModelError, match="--overwrite"):
            check_folder(tmp_path, overwrite=False)


def test_a_full_disk_at_the_start_leaves_no_folder(
    data: Path, tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, *_: Any) -> None:
        folder.mkdir()
        (folder / "vocab.qa.txt").write_text("x")
        raise StorageError("The disk is full.")

    monkeypatch.setattr(prepare, "save_description", full)
    assert train(data, "--out", tmp_path / "m", *SMALL) == 2
    assert not (tmp_path / "m").exists()

    def refuse(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(prepare, "save_description", refuse)
    assert train(data, "--out", tmp_path / "m", *SMALL) == 2
    assert "cannot be made: Read-only file system" in told[-1]


def test_vocabularies_must_fit(data: Path, tmp_path: Path, told: list[str]) -> None:
    out, other = tmp_path / "m", tmp_path / "other"
    tied = [*SMALL, "--set", "model.tie=all"]
    for more in (["--out", out], ["--dry-run"]):
        assert train(data, *more, *tied) == 2
        assert "--joint-vocabulary" in told[-1]
    assert train(data, "--out", out, *SMALL) == 0
    # As many types, but others: shapes alone would not tell.
    assert main(["preprocess", "--toy", "60", "--toy-seed", "2", "--out", str(other)]) == 0
    assert main(["bpe", "learn", str(other), "--merges", "40"]) == 0
    assert train(other, "--out", tmp_path / "n", "--init", out, *SMALL) == 2
    assert "--init" in told[-1]
    assert train(other, "--out", out, "--resume") == 2
    assert "other vocabularies" in told[-1] and not (tmp_path / "n").exists()


REFUSED = {
    "sizes without a plan": (["--source-vocab-size", "9"], "`--dry-run` alone"),
    "init and resume": (["--init", "x", "--resume"], "contradict"),
    "twice": (["--set", "training.max_updates=3"], "`--max-updates` say the same"),
    "seed": (["--seed", "99999999999999999999"], "2^63"),
    "rate": (["--set", "training.learning_rate=1e999"], "learning_rate"),
    "no name": (["--arch", ""], "no architecture ``"),
    "json": (["--json", "{tmp}/none/x.json"], "there is no folder"),
    "init": (["--init", "{tmp}/none"], "no model directory"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_is_made(
    data: Path, tmp_path: Path, told: list[str], name: str
) -> None:
    options, words = REFUSED[name]
    given = [option.replace("{tmp}", str(tmp_path)) for option in options]
    assert train(data, "--out", tmp_path / "m", *SMALL, *given) == 2
    assert words in told[-1]
    assert list(tmp_path.iterdir()) == []


def test_validation_without_text_is_refused(tmp_path: Path, told: list[str]) -> None:
    for name, text in (("train", "ab ab\n" * 3), ("valid", "\n\n")):
        for language in ("de", "en"):
            (tmp_path / f"{name}.{language}").write_text(text)
    plan, folder = TextPlan("de", "en"), tmp_path / "data"
    preprocess_files(plan, {n: [str(tmp_path / n)] for n in ("train", "valid")}, folder)
    learn_subwords(folder, SubwordPlan(words=True))
    assert train(folder, "--out", tmp_path / "m", *SMALL) == 2
    assert "`valid` has text on both sides" in told[-1] and not (tmp_path / "m").exists()


def test_a_plan_counts_the_special_symbols(told: list[str]) -> None:
    assert train("--dry-run", "--source-vocab-size", 4, "--target-vocab-size", 0) == 2
    assert "`--source-vocab-size`" in told[-1] and "`--target-vocab-size`" in told[-1]


def test_a_damaged_run_is_not_called_none(data: Path, tmp_path: Path, told: list[str]) -> None:
    out = tmp_path / "m"
    assert train(data, "--out", out, *SMALL) == 0
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text("{")
    assert train(data, "--out", out, "--resume") == 2
    assert "is damaged" in told[-1] and "no run" not in told[-1]
    config["settings"]["model"]["size"] = 16
    (out / "config.json").write_text(json.dumps(config))
    assert train(data, "--out", out, "--resume") == 2
    assert "config.json has been altered" in told[-1] and "`sha256`" in told[-1]
    del config["sha256"]
    (out / "config.json").write_text(json.dumps(config))
    assert train(data, "--out", out, "--resume") == 2
    assert "settings have been changed" in told[-1]
