"""The commands preprocess and bpe, from the command line to their files."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmtgrid.cli.app import main
from nmtgrid.data.dataset import Dataset
from tests.unit.helpers.damage import contents
from tests.unit.helpers.documented import documented_keys


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    for name, count in (("train", 50), ("valid", 3), ("test", 2)):
        for language, word in (("de", "Hund"), ("en", "dog")):
            lines = "".join(f"Ein {word} {n}.\n" for n in range(count))
            (tmp_path / f"{name}.{language}").write_text(lines)
    return tmp_path


def _command(texts: Path) -> list[str]:
    sides = ["--source-lang", "de", "--target-lang", "en"]
    return ["preprocess", *sides, "--train", f"{texts}/train", "--out", f"{texts}/data"]


def _preprocess(texts: Path, *more: str) -> int:
    return main([*_command(texts), *more])


def test_preprocess_and_learn_write_their_reports(texts: Path) -> None:
    more = ["--valid", f"{texts}/valid", "--test", f"{texts}/test", "--test", f"wmt={texts}/valid"]
    assert _preprocess(texts, *more, "--json", f"{texts}/p.json") == 0
    report: dict[str, Any] = json.loads((texts / "p.json").read_text())
    assert report.keys() | report["splits"]["train"].keys() <= documented_keys()
    for name, count in (("train", 50), ("valid", 3), ("test", 2), ("wmt", 3)):
        split = report["splits"][name]
        assert split["pairs_read"] == split["pairs_kept"] == count
        assert set(split["dropped"].values()) == {0} and name not in report
    learn = ["bpe", "learn", f"{texts}/data", "--merges", "5", "--json", f"{texts}/b.json"]
    assert main(learn) == 0
    report = json.loads((texts / "b.json").read_text())
    assert report.keys() | report["splits"]["train"].keys() <= documented_keys()
    dataset = Dataset.open(texts / "data")
    assert report["source_vocab_size"] == len(dataset.pipeline.source_vocabulary)
    assert report["target_vocab_size"] == len(dataset.pipeline.target_vocabulary)
    for name in ("train", "valid", "test", "wmt"):
        lengths = report["splits"][name]["source_lengths"]
        assert set(lengths) == {"p5", "p50", "p95", "total"}
        assert lengths["total"] == int(dataset.split(name).source_lengths.sum())
    assert len(dataset.pipeline.source.codes or ()) == 5


def test_text_of_training_in_another_split_is_told(texts: Path, messages: list[str]) -> None:
    assert _preprocess(texts, "--valid", f"{texts}/valid", "--test", f"{texts}/test") == 0
    assert not any("both in" in line for line in messages)
    here = ["--valid", f"{texts}/../{texts.name}/train", "--test", f"new={texts}/train"]
    assert _preprocess(texts, *here, "--overwrite") == 0
    warnings = [line for line in messages if "both in" in line]
    assert len(warnings) == 2 and "`valid`" in warnings[0] and "`new`" in warnings[1]


def test_types_too_rare_for_a_vocabulary(texts: Path, messages: list[str]) -> None:
    """The message names `--min-count` and the language, not a vocabulary, as none is given."""
    (texts / "train.en").write_text("".join(f"A {n}.\n" for n in range(100, 150)))
    (texts / "train.de").write_text("".join(f"Ein{n} Hund{n} Tier{n}\n" for n in range(50)))
    assert _preprocess(texts, "--valid", f"{texts}/valid", "--max-ratio", "9") == 0
    learn = ["bpe", "learn", f"{texts}/data", "--words", "--min-count", "2"]
    assert main(learn) != 0
    assert "in the training text in de." in messages[-1]
    assert main([*learn, "--joint-vocabulary"]) == 0
    assert [line for line in messages if "source units" in line] == [
        "100 % of the source units of `train` are unknown, because they occur fewer than 2 times: "
        "give a smaller `--min-count`."
    ]


def test_the_tables_are_shown(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (texts / "train.de").write_bytes((texts / "train.de").read_bytes().replace(b"\n", b"\r\n"))
    assert _preprocess(texts, "--valid-every", "5") == 0
    shown = capsys.readouterr().err
    assert "10 kept pairs were moved to valid" in shown
    assert _preprocess(texts, "--valid-every", "500", "--overwrite") != 0
    refusal = capsys.readouterr().err
    assert refusal.lower().count("give a smaller number") == 1
    assert "train.de: removed carriage returns at the ends of 50 lines" in shown


def test_the_next_command_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option, words in (("--toy", []), ("--toy-pictures", ["--words"])):
        data = str(tmp_path / option)
        learn = ["bpe", "learn", data, *words]
        assert main(["preprocess", option, "20", "--out", data]) == 0
        assert f"`nmtgrid {' '.join(learn)}` " in " ".join(capsys.readouterr().err.split())
        assert main(learn) == 0
        trains = f"`nmtgrid train {data} --arch ARCH --out MODEL` trains a model on it."
        assert trains in " ".join(capsys.readouterr().err.split())


def test_swapped_languages_are_noticed(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one split only: if all splits are swapped alike, it cannot be detected."""
    (texts / "test.de").write_text("x y z x y z\nz y x\n")
    assert _preprocess(texts, "--valid", f"{texts}/valid", "--test", f"{texts}/test") == 0
    assert main(["bpe", "learn", f"{texts}/data", "--merges", "5"]) == 0
    (warning,) = re.findall("warning: (.*)", capsys.readouterr().err)
    assert warning.startswith("100 % of the source units of `test` are unknown")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--test train=x", "cannot be named `train`"),
        ("--max-ratio 0.5", "--max-ratio"),
        ("--toy 10", "leave `--train` out"),
        ("--tokenize mozes", "mozes"),
        ("--test none", "none.de"),
    ],
)
def test_faults(texts: Path, more: str, words: str, refused: Callable[..., str]) -> None:
    assert words in refused(*_command(texts), *more.split())
    assert not (texts / "data").exists()


def test_an_existing_folder_needs_overwrite(texts: Path, refused: Callable[..., str]) -> None:
    message = refused("preprocess", "--out", texts / "data")
    assert all(name in message for name in ("--source-lang", "--target-lang", "--train"))
    assert _preprocess(texts) == 0 and "--overwrite" in refused(*_command(texts))
    assert _preprocess(texts, "--overwrite", "--lowercase", "--workers", "2") == 0
    assert (texts / "data/text/train.de").read_text().startswith("ein hund 0 .\n")
    for options in (["--merges", "5"], ["--joint"], ["--separate"]):
        assert "no effect" in refused("bpe", "learn", texts / "data", "--words", *options)


def test_the_toy_corpus(tmp_path: Path) -> None:
    out = str(tmp_path / "toy")
    toy = ["preprocess", "--toy", "200", "--toy-difficulty", "2", "--toy-seed", "7", "--out", out]
    assert main(toy) == 0
    assert main(["bpe", "learn", out, "--words", "--min-count", "2"]) == 0
    dataset = Dataset.open(out)
    assert dataset.names == ["train", "valid", "test"]
    assert dataset.manifest["toy"] == {"pairs": 200, "seed": 7, "difficulty": 2}
    assert (dataset.pipeline.facts.source_lang, dataset.pipeline.facts.target_lang) == ("qa", "qb")


def test_other_vocabularies_are_told(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _preprocess(texts) == 0
    learn = ["bpe", "learn", f"{texts}/data", "--merges"]
    for merges, is_warned in (("5", False), ("5", False), ("3", True)):
        capsys.readouterr()
        assert main([*learn, merges, "--overwrite"]) == 0
        shown = " ".join(capsys.readouterr().err.split())
        assert ("had other vocabularies" in shown) == is_warned
    before = contents(texts / "data")
    assert main([*learn, "2"]) == 2 and contents(texts / "data") == before
    assert "has vocabularies already. Replace them with `--overwrite`" in " ".join(
        capsys.readouterr().err.split()
    )


def _filter(project: Path, text: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "nmtgrid", "bpe", *arguments],
        input=text, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": str(project)},
    )  # fmt: skip


def test_apply_and_undo_are_filters(project: Path, tmp_path: Path) -> None:
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\nh u\n")
    text = "ein hund\n\nüber hunde".encode()
    applied = _filter(project, text, "apply", str(codes))
    assert applied.stdout.decode() == ("e@@ i@@ n hu@@ n@@ d\n\nü@@ b@@ e@@ r hu@@ n@@ d@@ e\n")
    assert _filter(project, applied.stdout, "undo").stdout == text + b"\n"
    bad = _filter(project, b"a\n\xff\n", "undo")
    assert bad.returncode == 2 and b"-:2: not valid UTF-8" in bad.stderr
    assert _filter(project, b"", "undo").stdout == b""


@pytest.mark.parametrize(
    ("method", "line", "written"),
    [("apply", b"hun\n", b"hu@@ n\n"), ("undo", b"hu@@ n\n", b"hun\n")],
)
def test_filters_write_each_line_at_once(
    project: Path, tmp_path: Path, method: str, line: bytes, written: bytes
) -> None:
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\nh u\n")
    words = [method, *([str(codes)] if method == "apply" else [])]
    # Otherwise Python itself would work without buffers.
    environment = {n: value for n, value in os.environ.items() if n != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [sys.executable, "-m", "nmtgrid", "bpe", *words], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, env={**environment, "PYTHONPATH": str(project)},
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(line)
        process.stdin.flush()
        came, _, _ = select.select([process.stdout], [], [], 60)
        process.stdin.close()
        assert came and process.stdout.readline() == written


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("nmtgrid.text.bpe, nmtgrid.text.cleaning, nmtgrid.base.io.workers", {"torch"}),
        ("nmtgrid.cli.options", {"torch", "numpy"}),
    ],
)
def test_filters_load_nothing_heavy(project: Path, modules: str, heavy: set[str]) -> None:
    run = subprocess.run(
        [sys.executable, "-c", f"import sys, {modules}; print({heavy} & set(sys.modules))"],
        capture_output=True, check=True, env={**os.environ, "PYTHONPATH": str(project)},
    )  # fmt: skip
    assert run.stdout.strip() == b"set()"


def test_quiet_commands_only_warn(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = str(tmp_path / "data")
    assert main(["preprocess", "--toy", "20", "--out", data, "--quiet", "--json", "-"]) == 0
    shown = capfd.readouterr()
    assert json.loads(shown.out)["splits"]["train"]["pairs_kept"] == 20 and shown.err == ""
    # There are fewer merges than requested: a warning, but no table of lengths.
    assert main(["--quiet", "bpe", "learn", data, "--merges", "9999"]) == 0
    shown = capfd.readouterr()
    assert shown.out == "" and shown.err.startswith("warning: only ") and "split" not in shown.err
    assert main(["bpe", "learn", data, "--quiet"]) == 2
    assert capfd.readouterr().err.startswith("error: The dataset")
    assert main(["bpe", "learn", data, "--overwrite"]) == 0
    assert "Lengths in units" in capfd.readouterr().err
