"""recipes/policies_table.py: settings over seeds, and areas between curves."""

import dataclasses
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from nmtgrid.cli.online_eval import files
from nmtgrid.data.dataset import Dataset
from nmtgrid.metrics.ngrams import corpus_bleus
from nmtgrid.search.traces import read_traces
from recipes import policies_table
from tests.unit.helpers.tiny_online import online, report, toy_home

LINES = 16


def _setting(system: str, policy: str, name: str, value: float | None, at: float) -> dict[str, Any]:
    return {
        "system": system, "policy": policy, name: value, "bleu_tokenized": at, "al": at,
        "dal": at, "yaal": at, "seconds": 1.0, "target_tokens": 1000,
        "signature_bleu_tokenized": "S",
    }  # fmt: skip


def test_settings_and_areas_over_two_seeds() -> None:
    """Means by hand."""
    results = [
        {
            "settings": [_setting("oracle", "oracle", "lambda", 1.0, seed),
                         _setting("agent1", "threshold", "threshold", 0.5, seed)],
            "areas": [{"system": "agent1", "curve": "agent", "metric": metric,
                       "difference": 0.5 * seed, "p_value": 0.01 * seed}
                      for metric in ("al", "dal")],
        }
        for seed in (1, 2)
    ]  # fmt: skip
    first, other = policies_table.settings_rows(results)
    assert (first["system"], first["setting"], first["seeds"]) == ("oracle", "λ = 1", 2)
    assert other["setting"] == "τ = 0.5" and other["ms_per_token"] == 1
    assert first["yaal"]["mean"] == first["al"]["mean"] == 1.5
    rows = policies_table.area_rows(results)
    assert [(row["system"], row["latency"]) for row in rows] == [
        ("agent1", "AL"),
        ("agent1", "DAL"),
    ]
    assert rows[0]["difference"]["mean"] == 0.75
    assert (rows[0]["of_each_seed"], rows[0]["p_of_each_seed"]) == ("+0.5, +1.0", "0.010, 0.020")


def test_readers_beside_the_start_and_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 16 lines `marginal` translates all right, `dynamic` the first ones, the start none."""
    monkeypatch.setattr(files, "SUFFIXES", ())
    monkeypatch.chdir(toy_home(tmp_path, {"start": ("pervasive", {"reader": "own"})}))
    command = ("start", "--data", "data", "--sentences", LINES)
    assert online(*command, "--k", "1,3,6,inf", "--out", "start-seed1") == 0
    assert online(*command, "--thresholds", "0.3,0.6", "--out", "dynamic-1-seed1") == 0

    result = report(Path("start-seed1/results.json"))
    start = policies_table.System(Path("start-seed1"), result)
    for scores, row in zip(start.wait_k, result["settings"][:3], strict=True):
        sums = scores.counts.sum(0, keepdims=True).astype(float)
        assert corpus_bleus(sums)[0] == pytest.approx(row["bleu_tokenized"])
        for metric in ("al", "dal"):
            assert numpy.nanmean(scores.latencies[metric]) == pytest.approx(row[metric])

    for weight in ("0.5", "1"):
        shutil.copytree("dynamic-1-seed1", f"marginal-{weight}-seed1")
        _translate_right(Path(f"marginal-{weight}-seed1"), LINES, 3 if weight == "1" else 4)
    _translate_right(Path("dynamic-1-seed1"), LINES - 4, 3)
    folders = ["start", "marginal-0.5", "marginal-1", "dynamic-1"]
    for name in folders:
        shutil.copytree(f"{name}-seed1", f"{name}-seed2")
    paths = [f"{name}-seed{seed}" for seed in (1, 2) for name in folders]
    monkeypatch.setattr(sys, "argv", ["", *paths, "--start", "start", "--out", "table"])
    policies_table.main()
    rows = [row for row in report(Path("table.json"))["rows"] if "latency" in row]
    assert [(row["system"], row["latency"], row["seeds"]) for row in rows] == [
        (system, latency, 2)
        for system in (*folders[1:], "marginal against dynamic")
        for latency in ("AL", "DAL")
    ]
    assert all(float(p) < 0.05 for row in rows for p in row["p_of_each_seed"].split(", "))
    differences = [row["difference"]["mean"] for row in rows]
    assert all(difference > 90 for difference in differences[:4])
    assert all(1 < difference < 90 for difference in differences[4:])


def _translate_right(folder: Path, lines: int, first: int) -> None:
    """Replace the first translations by references, written along two paths."""
    references = Dataset.open("data").split("test").tokenized_target()
    for file, k in zip(sorted(folder.glob("threshold-*.jsonl")), (first, 6), strict=True):
        traces = []
        for trace, reference in zip(read_traces(file), references[:LINES], strict=True):
            if trace.line <= lines and trace.source:
                target, size = reference.split(), len(trace.source)
                # About k ahead of the diagonal.
                reads = [min(k + t * size // len(target), size + 1) for t in range(len(target) + 1)]
                trace = dataclasses.replace(
                    trace, target=target, reads=reads, log_probabilities=[0.0] * len(reads),
                    log_probability=0.0,
                )  # fmt: skip
            traces.append(trace.to_line() + "\n")
        file.write_text("".join(traces))
