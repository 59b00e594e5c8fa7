"""A naive implementation of Pervasive Attention, as a baseline for the benchmarks.

Grids are [B, D, T, S] with padding; every cell concatenates both embeddings; the k x k filters are
stored whole and masked; the softmax is over all positions, including padding. It computes the same
function (checked by `check_twins` in `twins.py`) for the residual-cumulative network with
max-pooling.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmtgrid.data.batches import Batch
from nmtgrid.models.pervasive.model import PervasiveAttention


class NaivePervasive(nn.Module):
    """A naive Pervasive Attention with the weights of a model of the zoo."""

    def __init__(self, model: PervasiveAttention) -> None:
        super().__init__()
        config = model.config
        size, kernel = config.size, (config.target_kernel, config.source_kernel)
        state = model.state_dict()
        self.rate = config.dropout
        self.source = nn.Parameter(state["source_embedding.weight"].clone())
        self.target = nn.Parameter(state["target_embedding.weight"].clone())
        self.bias = nn.Parameter(state["output_bias"].clone())
        self.grid = nn.Conv2d(2 * size, size, 1)
        self.grid.weight.data = state["grid_map"][:, :, None, None].clone()
        self.grid.bias = nn.Parameter(state["grid_bias"].clone())
        self.blocks = nn.ModuleList()
        for index in range(config.depth):
            first, second = f"network.layers.{2 * index}", f"network.layers.{2 * index + 1}"
            block = nn.ModuleDict(
                {
                    "map": nn.Conv2d(size, size, 1),
                    "filter": nn.Conv2d(
                        size, size, kernel, groups=size, bias=False,
                        padding=(kernel[0] // 2, kernel[1] // 2),
                    ),
                    "widen": nn.Conv2d(size, config.feed_forward_size, 1),
                    "narrow": nn.Conv2d(config.feed_forward_size, size, 1),
                }
            )  # fmt: skip
            for name, key in (
                ("map", f"{first}.map"), ("widen", f"{second}.widen"),
                ("narrow", f"{second}.narrow"),
            ):  # fmt: skip
                block[name].weight.data = state[f"{key}.weight"][:, :, None, None].clone()
                block[name].bias.data = state[f"{key}.bias"].clone()
            filters = state[f"{first}.convolution.weight"].permute(2, 0, 1)[:, None]
            block["filter"].weight.data = filters.clone()
            self.blocks.append(block)
        mask = torch.zeros(1, 1, *kernel)
        mask[:, :, : kernel[0] // 2 + 1] = 1
        self.mask: Tensor
        self.register_buffer("mask", mask)

    def forward(self, source: Tensor, target: Tensor, source_lengths: Tensor) -> Tensor:
        """Return logits [B, T, V] for source [B, S] and target input [B, T]."""
        rows, columns = self._embed(self.target, target), self._embed(self.source, source)
        count, height, width = len(source), target.shape[1], source.shape[1]
        grid = torch.cat(
            [
                rows[:, :, None, :].expand(count, height, width, -1),
                columns[:, None, :, :].expand(count, height, width, -1),
            ],
            -1,
        ).permute(0, 3, 1, 2)
        real = torch.arange(width, device=source.device)[None, :] < source_lengths[:, None]
        hidden = self.grid(grid)
        total = hidden
        for block in self.blocks:
            assert isinstance(block, nn.ModuleDict) and isinstance(block["filter"], nn.Conv2d)
            mixed = block["map"](hidden) * real[:, None, None, :]
            weight = block["filter"].weight * self.mask
            padding = (weight.shape[2] // 2, weight.shape[3] // 2)
            mixed = F.conv2d(mixed, weight, padding=padding, groups=weight.shape[0])
            hidden = 0.5**0.5 * (hidden + F.dropout(mixed, self.rate, self.training))
            fed = block["narrow"](F.relu(block["widen"](hidden)))
            hidden = 0.5**0.5 * (hidden + F.dropout(fed, self.rate, self.training))
            total = total + hidden
        pooled = (total / (len(self.blocks) + 1)).masked_fill(~real[:, None, None, :], -1e9)
        features = F.dropout(pooled.amax(3).transpose(1, 2), self.rate, self.training)
        return F.linear(features, self.target, self.bias)

    def loss(self, batch: Batch, smoothing: float) -> Tensor:
        """Return the label-smoothed cross-entropy summed over the target tokens."""
        logits = self(batch.source, batch.target_input, batch.source_lengths)
        return F.cross_entropy(
            logits.float().flatten(0, 1), batch.target_output.flatten(),
            ignore_index=0, label_smoothing=smoothing, reduction="sum",
        )  # fmt: skip

    def _embed(self, table: Tensor, tokens: Tensor) -> Tensor:
        size = table.shape[1]
        places = torch.arange(tokens.shape[1], device=tokens.device)[:, None]
        channels = torch.arange(0, size, 2, device=tokens.device)
        rates = torch.exp(channels * (-math.log(10000.0) / size))
        waves = torch.stack([(places * rates).sin(), (places * rates).cos()], -1).flatten(1)
        return F.dropout(table[tokens] * size**0.5 + waves, self.rate, self.training)
