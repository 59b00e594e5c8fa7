"""Whole commands with unusual values: those they once crashed on, and a few random ones."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.fuzz.commands import replacements
from tests.fuzz.commands.cases import Case, cases, drawn
from tests.fuzz.commands.child import MEMORY, Outcome
from tests.fuzz.commands.lines import Line, all_commands, lines
from tests.fuzz.commands.values import CONTENTS, LEAVES, PATHS, TEXTS

ONCE_FAULTS = [
    # Text of a dataset with more or fewer lines than the split has.
    "online-eval:content:data/raw/test.xx::nested",
    # Sizes that torch cannot count.
    "train --dry-run transformer:setting:model.size::2**31",
    "train --dry-run transformer:setting:model.encoder_size::2**63",
    "train --dry-run transformer:option:--target-vocab-size::2**63",
    # A file name that is no UTF-8, written down in results.
    "adaptive-tune --allow-loss:option:--out::surrogate",
]
"""Names of cases that ended in a traceback, took too long or took too much memory."""
LINE = Line(["bpe", "apply"], ["data/bpe.codes"], {"--input": ["text"], "--out": ["new"]}, ["text"])


def _run(*words: str, counts: Path) -> dict[str, object]:
    """Fuzz in a separate process, which is forked for each case and so must have no threads."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.commands", "--json", counts, *words],
        cwd=PROJECT, env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    results: dict[str, object] = json.loads(counts.read_text(encoding="utf-8"))
    return results


def test_what_was_mended_stays_mended(tmp_path: Path) -> None:
    """Also with a few random options of the same command lines."""
    words = [word for name in ONCE_FAULTS for word in ("--case", name)]
    words += ["--cases", "10", "--kind", "option", "--seed", "3"]
    results = _run(*words, counts=tmp_path / "counts.json")
    assert (results["cases"], results["faults"]) == (len(ONCE_FAULTS) + 10, {})


def test_every_command_is_there() -> None:
    assert {" ".join(line.command) for line in lines()} == all_commands()


def test_values_are_put_where_they_belong() -> None:
    case = Case(LINE, "option", "--workers", "nan")
    assert case.apply(Path()) == [
        "bpe", "apply", "--input=text", "--out=new", "--workers=nan", "--", "data/bpe.codes",
    ]  # fmt: skip
    assert Case(LINE, "option", "0", "zero").apply(Path())[-2:] == ["--", "0"]
    pair = Line(["analyze", "align"], ["a", "b"], {}, [])
    assert Case(pair, "option", "--train", "zero").apply(Path())[2:5] == [
        "--train", "0", "text/test.yy",
    ]  # fmt: skip


def test_cases_are_drawn_evenly(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("[1]")
    by_kind = cases(LINE, tmp_path, ["text"])
    # Numbers of workers that start processes are left out.
    assert len(by_kind["option"]) == 4 * len(TEXTS) - 3 and len(by_kind["content"]) == len(CONTENTS)
    assert len(by_kind["path"]) == 3 * len(PATHS) and not by_kind["setting"]
    assert len(by_kind["value"]) == 2 * len(LEAVES) - 1
    first = drawn([by_kind], 20, 1)
    assert first == drawn([by_kind], 20, 1) != drawn([by_kind], 20, 2)
    assert [case.kind for case in first[:4]] == ["option", "path", "content", "value"]
    assert len(drawn([by_kind], 10**6, 1)) == sum(map(len, by_kind.values()))


@pytest.mark.parametrize("value", sorted(LEAVES))
def test_json_stays_json(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": [1, {"b": 2}], "sha256": "x"}')
    addresses = replacements.addresses(path)
    assert ("a", 1, "b") in addresses and () in addresses
    replacements.change(path, ("a", 1, "b"), value)
    text = path.read_text()
    assert text.startswith('{"a": [1, {') and '"b": 2}' not in text and "sha256" not in text


@pytest.mark.parametrize(
    ("outcome", "target", "value", "fault"),
    [
        (Outcome(0, "", 1.0, 0, []), "--beam", "nan", None),
        (Outcome(2, "error: no", 1.0, 0, []), "--beam", "nan", None),
        (Outcome(1, "", 1.0, 0, []), "--beam", "nan", "exit code 1"),
        (Outcome(2, "Traceback (most recent call last)", 1.0, 0, []), "--k", "nan", "traceback"),
        (Outcome(1, "This is a bug in nmtgrid", 1.0, 0, []), "--k", "1", "traceback"),
        (Outcome(-signal.SIGXCPU, "", 10.0, 0, []), "--k", "2**63", "slow"),
        (Outcome(-signal.SIGXCPU, "", 10.0, 0, []), "--samples", "2**63", None),
        (Outcome(124, "", 1.0, 0, []), "--samples", "2**63", "hangs"),
        (Outcome(0, "", 1.0, 2 * MEMORY, []), "--k", "zero", "memory"),
        (Outcome(2, "The memory of this machine is full", 1.0, 0, []), "--k", "zero", "memory"),
    ],
)
def test_outcomes_are_judged(outcome: Outcome, target: str, value: str, fault: str | None) -> None:
    assert outcome.fault(Case(LINE, "option", target, value)) == fault
