"""The test protocol for the first GPU: every step runs, has a time limit, and is recorded."""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import first_gpu
from benchmarks import first_gpu_steps as steps
from benchmarks.timing import Conditions, children
from nmtgrid.cli.app import main
from tests.conftest import PROJECT

KERNEL_TESTS = PROJECT / "tests/unit/kernels"
QUICK = Conditions("cpu", "bf16", quick=True)
IN_A_STEP = {
    "environment": {"torch", "compiler"},
    "tests": {"--version"},
    "waits": {"pervasive likelihood", "transformer likelihood", "transformer exits-mixed"},
    "kernels": {"rows"},
    "update": {"pervasive", "transformer", "lengths"},
    "training": {"updates compared", "largest difference", "seconds"},
    "decoding": {"rows", "pervasive: equal tokens in fp32", "transformer: equal tokens in fp32"},
    "memory": {"rows"},
    "processes": {"one", "two", "two, sharded"},
}


@pytest.mark.parametrize("step", first_gpu.STEPS, ids=lambda step: step.name)
def test_every_step_runs(step: steps.Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(words: list[str]) -> None:
        if "torch.distributed.run" in words:
            subprocess.run(words, check=True)
        else:
            assert main(words[3:]) == 0  # without Python, -m and the package

    monkeypatch.setattr(steps, "run", run)  # imports take longer than the commands
    step.measure(QUICK, tmp_path)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert IN_A_STEP[step.name] <= figures.keys()
    if step.name == "training":
        assert figures["updates compared"] == 4 and figures["largest difference"] == 0.0
    if step.name == "processes":
        for name in IN_A_STEP[step.name]:
            assert figures[name]["updates compared"] == 4
            assert figures[name]["largest difference"] < 1e-6
    if step.name == "decoding":
        for row in figures["rows"]:
            for name in ("graphs", "eager"):
                seconds = row[f"{name}, ms a step"] * row["steps"] / 1000
                assert seconds == pytest.approx(row[f"{name}, second pass, s"])
        assert figures["pervasive: equal tokens in fp32"]


def test_all_tests_of_triton_kernels_are_run() -> None:
    kernels = {f"tests/unit/kernels/{path.name}" for path in KERNEL_TESTS.glob("test_*_triton.py")}
    assert kernels and kernels <= set(steps.TRITON_TESTS)
    assert all((PROJECT / name).is_file() for name in steps.TRITON_TESTS)


def test_a_short_loan_is_enough_for_the_steps_that_tell_most() -> None:
    first = first_gpu.STEPS[:4]
    assert [step.name for step in first] == ["environment", "waits", "update", "decoding"]
    assert sum(step.minutes for step in first) <= 15


def _options(folder: Path, **changes: Any) -> argparse.Namespace:
    options = command.parser().parse_args(["--first-gpu", "--out", str(folder)])
    return argparse.Namespace(**{**vars(options), "device": "cpu", **changes})


def test_a_step_ends_when_its_time_is_over(tmp_path: Path) -> None:
    result = first_gpu.run_step(first_gpu.STEPS[0], QUICK, tmp_path, 0.01)
    assert result["state"] == "out of time" and result["seconds"] < 5


def _has_ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _wait(condition: Callable[[], Any]) -> Any:
    for _ in range(1200):
        if result := condition():
            return result
        time.sleep(0.05)
    raise AssertionError("nothing happened for a minute")


def test_killing_a_step_kills_all_that_it_started() -> None:
    """Also processes in sessions of their own, as torchrun starts them."""
    sleep = "import time; time.sleep(300)"
    start = f"import subprocess, sys; code = {sleep!r}; " + (
        "subprocess.Popen([sys.executable, '-c', code], start_new_session=True); exec(code)"
    )
    with subprocess.Popen([sys.executable, "-c", start]) as process:
        below = _wait(lambda: children(process.pid))
        first_gpu._kill(process.pid)
    assert _wait(lambda: all(map(_has_ended, below)))


def test_a_killed_command_leaves_a_whole_record_and_no_process(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks", "--first-gpu", "--device", "cpu"]
    with subprocess.Popen([*words, "--out", str(tmp_path)], cwd=PROJECT) as process:
        below = _wait(lambda: children(process.pid))
        process.kill()
    assert _wait(lambda: all(map(_has_ended, below)))
    stored = json.loads((tmp_path / "first-gpu.json").read_text())
    assert {name: step["state"] for name, step in stored["steps"].items()} == {
        "environment": "cut off"
    }


def test_a_step_that_fails_is_recorded_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = steps.Step("unknown", 1, steps.environment, "nothing")
    monkeypatch.setattr(first_gpu, "STEPS", (unknown, first_gpu.STEPS[0]))
    assert first_gpu.run(_options(tmp_path)) == 1
    stored = json.loads((tmp_path / "first-gpu.json").read_text())["steps"]
    assert stored["unknown"]["state"] == "failed" and "StopIteration" in stored["unknown"]["output"]
    assert stored["environment"]["state"] == "done"


def test_a_step_is_stored_and_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(first_gpu, "STEPS", first_gpu.STEPS[:1])
    assert first_gpu.run(_options(tmp_path)) == 0
    stored = json.loads((tmp_path / "first-gpu.json").read_text())
    assert stored["steps"]["environment"]["state"] == "done"
    assert stored["steps"]["environment"]["figures"]["torch"] == torch.__version__
    assert first_gpu.run(_options(tmp_path)) == 0
    assert "environment: done before" in capsys.readouterr().out
    stored["facts"]["torch"] = "0.1"
    (tmp_path / "first-gpu.json").write_text(json.dumps(stored))
    with pytest.raises(SystemExit, match="other conditions"):
        first_gpu.run(_options(tmp_path))


def test_nothing_begins_when_the_minutes_are_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert first_gpu.run(_options(tmp_path, minutes=0.0)) == 1
    assert capsys.readouterr().out.count("not started") == len(first_gpu.STEPS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(SystemExit, match="no CUDA device"):
        command.main(["--first-gpu"])
