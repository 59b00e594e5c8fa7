"""Model directories that version 0.1.0 wrote translate as they did then.

`tests/models_0.1.0/make.sh` has the commands that made them. The sentences are some whose
translation does not hang on the last digits of a probability.
"""

import shutil
from pathlib import Path

import pytest

import nmtgrid
from nmtgrid.cli.app import main
from nmtgrid.models.directory import load_model
from nmtgrid.training.checkpoint import Checkpoints

MODELS = Path(__file__).parents[2] / "models_0.1.0"


@pytest.fixture(autouse=True)
def _untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(MODELS, tmp_path / "models")
    monkeypatch.chdir(tmp_path / "models")


def _pairs(file: Path) -> tuple[list[str], list[str]]:
    lines = file.read_text(encoding="utf-8").splitlines()
    sources, targets = zip(*(line.split("\t") for line in lines), strict=True)
    return list(sources), list(targets)


@pytest.mark.parametrize("arch", ["pervasive", "transformer"])
def test_translates_as_before(arch: str) -> None:
    sources, targets = _pairs(Path(arch, "expected.txt"))
    translator = nmtgrid.load(arch, beam=1)
    assert translator.translate(sources) == targets


@pytest.mark.parametrize(("exit", "file"), [("2", "exit-2"), ("kept-1.5", "exit-kept-1.5")])
def test_leaves_early_as_before(exit: str, file: str, tmp_path: Path) -> None:
    """After a fixed block, and by thresholds that were kept under a name."""
    sources, targets = _pairs(Path("transformer", f"expected-{file}.txt"))
    (tmp_path / "source").write_text("".join(f"{line}\n" for line in sources), encoding="utf-8")
    command = ["decode", "transformer", str(tmp_path / "source"), "--out", str(tmp_path / "out")]
    assert main([*command, "--beam", "1", "--exit", exit, "--device", "cpu"]) == 0
    assert (tmp_path / "out").read_text(encoding="utf-8").splitlines() == targets


def test_its_checkpoint_is_read() -> None:
    """All that a resumed run needs is there, under the names of today."""
    loaded = load_model("pervasive")
    snapshot = Checkpoints(Path("pervasive"), 1).load()
    assert snapshot is not None
    assert snapshot.weights.keys() == loaded.model.state_dict().keys()
