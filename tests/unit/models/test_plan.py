"""`train --dry-run`: the plan in numbers, for lengths of one's own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmtgrid.models import zoo
from nmtgrid.models.cost_report import TABLE, table_steps
from tests.unit.helpers.train_command import TINY_MODEL, train

SIZES = ("--source-vocab-size", "30", "--target-vocab-size", "40")


def plan(folder: Path, *arguments: object) -> dict[str, Any]:
    report = folder / "plan.json"
    assert train("--dry-run", "--json", report, *arguments) == 0
    values: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return values


STEPS = {
    # Rows of tables 2.1 and 3.1 with N = 2 and 3 layers, filters of 4, |x| = 20, |y| = 25:
    # 2 x 20 + 3 x 25 = 115; log_4 25 = 2.3; log_4 500 = 4.5; 25 / 4 = 6.25.
    "RNN (Cho et al., 2014)": (115, 25, 20),
    "RNN (Sutskever et al., 2014)": (115, 25, 45),
    "RNN + attention": (115, 25, 1),
    "ByteNet": (5, 3, 5),
    "ConvS2S": (5, 7, 1),
    "Transformer": (5, 1, 1),
    "Pervasive Attention": (3, 1, 1),
}


def test_orders_of_growth_as_numbers() -> None:
    assert [row.model for row in TABLE] == list(STEPS)
    for model, expected in STEPS.items():
        steps = table_steps(model, (20, 25), (2, 3), 4)
        assert (steps.sequential, steps.target_path, steps.source_path) == expected
    # Logarithms of powers are not rounded up: log_5 25 = 2.
    assert table_steps("ByteNet", (5, 25), (1, 1), 5).target_path == 2


@pytest.mark.parametrize(
    ("arch", "settings", "expected"),
    [
        ("pervasive", ["depth=6"], (6, 1, 1)),
        ("pervasive-densenet", ["depth=5"], (5, 1, 1)),
        ("transformer", ["encoder_depth=2", "decoder_depth=3"], (5, 1, 1)),
        ("convs2s", ["encoder_depth=2", "decoder_depth=3", "kernel=3"], (5, 9, 1)),
        ("bilstm", ["encoder_depth=2", "decoder_depth=1"], (2 * 20 + 25, 25, 1)),
        ("convrnn", ["encoder_depth=3"], (25 + 2 * 3, 25, 3)),
        ("caption-lstm", ["depth=2", "picture=input"], (2 * 26, 25, 25)),
        ("caption-top-down", [], (2 * 25, 25, 1)),
    ],
)
def test_the_numbers_of_each_architecture(
    arch: str, settings: list[str], expected: tuple[int, ...]
) -> None:
    model = zoo.build(arch, overrides=settings, source_vocab_size=30, target_vocab_size=40)
    steps = model.report(20, 25).steps
    assert steps is not None
    assert (steps.sequential, steps.target_path, steps.source_path) == expected


def test_lengths_of_a_pair(tmp_path: Path, toy_dataset: Path, messages: list[str]) -> None:
    options = [*TINY_MODEL, "--set", "batches.max_cells=0", "--set", "batches.max_tokens=1000"]
    values = plan(tmp_path, *SIZES, *options, "--lengths", "20x25")
    assert (values["source_length"], values["target_length"]) == (20.0, 25.0)
    # 1,000 target tokens are 40 sentences of 25; by cells, 3,000 // 500 are 6.
    assert values["pairs_per_update"] == 40
    cells = ["--set", "batches.max_cells=3000"]
    assert plan(tmp_path, *SIZES, *options, *cells, "--lengths", "20x25")["pairs_per_update"] == 6
    model = zoo.build(
        "pervasive", overrides=["depth=1", "size=8", "feed_forward_size=8"],
        source_vocab_size=30, target_vocab_size=40,
    )  # fmt: skip
    assert values["flops_per_pair"] == model.report(20, 25).flops_per_pair
    # Instead of those of the data, whose vocabularies count.
    values = plan(tmp_path, toy_dataset, *options, "--lengths", "3.5x4")
    assert (values["source_length"], values["target_length"]) == (3.5, 4.0)
    assert values["source_vocab_size"] > 30


@pytest.mark.parametrize("text", ["20", "20x", "0x4", "20x25x3", "axb", "1e9x2", "nanx3", "-1x2"])
def test_lengths_that_are_none(text: str, refused: Callable[..., str]) -> None:
    message = refused("train", "--dry-run", *SIZES, "--lengths", text)
    assert "`--lengths` must be two numbers from 1 to 100,000" in message and "20x25" in message
    if text == "20":
        assert "belongs to `--dry-run`" in refused("train", "D", "--out", "M", "--lengths", "2x3")


def test_masked_taps_are_counted(tmp_path: Path, messages: list[str]) -> None:
    """Of k x k taps those below the current row are masked, k x (k - ceil(k / 2))."""
    wide = ["--set", "model.target_kernel=5", "--set", "model.source_kernel=7"]
    # One block: 8 features x 2 of 5 rows x 7 columns; with a causal source 5 x 7 - 3 x 4 taps.
    assert plan(tmp_path, *SIZES, *TINY_MODEL, *wide)["masked_parameters"] == 8 * 2 * 7
    causal = ["--set", "model.source_causal=true"]
    values = plan(tmp_path, *SIZES, *TINY_MODEL, *wide, *causal)
    assert values["masked_parameters"] == 8 * (35 - 12)
    dense = ["depth=1", "growth=4", "bottleneck=2", "kernel=3", "embedding_size=6", "gates=none"]
    options = [word for setting in dense for word in ("--set", f"model.{setting}")]
    values = plan(tmp_path, *SIZES, "--arch", "pervasive-densenet", *options)
    assert values["masked_parameters"] == 4 * (2 * 4) * 1 * 3
    assert plan(tmp_path, *SIZES, "--arch", "transformer")["masked_parameters"] == 0


def _words(shown: str) -> str:
    """Return the text of tables, whose cells are broken where the screen is narrow."""
    return " ".join(re.sub("[│┃]", " ", shown).split())


def test_the_published_count_has_its_vocabularies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], toy_dataset: Path
) -> None:
    values = plan(tmp_path, "--preset", "iwslt14-de-en")
    assert values["published_parameters"] == 12.9e6
    assert values["published_vocab_sizes"] == [8848, 6632]
    shown = _words(capsys.readouterr().err)
    assert "12.9M, with vocabularies of 8,848 and 6,632" in shown and "others" not in shown
    assert plan(tmp_path, toy_dataset, "--preset", "iwslt14-de-en")["parameters"] < 12e6
    shown = _words(capsys.readouterr().err)
    assert "(unlike those here)" in shown
    assert "mean of" in shown
    assert plan(tmp_path, *SIZES)["published_parameters"] is None
