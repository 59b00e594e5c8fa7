"""A small Transformer for tests."""

from typing import Any

import torch

from nmtgrid.models import zoo
from nmtgrid.models.transformer.model import Transformer

SMALL: dict[str, Any] = {
    "encoder_depth": 2, "decoder_depth": 3, "size": 8, "feed_forward_size": 10, "heads": 2,
    "dropout": 0.0, "embedding_dropout": 0.0,
}  # fmt: skip


def tiny(**changes: Any) -> Transformer:
    """Return a small model all of whose parameters are random, including biases."""
    torch.manual_seed(3)
    model = zoo.build(
        "transformer", None, {**SMALL, **changes}, source_vocab_size=12, target_vocab_size=11
    )
    assert isinstance(model, Transformer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()
