"""Processes that do not see one folder say so before they train."""

import contextlib
import os
import time
from pathlib import Path

import pytest

from nmtgrid.base.errors import StorageError
from nmtgrid.cli.app import main
from nmtgrid.training import distributed
from nmtgrid.training.distributed import Processes, check_shared_folder
from tests.unit.helpers.train_command import SMALL_TRANSFORMER, on_two_ranks

SMALL = [*SMALL_TRANSFORMER, "--max-updates", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("resumed", [False, True])
def test_folders_apart_are_refused(tmp_path: Path, toy_dataset: Path, resumed: bool) -> None:
    """A run is neither begun nor gone on with, where one alone has it, and nothing is left."""
    apart = [tmp_path / "first", tmp_path / "second"]
    if resumed:
        assert main(["train", str(toy_dataset), "--out", str(apart[0] / "m"), *SMALL]) == 0
    options = ["--resume"] if resumed else SMALL
    for folder in apart:
        folder.mkdir(exist_ok=True)
    arguments = ("train", toy_dataset, "--out", "m", *options)
    (code, words), (other, _) = on_two_ranks("nmtgrid", arguments, *apart)
    assert (code, other) == (2, 2), words
    assert "1 of 2 processes (1) do not see what process 0 writes to m" in words
    assert "a shared file system" in words
    assert [path.name for path in apart[0].iterdir()] == (["m"] if resumed else [])
    assert not list(apart[1].iterdir()) and not list(apart[0].rglob(".nmtgrid-*"))


def test_the_first_one_makes_a_file_in_the_nearest_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one says that it sees it, and then that it does not."""
    asked: list[bytes] = []
    for folder in (tmp_path / "a" / "m", tmp_path):
        for is_blind in (False, True):

            def gather(_: Processes, own: bytes, is_blind: bool = is_blind) -> list[bytes]:
                asked.append(own)
                return [own, b"" if is_blind else own]

            monkeypatch.setattr(Processes, "gather", gather)
            blind = pytest.raises(StorageError, match=r"1 of 2 processes \(1\)")
            with blind if is_blind else contextlib.nullcontext():
                check_shared_folder(folder, Processes(0, 2))
            probe, answer = asked[-2:]
            assert Path(os.fsdecode(probe)).parent == tmp_path and answer == b"yes"
            assert list(tmp_path.iterdir()) == []


def test_one_alone_asks_nobody_and_who_comes_late_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            (tmp_path / "late").touch()

    monkeypatch.setattr(time, "sleep", sleep)
    assert distributed._appears(tmp_path / "late") and len(waits) == 3
    monkeypatch.setattr(distributed, "_new_file", lambda _: pytest.fail("a file was made"))
    check_shared_folder(tmp_path, Processes())
    assert [path.name for path in tmp_path.iterdir()] == ["late"]
