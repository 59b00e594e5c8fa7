"""Curves of trainings: logs are read back, summed up and drawn, whatever has happened to them."""

from __future__ import annotations

import gzip
import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmtgrid.analysis.plotting.figure import log_label, log_ticks, wrapped
from nmtgrid.analysis.plotting.lines import HeatPanel, Line, Panel, draw_panels
from nmtgrid.analysis.training_curves import Run, panels, read_run, read_runs, summary
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.cli.app import main


def updated(update: int, **changes: Any) -> dict[str, Any]:
    return {
        "event": "updated", "update": update, "minutes": update / 100, "learning_rate": 1e-3,
        "nll": 5.0, "gradient_norm": 1.0, "tokens_per_second": 1000.0, "tokens": 500, **changes,
    }  # fmt: skip


def validated(update: int, nll: float, bleu: float | None = None) -> dict[str, Any]:
    return {"event": "validated", "update": update, "minutes": update / 100, "nll": nll,
            "bleu": bleu}  # fmt: skip


def gradients(update: int, *norms: float) -> dict[str, Any]:
    by_layer = {f"encoder.{index}": norm for index, norm in enumerate(norms)}
    return {"event": "gradients", "update": update, "minutes": update / 100, "gradients": by_layer,
            "gradient_ratio": norms[1] / norms[-1] if norms[-1] else None}  # fmt: skip


LINES = [
    gradients(1, 3.0, 0.5, 1.0), updated(10), validated(10, 4.0, 5.0),
    updated(20, tokens=1500, tokens_per_second=3000.0), gradients(20, 0.0, 2.0, 1.0),
    validated(20, 3.0, 7.0), validated(30, 3.5, 9.0),
    {"event": "finished", "update": 30, "minutes": 0.35},
]  # fmt: skip


def log(folder: Path, lines: list[Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    written = [line if isinstance(line, str) else json.dumps(line) for line in lines or LINES]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in written))
    return folder


def test_the_summary_is_of_the_best_validation(tmp_path: Path) -> None:
    (run,) = read_runs([(None, log(tmp_path / "model"))])
    values = summary(run)
    assert (values["name"], values["updates"], values["minutes"]) == ("model", 30, 0.35)
    assert values["finished"] and values["best_update"] == 20
    assert (values["valid_loss"], values["valid_bleu"]) == (3.0, 7.0)
    assert values["valid_perplexity"] == pytest.approx(math.exp(3.0))
    assert values["gradient_ratio"] == 2.0
    # 500 tokens in half a second, 1,500 in another half.
    assert values["tokens_per_second"] == pytest.approx(2000.0)
    # Between the log lines of updates 10 and 20 half of the 1,500 tokens had been seen; behind
    # them each update has 150 as well.
    assert run.tokens_at([10, 15, 20, 24]) == [500.0, 1250.0, 2000.0, 2600.0] and run.notes == []
    (short,) = read_runs([(None, log(tmp_path / "short", [validated(9, 4.0)]))])
    with pytest.raises(InputError, match=r"shorter than `training\.log_updates`"):
        short.tokens_at([9])


def test_the_best_validation_is_the_one_whose_weights_were_kept(tmp_path: Path) -> None:
    """That with the best translations, if they chose the weights."""
    lines = [{**line, "is_best": line["update"] < 30} for line in LINES if "nll" in line]
    kept = [*lines[:-1], {**lines[-1], "is_best": True}]
    for case, expected in ((lines, 20), (kept, 30)):
        (run,) = read_runs([(None, log(tmp_path / f"{expected}", case))])
        assert summary(run)["best_update"] == expected


def test_damaged_lines_are_left_out_and_told(tmp_path: Path) -> None:
    lines = [
        *LINES[:4], '{"event": "updated", "upd', "[1, 2]", {"event": "dreamt", "of": 1},
        updated(3), updated(25, nll="low"), {**validated(30, 2.5), "minutes": -1},
        validated(30, math.nan), validated(40, 3.25), '"torn', "",
    ]  # fmt: skip
    path = log(tmp_path / "model", lines) / "metrics.jsonl"
    run = read_run(path, "model")
    notes = [note.removeprefix(f"{path}:") for note in run.notes]
    assert notes == [
        "5: it is not JSON (invalid character at column 26).",
        "6: it is not a line of a training log.", "8: update 3 comes after update 20.",
        '9: `nll` must be a number, but is `"low"`.',
        "10: `minutes` must be at least 0, but is `-1`.",
        "13: it is not JSON (invalid character at column 6).",
    ]  # fmt: skip
    assert [row["update"] for row in run.training] == [10, 20]
    assert run.best is not None and run.best["nll"] == 3.25 and not run.finished
    with pytest.raises(InputError, match="no line of a training run"):
        read_run(log(tmp_path / "x", [{"event": "dreamt"}]) / "metrics.jsonl", "x")


def test_names_tell_runs_apart(tmp_path: Path) -> None:
    first, second = log(tmp_path / "a" / "model"), log(tmp_path / "b" / "model")
    third = log(tmp_path / "c" / "other")
    packed = tmp_path / "d" / "metrics.jsonl.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress((third / "metrics.jsonl").read_bytes()))
    runs = read_runs([(None, first), ("mine", second), (None, third), (None, packed)])
    assert [run.name for run in runs] == ["model", "mine", "other", "d"]
    assert runs[3].updates == 30
    runs = read_runs([(None, first), (None, second), (None, third)])
    assert [run.name for run in runs] == ["a/model", "b/model", "other"]
    with pytest.raises(ConfigError, match="named twice"):
        read_runs([(None, first), ("x", first / "metrics.jsonl")])
    with pytest.raises(ConfigError, match="Two systems have the name `x`"):
        read_runs([("x", first), ("x", second)])


def runs(tmp_path: Path, *names: str) -> list[Run]:
    return read_runs([(name, log(tmp_path / str(index))) for index, name in enumerate(names)])


def test_panels_hold_the_points(tmp_path: Path) -> None:
    drawn = panels(runs(tmp_path, "one"), "updates")
    assert list(drawn) == [
        "loss", "bleu", "learning-rate", "gradient-norm", "gradient-ratio", "layers-1",
    ]  # fmt: skip
    loss, ratio, layers = drawn["loss"], drawn["gradient-ratio"], drawn["layers-1"]
    assert isinstance(loss, Panel) and isinstance(ratio, Panel) and isinstance(layers, HeatPanel)
    assert [list(line.y) for line in loss.lines] == [[4.0, 3.0, 3.5], [5.0, 5.0]]
    assert [line.faint for line in loss.lines] == [False, True]
    assert (list(ratio.lines[0].x), list(ratio.lines[0].y)) == ([1.0, 20.0], [0.5, 2.0])
    assert layers.rows == ["encoder.0", "encoder.1", "encoder.2"]
    assert layers.values.tolist() == [[3.0, 0.0], [0.5, 2.0], [1.0, 1.0]]
    assert layers.limits == (0.5, 3.0)
    for against, x in (("minutes", [0.1, 0.2, 0.3]), ("tokens", [0.0005, 0.002, 0.0035])):
        bleu = panels(runs(tmp_path, "one"), against)["bleu"]  # type: ignore[arg-type]
        assert isinstance(bleu, Panel) and list(bleu.lines[0].x) == x
    plain = read_run(log(tmp_path / "plain", [updated(10), updated(20)]) / "metrics.jsonl", "plain")
    assert list(panels([plain], "minutes")) == ["loss", "learning-rate", "gradient-norm"]
    values = summary(plain)
    assert values["valid_loss"] is None and values["gradient_ratio"] is None
    begun = read_run(log(tmp_path / "begun", [gradients(1, 1.0, 0.0, 0.0)]) / "metrics.jsonl", "b")
    assert list(panels([begun], "minutes")) == ["layers-1"]
    draw_panels(list(panels([begun], "minutes").values()), tmp_path / "begun.png")
    assert (tmp_path / "begun.png").stat().st_size > 1000


def test_of_captions_cider_is_shown_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [updated(10), {**validated(10, 3.0, 7.0), "cider": 81.25}, validated(20, 4.0, 8.0)]
    (run,) = read_runs([("captions", log(tmp_path / "captions", lines))])
    assert summary(run)["valid_cider"] == 81.25
    cider = panels([run], "updates")["cider"]
    assert isinstance(cider, Panel)
    assert (list(cider.lines[0].x), list(cider.lines[0].y)) == ([10.0], [81.25])
    assert main(["analyze", "curves", str(tmp_path / "captions")]) == 0
    shown = capsys.readouterr().err
    assert "CIDEr-D" in shown and "81.25" in shown
    assert main(["analyze", "curves", str(log(tmp_path / "plain"))]) == 0
    assert "CIDEr" not in capsys.readouterr().err


def test_long_names_are_broken_and_shortened() -> None:
    assert wrapped("short", 22) == "short"
    assert wrapped("multi30k-transformer-12-layers-seed-1", 22) == (
        "multi30k-transformer-\n12-layers-seed-1"
    )
    # A word that fits a line of its own is not broken.
    assert wrapped("transformer, multi-path wait-k", 29) == "transformer, multi-path \nwait-k"
    # Thirty letters of 35 have room: the first and the last 14.
    assert wrapped("on a/b/c/d and multi30k-transformer", 12) == (
        "on a/b/c/d \nand…0k-\ntransformer"
    )
    # Four words of 12 letters never share a line of 22: letters are left out until three are left.
    assert wrapped("abcdefghijkl " * 4, 22).count("\n") == 2
    for name in ("a" * 300, "a b/" * 90, "漢字" * 40):
        for lines in (1, 3):
            broken = wrapped(name, 22, lines).split("\n")
            assert len(broken) <= lines and all(len(line) <= 23 for line in broken)


def test_ticks_are_round_and_few() -> None:
    assert log_ticks(1.0, 100.0) == [1, 3, 10, 30, 100]
    assert log_ticks(3.1, 3.9) == [3.48]
    for least, most in ((0.9, 1.2), (1e-9, 1e3), (3.0, 7.0), (1e-3, 1e-2)):
        ticks = log_ticks(least, most)
        assert 1 <= len(ticks) <= 7 and all(least <= tick <= most for tick in ticks)
    assert [log_label(tick) for tick in (0.05, 300.0, 1e-6, 2000.0)] == [
        "0.05", "300", "1e-6", "2,000",
    ]  # fmt: skip


def test_pictures_are_whole_and_reproducible(tmp_path: Path) -> None:
    drawn = list(panels(runs(tmp_path, "$one_1$", "tw\udcffo", "三"), "minutes").values())
    drawn = [drawn[0], drawn[-2]]
    for name in ("1.svg", "2.svg", "1.png"):
        draw_panels(drawn, tmp_path / name)
    text = (tmp_path / "1.svg").read_text()
    assert text == (tmp_path / "2.svg").read_text() and "$one_1$" in text
    data = (tmp_path / "1.png").read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert data[:4] == b"\x89PNG" and 1500 < width < 2500 and 300 < height < 800
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        draw_panels(drawn, tmp_path / "x.pdf")
    empty = Panel("", "", "", [Line("nothing", [], [], 0), Line("nan", [1.0], [math.nan], 1)])
    draw_panels([empty], tmp_path / "empty.png")
    assert (tmp_path / "empty.png").is_file()


@pytest.mark.parametrize("loss", [3.0, 800.0, 2.0**63])
def test_losses_without_a_perplexity_are_drawn(tmp_path: Path, loss: float) -> None:
    """The axis of perplexities is left out where a double has none."""
    line = Line("run", [1.0, 2.0], [2.0, loss], 0)
    panel = Panel("loss", "updates", "nats", [line], exponential="perplexity")
    draw_panels([panel], tmp_path / "losses.png")
    assert (tmp_path / "losses.png").stat().st_size > 1000


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = str(log(tmp_path / "a")), f"other={log(tmp_path / 'b')}"
    report, page = tmp_path / "r.json", tmp_path / "new" / "page.png"
    arguments = ["analyze", "curves", first, second]
    assert main([*arguments, "--out", str(page), "--json", str(report)]) == 0
    shown = capsys.readouterr().err
    assert "other" in shown and "20.09" in shown and "h1/hN" in shown
    values = json.loads(report.read_text())
    assert values["pictures"] == [str(page)] and page.is_file()
    first_model, two = values["models"]
    assert (first_model["name"], two["name"]) == ("a", "other")
    assert first_model["validation"]["nll"] == [4.0, 3.0, 3.5] and first_model["updates"] == 30
    assert first_model["gradients"]["gradient_ratio"] == [0.5, 2.0]
    assert first_model["gradients"]["norms"]["encoder.1"] == [0.5, 2.0]
    folder = tmp_path / "single"
    assert main([*arguments, "--out", str(folder), "--format", "svg", "--against", "tokens"]) == 0
    names = {"loss", "bleu", "learning-rate", "gradient-norm", "gradient-ratio", "layers-1",
             "layers-2"}  # fmt: skip
    assert {path.name for path in folder.iterdir()} == {f"{name}.svg" for name in names}


def test_bad_input_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    good = str(log(tmp_path / "good"))
    (tmp_path / "empty").mkdir()
    log(tmp_path / "none", ["rubbish"])
    log(tmp_path / "old", [updated(10, tokens=None), updated(20, tokens=None)])
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress((tmp_path / "good" / "metrics.jsonl").read_bytes())[:-12])
    for arguments, message in (
        ([str(tmp_path / "missing")], "there is no such file"),
        ([str(tmp_path / "empty")], "no `metrics.jsonl` in this folder"),
        ([str(tmp_path / "none")], "metrics.jsonl:1: it is not JSON"),
        ([str(cut)], "the archive is damaged"),
        ([good, good], "named twice"),
        ([good, "--out", str(tmp_path / "x.pdf")], ".png or .svg"),
        ([good, "--out", str(tmp_path / "old" / "metrics.jsonl" / "x.png")], "cannot be created"),
        ([str(tmp_path / "old"), "--against", "tokens", "--out", str(tmp_path / "x.png")],
         "no counts of target tokens"),
        ([good, "--against", "hours"], "hours"),
    ):  # fmt: skip
        assert message in refused("analyze", "curves", *arguments)
    assert main(["analyze", "curves", str(log(tmp_path / "torn", [*LINES, "{"]))]) == 0
    assert "torn/metrics.jsonl:9: it is not JSON" in capsys.readouterr().err.replace("\n", "")
    models = [str(log(tmp_path / str(index), LINES[1:3])) for index in range(22)]
    out = str(tmp_path / "x.png")
    assert main(["analyze", "curves", *models[:21], "--out", out]) == 0
    assert "At most 21 curves" in refused("analyze", "curves", *models, "--out", out)
    assert main(["analyze", "curves", *models]) == 0
