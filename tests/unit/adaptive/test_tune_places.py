"""What `adaptive-tune` finds is not lost: where it goes is looked at first, and told whole."""

import dataclasses
import os
from pathlib import Path

import pytest

from nmtgrid.base.errors import StorageError
from nmtgrid.cli.adaptive_tune import run as adaptive_tune_run
from nmtgrid.cli.options import unusable
from nmtgrid.data.dataset import Dataset
from nmtgrid.models import zoo
from nmtgrid.models.directory import save_model
from nmtgrid.models.transformer.config import TransformerConfig
from tests.unit.adaptive.test_adaptive_tune import SMALL, here, home, refused, report, tune
from tests.unit.helpers.train_command import toy_data

__all__ = ["here", "home"]


def _read_only(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Make these folders read-only, even for users who may write anywhere."""
    whole = os.access

    def access(path: str | Path, mode: int) -> bool:
        return not (mode & os.W_OK and Path(path) in folders) and whole(path, mode)

    monkeypatch.setattr(os, "access", access)


def test_where_settings_are_kept_is_looked_at_before_the_work(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptive_tune_run, "decode", None)  # nothing is decoded
    command = ("adaptive-tune", "four", "--data", "data", "--device", "cpu")
    kept = here / "four" / "exits.json"
    kept.write_text('{"format": 1, "settings": 3}')
    assert "exits.json is damaged" in refused(capsys, *command)
    kept.unlink()
    _read_only(monkeypatch, Path("four"))
    message = refused(capsys, *command)
    assert "four is read-only" in message and "`--no-keep`" in message


def test_fixed_exits_store_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the model directory may be read-only."""
    _read_only(monkeypatch, Path("four"))
    assert tune("four", "--data", "data", "--only", "fixed") == 0
    assert "full stack" in capsys.readouterr().err
    assert not (here / "four" / "exits.json").exists()


def test_results_are_written_also_where_settings_cannot_be_kept(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*command: object) -> None:
        raise StorageError("exits.json could not be written: the disk is full.")

    monkeypatch.setattr(adaptive_tune_run, "save_exits", full)
    out, file = tmp_path / "a" / "out", tmp_path / "r.json"
    assert tune("exits", "--data", "data", "--out", out, "--json", file) == 2
    shown = capsys.readouterr().err
    assert "the disk is full" in shown and "full stack" in shown
    assert report(file)["points"] and (out / "curve.png").is_file()
    assert {point["stored"] for point in report(file)["points"]} == {None}


def test_outputs_that_cannot_be_are_told_first(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(out: Path) -> str:
        return refused(capsys, "adaptive-tune", "exits", "--data", "data", "--out", out)

    (tmp_path / "file").write_text("")
    assert f"{tmp_path / 'file'} is a file: name a folder" in said(tmp_path / "file" / "deep")
    assert "is a file: name a folder" in said(tmp_path / "file")
    assert "there is no folder" in said(tmp_path / "none" / "r.json")
    assert "`--out exits` is a model directory: name another folder" in said(Path("exits"))
    assert unusable("--out", tmp_path / "new" / "deep") == []
    _read_only(monkeypatch, tmp_path)
    assert f"cannot be written: {tmp_path} is read-only" in said(tmp_path / "new" / "deep")
    assert "cannot be written" in said(tmp_path / "r.json")


@pytest.mark.parametrize("budget", ["0", "0.001", "1e-320", "inf", "nan"])
def test_budgets_that_cannot_be(
    here: Path, capsys: pytest.CaptureFixture[str], budget: str
) -> None:
    command = ("adaptive-tune", "exits", "--data", "data", "--budget", budget)
    assert "`--budget` must be a number from 0.01 on" in refused(capsys, *command)


def test_faults_of_baselines_name_them(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = Dataset.open(toy_data(tmp_path / "other", "--joint-vocabulary")).pipeline
    sizes = len(pipeline.source_vocabulary), len(pipeline.target_vocabulary)
    config = dataclasses.replace(TransformerConfig(), **SMALL)
    odd = tmp_path / "odd"
    save_model(odd, zoo.from_config("transformer", config, *sizes), pipeline, {})
    command = ("adaptive-tune", "exits", "--data", "data", "--baselines", f"b={odd}")
    assert f"{odd}: The source vocabularies of the model" in refused(capsys, *command)
