"""`training.compile`: torch.compile for parts of a model, with dynamic shapes.

Called by the command `train` and by prepare.py.
"""

from __future__ import annotations

import shutil

import torch

from nmtgrid.base.errors import ConfigError
from nmtgrid.layers.kernels.triton_support import has_triton
from nmtgrid.models import zoo
from nmtgrid.models.api import TranslationModel
from nmtgrid.training.settings import RunSettings


def check_compile(settings: RunSettings, device: torch.device) -> None:
    """Raise ConfigError if compilation is asked for and makes no sense or cannot be done.

    Asked before data are read: the model is built for its parts, without weights.
    """
    if not settings.training.compile:
        return
    advice = "Set `training.compile=false`"
    with torch.device("meta"):
        model = zoo.from_config(settings.arch, settings.model, 8, 8)
    if not model.compilable():
        raise ConfigError(
            f"`training.compile` works with Transformers only: the architecture `{settings.arch}` "
            "has its own kernels.",
            f"{advice}, or train a Transformer.",
        )
    if settings.training.shard:
        raise ConfigError(
            "`training.compile` and `training.shard` exclude each other.",
            f"{advice} or `training.shard=false`.",
        )
    if device.type == "cuda" and not has_triton():
        raise ConfigError("`training.compile` needs Triton.", f"{advice}.")
    if device.type == "cpu" and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise ConfigError(
            "`training.compile` needs a C++ compiler (c++, g++ or clang++) on this machine.",
            f"{advice}, or install one.",
        )


def compile_parts(model: TranslationModel) -> None:
    """Have torch compile the parts of `model` at their first use, each once for all shapes."""
    for part in model.compilable():
        part.compile(dynamic=True)
