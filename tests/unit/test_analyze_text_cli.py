"""`analyze buckets`, `lengths` and `compare` from the command line; what they refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nmtgrid.cli.app import main
from nmtgrid.metrics import quality
from nmtgrid.search.traces import Trace
from tests.unit.pipes import piped

REFERENCE = ["the red house .", "a dog sees the cat .", "she runs", "under the bridge", ""]
FIRST = ["the red house .", "a dog see the cat .", "she run", "", "word"]
SECOND = ["the blue house .", "the dog sees a cat .", "she runs", "under a bridge", ""]
SOURCE = ["w x y z", "q r s t", "u v", "m n o p q r", "x"]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with `one`, `two`, `reference`, `source`, `levels` and traces of `one`."""
    texts = {"one": FIRST, "two": SECOND, "reference": REFERENCE, "source": SOURCE}
    for name, lines in texts.items():
        write(tmp_path / name, lines)
    write(tmp_path / "levels", ["0.5", "1.5", "nan", "7", "1"])
    traces = [
        Trace(place, line.split(), line.split(), line, [-0.1] * (len(line.split()) + 1), -0.1, -0.1)
        for place, line in enumerate(FIRST, start=1)
    ]
    write(tmp_path / "one.jsonl", [one.to_line() for one in traces])
    return tmp_path


def write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def run(files: Path, name: str, *options: str) -> dict[str, Any]:
    report = files / "report.json"
    arguments = [str(files / part) if (files / part).exists() else part for part in options]
    assert main(["analyze", name, *arguments, "--json", str(report)]) == 0
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def refused(files: Path, capsys: pytest.CaptureFixture[str], name: str, *options: str) -> str:
    arguments = [str(files / part) if (files / part).exists() else part for part in options]
    assert main(["analyze", name, *arguments]) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message and message.count("error: ") == 1
    return " ".join(message.split())


def test_buckets(files: Path) -> None:
    found = run(
        files, "buckets", "one", "two", "-r", "reference", "-s", "source", "--edges", "3",
        "--by", "reference-length", "--out", str(files / "pictures"),
    )  # fmt: skip
    held = found["buckets"][0]
    assert held["sentences"] == [2, 3]
    assert [one["system"] for one in held["systems"]] == ["one", "two"]
    expected = quality.bleu([SECOND[n] for n in (0, 1, 3)], [REFERENCE[n] for n in (0, 1, 3)])
    assert held["systems"][1]["bleu"][1] == pytest.approx(expected.value)
    assert found["signature_bleu"] == expected.signature
    assert [Path(path).is_file() for path in found["pictures"]] == [True]


def test_buckets_by_what_is_given(files: Path) -> None:
    def by(*options: str) -> list[str]:
        found = run(files, "buckets", "one", "-r", "reference", *options)
        return [one["by"] for one in found["buckets"]]

    assert by() == ["reference-length"]
    assert by("-s", "source") == ["reference-length", "length-ratio"]
    assert by("--difficulty", "levels") == ["difficulty"]
    assert by("--by", "sentence-bleu", "--by", "reference-length") == [
        "reference-length", "sentence-bleu",
    ]  # fmt: skip


def test_difficulty_that_is_not_known(files: Path) -> None:
    found = run(files, "buckets", "one", "-r", "reference", "--difficulty", "levels")
    held = found["buckets"][0]
    assert held["sentences_without"] == 1
    assert [one["bucket"] for one in held["buckets"]] == [
        "< 1", "1–2", "2–3", "3–4", "4–5", "5–6", "≥ 6",
    ]  # fmt: skip
    assert held["sentences"] == [1, 2, 0, 0, 0, 0, 1]


def test_traces_are_texts(files: Path) -> None:
    found = run(files, "lengths", "one", f"traced={files / 'one.jsonl'}", "-r", "reference")
    one, traced = found["lengths"]
    assert one["system"] == "one" and traced["system"] == "traced"
    assert {**one, "system": ""} == {**traced, "system": ""}
    # The tokens: 4 + 6 + 2 + 0 + 1 against 4 + 6 + 2 + 3 + 0.
    assert one["length_ratio"] == pytest.approx(13 / 15)
    assert one["sentences_by_difference"] == {"-3": 1, "0": 3, "1": 1}


def test_compare(files: Path) -> None:
    found = run(
        files, "compare", "one", "two", "-r", "reference", "-s", "source", "--ter",
        "--bootstrap", "30", "--randomisation", "30", "--train", "reference",
    )  # fmt: skip
    told = found["scores"]["systems"][1]
    for name in ("bleu", "chrf", "ter"):
        assert told[name] == pytest.approx(getattr(quality, name)(SECOND, REFERENCE).value)
    assert [(one["test"], one["samples"]) for one in found["tests"]] == [
        ("bootstrap", 30), ("randomisation", 30),
    ]  # fmt: skip
    assert found["word_accuracy"]["frequency_in"] == "training text"
    assert found["examples"][0]["better_second"][0]["line"] in (3, 4)


@pytest.mark.parametrize("name", ["buckets", "lengths", "compare"])
def test_files_at_fault(name: str, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def message(*options: str) -> str:
        return refused(files, capsys, name, *options)

    (files / "empty").write_text("")
    write(files / "short", FIRST[:3])
    write(files / "blank", [""] * len(REFERENCE))
    assert "short:4: it has 3 lines, but" in message("one", "short", "-r", "reference")
    assert "empty" in message("empty", "-r", "reference")
    assert "Two systems are called `one`" in message("one", "one", "-r", "reference")
    assert "is the reference" in message("one", "reference", "-r", "reference")
    assert "no such file" in message("nowhere", "-r", "reference")
    assert "is what" in message("one", "-r", "reference", "--json", "one")
    run(files, name, "blank", "two", "-r", "reference")


def test_sources_at_fault(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(files / "short", SOURCE[:4])
    for name in ("buckets", "compare"):
        arguments = ("one", "-r", "reference", "-s")
        assert "short:5: it has 4 lines" in refused(files, capsys, name, *arguments, "short")
        assert "source and as ref" in refused(files, capsys, name, *arguments, "reference")
        assert "is the source" in refused(
            files, capsys, name, "source", "-r", "reference", "-s", "source"
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--edges", "20,10", "--by", "reference-length"], "must rise, but 10 follows 20"),
        (["--edges", "1,x"], "are no numbers with commas"),
        (["--edges", "1,nan"], "one is nan"),
        (["--by", "length-ratio"], "add `--source FILE`"),
        (["--by", "difficulty"], "`--difficulty FILE`"),
        (["--by", "lenght-ratio"], "Did you mean `length-ratio`?"),
        (["--metric", "blue"], "Did you mean `bleu`?"),
        (["--difficulty", "levels", "--by", "reference-length"], "has no effect"),
        (["--by", "source-length", "--by", "reference-length", "--edges", "1"], "give one `--by`"),
        (["--by", "sentence-bleu", "--metric", "bleu"], "leave out `--metric`"),
        (["--difficulty", "source"], "source:1: `w x y z` is no number"),
    ],
)
def test_buckets_refuse(
    options: list[str], words: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(files, capsys, "buckets", "one", "-r", "reference", *options)


def test_difficulty_of_another_length(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(files / "few", ["1", "2"])
    said = refused(files, capsys, "buckets", "one", "-r", "reference", "--difficulty", "few")
    assert "few:3: it has 2 lines" in said


@pytest.mark.parametrize("name", ["buckets", "compare", "lengths", "difficulty"])
def test_pipes_are_read_but_once(name: str, files: Path) -> None:
    """What `<(command)` names can be had once, whatever several parts of a command make of it."""
    takes_source = name in ("compare", "difficulty")
    plain = run(files, name, "one", "-r", "reference", *(["-s", "source"] * takes_source))
    with ExitStack() as stack:
        pipes = {one: str(stack.enter_context(piped((files / one).read_bytes())))
                 for one in ("reference", "source")}  # fmt: skip
        source = ["-s", pipes["source"]] * takes_source
        assert run(files, name, "one", "-r", pipes["reference"], *source) == plain


def test_tests_need_two_systems(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(files, capsys, "compare", "one", "-r", "reference", "--bootstrap", "10")
    assert "give two or more" in said


def test_help_loads_little() -> None:
    code = (
        "import sys; from nmtgrid.cli.app import main; main(['analyze', 'compare', '--help']); "
        "sys.exit(bool({'torch', 'numpy', 'matplotlib', 'sacrebleu', 'compare_mt'} "
        "& set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
