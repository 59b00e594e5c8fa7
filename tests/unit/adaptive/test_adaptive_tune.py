"""`adaptive-tune` and `decode --exit` from the command line, on small models with drawn weights."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any, cast

import numpy
import pytest
import torch

from nmtgrid.adaptive import measure
from nmtgrid.adaptive import tune as exit_tuning
from nmtgrid.adaptive.tune import record
from nmtgrid.base.io.arrays import load_tensors, save_tensors
from nmtgrid.cli.adaptive_tune import output, run
from nmtgrid.cli.app import main
from nmtgrid.data.dataset import Dataset
from nmtgrid.layers.kernels.packed_weights import Packing, can_pack
from nmtgrid.metrics import risk_control
from nmtgrid.models.api import ExitModel, TranslationModel
from nmtgrid.search import engine
from nmtgrid.search.traces import read_traces
from tests.unit.helpers.bars import Stage, recorded_bars
from tests.unit.helpers.documented import documented_keys
from tests.unit.helpers.text_data import CHINESE, text_data
from tests.unit.helpers.toy_model import toy_model

SMALL: dict[str, Any] = {
    "encoder_depth": 1, "decoder_depth": 3, "size": 16, "feed_forward_size": 16, "heads": 2,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "exits": {"exits": "tied"},
    "chi": {"exits": "tied", "halting": "geometric"},
    "four": {"exits": "tied", "decoder_depth": 4},
    "seq": {"exits": "separate", "halting": "sequence"},
    "plain": {"decoder_depth": 2},
}
KEYS = {"budget", "thresholds", "bleu", "average_exit", "flops_per_token", "seconds"}
COUNT = 6
CERTIFIED = ("--allow-loss", 95, "--confidence", 0.5, "--risk", "agreement", "--candidates", 3)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, toy_dataset: Path) -> Path:
    """A folder with a toy dataset `data` and models."""
    folder = tmp_path_factory.mktemp("adaptive")
    (folder / "data").symlink_to(toy_dataset)
    search = {"max_length_a": 4.0, "max_length_b": 0.0, "beam": 4}
    for name, changes in MODELS.items():
        settings = SMALL | changes
        toy_model(folder / name, toy_dataset, "transformer", settings, std=0.3, search=search)
    return folder


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(home)
    return home


def tune(*arguments: object) -> int:
    options: list[object] = ["--sentences", COUNT, "--device", "cpu"]
    if not {"fixed", "seq"} & set(arguments):
        options += ["--samples", 300]
        options += [] if "--allow-loss" in arguments else ["--finalists", 1]
    return main(["adaptive-tune", *map(str, arguments), *map(str, options)])


def report(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run what must be refused; return the message."""
    assert main(list(map(str, arguments))) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    return " ".join(message.split())


def test_everything_at_once(here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, file = tmp_path / "out", tmp_path / "r.json"
    options = ("exits", "--data", "data", "--test-split", "test", "--out", out, "--json", file)
    assert tune(*options, "--baselines", "b2=plain", "--budget", 1, "--name", "conf") == 0
    shown = capsys.readouterr().err
    assert "full stack" in shown and "random exits" in shown and "decode --exit conf-" in shown
    assert "budget: the average exit on valid (tuned on) is at most this" in shown
    values = report(file)
    assert values == report(out / "results.json")
    assert (values["mechanism"], values["exits"], values["sentences"]) == ("confidence", 3, COUNT)
    assert values["points"] and values["complete"] is True
    how = {"seed": 1, "repeats": 1, "finalists_per_budget": 1, "weights": "best", "device": "cpu"}
    assert values.items() >= how.items()
    known = documented_keys()
    assert values.keys() <= known and all(row.keys() <= known for row in values["points"])
    for point in values["points"]:
        assert point.keys() >= KEYS and len(point["thresholds"]) == 2
        assert point["budget"] in (2.0, 3.0) and point["budget"] - 1 <= point["average_exit"]
        assert (
            point["stored"] == f"conf-{point['budget']:g}" and point["test"]["flops_per_token"] > 0
        )
    assert [point["exit"] for point in values["fixed"]] == [1, 2, 3]
    assert [point["average_exit"] for point in values["fixed"]] == [1, 2, 3]
    assert values["fixed"][2]["bleu"] == values["full"]["bleu"]
    flops = [point["flops_per_token"] for point in values["fixed"]]
    assert flops == sorted(flops)
    assert [(point["name"], point["depth"]) for point in values["baselines"]] == [("b2", 2)]
    assert values["baselines"][0]["average_exit"] == 2
    assert 1 < values["uniform"]["average_exit"] < 3
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")
    stored = report(here / "exits" / "exits.json")["settings"]
    assert {point["stored"] for point in values["points"]} <= stored.keys()


def test_an_interruption_on_the_test_split_leaves_what_was_tuned(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(systems: Any, samples: Any, *more: Any) -> Any:
        # Of `valid` there are 6 sentences, of `test` only 5.
        if len(samples) == 5:
            raise KeyboardInterrupt
        decoded = measure.decode(systems, samples, *more)
        seconds = [1.0 if row.system.halt is None else 2.0 for row in decoded]
        return [
            dataclasses.replace(row, wall_seconds=time)
            for row, time in zip(decoded, seconds, strict=True)
        ]

    def read(pipeline: Any, split: Any, count: int, **more: Any) -> Any:
        return measure.read_samples(pipeline, split, 5 if split.name == "test" else count, **more)

    monkeypatch.setattr(run, "decode", decode)
    monkeypatch.setattr(run, "read_samples", read)
    options = ("--data", "data", "--only", "points", "--no-keep", "--out", tmp_path / "r.json")
    assert tune("exits", *options, "--test-split", "test") == 130
    values = report(tmp_path / "r.json")
    assert values["complete"] is False and values["test_split"] is None and values["points"]
    assert {point["test"] for point in values["points"]} == {None}
    # The full stack takes half the time.
    full = values["full"]["bleu"]
    for point in values["points"]:
        assert point["beaten_by"] == (None if point["bleu"] > full else "full stack")
    # It is what a tuning without a test split leaves.
    assert main(["adaptive-tune", "--results", str(tmp_path / "r.json")]) == 0


def test_a_stored_name_decodes_as_it_was_measured(here: Path, tmp_path: Path) -> None:
    file, traces, scores = tmp_path / "r.json", tmp_path / "t.jsonl", tmp_path / "s.json"
    whole = ["--sentences", 10_000, "--name", "whole", "--json", file, "--batch", 7]
    options = ["adaptive-tune", "chi", "--data", "data", "--split", "test", "--samples", "200"]
    more = ["--device", "cpu", "--finalists", "1", "--budget", "2"]
    assert main([*options, *more, *map(str, whole)]) == 0
    point = report(file)["points"][0]
    assert point["stored"] == "whole-3" and report(file)["mechanism"] == "geometric"
    order = ["decode", "chi", "--data", "data", "--exit", "whole-3", "--beam", "1"]
    assert main([*order, "--traces", str(traces), "--json", str(scores)]) == 0
    assert report(scores)["bleu_tokenized"] == pytest.approx(point["bleu"])
    assert report(scores)["average_exit"] == pytest.approx(point["average_exit"])
    exits: list[int] = []
    for trace in read_traces(traces):
        if trace.source:
            assert trace.exits is not None and len(trace.exits) == len(trace.target) + 1
            assert trace.exit_scores is not None and len(trace.exit_scores) == len(trace.exits)
            exits += trace.exits
    assert sum(exits) / len(exits) == pytest.approx(point["average_exit"])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_is_measured_is_the_decoder_that_decode_runs(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """By the packing of its weights, and by autocast: with bf16 a grid has the one, others not."""
    grid, search, used = toy_model(tmp_path / "grid", here / "data"), engine.search, set()

    def how(model: TranslationModel) -> tuple[str, bool, tuple[str, ...]]:
        packed = (getattr(weight, "packed", None) for weight in model.parameters())
        packings = {weights.packing for weights in packed if weights is not None}
        return model.architecture, torch.is_autocast_enabled("cpu"), tuple(packings)

    def noted(models: list[TranslationModel], *more: Any, **options: Any) -> Any:
        used.add(how(models[0]))
        return search(models, *more, **options)

    def recorded(model: ExitModel, *more: Any, bf16: bool, **options: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            used.add(how(model))
        return record(model, *more, bf16=bf16, **options)

    monkeypatch.setattr(engine, "search", noted)
    monkeypatch.setattr(exit_tuning, "record", recorded)
    order = ["--data", "data", "--device", "cpu", "--precision", precision]
    for model in ("exits", str(grid)):
        assert main(["decode", model, *order, "--split", "valid", "--beam", "1"]) == 0
    of_decode = used.copy()
    assert {name for name, *_ in of_decode} == {"transformer", "pervasive"}
    # As on any processor that has such products.
    if can_pack(cast(Packing, precision)):
        assert ("transformer", False, (precision,)) in of_decode
    used.clear()
    assert tune("exits", *order, "--baselines", grid, "--name", "packed") == 0
    assert used == of_decode
    used.clear()
    assert tune("exits", *order, *CERTIFIED, "--no-keep", "--objective", "seconds") == 0
    assert used == {how for how in of_decode if how[0] == "transformer"}
    assert any(name.startswith("packed-") for name in report(Path("exits/exits.json"))["settings"])


def test_text_without_spaces_is_scored_as_decode_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = text_data(tmp_path, CHINESE)
    model = toy_model(tmp_path / "model", data, "transformer", SMALL | MODELS["exits"], std=0.3)
    file = tmp_path / "r.json"
    assert tune(model, "--data", data, "--only", "fixed", "--json", file) == 0
    values = report(file)
    order = ["decode", str(model), "--data", str(data), "--split", "valid", "--beam", "1"]
    assert main([*order, "--device", "cpu", "--json", str(file)]) == 0
    expected = report(file)
    assert values["full"]["bleu"] == pytest.approx(expected["bleu_tokenized"])
    assert values["signature_bleu"] == expected["signature_bleu_tokenized"]
    assert values["full"]["bleu"] > 0 and "tok:zh" in values["signature_bleu"]
    used: list[str] = []

    def losses(full: list[str], *others: Any) -> numpy.ndarray[Any, Any]:
        used.append(others[-1])
        return numpy.zeros(len(full))

    monkeypatch.setattr(risk_control, "bleu_losses", losses)
    promise = ("--allow-loss", 95, "--confidence", 0.5, "--no-keep", "--candidates", 1)
    assert tune(model, "--data", data, "--json", file, *promise) == 0
    assert set(used) == {"zh"}


def test_the_seed_draws_the_random_exits(here: Path, tmp_path: Path) -> None:
    file, shares = tmp_path / "r.json", []
    for seed in (1, 2, 1):
        options = ("exits", "--data", "data", "--only", "fixed", "--json", file)
        assert tune(*options, "--seed", seed) == 0
        shares.append(report(file)["uniform"]["exit_shares"])
    assert shares[0] == shares[2] != shares[1]


def test_thresholds_belong_to_weights(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(here / "exits", here / "bound", ignore=shutil.ignore_patterns("exits.json"))
    best, last = here / "bound" / "model.safetensors", here / "bound" / "last.safetensors"
    save_tensors(last, {name: 0.5 * value for name, value in load_tensors(best).items()})
    options = ("bound", "--data", "data", "--only", "points", "--budget", 2, "--name", "late")
    assert tune(*options, "--weights", "last") == 0
    shown = " ".join(capsys.readouterr().err.split())
    stored = report(here / "bound" / "exits.json")["settings"]
    (name,) = stored
    assert stored[name]["weights"] == "last" and stored[name]["checksum"]
    assert f"`decode --exit {name} --beam 1 --weights last`" in shown
    order = ("decode", "bound", "--data", "data", "--split", "test", "--exit", name)
    assert "`--weights last`" in refused(capsys, *order)
    assert main([*order, "--weights", "last"]) == 0
    assert "other weights" not in capsys.readouterr().err
    shutil.copy(best, last)
    assert main([*order, "--weights", "last"]) == 0
    assert "tuned on other weights" in " ".join(capsys.readouterr().err.split())


def test_a_new_tuning_replaces_the_old_one(here: Path, tmp_path: Path) -> None:
    """Of budgets up to 2 and 3 the wider ones leave the last alone; other names stay."""
    file, options = tmp_path / "r.json", ("exits", "--data", "data", "--only", "points")
    names = []
    for name, budget in (("other", 1), ("again", 1), ("again", 2)):
        assert tune(*options, "--name", name, "--budget", budget, "--json", file) == 0
        names.append({point["stored"] for point in report(file)["points"]})
    assert "again-2" in names[1] and names[2] == {"again-3"}
    stored = set(report(here / "exits" / "exits.json")["settings"])
    assert {name for name in stored if name.startswith("again")} == names[2]
    assert names[0] <= stored


def test_a_predictor_without_thresholds_is_one_point(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.json"
    assert tune("seq", "--data", "data", "--out", file) == 0
    assert "will be replaced" not in capsys.readouterr().err
    values = report(file)
    assert [point["thresholds"] for point in values["points"]] == [[]]
    assert values["mechanism"] == "sequence" and (tmp_path / "r.png").is_file()
    stored = report(here / "seq" / "exits.json")["settings"]
    assert [point["mechanism"] for point in stored.values()] == ["sequence"]
    assert tune("seq", "--data", "data", "--out", file, "--only", "points") == 0
    assert f"{file} of an earlier tuning will be replaced" in capsys.readouterr().err.replace(
        "\n", " "
    )


def test_a_certified_loss(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "r.json"
    options = ("exits", "--data", "data", "--test-split", "test", "--json", file, "--no-keep")
    assert tune(*options, *CERTIFIED) == 0
    calibrated = report(file)["calibrated"]
    assert calibrated["certified"] and calibrated["p_value"] <= 0.5 and calibrated["loss"] <= 95
    assert calibrated["test"]["holds"] == (calibrated["test"]["loss"] <= 95)
    assert calibrated["sentences"] == 3 and len(report(file)["points"]) == 1
    assert "Certified" in capsys.readouterr().err
    # Fixed exits alone. Of a translation without a match to the reference nothing can be lost.
    tuning = run._Tuning
    all_of = tuning.with_fixed
    monkeypatch.setattr(tuning, "with_fixed", lambda self, _, records: all_of(self, [], records))
    assert tune(*options, *CERTIFIED, "--risk", "bleu", "--objective", "flops") == 0
    assert [point["thresholds"] for point in report(file)["points"]] == [[]]
    assert re.search(r": exit (\d); `decode --exit \1 --beam 1`", capsys.readouterr().err)
    order = ("exits", "--data", "data", "--sentences", 6, "--allow-loss", 0.5)
    message = refused(capsys, "adaptive-tune", *order)
    assert "598 are needed" in message and "1,196 sentences" in message


def test_fixed_exits_beside_a_predictor(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without records all are decoded, and tested from the least loss on."""
    losses = iter([0.3, 0.1, 0.2, *[0.0] * 5])

    def agreement_losses(full: list[Any], adaptive: list[Any]) -> numpy.ndarray[Any, Any]:
        return numpy.full(len(full), next(losses))

    monkeypatch.setattr(risk_control, "agreement_losses", agreement_losses)
    file = tmp_path / "r.json"
    more = ("--allow-loss", 95, "--confidence", 0.5, "--risk", "agreement", "--only", "points")
    options = ("seq", "--data", "data", *more, "--json", file, "--no-keep")
    bars = recorded_bars(monkeypatch)
    assert tune(*options, "--objective", "flops") == 0
    # Halves of three sentences: three candidates are ranked on one, all five tested on the other.
    whole = Stage("decoding the full stack", 3, 3)
    ranking, testing = Stage("ranking candidates", 9, 9), Stage("testing candidates", 15, 15)
    assert bars[:4] == [whole, ranking, whole, testing]
    # The predictor comes first, then both exits; verified exits lose nothing and are not ranked.
    tested = report(file)["calibrated"]["tested"]
    assert [row.get("verified") for row in tested] == [1, 2, None, None, None]
    assert [row.get("exit") for row in tested] == [None, None, 1, 2, None]
    losses = iter([0.0])
    assert tune(*options, "--objective", "exits") == 0
    assert [row.get("exit") for row in report(file)["calibrated"]["tested"]] == [None]


def test_a_verified_exit_is_certified_where_all_others_lose_too_much(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([1.0, 1.0, 1.0, 0.0, 0.0, 1.0])

    def agreement_losses(full: list[Any], adaptive: list[Any]) -> numpy.ndarray[Any, Any]:
        return numpy.full(len(full), next(losses))

    monkeypatch.setattr(risk_control, "agreement_losses", agreement_losses)
    file = tmp_path / "r.json"
    more = ("--allow-loss", 95, "--confidence", 0.5, "--risk", "agreement", "--only", "points")
    options = ("seq", "--data", "data", *more, "--json", file, "--objective", "seconds")
    assert tune(*options) == 0
    (point,) = report(file)["points"]
    exit = report(file)["calibrated"]["verified"]
    assert exit in (1, 2) and point["stored"] == f"verified exit={exit}"
    shown = " ".join(capsys.readouterr().err.split())
    assert f"verified {exit}; `decode --exit 'verified exit={exit}' --beam 1`" in shown
    assert f"chosen: verified {exit};" in shown and "budget" not in shown


@pytest.mark.parametrize(("loss", "needed"), [(0.2, 9), (1.0, None)])
def test_nothing_is_certified(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, loss: float, needed: int | None,
) -> None:  # fmt: skip
    """The full stack stays, and what would be needed is said."""

    def losses(full: list[Any], adaptive: list[Any]) -> numpy.ndarray[Any, Any]:
        return numpy.full(len(full), loss)

    monkeypatch.setattr(risk_control, "agreement_losses", losses)
    file = tmp_path / "r.json"
    options = ("seq", "--data", "data", "--only", "points", "--json", file, "--no-keep")
    more = ("--allow-loss", 50, "--confidence", 0.8, "--risk", "agreement")
    assert tune(*options, *more) == 0
    values = report(file)
    assert not values["calibrated"]["certified"] and values["points"] == []
    # log 5 over 0.2 log 0.4 + 0.8 log 1.6, the relative entropy of 0.2 against 0.5.
    assert values["calibrated"]["needed"] == needed
    message = " ".join(capsys.readouterr().err.split())
    assert "the full stack is used" in message
    assert ("about 9 are needed" if needed else "allow more") in message


def test_budgets_that_no_vector_met_when_decoded_are_named(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Vectors may exit earlier than they replayed, too."""
    monkeypatch.setattr(output, "lost_budgets", lambda *others: [1.5, 2.0])
    assert tune("exits", "--data", "data", "--only", "points", "--samples", 20, "--no-keep") == 0
    assert (
        "No thresholds for budget 1.5, 2: all vectors that met it in the replay had another "
        "average exit when decoded (deeper or shallower). Decode more of them (`--finalists`)"
    ) in " ".join(capsys.readouterr().err.split())


def test_pooled_results(here: Path, tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("two", 2)):
        options = ("exits", "--data", "data", "--seed", seed, "--out", tmp_path / name, "--no-keep")
        assert tune(*options, *(("--only", "points") if name == "one" else ())) == 0
    first = report(tmp_path / "one" / "results.json")
    assert first["fixed"] == [] and first["uniform"] is None and first["points"]
    picture, file = tmp_path / "p.svg", tmp_path / "r.json"
    named = [f"--results=ours={tmp_path / name}" for name in ("one", "two")]
    assert main(["adaptive-tune", *named, "--out", str(picture), "--json", str(file)]) == 0
    rows = report(file)["rows"]
    assert [row["label"] for row in rows if row["system"] == "fixed exits"] == ["1", "2", "3"]
    assert sum(row["system"] == "ours" for row in rows) >= 1
    assert picture.read_text().count("<!-- ours") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("plain --data data", "one exit, after its last block"),
        ("exits --data data --split nothing", "no split `nothing`"),
        ("exits --data data --split train", "The raw text of `train`"),
        ("exits --data data --mechanism geometric", "cannot exit by `geometric`"),
        ("exits --data data --name a\u00a0b", "cannot be named"),
        ("exits --data data --baselines plain --baselines plain=plain", "Two systems"),
        ("exits --data data --only fixed --allow-loss 1", "`--only fixed`"),
        ("exits --data data --only fixed --no-keep", "Leave out `--no-keep`"),
        ("exits --data data --no-keep --name a", "`--name` would be ignored. Leave out `--name`"),
        ("exits --data data --name 3", "cannot be named `3`"),
        ("exits --data data --name verified", "cannot be named `verified`"),
        ("exits --data data --name auto", "`--name`: Settings of early exit cannot be named"),
        ("exits --data data --budget 2.1", "`--budget` must be from 0.01 to 2, but is 2.1"),
        ("seq --data data --samples 9", "no thresholds to tune, so `--samples` would"),
        ("seq --data data --allow-loss 1 --candidates 2", "`--candidates` would be ignored"),
        ("seq --data data --judge references --budget 9", "`--budget` must be from 0.01 to"),
        ("seq --data data --judge references --budget 9", "`--judge` would be ignored"),
        ("exits --data data --out a.json --json a.png", "is also the file of `--json`"),
        ("exits --data data --out a.json --json a.json", "is also the file of `--json`"),
        ("exits --results . --no-keep --beam 2", "Leave out MODEL, `--keep`, `--beam`, `--device`"),
    ],
)
def test_what_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: str, words: str
) -> None:
    assert words in refused(capsys, "adaptive-tune", *arguments.split(" "), "--device", "cpu")


def test_a_name_is_refused_as_it_was_typed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a b", ""):
        message = refused(capsys, "adaptive-tune", "exits", "--data", "data", "--name", name)
        assert f"cannot be named `{name}`. Use letters" in message and "-1" not in message


TUNED: dict[str, object] = {
    "--samples": 50, "--budget": 1, "--finalists": 2, "--mechanism": "confidence",
    "--objective": "flops", "--judge": "references", "--name": "a", "--allow-loss": 2,
    "--risk": "bleu", "--confidence": 0.9, "--candidates": 3,
}  # fmt: skip


def test_fixed_exits_refuse_each_option_of_tuning(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("adaptive-tune", "exits", "--data", "data", "--only", "fixed")
    for option, value in TUNED.items():
        message = refused(capsys, *command, option, value)
        words = f"`--only fixed` tunes nothing, so `{option}` would be ignored."
        assert f"{words} Leave out `{option}`." in message
    every = [word for pair in TUNED.items() for word in pair]
    names = ", ".join(f"`{option}`" for option in TUNED)
    assert f"so {names} would be ignored." in refused(capsys, *command, *every)


def test_a_guarantee_refuses_options_of_budgets(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("adaptive-tune", "exits", "--data", "data", "--allow-loss", 2)
    for option in ("--budget", "--finalists"):
        message = refused(capsys, *command, option, 1)
        assert f"without budgets, so `{option}` would be ignored." in message
        assert f"Leave out `{option}`." in message


def test_all_faults_are_named_at_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = ("--samples", 0, "--budget", -1, "--seed", -1)
    message = refused(capsys, "adaptive-tune", *numbers, "--risk", "bleu", "--test-split", "valid")
    for words in ("Name a model", "`--data DATA`", "`--samples`", "`--budget`", "`--allow-loss`",
                  "are both `valid`", "`--seed` must be from 0"):  # fmt: skip
        assert words in message
    message = refused(capsys, "adaptive-tune", "exits", "--data", "data", "--split", "nothing")
    assert "MODEL" not in message


def test_decode_exit(here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "in.qa"
    lines = Dataset.open(here / "data").split("test").raw_source()[:3]
    text.write_text("\n".join([*lines, ""]) + "\n", encoding="utf-8")
    for choice, model, expected in (
        ("2", "exits", {2}),
        ("auto", "exits", None),
        ("auto", "chi", {}),
    ):
        traces = tmp_path / "t.jsonl"
        options = ["decode", model, str(text), "--exit", choice, "--out", str(tmp_path / "o")]
        assert main([*options, "--traces", str(traces), "--max-source", "4"]) == 0
        actual = list(read_traces(traces))
        assert len(actual) == 4 and not actual[3].source
        for trace in actual[:3]:
            if expected is None:
                assert trace.exits is None, "this model cannot tell: all blocks ran"
            else:
                assert trace.exits is not None and len(trace.exits) == len(trace.target) + 1
                assert trace.num_exits == 3 and (not expected or set(trace.exits) == expected)
    assert "no exit predictor" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("exits --exit 4", "the decoder has 3 blocks"),
        ("exits --exit 0", "Exits are numbered from 1"),
        ("plain --exit 1", "one exit"),
        ("plain --exit auto", "one exit"),
        ("four --exit fast", "named `fast`"),
        ("exits --exit 1 --ensemble four", "`--ensemble`"),
        ("exits --exit 1 --data data --forced", "`--forced`"),
        ("exits --stream --k 1 --exit 4", "the decoder has 3 blocks"),
    ],
)
def test_decode_exit_refused(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: str, words: str
) -> None:
    assert words in refused(capsys, "decode", *arguments.split())


def test_thresholds_of_another_depth(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("exits", "--data", "data", "--name", "alien") == 0
    shutil.copy(here / "exits" / "exits.json", here / "four" / "exits.json")
    names = report(here / "exits" / "exits.json")["settings"]
    alien = next(name for name in names if name.startswith("alien"))
    capsys.readouterr()
    message = refused(capsys, "decode", "four", "--exit", alien)
    assert "2 thresholds are given, but a decoder of 4 blocks needs 3" in message
