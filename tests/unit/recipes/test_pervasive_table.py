"""recipes/pervasive_table.py: rows of what commands wrote."""

import json
from pathlib import Path

from recipes import pervasive_table
from recipes.seeds import combine


def test_alignment_error_rates_stand_beside_entropy_and_coverage(tmp_path: Path) -> None:
    units = {"models": [{"system": "max", "entropy": 1.0, "coverage": 0.5}]}
    words = {"models": [{"system": "max", "entropy": 9.0, "coverage": 0.9, "aer": 0.25}]}
    blocks = {"rows": [{"block": "transformer, block 1", "entropy": 2.0, "coverage": 0.7}]}
    files = {name: tmp_path / name for name in ("units", "words", "blocks")}
    for name, values in (("units", units), ("words", words), ("blocks", blocks)):
        files[name].write_text(json.dumps(values))
    named = {name: str(files[name]) for name in ("units", "blocks")}
    first, second = pervasive_table.alignments(named, files["words"])
    assert first == {"model": "max", "entropy": 1.0, "coverage": 0.5, "aer": 0.25}
    assert second == {"model": "transformer, block 1", "entropy": 2.0, "coverage": 0.7}
    assert pervasive_table.alignments(named) == [
        {"model": "max", "entropy": 1.0, "coverage": 0.5}, second
    ]  # fmt: skip


def test_buckets_have_intervals_where_there_are_any(tmp_path: Path) -> None:
    system = {"system": "a", "bleu": [30.0, 40.0], "bleu_interval_95": [[29.04, 31.0], None]}
    section = {
        "by": "reference-length", "buckets": [{"bucket": "1–9"}, {"bucket": "10–19"}],
        "sentences": [50, 1], "systems": [system],
    }  # fmt: skip
    path = tmp_path / "buckets.json"
    path.write_text(json.dumps({"buckets": [section], "signature_bleu": "S"}))
    rows = pervasive_table.buckets({"toy": str(path)})
    assert [(row["a"], row.get("a_95_%")) for row in rows] == [(30.0, "29.0 to 31.0"), (40.0, None)]
    del system["bleu_interval_95"]  # of `--bootstrap 0`
    path.write_text(json.dumps({"buckets": [section], "signature_bleu": "S"}))
    assert pervasive_table.buckets({"toy": str(path)})[0] == {
        "by": "reference-length", "bucket": "1–9", "sentences": 50, "a": 30.0, "signature_bleu": "S"
    }  # fmt: skip
    record = {
        "experiment": "zoo-lengths", "command": "bash x", "date": "2026-11-26", "machine": "m",
        "software": "s", "rows": rows[:1],
    }  # fmt: skip
    (row,) = combine({**record, "seeds": "1"}, {**record, "seeds": "2"})["rows"]
    assert row["a_95_%"] == "29.0 to 31.0, 29.0 to 31.0"


def test_scores_are_of_what_all_seeds_have(tmp_path: Path) -> None:
    """The first seed may have been translated with more beams, in an earlier run."""
    scored = {"bleu_tokenized": 30.0, "signature_bleu_tokenized": "S"}
    trained = {"parameters": 9, "updates": 1, "epochs": 1, "minutes": 1, "valid_nll": 2.0}
    for seed, beams in (("1", (1, 5)), ("2", (1,))):
        model = tmp_path / f"a-seed{seed}"
        model.mkdir()
        (model / "done.json").write_text(json.dumps(trained))
        for beam in beams:
            (model / f"test-beam{beam}.json").write_text(json.dumps(scored))
    (tmp_path / "a-seed1/valid-forced.json").write_text('{"perplexity": 4.0}')
    (row,) = pervasive_table.scores({"a": str(tmp_path / "a")}, ["1", "2"])
    assert row["test_beam1"] == {"mean": 30.0, "standard_deviation": 0.0}
    assert "test_beam5" not in row and "valid_perplexity" not in row
    assert row["signature_bleu"] == "S"
