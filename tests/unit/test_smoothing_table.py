"""Table E.3: means, deviations, differences of one seed, minutes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import recipe_module

smoothing_table = recipe_module("smoothing_table")


def _model(folder: Path, seed: int, bleu: float) -> str:
    """Write what one training leaves: 10 tokens in 5 seconds, then 30 in 15."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"settings": {"training": {"seed": seed}}}))
    (folder / "test.json").write_text(json.dumps({"bleu_tokenized": bleu}))
    events = [
        {"event": "updated", "tokens": 10, "tokens_per_second": 2},
        {"event": "validated", "seconds": 1000},
        {"event": "updated", "tokens": 30, "tokens_per_second": 2},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return str(folder / "test.json")


def test_gains_are_of_one_seed(tmp_path: Path) -> None:
    """Seeds 1 and 2 gain 2 and 4; seed 3 has no plain model to lie above."""
    bleu = {"mle": {1: 20.0, 2: 30.0, 4: 10.0}, "tok": {3: 99.0, 2: 34.0, 1: 22.0}}
    named = [
        f"{loss},bilstm={_model(tmp_path / f'{loss}{seed}', seed, value)}"
        for loss, held in bleu.items()
        for seed, value in held.items()
    ]
    plain, smoothed = smoothing_table.read(named, 240)
    assert plain["bleu_tokenized"] == {"mean": 20.0, "standard_deviation": 10.0}
    assert "above_mle" not in plain
    assert smoothed["seeds"] == 3
    assert smoothed["above_mle"] == {"mean": 3.0, "standard_deviation": pytest.approx(2**0.5)}
    # 240 target tokens at two a second.
    assert smoothed["minutes_per_epoch"] == pytest.approx(2.0)
    lines = smoothing_table.markdown([plain, smoothed]).splitlines()
    assert lines[2] == "| mle | 20.00 ± 10.00 | - | 2.00 |"
    assert lines[3].endswith("| +3.00 ± 1.41 | 2.00 |")


def test_what_was_not_trained_is_a_dash(tmp_path: Path) -> None:
    rows = smoothing_table.read(
        [
            f"mle,bilstm={_model(tmp_path / 'a', 1, 20.0)}",
            f"tok,pervasive={_model(tmp_path / 'b', 1, 25.0)}",
        ],
        240,
    )
    assert "above_mle" not in rows[1] and rows[1]["bleu_tokenized"]["standard_deviation"] is None
    told = smoothing_table.markdown(rows)
    assert "| mle | 20.00 | - | 2.00 | - | - | - |" in told
    assert "| tok | - | - | - | 25.00 | - | 2.00 |" in told
