"""Training on several processes: sharing, signals, deaths and resumption."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError, TrainingError
from nmtgrid.base.io.arrays import load_tensors
from nmtgrid.cli.app import main
from nmtgrid.training.distributed import (
    Processes,
    pack_states,
    processes_from_environment,
    unpack_states,
)
from tests.conftest import PROJECT
from tests.unit.helpers.train_command import SMALL_TRANSFORMER, on_two_ranks, train

SMALL = [
    *SMALL_TRANSFORMER,
    *("--set", "training.log_updates=1", "--set", "batches.max_tokens=300"),
]
NO_DROPOUT = ["--set", "model.dropout=0", "--set", "model.embedding_dropout=0"]


@given(some.lists(some.floats(0, 1e6), max_size=20), some.integers(1, 5))
def test_each_is_done_once(costs: list[float], count: int) -> None:
    shares = [Processes(rank, count).share(costs) for rank in range(count)]
    assert sorted(index for share in shares for index in share) == list(range(len(costs)))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert all(share == sorted(share) for share in shares)
    # 9 and 2 against 5 and 4: there and back.
    assert [Processes(rank, 2).share([9, 5, 4, 2]) for rank in (0, 1)] == [[0, 3], [1, 2]]


def test_states_come_back_as_they_were() -> None:
    states = {"random.cpu": torch.get_rng_state(), "b": torch.tensor([10, 0], dtype=torch.uint8)}
    unpacked = unpack_states(pack_states(states))
    assert unpacked.keys() == states.keys()
    assert all(torch.equal(unpacked[name], states[name]) for name in states)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), torch.OutOfMemoryError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), RuntimeError),
        (RuntimeError("Connection closed by peer"), TrainingError),
    ],
    ids=["GPU", "CPU", "peer"],
)
def test_want_of_memory_is_not_taken_for_a_death(
    fault: RuntimeError, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_reduce(_: torch.Tensor, async_op: bool = False) -> None:
        if async_op:
            raise fault

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    with pytest.raises(kind) as caught:
        Processes(0, 2).sum_gradients([parameter])
    assert (caught.value is fault) == (kind is not TrainingError)


def test_alone_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert processes_from_environment() == Processes(0, 1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="lacks RANK, LOCAL_RANK"):
        processes_from_environment()
    for name, value in (("RANK", "2"), ("LOCAL_RANK", "0"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    with pytest.raises(ConfigError, match="a RANK below it"):
        processes_from_environment()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "first")
    with pytest.raises(ConfigError, match="a whole number for WORLD_SIZE, RANK and LOCAL_RANK"):
        processes_from_environment()


def test_who_is_silent_tells_of_a_fault_that_nobody_else_has(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "1"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setattr(console.messages, "quiet", False)
    monkeypatch.setattr(console, "_speaker", "")
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    assert main(["train"]) == 2
    assert waited == [10.0]
    assert capfd.readouterr().err.startswith("process 1: error: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_fault_is_told_of_shows_no_traceback(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As torchrun ends a process that has met the fault which the first one told of."""
    monkeypatch.setattr(console, "error", lambda *_: os.kill(os.getpid(), number))
    handler = signal.signal(number, signal.default_int_handler)
    try:
        assert main(["nothing-of-this-name"]) == 128 + number
    finally:
        signal.signal(number, handler)
    assert capfd.readouterr().err == "Interrupted.\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes") / "data"
    assert main(["preprocess", "--toy", "400", "--out", str(folder)]) == 0
    assert main(["bpe", "learn", str(folder), "--words"]) == 0
    return folder


def _torchrun(*arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
               "2", "-m", "nmtgrid", "train", *map(str, arguments)]  # fmt: skip
    return subprocess.Popen(
        command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip


def _trained(*arguments: object) -> str:
    """Return what the first of two processes says that train to the end."""
    (code, output), (other, more) = on_two_ranks("nmtgrid", ["train", *arguments], PROJECT, PROJECT)
    assert (code, other) == (0, 0), output + more
    return output


def _figures(text: str) -> list[tuple[str, str, str]]:
    """Return update, loss and gradient norm of each line of a log."""
    return re.findall(r"update (\d+) .*?loss ([\d.]+) .*?\|g\| ([\d.]+)", text)


def _until(process: subprocess.Popen[str], word: str) -> str:
    """Read until `word` is said; return what was read."""
    assert process.stdout is not None
    read = ""
    for line in process.stdout:
        read += line
        if word in line:
            return read
    raise AssertionError(read)


def test_two_are_one_and_go_on_exactly(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two processes show one's figures; stopped and resumed, they end with the same weights."""
    plain = [*SMALL, *NO_DROPOUT, "--max-updates", "4"]
    capfd.readouterr()
    alone = [*plain, "--set", "batches.accumulation=2"]
    assert train(data, "--out", tmp_path / "one", *alone) == 0
    expected = _figures(capfd.readouterr().err)
    output = _trained(data, "--out", tmp_path / "two", *plain)
    assert _figures(output) == expected
    assert len(expected) == 4
    assert "2 processes" in output
    # Dropout is drawn by each process: its random states are part of what is saved.
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for out, limit, resumed in ((whole, 4, False), (parts, 2, False), (parts, 4, True)):
        settings = ["--resume"] if resumed else SMALL
        _trained(data, "--out", out, *settings, "--max-updates", limit)
    weights = [(out / "last.safetensors").read_bytes() for out in (whole, parts)]
    assert weights[0] == weights[1]
    assert weights[0] != (tmp_path / "two/last.safetensors").read_bytes()
    # One alone goes on with the same two batches an update, and says so.
    assert train(data, "--out", parts, "--resume", "--max-updates", 5) == 0
    assert "The number of processes has changed" in capfd.readouterr().err
    # Two cannot share the one batch of an update.
    assert train(data, "--out", tmp_path / "solo", *SMALL, "--max-updates", 1) == 0
    run = _torchrun(data, "--out", tmp_path / "solo", "--resume")
    output = run.communicate(timeout=120)[0]
    assert run.returncode != 0
    assert "An update of this run consists of one batch, which 2 processes cannot share." in output
    assert output.count("cannot share") == 1


def test_shards_do_the_same_and_go_on_whole(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With a running average and validation; stopped and resumed, sharded and by one alone."""
    changes = ("ema_decay=0.9", "ema_updates=1", "validate_updates=2", "validate_sentences=5",
               "validate_bleu=true", "average=2")  # fmt: skip
    settings = [word for change in changes for word in ("--set", f"training.{change}")]
    more = [*SMALL, *NO_DROPOUT, *settings]
    sharded = ["--set", "training.shard=true"]
    whole, shards = (
        _trained(data, "--out", tmp_path / name, *more, *options, "--max-updates", 4)
        for name, options in (("whole", []), ("shards", sharded))
    )
    scores = [re.findall(r"  nll (\d.*?)  ppl", output) for output in (whole, shards)]
    assert scores[0] == scores[1] and len(scores[0]) == 2
    assert _figures(whole) == _figures(shards)
    parts = tmp_path / "parts"
    for limit, options in ((2, [*more, *sharded]), (4, ["--resume"])):
        _trained(data, "--out", parts, *options, "--max-updates", limit)
    for file in ("last", "model", "average"):
        first, second = (
            load_tensors(tmp_path / name / f"{file}.safetensors") for name in ("shards", "parts")
        )
        assert all(torch.equal(first[name], second[name]) for name in first | second)
    capfd.readouterr()
    assert train(data, "--out", parts, "--resume", "--max-updates", 5) == 0
    assert "The number of processes has changed" in capfd.readouterr().err


def test_seeds_are_told_by_the_first_alone(data: Path, tmp_path: Path) -> None:
    command = ["train", data, "--out", tmp_path, *SMALL, "--seeds", "1,2", "--max-updates", "1"]
    (code, output), (other, more) = on_two_ranks("nmtgrid", command, PROJECT, PROJECT)
    assert (code, other) == (0, 0), output + more
    assert "2 seeds" in output and more == ""


@pytest.fixture
def endless(data: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Two processes in the middle of a long run into tmp_path/run."""
    run = _torchrun(data, "--out", tmp_path / "run", *SMALL, "--max-updates", 999999)
    yield run
    run.kill()
    run.wait()


def test_a_death_ends_the_others(endless: subprocess.Popen[str], tmp_path: Path) -> None:
    read = _until(endless, "update 3 ")
    children = subprocess.run(
        ["pgrep", "-P", str(endless.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(children) == 2, read
    began = time.monotonic()
    os.kill(int(children[1]), signal.SIGKILL)
    output = endless.communicate(timeout=60)[0]
    assert endless.returncode != 0
    assert "Another process of this run has ended" in output
    assert "`--resume` continues from there" in output
    assert time.monotonic() - began < 30


def test_a_signal_to_all_saves(endless: subprocess.Popen[str], tmp_path: Path) -> None:
    _until(endless, "update 3 ")
    endless.send_signal(signal.SIGTERM)
    output = endless.communicate(timeout=60)[0]
    assert "stopped by SIGTERM" in output
    assert len(list((tmp_path / "run/checkpoints").iterdir())) == 1
    assert "Another process" not in output


@pytest.mark.parametrize("count", ["1", "2"])
def test_one_of_several_ends_without_shutdown(count: str) -> None:
    """What torch's threads still hold then could abort a process that has done its work."""
    words = (
        "import atexit, sys; from nmtgrid.cli.app import program; "
        "atexit.register(print, 'shutdown'); sys.argv = ['nmtgrid', {!r}]; program()"
    )
    for asked, code in (("--version", 0), ("--nothing", 2)):
        ended = subprocess.run(
            [sys.executable, "-c", words.format(asked)],
            capture_output=True, text=True, env=os.environ | {"WORLD_SIZE": count}, cwd=PROJECT,
        )  # fmt: skip
        assert ended.returncode == code, ended.stderr
        assert ("shutdown" in ended.stdout) == (count == "1")
        assert bool(ended.stderr) == (code == 2)
