"""Settings of early exit in a model directory: what is written is read, what is damaged is told."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmtgrid.adaptive.exit_presets import ExitSettings, halt_of, load_exit, load_exits, save_exits
from nmtgrid.adaptive.halting import AnyHalt, FixedExit, Predicted, Thresholds
from nmtgrid.base.errors import ConfigError, ModelError, NmtgridError, StorageError
from nmtgrid.models.api import ExitModel, Halting, Traits
from nmtgrid.models.directory import LoadedModel
from nmtgrid.training.prepare import clear_folder

FAST = ExitSettings("fast", "geometric", (0.25, 1.0), "valid", 34.7, 1.42)


def model(halting: Halting = "geometric", count: int = 3) -> ExitModel:
    """Return a model that says what it can and does nothing."""
    found = ExitModel()
    found.architecture = "transformer"  # type: ignore[misc]
    found.traits = Traits(num_exits=count, halting=halting)
    return found


def chosen(
    choice: str, folder: Path, held: ExitModel, told: Callable[[str], None] = print,
    weights: str = "best", checksum: str | None = None,
) -> AnyHalt:  # fmt: skip
    none: Any = None
    return halt_of(choice, LoadedModel(held, none, {}, folder, weights, checksum), told)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert load_exits(tmp_path) == {}
    safe = ExitSettings("safe-1.5", "confidence", (0.9, 0.8), "valid")
    save_exits(tmp_path, model(), [FAST])
    save_exits(tmp_path, model(), [safe])
    assert load_exits(tmp_path) == {"fast": FAST, "safe-1.5": safe}
    newer = ExitSettings("fast", "geometric", (0.5, 0.5), "valid")
    save_exits(tmp_path, model(), [newer])
    assert load_exit(tmp_path, "fast", model()) == newer
    assert json.loads((tmp_path / "exits.json").read_text())["settings"]["safe-1.5"] == {
        "mechanism": "confidence", "thresholds": [0.9, 0.8], "split": "valid", "bleu": None,
        "average_exit": None, "weights": None, "checksum": None,
    }  # fmt: skip


def test_a_tuning_replaces_what_an_earlier_one_of_its_name_left(tmp_path: Path) -> None:
    def kept(*names: str, tuning: str | None = None) -> set[str]:
        found = [ExitSettings(name, "geometric", (0.5, 0.5), "valid") for name in names]
        save_exits(tmp_path, model(), found, tuning)
        return set(load_exits(tmp_path))

    others = {"fast", "fast-loss1", "fast-er-2", "faster-2"}
    assert kept(*others, "fast-1.5", "fast-2") == others | {"fast-1.5", "fast-2"}
    assert kept("fast-3", tuning="fast") == others | {"fast-3"}
    assert kept("fast-2") == others | {"fast-2", "fast-3"}


def test_a_choice_is_a_number_a_name_or_auto(tmp_path: Path) -> None:
    save_exits(tmp_path, model(), [FAST])
    assert chosen("2", tmp_path, model()) == FixedExit(2)
    assert chosen("fast", tmp_path, model()) == Thresholds("geometric", (0.25, 1.0))
    assert chosen("auto", tmp_path, model()) == Thresholds("geometric", (0.5, 0.5))
    assert chosen("auto", tmp_path, model("sequence")) == Predicted("sequence")


@pytest.mark.parametrize(
    ("choice", "held", "message"),
    [
        ("4", model(), "Exit 4 is beyond the decoder's 3 blocks"),
        ("0", model(), "Exits count from 1"),
        ("-1", model(), "Exits count from 1"),
        ("fats", model(), "named `fats`. Did you mean `fast`"),
        ("auto", model("none"), "has no exit predictor"),
        ("fast", model(count=6), "`fast` in .*2 thresholds are given, but .* 6 blocks needs 5"),
        ("fast", model("sequence"), "`fast` in .*predicts exits by `sequence`"),
        ("fast", model("none", 1), "one exit"),
        ("1", model("none", 1), "one exit"),
    ],
)
def test_what_does_not_fit_is_refused(
    choice: str, held: ExitModel, message: str, tmp_path: Path
) -> None:
    save_exits(tmp_path, model(), [FAST])
    with pytest.raises(ConfigError, match=message):
        chosen(choice, tmp_path, held)


def test_without_any_settings_the_way_to_some_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="adaptive-tune"):
        load_exit(tmp_path, "fast", model())


@pytest.mark.parametrize("name", ["", "3", "-1", "auto", "a b", "../a"])
def test_impossible_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be named"):
        ExitSettings(name, "geometric", (), "valid")


def test_impossible_thresholds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"from 0 to 1, but is 1\.5"):
        ExitSettings("a", "geometric", (1.5,), "valid")
    with pytest.raises(ConfigError, match="has no thresholds"):
        ExitSettings("a", "multinomial", (0.5,), "valid")
    with pytest.raises(ConfigError, match="needs 3"):
        save_exits(tmp_path, model(count=4), [FAST])
    assert not (tmp_path / "exits.json").exists()


def test_thresholds_go_with_their_weights(tmp_path: Path) -> None:
    last = dataclasses.replace(FAST, weights="last", checksum="a")
    save_exits(tmp_path, model(), [last, dataclasses.replace(FAST, name="old")])
    assert load_exit(tmp_path, "fast", model()) == last
    told: list[str] = []

    def halt(name: str, weights: str, checksum: str | None) -> object:
        return chosen(name, tmp_path, model(), told.append, weights, checksum)

    assert halt("fast", "last", "a") == halt("fast", "best", "a") == FAST.halt()
    assert halt("old", "best", "b") == FAST.halt(), "nothing is known of its weights"
    assert halt("2", "best", "b") == FixedExit(2) and halt("auto", "best", "b") and not told
    for checksum in ("b", None):
        assert halt("fast", "last", checksum) == FAST.halt()
        assert "`fast`" in told[-1] and "tuned on other weights" in told[-1]
    assert len(told) == 2
    with pytest.raises(ConfigError, match=r"weights `last`, but `best`") as fault:
        halt("fast", "best", "b")
    assert "`--weights last`" in fault.value.advice


def test_a_new_run_clears_the_thresholds_of_the_old_one(tmp_path: Path) -> None:
    save_exits(tmp_path, model(), [FAST])
    clear_folder(tmp_path)
    assert not (tmp_path / "exits.json").exists()


GOOD: dict[str, Any] = {"mechanism": "geometric", "thresholds": [0.5, 0.5], "split": "valid"}


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ([], StorageError, "no table `settings`"),
        ({"format": 1, "settings": []}, StorageError, "no table `settings`"),
        ({"format": 2, "settings": {}}, ModelError, "has format 2"),
        ({"format": 1, "settings": {"a": 1}}, StorageError, "in `a`, the settings are not a table"),
        ({"format": 1, "settings": {"a": GOOD | {"mechanism": "luck"}}}, StorageError, "'luck'"),
        ({"format": 1, "settings": {"a": GOOD | {"thresholds": [True]}}}, StorageError, "list of"),
        ({"format": 1, "settings": {"a": GOOD | {"thresholds": "0.5"}}}, StorageError, "list of"),
        ({"format": 1, "settings": {"a": GOOD | {"split": 1}}}, StorageError, "`split`"),
        ({"format": 1, "settings": {"a": GOOD | {"bleu": "high"}}}, StorageError, "`bleu`"),
        ({"format": 1, "settings": {"a": GOOD | {"weights": 1}}}, StorageError, "`weights`"),
        ({"format": 1, "settings": {"a": GOOD | {"thresholds": [2]}}}, ConfigError, "from 0 to 1"),
        ({"format": 1, "settings": {"7": GOOD}}, ConfigError, "cannot be named"),
    ],
)
def test_damaged_files_are_told(
    values: Any, kind: type[NmtgridError], message: str, tmp_path: Path
) -> None:
    (tmp_path / "exits.json").write_text(json.dumps(values))
    with pytest.raises(kind, match=message):
        load_exits(tmp_path)
    (tmp_path / "exits.json").write_text("{")
    with pytest.raises(StorageError, match="not JSON"):
        load_exits(tmp_path)
