"""Position-wise layer normalisation (fig. 3.6c): over the features of one cell alone."""

from __future__ import annotations

from torch import Tensor, nn


class PositionNorm(nn.LayerNorm):
    """Normalise [..., D] over D in the parameters' type and return the input's type."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised features, in the shape and type of `input`."""
        normed = nn.functional.layer_norm(
            input.to(self.weight.dtype), self.normalized_shape, self.weight, self.bias, self.eps
        )
        return normed.to(input.dtype)
