"""The grid of Pervasive Attention: both embeddings, their joint map, and the network over it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nmtgrid.layers.embedding import Embedding
from nmtgrid.layers.grid.grid_network import GridNetwork
from nmtgrid.layers.grid.networks import NETWORKS
from nmtgrid.layers.static_position import Position
from nmtgrid.models.first_symbol import first_alias
from nmtgrid.models.pervasive.grid_model import grid_embedding
from nmtgrid.models.pervasive.pervasive_config import PervasiveConfig, network_plan
from nmtgrid.text.vocabulary import PAD


class PervasiveGrid(nn.Module):
    """A network over a grid of its own: the translation network, or a reader beside it."""

    config: PervasiveConfig
    source_embedding: Embedding
    target_embedding: Embedding
    grid_map: nn.Parameter
    grid_bias: nn.Parameter | None
    network: GridNetwork

    def make_grid(self, source_vocab_size: int, target_vocab_size: int, depth: int) -> None:
        """Draw the parts that `config` asks for, with `depth` blocks."""
        config = self.config
        embedded = config.embedding_size or config.size
        self.source_embedding = self._embedding(source_vocab_size, embedded)
        self.target_embedding = (
            self.source_embedding
            if config.tie == "all"
            else self._embedding(target_vocab_size, embedded)
        )
        self.grid_map = nn.Parameter(torch.empty(config.size, 2 * embedded))
        self.grid_bias = nn.Parameter(torch.zeros(config.size)) if config.grid_bias else None
        nn.init.xavier_uniform_(self.grid_map)
        self.network = NETWORKS[config.skip](network_plan(config, depth))

    def _embedding(self, count: int, size: int) -> Embedding:
        scale = self.config.scale_embeddings
        alias = first_alias(self.config.first_symbol)
        return grid_embedding(self.config, count, size, scale=scale, padding=PAD, alias=alias)

    def _columns(self, source: Tensor, first_position: int = 0) -> Tensor:
        """Return [B, S, D]: the source's part of Eq. (3.1), with the bias.

        W_0 [E y; E x] is W_y E y + W_x E x: the two sides are projected apart and added in the
        grid, so the concatenation of 2d features in every cell is never built.
        """
        embedded = self.source_embedding(source, first_position)
        weight = self.grid_map[:, embedded.shape[-1] :]
        return nn.functional.linear(embedded, weight, self.grid_bias)

    def _rows(self, target: Tensor, first_position: Position = 0) -> Tensor:
        """Return [B, T, D]: the target's part of Eq. (3.1)."""
        embedded = self.target_embedding(target, first_position)
        return nn.functional.linear(embedded, self.grid_map[:, : embedded.shape[-1]])
