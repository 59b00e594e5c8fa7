"""Commands with options that cannot be: files, devices, searches, pipes; told before any work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.base.devices import find_device
from nmtgrid.base.errors import ConfigError, DeviceError, InputError
from nmtgrid.cli.app import main
from nmtgrid.cli.options import check_outputs, write_report
from nmtgrid.data.dataset import Dataset
from nmtgrid.models import zoo
from nmtgrid.models.directory import save_model
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.traces import read_traces

SHORT = ["--set", "max_length_a=4", "--set", "max_length_b=0.2"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a toy dataset `data`, a model `model` of it and a text `text`."""
    folder = tmp_path_factory.mktemp("bad")
    assert main(["preprocess", "--toy", "60", "--out", str(folder / "data")]) == 0
    assert main(["bpe", "learn", str(folder / "data"), "--merges", "40"]) == 0
    dataset = Dataset.open(folder / "data")
    pipeline = dataset.pipeline
    torch.manual_seed(1)
    model = zoo.build(
        "pervasive",
        overrides={"depth": 1, "size": 8, "feed_forward_size": 8},
        source_vocab_size=len(pipeline.source_vocabulary),
        target_vocab_size=len(pipeline.target_vocabulary),
    )
    save_model(folder / "model", model, pipeline, {})
    lines = dataset.split("test").raw_source()
    (folder / "text").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Run what must be refused; return the message."""
    assert main(list(map(str, arguments))) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message and message.startswith("error: ")
    return " ".join(message.split())


def test_outputs_are_asked_for_at_once(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("x")
    (tmp_path / "link").symlink_to(text)
    new = tmp_path / "new"
    check_outputs({"--out": new, "--json": Path("-"), "--traces": None}, {"INPUT": Path("-")})
    check_outputs({"--out": Path("/dev/null"), "--json": Path("/dev/null")}, {"INPUT": text})
    wrong: list[tuple[dict[str, Path | None], str]] = [
        ({"--out": tmp_path}, "is a folder"),
        ({"--out": Path("")}, "is a folder"),
        ({"--out": tmp_path / "none/x"}, "there is no folder"),
        ({"--out": text / "x"}, "there is no folder"),
        ({"--out": new, "--json": new}, "`--json .*/new` is what `--out` names"),
        ({"--out": Path("-"), "--json": Path("-")}, "`--json -` is what `--out` names"),
        ({"--out": text}, "is what `INPUT` names"),
        ({"--out": tmp_path / "link"}, "is what `INPUT` names"),
    ]
    for outputs, words in wrong:
        with pytest.raises(ConfigError, match=words):
            check_outputs(outputs, {"INPUT": text})
    with pytest.raises(ConfigError) as caught:
        check_outputs({"--out": tmp_path, "--json": tmp_path / "none/x"})
    assert len(caught.value.faults) == 2
    assert text.read_text() == "x"


def test_a_report_goes_into_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_report(pipe, {"a": 1})
    assert json.loads(os.read(reader, 99)) == {"a": 1}
    os.close(reader)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto").type == find_device("cpu").type == "cpu"
    for name, words in (("cuda", "no CUDA"), ("cuda:1", "no CUDA"), ("tpu", "no device `tpu`"),
                        ("meta", "no device"), ("cpu:3", "only 0")):  # fmt: skip
        with pytest.raises(DeviceError, match=words) as caught:
            find_device(name)
        assert caught.value.advice
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    # Of a GPU fp32 is asked, not TF32: torch allows it for convolutions and LSTMs.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert find_device("auto").type == find_device("cuda:1").type == "cuda"
    assert current == [torch.device("cuda:1")] and not torch.backends.cudnn.allow_tf32
    with pytest.raises(DeviceError, match="only 2"):
        find_device("cuda:2")


@pytest.mark.parametrize(
    "setting",
    ["length_penalty", "length_offset", "coverage_penalty", "temperature", "top_p",
     "max_length_a", "max_length_b"],
)  # fmt: skip
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_searches_take_finite_numbers(setting: str, value: float) -> None:
    changes: dict[str, Any] = {setting: value}
    (fault,) = SearchPlan(**changes).faults()
    assert fault.startswith(f"`search.{setting}`")


def test_searches_have_bounds() -> None:
    assert SearchPlan(beam=1000).faults() == []
    assert "`search.beam` (`--beam`)" in SearchPlan(beam=100_000).faults()[0]
    assert "`search.seed` (`--seed`)" in SearchPlan(sample=True, seed=-1).faults()[0]
    assert "`search.seed` (`--seed`)" in SearchPlan(sample=True, seed=2**63).faults()[0]
    for name in ("max_length_a", "max_length_b", "min_length"):
        # Whole numbers of 64 bits end somewhere, and a search should end before.
        plan: dict[str, Any] = {name: 10**9}
        assert "from 0 to 1,000,000" in SearchPlan(**plan).faults()[0]
    # A width that is no width is told once, not as too many hypotheses as well.
    assert len(SearchPlan(beam=0).faults()) == 1


DECODE = {
    "split without data": (["{home}/text", "--split", "test"], "`--split` belongs to `--data`"),
    "temperature": (["{home}/text", "--temperature", "0.5"], "no effect without `--sample`"),
    "top k": (["{home}/text", "--top-k", "5", "--top-p", "0.5"], "`--top-p` has no effect"),
    "seed": (["{home}/text", "--seed", "2"], "`--seed` has no effect without `--sample`"),
    "json": (["{home}/text", "--json", "none/x.json"], "there is no folder none"),
    "json and text": (["{home}/text", "--json", "-"], "is what `--out` names"),
    "one file": (["{home}/text", "--traces", "x", "--alignments", "x"], "`--traces` names"),
    "the input": (["{home}/text", "--out", "{home}/text"], "is what `INPUT` names"),
}


@pytest.mark.parametrize("name", DECODE)
def test_decoding_that_is_refused_at_once(
    home: Path, name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    before = (home / "text").read_bytes()
    options, words = DECODE[name]
    given = [option.replace("{home}", str(home)) for option in options]
    assert words in refused(capsys, "decode", tmp_path / "no model yet", *given)
    assert list(tmp_path.iterdir()) == [] and (home / "text").read_bytes() == before


def test_forced_ids_are_the_models(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    assert main(["preprocess", "--toy", "60", "--out", str(other)]) == 0
    assert main(["bpe", "learn", str(other), "--merges", "30"]) == 0
    capsys.readouterr()
    message = refused(capsys, "decode", home / "model", "--data", other, "--forced")
    assert "source vocabularies" in message and "differ" in message


def test_notes_are_told_where_there_is_something(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    line = (home / "text").read_text(encoding="utf-8").split("\n")[0]
    text.write_text(f"\ufeff{line}\r\n{line}é\u2028{line}\n{line}\n", encoding="utf-8", newline="")
    out = tmp_path / "out"
    assert main(["decode", str(home / "model"), str(text), "--out", str(out), *SHORT]) == 0
    told = capsys.readouterr().err
    assert told.count("note:") == 3 and "1 lines ended with a carriage return" in told
    assert out.read_bytes().count(b"\n") == 3


@pytest.mark.parametrize("more", [[], ["--traces", "traces.jsonl"]], ids=["text", "and traces"])
def test_a_reader_that_goes_away_is_no_fault(
    project: Path, home: Path, tmp_path: Path, more: list[str]
) -> None:
    many = tmp_path / "many"
    many.write_bytes((home / "text").read_bytes() * 3)
    command = [sys.executable, "-m", "nmtgrid", "decode", str(home / "model"), str(many)]
    run = subprocess.Popen(
        [*command, "--device", "cpu", *SHORT, *more], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(project), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert run.stdout is not None and run.stderr is not None
    run.stdout.close()
    told = run.stderr.read()
    assert (run.wait(), told) == (1, b"")
    assert [path.name for path in tmp_path.iterdir()] == ["many"]


def test_text_is_not_changed_in_its_place(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    text.write_text("a@@ b\n")
    message = refused(capsys, "bpe", "undo", "--input", text, "--out", text)
    assert "is what `--input` names" in message and text.read_text() == "a@@ b\n"
    assert "nmtgrid bpe undo --help" in refused(capsys, "bpe", "undo", "--no-such-option")


def test_units_that_contradict_themselves(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, codes = home / "data", home / "data/bpe.codes"
    learn = ["bpe", "learn", str(data), "--codes", str(codes)]
    assert "is given twice" in refused(capsys, *learn, "--codes", codes, "--joint")
    vocabulary = data / "vocab.qa.txt"
    message = refused(capsys, *learn, "--joint-vocabulary", "--vocab-source", vocabulary)
    assert "leave `--vocab-source`" in message
    assert "`--toy N`" in refused(
        capsys, "preprocess", "--source-lang", "de", "--target-lang", "en", "--train", "x",
        "--toy-seed", "1", "--toy-difficulty", "2", "--out", home / "new",
    )  # fmt: skip


@pytest.mark.parametrize("text", ["[" * 100_000, f'{{"line": {"9" * 5000}}}'])
def test_traces_that_no_reader_takes(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.jsonl").write_text(text + "\n")
    with pytest.raises(InputError, match="not a trace") as caught:
        list(read_traces(tmp_path / "t.jsonl"))
    assert caught.value.line == 1


def test_pictures_do_not_replace_each_other(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / name / "t.jsonl" for name in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        command = ["decode", str(home / "model"), str(home / "text"), "--traces", str(path)]
        assert main([*command, "--out", "/dev/null", *SHORT]) == 0
    capsys.readouterr()
    analyze: list[str | Path] = ["analyze", "alignments", *paths]
    # Files of one name have their folders' names, and stand side by side in one picture.
    assert main([*map(str, analyze), "--json", str(tmp_path / "r.json")]) == 0
    capsys.readouterr()
    held = json.loads((tmp_path / "r.json").read_text())["systems"]
    assert [one["system"] for one in held] == ["a/t", "b/t"]
    assert "Two systems are called" in refused(
        capsys, *analyze[:3], paths[0], "--out", tmp_path / "maps"
    )
    assert "is a file" in refused(capsys, *analyze[:3], "--out", home / "text")
    assert "cannot be made" in refused(capsys, *analyze[:3], "--out", home / "text/x.png")
    assert not (tmp_path / "maps").exists() and Path("/dev/null").is_char_device()


def test_torchs_want_of_memory_is_no_fault_of_ours(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8")

    monkeypatch.setattr("nmtgrid.models.directory.load_weights", refuse)
    assert "memory of this machine" in refused(capsys, "decode", home / "model", home / "text")


def test_names_that_are_no_text(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file's name is any bytes; so are the labels of a trace, by JSON's escapes."""
    name = os.fsdecode(b"b\xffd.jsonl")
    command = ["decode", str(home / "model"), str(home / "text"), "--out", "/dev/null", *SHORT]
    assert main([*command, "--traces", str(tmp_path / name)]) == 0
    lines = (tmp_path / name).read_text(encoding="utf-8").split("\n")
    first = json.loads(lines[0])
    del first["check"]
    first["source"][0], first["target"][0] = "\udcff", "中" * 100_000
    (tmp_path / name).write_text("\n".join([json.dumps(first), *lines[1:]]), encoding="utf-8")
    report, picture = tmp_path / "report.json", tmp_path / "map.png"
    analyze = ["analyze", "alignments", str(tmp_path / name), "--line", "1"]
    assert main([*analyze, "--out", str(picture), "--json", str(report)]) == 0
    assert json.loads(report.read_text())["systems"][0]["traces"] == str(tmp_path / name)
    assert picture.stat().st_size < 1_000_000
    assert "Glyph" not in capsys.readouterr().err
