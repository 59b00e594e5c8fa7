"""recipes/results.py: records of what recipes found, and the page that is made of them."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import recipe_module


@pytest.fixture
def results() -> ModuleType:
    return recipe_module("results")


def _record(**changed: Any) -> dict[str, Any]:
    return {
        "experiment": "table-3.4", "title": "Skips", "command": "SMALL=1 bash recipes/pervasive.sh",
        "small": True, "date": "2026-11-21", "machine": "a machine", "software": "nmtgrid 0",
        "rows": [{"system": "a|b", "bleu": 1.25}], **changed,
    }  # fmt: skip


def test_every_record_of_the_project_is_one(results: ModuleType) -> None:
    assert results.PAGE.read_text(encoding="utf-8") == results.written(), (
        "run `python recipes/results.py write`"
    )
    for path in results.KEPT.glob("*.json"):
        record = results.read(path)
        assert path.stem.startswith("small-") == record["small"], path.name
        assert record["rows"], path.name


def _tuned(bleu: float) -> dict[str, Any]:
    return {"average_exit": 2.0, "bleu": bleu, "test": {"average_exit": 2.0, "bleu": bleu + 1}}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ([{"a": 1, "b": {"mean": 2.0, "standard_deviation": 0.5}, "list": [1], "path": "/x"}],
         [{"a": 1, "b": {"mean": 2.0, "standard_deviation": 0.5}}]),
        ({"rows": [{"a": {"b": 1}}]}, [{"a_b": 1}]),
        ({"unit": "token", "settings": [{"system": "x", "k": 3}]}, [{"system": "x", "k": 3}]),
        ({"split": "valid", "systems": [{"system": "x", "points": [1]}]}, [{"system": "x"}]),
        ({"latency": {"settings": [{"k": 1}]}, "depth": {"rows": [{"exit": 2}]}},
         [{"part of the page": "latency", "k": 1}, {"part of the page": "depth", "exit": 2}]),
        ({"latency": {"settings": [{"k": 1}]}, "title": "one section"}, [{"k": 1}]),
        ({"full": {}, "fixed": [{"exit": 1, **_tuned(30.0)}],
          "points": [{"budget": 2.0, **_tuned(31.0)}],
          "baselines": [{"name": "p", "depth": 3, "bleu": 5.0, "test": None}]},
         [{"decoding": "exit 1", "average_exit": 2.0, "bleu": 31.0},
          {"decoding": "budget 2", "average_exit": 2.0, "bleu": 32.0},
          {"decoding": "p, 3 blocks alone", "name": "p", "depth": 3, "bleu": 5.0, "test": None}]),
        ({"full": {}, "fixed": [], "points": [], "baselines": [],
          "calibrated": {"risk": "bleu", "allow_loss": 1.0, "confidence": 0.95, "certified": True,
                         "loss": 0.25, "p_value": 0.5, "test": {"loss": 1.5, "holds": False}}},
         [{"decoding": "promised to lose at most 1 % (bleu)", "confidence": 0.95,
           "certified": True, "loss_percent": 0.25, "p_value": 0.5, "test_loss_percent": 1.5,
           "holds_on_test": False}]),
    ],
)  # fmt: skip
def test_rows_of_what_commands_write(
    results: ModuleType, tmp_path: Path, written: object, expected: list[dict[str, Any]]
) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(written))
    assert results.rows_of(path) == expected


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"rows": []}'])
def test_a_file_without_rows_is_refused(results: ModuleType, tmp_path: Path, text: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(SystemExit, match=re.escape(str(path))):
        results.rows_of(path)


def test_keeping_and_adopting_records(
    results: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table.json"
    table.write_text('[{"bleu": 3}]')
    small = results.keep("conll", "T", table, "SMALL=1 ON=toy bash recipes/pervasive.sh conll")
    long = results.keep("conll", "T", table, "ON=multi30k bash recipes/pervasive.sh conll")
    assert (small["small"], long["small"]) == (True, False)
    assert small["rows"] == [{"bleu": 3}] and "torch" in small["software"]
    (tmp_path / "record.json").write_text(json.dumps(small))
    assert results.read(tmp_path / "record.json") == small
    with pytest.raises(SystemExit, match="no record"):
        results.read(table)
    monkeypatch.setattr(results, "KEPT", tmp_path / "records")
    path = tmp_path / "conll-toy.json"
    path.write_text(json.dumps(_record(rows=[{"bleu": 3, "traces": "/somewhere/a.jsonl"}])))
    results.adopt([path])
    assert results.read(tmp_path / "records/small-conll-toy.json")["rows"] == [{"bleu": 3}]


def test_page_puts_published_figures_beside_ours(results: ModuleType) -> None:
    published: Mapping[str, Any] = {
        "table-3.4": {"what": "theirs", "columns": ["s", "BLEU"], "rows": [["dense", 34.45]]},
        "figure-4.12": {"what": "curves", "columns": ["k"], "rows": [[3]]},
    }
    long = _record(small=False, command="bash x", title="Long", rows=[{"signature_bleu": "S|1"}])
    text = results.page({"small-a": _record(), "b": long}, published, "LONGER RUNS\n")
    assert text.index("## Table 3.4") < text.index("## Figure 4.12") < text.index("LONGER RUNS")
    assert text.index("Long:") < text.index("**SMALL.** Skips") < text.index("| dense | 34.45 |")
    assert "| a\\|b | 1.25 |" in text and "Signatures: `S|1`." in text
    assert "Not run yet." in text[text.index("## Figure 4.12") :]
    part = _record(experiment="figure-4.12-pervasive", title="Part")
    text = results.page({"small-a": part}, published, "")
    assert text.count("## Figure 4.12") == 1
    assert "Part" in text[text.index("## Figure 4.12") : text.index("Published (curves)")]
    assert "[Table 3.4](#table-34)" in text


def test_parts_and_cells_of_a_page(results: ModuleType) -> None:
    rows = [
        {"part of the page": "latency", "policy": "wait-k", "k": 3.0, "bleu": 1.0},
        {"part of the page": "latency", "policy": "wait-k", "k": None, "bleu": 2.0},
        {"part of the page": "exit_depth", "exit": 2, "bleu": 3.0},
        {"part of the page": "names", "system": "nothing else is told of"},
    ]
    record = _record(experiment="report", title="Four systems", rows=rows)
    text = results.page({"report": record}, {}, "")
    assert "## Four systems\n" in text and "(#four-systems)" in text
    assert (
        "Latency:\n\n| policy | k | bleu |" in text
        and "Exit depth:\n\n| exit | bleu |" in text
        and "Names" not in text
    )
    assert "| wait-k | 3 | 1.00 |" in text and "| wait-k | ∞ | 2.00 |" in text
    shown = [1234.5, 12, 33.456, 0.0123, 0, None, {"mean": 1.0, "standard_deviation": None}]
    assert [results.shown(value) for value in shown] == [
        "1,234", "12", "33.46", "0.012", "0", "", "1.00",
    ]  # fmt: skip
