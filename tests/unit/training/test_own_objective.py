"""Objectives of one's own: what they return is checked, and a negative likelihood can go on."""

from pathlib import Path

import pytest
import torch

from nmtgrid.base.errors import ConfigError
from nmtgrid.training.api import LossParts, checked
from tests.unit.helpers.train_command import SMALL_TRANSFORMER, train

OWN = """
import dataclasses

from nmtgrid.cli.objectives import objectives
from nmtgrid.training.likelihood import LIKELIHOOD


class Rewarded:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def loss(self, model, batch):
        parts = self.inner.loss(model, batch)
        less = 100 * parts.tokens
        return dataclasses.replace(parts, total=parts.total - less, nll=parts.nll - less)


objectives.add("rewarded", dataclasses.replace(
    LIKELIHOOD, name="rewarded", description="likelihood with a reward",
    make=lambda settings: Rewarded(LIKELIHOOD.make(settings)),
))
"""


def test_a_negative_loss_is_saved_and_resumed(
    toy_dataset: Path, tmp_path: Path, messages: list[str]
) -> None:
    file, out = tmp_path / "rewarded.py", tmp_path / "model"
    file.write_text(OWN, encoding="utf-8")
    words = ["--import", file, "--out", out]
    begin = ["--objective", "rewarded", *SMALL_TRANSFORMER, "--set", "training.log_updates=5"]
    assert train(toy_dataset, *words, *begin, "--max-updates", 2) == 0
    assert train(*words, "--resume", "--max-updates", 4) == 0
    assert any("Continuing from update 2" in line for line in messages)


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        (torch.zeros(()), "a Tensor in place of LossParts"),
        (LossParts(torch.zeros(()), 1, torch.zeros(())), "a `total` without a gradient"),
        (LossParts(torch.ones((), requires_grad=True), 1, 0.5), "a `nll` that is not a tensor"),  # type: ignore[arg-type]
        (
            LossParts(torch.ones((), requires_grad=True), 1, torch.zeros(()), {"kept": 1}),  # type: ignore[dict-item]
            "a `kept` that is not a tensor",
        ),
        (
            LossParts(torch.ones((), requires_grad=True), 1, torch.zeros(()), criterion=0.5),  # type: ignore[arg-type]
            "a `criterion` that is not a tensor",
        ),
        *(
            (
                LossParts(
                    torch.ones((), requires_grad=True), 1, torch.zeros(()), {name: torch.ones(())}
                ),
                f"an `extra` called `{name}`",
            )
            for name in ("loss", "nll", "tokens", "criterion")
        ),
    ],
)
def test_what_is_no_loss_is_refused_by_name(parts: object, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        checked(parts)
