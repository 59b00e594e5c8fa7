"""Tables for people: what stands in them is text, however it looks, and whole where files read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nmtgrid.base import console

TITLE = "runs/[b]old[/b]: " + "a title longer than its table, " * 4 + "in whole"


def test_brackets_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """Words of corpora such as `[Applause]`, and folders: rich would swallow or refuse them."""
    console.table("[/u] of [red]", ["word[s]", "[b]"], [["[Applause]", 1.5], ["[/music]", 2]])
    shown = capsys.readouterr().err
    for part in ("[/u] of [red]", "word[s]", "[b]", "[Applause]", "1.50", "[/music]"):
        assert part in shown


@pytest.mark.parametrize("width", [None, "60"])
def test_titles_are_whole_lines(project: Path, width: str | None) -> None:
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    env |= {"PYTHONPATH": str(project)} | ({} if width is None else {"COLUMNS": width})
    code = f"from nmtgrid.base import console; console.table({TITLE!r}, ['a', 'b'], [['x', 1]])"
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert run.returncode == 0 and run.stderr.splitlines()[0] == TITLE


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 1>&- 2>&-"])
def test_standard_error_may_be_closed(project: Path, tmp_path: Path, closed: str) -> None:
    """A progress bar asks whether it is a terminal; the work is done all the same."""
    command = f"{sys.executable} -m nmtgrid preprocess --toy 5 --out {tmp_path / 'data'} {closed}"
    env = {**os.environ, "PYTHONPATH": str(project)}
    run = subprocess.run(["sh", "-c", command], env=env, stdout=subprocess.PIPE)
    assert run.returncode == 0 and (tmp_path / "data" / "manifest.json").is_file()
