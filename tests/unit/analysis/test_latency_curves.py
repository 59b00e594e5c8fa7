"""Quality against latency: pictures, results of evaluations, published curves."""

import json
import math
import re
from pathlib import Path
from typing import Any, Literal

import pytest

from nmtgrid.analysis.latency import (
    latency_curves,
    latency_section,
    read_online_results,
    reference_curves,
)
from nmtgrid.analysis.plotting.grids import GridRow, PathGrid, draw_paths, staircase
from nmtgrid.analysis.plotting.lines import CurvePoint, Level, TradeoffCurve, draw_tradeoff
from nmtgrid.base.errors import ConfigError, InputError, StorageError
from nmtgrid.cli.app import main
from nmtgrid.online.published import (
    CORPORA,
    CURVES,
    Curve,
    Evaluation,
    Point,
    mismatches,
    warnings,
)
from nmtgrid.online.published import curves as published_curves
from tests.unit.analysis.drawn_figures import drawn_figures, text_faults

OURS = TradeoffCurve(
    "ours, wait-k", [CurvePoint((1.0,), 20.0, "k = 1"), CurvePoint((3.0,), 28.0, "3")], "wait-k"
)
THEIRS = TradeoffCurve(
    "theirs, table D.3", [CurvePoint((0.5,), 19.0, "1"), CurvePoint((4.0,), 27.0)], "wait-k", True
)


def draw(path: Path, *curves: TradeoffCurve) -> str:
    draw_tradeoff(
        curves, path, title="Test $x", x_labels=["AL (source tokens)"], y_label="BLEU",
        levels=[Level("ours, ", 30.0)],
    )  # fmt: skip
    return path.read_text() if path.suffix == ".svg" else ""


def test_all_that_is_named_is_written(tmp_path: Path) -> None:
    text = draw(tmp_path / "curve.svg", OURS, THEIRS)
    named = ("ours, wait-k", "theirs, table D.3", "ours, offline: 30.00", "k = 1", "AL (source")
    for name in named:
        assert f"<!-- {name}" in text
    assert "#0072b2" in text and "#444444" in text, "ours in colour, theirs in grey"
    assert draw(tmp_path / "again.svg", OURS, THEIRS) == text, "the same values, the same file"


def test_no_two_of_many_curves_look_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = drawn_figures(monkeypatch)
    points = [CurvePoint((1.0,), 20.0), CurvePoint((3.0,), 28.0)]
    curves = [TradeoffCurve(f"system {number}", points, "wait-k") for number in range(20)]
    draw(tmp_path / "curve.png", *curves)
    (axes,) = figures[0].axes
    lines: list[Any] = [line for line in axes.get_lines() if line.get_marker() == "o"]
    looks = {(line.get_color(), str(line._unscaled_dash_pattern)) for line in lines}
    assert len(lines) == len(looks) == 20


def test_points_without_numbers_are_left_out(tmp_path: Path) -> None:
    lost, gone = CurvePoint((math.nan,), 3.0, "lost"), CurvePoint((2.0,), math.inf, "gone")
    curve = TradeoffCurve("ours, wait-k", [lost, *OURS.points, gone], "wait-k")
    text = draw(tmp_path / "curve.svg", curve)
    assert "lost" not in text and "gone" not in text and "k = 1" in text
    draw(tmp_path / "none.png", TradeoffCurve("nothing", [CurvePoint((math.nan,), 1.0)], "oracle"))
    assert (tmp_path / "none.png").read_bytes().startswith(b"\x89PNG")


def test_points_far_below_the_others_do_not_flatten_the_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: quartiles of 30 ... 41 and 3 are 32 and 38, so that 3 lies below 32 - 9 = 23."""
    figures = drawn_figures(monkeypatch)
    points = [CurvePoint((float(y - 28),), float(y), str(y)) for y in range(30, 42)]
    far = TradeoffCurve("far", [CurvePoint((-20.0,), 3.0, "far below"), points[0]], "hold-n")
    text = draw(tmp_path / "curve.svg", TradeoffCurve("ours, wait-k", points[1:], "wait-k"), far)
    assert "1 point below this scale" in text and "far below" not in text
    draw(tmp_path / "few.png", TradeoffCurve("ours, wait-k", points[3:], "wait-k"), far)
    (cut,), (few,) = (figure.axes for figure in figures)
    (bottom, top), (left, right) = cut.get_ylim(), cut.get_xlim()
    assert 28 < bottom < 30 and 41 < top < 43 and 0 < left < 2 and 13 < right < 15
    assert few.get_ylim()[0] < 3, "of few points all are shown"
    assert not text_faults(figures[0])


@pytest.mark.parametrize(
    ("low", "level", "left_out"),
    [
        # 24.8 is below 25 too, but nearer to 25.2 than a tenth of the span up to 35.5.
        ((3.0, 24.8, 25.2), 30.0, [3.0]),
        # To leave out 21 would gain little: 4.2 of the 14.5 from there to 35.5.
        ((21.0, 25.2, 25.5), 30.0, []),
        # The best point of a curve is shown, however low, and so is a level.
        ((2.0, 3.0, 20.0), 30.0, [2.0, 3.0]),
        ((3.0, 25.2, 25.5), 20.0, [3.0]),
        # Of a weak system too; without its other points the span would be hardly less.
        ((5.0, 8.0, 12.0), 30.0, []),
    ],
)
def test_a_scale_is_cut_where_that_shows_more(
    low: tuple[float, ...],
    level: float,
    left_out: list[float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By hand: quartiles of 30, 30.5 ... 35.5 and three below are 30.25 and 33.75: 25 and up stay.

    No marker is cut in two by the lower edge.
    """
    figures = drawn_figures(monkeypatch)
    points = [CurvePoint((float(n),), 30 + n / 2) for n in range(12)]
    ours = [CurvePoint((n - 3.0,), y) for n, y in enumerate(low)]
    draw_tradeoff(
        [TradeoffCurve("ours", ours, "wait-k"), TradeoffCurve("theirs", points, "wait-k", True)],
        tmp_path / "curve.png", title="T", x_labels=["x"], y_label="y", levels=[Level("", level)],
    )  # fmt: skip
    (axes,) = figures[0].axes
    notes = [text.get_text() for text in axes.texts if "below this scale" in text.get_text()]
    count = f"{len(left_out)} point{'s' if len(left_out) > 1 else ''} below this scale"
    assert notes == ([count] if left_out else [])
    bottom = axes.get_ylim()[0]
    assert [y for y in low if y < bottom] == left_out and bottom < level
    radius = (4.4 / 2 + 0.7) / 72 * figures[0].dpi
    for y in low:
        assert abs(axes.transData.transform((0.0, y))[1] - axes.bbox.y0) > radius


@pytest.mark.parametrize(("x", "y"), [(6.314, 0.0), (0.62, 27.1), (-0.4, 27.1), (0.0, 0.0)])
def test_a_single_point_has_a_scale_that_can_be_read(
    x: float, y: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = drawn_figures(monkeypatch)
    curve = TradeoffCurve("ours", [CurvePoint((x,), y)], "wait-k")
    draw_tradeoff([curve], tmp_path / "x.png", title="T", x_labels=["x"], y_label="y")
    (axes,) = figures[0].axes
    for value, (low, high) in ((x, axes.get_xlim()), (y, axes.get_ylim())):
        assert low < value < high
        assert 0.1 <= (high - low) / (abs(value) or 1.0) <= 1.1
    assert not text_faults(figures[0])


def test_other_pictures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        draw(tmp_path / "curve.pdf", OURS)
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        draw_paths([GridRow("", [PathGrid("", ["a"], ["b"], [1])])], tmp_path / "x.gif", title="")


def test_the_first_label_that_is_written_says_what_varies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one below the scale nor one without room."""
    figures = drawn_figures(monkeypatch)
    points = [CurvePoint((float(y - 28),), float(y), str(y)) for y in range(30, 42)]
    # Points at the same place have no room for their labels.
    stack = [CurvePoint((2.0,), 30.0 + y / 1000, "0") for y in range(40)]
    low = CurvePoint((1.0,), 3.0, "low")
    curves = [TradeoffCurve("others", stack, "oracle"),
              TradeoffCurve("ours, wait-k", [low, *points], "wait-k", swept="k")]  # fmt: skip
    draw(tmp_path / "curve.png", *curves)
    ((axes,),) = (figure.axes for figure in figures)
    written = [text.get_text() for text in axes.texts]
    (named,) = (text for text in written if "=" in text)
    assert named not in ("k = low", "k = 30") and named.removeprefix("k = ") not in written


def test_labels_keep_off_lines_and_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels of crowded points that have no room are left out; those that stand are free."""
    curves = [
        TradeoffCurve(
            f"system {number}",
            [CurvePoint((float(x),), 20 + x**0.5 + number / 4, f"label {x}") for x in range(12)],
            "wait-k",
        )
        for number in range(4)
    ]
    figures = drawn_figures(monkeypatch)
    draw(tmp_path / "crowded.png", *curves)
    (figure,) = figures
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert 0 < len(boxes) < 48 and not text_faults(figure)
    for line in axes.lines:
        path = line.get_transform().transform_path(line.get_path())
        assert not any(path.intersects_bbox(box, filled=False) for box in boxes)


def test_a_staircase_reads_right_and_writes_down() -> None:
    assert staircase([2, 2, 3]) == ([0, 2, 2, 2, 2, 3, 3], [0, 0, 1, 1, 2, 2, 3])
    assert staircase([]) == ([0], [0])


def test_paths_name_units_of_both_sides(tmp_path: Path) -> None:
    grids = [
        PathGrid("agent, τ = 0.5", ["ein", "Haus@@", "tier"], ["a", "pet"], [1, 3]),
        PathGrid("wait-k, k = 1", ["ein", "Haus@@", "tier"], [], []),
    ]
    draw_paths(
        [GridRow("Line 3", grids), GridRow("Line 4", grids[:1])], tmp_path / "p.svg", title="Paths"
    )
    text = (tmp_path / "p.svg").read_text()
    for name in ("Paths", "Line 3", "agent, τ = 0.5", "wait-k, k = 1", "Haus@@", "pet"):
        assert f"<!-- {name} -->" in text


METRICS = ("ap", "al", "dal", "cw", "max_cw", "laal", "yaal", "length_ratio")


def row(policy: str, key: str, value: float | None, bleu: float, al: float) -> dict[str, Any]:
    token = {**dict.fromkeys(METRICS, 1.0), "al": al, "unit": "token", "convention": "thesis"}
    word = {**token, "al": al / 2, "yaal": None, "unit": "word", "convention": "simuleval"}
    return {
        "system": "m", "policy": policy, key: value, "bleu_tokenized": bleu,
        "latencies": [token, word],
    }  # fmt: skip


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
    lines, levels = latency_curves(
        read_online_results(write(tmp_path, ROWS))[0], "al", "token", "thesis"
    )
    assert [curve.name for curve in lines] == ["wait-k", "agent", "oracle"]
    assert [(*mark.costs, mark.bleu, mark.label) for mark in lines[0].points] == [
        (2.0, 10.0, "1"), (4.0, 20.0, "3"),
    ]  # fmt: skip
    assert [curve.swept for curve in lines] == ["k", "τ", "λ"]
    assert [(level.name, level.bleu) for level in levels] == [("", 30.0)]


def test_other_units_and_conventions_and_missing_values(tmp_path: Path) -> None:
    results, _ = read_online_results(write(tmp_path, ROWS) / "results.json")
    assert results[0].latency("al", "word", "simuleval") == 2.0
    assert math.isnan(results[0].latency("yaal", "word", "simuleval"))
    assert math.isnan(results[0].latency("al", "word", "thesis"))


@pytest.mark.parametrize(
    ("first", "second", "label", "is_refused"),
    [
        ("a/m", "b/m", None, True),
        ("a/m", "b/m", "ours", False),  # joined on purpose
        ("a/m", "/work/a/m", None, False),  # the same, seen from another folder
        ("a/m", "a/m", None, False),
        ("x", "y", None, False),  # `m` is a name that `online-eval` was given
        ("a/m", None, None, False),  # version 0.1.0 did not store the folder
    ],
)
def test_two_models_with_one_name_are_not_joined(
    first: str, second: str | None, label: str | None, is_refused: bool, tmp_path: Path
) -> None:
    results = []
    for folder, model, rows in (("1", first, ROWS[:1]), ("2", second, ROWS[1:2])):
        systems = {} if model is None else {"systems": [{"name": "m", "model": model}]}
        path = tmp_path / f"{folder}.json"
        path.write_text(json.dumps({"settings": rows, **systems}))
        results += read_online_results(path, label)[0]
    if is_refused:
        with pytest.raises(ConfigError, match=r"called `m`: a/m and b/m\..* NAME=RESULTS"):
            latency_section(results)
    else:
        assert len(latency_section(results).values["settings"]) == 2


def test_a_result_without_a_folder_does_not_hide_two_models(tmp_path: Path) -> None:
    results = []
    for number, model in enumerate(("", "a/m", "b/m")):
        path = tmp_path / f"{number}.json"
        systems = [{"name": "m", "model": model}]
        path.write_text(json.dumps({"settings": [ROWS[number]], "systems": systems}))
        results += read_online_results(path)[0]
    assert len(latency_section(results[:2]).values["settings"]) == 2
    with pytest.raises(ConfigError, match="called `m`: a/m and b/m"):
        latency_section(results)


def test_systems_keep_or_change_their_names(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", ROWS[:2]), write(tmp_path / "b", ROWS[:2])
    results = read_online_results(first)[0] + read_online_results(second, "other")[0]
    lines, _ = latency_curves(results, "al", "token", "thesis")
    assert [curve.name for curve in lines] == ["m, wait-k", "other, wait-k"]
    both = write(tmp_path / "c", [ROWS[0], {**ROWS[1], "system": "n"}])
    with pytest.raises(InputError, match="2 systems"):
        read_online_results(both, "one")


def test_what_two_evaluations_share_is_shown_once(tmp_path: Path) -> None:
    """Each has its own k, and both have k = 1 and offline translation."""
    both = [ROWS[1], ROWS[2]]
    agreement = row("local-agreement", "n", None, 30.0, 9.0)
    agreement |= {"parameter": "n", "value": None}
    first = write(tmp_path / "a", [*both, ROWS[0], agreement])
    second = write(tmp_path / "b", [*both, row("wait-k", "k", 5, 22.0, 6.0)])
    results = read_online_results(first)[0] + read_online_results(second)[0]
    section = latency_section(results)
    shown = [cells[1] for cells in section.tables[0].rows]
    assert shown == ["k=1", "k=∞", "k=3", "local-agreement n=∞", "k=5"]
    assert len(section.values["settings"]) == 5
    once = [*{(result.system, result.setting): result for result in results}.values()]
    lines, levels = latency_curves(once, "al", "token", "thesis")
    assert [mark.label for mark in lines[0].points] == ["1", "3", "5"]
    assert levels == [Level("", 30.0)]
    lines, levels = latency_curves(results, "al", "token", "thesis")
    assert levels == [Level("", 30.0)], "of both settings that are offline"


@pytest.mark.parametrize(
    "rows", [[{}], 3, [row("agent", "k", 1, 1.0, 1.0)], [row("wait-k", "j", 1, 1.0, 1.0)]]
)
def test_what_is_no_result_is_refused(tmp_path: Path, rows: Any) -> None:
    with pytest.raises(StorageError, match="missing"):
        read_online_results(tmp_path)
    with pytest.raises(InputError, match="no results of an online evaluation"):
        read_online_results(write(tmp_path, rows))


def run(*arguments: object) -> int:
    return main(["analyze", "latency", *map(str, arguments)])


def test_the_command_draws_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, picture, report = write(tmp_path / "a", ROWS), tmp_path / "p.png", tmp_path / "r.json"
    published = ("--published", "iwslt14-de-en")
    assert run(f"mine={folder}", "--out", picture, "--json", report, *published) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    values = json.loads(report.read_text())
    assert [setting["system"] for setting in values["settings"]] == ["mine"] * 5
    assert values["settings"][0]["al"] == 4.0
    # The same columns as the table of `online-eval`.
    # Longer headings are broken where the screen is narrow.
    names = ["BLEU", "AP", "AL", "DAL", "CW", "max-CW", "LAAL", "YAAL"]
    lines = [re.findall(r"[\w-]+", line) for line in capsys.readouterr().err.splitlines()]
    assert any([name for name in line if name in names] == names for line in lines)
    # All faults are reported together.
    assert run(folder, "--convention", "simuleval", "--unit", "token", *published) == 2
    message = capsys.readouterr().err
    assert all(
        word in message for word in ("--unit token", "published curves have AL", "--out FILE")
    )


def test_simulevals_convention_counts_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without `--unit`, as in `online-eval`; settings are named as in its table."""
    folder, report = write(tmp_path / "a", ROWS), tmp_path / "r.json"
    assert run(folder, "--convention", "simuleval", "--json", report) == 0
    assert "k=" in capsys.readouterr().err
    assert json.loads(report.read_text())["unit"] == "word"


def test_a_computation_aware_metric_is_in_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the time and the exit beside it; a row without times has none."""
    times: dict[str, Any] = {"computation_aware": {"al": 4.75, "laal": 5.25}}
    timed = times | {"seconds_per_token": 0.025, "average_exit": 1.5}
    report = tmp_path / "r.json"
    folder = write(tmp_path / "a", [ROWS[0] | timed, ROWS[1]])
    assert run(folder, "--metric", "ca-al", "--json", report) == 0
    first, second = json.loads(report.read_text())["settings"]
    assert (first["ca_al"], first["ca_laal"], first["al"]) == (4.75, 5.25, 2.0)
    assert (first["seconds_per_token"], first["average_exit"]) == (0.025, 1.5)
    assert second["ca_al"] is second["seconds_per_token"] is None
    lines = [re.findall(r"[\w.=/-]+", line) for line in capsys.readouterr().err.splitlines()]
    assert ["system", "BLEU", "AL", "CA-AL", "LAAL", "CA-LAAL", "ms/token", "exit"] in lines
    assert ["m", "k=3", "20.00", "2.00", "4.75", "1.00", "5.25", "25.00", "1.50"] in lines
    assert ["m", "k=1", "10.00", "1.00", "-", "1.00", "-", "-", "-"] in lines
    assert run(folder, "--metric", "ca-al", "--unit", "token") == 2
    assert "Computation-aware latency counts words" in capsys.readouterr().err
    assert run(folder, "--metric", "ca-al", "--convention", "thesis") == 2
    assert "Computation-aware latency is in SimulEval's convention" in capsys.readouterr().err
    assert run(folder, "--metric", "ca-al", "--convention", "simuleval", "--unit", "word") == 0
    assert run(folder, folder) == 2
    assert "is given twice" in capsys.readouterr().err
    # Other metrics keep their table.
    assert run(folder, "--json", report) == 0
    assert "seconds_per_token" not in json.loads(report.read_text())["settings"][0]


def test_tokens_taken_back_are_in_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "r.json"
    folder = write(tmp_path / "a", [ROWS[0] | {"erasure": 0.25}, ROWS[1]])
    assert run(folder, "--json", report) == 0
    first, second = json.loads(report.read_text())["settings"]
    assert first["erasure"] == 0.25 and second["erasure"] is None
    lines = [re.findall(r"[\w.=/-]+", line) for line in capsys.readouterr().err.splitlines()]
    assert any(line[-2:] == ["ratio", "NE"] for line in lines)
    assert [line[-1] for line in lines if line[:1] == ["m"]] == ["0.25", "-"]


def test_evaluations_of_other_sentences_are_refused(tmp_path: Path, capsys: Any) -> None:
    folders = []
    for name, count in (("a", 9), ("b", 8), ("c", None), ("valid", 9), ("other", 9)):
        folders.append(write(tmp_path / name, ROWS))
        facts: dict[str, Any] = {"settings": ROWS, "languages": ["en", "vi"], "sentences": count}
        facts["data"] = "other/data" if name == "other" else "toy/data"
        facts["split"] = "valid" if name == "valid" else "test"
        (folders[-1] / "results.json").write_text(json.dumps(facts))
    assert run(folders[0], f"other={folders[2]}") == 0
    assert run(folders[0], f"other={folders[1]}") == 2
    assert "different test sets: 8 sentences, 9 sentences" in " ".join(
        capsys.readouterr().err.split()
    )
    assert run(folders[0], f"other={folders[3]}") == 2
    assert "different test sets: `test`, `valid`" in " ".join(capsys.readouterr().err.split())
    assert run(folders[0], f"other={folders[4]}") == 0
    assert "datasets: other en-vi, test; toy en-vi, test." in " ".join(
        capsys.readouterr().err.split()
    )


def test_settings_of_ones_own_may_be_negative(tmp_path: Path) -> None:
    own = row("LogProb", "value", -0.5, 20.0, 4.0) | {"parameter": "least"}
    ((result,), _) = read_online_results(write(tmp_path, [own]))
    assert result.setting.title == "LogProb least = -0.5"


def test_settings_without_a_latency_have_no_place_on_its_curve(tmp_path: Path) -> None:
    rows = [row("wait-k", "k", k, 20.0, 4.0) for k in (5, 50, 1)]
    for each, value in zip(rows, (5.0, None, 1.0), strict=True):
        each["latencies"][0]["yaal"] = value
    results, _ = read_online_results(write(tmp_path, rows))
    (curve,), _ = latency_curves(results, "yaal", "token", "thesis")
    assert [(*mark.costs, mark.label) for mark in curve.points] == [(1.0, "1"), (5.0, "5")]


def test_two_systems_of_one_name_are_refused(tmp_path: Path, capsys: Any) -> None:
    """Their points would be joined to one curve; the same results twice are one system."""
    first, same = write(tmp_path / "a", ROWS), write(tmp_path / "b", ROWS[:1])
    other = write(tmp_path / "c", [row("wait-k", "k", 3, 21.0, 4.0)])
    assert run(first, same) == run(first, f"other={other}") == 0
    assert run(first, other) == 2
    message = capsys.readouterr().err
    assert "two different results of `m` with k = 3" in message and "NAME=RESULTS" in message


def test_lagging_grows_along_every_curve() -> None:
    """By rising k or falling threshold, more is read."""
    for curve in CURVES:
        lags = [point.al for point in curve.points]
        assert lags == sorted(set(lags)), curve.label
        settings = [point.setting for point in curve.points if point.setting is not None]
        assert settings == sorted(settings, reverse=curve.policy == "dynamic")
        assert curve.data in CORPORA
        assert all(5 < point.bleu < 40 for point in curve.points)
    assert len({(curve.data, curve.label) for curve in CURVES}) == len(CURVES)
    assert len({curve.title for curve in CURVES}) == len(CURVES)
    assert all(curve.source for curve in CURVES)


def test_figures_of_the_thesis() -> None:
    pervasive, _, _, paths, *_ = published_curves("iwslt14-de-en")
    assert pervasive.points[0] == Point(19.20, -1.26, 1) and pervasive.source == "thesis table D.3"
    assert pervasive.lowercase and Point(30.58, 3.51, 0.3) in paths.points
    for curve in published_curves("iwslt15-en-vi"):
        assert curve.lowercase != curve.source.startswith("thesis")
    assert "wmt15-de-en" in CORPORA
    with pytest.raises(ConfigError, match=r"no published curves for `iwslt14-de-fr`.*Did you mean"):
        published_curves("iwslt14-de-fr")


def test_figures_of_other_papers() -> None:
    """One point of each of the tables, and what a legend says of the curve."""
    curves = {(curve.data, curve.label): curve for curve in CURVES}
    for data, label, bleu, al, title in (
        ("iwslt14-de-en", "BS-SiMT", 31.37, 7.0, "Guo et al. 2023; IWSLT'14 De-En, lc, BPE"),
        ("iwslt14-de-en", "multi-path wait-k", 29.9, 4.43, "in Guo et al. 2023; IWSLT'14 De-En"),
        ("iwslt14-de-en", "MMA", 30.03, 5.45, "in Guo et al. 2023; IWSLT'14 De-En, lc, BPE"),
        ("iwslt15-en-vi", "HMT", 28.53, 3.72, "Zhang and Feng 2023; IWSLT'15 En-Vi, lc, words"),
        ("iwslt15-en-vi", "ITST", 28.68, 4.55, "Zhang and Feng 2022c; IWSLT'15 En-Vi, lc, words"),
        ("iwslt15-en-vi", "Wait-info", 28.54, 4.6, "Zhang et al. 2022; IWSLT'15 En-Vi"),
        ("iwslt15-en-vi", "GMA", 28.72, 6.55, "Zhang and Feng 2022b; IWSLT'15 En-Vi, lc, words"),
        ("iwslt15-en-vi", "MMA", 27.73, 2.68, "by others (Ma et al. 2020); IWSLT'15 En-Vi"),
        ("iwslt15-en-vi", "TIQ", 28.9, 3.86, "Jain et al. 2023; IWSLT'15 En-Vi, lc, words"),
        ("wmt15-de-en", "Dual Paths (base)", 28.14, 4.02, "2022a; WMT'15 De-En, lc, BPE"),
        ("wmt15-de-en", "HMT (big)", 31.99, 6.56, "Zhang and Feng 2023; WMT'15 De-En, lc, BPE"),
    ):
        curve = curves[data, label]
        assert Point(bleu, al) in curve.points and title in curve.title and curve.lowercase


PAPER = Curve("iwslt15-en-vi", "P", "P", "Q 2020", True, (Point(28.0, 3.0),))


@pytest.mark.parametrize(
    ("evaluation", "unit", "reasons"),
    [
        # Older results do not say what they are of; words are words whatever the vocabulary.
        (Evaluation(), "token", []),
        (Evaluation(), "word", []),
        (Evaluation(("en", "vi"), 1268, True, "bpe"), "word", []),
        (Evaluation(("en", "vi"), 1268, True, "words"), "token", []),
        (Evaluation(("en", "vi"), 1268, True, "bpe"), "token", ["counts words (`--unit word`)"]),
        (Evaluation(("en", "vi"), 1268, False, "words"), "token", ["marked `lc` is lower-cased"]),
        (Evaluation(("en", "vi"), 200, True, "words"), "token", ["1,268 test", "there are 200"]),
        # Of another corpus the number of sentences says no more.
        (Evaluation(("vi", "en"), 200, True, "words"), "token", ["(en-vi), not vi-en"]),
    ],
)  # fmt: skip
def test_what_does_not_compare(
    evaluation: Evaluation, unit: Literal["token", "word"], reasons: list[str]
) -> None:
    text = "\n".join(mismatches(PAPER, evaluation, unit))
    assert all(reason in text for reason in reasons) and bool(text) == bool(reasons)


def test_each_reason_is_said_once() -> None:
    """WMT'15 De-En has cased and lower-cased curves: whichever ours is, some do not compare."""
    ours = Evaluation(("de", "en"), 2169, False, "bpe")
    (reason,) = warnings("wmt15-de-en", [ours, ours], "token")
    assert "`lc`" in reason
    both = warnings("wmt15-de-en", [ours], "word")
    assert len(both) == 2 and reason in both
    assert "BPE tokens (`--unit token`); here it counts words" in "".join(both)


def test_results_say_what_they_are_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, picture = write(tmp_path, ROWS), tmp_path / "p.svg"
    published = ("--out", picture, "--published", "iwslt15-en-vi")
    # Older results do not say, so that there is no warning.
    assert run(folder, *published) == 0
    assert "warning" not in capsys.readouterr().err
    assert run(folder, *published, "--unit", "word") == 2
    assert "No setting of these evaluations has a latency `al` in words and" in " ".join(
        capsys.readouterr().err.split()
    )
    facts = {"languages": ["en", "vi"], "sentences": 9, "lowercase": False, "subwords": "bpe"}
    (tmp_path / "results.json").write_text(json.dumps({"settings": ROWS, **facts}))
    assert run(folder, *published) == 0
    message = " ".join(capsys.readouterr().err.split())
    assert message.count("warning: `--published iwslt15-en-vi`") == 3
    assert all(part in message for part in ("here there are 9", "`lc`", "counts words"))


@pytest.mark.parametrize("data", CORPORA)
def test_published_curves_are_named_in_the_picture(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = drawn_figures(monkeypatch)
    references = reference_curves(data)
    draw_tradeoff([OURS, *references], tmp_path / "p.png", title="T", x_labels=["x"], y_label="y")
    (figure,) = figures
    (axes,) = figure.axes
    labels = {text.get_text() for text in axes.texts}
    assert {curve.short for curve in references} <= labels and not text_faults(figure)
    looks = [(line.get_marker(), line.get_color(), line.get_linestyle()) for line in axes.lines]
    assert len(set(looks)) == len(references) + 1
    legend = " ".join(text.get_text() for text in figure.legends[0].get_texts())
    assert all(curve.title.split()[-1] in legend for curve in published_curves(data))
    assert "…" not in legend
