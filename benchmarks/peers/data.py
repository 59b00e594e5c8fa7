"""The common inputs of all systems in the comparison: text, vocabularies and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.peers.nmtgrid import model_settings
from nmtgrid.base.io.atomic import write_json
from nmtgrid.cli.app import main
from nmtgrid.data.dataset import Dataset
from nmtgrid.models.transformer.model import Transformer

SETTINGS: dict[str, Any] = {
    "size": 256, "depth": 3, "heads": 4, "forward_size": 1024, "dropout": 0.1,
    "label_smoothing": 0.1, "learning_rate": 0.0005, "clip_norm": 5.0, "batch_tokens": 2048,
    "sentences": 64,
}  # fmt: skip
"""Settings of the model (pre-norm, output tied to target embeddings), training and batches."""


def write_task(dataset: Dataset, folder: Path) -> dict[str, Any]:
    """Write the segmented text and the vocabularies of `dataset` to files in `folder`.

    Returns the task, which is sent to every worker.
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
                # For a system that does not append the end symbol itself.
                task[name]["source_with_end"] = str(texts / f"{name}.source_with_end")
                _write(texts / f"{name}.source_with_end", [f"{line} </s>" for line in lines])
    task["weights"] = str(folder / "weights.safetensors")
    task["model"] = str(folder / "model")
    task["ctranslate2"] = str(folder / "ctranslate2")
    write_json(folder / "task.json", task)
    return task


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def plain_weights(model: Transformer) -> dict[str, Tensor]:
    """Return the weights of a pre-norm model under generic names, one tensor for each map."""
    tensors = {
        "source_embedding": model.source_embedding.weight,
        "target_embedding": model.target_embedding.weight,
    }

    def put(name: str, part: Any) -> None:
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = part.weight, part.bias

    def split(name: str, names: str, part: Any) -> None:
        kinds = names.split()
        for kind, weight, bias in zip(
            kinds, part.weight.chunk(len(kinds)), part.bias.chunk(len(kinds)), strict=True
        ):
            tensors[f"{name}.{kind}.weight"], tensors[f"{name}.{kind}.bias"] = weight, bias

    sides: tuple[tuple[str, Any], ...] = (("encoder", model.encoder), ("decoder", model.decoder))
    for side, blocks in sides:
        put(f"{side}.norm", getattr(model, f"{side}_norm"))
        for index, block in enumerate(blocks):
            name = f"{side}.{index}"
            attention = getattr(block, "attention" if side == "encoder" else "self_attention")
            split(f"{name}.attention", "query key value", attention.input_map)
            put(f"{name}.attention.output", attention.output_map)
            around = getattr(block, "add_attention" if side == "encoder" else "add_self")
            put(f"{name}.attention_norm", around.norm)
            put(f"{name}.forward.inner", block.feed_forward.widen)
            put(f"{name}.forward.outer", block.feed_forward.narrow)
            put(f"{name}.forward_norm", block.add_feed_forward.norm)
            if side == "decoder":
                put(f"{name}.source_attention.query", block.source_attention.query_map)
                put(f"{name}.source_attention.output", block.source_attention.output_map)
                put(f"{name}.source_attention_norm", block.add_source.norm)
    maps = " ".join(f"{n}.source_attention.{k}" for n in range(len(model.decoder))
                    for k in ("key", "value"))  # fmt: skip
    split("decoder", maps, model.source_projection)
    return {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}


def train_common(task: dict[str, Any], minutes: float) -> None:
    """Train the weights that all systems decode with, using `nmtgrid train`."""
    settings = {
        "training.clock": "processor", "training.schedule": "cosine-time",
        "training.max_updates": 0, "training.warmup_fraction": 0.08,
        "training.learning_rate": 0.003, "training.validate_epochs": 0,
        "training.validate_minutes": minutes * 0.95, "batches.max_tokens": task["batch_tokens"],
        **{f"model.{name}": value for name, value in model_settings(task).items()},
    }  # fmt: skip
    changes = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    code = main(
        ["train", task["data"], "--arch", "transformer", "--preset", "toy", "--out",
         task["model"], "--overwrite", "--max-minutes", str(minutes), *changes]
    )  # fmt: skip
    if code:
        raise SystemExit(code)
