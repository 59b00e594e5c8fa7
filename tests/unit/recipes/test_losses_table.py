"""Tables of recipes: means, deviations, differences of one seed, minutes; names of models."""

import json
from pathlib import Path
from typing import Any

import pytest

from recipes.tables import table_of
from tests.conftest import recipe_module

losses_table = recipe_module("losses_table")


def _model(folder: Path, seed: int, bleu: float, **more: float) -> str:
    """Write what one training leaves: 10 tokens in 5 seconds, then 30 in 15."""
    folder.mkdir()
    scores: dict[str, float | str] = {"bleu_tokenized": bleu, **more}
    scores |= {f"signature_{name}": f"S of {name}" for name in scores}
    (folder / "config.json").write_text(json.dumps({"settings": {"training": {"seed": seed}}}))
    (folder / "test.json").write_text(json.dumps(scores))
    updated = {"event": "updated", "nll": 1, "learning_rate": 1, "gradient_norm": 1}
    events = [
        {"update": 1, "minutes": 1, **updated, "tokens": 10, "tokens_per_second": 2},
        {"update": 1, "minutes": 20, "event": "validated", "nll": 1, "seconds": 1000},
        {"update": 2, "minutes": 21, **updated, "tokens": 30, "tokens_per_second": 2},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return str(folder / "test.json")


def test_gains_are_of_one_seed(tmp_path: Path) -> None:
    """Seeds 1 and 2 gain 2 and 4; seed 3 has no plain model to lie above."""
    bleu = {"mle": {1: 20.0, 2: 30.0, 4: 10.0}, "tok": {3: 99.0, 2: 34.0, 1: 22.0}}
    named = [
        f"{loss},bilstm={_model(tmp_path / f'{loss}{seed}', seed, value)}"
        for loss, scores in bleu.items()
        for seed, value in scores.items()
    ]
    plain, smoothed = losses_table.read(named, 240)
    assert plain["bleu_tokenized"] == {"mean": 20.0, "standard_deviation": 10.0}
    assert "above_mle" not in plain
    assert smoothed["seeds"] == 3
    assert smoothed["signature_bleu_tokenized"] == "S of bleu_tokenized"
    assert smoothed["above_mle"] == {"mean": 3.0, "standard_deviation": pytest.approx(2**0.5)}
    # 240 target tokens at two a second.
    assert smoothed["minutes_per_epoch"] == pytest.approx(2.0)
    lines = table_of([plain, smoothed]).splitlines()
    assert lines[2] == "| mle | bilstm | 3 | 20.00 ± 10.00 | 2.00 |  |"
    assert lines[3].endswith("| 2.00 | 3.00 ± 1.41 |")


def test_another_architecture_is_nothing_to_lie_above(tmp_path: Path) -> None:
    rows = losses_table.read(
        [
            f"mle,bilstm={_model(tmp_path / 'a', 1, 20.0)}",
            f"tok,pervasive={_model(tmp_path / 'b', 1, 25.0)}",
        ],
        240,
    )
    assert "above_mle" not in rows[1] and rows[1]["bleu_tokenized"]["standard_deviation"] is None
    named = [(row["loss"], row["architecture"], row["bleu_tokenized"]["mean"]) for row in rows]
    assert named == [("mle", "bilstm", 20.0), ("tok", "pervasive", 25.0)]
    assert [row["minutes_per_epoch"] for row in rows] == pytest.approx([2.0, 2.0])


def test_captions_gain_cider(tmp_path: Path) -> None:
    scores = losses_table.CAPTIONS
    plain = _model(tmp_path / "a", 1, 0.0, bleu_1=60.0, bleu_4=20.0, cider=90.0)
    better = _model(tmp_path / "b", 1, 0.0, bleu_1=61.0, bleu_4=19.0, cider=95.5)
    rows = losses_table.read([f"mle,lstm={plain}", f"tok,lstm={better}"], 240, scores)
    means = [[row[name]["mean"] for name in scores] for row in rows]
    assert means == [[60.0, 20.0, 90.0], [61.0, 19.0, 95.5]]
    assert "above_mle" not in rows[0] and rows[1]["above_mle"]["mean"] == 5.5
    assert [row["minutes_per_epoch"] for row in rows] == pytest.approx([2.0, 2.0])


def test_the_picture_shows_what_lies_beside_mle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        f"{loss},{name}={_model(tmp_path / f'{loss}-{name}-{seed}', seed, bleu)}"
        for loss, name, seed, bleu in (
            ("mle", "bilstm", 1, 20.0), ("mle", "bilstm", 2, 21.0), ("tok", "bilstm", 1, 19.0),
            ("tok", "bilstm", 2, 22.0), ("mle", "pervasive", 1, 20.0),
            ("seq", "pervasive", 1, 22.0), ("tok", "convs2s", 1, 30.0),
        )
    }  # fmt: skip
    rows = losses_table.read(sorted(files), 240)
    drawn: list[Any] = []
    real = losses_table.draw_bars

    def draw_bars(*args: Any, **named: Any) -> None:
        drawn.extend([*args[:2], named["x_label"]])
        real(*args, **named)

    monkeypatch.setattr(losses_table, "draw_bars", draw_bars)
    losses_table.draw(rows, "BLEU", tmp_path / "table.png")
    assert (tmp_path / "table.png").read_bytes()[:4] == b"\x89PNG"
    groups, series, label = drawn
    assert label == "loss (mean ± standard deviation; seeds: 1 to 2)"
    names = [group.label for group in groups]
    assert set(names) == {"tok", "seq"}
    shown = {bars.name: dict(zip(names, bars.values, strict=True)) for bars in series}
    assert shown == {
        "bilstm": {"tok": 0.0, "seq": None}, "pervasive": {"tok": None, "seq": 2.0}
    }  # fmt: skip
    [bilstm] = (bars for bars in series if bars.name == "bilstm")
    column = names.index("tok")
    assert bilstm.high[column] == pytest.approx(2**0.5)
    assert bilstm.low[column] == pytest.approx(-(2**0.5))
    alone = [row for row in rows if row["architecture"] == "pervasive"]
    losses_table.draw(alone, "BLEU", tmp_path / "one.png")
    assert drawn[-1] == "loss (one seed)"
    # One loss alone lies above nothing.
    losses_table.draw(rows[:1], "BLEU", tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


pervasive_table = recipe_module("pervasive_table")


def test_models_in_one_file_keep_their_names(tmp_path: Path) -> None:
    """Those of `analyze alignments` are systems; of `blocks`, blocks; a model alone has neither."""
    values = {"entropy": 2.0, "coverage": 0.5}
    compared = [{"system": "max", **values}, {"system": "Bi-LSTM", **values}]
    files: dict[str, Any] = {
        "several": {"sections": [{"models": compared}]},
        "blocks": {"rows": [{"block": "transformer, block 1", **values}]},
        "one": values,
    }
    named = {}
    for name, content in files.items():
        named[name] = str(tmp_path / f"{name}.json")
        Path(named[name]).write_text(json.dumps(content))
    models = [row["model"] for row in pervasive_table.alignments(named)]
    assert models == ["max", "Bi-LSTM", "transformer, block 1", "one"]


def test_an_ensemble_is_the_last_row(tmp_path: Path) -> None:
    path = tmp_path / "test-beam5.json"
    path.write_text(json.dumps({"bleu_tokenized": 46.5}))
    row = pervasive_table.ensemble(path)
    assert row == {"model": "ensemble", "test_beam5": {"mean": 46.5, "standard_deviation": None}}


def test_exits_and_decoders_of_their_depths_share_columns(tmp_path: Path) -> None:
    """Baselines have no random exits, and were not trained with two blocks."""
    table = recipe_module("adaptive_table")
    for seed, above in ((1, 0.0), (2, 2.0)):
        values = {
            "baselines": [{"depth": 1, "bleu": 10.0}, {"depth": 3, "bleu": 20.0 + above}],
            "fixed": [
                {"exit": 1, "bleu": 9.0 + above},
                {"exit": 2, "bleu": 12.0 + above},
                {"exit": 3, "bleu": 18.0 + above},
            ],
            "uniform": {"bleu": 11.0},
            "signature_bleu": "S",
        }
        tuned = tmp_path / f"eval/aligned-fixed-seed{seed}/results.json"
        done = tmp_path / f"aligned-seed{seed}/done.json"
        for path, content in ((tuned, values), (done, {"updates": 100 + 10 * seed})):
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(content))
    baselines, aligned = table.exits(["aligned"], tmp_path, ["1", "2"], "tuned")
    assert [*baselines] == [*aligned] == [
        "system", "seeds", "updates", "random", *"123", "mean", "signature_bleu"
    ]  # fmt: skip
    assert (baselines["system"], baselines["random"], baselines["2"]) == ("baselines", None, None)
    assert (aligned["seeds"], aligned["updates"]) == ("1 2", 115)
    means = [baselines[name]["mean"] for name in ("1", "3", "mean")]
    assert means == [10.0, 21.0, 15.5]
    means = [aligned[name]["mean"] for name in ("random", "1", "2", "3", "mean")]
    assert means == [11.0, 10.0, 13.0, 19.0, 14.0]
    assert aligned["random"]["standard_deviation"] == 0.0
    for name in ("1", "mean"):
        assert aligned[name]["standard_deviation"] == pytest.approx(2**0.5)
    # Of one seed there is no deviation.
    assert table.exits(["aligned"], tmp_path, ["2"], "tuned")[1]["mean"] == {
        "mean": 15.0,
        "standard_deviation": None,
    }
