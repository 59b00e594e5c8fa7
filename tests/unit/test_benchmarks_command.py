"""The benchmarks' command: what it measures when, and how figures are kept and shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks.shapes import settings_of
from benchmarks.store import Store, section, shown, table
from benchmarks.timing import Conditions, Memory, apart, facts
from nmtgrid.models import zoo


def _grow(mebibytes: int) -> float:
    memory = Memory("cpu")
    held = torch.ones(mebibytes * 2**18)
    return memory.peak() if len(held) else 0.0


def test_memory_is_that_of_a_process_alone() -> None:
    before = torch.ones(2**26)  # 256 MiB here are none of another process
    assert 60 < apart(_grow, 64) < 80 and len(before)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (1234, "1,234"), (1234.6, "1,235"), (0.01234, "0.0123"), (3.14159, "3.14"),
     (True, "True"), ("a|b", "a\\|b")],
)  # fmt: skip
def test_shown(value: object, text: str) -> None:
    assert shown(value) == text


def test_table() -> None:
    rows = [{"name": "a", "count": 2}, {"name": "b", "ratio": 0.5}]
    assert table(rows).splitlines() == [
        "| name | count | ratio |",
        "| --- | ---: | ---: |",
        "| a | 2 |  |",
        "| b |  | 0.5 |",
    ]


def test_store_keeps_what_is_not_measured_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "made", "cpu")
    told = facts("cpu")
    store.put("one", section(told, {"T": [{"x": 1}]}))
    store.put("two", section(told, {"T": [{"x": 2}]}, ["Note."]))
    store.put("one", section(told, {"T": [{"x": 3}]}))
    held = json.loads((tmp_path / "made" / "cpu.json").read_text())
    assert [held[name]["tables"]["T"] for name in ("one", "two")] == [[{"x": 3}], [{"x": 2}]]
    page = (tmp_path / "made" / "cpu.md").read_text()
    assert page.index("## one") < page.index("## two") < page.index("Note.")
    assert f"date {told['date']}" in page and "| 3 |" in page and "| 1 |" not in page


def test_the_command_prints_and_stores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    command.main(["--quick", "--only", "machine,attn2d", "--out", str(tmp_path)])
    torch.set_num_threads(threads)
    shown_text = capsys.readouterr().out
    assert "Matrix products" in shown_text and "1,258" in shown_text
    held = json.loads((tmp_path / "quick-cpu-1-thread.json").read_text())
    assert list(held) == ["machine", "attn2d"]
    assert {row["precision"] for row in held["machine"]["tables"]["Matrix products"]} == {
        "fp32", "bf16"
    }  # fmt: skip
    assert held["machine"]["facts"]["torch"] == torch.__version__


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


def test_conditions_of_both_precisions() -> None:
    given = command.parser().parse_args(["--runs", "5"])
    assert [(one.precision, one.runs) for one in command.conditions_of(given)] == [
        ("bf16", 5), ("fp32", 5)
    ]  # fmt: skip


def test_every_architecture_is_measured() -> None:
    for name in zoo.text_architectures():
        assert settings_of(name, Conditions()).preset == "iwslt14-de-en"
        assert settings_of(name, Conditions(quick=True)).preset == "toy"
