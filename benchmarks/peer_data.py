"""What all systems of the benchmark of peers get: the same text, vocabularies and settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nmtgrid.data.dataset import Dataset

SETTINGS: dict[str, Any] = {
    "size": 256, "depth": 3, "heads": 4, "forward_size": 1024, "dropout": 0.1,
    "label_smoothing": 0.1, "learning_rate": 0.0005, "clip_norm": 5.0, "batch_tokens": 2048,
    "sentences": 64,
}  # fmt: skip
"""The model (pre-norm, output tied to the target embeddings), the training, the batches."""


def write_task(dataset: Dataset, folder: Path) -> dict[str, Any]:
    """Write the segmented text and the vocabularies of `dataset` below `folder`, as files.

    Returns the task: what every worker is told.
    """
    texts = folder / "text"
    texts.mkdir(parents=True, exist_ok=True)
    sides = {
        "source": dataset.pipeline.source_vocabulary,
        "target": dataset.pipeline.target_vocabulary,
    }
    task: dict[str, Any] = {**SETTINGS, "folder": str(folder), "data": str(dataset.path)}
    task["vocabulary"] = {side: str(texts / f"vocabulary.{side}") for side in sides}
    for side, vocabulary in sides.items():
        _write(texts / f"vocabulary.{side}", list(vocabulary.types))
    for name in ("train", "test"):
        split = dataset.split(name)
        task[name] = {side: str(texts / f"{name}.{side}") for side in sides}
        for side, vocabulary in sides.items():
            read = split.source if side == "source" else split.target
            lines = [" ".join(vocabulary.decode(read(i))) for i in range(len(split))]
            _write(texts / f"{name}.{side}", lines)
            if side == "source":
                # For a system that does not end its sources itself.
                task[name]["source_with_end"] = str(texts / f"{name}.source_with_end")
                _write(texts / f"{name}.source_with_end", [f"{line} </s>" for line in lines])
    task["weights"] = str(folder / "weights.safetensors")
    task["model"] = str(folder / "model")
    task["ctranslate2"] = str(folder / "ctranslate2")
    (folder / "task.json").write_text(json.dumps(task, indent=2) + "\n", encoding="utf-8")
    return task


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
