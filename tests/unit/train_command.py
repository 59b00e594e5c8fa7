"""`nmtgrid train` as tests call it, with a toy dataset and a model that takes a moment."""

from __future__ import annotations

from pathlib import Path

from nmtgrid.cli.app import main

TINY_MODEL = (
    "--set", "model.depth=1", "--set", "model.size=8", "--set", "model.feed_forward_size=8",
)  # fmt: skip


def toy_data(folder: Path, *options: str) -> Path:
    """Return `folder` with a toy dataset; `options` are those of `bpe learn`."""
    assert main(["preprocess", "--toy", "60", "--out", str(folder)]) == 0
    assert main(["bpe", "learn", str(folder), "--merges", "40", *options]) == 0
    return folder


def train(*arguments: object) -> int:
    """Return the exit code of `nmtgrid train`."""
    return main(["train", *map(str, arguments)])
