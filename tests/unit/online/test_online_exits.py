"""Early exits online: `online-eval --exit` and `decode --stream --exit`, on drawn weights."""

import io
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nmtgrid.adaptive.exit_presets import ExitPreset, save_exits
from nmtgrid.analysis.latency import read_online_results as read
from nmtgrid.cli.app import main
from nmtgrid.cli.online_eval import files
from nmtgrid.data.dataset import Dataset
from nmtgrid.models.directory import load_model
from nmtgrid.search.traces import read_traces
from tests.unit.helpers.tiny_online import toy_home

MODELS = {
    "geometric": {"exits": "tied", "halting": "geometric"},
    "sequence": {"exits": "tied", "halting": "sequence"},
    "plain": {},
    "tied": {"exits": "tied"},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a toy dataset and Transformers of three blocks, one without exits."""
    deep = {name: ("transformer", {"decoder_depth": 3, **MODELS[name]}) for name in MODELS}
    folder = toy_home(tmp_path_factory.mktemp("exits"), deep)
    tuned = ExitPreset("sure", "confidence", (0.2, 0.3), "valid", None, None)
    save_exits(folder / "geometric", load_model(folder / "geometric").model, [tuned])
    return folder


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(home)
    monkeypatch.setattr(files, "SUFFIXES", ())  # no pictures: they take most of the time
    return home


def online(model: str, out: Path, *arguments: str) -> Any:
    command = ["online-eval", model, "--data", "data", "--sentences", "6", "--k", "2"]
    assert main([*command, "--out", str(out), *arguments, "--device", "cpu"]) == 0
    return json.loads((out / "results.json").read_text())


def stream(monkeypatch: pytest.MonkeyPatch, text: str, *arguments: str) -> int:
    raw = SimpleNamespace(buffer=io.BytesIO(text.encode()), isatty=bool)
    monkeypatch.setattr(sys, "stdin", raw)
    return main(["decode", *arguments, "--stream", "--device", "cpu"])


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments, "--device", "cpu"]) == 2
    return " ".join(capsys.readouterr().err.split())


def test_the_last_exit_is_none(here: Path, tmp_path: Path) -> None:
    whole = online("geometric", tmp_path / "whole")
    last = online("geometric", tmp_path / "last", "--exit", "3")
    texts = [(tmp_path / name / "k-2.txt").read_text() for name in ("whole", "last")]
    assert texts[0] == texts[1] and texts[0].strip()
    rows = whole["settings"][0], last["settings"][0]
    assert rows[0]["al"] == rows[1]["al"] and rows[0]["bleu"] == rows[1]["bleu"]
    assert "average_exit" not in rows[0] and rows[1]["average_exit"] == 3
    assert (whole["exit"], last["exit"]) == (None, "3")


def test_the_average_is_that_of_the_traces(here: Path, tmp_path: Path) -> None:
    row = online("geometric", tmp_path, "--exit", "sure")["settings"][0]
    traces = list(read_traces(tmp_path / "k-2.traces.jsonl"))
    exits = [exit for trace in traces for exit in trace.exits or ()]
    assert row["average_exit"] == pytest.approx(sum(exits) / len(exits))
    assert 1 in exits and 3 in exits
    for trace in traces:
        for exit, scores in zip(trace.exits or (), trace.exit_scores or (), strict=True):
            # The first block whose largest probability exceeds its threshold, Eq. (5.18).
            pairs = enumerate(zip(scores, (0.2, 0.3), strict=False), 1)
            above = [n for n, (sure, least) in pairs if sure is not None and sure > least]
            assert exit == (above[0] if above else 3)


@pytest.mark.parametrize("choice", ["1", "auto", "sure"])
def test_streamed_is_searched(
    here: Path, tmp_path: Path, choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = online("geometric", tmp_path, "--exit", choice)["settings"][0]
    lines = "".join(f"{line}\n" for line in Dataset.open("data").split("test").raw_source()[:6])
    report, written = tmp_path / "r.json", tmp_path / "t.jsonl"
    options = ("geometric", "--k", "2", "--exit", choice)
    code = stream(monkeypatch, lines, *options, "--traces", str(written), "--json", str(report))
    assert code == 0
    searched = list(read_traces(tmp_path / "k-2.traces.jsonl"))
    streamed = list(read_traces(written))
    assert [trace.target for trace in streamed] == [trace.target for trace in searched]
    assert [trace.reads for trace in streamed] == [trace.reads or None for trace in searched]
    assert [trace.exits for trace in streamed] == [trace.exits for trace in searched]
    assert {trace.num_exits for trace in [*streamed, *searched]} == {3}
    assert json.loads(report.read_text())["average_exit"] == pytest.approx(row["average_exit"])


def test_policies_that_translate_prefixes_report_their_exit(here: Path, tmp_path: Path) -> None:
    command = ["online-eval", "tied", "--data", "data", "--sentences", "6", "--device", "cpu"]
    command += ["--policy", "local-agreement n=2", "--policy", "re-translation stride=2"]
    assert main([*command, "--exit", "2", "--out", str(tmp_path / "out")]) == 0
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["settings"]
    assert [row["average_exit"] for row in rows] == [2] * len(rows)


def test_exits_and_waiting_share_one_budget_of_seconds(here: Path, tmp_path: Path) -> None:
    """Against the clock too a token leaves at its exit, and what is written is the same."""
    batched = online("geometric", tmp_path / "batched", "--exit", "1")["settings"][0]
    clocked = online("geometric", tmp_path / "clocked", "--exit", "1", "--clock")["settings"][0]
    assert clocked["average_exit"] == 1 and clocked["bleu"] == batched["bleu"]
    assert clocked["al"] == batched["al"]
    aware = clocked["computation_aware"]
    assert clocked["seconds_per_token"] > 0
    named = [f"exit{n}={tmp_path / 'clocked'}" for n in (1, 2)]
    curve = tmp_path / "curve.json"
    assert main(["analyze", "latency", *named, "--metric", "ca-laal", "--json", str(curve)]) == 0
    assert json.loads(curve.read_text())["metric"] == "ca-laal"
    results = [result for name in ("batched", "clocked") for result in read(tmp_path / name)[0]]
    lags = [result.latency("ca-al", "word", "simuleval") for result in results]
    assert math.isnan(lags[0]) and lags[1] == aware["al"]
    assert main(["analyze", "latency", str(tmp_path / "batched"), "--metric", "ca-al"]) == 2


def test_pieces_of_a_long_line_keep_their_exits(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = " ".join(Dataset.open("data").split("test").raw_source()[:3])
    written = tmp_path / "t.jsonl"
    options = ("geometric", "--k", "1", "--exit", "sure", "--max-source", "6")
    assert stream(monkeypatch, line, *options, "--traces", str(written)) == 0
    (trace,) = read_traces(written)
    assert trace.exits is not None and len(trace.exits) == len(trace.target) + 1


def test_what_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = ("online-eval", "--data", "data", "--sentences", "2")
    message = refused(capsys, *ours, "sequence", "--exit", "auto", "--k", "1,inf")
    assert "chosen from the whole source" in message and "Decode offline" in message
    assert main([*ours, "sequence", "--exit", "auto", "--k", "inf", "--device", "cpu"]) == 0
    capsys.readouterr()
    for arguments, words in (
        ((*ours, "plain", "--exit", "1"), "has one exit, after its last block"),
        ((*ours, "geometric", "--exit", "4"), "the decoder has 3 blocks"),
        ((*ours, "geometric", "--exit", "quick"), "no settings of early exit named `quick`"),
        (("online-eval", "--log", "data", "--exit", "1"), "`--exit`, `--device` would be ignored"),
    ):
        assert words in refused(capsys, *arguments)
    for model, choice, words in (
        ("sequence", "auto", "chosen from the whole source"),
        ("plain", "1", "has one exit"),
    ):
        assert stream(monkeypatch, "a b\n", model, "--k", "1", "--exit", choice) == 2
        assert words in " ".join(capsys.readouterr().err.split())
