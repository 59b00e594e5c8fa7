"""`training.compile`: the same losses, and reasons for refusals."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.base.errors import ConfigError
from nmtgrid.models import zoo
from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings
from nmtgrid.training.optimiser import make_optimiser
from nmtgrid.training.prepare import check_parts
from nmtgrid.training.settings import RunSettings, TrainingSettings
from nmtgrid.training.trained_model import TrainedModel
from nmtgrid.training.update import Updater
from tests.invariants.helpers import ragged_batch

CPU = torch.device("cpu")
COMPILER = any(map(shutil.which, ("c++", "g++", "clang++")))


def settings(arch: str, model: dict[str, Any] | None = None, **training: Any) -> RunSettings:
    config = dataclasses.replace(zoo.architectures().get(arch).config(), **(model or {}))
    training = {"compile": True, **training}
    return RunSettings(arch, model=config, training=TrainingSettings(**training))


@pytest.mark.skipif(not COMPILER, reason="there is no C++ compiler")
def test_losses_are_those_of_the_uncompiled_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """To rounding, in batches of other shapes, which compile nothing anew."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    small = {"size": 16, "feed_forward_size": 32, "heads": 2, "encoder_depth": 1,
             "decoder_depth": 1, "dropout": 0.0}  # fmt: skip
    torch.manual_seed(2)
    batches = [ragged_batch(*lengths, 20, 20) for lengths in (([3, 5], [4, 6]), ([7] * 3, [2] * 3))]
    results = []
    for compiles in (False, True):
        torch.manual_seed(1)
        model = zoo.from_config("transformer", settings("transformer", small).model, 20, 20)
        if compiles:
            for part in model.compilable():
                part.compile(dynamic=True)
        steps = make_optimiser(model, TrainingSettings())
        objective = Likelihood(LikelihoodSettings())
        updater = Updater(TrainedModel(model, objective), steps, CPU, bf16=False, clip_norm=1.0)
        results.append([updater.apply([batch], 0.01) for batch in batches])
    for plain, compiled in zip(*results, strict=True):
        assert compiled.loss == pytest.approx(plain.loss, rel=1e-6)
        assert compiled.gradient_norm == pytest.approx(plain.gradient_norm, rel=1e-5)
    counts = torch._dynamo.utils.counters["stats"]
    assert counts["unique_graphs"] <= 3


@pytest.mark.parametrize(
    ("arch", "training", "message"),
    [
        ("pervasive", {}, "works with Transformers only"),
        ("transformer", {"shard": True}, "exclude each other"),
        ("transformer", {}, r"C\+\+ compiler"),
    ],
)
def test_refusals(
    arch: str, training: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=message):
        check_parts(settings(arch, **training), CPU)
    check_parts(settings(arch, **{**training, "compile": False}), CPU)
