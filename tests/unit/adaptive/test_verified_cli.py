"""Verified exits from the command line, and what `adaptive-tune` says of rows that others beat."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from nmtgrid.adaptive.exit_presets import ExitPreset, verified_of
from nmtgrid.adaptive.halting import FixedExit, Thresholds
from nmtgrid.adaptive.measure import System
from nmtgrid.adaptive.tune import Budgets, Choice, Finalist, Records, beats, cost
from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.adaptive_tune.output import Report, Row, find_better, print_verdict
from nmtgrid.cli.adaptive_tune.run import _best, _Tuning
from nmtgrid.cli.app import main
from nmtgrid.models.api import Verified
from nmtgrid.search import engine
from nmtgrid.search.api import Hypothesis
from nmtgrid.search.traces import read_traces
from nmtgrid.search.verified import DraftLength, VerifiedSearch
from tests.unit.helpers.tiny_online import toy_home


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a toy dataset and Transformers of three blocks, one without exits."""
    kinds: dict[str, dict[str, Any]] = {"exits": {"exits": "tied"}, "plain": {}}
    deep = {name: ("transformer", {"decoder_depth": 3, **kinds[name]}) for name in kinds}
    return toy_home(tmp_path_factory.mktemp("verified"), deep)


def decoded(home: Path, out: Path, *options: str) -> list[str]:
    command = ["decode", str(home / "exits"), "--data", str(home / "data"), "--beam", "1"]
    assert main([*command, "--out", str(out), "--device", "cpu", *options]) == 0
    return out.read_text().splitlines()


def test_decode_writes_the_same(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = decoded(home, tmp_path / "full.txt", "--traces", str(tmp_path / "full.jsonl"))
    choice, traces = "verified exit=2 drafts=3", tmp_path / "verified.jsonl"
    assert decoded(home, tmp_path / "v.txt", "--exit", choice, "--traces", str(traces)) == full
    pairs = list(zip(read_traces(traces), read_traces(tmp_path / "full.jsonl"), strict=True))
    assert {exit for trace, _ in pairs for exit in trace.exits or ()} <= {2, 3}
    assert all(trace.target == other.target for trace, other in pairs)
    alignments = [(trace.alignment, other.alignment) for trace, other in pairs]
    for ours, theirs in alignments:
        assert ours is not None and theirs is not None
        assert ours == pytest.approx(theirs, abs=2e-4)
    assert all(trace.verified and not other.verified for trace, other in pairs if trace.target)

    def is_explained(path: Path) -> bool:
        """Return whether `analyze exits` says that its averages are not of the blocks that ran."""
        capsys.readouterr()
        assert main(["analyze", "exits", f"mine={path}"]) == 0
        said = " ".join(capsys.readouterr().err.split())
        return "`mine`: with verified exits these averages show how many drafts" in said

    decoded(home, tmp_path / "e.txt", "--exit", "2", "--traces", str(tmp_path / "e.jsonl"))
    assert is_explained(traces) and not is_explained(tmp_path / "e.jsonl")


def test_local_agreement_writes_the_same(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each source prefix is translated as a sentence of its own, by drafts or by all blocks."""
    searches: list[int] = []

    class Counted(VerifiedSearch):
        def run(self) -> None:
            searches.append(len(self.sentence))
            super().run()

    monkeypatch.setattr(engine, "VerifiedSearch", Counted)
    # A model with drawn weights is not confident enough to draft anything by itself.
    monkeypatch.setattr(DraftLength, "least", -1e9)
    texts, counts = [], []
    for name, options in (("full", ()), ("verified", ("--exit", "verified"))):
        command = ["online-eval", str(home / "exits"), "--data", str(home / "data"), "--beam", "1"]
        more = ["--sentences", "3", "--policy", "local-agreement n=2"]
        more += ["--out", str(tmp_path / name)]
        assert main([*command, *more, *options, "--device", "cpu"]) == 0
        texts.append([file.read_text() for file in sorted((tmp_path / name).glob("*.txt"))])
        counts.append(len(searches))
    assert texts[0] == texts[1] and any(text.strip() for text in texts[0])
    assert counts[0] == 0 < counts[1]


@pytest.mark.parametrize("policy", ["local-agreement n=2", "hold-n n=1", "re-translation"])
def test_policies_that_translate_prefixes_report_all_blocks_that_ran(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    hypotheses: list[Hypothesis] = []
    search = engine.search

    def noted(*arguments: Any, **options: Any) -> list[list[Hypothesis]]:
        results = search(*arguments, **options)
        hypotheses.extend(best for (best,) in results)
        return results

    monkeypatch.setattr(engine, "search", noted)
    monkeypatch.setattr(DraftLength, "least", -1e9)
    model, out = str(home / "exits"), tmp_path / "out.json"
    options = ["--policy", policy, "--exit", "verified", "--json", str(out), "--device", "cpu"]
    data = ["--data", str(home / "data"), "--sentences", "3"]
    commands = [["online-eval", model, *data, "--beam", "1"]]
    if policy != "re-translation":  # it has no stream
        text = tmp_path / "text"
        text.write_text("ba da ba\nda ba\n")
        commands.append(["decode", model, str(text), "--stream", "--beam", "1"])
    for command in commands:
        hypotheses.clear()
        assert main([*command, *options]) == 0
        report = json.loads(out.read_text())
        ran = [counts for best in hypotheses for counts in best.passes or ()]
        # Three blocks: the exit's for what it is fed, and the other two for what is verified.
        blocks = sum(counts.fed + 2 * counts.verified for counts in ran)
        average = report.get("settings", [report])[0]["average_exit"]
        assert average == blocks / sum(counts.written for counts in ran)
        assert len(hypotheses) > 3


def test_traces_of_online_evaluations_say_that_exits_are_verified(
    home: Path, tmp_path: Path
) -> None:
    model, data, out = str(home / "exits"), ["--data", str(home / "data")], tmp_path / "out"
    options = ["--k", "inf", "--sentences", "2", "--beam", "1", "--out", str(out)]
    for choice, expected in (("verified", True), ("1", False)):
        assert main(["online-eval", model, *data, *options, "--exit", choice]) == 0
        (path,) = out.rglob("*.jsonl")
        assert [trace.verified for trace in read_traces(path)] == [expected] * 2
        shutil.rmtree(out)


def test_what_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exits, plain, data = str(home / "exits"), str(home / "plain"), str(home / "data")
    verified = ("--exit", "verified")
    for arguments, words in (
        (("decode", exits, *verified, "--beam", "4"), "the beam size is 4"),
        (("decode", exits, *verified, "--sample"), "samples cannot be verified"),
        (
            ("decode", exits, *verified, "--coverage-penalty", "0.2"),
            "do not support `search.coverage_penalty`",
        ),
        (("decode", exits, *verified, "--ensemble", exits), "--ensemble"),
        (("decode", plain, *verified), "has one exit"),
        (("decode", exits, "--exit", "verified exit=3"), "from 1 to 2, not 3"),
        (("decode", exits, "--exit", "verified drafts=0"), "`drafts` of verified exits must be"),
        (("decode", exits, "--exit", "verified wide=3 exit"), "takes exit, drafts, types, not"),
        (("decode", exits, "--exit", "verified exit=1 exit=2"), "`exit` twice"),
        (("decode", exits, "--exit", "verified exit=two"), "`two` is not a whole number"),
        (("online-eval", exits, "--data", data, "--k", "2", *verified), "decode offline"),
    ):
        assert main([*arguments, "--device", "cpu"]) == 2
        assert words in " ".join(capsys.readouterr().err.split()), arguments


def test_settings_and_the_reserved_name() -> None:
    assert verified_of("verified") == Verified(1, 8, 1024)
    assert verified_of("verified types=50 exit=2") == Verified(2, 8, 50)
    with pytest.raises(ConfigError, match="verified"):
        ExitPreset("verified", "confidence", (0.5,), "valid")


def test_tuning_measures_verified_exits(home: Path, tmp_path: Path) -> None:
    command = ["adaptive-tune", str(home / "exits"), "--data", str(home / "data"), "--no-keep"]
    options = ["--sentences", "6", "--samples", "20", "--finalists", "1", "--objective", "flops"]
    out = tmp_path / "out.json"
    assert main([*command, *options, "--out", str(out), "--device", "cpu"]) == 0
    values = json.loads(out.read_text())
    assert values["objective"] == "flops"
    assert [row["exit"] for row in values["verified"]] == [1, 2]
    for row in values["verified"]:
        assert row["bleu"] == values["full"]["bleu"] and row["average_exit"] >= 1
        assert row["flops_per_token"] > 0 and row["tokens"] == values["full"]["tokens"]
    names = {"exit 1", "exit 2", "verified 1", "verified 2", "full stack", None}
    rows = [*values["points"], *values["fixed"], *values["verified"], values["uniform"]]
    assert {row["beaten_by"] for row in rows} <= names


def test_a_beam_leaves_verified_exits_out_and_says_why(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["adaptive-tune", str(home / "exits"), "--data", str(home / "data")]
    out = tmp_path / "out.json"
    options = ["--sentences", "2", "--only", "fixed", "--beam", "2", "--json", str(out)]
    assert main([*command, *options, "--device", "cpu"]) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "Verified exits are left out." in shown and "the beam size is 2" in shown
    assert json.loads(out.read_text())["verified"] == []


def measured(bleu: float, depth: float, seconds: float, name: str, halt: Any = None) -> Any:
    system = SimpleNamespace(name=name, halt=halt)
    decoded = SimpleNamespace(system=system, seconds=seconds)
    return SimpleNamespace(bleu=bleu, average_exit=depth, flops_per_token=None, decoded=decoded)


def test_costs_and_what_beats_what() -> None:
    first, second = measured(30, 2, 5, "a"), measured(30, 3, 4, "b")
    assert (cost(first, "exits"), cost(first, "seconds")) == (2, 5)
    assert cost(first, "flops") == float("inf")
    assert beats(first, second, "exits") and not beats(second, first, "exits")
    assert beats(second, first, "seconds") and not beats(first, first, "seconds")


def test_points_that_others_beat_are_left_out() -> None:
    rows = [measured(30, 1.2, 5, "a"), measured(31, 1.8, 4, "b"), measured(32, 2.6, 9, "c")]
    ran: Any = [(row.decoded.system.name, Row(row)) for row in rows]
    budgets = Budgets(0.5, 4)
    for objective, names in (("exits", "abc"), ("seconds", "bc")):
        points = _best(ran, budgets, objective)  # type: ignore[arg-type]
        assert "".join(str(name) for name, _ in points) == names


@pytest.mark.parametrize(
    ("truth", "order"),
    [(False, ["safe", "exit 2", "fast", "exit 1"]), (True, ["safe", "fast", "exit 2", "exit 1"])],
)
def test_fixed_exits_are_tested_where_they_agree(truth: bool, order: list[str]) -> None:
    """Shares by hand: 1/4 and 3/4 of four tokens agree, 0 and 1/4 are those of the references.

    Beside thresholds with 0.5 and 1 by the same measure.
    """
    agrees = numpy.array([[1, 1, 1], [0, 1, 1], [0, 1, 1], [0, 0, 1]], dtype=bool)
    hits = numpy.array([[0, 1, 1], [0, 0, 1], [0, 0, 0], [0, 0, 0]], dtype=bool)
    records = Records(numpy.zeros(4), numpy.zeros((4, 2)), hits, agrees)
    tuned: Any = [
        Choice(SimpleNamespace(name=name), Finalist((), 2.0, share))  # type: ignore[arg-type]
        for name, share in (("safe", 1.0), ("fast", 0.5))
    ]
    model = SimpleNamespace(traits=SimpleNamespace(num_exits=3))
    full = System("full stack", model)  # type: ignore[arg-type]
    tuning: Any = SimpleNamespace(full=full, model=model, truth=truth)
    tuning.fixed = lambda: _Tuning.fixed(tuning)
    choices = _Tuning.with_fixed(tuning, tuned, records)
    assert [choice.system.name for choice in choices] == order


def test_the_table_says_what_beats_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    halt = Thresholds("confidence", (0.5,) * 3)
    report = Report(SimpleNamespace(only=None), "n", "confidence", Budgets(0.5, 4))  # type: ignore[arg-type]
    report.full = Row(measured(32, 4, 6, "full stack"))
    rows = [
        measured(30, 1, 2, "exit 1", FixedExit(1)),
        measured(32, 4.4, 4, "verified 1", Verified(1)),
    ]
    report.beside = list(map(Row, rows))
    choice = Choice(SimpleNamespace(halt=halt))  # type: ignore[arg-type]
    report.points = [(choice, Row(measured(31, 2, 5, "confidence", halt)))]
    find_better(report)
    every = [*(row for _, row in report.points), *report.beside, report.full]
    assert [row.beaten_by for row in every] == ["verified 1", None, None, "verified 1"]
    print_verdict(report)
    assert "No tuned exits (confidence) are worthwhile on this machine." in capsys.readouterr().err
    report.points = [(choice, Row(measured(31, 2, 3, "confidence", halt)))]
    find_better(report)
    assert report.points[0][1].beaten_by is None
    print_verdict(report)
    assert not capsys.readouterr().err
