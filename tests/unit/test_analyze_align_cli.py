"""`analyze align`, `difficulty` and `paths` from the command line, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nmtgrid.cli.app import main
from nmtgrid.search.traces import Trace
from tests.unit.aligned_corpus import corpus


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `source`, `target`, the known links `gold`, a translation and traces."""
    folder = tmp_path_factory.mktemp("align")
    source, target, links = corpus(200)
    (folder / "source").write_text("".join(f"{' '.join(words)}\n" for words in source))
    (folder / "target").write_text("".join(f"{' '.join(words)}\n" for words in target))
    (folder / "gold").write_text(
        "".join(" ".join(f"{s}-{t}" for s, t in one) + "\n" for one in links)
    )
    (folder / "outside").write_text("0-0\n" * 199 + "0-0 999-0\n")
    (folder / "short").write_text("0-0\n" * 199)
    (folder / "empty").write_text("")
    for name, step in (("slow", 3), ("fast", 1)):
        rows = []
        for line, (x, y) in enumerate(zip(source[:20], target[:20], strict=True), start=1):
            reads = [min(len(x) + 1, step + place) for place in range(len(y) + 1)]
            numbers = [-1.0] * (len(y) + 1)
            rows.append(Trace(line, x, y, " ".join(y), numbers, -1.0, -1.0, reads=reads).to_line())
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def told(home: Path, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a command that must fail for its input, and return what it says."""
    capsys.readouterr()
    assert main(["analyze", *map(str, arguments)]) == 2
    return " ".join(capsys.readouterr().err.split())


def test_align_writes_links_and_an_error_rate(home: Path, tmp_path: Path) -> None:
    out, report = tmp_path / "links", tmp_path / "r.json"
    command = ["analyze", "align", str(home / "source"), str(home / "target"), "--out", str(out)]
    assert main([*command, "--gold", str(home / "gold"), "--json", str(report)]) == 0
    found = json.loads(report.read_text())
    assert found["aer"] < 0.2 and found["pairs"] == 200
    lines = out.read_text().split("\n")
    assert len(lines) == 201 and sum(len(line.split()) for line in lines) == found["links"]
    # The same text, the same links.
    assert main([*command[:-1], str(tmp_path / "again")]) == 0
    assert (tmp_path / "again").read_bytes() == out.read_bytes()


def test_difficulty_from_known_links(home: Path, tmp_path: Path) -> None:
    report, numbers = tmp_path / "r.json", tmp_path / "d"
    command = [
        "analyze", "difficulty", "-s", str(home / "source"), "-r", str(home / "target"),
        "--alignments", str(home / "gold"), "--difficulty-out", str(numbers),
        "--alignments-out", str(tmp_path / "links"), "--out", str(tmp_path), "--json", str(report),
        f"copy={home / 'target'}.copy",
    ]  # fmt: skip
    (home / "target.copy").write_bytes((home / "target").read_bytes())
    assert main(command) == 0
    assert (tmp_path / "links").read_bytes() == (home / "gold").read_bytes()
    values = [float(line) for line in numbers.read_text().split()]
    found = json.loads(report.read_text())
    assert found["difficulty"]["mean"] == pytest.approx(sum(values) / 200, abs=1e-4)
    assert len(found["pictures"]) == 2
    scored = found["buckets"][0]["systems"][0]["sentence_bleu"]
    assert all(value == pytest.approx(100.0) for value in scored if value is not None)


def test_paths_of_two_systems(home: Path, tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    command = ["analyze", "paths", str(home / "slow.jsonl"), f"quick={home / 'fast.jsonl'}",
               "--train", str(home / "source"), str(home / "target"), "--line", "3",
               "--out", str(tmp_path / "p.svg"), "--json", str(report), "--words",
               "--reference", str(home / "target")]  # fmt: skip
    assert main(command) == 0
    slow, quick = json.loads(report.read_text())["systems"]
    assert (slow["system"], quick["system"]) == ("slow", "quick")
    assert slow["al"] > quick["al"] and slow["mean_delay"] > quick["mean_delay"]
    assert slow["anticipation_percent"] < quick["anticipation_percent"]
    assert (tmp_path / "p.svg").is_file()


def test_bad_input_of_align_and_difficulty(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = home / "source", home / "target"
    texts = ("-s", source, "-r", target)
    for command, message in (
        (("align", source, source), "both sides"),
        (("align", source, home / "short"), "short:200: it has 199 lines"),
        (("align", source, home / "empty"), "empty"),
        (("align", source, target, "--gold", home / "outside"), "the link `999-0` points outside"),
        (("align", source, target, "--out", source), "give another file"),
        (("difficulty", *texts, "--alignments", home / "outside"), "outside:200: the link `999-0`"),
        (("difficulty", *texts, "--alignments", home / "short"), "short:200: it has 199 lines"),
        (("difficulty", *texts, "--alignments", home / "empty"), "the file is empty"),
        (("difficulty", *texts, "--alignments", target), "is not a link"),
        (("difficulty", *texts, "--alignments", home / "gold", "--train", source, target),
         "`--train` has no effect"),
        (("difficulty", *texts, "--edges", "3,1"), "must rise"),
        (("difficulty", *texts, "--edges", "a"), "are no numbers"),
        (("difficulty", *texts, home / "short"), "lines"),
        (("difficulty", *texts, "--difficulty-out", home / "no" / "d"), "there is no folder"),
    ):  # fmt: skip
        assert message in told(home, capsys, *command)


def test_bad_input_of_paths(home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    slow, fast = home / "slow.jsonl", home / "fast.jsonl"
    short = tmp_path / "short.jsonl"
    short.write_text("\n".join(fast.read_text().split("\n")[:9]) + "\n")
    for command, message in (
        ((slow, short), "short.jsonl: it has 9 lines"),
        ((slow, fast, "--alignments", home / "gold"), "There are 2 systems, but 1 files"),
        ((slow, "--alignments", home / "gold"), "it has 200 lines, but there are 20"),
        ((slow, "--attention"), "There is no alignment in the traces"),
        ((slow, "--attention", "--alignments", home / "gold"), "exclude each other"),
        ((slow, "--line", "3"), "say where"),
        ((slow, "--line", "99", "--out", tmp_path), "no line 99"),
        ((slow, slow), "Two systems are called `slow`"),
        ((home / "source",), "this is not a trace"),
    ):
        assert message in told(home, capsys, "paths", *command)
