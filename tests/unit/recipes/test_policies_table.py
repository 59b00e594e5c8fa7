"""recipes/policies_table.py: settings over seeds, and areas between curves."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from recipes import policies_table


def _setting(system: str, policy: str, name: str, value: float | None, at: float) -> dict[str, Any]:
    """Return a setting with lagging `at` and, of wait-k, as much BLEU; 2 more of other policies."""
    bleu = at + (0 if policy == "wait-k" else 2)
    return {
        "system": system, "policy": policy, name: value, "bleu_tokenized": bleu, "al": at,
        "dal": at, "seconds": 1.0, "target_tokens": 1000, "signature_bleu_tokenized": "S",
    }  # fmt: skip


def _areas(system: str, difference: float, p_value: float) -> list[dict[str, Any]]:
    return [
        {"system": system, "curve": "agent", "metric": metric, "difference": difference,
         "p_value": p_value}
        for metric in ("al", "dal")
    ]  # fmt: skip


def test_agents_and_the_oracle_beside_wait_k(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two seeds. By hand: both curves lie 2 BLEU above wait-k of the start, from 1 to 3."""
    for seed in (1, 2):
        files = {
            "start": [_setting("start", "wait-k", "k", k, at) for k, at in ((1, 1), (3, 3))],
            "start-oracle": [
                _setting("start-oracle", "oracle", "lambda", value, at)
                for value, at in ((0.0, 4), (1.0, 1))
            ],
            "start-agent1": [
                _setting("start-agent1", "threshold", "threshold", value, at)
                for value, at in ((0.1, 4), (0.9, 1))
            ]
            + [_setting("start-agent1", "wait-k", "k", 1, 9)],
        }
        for name, settings in files.items():
            folder = tmp_path / f"{name}-seed{seed}"
            folder.mkdir()
            areas = _areas(name, 0.5 * seed, 0.01 * seed) if name == "start-agent1" else []
            values = {"settings": settings, "areas": areas}
            (folder / "results.json").write_text(json.dumps(values))
    folders = [
        str(tmp_path / f"{name}-seed{seed}")
        for seed in (1, 2)
        for name in ("start", "start-oracle", "start-agent1")
    ]
    out = str(tmp_path / "table")
    monkeypatch.setattr(sys, "argv", ["", *folders, "--start", "start", "--out", out])
    policies_table.main()
    rows = json.loads(Path(f"{out}.json").read_text())["rows"]
    titles = [(row["system"], row["setting"], row["seeds"]) for row in rows if "setting" in row]
    assert ("start-oracle", "λ = 1", 2) in titles
    same = [row for row in rows if row.get("p_of_each_seed")]
    assert [(row["system"], row["latency"]) for row in same] == [
        ("start-agent1", "AL"), ("start-agent1", "DAL")
    ]  # fmt: skip
    assert same[0]["difference"]["mean"] == 0.75
    assert (same[0]["of_each_seed"], same[0]["p_of_each_seed"]) == ("+0.5, +1.0", "0.010, 0.020")
    beside = [row for row in rows if "without_a_trained_reader" in row["part of the page"]]
    assert [(row["system"], row["of_each_seed"]) for row in beside] == [
        ("start-oracle", "+2.0, +2.0"), ("start-oracle", "+2.0, +2.0"),
        ("start-agent1", "+2.0, +2.0"), ("start-agent1", "+2.0, +2.0"),
    ]  # fmt: skip
