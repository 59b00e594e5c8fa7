"""`decode` and `analyze alignments` from the command line, with a small random model."""

from __future__ import annotations

import gzip
import io
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nmtgrid.cli.app import main
from nmtgrid.cli.decode import run
from nmtgrid.data.dataset import Dataset, Split
from nmtgrid.metrics.quality import ter
from nmtgrid.models.directory import load_model
from nmtgrid.search import engine, long_sources
from nmtgrid.search.api import Hypothesis, VerifiedPass
from nmtgrid.search.traces import read_traces
from nmtgrid.search.translate import TranslationOptions
from nmtgrid.search.verified import DraftLength
from nmtgrid.text.bpe import remove_bpe
from tests.unit.helpers.documented import documented_keys
from tests.unit.helpers.pipes import piped
from tests.unit.helpers.toy_model import TINY_GRID, read_json, toy_model


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, toy_dataset: Path) -> Path:
    folder = tmp_path_factory.mktemp("decode")
    (folder / "data").symlink_to(toy_dataset)
    search = {"beam": 2, "max_length_a": 5.0, "max_length_b": 0.5}
    for name, seed in (("model", 1), ("other", 2)):
        toy_model(folder / name, toy_dataset, seed=seed, std=0.5, search=search)
    settings = TINY_GRID | {"aggregation": "max"}
    toy_model(folder / "energies", toy_dataset, settings=settings, std=0.5)
    settings = {"exits": "tied", "encoder_depth": 1, "decoder_depth": 3, "size": 16, "heads": 2}
    settings |= {"feed_forward_size": 16}
    toy_model(folder / "exits", toy_dataset, "transformer", settings=settings, std=0.5)
    return folder


@pytest.fixture
def text(home: Path, tmp_path: Path) -> Path:
    lines = Dataset.open(home / "data").split("test").raw_source()[:4]
    path = tmp_path / "in.txt"
    path.write_text("\n".join([lines[0], "", *lines[1:], "  "]) + "\n", encoding="utf-8")
    return path


def decode(home: Path, *arguments: str | Path) -> int:
    return main(["decode", str(home / "model"), *map(str, arguments), "--device", "cpu"])


def test_typed_lines_are_answered_one_by_one(home: Path, text: Path) -> None:
    """And no progress bar is drawn over the typed text."""
    keyboard, terminal = os.openpty()
    line = text.read_bytes().split(b"\n")[0] + b"\n"
    command = [sys.executable, "-m", "nmtgrid", "decode", str(home / "model"), "--device", "cpu"]
    with subprocess.Popen(
        command, stdin=terminal, stderr=terminal, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdout is not None
        for _ in range(2):
            os.write(keyboard, line)
            assert process.stdout.readline().strip()
        os.write(keyboard, b"\x04")
        assert process.wait(timeout=60) == 0
    shown = os.read(keyboard, 1 << 16)
    os.close(keyboard)
    os.close(terminal)
    assert b"Ctrl-D ends" in shown and b"translating" not in shown


def test_line_for_line(
    home: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert decode(home, text, "--out", tmp_path / "out.txt", "--json", tmp_path / "r.json") == 0
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").split("\n")
    assert len(lines) == 7 and lines[1] == lines[5] == lines[6] == ""
    assert all(lines[index] for index in (0, 2, 3, 4))
    report = read_json(tmp_path / "r.json")
    assert report["sentences"] == 6 and report["tokens_per_second"] > 0
    assert report["search"]["beam"] == 2, "the model's own setting"
    ran: dict[str, Any] = {"model": str(home / "model"), "ensemble": [], "data": None}
    ran |= {"input": str(text), "weights": "best", "exit": None, "precision": "fp32"}
    ran |= {"speedups": {}, "device": "cpu"}
    assert report.items() >= ran.items() and report.keys() <= documented_keys()
    assert decode(home, text, "--max-source", "5", "--out", tmp_path / "long.txt") == 0
    message = " ".join(capsys.readouterr().err.split())
    assert "long-line" in message and "line (units) 1 (" in message
    assert len((tmp_path / "long.txt").read_text().split("\n")) == 7


def test_pipes(home: Path, text: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: Any) -> None:
    decode(home, text)
    from_file = capsysbinary.readouterr().out
    assert from_file.count(b"\n") == 6
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.read_bytes())))
    assert decode(home) == 0 and capsysbinary.readouterr().out == from_file
    with piped(text.read_bytes()) as pipe, piped(b"good\nb\xffd\n") as bad:
        assert decode(home, pipe) == 0 and capsysbinary.readouterr().out == from_file
        assert decode(home, bad) == 2
    assert b":2: not valid UTF-8" in b" ".join(capsysbinary.readouterr().err.split())


@pytest.mark.parametrize("is_named", [False, True])
def test_piped_lines_are_answered_while_more_is_waited_for(
    home: Path, text: Path, tmp_path: Path, is_named: bool
) -> None:
    first, _, third = text.read_bytes().splitlines(keepends=True)[:3]
    command = [sys.executable, "-m", "nmtgrid", "decode", str(home / "model"), "--device", "cpu"]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    if is_named:
        command.append(str(pipe))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        lines = pipe.open("wb", 0) if is_named else process.stdin
        for line in (first, third, first):
            lines.write(line)
            assert process.stdout.readline().strip()
        lines.close()
        assert process.wait(timeout=60) == 0


def test_an_interruption_leaves_the_lines_that_were_finished(
    home: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out, traces = tmp_path / "out.txt.gz", tmp_path / "t.jsonl"
    command = (text, "--out", out, "--traces", traces)
    monkeypatch.setattr(run, "_options", lambda arguments: TranslationOptions(window=2))
    assert decode(home, *command) == 0
    whole = gzip.decompress(out.read_bytes()), traces.read_bytes()
    search, calls = engine.search, [0]

    def interrupted(*arguments: Any, **options: Any) -> list[list[Hypothesis]]:
        calls[0] += 1
        if calls[0] == 2:
            raise KeyboardInterrupt
        return search(*arguments, **options)

    monkeypatch.setattr(engine, "search", interrupted)
    assert decode(home, *command) == 130
    shown = " ".join(capsys.readouterr().err.split())
    parts = (gzip.decompress(Path(f"{out}.partial").read_bytes()),
             Path(f"{traces}.partial").read_bytes())  # fmt: skip
    for path, old, part in zip((out, traces), whole, parts, strict=True):
        # The first window of two lines; the earlier file is unharmed.
        assert part == b"".join(old.splitlines(keepends=True)[:2])
        assert f"the finished lines are in {path}.partial." in shown
    assert (gzip.decompress(out.read_bytes()), traces.read_bytes()) == whole


def test_empty_inputs_have_empty_translations(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    empty, out = tmp_path / "empty.txt", tmp_path / "out.txt"
    empty.touch()
    for words in ([empty], [empty, "--prefix", empty], []):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        assert decode(home, *words, "--out", out) == 0
        assert out.read_bytes() == b"" and "the input is empty" in capsys.readouterr().err
        out.unlink()
    with_line = tmp_path / "line.txt"
    with_line.write_text("a\n")
    assert decode(home, with_line, "--prefix", empty) == 2
    assert "prefixes for 0 lines" in " ".join(capsys.readouterr().err.split())


def test_lines_too_long_for_an_alignment_are_named(
    home: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    links = tmp_path / "links"
    options = (text, "--max-source", "5", "--alignments", links, "--out", tmp_path / "o.txt")
    assert decode(home, *options) == 0
    assert "no-alignment" not in capsys.readouterr().err
    long = {number for number, line in enumerate(links.read_text().split("\n")) if line}
    monkeypatch.setattr(long_sources, "_LARGEST_ALIGNMENT", 0)
    assert decode(home, *options) == 0
    # Lines in pieces have no alignment; the others are aligned despite the limit.
    shown = " ".join(capsys.readouterr().err.split())
    split = {number for number in long if f"no-alignment: line {number + 1} " in shown}
    lines = links.read_text().split("\n")
    assert 0 in split and all(not lines[number] for number in split)
    assert all(lines[number] for number in long - split)


def test_compressed_files(home: Path, text: Path, tmp_path: Path) -> None:
    packed = tmp_path / "in.txt.gz"
    packed.write_bytes(gzip.compress(text.read_bytes()))
    decode(home, text, "--out", tmp_path / "a.txt")
    assert decode(home, packed, "--out", tmp_path / "b.txt.gz") == 0
    written = gzip.decompress((tmp_path / "b.txt.gz").read_bytes())
    assert written == (tmp_path / "a.txt").read_bytes()


def test_batches_and_windows_change_nothing(home: Path, text: Path, tmp_path: Path) -> None:
    for beam in ("1", "3"):
        outputs = set()
        for tokens in ("1", "60", "4000"):
            decode(home, text, "--out", tmp_path / "o", "--beam", beam, "--batch-tokens", tokens)
            outputs.add((tmp_path / "o").read_bytes())
        assert len(outputs) == 1


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


@pytest.mark.parametrize("penalty", ["0", "2"])
def test_more_hypotheses_of_lines_in_pieces_leave_the_first_as_it_is(
    home: Path, text: Path, tmp_path: Path, penalty: str
) -> None:
    options = ("--beam", "4", "--max-source", "5", "--coverage-penalty", penalty)
    best, several = tmp_path / "1.txt", tmp_path / "3.txt"
    assert decode(home, text, *options, "--out", best) == 0
    assert decode(home, text, *options, "--nbest", "3", "--out", several) == 0
    rows = [line.split(" ||| ") for line in several.read_text(encoding="utf-8").splitlines()]
    first = {row[0]: row[1] for row in reversed(rows)}
    assert [*reversed(first.values())] == best.read_text(encoding="utf-8").splitlines()


def test_the_average_exit_of_verified_exits_counts_all_blocks_that_ran(
    home: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    passes: list[VerifiedPass] = []
    search = engine.search

    def noted(*arguments: Any, **options: Any) -> list[list[Hypothesis]]:
        results = search(*arguments, **options)
        passes.extend(ran for (best,) in results for ran in best.passes or ())
        return results

    monkeypatch.setattr(engine, "search", noted)
    # A random model is not confident enough to draft anything by itself.
    monkeypatch.setattr(DraftLength, "least", -1e9)
    report = tmp_path / "report.json"
    command = ["decode", str(home / "exits"), "--device", "cpu", "--json", str(report)]
    options = ["--exit", "verified", "--beam", "1"]
    # Also lines in pieces.
    inputs = (
        ["--data", str(home / "data"), "--split", "test"],
        [str(text), "--out", str(tmp_path / "o.txt"), "--max-source", "3"],
    )
    for several in inputs:
        passes.clear()
        assert main([*command, *options, *several]) == 0
        # Block 1 drafts, blocks 2 and 3 verify.
        blocks = sum(ran.fed + 2 * ran.verified for ran in passes)
        average = blocks / sum(ran.written for ran in passes)
        assert read_json(report)["average_exit"] == pytest.approx(average) and average > 3
        if "--data" in several:
            assert f"average exit: {average:.2f} blocks per token" in capsys.readouterr().err
    assert main([*command, *inputs[1], "--exit", "2"]) == 0
    assert read_json(report)["average_exit"] == 2


def test_a_stream_of_translated_prefixes_reports_its_exit(
    home: Path, text: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    command = ["decode", str(home / "exits"), str(text), "--device", "cpu", "--stream"]
    command += ["--policy", "local-agreement n=2", "--exit", "2", "--json", str(report)]
    assert main(command) == 0
    assert read_json(report)["average_exit"] == 2


def test_traces_and_alignments(home: Path, text: Path, tmp_path: Path) -> None:
    traces, links = tmp_path / "t.jsonl", tmp_path / "a.txt"
    out = tmp_path / "o.txt"
    assert decode(home, text, "--traces", traces, "--alignments", links, "--out", out) == 0
    decoded = list(read_traces(traces))
    assert [trace.line for trace in decoded] == list(range(1, 7))
    assert [trace.text for trace in decoded] == out.read_text(encoding="utf-8").splitlines()
    pharaoh = links.read_text().split("\n")
    assert len(pharaoh) == 7 and pharaoh[1] == ""
    for trace, line in zip(decoded, pharaoh, strict=False):
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
    values = read_json(report)
    names = ("bleu_tokenized", "bleu", "chrf", "seconds", "tokens_per_second", "length_ratio")
    assert all(isinstance(values[name], float) for name in names)
    assert values["signature_bleu"].count("tok:13a") == 1
    assert "tok:none" in values["signature_bleu_tokenized"]
    split = Dataset.open(home / "data").split("valid")
    assert values["sentences"] == len(split)
    # The same text in a file gives the same translations.
    source = tmp_path / "valid.txt"
    source.write_text("".join(f"{line}\n" for line in split.raw_source()), encoding="utf-8")
    decode(home, source, "--beam", "1", "--out", tmp_path / "p.txt")
    assert (tmp_path / "p.txt").read_bytes() == (tmp_path / "o.txt").read_bytes()
    shown = capsys.readouterr().err
    assert "BLEU" in shown and "TER" not in shown and "ter" not in values, "it is slow"
    assert decode(home, *arguments, "--ter") == 0
    assert "TER, raw text (%)" in capsys.readouterr().err
    values = read_json(report)
    expected = ter((tmp_path / "o.txt").read_text().splitlines(), split.raw_target())
    assert (values["ter"], values["signature_ter"]) == (expected.value, expected.signature)


@pytest.mark.parametrize("escaped", [0, 1, 3])
def test_references_that_are_no_raw_text_are_told(
    home: Path, tmp_path: Path, escaped: int, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Text processed by Moses' tokenizer: sacreBLEU splits `&apos;` into three words."""
    report, count = tmp_path / "r.json", len(Dataset.open(home / "data").split("valid"))
    assert count >= 100, "one line in a hundred is no matter"
    lines = ["it &apos;s a &quot; dog &quot;"] * escaped + ["a cat & a 'dog' ;"] * (count - escaped)
    monkeypatch.setattr(Split, "raw_target", lambda split: lines)
    options = ("--data", home / "data", "--split", "valid", "--json", report, "--beam", "1")
    assert decode(home, *options) == 0
    assert read_json(report)["references_escaped"] == escaped
    is_warned = "references contain escapes of Moses" in " ".join(capsys.readouterr().err.split())
    assert is_warned == (escaped > count / 100)


@pytest.mark.parametrize(
    ("first", "same", "other"),
    [
        ("", "--ensemble {}/model", "--ensemble {}/other"),
        ("--sample --seed 1", "--sample --seed 1", "--sample --seed 2"),
    ],
)
def test_ensembles_and_seeds_decide(
    home: Path, text: Path, tmp_path: Path, first: str, same: str, other: str
) -> None:
    outputs, out = [], tmp_path / "out.txt"
    for options in (first, same, other):
        assert decode(home, text, "--out", out, *options.format(home).split()) == 0
        outputs.append(out.read_text())
    assert outputs[0] == outputs[1] != outputs[2]


def test_faults_are_told_before_anything_is_written(
    home: Path, text: Path, tmp_path: Path, refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out, bad = tmp_path / "o.txt", tmp_path / "bad.txt"
    bad.write_bytes(b"good\nb\xffd\n")
    cases: list[tuple[str, list[str | Path]]] = [
        ("`search.beam` (`--beam`) must be from 1 to 1,000, but is 0", [text, "--beam", "0"]),
        ("(`--nbest`) (9) cannot exceed `search.beam` (`--beam`) (2)", [text, "--nbest", "9"]),
        ("without a beam", [text, "--sample", "--beam", "3"]),
        ("`--set sample=true`: use `--sample`", [text, "--set", "sample=true", "--beam", "1"]),
        ("`--set sample=true`: use `--sample`", [text, "--set", "search.sample = True"]),
        ("`--length-penalty` must be a finite number", [text, "--length-penalty", "nan"]),
        ("`--coverage-penalty` must be a finite number", [text, "--coverage-penalty", "inf"]),
        ("`--set length_offset` must be a finite", [text, "--set", "length_offset=Infinity"]),
        ("Did you mean `max_length_a`", [text, "--set", "max_lenght_a=3"]),
        ("batch_tokens", [text, "--batch-tokens", "0"]),
        ("no such file", [tmp_path / "none.txt"]),
        ("`--ter` needs references", [text, "--ter"]),
        ("not both", [text, "--data", home / "data"]),
        ("no split `tset`", ["--data", home / "data", "--split", "tset"]),
        ("no model directory", [text, "--ensemble", tmp_path / "nowhere"]),
        ("bad.txt:2: not valid UTF-8", [bad]),
        ("CUDA", [text, "--device", "cuda"]),
    ]
    for words, arguments in cases:
        device = [] if "--device" in arguments else ["--device", "cpu"]
        assert words in refused("decode", home / "model", *arguments, *device, "--out", out)
    assert not out.exists()
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".part")]


def test_maps(home: Path, text: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    traces, maps, report = tmp_path / "t.jsonl", tmp_path / "maps", tmp_path / "r.json"
    decode(home, text, "--traces", traces, "--out", tmp_path / "o.txt")
    command = ["analyze", "alignments", str(traces)]
    assert main([*command, "--out", str(maps), "--line", "3", "--json", str(report)]) == 0
    values = read_json(report)
    assert values["pictures"] == [str(maps / "alignments-line-3.png")]
    assert Path(values["pictures"][0]).stat().st_size > 1000
    (row,) = values["systems"]
    assert row["sentences"] == 4 and 0 < row["coverage"] <= 1 and row["entropy"] > 0
    assert main([*command, "--out", str(tmp_path / "one.svg")]) == 0
    assert (tmp_path / "one.svg").is_file()
    for options, message in (
        (["--line", "2", "--out", tmp_path / "x"], "no aligned line 2"),
        (["--line", "3"], "say where"),
        (["--line", "0", "--out", tmp_path / "x"], "counts from 1"),
        (["--out", tmp_path / "x.pdf"], ".png or .svg"),
    ):
        assert message in refused(*command, *options)


def force(home: Path, *arguments: str) -> int:
    options = ["--data", str(home / "data"), "--split", "valid", "--device", "cpu", "--forced"]
    return main(["decode", str(home / "energies"), *options, *arguments])


def test_perplexity_and_scores_of_the_references(home: Path, tmp_path: Path) -> None:
    """Compared with decoding steps, one sentence after the other."""
    traces, report = tmp_path / "t.jsonl", tmp_path / "r.json"
    assert force(home, "--traces", str(traces), "--json", str(report), "--batch-tokens", "70") == 0
    loaded = load_model(home / "energies")
    split = Dataset.open(home / "data").split("valid")
    total, tokens = 0.0, 0
    for index, trace in enumerate(read_traces(traces)):
        source = torch.tensor([[*split.source(index), 2]])
        state = loaded.model.begin(source, torch.tensor([source.shape[1]]))
        written, scores, rows = 1, [], []
        for token in [*split.target(index), 2]:
            with torch.no_grad():
                step = loaded.model.step(torch.tensor([written]), state, align=True)
            state, written = step.state, token
            assert step.alignment is not None
            scores.append(float(step.logits.log_softmax(-1)[0, token]))
            rows.append(step.alignment[0].tolist())
        assert trace.alignment is not None
        np.testing.assert_allclose(trace.log_probabilities, scores, atol=1e-4)
        np.testing.assert_allclose(trace.alignment, rows, atol=1e-4)
        assert trace.line == index + 1 and trace.text == split.raw_target()[index]
        total, tokens = total + sum(scores), tokens + len(scores)
    values = read_json(report)
    assert values["sentences"] == len(split) and values["target_tokens"] == tokens
    assert values["perplexity"] == pytest.approx(math.exp(-total / tokens), rel=1e-4)


def test_energies_are_drawn_and_measured(home: Path, tmp_path: Path) -> None:
    traces, picture, report = tmp_path / "e.jsonl", tmp_path / "e.png", tmp_path / "r.json"
    assert force(home, "--energies", "--traces", str(traces)) == 0
    records = list(read_traces(traces))
    assert {trace.kind for trace in records} == {"energies"}
    assert any((trace.alignment < 0).any() for trace in records if trace.alignment is not None)
    arguments = ["--out", str(picture), "--json", str(report)]
    assert main(["analyze", "alignments", str(traces), *arguments]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    values = read_json(report)["systems"][0]
    assert values["kind"] == "energies"
    # The entropy of the shares over the longest source: from 0 to that of uniform shares.
    longest = max(len(trace.source) + 1 for trace in records)
    assert 0 <= values["entropy"] <= math.log(longest)


def test_forced_decoding_that_makes_no_sense(home: Path, refused: Callable[..., str]) -> None:
    model = home / "model"
    assert "name a dataset with `--data`" in refused("decode", model, "--forced", "--energies")
    assert "add `--forced`" in refused("decode", model, "--energies")
    split = ["decode", model, "--data", home / "data"]
    message = refused(*split, "--forced", "--energies", "--json", "-")
    assert "add `--traces FILE` or `--alignments FILE`" in message
    for words in (("--nbest", "2"), ("--set", "nbest=2")):
        message = refused(*split, "--beam", "3", *words, "--traces", "t")
        assert "`--nbest 2` has no effect with `--data`" in message
        assert "add `--out FILE`" in message
    forced = ["decode", model, "--data", home / "data", "--device", "cpu", "--forced"]
    assert "translates nothing" in refused(*forced, "--nbest", "2")
    in_vain = [
        "--beam 5", "--length-penalty 2", "--coverage-penalty 1", "--replace-unknown",
        "--max-source 3", "--long-lines cut", "--set min_length=2", "--sample", "--out x",
    ]  # fmt: skip
    message = refused(*forced, *" ".join(in_vain).split())
    for option in in_vain:
        assert f"`{option.split()[0]}` has no effect with `--forced`" in message
