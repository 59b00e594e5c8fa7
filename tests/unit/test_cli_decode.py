"""`decode` and `analyze alignments` from the command line, on a small model with drawn weights."""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.cli.app import main
from nmtgrid.data.dataset import Dataset, Split
from nmtgrid.metrics.quality import ter
from nmtgrid.models import zoo
from nmtgrid.models.directory import save_model
from nmtgrid.search.traces import read_traces
from nmtgrid.text.bpe import remove_bpe
from tests.unit.pipes import piped


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a toy dataset `data` and a model `model`."""
    folder = tmp_path_factory.mktemp("decode")
    data = folder / "data"
    assert main(["preprocess", "--toy", "60", "--out", str(data)]) == 0
    assert main(["bpe", "learn", str(data), "--merges", "40"]) == 0
    pipeline = Dataset.open(data).pipeline
    for name, seed in (("model", 1), ("other", 2)):
        torch.manual_seed(seed)
        model = zoo.build(
            "pervasive",
            overrides={"depth": 1, "size": 8, "feed_forward_size": 8},
            source_vocab_size=len(pipeline.source_vocabulary),
            target_vocab_size=len(pipeline.target_vocabulary),
        )
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        settings = {"search": {"beam": 2, "max_length_a": 5.0, "max_length_b": 0.5}}
        save_model(folder / name, model, pipeline, settings)
    return folder


@pytest.fixture
def text(home: Path, tmp_path: Path) -> Path:
    lines = Dataset.open(home / "data").split("test").raw_source()[:4]
    path = tmp_path / "in.txt"
    path.write_text("\n".join([lines[0], "", *lines[1:], "  "]) + "\n", encoding="utf-8")
    return path


def decode(home: Path, *arguments: str | Path) -> int:
    return main(["decode", str(home / "model"), *map(str, arguments), "--device", "cpu"])


def refused(capsys: pytest.CaptureFixture[str], home: Path, *arguments: str | Path) -> str:
    """Run what must be refused; return the message."""
    assert decode(home, *arguments) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    return " ".join(message.split())


def test_line_for_line(home: Path, text: Path, tmp_path: Path) -> None:
    assert decode(home, text, "--out", tmp_path / "out.txt", "--json", tmp_path / "r.json") == 0
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").split("\n")
    assert len(lines) == 7 and lines[1] == lines[5] == lines[6] == ""
    assert all(lines[place] for place in (0, 2, 3, 4))
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["sentences"] == 6
    assert report["tokens_per_second"] > 0
    assert report["search"]["beam"] == 2, "the model's own setting"


def test_standard_input_and_output(
    home: Path, text: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: Any
) -> None:
    decode(home, text)
    from_file = capsysbinary.readouterr().out
    held = io.TextIOWrapper(io.BytesIO(text.read_bytes()))
    monkeypatch.setattr(sys, "stdin", held)
    assert decode(home) == 0
    assert capsysbinary.readouterr().out == from_file
    assert from_file.count(b"\n") == 6


def test_a_pipe_is_read_but_once(home: Path, text: Path, capsysbinary: Any) -> None:
    decode(home, text)
    from_file = capsysbinary.readouterr().out
    with piped(text.read_bytes()) as pipe:
        assert decode(home, pipe) == 0
    assert capsysbinary.readouterr().out == from_file
    with piped(b"good\nb\xffd\n") as pipe:
        assert decode(home, pipe) == 2
    assert b":2: not valid UTF-8" in b" ".join(capsysbinary.readouterr().err.split())


def test_compressed_files(home: Path, text: Path, tmp_path: Path) -> None:
    packed = tmp_path / "in.txt.gz"
    packed.write_bytes(gzip.compress(text.read_bytes()))
    decode(home, text, "--out", tmp_path / "a.txt")
    assert decode(home, packed, "--out", tmp_path / "b.txt.gz") == 0
    written = gzip.decompress((tmp_path / "b.txt.gz").read_bytes())
    assert written == (tmp_path / "a.txt").read_bytes()


def test_batches_and_windows_change_nothing(home: Path, text: Path, tmp_path: Path) -> None:
    for beam in ("1", "3"):
        outputs = []
        for tokens in ("1", "60", "4000"):
            out = tmp_path / f"{tokens}.txt"
            decode(home, text, "--out", out, "--beam", beam, "--batch-tokens", tokens)
            outputs.append(out.read_bytes())
        assert outputs[0] == outputs[1] == outputs[2]


def test_nbest(home: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "n.txt"
    assert decode(home, text, "--out", out, "--beam", "4", "--nbest", "3") == 0
    rows = [line.split(" ||| ") for line in out.read_text(encoding="utf-8").splitlines()]
    assert all(len(row) == 4 for row in rows)
    numbers = [int(row[0]) for row in rows]
    assert numbers == sorted(numbers) and set(numbers) == set(range(1, 7))
    assert numbers.count(1) == 3 and numbers.count(2) == 1
    for line in (1, 3):
        scores = [float(row[3]) for row in rows if row[0] == str(line)]
        assert scores == sorted(scores, reverse=True)


def test_traces_and_alignments(home: Path, text: Path, tmp_path: Path) -> None:
    traces, links = tmp_path / "t.jsonl", tmp_path / "a.txt"
    out = tmp_path / "o.txt"
    assert decode(home, text, "--traces", traces, "--alignments", links, "--out", out) == 0
    found = list(read_traces(traces))
    assert [trace.line for trace in found] == list(range(1, 7))
    assert [trace.text for trace in found] == out.read_text(encoding="utf-8").splitlines()
    pharaoh = links.read_text().split("\n")
    assert len(pharaoh) == 7 and pharaoh[1] == ""
    for trace, line in zip(found, pharaoh, strict=False):
        pairs = [tuple(map(int, pair.split("-"))) for pair in line.split()]
        if trace.alignment is None:
            assert not pairs
            continue
        assert abs(trace.alignment.sum(1) - 1).max() < 2e-3
        words = [len(remove_bpe(" ".join(side)).split()) for side in (trace.source, trace.target)]
        assert all(i < words[0] and j < words[1] for i, j in pairs)
        assert sum(trace.log_probabilities) == pytest.approx(trace.log_probability, abs=1e-4)


def test_scores_of_a_split(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "r.json"
    arguments = ("--data", home / "data", "--split", "valid", "--json", report, "--beam", "1")
    assert decode(home, *arguments, "--out", tmp_path / "o.txt") == 0
    found = json.loads(report.read_text())
    names = ("bleu_tokenized", "bleu", "chrf", "seconds", "tokens_per_second", "length_ratio")
    assert all(isinstance(found[name], float) for name in names)
    assert found["signature_bleu"].count("tok:13a") == 1
    assert "tok:none" in found["signature_bleu_tokenized"]
    split = Dataset.open(home / "data").split("valid")
    assert found["sentences"] == len(split)
    # The same text through the file door gives the same translations.
    source = tmp_path / "valid.txt"
    source.write_text("".join(f"{line}\n" for line in split.raw_source()), encoding="utf-8")
    decode(home, source, "--beam", "1", "--out", tmp_path / "p.txt")
    assert (tmp_path / "p.txt").read_bytes() == (tmp_path / "o.txt").read_bytes()
    told = capsys.readouterr().err
    assert "BLEU" in told and "TER" not in told and "ter" not in found, "it is slow"
    assert decode(home, *arguments, "--ter") == 0
    assert "TER, raw text (%)" in capsys.readouterr().err
    found = json.loads(report.read_text())
    wanted = ter((tmp_path / "o.txt").read_text().splitlines(), split.raw_target())
    assert (found["ter"], found["signature_ter"]) == (wanted.value, wanted.signature)


@pytest.mark.parametrize("escaped", [0, 1, 3])
def test_references_that_are_no_raw_text_are_told(
    home: Path,
    tmp_path: Path,
    escaped: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Text that Moses' tokenizer has been through: sacreBLEU cuts `&apos;` into three words."""
    report, count = tmp_path / "r.json", len(Dataset.open(home / "data").split("valid"))
    assert count >= 100, "one line in a hundred is no matter"
    lines = ["it &apos;s a &quot; dog &quot;"] * escaped + ["a cat & a 'dog' ;"] * (count - escaped)
    monkeypatch.setattr(Split, "raw_target", lambda split: lines)
    given = ("--data", home / "data", "--split", "valid", "--json", report, "--beam", "1")
    assert decode(home, *given) == 0
    assert json.loads(report.read_text())["references_escaped"] == escaped
    told = "references hold what Moses" in " ".join(capsys.readouterr().err.split())
    assert told == (escaped > count / 100)


def test_ensemble_of_a_model_with_itself_changes_nothing(
    home: Path, text: Path, tmp_path: Path
) -> None:
    outputs: list[str] = []
    for more in ([], [home / "model"], [home / "other"]):
        out = tmp_path / f"{len(outputs)}.txt"
        options = [part for one in more for part in ("--ensemble", one)]
        assert decode(home, text, "--out", out, *options) == 0
        outputs.append(out.read_text())
    assert outputs[0] == outputs[1] != outputs[2]


def test_sampling_is_seeded(home: Path, text: Path, tmp_path: Path) -> None:
    outputs = []
    for seed in ("1", "1", "2"):
        out = tmp_path / "s.txt"
        assert decode(home, text, "--sample", "--seed", seed, "--out", out) == 0
        outputs.append(out.read_text())
    assert outputs[0] == outputs[1] != outputs[2]


def test_faults_are_told_before_anything_is_written(
    home: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o.txt"
    tell: Callable[..., str] = lambda *arguments: refused(  # noqa: E731
        capsys, home, *arguments, "--out", out
    )
    assert "`search.beam` (`--beam`) must be from 1 to 1,000, but is 0" in tell(text, "--beam", "0")
    assert "(`--nbest`) (9) cannot exceed `search.beam` (`--beam`) (2)" in tell(
        text, "--nbest", "9"
    )
    assert "without a beam" in tell(text, "--sample", "--beam", "3")
    assert "Did you mean `max_length_a`" in tell(text, "--set", "max_lenght_a=3")
    assert "batch_tokens" in tell(text, "--batch-tokens", "0")
    assert "no such file" in tell(tmp_path / "none.txt")
    assert "`--ter` needs references" in tell(text, "--ter")
    assert "not both" in tell(text, "--data", home / "data")
    assert "no split `tset`" in tell("--data", home / "data", "--split", "tset")
    assert "no model directory" in tell(text, "--ensemble", tmp_path / "nowhere")
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"good\nb\xffd\n")
    assert "bad.txt:2: not valid UTF-8" in tell(bad)
    if not torch.cuda.is_available():
        assert main(["decode", str(home / "model"), str(text), "--device", "cuda"]) == 2
        assert "CUDA" in capsys.readouterr().err
    assert not out.exists()
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".part")]


def test_long_lines_are_told(
    home: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o.txt"
    assert decode(home, text, "--max-source", "5", "--out", out) == 0
    message = " ".join(capsys.readouterr().err.split())
    assert "long-line" in message and "line (units) 1 (" in message
    assert len(out.read_text().split("\n")) == 7


def test_analyze_alignments(
    home: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = tmp_path / "t.jsonl"
    decode(home, text, "--traces", traces, "--out", tmp_path / "o.txt")
    report = tmp_path / "r.json"
    command = ["analyze", "alignments", str(traces)]
    assert (
        main([*command, "--out", str(tmp_path / "maps"), "--line", "3", "--json", str(report)]) == 0
    )
    found = json.loads(report.read_text())
    assert found["pictures"] == [str(tmp_path / "maps" / "alignments-line-3.png")]
    assert Path(found["pictures"][0]).stat().st_size > 1000
    (row,) = found["systems"]
    assert row["sentences"] == 4 and 0 < row["coverage"] <= 1 and row["entropy"] > 0
    assert main([*command, "--out", str(tmp_path / "one.svg")]) == 0
    assert (tmp_path / "one.svg").is_file()
    capsys.readouterr()
    for arguments, message in (
        (["--line", "2", "--out", str(tmp_path / "x")], "no aligned line 2"),
        (["--line", "3"], "say where"),
        (["--line", "0", "--out", str(tmp_path / "x")], "counts from 1"),
        (["--out", str(tmp_path / "x.pdf")], ".png or .svg"),
    ):
        assert main([*command, *arguments]) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_help_does_not_import_torch() -> None:
    import subprocess

    code = (
        "import sys; import nmtgrid.cli.decode, nmtgrid.cli.analyze; "
        "sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
