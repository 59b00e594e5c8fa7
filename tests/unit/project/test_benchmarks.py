"""The benchmarks: their arithmetic, their command, and how results are stored and shown."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import analysis, attn2d, bpe_learning, decoding_speed, fill, recordings, shapes
from benchmarks.forms import busiest
from benchmarks.store import Store, format_value, section, table
from benchmarks.text_scale import page as text_page
from benchmarks.timing import (
    Conditions,
    Memory,
    facts,
    measure_command,
    peak_memory,
    run_in_process,
)
from benchmarks.training_speed import measure_one
from benchmarks.whole_run import Epoch, epoch_of, measure_translation, measure_updates, project
from nmtgrid.models import zoo
from nmtgrid.search.cuda_graphs import Graphs, Replay
from nmtgrid.text.vocabulary import END
from nmtgrid.training.settings import BatchSettings

QUICK = Conditions(quick=True, runs=1)


@pytest.fixture(autouse=True)
def drawn_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NMTGRID_DATA", raising=False)


def test_strata_are_the_middles_of_equal_groups() -> None:
    # In order: 1 2 | 3 4 | 5 6, at positions 5 1 | 0 4 | 2 3.
    sizes = np.array([3, 2, 5, 6, 4, 1])
    assert [int(sizes[index]) for index in shapes.strata(sizes, 3)] == [2, 4, 6]
    assert shapes.strata(sizes, 1) == [4] and sorted(shapes.strata(sizes, 100)) == list(range(6))


def test_projections() -> None:
    # 0.01 s per cell; 2 x 150 cells per update; 3 s per update; 100 updates.
    row = project(Epoch(4, 600, 0.8, 0), [1.0, 3.0], [100, 300], accumulation=2, updates=100)
    assert row["cells per update"] == 300 and row["ms per update"] == pytest.approx(3000)
    assert row["minutes"] == pytest.approx(5) and row["plus or minus"] == pytest.approx(0)
    # The mean of 1 and 3 is 2 with a standard error of 1, which is half of the mean.
    row = project(Epoch(1, 100, 1.0, 0), [1.0, 3.0], [100, 100], accumulation=1, updates=30)
    assert row["minutes"] == pytest.approx(1) and row["plus or minus"] == pytest.approx(0.5)
    (training,) = measure_updates(QUICK)
    assert training["updates"] == 650 and training["batches measured"] == 2
    greedy, beam = measure_translation(QUICK)
    assert greedy["sentences"] == 6750 and (greedy["beam"], beam["beam"]) == (1, 5)


def test_epochs_and_their_cells() -> None:
    # With end symbols, targets of 2, 2, 3 tokens; the last pair is too long.
    lengths = np.array([[1, 1], [3, 1], [4, 2], [50, 1]])
    epoch = epoch_of(lengths, BatchSettings(max_tokens=4, max_length=10))
    assert (epoch.batches, epoch.skipped) == (2, 1)
    # 2 x 2 + 2 x 4 of 2 x 2 x 4, and 3 x 5 of as many.
    assert epoch.cells == 12 + 15 and epoch.fill == pytest.approx(27 / 31)
    assert epoch.cells_per_batch == 13.5
    lengths = np.array([[1, 1], [2, 3], [0, 4]])
    assert shapes.valid_cells(lengths, [np.array([0, 2]), np.array([1])]).tolist() == [4 + 5, 12]


def test_lengths_and_their_batches(tmp_path: Path) -> None:
    lengths, origin = shapes.training_lengths(None)
    assert "drawn" in origin and lengths.shape == (160_239, 2)
    # Table 3.2 of the thesis.
    for side, true in ((0, (7, 19, 58)), (1, (7, 19, 56))):
        assert np.percentile(lengths[:, side], (5, 50, 95)) == pytest.approx(true, rel=0.08)
    batches = shapes.real_batches(lengths[:500], BatchSettings(max_tokens=60), 3)
    sizes = [int((batch.source_lengths * batch.target_lengths).sum()) for batch in batches]
    assert len(batches) == 3 and sizes == sorted(sizes)
    assert all(batch.target_input.numel() <= 60 or len(batch) == 1 for batch in batches)
    pieces = decoding_speed.batches_of(lengths, 5, Conditions())
    assert len(pieces) == 4 and all(1 <= len(pairs) <= 8 for pairs in pieces)
    # Adjacent lengths, as in a sorted test set: almost no padding.
    assert all(np.ptp(pairs[:, 0]) <= 5 for pairs in pieces)

    path = tmp_path / "lengths.txt"
    path.write_text("3 4\n10 8\n")
    lengths, origin = shapes.training_lengths(path)
    assert lengths.tolist() == [[3, 4], [10, 8]] and "2 pairs in lengths.txt" in origin
    with pytest.raises(FileNotFoundError):
        shapes.training_lengths(tmp_path / "none.txt")


def test_test_sets_in_batches() -> None:
    lengths = np.array([[0, 3], [101, 2], [5, 5], [2, 2], [9, 9]])
    chosen = decoding_speed.spread_test_set(lengths)
    assert chosen.tolist() == [[2, 2], [5, 5], [9, 9]]
    # 3 x 3, 6 x 6 and 10 x 10.
    assert decoding_speed.cells_of([chosen]) == 145
    assert decoding_speed.cells_of([chosen[:1], chosen[2:]]) == 109
    lengths = np.array([[4, 1], [1, 1], [9, 1], [2, 1]])
    # With end symbols 2, 3, 5, 10: two rows of at most 3, then one of 5, then one of 10.
    assert [part[:, 0].tolist() for part in decoding_speed.cut(lengths, 6)] == [[1, 2], [4], [9]]
    assert [len(part) for part in decoding_speed.cut(lengths, 1)] == [1, 1, 1, 1]


def test_searches_end_where_they_are_told() -> None:
    rule, before = decoding_speed.EndsAt(torch.tensor([2, 0])), torch.zeros(2, 5)
    early = rule.apply(before.clone(), 1, torch.tensor([0, 1]))
    assert early[0, END] == -math.inf and early[0, END - 1] == 0
    assert early[1, END] == 0 and early[1].isinf().sum() == 4
    model = shapes.make_model(shapes.settings_of("bilstm", QUICK)).eval()
    model.step = Mock(wraps=model.step)  # type: ignore[method-assign]
    decoding_speed.decoding(model, [np.array([[3, 4], [2, 2]]), np.array([[5, 1]])], 2, QUICK)()
    # 4 and 1 tokens, plus an end symbol each.
    assert model.step.call_count == 5 + 2


def test_steps_go_through_graphs() -> None:
    model = shapes.make_model(shapes.settings_of("transformer", QUICK)).eval()
    recorded: list[Replay] = []

    def record(fn: Replay, prepare: Callable[[], None]) -> Replay:
        recorded.append(fn)
        return fn

    decoding_speed.stepping(model, 2, 8, QUICK, Graphs(record))()
    assert recorded


def test_settings_of_architectures() -> None:
    full = Conditions()
    grid, other = (shapes.settings_of(name, full) for name in ("pervasive", "transformer"))
    assert shapes.affordable(grid, full).max_cells == 24_000
    assert shapes.affordable(other, full) == other.batches
    assert shapes.affordable(grid, Conditions(device="cuda")) == grid.batches
    for name in zoo.text_architectures():
        assert shapes.settings_of(name, Conditions()).preset == "iwslt14-de-en"
        assert shapes.settings_of(name, Conditions(quick=True)).preset == "toy"


@pytest.mark.parametrize("name", ["pervasive", "convrnn"])
def test_rows_of_an_architecture(name: str) -> None:
    rows = measure_one(name, QUICK)
    assert [row["batch"] for row in rows] == ["2 x 8 x 8", "true lengths"]
    first = rows[0]
    # 2 sentences of 8 tokens, 64 cells per sentence.
    assert first["cells/s"] == pytest.approx(8 * first["target tokens/s"])
    assert first["target tokens/s"] == pytest.approx(16 / first["seconds per update"])
    steps = decoding_speed.measure_steps(name, QUICK)
    assert [row["rows"] for row in steps] == [1, 2] and steps[0]["ms per step"] > 0


def test_beside_the_authors_code() -> None:
    rows = attn2d.rows_of(100, {"attn2d fp32": 2.0, "nmtgrid": 0.5},
                          {"attn2d fp32": 0.3, "nmtgrid": 0.1})  # fmt: skip
    assert [list(row.values()) for row in rows] == [
        ["attn2d fp32", 50, 1, 300, 1],
        ["nmtgrid", 200, 4, 100, pytest.approx(3)],
    ]
    quoted = attn2d.measure(QUICK, None)
    assert quoted["tables"] == {} and "1,258 cells/s" in quoted["notes"][1]


def test_busiest() -> None:
    events = [
        SimpleNamespace(key=name, count=count, self_cpu_time_total=spent)
        for name, count, spent in (("a", 1, 250), ("b", 3, 750))
    ]
    assert busiest(events, "cpu") == [
        {"operator": "b", "calls": 3, "ms": 0.75, "share": 0.75},
        {"operator": "a", "calls": 1, "ms": 0.25, "share": 0.25},
    ]


def _grow(mebibytes: int) -> float:
    memory = Memory("cpu")
    block = torch.ones(mebibytes * 2**18)
    return memory.peak() if len(block) else 0.0


def test_memory_is_that_of_a_process_alone() -> None:
    before = torch.ones(2**26)  # 256 MiB in this process do not count for another one
    assert 60 < run_in_process(_grow, 64) < 80 and len(before)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (1234, "1,234"), (1234.6, "1,235"), (0.01234, "0.0123"), (3.14159, "3.14"),
     (True, "True"), ("a|b", "a\\|b")],
)  # fmt: skip
def test_format_value(value: object, text: str) -> None:
    assert format_value(value) == text


def test_tables_and_what_is_stored(tmp_path: Path) -> None:
    rows = [{"name": "a", "count": 2}, {"name": "b", "ratio": 0.5}]
    assert table(rows).splitlines() == [
        "| name | count | ratio |",
        "| --- | ---: | ---: |",
        "| a | 2 |  |",
        "| b |  | 0.5 |",
    ]
    store = Store(tmp_path / "made", "cpu")
    conditions = facts("cpu")
    store.put("one", section(conditions, {"T": [{"x": 1}]}))
    store.put("two", section(conditions, {"T": [{"x": 2}]}, ["Note."]))
    store.put("one", section(conditions, {"T": [{"x": 3}]}))
    stored = json.loads((tmp_path / "made" / "cpu.json").read_text())
    assert [stored[name]["tables"]["T"] for name in ("one", "two")] == [[{"x": 3}], [{"x": 2}]]
    page = (tmp_path / "made" / "cpu.md").read_text()
    assert page.index("## one") < page.index("## two") < page.index("Note.")
    assert f"date {conditions['date']}" in page and "| 3 |" in page and "| 1 |" not in page


def test_the_command_prints_and_stores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    command.main(["--quick", "--only", "machine,attn2d", "--out", str(tmp_path)])
    torch.set_num_threads(threads)
    shown_text = capsys.readouterr().out
    assert "Matrix products" in shown_text and "1,258" in shown_text
    stored = json.loads((tmp_path / "quick-cpu-1-thread.json").read_text())
    assert list(stored) == ["machine", "attn2d"]
    assert {row["precision"] for row in stored["machine"]["tables"]["Matrix products"]} == {
        "fp32", "bf16"
    }  # fmt: skip
    assert stored["machine"]["facts"]["torch"] == torch.__version__


def test_what_is_only_quoted_replaces_no_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path, "quick-cpu-1-thread")
    store.put("attn2d", section(facts("cpu"), {"T": [{"x": 1}]}))
    threads = torch.get_num_threads()
    command.main(["--quick", "--only", "attn2d", "--out", str(tmp_path)])
    torch.set_num_threads(threads)
    assert "1,258" in capsys.readouterr().out
    assert store.read()["attn2d"]["tables"] == {"T": [{"x": 1}]}


def _chosen(*arguments: str) -> list[str]:
    return command.chosen(command.parser().parse_args(list(arguments)))


def test_what_is_chosen() -> None:
    everything = ["machine", "kernels", "training", "decoding", "twins", "profile", "whole"]
    assert _chosen() == [*everything, "attn2d"]
    assert _chosen("--data", "d") == [*everything, "attn2d", "peers"]
    assert "compiled" in _chosen("--device", "cuda")
    assert _chosen("--only", "whole,machine") == ["machine", "whole"]
    with pytest.raises(SystemExit, match="no part `speed`"):
        _chosen("--only", "speed")


@pytest.mark.parametrize(
    ("has_products", "options", "expected"),
    [
        (True, [], ["bf16", "fp32"]),
        (False, [], ["fp32"]),
        (False, ["--device", "cuda"], ["bf16", "fp32"]),
        (False, ["--precision", "bf16"], ["bf16"]),
    ],
)
def test_precisions_are_those_that_the_device_has(
    has_products: bool, options: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.timing.can_pack", lambda name: has_products)
    parsed = command.parser().parse_args(["--device", "cpu", "--runs", "5", *options])
    conditions = command.conditions_of(parsed)
    assert [condition.precision for condition in conditions] == expected
    assert {condition.runs for condition in conditions} == {5}


def test_batches_of_a_fill() -> None:
    # Areas from 0.2 to 1.8 times 20 x 20: the mean is 0.55 of the largest.
    sizes = np.array(fill.lengths(1 / 1.8, 5, 2))
    assert sizes.tolist() == [9, 15, 20, 24, 27]
    assert fill.lengths(1.0, 3, 1) == [20, 20, 20]


def test_rules_of_padding_are_counted() -> None:
    assert [recordings.power_of_four(count, 4) for count in (1, 4, 5, 17, 64)] == [4, 4, 16, 64, 64]
    # The first step has no caches yet, and the shape is recorded at its ninth step, so the last
    # four of 13 steps are replayed. Four rows of 4 columns, which are padded to 8.
    rule = recordings.Rule("here", recordings.power_of_four, 0)
    lengths = np.array([[3, 12]] * 4)
    with torch.no_grad(), rule.applied():
        counts = recordings.count("pervasive", 1, 100, lengths)
    assert (counts["steps"], counts["recordings"], counts["steps not recorded"]) == (13, 1, 9)
    assert counts["replays of each"] == 4
    assert counts["cells computed for each live one"] == pytest.approx(13 * 32 / (4 * 13 * 4))


def test_three_analyses_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NMTGRID_DATA", str(tmp_path))  # without Multi30k: toy text
    systems = analysis._write(tmp_path, pairs=40, systems=2)
    analysis.together(str(tmp_path / "reference"), str(tmp_path / "source"), *systems)
    names = {path.name for path in tmp_path.glob("*.png")}
    # Figures of `buckets` by each metric, of `lengths` and of `compare`.
    assert {"chrf-by-length-ratio.png", "length-differences.png", "word-accuracy.png"} < names


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(SystemExit, match=r"failed:\n.*no such option here"):
        measure_command([sys.executable, "-c", "import sys; sys.exit('no such option here')"])


def test_the_cost_of_a_command_is_its_own() -> None:
    # This process, which has loaded torch, uses much more memory than a bare interpreter.
    cost = measure_command([sys.executable, "-S", "-c", "import time; time.sleep(0.3)"])
    assert 2 < cost.mebibytes < 60 < peak_memory("self")
    assert cost.wall > 0.3 > cost.cpu > 0 and cost.worker_mebibytes == 0


def test_learning_bpe_leaves_the_datasets_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "bpe.codes").write_text("as it was")

    def measure(copy: Path, merges: int, rounds: int, *, quick: bool) -> dict[str, object]:
        assert copy.name == "data" and (copy / "bpe.codes").read_text() == "as it was"
        (copy / "bpe.codes").write_text(f"{merges} others")
        return {"merges": merges}

    monkeypatch.setattr(bpe_learning, "measure", measure)
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    bpe_learning.main(["--data", str(data), "--merges", "7"])
    assert json.loads(capsys.readouterr().out) == {"merges": 7}
    assert (data / "bpe.codes").read_text() == "as it was"
    with pytest.raises(SystemExit):
        bpe_learning.main(["--data", str(data), str(data), "--merges", "7"])
    assert "2 DATA, but 1 --merges" in capsys.readouterr().err


def test_units_of_text_at_scale() -> None:
    row = {"command": "preprocess", "cpu": 1.5, "wall": 2.5, "pairs_per_cpu_second": 4.0,
           "mebibytes": 8.0, "worker_mebibytes": None}  # fmt: skip
    assert text_page({"corpus": "toy", "cores": 2, "runs": [row]}).splitlines() == [
        "## Text at scale",
        "",
        "corpus toy, cores 2",
        "",
        "### Commands",
        "",
        "| command | CPU s | wall s | pairs/CPU s | MiB | MiB worker |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
        "| preprocess | 1.5 | 2.5 | 4 | 8 |  |",
    ]
    results = Path(analysis.__file__).parent / "results"
    stored = json.loads((results / "text-scale.json").read_text(encoding="utf-8"))
    assert (results / "text-scale.md").read_text(encoding="utf-8") == text_page(stored)
