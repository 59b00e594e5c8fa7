"""Processes that do not see one folder say so before they train."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from nmtgrid.base.errors import StorageError
from nmtgrid.cli.app import main
from nmtgrid.training import distributed
from nmtgrid.training.distributed import Processes, check_shared_folder
from tests.conftest import PROJECT

SMALL = [
    *("--arch", "transformer", "--preset", "toy", "--precision", "fp32", "--max-updates", "2"),
    *("--set", "model.size=16", "--set", "model.heads=2", "--set", "model.feed_forward_size=16"),
    *("--set", "model.encoder_depth=1", "--set", "model.decoder_depth=1"),
    *("--set", "training.validate_epochs=0", "--set", "training.validate_bleu=false"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared") / "data"
    assert main(["preprocess", "--toy", "60", "--out", str(folder)]) == 0
    assert main(["bpe", "learn", str(folder), "--words"]) == 0
    return folder


def two(places: Sequence[Path], *arguments: object) -> list[tuple[int, str]]:
    """Train on two processes, each in its own place; return exit codes and what they said."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = str(held.getsockname()[1])
    running = []
    for rank, place in enumerate(places):
        place.mkdir(exist_ok=True)
        environment = {
            **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(PROJECT),
        }  # fmt: skip
        running.append(
            subprocess.Popen(
                [sys.executable, "-m", "nmtgrid", "train", *map(str, arguments)],
                cwd=place, env=environment, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    told = [process.communicate(timeout=120)[1] for process in running]
    return [(process.returncode, words) for process, words in zip(running, told, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("resumed", [False, True])
def test_folders_apart_are_told_of(data: Path, tmp_path: Path, resumed: bool) -> None:
    """A run is neither begun nor gone on with, where one alone has it, and nothing is left."""
    apart = [tmp_path / "first", tmp_path / "second"]
    if resumed:
        assert main(["train", str(data), "--out", str(apart[0] / "m"), *SMALL]) == 0
    options = ["--resume"] if resumed else SMALL
    (code, words), (other, _) = two(apart, data, "--out", "m", *options)
    assert (code, other) == (2, 2), words
    assert "What process 0 writes to m is not seen by 1 of 2 processes (1)" in words
    assert "a file system that they share" in words
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


def test_what_comes_late_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            (tmp_path / "late").touch()

    monkeypatch.setattr(time, "sleep", sleep)
    assert distributed._appears(tmp_path / "late") and len(waits) == 3


def test_one_alone_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "_new_file", lambda _: pytest.fail("a file was made"))
    check_shared_folder(tmp_path, Processes())
    assert list(tmp_path.iterdir()) == []
