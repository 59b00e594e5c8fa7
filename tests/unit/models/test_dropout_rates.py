"""Where each rate of dropout is applied in training, counted for every architecture."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from nmtgrid.layers import attention
from nmtgrid.layers.kernels import dropout, gated_conv
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites
from tests.invariants.cases import Case
from tests.invariants.helpers import batch_for

RATES = {
    "dropout": 0.5, "embedding_dropout": 0.25, "output_dropout": 0.125, "attention_dropout": 0.375,
    "activation_dropout": 0.0625, "transparent_dropout": 0.75,
}  # fmt: skip
NAMES = {rate: name for name, rate in RATES.items()}
# An embedding on each side, one classifier.
ENDS = {"embedding_dropout": 2, "output_dropout": 1}
# Of each block the sub-layers: two of two encoder blocks, three of two decoder blocks.
BLOCKS = {
    "dropout": 2 * 2 + 2 * 3, "attention_dropout": 2 + 2 * 2, "activation_dropout": 2 + 2,
    "embedding_dropout": 2,
}  # fmt: skip
MASKS: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    ("transformer", {}, BLOCKS),
    ("transformer", {"norm": "pre", "activation": "swish"}, BLOCKS),
    ("transformer", {"reader": "transport", "encoder": "unidirectional"}, BLOCKS),
    ("transformer", {"reader": "information"}, BLOCKS),
    ("transformer", {"reader": "monotonic", "encoder": "unidirectional"}, BLOCKS),
    ("transformer", {"transparent": True}, {**BLOCKS, "transparent_dropout": 1}),
    # Two convolutions a side.
    ("convs2s", {}, {"dropout": 4, **ENDS}),
    # Two layers a side; in a loop, and with all positions of a layer at once.
    ("bilstm", {"input_feeding": True}, {"dropout": 4, **ENDS}),
    ("bilstm", {"input_feeding": False}, {"dropout": 4, **ENDS}),
    # Two windows a side, and the sentence's vector between them if there is one.
    ("convrnn", {"form": "phrase"}, {"dropout": 4, **ENDS}),
    ("convrnn", {"form": "sentence"}, {"dropout": 5, **ENDS}),
    # Two blocks of two layers.
    ("pervasive", {"skip": "residual"}, {"dropout": 4, **ENDS}),
    ("pervasive", {"skip": "residual-norm"}, {"dropout": 4, **ENDS}),
    ("pervasive", {"skip": "residual-cumulative"}, {"dropout": 4, **ENDS}),
    ("pervasive", {"skip": "residual-gated"}, {"dropout": 4, **ENDS}),
    # Two layers, each with a narrow and a grown output.
    ("pervasive", {"skip": "dense"}, {"dropout": 4, **ENDS}),
    ("pervasive-densenet", {}, {"dropout": 2, **ENDS}),
    # Between two layers; the picture has no embedding.
    ("caption-lstm", {}, {"dropout": 1, "embedding_dropout": 1, "output_dropout": 1}),
    ("caption-top-down", {}, {"embedding_dropout": 1, "output_dropout": 1}),
]
"""An architecture with its settings, and how many masks are drawn with each rate."""


def test_every_architecture_is_counted() -> None:
    assert {arch for arch, *_ in MASKS} == set(zoo.architectures())


@pytest.mark.parametrize(("arch", "changes", "expected"), MASKS)
def test_each_layer_draws_its_mask(
    arch: str, changes: dict[str, Any], expected: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training; without it none is drawn."""
    fields = {field.name for field in dataclasses.fields(zoo.architectures().get(arch).config)}
    rates = {name: rate for name, rate in RATES.items() if name in fields}
    model = Case(arch, tuple((changes | rates).items())).build()
    batch = batch_for(model, (7, 5), (6, 8))
    drawn: Counter[str] = Counter()
    draw, theirs = dropout.draw_mask, torch.nn.functional.dropout

    def counted_draw(like: Tensor, rate: float) -> Tensor:
        drawn[NAMES[rate]] += 1
        return draw(like, rate)

    def counted(states: Tensor, rate: float, training: bool) -> Tensor:
        drawn[NAMES[rate]] += training
        return theirs(states, rate, training)

    for module in (dropout, gated_conv, attention):
        monkeypatch.setattr(module, "draw_mask", counted_draw)
    monkeypatch.setattr(torch.nn.functional, "dropout", counted)
    with torch.no_grad():
        model.features(batch, PredictionSites.offline(batch))
        assert not drawn.total()
        model.train().features(batch, PredictionSites.offline(batch))
    assert drawn == expected
