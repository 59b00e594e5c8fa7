"""Commands with invalid options: files, devices, searches, pipes, codes, links."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from nmtgrid.base.devices import find_device
from nmtgrid.base.errors import ConfigError, DeviceError, InputError
from nmtgrid.cli.app import main
from nmtgrid.cli.options import check_outputs, write_report
from nmtgrid.data.dataset import Dataset
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.traces import read_traces
from tests.unit.helpers.bars import recorded_bars
from tests.unit.helpers.toy_model import toy_model
from tests.unit.helpers.train_command import toy_data

SIZES = ("size", "feed_forward_size")
SHORT = ["--set", "max_length_a=4", "--set", "max_length_b=0.2"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, toy_dataset: Path) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    (folder / "data").symlink_to(toy_dataset)
    toy_model(folder / "model", toy_dataset)
    lines = Dataset.open(toy_dataset).split("test").raw_source()
    (folder / "text").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def test_outputs_are_asked_for_at_once(tmp_path: Path) -> None:
    text, link, new = (tmp_path / name for name in ("text", "link", "new"))
    text.write_text("x")
    link.symlink_to(text)
    check_outputs({"--out": new, "--json": Path("-"), "--traces": None}, {"INPUT": Path("-")})
    check_outputs({"--out": Path("/dev/null"), "--json": Path("/dev/null")}, {"INPUT": text})
    refused_outputs: list[tuple[dict[str, Path | None], str]] = [
        ({"--out": tmp_path}, "is a folder"),
        ({"--out": Path("")}, "is a folder"),
        ({"--out": tmp_path / "none/x"}, "there is no folder"),
        ({"--out": text / "x"}, "there is no folder"),
        ({"--out": new, "--json": new}, "`--json .*/new` is also the file of `--out`"),
        (
            {"--out": Path("-"), "--json": Path("-")},
            "`--json -`: standard output already takes what `--out` writes",
        ),
        ({"--out": text}, "is also the file of `INPUT`"),
        ({"--out": link}, "is also the file of `INPUT`"),
    ]
    for outputs, words in refused_outputs:
        with pytest.raises(ConfigError, match=words):
            check_outputs(outputs, {"INPUT": text})
    with pytest.raises(ConfigError) as caught:
        check_outputs({"--out": tmp_path, "--json": tmp_path / "none/x"})
    assert len(caught.value.faults) == 2 and text.read_text() == "x"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_report(pipe, {"a": 1})
    assert json.loads(os.read(reader, 99)) == {"a": 1}
    os.close(reader)


def test_files_of_models_and_datasets_are_not_replaced(tmp_path: Path) -> None:
    model, data = tmp_path / "model", tmp_path / "data"
    (data / "text").mkdir(parents=True)
    model.mkdir()
    (model / "config.json").write_text("{}")
    (data / "manifest.json").write_text("{}")
    (data / "text" / "train.de").write_text("x")
    link = tmp_path / "link"
    link.symlink_to(model / "last.safetensors")
    for path, words in (
        (model / "config.json", f"`--out {model}/config.json` would damage the model directory"),
        (model / "best.safetensors", "would damage the model directory"),
        (model / "vocab.de.txt", "would damage the model directory"),
        (model / "README.md", "would damage the model directory"),
        (link, f"would damage the model directory {model}: give another file."),
        (data / "manifest.json", f"would damage the dataset {data}: give another file."),
        (data / "bpe.de.codes", "would damage the dataset"),
        (data / "text" / "train.de", f"would damage the dataset {data}: give another file."),
    ):
        with pytest.raises(ConfigError) as caught:
            check_outputs({"--out": path})
        assert len(caught.value.faults) == 1 and words in caught.value.faults[0]
    # Translations and reports may be in the same folder; in other folders the names are free.
    check_outputs({"--out": model / "test.en", "--json": model / "test.json"})
    check_outputs({"--out": data / "text" / "test.hyp", "--json": tmp_path / "config.json"})


def test_no_file_of_a_run_or_a_dataset_is_replaced(toy_dataset: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    settings = ["training.validate_updates=1", *(f"model.{size}=16" for size in SIZES)]
    options = [part for setting in settings for part in ("--set", setting)]
    run = ["train", str(toy_dataset), "--arch", "transformer", "--preset", "toy", "--average", "2"]
    assert main([*run, "--out", str(model), "--max-updates", "2", *options]) == 0
    files = [path for folder in (model, toy_dataset) for path in folder.rglob("*.*")]
    assert {"training.json", "average.safetensors", "train.safetensors"} <= {
        path.name for path in files
    }
    for path in files:
        with pytest.raises(ConfigError, match="would damage the"):
            check_outputs({"--out": path})


REPLACED = {
    "codes": "bpe apply kept --input text --out kept",
    "codes of a dataset": "bpe learn no-data --codes kept --json kept",
    "vocabulary": "bpe learn no-data --vocab-target kept --json kept",
    "pieces": "bpe learn no-data --model kept --json kept",
    "settings": "decode no-model text --config kept --json kept",
    "settings of a stream": "decode no-model --stream --k 1 --config kept --json kept",
    "settings of an evaluation": "online-eval no-model --data d --config kept --json kept",
    "settings of a tuning": "adaptive-tune no-model --data d --config kept --json kept",
    "settings of a training": "train --config kept --dump-config kept",
    "text": "preprocess --source-lang de --target-lang en --train p --out d --json p.en.gz",
    "captions": "preprocess --captions kept --features f --out d --json kept",
    "a checkpoint": "import-fairseq kept --dict-source a --dict-target b --out m --json kept",
    "a dictionary": "import-fairseq c --dict-source a --dict-target kept --out m --json kept",
    "a model of transformers": "import-marian opus --out m --json opus/vocab.json",
    "results": "analyze latency results --json results/results.json",
}


@pytest.mark.parametrize("name", REPLACED)
def test_no_output_replaces_an_input(
    name: str, tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("opus", "results"):
        (tmp_path / folder).mkdir()
    for file in ("kept", "text", "p.de.gz", "p.en.gz", "opus/vocab.json", "results/results.json"):
        (tmp_path / file).write_text("")
    message = refused(*REPLACED[name].split())
    assert "is also the file of `" in message and "give another file" in message
    assert not any(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_is_left_out_of_text_is_said(
    workers: str, tmp_path: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("codes").write_text("#version: 0.2\na b</w>\n")
    Path("text").write_bytes("\ufeffab ba\r\nab\r\n".encode())
    said = [
        "note: text: removed a byte-order mark.",
        "note: text: removed carriage returns at the ends of 2 lines.",
    ]
    command = ["bpe", "apply", "codes", "--input", "text", "--out", "units", "--workers", workers]
    assert main(command) == 0
    assert Path("units").read_text() == "ab b@@ a\nab\n"
    assert sorted(line for line in messages if line.startswith("note")) == said
    messages.clear()
    assert main(["bpe", "undo", "--input", "text", "--out", "words"]) == 0
    assert Path("words").read_text() == "ab ba\nab\n"
    assert sorted(line for line in messages if line.startswith("note")) == said


def test_progress_is_that_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Three MiB; the progress is shown after each one.
    Path("units").write_bytes((b"a" * 1023 + b"\n") * 3072)
    bars = recorded_bars(monkeypatch)
    assert main(["bpe", "undo", "--input", "units", "--out", "words"]) == 0
    (bar,) = bars
    assert (bar.description, bar.total, bar.done) == ("MiB", 3, 3)
    bars.clear()
    assert main(["bpe", "undo", "--input", "units"]) == 0
    assert bars == []


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto").type == find_device("cpu").type == "cpu"
    for name, words in (("cuda", "no CUDA"), ("cuda:1", "no CUDA"), ("tpu", "no device `tpu`"),
                        ("meta", "no device"), ("cpu:3", "no device `cpu:3`")):  # fmt: skip
        with pytest.raises(DeviceError, match=words) as caught:
            find_device(name)
        assert caught.value.advice
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    # A GPU must compute in fp32, not TF32, which torch allows for convolutions and LSTMs.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert find_device("auto").type == find_device("cuda:1").type == "cuda"
    assert current == [torch.device("cuda:1")] and not torch.backends.cudnn.allow_tf32
    with pytest.raises(DeviceError, match="only 2"):
        find_device("cuda:2")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_searches_take_finite_numbers(value: float) -> None:
    names = "length_penalty length_offset coverage_penalty temperature top_p max_length_a"
    for name in (*names.split(), "max_length_b"):
        changes: dict[str, Any] = {name: value}
        (fault,) = SearchPlan(**changes).faults()
        assert fault.startswith(f"`search.{name}`")


def test_searches_have_bounds() -> None:
    assert SearchPlan(beam=1000).faults() == []
    assert "`search.beam` (`--beam`)" in SearchPlan(beam=100_000).faults()[0]
    for seed in (-1, 2**63):
        assert "`search.seed` (`--seed`)" in SearchPlan(sample=True, seed=seed).faults()[0]
    for name in ("max_length_a", "max_length_b", "min_length"):
        # The limit is far below the largest 64-bit integer.
        settings: dict[str, Any] = {name: 10**9}
        assert "from 0 to 1,000,000" in SearchPlan(**settings).faults()[0]
    # An invalid beam size is reported once, not also as too many hypotheses.
    assert len(SearchPlan(beam=0).faults()) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--split test", "`--split` belongs to `--data`"),
        ("--temperature 0.5", "no effect without `--sample`"),
        ("--top-k 5 --top-p 0.5", "`--top-p` has no effect"),
        ("--seed 2", "`--seed` has no effect without `--sample`"),
        ("--json none/x.json", "there is no folder none"),
        ("--json -", "standard output already takes what `--out` writes"),
        ("--traces x --alignments x", "the file of `--traces`"),
        ("--out {home}/text", "is also the file of `INPUT`"),
    ],
)
def test_decoding_that_is_refused_at_once(
    home: Path, options: str, words: str, refused: Callable[..., str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    before = (home / "text").read_bytes()
    decode = ("decode", tmp_path / "no model yet", home / "text")
    assert words in refused(*decode, *options.format(home=home).split())
    assert list(tmp_path.iterdir()) == [] and (home / "text").read_bytes() == before


def test_forced_ids_are_the_models(home: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    other = toy_data(tmp_path / "other", "--joint-vocabulary")
    message = refused("decode", home / "model", "--data", other, "--forced")
    assert "source vocabularies" in message and "differ" in message


def test_notes_are_told_where_there_is_something(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    line = (home / "text").read_text(encoding="utf-8").split("\n")[0]
    text.write_text(f"\ufeff{line}\r\n{line}é\u2028{line}\n{line}\n", encoding="utf-8", newline="")
    out = tmp_path / "out"
    assert main(["decode", str(home / "model"), str(text), "--out", str(out), *SHORT]) == 0
    notes = capsys.readouterr().err
    assert notes.count("note:") == 3 and "removed carriage returns" in notes
    assert out.read_bytes().count(b"\n") == 3


@pytest.mark.parametrize("more", [[], ["--traces", "traces.jsonl"]], ids=["text", "and traces"])
def test_a_reader_may_go_away(project: Path, home: Path, tmp_path: Path, more: list[str]) -> None:
    many = tmp_path / "many"
    many.write_bytes((home / "text").read_bytes() * 3)
    command = [sys.executable, "-m", "nmtgrid", "decode", str(home / "model"), str(many)]
    process = subprocess.Popen(
        [*command, "--device", "cpu", *SHORT, *more], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(project), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    assert (process.wait(), errors) == (1, b"")
    assert [path.name for path in tmp_path.iterdir()] == ["many"]


def test_text_is_not_changed_in_its_place(tmp_path: Path, refused: Callable[..., str]) -> None:
    text = tmp_path / "text"
    text.write_text("a@@ b\n")
    message = refused("bpe", "undo", "--input", text, "--out", text)
    assert "is also the file of `--input`" in message and text.read_text() == "a@@ b\n"
    assert "nmtgrid bpe undo --help" in refused("bpe", "undo", "--no-such-option")
    message = refused("decode", tmp_path, "--precision", "fp16")
    assert "'fp16' is not one of" in message and "Value error" not in message


def test_units_that_contradict_themselves(home: Path, refused: Callable[..., str]) -> None:
    data, codes = home / "data", home / "data/bpe.codes"
    learn = ["bpe", "learn", data, "--codes", codes]
    assert "is given twice" in refused(*learn, "--codes", codes, "--joint")
    vocabulary = ["--vocab-source", data / "vocab.qa.txt"]
    assert "leave out `--vocab-source`" in refused(*learn, "--joint-vocabulary", *vocabulary)
    languages = ["--source-lang", "de", "--target-lang", "en"]
    toy = ["--train", "x", "--toy-seed", "1", "--toy-difficulty", "2", "--out", home / "new"]
    assert "`--toy N`" in refused("preprocess", *languages, *toy)


@pytest.mark.parametrize("text", ["[" * 100_000, f'{{"line": {"9" * 5000}}}'])
def test_traces_that_no_reader_takes(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.jsonl").write_text(text + "\n")
    with pytest.raises(InputError, match="not a trace") as caught:
        list(read_traces(tmp_path / "t.jsonl"))
    assert caught.value.line == 1


def test_pictures_of_one_name(home: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    paths = [tmp_path / name / "t.jsonl" for name in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        command = ["decode", str(home / "model"), str(home / "text"), "--traces", str(path)]
        assert main([*command, "--out", "/dev/null", *SHORT]) == 0
    analyze = ["analyze", "alignments", *map(str, paths)]
    # Files with the same name are named after their folders, and share a figure.
    assert main([*analyze, "--json", str(tmp_path / "r.json")]) == 0
    systems = json.loads((tmp_path / "r.json").read_text())["systems"]
    assert [system["system"] for system in systems] == ["a/t", "b/t"]
    alone, maps = analyze[:3], tmp_path / "maps"
    assert "Two systems have the name" in refused(*alone, paths[0], "--out", maps)
    assert "is a file" in refused(*alone, "--out", home / "text")
    assert "is a model directory" in refused(*alone, "--out", home / "model")
    assert "cannot be created" in refused(*alone, "--out", home / "text/x.png")
    assert not maps.exists() and Path("/dev/null").is_char_device()


def test_torchs_want_of_memory_is_no_fault_of_ours(
    home: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8"
    load = Mock(side_effect=RuntimeError(words))
    monkeypatch.setattr("nmtgrid.models.directory.load_weights", load)
    assert "memory of this machine" in refused("decode", home / "model", home / "text")


def test_names_of_bytes(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file name may be any bytes; so may the labels of a trace, with JSON's escapes."""
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


def run(*arguments: object) -> int:
    return main(list(map(str, arguments)))


def prepared(folder: Path, *options: str) -> Path:
    for name, lines in (("train", 9), ("test", 2)):
        for language in ("de", "en"):
            (folder / f"{name}.{language}").write_text("Ab, cd.\n" * lines, encoding="utf-8")
    data = folder / f"data{'-'.join(['', *options]).replace('--', '')}"
    named = ["--train", folder / "train", "--test", folder / "test", "--out", data]
    assert run("preprocess", "--source-lang", "de", "--target-lang", "en", *named, *options) == 0
    assert run("bpe", "learn", data, "--words") == 0
    return data


@pytest.mark.parametrize("is_there", [True, False])
def test_a_dataset_behind_a_link(tmp_path: Path, messages: list[str], is_there: bool) -> None:
    """Data folders are often links to a larger disk."""
    real, link = tmp_path / "scratch" / "real", tmp_path / "data"
    real.parent.mkdir()
    if is_there:
        real.mkdir()
    link.symlink_to(real)
    for options in ([], ["--overwrite"]):
        assert run("preprocess", "--toy", 5, "--out", link, *options) == 0
        assert link.is_symlink() and json.loads((real / "manifest.json").read_text())
    assert sorted(os.listdir(tmp_path)) == ["data", "scratch"]
    assert os.listdir(real.parent) == ["real"]


def test_counts_without_effect(tmp_path: Path, messages: list[str]) -> None:
    data = prepared(tmp_path)
    vocabularies = []
    for language, side in (("de", "--vocab-source"), ("en", "--vocab-target")):
        (tmp_path / language).write_bytes((data / f"vocab.{language}.txt").read_bytes())
        vocabularies += [side, tmp_path / language]
    learn = ["bpe", "learn", data, "--words", "--overwrite", "--min-count", 2]
    for options, code in ((vocabularies, 2), (vocabularies[:2], 0)):
        assert run(*learn, *options) == code
        assert ("`--min-count` has no effect" in messages[-1]) == (code == 2)
    assert run("preprocess", "--toy", 30, "--valid-every", 10, "--out", tmp_path / "d") == 2
    assert "leave out `--valid-every`" in messages[-1]


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, Path]:
    data, settings = prepared(tmp_path), {"encoder_depth": 1, "decoder_depth": 1, "size": 8}
    search = {"beam": 2, "max_length_b": 3.0}
    return toy_model(tmp_path / "model", data, "bilstm", settings, search=search), data


@pytest.mark.parametrize(
    ("options", "words"),
    [((), None), (("--tokenize", "none"), "tokenize=none"), (("--lowercase",), "lowercase=True")],
)
def test_scores_of_text_that_was_prepared_in_another_way(
    model: tuple[Path, Path], tmp_path: Path, messages: list[str], options: tuple[str, ...],
    words: str | None,
) -> None:  # fmt: skip
    data = prepared(tmp_path, *options) if options else model[1]
    del messages[:]
    assert run("decode", model[0], "--data", data, "--device", "cpu") == 0
    warned = [line for line in messages if "differently prepared" in line]
    assert len(warned) == (words is not None)
    assert words is None or words in warned[0]


def test_one_setting_twice(model: tuple[Path, Path], tmp_path: Path, messages: list[str]) -> None:
    source: Any = tmp_path / "test.de"
    both = ["--beam", 2, "--set", "beam=3"]
    assert run("decode", model[0], source, "--device", "cpu", *both) == 2
    assert "`--set beam` and `--beam` set the same value" in messages[-1]
