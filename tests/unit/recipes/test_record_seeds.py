"""recipes/seeds.py: one record of several that were made with different seeds."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from nmtgrid.metrics.quality import spread
from recipes import claims, results, results_page
from recipes.seeds import combine

BLEU = {"1": 40.0, "2": 41.5, "3": 39.0}


def _record(seeds: str, /, **changed: Any) -> dict[str, Any]:
    """Return what a recipe writes of these seeds: two models, the second with a p-value."""
    values = [BLEU[seed] for seed in seeds.split()]
    names = {"model": "a", "seeds": seeds, "parameters": 7, "updates": sum(map(int, seeds.split()))}
    scored = names | {"bleu": spread(values), "p_of_bleu": ", ".join("0.5" for _ in values)}
    area = {"model": "b", "seeds": len(values), "difference": None, "k": 3}
    return {
        "experiment": "table-3.7", "title": "Four", "command": f'SEEDS="{seeds}" bash x',
        "small": False, "seeds": seeds, "date": "2026-11-21", "machine": "m", "software": "s",
        "rows": [scored, area], **changed,
    }  # fmt: skip


@pytest.mark.parametrize("split", [("1", "2 3"), ("1 2", "3"), ("3", "1 2")])
def test_two_records_give_what_one_over_all_seeds_would(split: tuple[str, str]) -> None:
    record = combine(_record(split[0]), _record(split[1]))
    assert record["seeds"] == " ".join(split)
    assert record["command"] == f'SEEDS="{split[0]}" bash x; SEEDS="{split[1]}" bash x'
    assert (record["machine"], record["title"]) == ("m", "Four")
    scored, area = record["rows"]
    assert scored["bleu"]["mean"] == pytest.approx(statistics.mean(BLEU.values()))
    assert scored["bleu"]["standard_deviation"] == pytest.approx(statistics.stdev(BLEU.values()))
    assert (scored["model"], scored["parameters"], scored["seeds"]) == ("a", 7, " ".join(split))
    assert scored["p_of_bleu"] == "0.5, 0.5, 0.5"
    assert area == {"model": "b", "seeds": 3, "difference": None, "k": 3}


def test_measurements_of_one_seed_get_a_mean_and_a_deviation() -> None:
    """By hand: 30 and 34 have mean 32 and sample deviation sqrt(8); 5 and 8 updates, 6.5, are 6."""
    first = _record("1", rows=[{"system": "s", "bleu": 30.0, "updates": 5, "lambda": 0.5}])
    other = _record("2", rows=[{"system": "s", "bleu": 34.0, "updates": 8, "lambda": 0.5}])
    del first["seeds"]  # records of seed 1 before seeds were written down
    (row,) = combine(first, other)["rows"]
    assert row["bleu"]["mean"] == 32.0
    assert row["bleu"]["standard_deviation"] == pytest.approx(8**0.5)
    assert (row["system"], row["updates"], row["lambda"]) == ("s", 6, 0.5)


def test_means_over_several_seeds_without_a_deviation_stay_without() -> None:
    first = _record("1 2", rows=[{"al": 1.0}])
    (row,) = combine(first, _record("3", rows=[{"al": 4.0}]))["rows"]
    assert row == {"al": {"mean": 2.0, "standard_deviation": None}}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"experiment": "table-3.4"}, "table-3.7 and table-3.4 are two experiments"),
        ({"seeds": "3 1"}, "both records of table-3.7 have seed 1"),
        ({"rows": [{}]}, "table-3.7 have 2 and 1 rows"),
        ({"rows": [{}, {}]}, "row 1 of table-3.7 has other columns .*: bleu, model"),
        ({"rows": [{"model": "a", "new": 1}, {}]}, "row 1 of table-3.7 has other columns .*new"),
        ({"rows": [_record("2")["rows"][0] | {"model": "z"}, _record("2")["rows"][1]]},
         "model in row 1 of table-3.7 is 'a' in one record and 'z'"),
        ({"rows": [_record("2")["rows"][0] | {"parameters": 8}, _record("2")["rows"][1]]},
         "parameters in row 1 of table-3.7 is 7 in one record and 8"),
        ({"command": "SEEDS=2 MINUTES=30 bash x"}, "table-3.7 .*settings: MINUTES: not set and 30"),
        ({"command": "SEEDS=2 bash y"}, "script: bash x and bash y"),
    ],
)  # fmt: skip
def test_records_that_do_not_belong_together_are_refused(
    changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        combine(_record("1"), _record("2", **changed))


def test_unlike_commands_are_told_apart_by_what_differs() -> None:
    first = _record("1", command='ON=toy MINUTES=13 SETS="--set a=1" bash x table-3.7')
    other = _record("2", command='ON=toy MINUTES=30 PRESET=p SETS="--set a=1" bash x table-3.7')
    with pytest.raises(SystemExit) as refused:
        combine(first, other)
    assert str(refused.value).endswith(": MINUTES: 13 and 30, PRESET: not set and p.")


def test_commands_may_differ_in_seeds_folders_and_other_experiments() -> None:
    first = _record("1", command="SEED=1 MINUTES=13 bash x table-3.7 table-3.4")
    other = _record("2", command="NMTGRID_DATA=DIR MINUTES=13 SEEDS=2 bash x table-3.7")
    both = combine(first, other)
    assert both["seeds"] == "1 2"
    assert combine(both, _record("3", command="MINUTES=13 SEED=3 bash x"))["seeds"] == "1 2 3"


def test_columns_and_tables_of_a_newer_recipe() -> None:
    """A column is left out, or has a dash for each seed that lacks it; a table is kept."""
    old = {"part of the page": "settings", "system": "s", "seeds": 1, "bleu": 30.0}
    new = old | {"seeds": 2, "bleu": spread([33.0, 36.0]), "yaal": spread([1.0, 2.0])}
    new |= {"p_of_each_seed": "0.002, 0.010", "other_95_%": "1 to 2, 2 to 3"}
    table = {"part of the page": "areas", "system": "s", "seeds": 2, "p_of_each_seed": "0.1, 0.2"}
    rows = combine(_record("1", rows=[old]), _record("2 3", rows=[new, table]))["rows"]
    bleu = rows[0].pop("bleu")
    assert bleu["mean"] == pytest.approx(33.0)
    assert bleu["standard_deviation"] == pytest.approx(3.0)
    assert rows == [
        {"part of the page": "settings", "system": "s", "seeds": 3}
        | {"p_of_each_seed": "–, 0.002, 0.010", "other_95_%": "–, 1 to 2, 2 to 3"},
        table,
    ]


def test_rows_may_be_in_another_order() -> None:
    values = (("a", 30.0), ("b", 20.0))
    rows = [{"system": name, "k": 3, "bleu": bleu} for name, bleu in values]
    others = [{"system": name, "k": 3, "bleu": bleu + 4.0} for name, bleu in reversed(values)]
    both = combine(_record("1", rows=rows), _record("2", rows=others))["rows"]
    assert [(row["system"], row["bleu"]["mean"]) for row in both] == [("a", 32.0), ("b", 22.0)]


def test_commits_of_both_records_are_kept() -> None:
    first, other = _record("1"), _record("2", commit="b")
    assert combine(first, other)["commit"] == "b"
    assert combine(first | {"commit": "a+"}, other)["commit"] == "a+; b"


def test_machines_of_unlike_speed_are_not_combined() -> None:
    fast, slow = {"fp32": 99, "bf16": 420}, {"fp32": 89, "bf16": 215}
    with pytest.raises(SystemExit, match="420 and 215 GFLOP/s in bf16"):
        combine(_record("1", speed=fast), _record("2", speed=slow))
    other = _record("2", speed={"fp32": 92, "bf16": 200})
    assert combine(_record("1", speed=slow), other)["seeds"] == "1 2"


@pytest.mark.parametrize("speed", [{}, {"fp32": 99}])
def test_machines_whose_speed_is_unknown_are_combined(speed: dict[str, int]) -> None:
    other = _record("2", speed={"fp32": 89, "bf16": 1})
    assert combine(_record("1", speed=speed), other)["seeds"] == "1 2"


def test_updates_are_combined_whatever_the_machine() -> None:
    first, other = (
        _record(seed, speed={"fp32": speed}, command="UPDATES=9 bash x")
        for seed, speed in (("1", 99), ("2", 10))
    )
    assert combine(first, other)["seeds"] == "1 2"
    first, other = (each | {"command": "TUNE_UPDATES=9 bash x"} for each in (first, other))
    with pytest.raises(SystemExit, match="unlike speed"):
        combine(first, other)


def test_adopting_another_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RECORDS", tmp_path / "records")
    path = tmp_path / "table-3.7-toy.json"
    for seeds in ("1", "2"):
        path.write_text(json.dumps(_record(seeds)))
        results.adopt([path], other_seeds=seeds == "2")
    record = results.read(tmp_path / "records" / path.name)
    assert record["seeds"] == "1 2"
    assert record["rows"][0]["bleu"]["mean"] == 40.75
    results.adopt([path], title="Another title", note="Why")
    record = results.read(tmp_path / "records" / path.name)
    assert (record["seeds"], record["title"], record["notes"]) == ("2", "Another title", ["Why"])


def test_all_pages_can_show_means_over_seeds() -> None:
    """Each number of the other seed is a little larger, so that all but the k are means."""

    def larger(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return value | {"mean": value["mean"] * 1.01}
        return value * 1.01 if isinstance(value, float) and name != "k" else value

    records = {path.stem: results.read(path) for path in results.RECORDS.glob("*.json")}
    several = {}
    for name, record in records.items():
        rows = [{key: larger(key, value) for key, value in row.items()} for row in record["rows"]]
        several[name] = combine(record, record | {"rows": rows, "seeds": "9"})
    assert "2 seeds" in claims.page(several)
    assert " ± " in results_page.results_page(several, {})
    assert " ± " in results_page.small_page(several)
