"""A small model with random weights for a dataset, for tests of commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from nmtgrid.data.dataset import Dataset
from nmtgrid.models import zoo
from nmtgrid.models.directory import save_model

TINY_GRID: dict[str, Any] = {"depth": 1, "size": 8, "feed_forward_size": 8}


def toy_model(
    folder: Path,
    data: Path,
    arch: str = "pervasive",
    settings: dict[str, Any] = TINY_GRID,
    *,
    seed: int = 1,
    std: float | None = None,
    search: dict[str, Any] | None = None,
) -> Path:
    """Save a model for the vocabularies of `data`, with random weights of deviation `std`.

    Returns `folder`.
    """
    pipeline = Dataset.open(data).pipeline
    torch.manual_seed(seed)
    model = zoo.build(
        arch,
        overrides=settings,
        source_vocab_size=len(pipeline.source_vocabulary),
        target_vocab_size=len(pipeline.target_vocabulary),
    )
    if std is not None:
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=std)
    save_model(folder, model, pipeline, {} if search is None else {"search": search})
    return folder


def count_parameters(
    arch: str, preset: str | None, source: int, target: int, **settings: Any
) -> int:
    """Return the number of parameters with vocabularies of `source` and `target` types."""
    with torch.device("meta"):
        model = zoo.build(
            arch, preset, settings, source_vocab_size=source, target_vocab_size=target
        )
    return model.count_parameters()


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
