"""Readers of Pervasive Attention: a logit of reading on for every cell of the grid (section 4.4.2).

Cell (t, j) knows the target up to y_t and the source up to x_j, which is what an agent knows when
it decides whether to read x_{j+1} before it writes y_{t+1}.
"""

from __future__ import annotations

from torch import Tensor, nn

from nmtgrid.data.batches import Batch
from nmtgrid.layers.grid.grid_rows import GridState, run_grid
from nmtgrid.layers.kernels.layout import GridLayout
from nmtgrid.models.pervasive.pervasive_config import PervasiveConfig
from nmtgrid.models.pervasive.pervasive_grid import PervasiveGrid


class SharedReader(nn.Module):
    """Decides from the translation network's cells, whose gradient may be cut off."""

    def __init__(self, size: int, *, detached: bool) -> None:
        super().__init__()
        self.decision = _decision(size)
        self.detached = detached

    def decide(self, features: Tensor) -> Tensor:
        """Return logits [...] for features [..., D]."""
        logits: Tensor = self.decision(features.detach() if self.detached else features)
        return logits[..., 0]


class OwnReader(PervasiveGrid):
    """The thesis' agent: a network over a grid of its own, then an affine map to one logit."""

    def __init__(
        self, config: PervasiveConfig, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        super().__init__()
        self.config = config
        depth = config.reader_depth or config.depth
        self.make_grid(source_vocab_size, target_vocab_size, depth)
        self.decision = _decision(config.size)
        self.span = 1 + depth * (config.target_kernel // 2)

    def decide(self, features: Tensor) -> Tensor:
        """Return logits [...] for features [..., D]."""
        logits: Tensor = self.decision(features)
        return logits[..., 0]

    def run(self, batch: Batch) -> tuple[Tensor, GridLayout]:
        """Return the features of the valid cells [cells, D] and where they lie."""
        sides = self._rows(batch.target_input), self._columns(batch.source)
        return run_grid(self.network, *sides, batch.target_lengths, batch.source_lengths)

    def begin(self, source: Tensor, source_lengths: Tensor) -> GridState:
        """Return the state before the first row; a source of no columns begins a stream."""
        state = GridState.begin(self._columns(source), source_lengths)
        return state if source.shape[1] else state.streaming(self.span)

    def write(self, tokens: Tensor, state: GridState) -> tuple[Tensor, GridState]:
        """Return the features [R, S, D] of the row of `tokens` [R], and the state with it."""
        return state.add_row(self.network, self._rows(tokens[:, None], state.position))

    def read(
        self, tokens: Tensor, is_source: Tensor, state: GridState
    ) -> tuple[Tensor | None, GridState]:
        """Return the features of one more source token [R] in the last rows, and the state."""
        column = self._columns(tokens[:, None], state.columns.shape[1])
        return state.add_column(self.network, column, is_source)


Reader = SharedReader | OwnReader


def make_reader(
    config: PervasiveConfig, source_vocab_size: int, target_vocab_size: int
) -> Reader | None:
    """Return the reader that `config` asks for, with drawn weights."""
    if config.reader == "none":
        return None
    if config.reader == "shared":
        return SharedReader(config.size, detached=config.reader_detached)
    return OwnReader(config, source_vocab_size, target_vocab_size)


def _decision(size: int) -> nn.Linear:
    """Return a map to one logit, so small that reading begins at a probability of one half."""
    made = nn.Linear(size, 1)
    nn.init.normal_(made.weight, std=0.003)
    nn.init.zeros_(made.bias)
    return made
