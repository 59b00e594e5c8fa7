"""Under bfloat16 autocast the sums that would suffer are in float32, forward and backward."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nmtgrid.models import zoo
from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings
from tests.invariants.helpers import ragged_batch

SUMS = {"_softmax", "_log_softmax", "cumsum", "logsumexp", "_softmax_backward_data"}
"""Operations whose results must be wide."""
GRID: dict[str, Any] = {"depth": 2, "size": 8, "feed_forward_size": 12, "target_kernel": 3,
                        "source_kernel": 3, "growth": 4}  # fmt: skip
SMALL: dict[str, Any] = {"encoder_depth": 1, "decoder_depth": 1, "size": 8, "heads": 2,
                         "feed_forward_size": 12}  # fmt: skip
CASES: list[tuple[str, dict[str, Any]]] = [
    *(("pervasive", {**GRID, "aggregation": kind}) for kind in ("attention", "max-attention")),
    *(("pervasive", {**GRID, "skip": kind})
      for kind in ("residual", "residual-norm", "residual-gated", "dense")),
    ("pervasive", {**GRID, "source_causal": True, "online_features": "grid"}),
    ("transformer", SMALL),
]  # fmt: skip


class _Watch(TorchDispatchMode):
    """Notes the types of the results of sums."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[str, set[torch.dtype]] = {}
        self.are_narrow = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        tensors = [part for part in tree_leaves(results) if isinstance(part, Tensor)]
        if name in SUMS:
            kinds = {part.dtype for part in tensors if part.is_floating_point()}
            self.found.setdefault(name, set()).update(kinds)
        if name in ("mm", "addmm", "bmm"):
            self.are_narrow |= any(part.dtype == torch.bfloat16 for part in tensors)
        return results


@pytest.mark.parametrize(("architecture", "settings"), CASES, ids=lambda value: str(value)[-60:])
def test_sums_are_wide(architecture: str, settings: dict[str, Any]) -> None:
    model = zoo.build(architecture, None, settings, source_vocab_size=14, target_vocab_size=13)
    batch = ragged_batch((5, 3), (4, 6), 13, 13)
    with _Watch() as watch:
        with torch.autocast("cpu", torch.bfloat16):
            total = Likelihood(LikelihoodSettings()).loss(model.train(), batch).total
        total.backward()
    assert watch.are_narrow
    assert watch.found and set().union(*watch.found.values()) == {torch.float32}
    assert total.dtype == torch.float32
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
