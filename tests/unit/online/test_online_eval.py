"""`online-eval` from the command line, on small models with drawn weights."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from nmtgrid.analysis.plotting.figure import SUFFIXES
from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.app import INTERRUPTED, main
from nmtgrid.cli.online_eval import files
from nmtgrid.cli.online_eval.run import print_skipped
from nmtgrid.data.dataset import Dataset
from nmtgrid.metrics import risk_control
from nmtgrid.metrics.areas import area
from nmtgrid.metrics.latency import Latency, latency
from nmtgrid.models.directory import load_model, save_model
from nmtgrid.online.evaluate import Decoded, OnlineDecoder
from nmtgrid.online.published import curves
from nmtgrid.online.simuleval import read_log
from nmtgrid.search.traces import read_traces
from tests.unit.helpers.documented import documented_keys
from tests.unit.helpers.text_data import CHINESE, text_data
from tests.unit.helpers.tiny_online import SMALL, online, refused, report, toy_home
from tests.unit.helpers.toy_model import toy_model

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "grid": ("pervasive", {"reader": "shared"}),
    "both": ("pervasive", {"source_causal": False}),
    "blocks": ("transformer", {}),
}
KEYS = {"policy", "bleu", "bleu_tokenized", "ap", "al", "dal", "cw", "max_cw", "laal", "yaal",
        "length_ratio", "unit", "convention", "system", "seconds", "tokens_per_second"}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a toy dataset `data`, whose test split has an empty line, and models."""
    return toy_home(tmp_path_factory.mktemp("online"), MODELS)


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(home)
    monkeypatch.setattr(files, "SUFFIXES", ())  # no pictures: they take most of the time
    return home


def test_models_are_evaluated_as_they_were_trained(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where all models have a k of their own: each of these k, for all models."""
    loaded, file = load_model(here / "grid"), tmp_path / "r.json"
    for k in (2, 4):
        settings = {"objective_name": "wait-k", "objective": {"k": k}}
        save_model(tmp_path / f"wait-{k}", loaded.model, loaded.pipeline, settings)
    models = [tmp_path / "wait-4", tmp_path / "wait-2"]
    command = ("--data", "data", "--sentences", 1, "--json", file)
    for arguments, expected in (
        (models, [2, 4, 2, 4]),
        (models[:1], [4]),
        ([models[0], "grid"], [1, 3, 5, 7, 9] * 2),
        ([models[0], "--k", "3"], [3]),
        ([models[0], "--oracle", "1"], [None]),
    ):
        assert online(*arguments, *command) == 0
        assert [setting.get("k") for setting in report(file)["settings"]] == expected
        said = "trained with wait-" in capsys.readouterr().err
        assert said == (expected in ([4], [2, 4, 2, 4]))
    assert "There is no model directory" in refused(capsys, tmp_path / "none", "--data", "data")


@pytest.fixture
def drawn(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder, where pictures are drawn."""
    monkeypatch.setattr(files, "SUFFIXES", SUFFIXES)
    return here


def test_everything_at_once(
    drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, logs, file = tmp_path / "out", tmp_path / "logs", tmp_path / "r.json"
    command = ("grid", "--data", "data", "--sentences", 8, "--k", "1,3,inf", "--thresholds", "0.3")
    more = ("--oracle", "0,1", "--out", out, "--simuleval", logs, "--json", file)
    assert online(*command, *more, "--published", "iwslt15-vi-en") == 0
    shown = capsys.readouterr().err
    assert "k=3" in shown and "τ=0.3" in shown and "λ=1" in shown
    assert "latency in source tokens" in shown and "|y| = hypothesis (thesis convention)" in shown
    warned = "warning: `--published iwslt15-vi-en`: the published curves are of IWSLT'15 Vi-En"
    assert " ".join(shown.split()).count(warned) == 1
    values = report(file)
    assert values["languages"] == ["qa", "qb"] and values["lowercase"] is False
    assert values["subwords"] == "bpe"
    kept = report(out / "results.json")
    assert kept.pop("sha256") and values == kept and values["complete"] is True
    settings = values["settings"]
    assert [row["policy"] for row in settings] == ["wait-k"] * 3 + ["threshold"] + ["oracle"] * 2
    assert [row.get("k") for row in settings[:3]] == [1, 3, None]
    assert settings[3]["threshold"] == 0.3 and [s["lambda"] for s in settings[4:]] == [0, 1]
    for row in settings:
        assert row.keys() >= KEYS and (row["unit"], row["convention"]) == ("token", "thesis")
        assert len(row["latencies"]) == 3 and row.keys() <= documented_keys()
    assert kept.keys() <= documented_keys() and kept["weights"] == "best"
    assert settings[2]["ap"] == 1.0 and settings[0]["al"] < settings[1]["al"]

    for slug in ("k-1", "k-3", "k-inf", "threshold-0.3", "lambda-0", "lambda-1"):
        assert len((out / f"{slug}.txt").read_text().splitlines()) == 8
        assert len(list(read_traces(out / f"{slug}.traces.jsonl"))) == 8
        assert len(read_log(logs / slug)) == 8
    for trace in read_traces(out / "k-3.traces.jsonl"):
        whole = len(trace.source) + 1
        assert trace.reads == [min(3 + t, whole) for t in range(len(trace.target) + 1)]
    for name in ("curve.png", "curve.svg", "paths.png", "paths.svg"):
        assert (out / name).stat().st_size > 1000
    paths = (out / "paths.svg").read_text()
    assert "grid, wait-k, k = " in paths and "grid, agent, τ = 0.3" in paths
    text = (out / "curve.svg").read_text()
    for row in curves("iwslt15-vi-en"):
        assert row.source.split()[-1] in text, "the published ones are named with their tables"
    assert "average lagging AL (source tokens, thesis convention)" in text


def test_sentences_without_latency_are_counted_by_setting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def way(skipped: int, late: int) -> Latency:
        delays: list[list[int]] = [[]] * skipped + [[9]] * late + [[1]] * (9 - skipped - late)
        return latency(delays, [9] * 9)

    def said(*ways: Latency) -> str:
        print_skipped({f"k={k}": values for k, values in enumerate(ways)})
        return " ".join(capsys.readouterr().err.split())

    assert said(way(0, 0), way(0, 0)) == ""
    alike = "In 2 of 9 sentences the source or the translation is empty; averages exclude them."
    assert said(way(2, 0), way(2, 0)) == alike
    assert said(way(0, 0), way(2, 0), way(3, 1), way(2, 4)) == (
        "In 2 (k=1, k=3), 3 (k=2) of 9 sentences the source or the translation is empty; averages "
        "exclude them. In 1 (k=2), 4 (k=3) of 9 sentences nothing was written before the whole "
        "source was read: YAAL excludes them."
    )
    many = said(*(way(0, late) for late in (0, 5, 1, 2, 3)))
    assert many.startswith("In 0 to 5 (by setting) of 9 sentences nothing was")
    assert said(way(0, 9), way(0, 0)) == ""
    assert said(way(0, 9)).startswith("In 9 of 9 sentences nothing was")


def test_our_own_log_scores_as_we_do(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs, file, own = tmp_path / "logs", tmp_path / "r.json", tmp_path / "own.py"
    # By hand, AP in SimulEval's convention.
    own.write_text("def share(delays, source, target): return sum(delays) / source / target\n")
    metric = ("--metric", "share", "--import", own)
    command = ("blocks", "--data", "data", "--sentences", 6, "--k", "2", "--simuleval", logs)
    assert online(*command, "--convention", "simuleval", "--json", file, *metric) == 0
    assert " share " in capsys.readouterr().err
    ours = report(file)["settings"][0]
    assert (ours["unit"], ours["convention"]) == ("word", "simuleval")
    assert ours["own"] == {"share": pytest.approx(ours["ap"])}
    scoring = ("--log", str(logs / "k-2"), "--json", str(file), *map(str, metric))
    assert main(["online-eval", *scoring]) == 0
    assert " share " in capsys.readouterr().err
    theirs = report(file)
    assert set(theirs["thesis"]) == {"ap", "al", "dal", "cw", "max_cw", "own"}
    assert theirs["simuleval"]["own"] == {"share": pytest.approx(ours["ap"])}
    for name in ("ap", "al", "dal", "laal"):
        assert theirs["simuleval"][name] == pytest.approx(ours[name], abs=1e-9)
    assert theirs["yaal"] == pytest.approx(ours["yaal"]) and theirs["sentences"] == 6
    # The log has tokenised words, without escapes; no BLEU of the other tokenizer is that.
    tokenized = ["--sacrebleu-tokenizer", "none", "--json", str(file)]
    assert main(["online-eval", "--log", str(logs / "k-2"), *tokenized]) == 0
    assert report(file)["bleu"] == pytest.approx(ours["bleu_tokenized"], abs=1e-9)
    assert report(file)["signature_bleu"] == ours["signature_bleu_tokenized"]


def test_areas_against_wait_k(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, file = tmp_path / "out", tmp_path / "r.json"
    command = ("grid", "--data", "data", "--sentences", 8, "--k", "1,3,inf")
    more = (
        "--policy",
        "wait-k k=2",
        "--policy",
        "edatt mass=0.1,0.9 floor=2",
        "--thresholds",
        "0.3",
        "--bootstrap",
        20,
    )
    assert online(*command, *more, "--unit", "word", "--out", out) == 0
    shown = capsys.readouterr().err
    assert "BLEU above wait-k's at equal latency" in shown and "20 resamples" in shown
    areas = report(out / "results.json")["areas"]
    # The agent has one point, and the other k belong to the one curve of wait-k.
    assert [(row["curve"], row["metric"]) for row in areas] == [
        ("edatt, floor = 2", "al"), ("edatt, floor = 2", "dal"),
    ]  # fmt: skip
    for row in areas:
        assert (row["unit"], row["convention"], row["samples"]) == ("word", "thesis", 20)
    assert main(["analyze", "latency", f"b={out}", "--unit", "word", "--json", str(file)]) == 0
    assert report(file)["areas"] == [row | {"system": "b"} for row in areas]
    assert "BLEU above" in capsys.readouterr().err
    assert main(["analyze", "latency", str(out)]) == 0
    assert "BLEU above" not in capsys.readouterr().err, "they are in words"


def test_areas_of_text_without_spaces_are_those_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, file = text_data(tmp_path, CHINESE), tmp_path / "r.json"
    search = {"max_length_a": 5.0, "max_length_b": 1.0}
    grid = tmp_path / "grid"
    toy_model(grid, data, settings=SMALL["pervasive"], seed=3, std=0.5, search=search)
    sweep = ("--k", "1,3,9", "--policy", "confidence threshold=0.3,0.7 floor=2")
    options = ("--data", data, "--bootstrap", 0, "--finish-reading")
    assert online(grid, *sweep, *options, "--json", file) == 0
    values = report(file)
    assert all("tok:zh" in row["signature_bleu_tokenized"] for row in values["settings"])
    curves = {
        policy: [row for row in values["settings"] if row["policy"] == policy]
        for policy in ("confidence", "wait-k")
    }
    for row in values["areas"]:
        points = [
            [point[key] for point in curve]
            for curve in curves.values()
            for key in (row["metric"], "bleu_tokenized")
        ]
        expected = area(*points)
        assert row["difference"] == pytest.approx(expected.difference) != 0
    assert len(values["areas"]) == 2
    used: list[str] = []

    def losses(offline: list[str], *others: Any) -> Any:
        used.append(others[-1])
        return numpy.zeros(len(offline))

    monkeypatch.setattr(risk_control, "bleu_losses", losses)
    promise = ("--allow-loss", 90, "--confidence", 0.5, "--no-keep", "--test-split", "test")
    assert online(grid, "--data", data, "--k", "1", *promise) == 0
    assert used == ["zh"] * 3, "two halves, and the other split"


def test_areas_against_wait_k_of_a_baseline(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ("--data", "data", "--sentences", 8, "--bootstrap", 20, "--k", "1,2,4")
    assert online("a=grid", "b=grid", *command, "--baseline", "a", "--out", out) == 0
    assert "wait-k of" in capsys.readouterr().err
    areas = report(out / "results.json")["areas"]
    # The baseline's own curve is not compared with itself; that of equal weights equals it.
    assert [(row["system"], row["baseline"], row["metric"]) for row in areas] == [
        ("b", "a", "al"), ("b", "a", "dal"),
    ]  # fmt: skip
    assert all(row["difference"] == 0 and row["p_value"] == 1 for row in areas)
    assert main(["analyze", "latency", str(out), "--json", str(tmp_path / "r.json")]) == 0
    assert report(tmp_path / "r.json")["areas"] == areas


def test_a_baseline_is_a_system_with_a_wait_k_curve(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two = ("base=grid", "other=grid", "--data", "data")
    message = refused(capsys, *two, "--k", "1,3", "--baseline", "bsae")
    assert "no model has that name. Did you mean `base`?" in message
    message = refused(capsys, *two, "--k", "3,inf", "--baseline", "base")
    assert "at least two values of `--k`" in message


def test_faults_of_own_metrics_are_told_with_all_others(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(capsys, "grid", "--data", "data", "--metric", "absent", "--beam", 0)
    assert "There is no latency metric `absent`" in message and "--import FILE" in message
    assert "--beam" in message


def test_systems_side_by_side(drawn: Path, tmp_path: Path) -> None:
    out, logs, file = tmp_path / "out", tmp_path / "logs", tmp_path / "r.json"
    command = ("A/B=grid", "blocks", "--data", "data", "--sentences", 5, "--k", "1", "--line", 2)
    assert online(*command, "--out", out, "--simuleval", logs, "--json", file) == 0
    values = report(file)
    assert [row["system"] for row in values["settings"]] == ["A/B", "blocks"]
    assert (out / "A-B/k-1.txt").is_file() and (logs / "blocks/k-1/instances.log").is_file()
    text = (out / "curve.svg").read_text()
    assert "A/B, wait-k" in text and "blocks, wait-k" in text
    paths = (out / "paths.svg").read_text()
    assert "READ/WRITE paths, test" in paths and "Line 2, reference" in paths


def test_each_model_is_evaluated_with_all_that_it_can_follow(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here only the first model can follow wait-k, and only that one has a trained reader."""
    file = tmp_path / "r.json"
    command = ("grid", "both", "--data", "data", "--sentences", 2, "--k", "1", "--policies", "all")
    assert online(*command, "--out", tmp_path / "out", "--json", file) == 0
    message = " ".join(capsys.readouterr().err.split())
    assert "both: without `wait-k`" in message and "grid: without `wait-k`" not in message
    followed: dict[str, set[str]] = {"grid": set(), "both": set()}
    for setting in report(file)["settings"]:
        followed[setting["system"]].add(setting["policy"])
    assert {"wait-k", "threshold"} <= followed["grid"]
    assert "re-translation" in followed["both"] and followed["both"] < followed["grid"]


@pytest.mark.parametrize(
    ("options", "words", "is_said"),
    [
        (("--line", 2, "--k", "inf"), "`--line 2`: there is no path to plot", True),
        (("--line", 2, "--k", "1,inf"), "`--line 2`: there is no path to plot", False),
        (("--k", "1,inf", "--beam", 2), "`--beam 2` with limited reads", True),
        (("--k", "inf", "--beam", 2), "`--beam 2` with limited reads", False),
        (("--k", "1", "--beam", 1), "with limited reads", False),
    ],
)
def test_warnings(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[object, ...],
    words: str, is_said: bool,
) -> None:  # fmt: skip
    out = ("--out", tmp_path / "o") if "--line" in options else ()
    assert online("grid", "--data", "data", "--sentences", 2, *options, *out) == 0
    assert (words in " ".join(capsys.readouterr().err.split())) == is_said


def test_settings_that_lie_close_have_files_of_their_own(here: Path, tmp_path: Path) -> None:
    command = ("grid", "--data", "data", "--sentences", 2, "--out", tmp_path)
    assert online(*command, "--thresholds", "0.5,0.5000001,0.9999999") == 0
    names = {path.name for path in tmp_path.glob("threshold-*.txt")}
    assert names == {f"threshold-{value}.txt" for value in ("0.5", "0.5000001", "0.9999999")}


def test_files_of_two_settings_or_systems_are_not_mixed(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "import dataclasses\nfrom nmtgrid.online.policies import Policy\n\n\n"
        "@dataclasses.dataclass(frozen=True)\nclass Tagged(Policy):\n    tag: str = 'a'\n"
        "    def decide(self, proposal):\n        return proposal.reads > 0\n"
    )
    command = ("grid", "--data", "data", "--sentences", 2, "--import", own)
    tags = ("--policy", "Tagged tag=a/b", "--policy", "Tagged tag=a-b")
    message = refused(capsys, *command, *tags, "--out", tmp_path / "out")
    assert "`Tagged tag=a/b` and `Tagged tag=a-b` would write the same files" in message
    assert "`Tagged-tag-a-b.*`" in message and not (tmp_path / "out").exists()
    assert online(*command, *tags) == 0, "nothing is written"
    for name in (".", ".."):
        models = (f"{name}=grid", "b=blocks", "--data", "data", "--k", "1")
        message = refused(capsys, *models, "--out", tmp_path / "out")
        assert "Two models would use the same folder" in message


def test_replacing_an_earlier_evaluation_is_said(here: Path, tmp_path: Path, capsys: Any) -> None:
    command = ("grid", "--data", "data", "--sentences", 1)
    folders = ("--out", tmp_path / "out", "--simuleval", tmp_path / "logs")
    for k, is_said in ((1, False), (2, True)):
        assert online(*command, *folders, "--k", k) == 0
        message = " ".join(capsys.readouterr().err.split())
        assert ("has results of an earlier evaluation" in message) == is_said
        assert ("has logs of an earlier evaluation" in message) == is_said


def test_k_defaults_and_greedy_whatever_the_model_says(here: Path, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    assert online("grid", "--data", "data", "--sentences", 2, "--json", file) == 0
    values = report(file)
    assert [row["k"] for row in values["settings"]] == [1, 3, 5, 7, 9] and values["beam"] == 1
    # A model that reads in both directions may be measured offline.
    offline = ("both", "--data", "data", "--sentences", 2, "--k", "inf", "--json", file)
    assert online(*offline, "--out", tmp_path / "out") == 0
    assert report(file)["settings"][0]["ap"] == 1.0 and report(file)["pictures"] == []


def test_an_ensemble(here: Path, tmp_path: Path) -> None:
    """Read at once it is greedy decoding; behind a reader, what a stream writes."""
    out, file, raw = tmp_path / "out", tmp_path / "r.json", Dataset.open("data").split("test")
    text = tmp_path / "in.txt"
    text.write_text("".join(f"{line}\n" for line in raw.raw_source()[:6]), encoding="utf-8")
    both = ("blocks", "--ensemble", "grid")
    command = ("--data", "data", "--sentences", 6, "--k", "2,inf", "--out", out, "--json", file)
    assert online(*both, *command) == 0
    assert {row["system"] for row in report(file)["settings"]} == {"blocks+grid"}
    assert report(file)["systems"][0]["ensemble"] == ["grid"]
    decode = ["decode", *both, str(text), "--device", "cpu"]
    assert main([*decode, "--beam", "1", "--out", str(tmp_path / "greedy.txt")]) == 0
    assert (out / "k-inf.txt").read_text() == (tmp_path / "greedy.txt").read_text()
    assert main([*decode, "--stream", "--k", "2", "--traces", str(tmp_path / "t.jsonl")]) == 0
    streamed, batched = (
        [(row.target, row.reads or [], round(row.score, 2)) for row in read_traces(path)]
        for path in (tmp_path / "t.jsonl", out / "k-2.traces.jsonl")
    )
    assert streamed == batched
    assert online("blocks", "--data", "data", "--sentences", 6, "--k", "inf", "--out", out) == 0
    assert (out / "k-inf.txt").read_text() != (tmp_path / "greedy.txt").read_text()


def test_an_interruption_keeps_what_is_done(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = OnlineDecoder.run

    def stopped(self: OnlineDecoder, *command: Any) -> Iterator[Decoded]:
        yield next(whole(self, *command))
        raise KeyboardInterrupt

    monkeypatch.setattr(OnlineDecoder, "run", stopped)
    out = tmp_path / "out"
    command = ("grid", "--data", "data", "--sentences", 3, "--k", "1,3", "--out", out)
    assert online(*command) == INTERRUPTED
    shown = capsys.readouterr().err
    assert "1 of 2 settings done" in shown and "k=1" in shown
    values = report(out / "results.json")
    assert values["complete"] is False and len(values["settings"]) == 1
    assert (out / "curve.png").is_file() and (out / "k-1.txt").is_file()


LATE = """
import dataclasses
from nmtgrid.online.policies import Policy


@dataclasses.dataclass(frozen=True)
class NeverWrites(Policy):
    def decide(self, proposal):
        return proposal.reads < 0
"""


def test_a_policy_that_translates_offline_is_told(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, with its numbers; also where translations end at the limit of 5 + |x| units."""
    own, out = tmp_path / "own.py", tmp_path / "out"
    own.write_text(LATE, encoding="utf-8")
    command = ("grid", "--data", "data", "--sentences", 6, "--k", "1,inf", "--out", out)
    assert online(*command, "--policy", f"{own}:NeverWrites") == 0
    shown = " ".join(capsys.readouterr().err.split())
    offline = "Nothing was written before the whole source was read: NeverWrites in 6 of 6"
    assert shown.count(offline) == 1 and shown.count("before the whole source was read") == 1
    for slug, title in (("k-1", "k=1"), ("k-inf", "k=∞"), ("NeverWrites", "NeverWrites")):
        traces = list(read_traces(out / f"{slug}.traces.jsonl"))
        at_limit = sum(len(trace.target) == 5 + len(trace.source) for trace in traces)
        assert (f"{title} in {at_limit} of 6 sentences" in shown.split("length limit")[1]) == (
            at_limit > 3
        )


def test_an_error_keeps_what_is_done(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without `--out` too, where nothing is written before the end."""
    whole = OnlineDecoder.run

    def failing(self: OnlineDecoder, *command: Any) -> Iterator[Decoded]:
        yield next(whole(self, *command))
        raise ConfigError("The reading policy `Own` failed at target token 1.")

    monkeypatch.setattr(OnlineDecoder, "run", failing)
    file = tmp_path / "r.json"
    command = ("grid", "--data", "data", "--sentences", 3, "--k", "1,3", "--json", file)
    message = refused(capsys, *command)
    assert "1 of 2 settings done" in message and "k=1" in message
    assert message.index("k=1") < message.index("`Own` failed at target token 1")
    values = report(file)
    assert values["complete"] is False and len(values["settings"]) == 1


def test_faults_all_at_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(
        capsys, "--k", "0", "--thresholds", "1", "--oracle", "x", "--unit", "token",
        "--convention", "simuleval", "--published", "iwslt14-de-fr", "--beam", 0, "--exit", 1,
        "--ensemble", "grid", "--simuleval", "data",
    )  # fmt: skip
    assert "Write " not in message, "no advice fits all of them"
    for part in (
        "Name a model", "--data DATA", "every number must be at least 1",
        "`--thresholds`: `threshold` must be above 0 and below 1",
        "`x` is not a number", "SimulEval's convention counts words", "add `--out DIR`",
        "no published curves", "`--beam` must be at least 1",
        "cannot be combined with `--ensemble`", "`--simuleval data` is a dataset",
    ):  # fmt: skip
        assert part in message
    message = refused(capsys, "grid", "--data", "data", "--k", "1", "--oracle-cost", "printed")
    assert "`--oracle-cost` belongs to `--oracle`: add it." in message
    message = refused(capsys, "grid", "--data", "data", "--k", "1", "--out", "grid")
    assert "`--out grid` is a model directory: name another folder for results." in message


def test_what_models_and_data_cannot_do(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(
        capsys, "both", "blocks", "nowhere", "--data", "data", "--k", "1", "--thresholds", "0.5",
        "--oracle", "0",
    )  # fmt: skip
    assert "both: `pervasive` reads its source in both directions" in message
    assert "blocks: The oracle needs" in message and "has no reader" in message
    assert "nowhere" in message
    both = ("b=both", "blocks", "--data", "data", "--exit", 9)
    message = refused(capsys, *both)
    assert "both: This `pervasive` has one exit" in message and "blocks: " in message
    assert "has no split `tset`" in refused(capsys, "grid", "--data", "data", "--split", "tset")
    assert "grid + both: `pervasive` reads its source in both directions" in refused(
        capsys, "grid", "--ensemble", "both", "--data", "data"
    )
    message = refused(capsys, "grid", "blocks", "--ensemble", "grid", "--data", "data")
    assert "works with one MODEL, but several are given" in message
    assert "Two systems have the name `grid`" in refused(capsys, "grid", "grid", "--data", "data")
    command = ("grid", "--data", "data", "--sentences", 2, "--out", "pictures", "--line", 3)
    assert "only 2 sentences" in refused(capsys, *command)


def test_logs(here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "instances.log"
    good = {"index": 0, "prediction": "a b", "delays": [1, 2], "source_length": 2, "reference": "a"}
    path.write_text(json.dumps(good) + "\n" + json.dumps(good | {"index": 1, "delays": [2, 1]}))
    message = refused(capsys, "--log", path)
    assert f"{path}:2: delays must not decrease" in message
    message = refused(capsys, "grid", "--log", path, "--k", "3", "--data", "data")
    assert "Leave out MODEL, `--data`, `--k`." in message
    ignored = ("--unit", "token", "--convention", "simuleval", "--device", "cpu")
    message = refused(capsys, "--log", path, *ignored)
    assert "Leave out `--unit`, `--convention`, `--device`." in message
    path.write_text("")
    assert "empty" in refused(capsys, "--log", path) or "no sentence" in message
    path.write_text(json.dumps(good))
    assert online("--log", path, "--json", tmp_path / "r.json") == 0
    shown = capsys.readouterr().err
    assert "thesis" in shown and "SimulEval" in shown and "source words" in shown
    assert "signature of BLEU" in shown and "|tok:13a|" in shown and "aware" not in shown
    path.write_text(json.dumps(good | {"elapsed": [1.5, 2.5], "reference": None}))
    assert online("--log", path, "--sacrebleu-tokenizer", "none") == 0
    shown = capsys.readouterr().err
    assert "No BLEU: the log has no references." in shown and "computation-aware" in shown
    # By hand, AL is the mean of 1.5 and of 2.5 - 1; CW and max-CW count runs of reads, which time
    # does not tell apart.
    cells = next(row for row in shown.splitlines() if "aware" in row and "1.50" in row).split()
    assert cells[cells.index("1.50") + 1 :].count("-") == cells.count("-") == 2
    message = refused(capsys, "grid", "--data", "data", "--sacrebleu-tokenizer", "none")
    assert "`--sacrebleu-tokenizer` belongs to `--log`" in message
