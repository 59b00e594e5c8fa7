"""The benchmark of training ingredients: every system is a run that `train` would accept."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import ingredients
from benchmarks.ingredients import INGREDIENTS, PLAIN
from nmtgrid.cli.objectives import objectives
from nmtgrid.training.prepare import Request, resolve


@pytest.mark.parametrize("arch", ["pervasive", "transformer"])
def test_each_ingredient_changes_what_it_names(arch: str) -> None:
    plain = ("training.optimiser=adamw", "training.ema_decay=0")
    every = [
        resolve(Request(arch, "multi30k", changes=[*plain, *changes]), objectives)
        for changes in INGREDIENTS.values()
    ]
    assert all(every.count(name) == 1 for name in every)


def test_ingredients_are_measured_against_the_plain_run(
    toy_dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {name: INGREDIENTS[name] for name in (PLAIN, "R-Drop")}
    monkeypatch.setattr(ingredients, "INGREDIENTS", few)
    rows = ingredients.measure(toy_dataset, "transformer", "toy", rounds=2, updates=1)
    assert [row["ingredient"] for row in rows] == list(few)
    assert rows[0]["least"] == rows[0]["times"] == rows[0]["most"] == 1
    assert all(0 < row["least"] <= row["times"] <= row["most"] for row in rows)


def test_a_run_reports_after_its_updates(toy_dataset: Path, tmp_path: Path) -> None:
    changes = INGREDIENTS["Muon"]
    events = ingredients.begin(toy_dataset, "transformer", "toy", changes, tmp_path / "run", 2)
    assert [ingredients.report_of(events).update for _ in range(3)] == [2, 4, 6]
