"""Online evaluations compared: rows of results.json, curves of systems and policies, bad files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from nmtgrid.analysis.latency import latency_curves, read_online_results
from nmtgrid.base.errors import InputError, StorageError
from nmtgrid.cli.app import main

METRICS = ("ap", "al", "dal", "cw", "max_cw", "laal", "yaal", "length_ratio")


def row(policy: str, key: str, value: float | None, bleu: float, al: float, **more: Any) -> Any:
    token = {**dict.fromkeys(METRICS, 1.0), "al": al, "unit": "token", "convention": "thesis"}
    word = {**token, "al": al / 2, "yaal": None, "unit": "word", "convention": "simuleval"}
    latencies = [token, word]
    made = {"system": "m", "policy": policy, key: value, "bleu_tokenized": bleu}
    return {**made, "latencies": latencies, **more}


ROWS = [
    row("wait-k", "k", 3, 20.0, 4.0),
    row("wait-k", "k", 1, 10.0, 2.0),
    row("wait-k", "k", None, 30.0, 9.0),
    row("threshold", "threshold", 0.5, 25.0, 3.0),
    row("oracle", "lambda", 0.0, 28.0, 1.0),
]


def write(folder: Path, rows: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps({"settings": rows}))
    return folder


def test_a_curve_for_each_policy_by_rising_latency(tmp_path: Path) -> None:
    found, levels = latency_curves(
        read_online_results(write(tmp_path, ROWS)), "al", "token", "thesis"
    )
    assert [one.name for one in found] == ["wait-k", "agent", "oracle"]
    assert [(*mark.costs, mark.bleu, mark.label) for mark in found[0].points] == [
        (2.0, 10.0, "k = 1"), (4.0, 20.0, "3"),
    ]  # fmt: skip
    assert [(level.name, level.bleu) for level in levels] == [("", 30.0)]


def test_other_units_and_conventions_and_missing_values(tmp_path: Path) -> None:
    results = read_online_results(write(tmp_path, ROWS) / "results.json")
    assert results[0].latency("al", "word", "simuleval") == 2.0
    assert math.isnan(results[0].latency("yaal", "word", "simuleval"))
    assert math.isnan(results[0].latency("al", "word", "thesis"))


def test_systems_keep_or_change_their_names(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", ROWS[:2]), write(tmp_path / "b", ROWS[:2])
    results = read_online_results(first) + read_online_results(second, "other")
    found, _ = latency_curves(results, "al", "token", "thesis")
    assert [one.name for one in found] == ["m, wait-k", "other, wait-k"]
    both = write(tmp_path / "c", [ROWS[0], {**ROWS[1], "system": "n"}])
    with pytest.raises(InputError, match="2 systems"):
        read_online_results(both, "one")


@pytest.mark.parametrize(
    "rows", [[{}], 3, [row("agent", "k", 1, 1.0, 1.0)], [row("wait-k", "j", 1, 1.0, 1.0)]]
)
def test_what_is_no_result_is_told(tmp_path: Path, rows: Any) -> None:
    with pytest.raises(InputError, match="no results of an online evaluation"):
        read_online_results(write(tmp_path, rows))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="missing"):
        read_online_results(tmp_path)


def run(*arguments: object) -> int:
    return main(["analyze", "latency", *map(str, arguments)])


def test_the_command_draws_and_tells(tmp_path: Path) -> None:
    picture, report = tmp_path / "p.png", tmp_path / "r.json"
    name = f"mine={write(tmp_path / 'a', ROWS)}"
    assert run(name, "--out", picture, "--json", report, "--published", "iwslt14-de-en") == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    values = json.loads(report.read_text())
    assert [one["system"] for one in values["settings"]] == ["mine"] * 5
    assert values["settings"][0]["al"] == 4.0


def test_faults_are_told_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "a", ROWS)
    assert run(folder, "--convention", "simuleval", "--published", "iwslt14-de-en") == 2
    told = capsys.readouterr().err
    assert all(word in told for word in ("--unit word", "AL in tokens", "--out FILE"))
