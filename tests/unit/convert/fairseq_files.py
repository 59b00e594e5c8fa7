"""Writes what fairseq leaves behind: checkpoints in torch's two formats, dictionaries."""

from argparse import Namespace
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

TYPES = 16, 13
"""Types of the source and the target, special symbols included."""


def write_dictionaries(folder: Path) -> tuple[Path, Path]:
    """Write `dict.de.txt` and `dict.en.txt`, of `TYPES`, the last ones fillers."""
    for name, count in zip(("de", "en"), TYPES, strict=True):
        words = [f"{name}{number}" for number in range(count - 6)]
        fillers = [f"madeupword{number:04d}" for number in range(2)]
        lines = [f"{word} {90 - rank}\n" for rank, word in enumerate(words)]
        text = "".join([*lines, *(f"{filler} 0\n" for filler in fillers)])
        (folder / f"dict.{name}.txt").write_text(text, encoding="utf-8")
    return folder / "dict.de.txt", folder / "dict.en.txt"


def content(options: Namespace, state: dict[str, Tensor], form: str = "args") -> dict[str, Any]:
    """Return what a checkpoint holds: options as `args`, as a table `cfg`, or in a newer one.

    A newer table keeps what belongs to one side, or to a kind of noise, in tables of their own.
    """
    checkpoint: dict[str, Any] = {
        "args": None, "cfg": None, "model": OrderedDict(state),
        "optimizer_history": [{"criterion_name": "CrossEntropy", "num_updates": 7}],
        "extra_state": {"train_iterator": {"epoch": 2}, "val_loss": 1.5},
        "last_optimizer_state": {"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": [{}]},
    }  # fmt: skip
    if form == "args":
        return checkpoint | {"args": options}
    values = dict(vars(options))
    table: dict[str, Any] = {"_name": values.pop("arch")}
    task = {"_name": "translation", "source_lang": values.pop("source_lang"),
            "target_lang": values.pop("target_lang")}  # fmt: skip
    for key, value in values.items():
        side, _, inner = key.partition("_")
        if form == "nested" and side in ("encoder", "decoder"):
            table.setdefault(side, {})[inner] = value
        else:
            table[key] = value
    model: Any = Namespace(**table) if form == "cfg" else table
    criterion = {"_name": "cross_entropy"}
    return checkpoint | {"cfg": {"task": task, "model": model, "criterion": criterion}}


def write_checkpoint(path: Path, values: Any, *, zipped: bool = True) -> Path:
    """Save `values` as torch does now, or as it did before version 1.6."""
    torch.save(values, path, _use_new_zipfile_serialization=zipped)
    return path
