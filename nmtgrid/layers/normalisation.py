"""Position-wise layer normalisation (fig. 3.6c): over the features of one cell alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PositionNorm(nn.LayerNorm):
    """Normalise [..., D] over D with statistics in fp32 at least and return the input's type."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised features, in the shape and type of `input`."""
        if input.device.type == "cpu" and input.dtype is torch.bfloat16:
            # The CPU's kernel reads bf16 and computes in fp32 by itself.
            found: Tensor = torch.native_layer_norm(
                input, self.normalized_shape, self.weight, self.bias, self.eps
            )[0]
            return found
        normed = nn.functional.layer_norm(
            input.to(self.weight.dtype), self.normalized_shape, self.weight, self.bias, self.eps
        )
        return normed.to(input.dtype)
