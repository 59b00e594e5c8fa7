"""Pervasive Attention (chapter 3): a 2-D convolutional network over the source-target grid.

Cell (t, j) of the grid is a function of the target prefix up to y_t and the source around x_j. The
network's blocks are in `layers.grid`, pooling and decoding in `grid_model`. For simultaneous
translation (section 4.3.2) the network is causal in the source too, and a reader, on the same grid
or its own, predicts READ or WRITE at each cell (section 4.4.2).
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from nmtgrid.base.config import from_attributes
from nmtgrid.data.batches import Batch
from nmtgrid.layers.embedding import Embedding
from nmtgrid.layers.grid.aggregation import LastCell, aggregator
from nmtgrid.layers.grid.networks import NETWORKS, GridNetwork, NetworkPlan
from nmtgrid.layers.grid.prefix_pooling import prefix_pooling
from nmtgrid.layers.grid.state import GridState, run_grid
from nmtgrid.layers.kernels.layout import GridLayout
from nmtgrid.layers.probes import ProbePoint
from nmtgrid.layers.static_cache import Position
from nmtgrid.models.api import PredictionSites, Report, Traits, numbered
from nmtgrid.models.config_checks import first_alias
from nmtgrid.models.cost_report import table_report
from nmtgrid.models.pervasive.config import PervasiveConfig, cell_flops
from nmtgrid.models.pervasive.grid_model import GridModel, output_map
from nmtgrid.text.vocabulary import PAD


class PervasiveGrid(nn.Module):
    """A network over its own grid: the translation network, or a separate reader."""

    config: PervasiveConfig
    source_embedding: Embedding
    target_embedding: Embedding
    grid_map: nn.Parameter
    grid_bias: nn.Parameter | None
    network: GridNetwork

    def make_grid(self, source_vocab_size: int, target_vocab_size: int, depth: int) -> None:
        """Build and initialise the parts that `config` requires, with `depth` blocks."""
        config = self.config
        self.source_embedding = self._embedding(source_vocab_size)
        self.target_embedding = (
            self.source_embedding if config.tie == "all" else self._embedding(target_vocab_size)
        )
        # One matrix, as in Eq. (3.1) and in checkpoints; `_columns` and `_rows` use its halves.
        self.grid_map = nn.Parameter(torch.empty(config.size, 2 * config.embedded))
        self.grid_bias = nn.Parameter(torch.zeros(config.size)) if config.grid_bias else None
        nn.init.xavier_uniform_(self.grid_map)
        self.network = NETWORKS[config.skip](from_attributes(NetworkPlan, config, depth=depth))

    def _embedding(self, count: int) -> Embedding:
        return Embedding(
            count,
            self.config.embedded,
            positions=self.config.positions,
            scale=self.config.scale_embeddings,
            dropout_rate=self.config.embedding_dropout,
            padding=PAD,
            alias=first_alias(self.config.first_symbol),
        )

    def _columns(self, source: Tensor, first_position: int = 0) -> Tensor:
        """Return the source's part [B, S, D] of Eq. (3.1), with the bias.

        W_0 [E y; E x] is W_y E y + W_x E x: the two sides are projected separately and added in the
        grid, so the concatenation of 2d features in every cell is never built.
        """
        embedded = self.source_embedding(source, first_position)
        weight = self.grid_map[:, embedded.shape[-1] :]
        return nn.functional.linear(embedded, weight, self.grid_bias)

    def _rows(self, target: Tensor, first_position: Position = 0) -> Tensor:
        """Return the target's part [B, T, D] of Eq. (3.1)."""
        embedded = self.target_embedding(target, first_position)
        return nn.functional.linear(embedded, self.grid_map[:, : embedded.shape[-1]])


class SharedReader(nn.Module):
    """A reader on the cells of the translation network, optionally without a gradient into it."""

    def __init__(self, size: int, *, detached: bool) -> None:
        super().__init__()
        # The map is so small that READ starts with a probability of one half.
        self.decision, self.detached = output_map(size, 1), detached

    def decide(self, features: Tensor) -> Tensor:
        logits: Tensor = self.decision(features.detach() if self.detached else features)
        return logits[..., 0]


class OwnReader(PervasiveGrid):
    """The thesis' agent: a network over its own grid, then an affine map to one logit."""

    def __init__(
        self, config: PervasiveConfig, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        super().__init__()
        self.config = config
        depth = config.reader_depth or config.depth
        self.make_grid(source_vocab_size, target_vocab_size, depth)
        self.decision = output_map(config.size, 1)
        # Target rows that a cell sees: a stream's caches need no more.
        self.span = 1 + depth * (config.target_kernel // 2)

    def decide(self, features: Tensor) -> Tensor:
        logits: Tensor = self.decision(features)
        return logits[..., 0]

    def run(self, batch: Batch) -> tuple[Tensor, GridLayout]:
        sides = self._rows(batch.target_input), self._columns(batch.source)
        return run_grid(self.network, *sides, batch.target_lengths, batch.source_lengths)

    def begin(self, source: Tensor, source_lengths: Tensor) -> GridState:
        """Return the state before the first row; a source of no columns begins a stream."""
        state = GridState.begin(self._columns(source), source_lengths)
        return state if source.shape[1] else state.streaming(self.span)

    def write(self, tokens: Tensor, state: GridState) -> tuple[Tensor, GridState]:
        return state.add_row(self.network, self._rows(tokens[:, None], state.position))

    def read(
        self, tokens: Tensor, is_source: Tensor, state: GridState
    ) -> tuple[Tensor | None, GridState]:
        """Return the features of one more source token [R] in the last rows, and the state."""
        column = self._columns(tokens[:, None], state.columns.shape[1])
        return state.add_column(self.network, column, is_source)


class PervasiveAttention(PervasiveGrid, GridModel):
    """The thesis' model with every skip connection, aggregator and option of its tables."""

    architecture = "pervasive"
    network: GridNetwork

    def __init__(
        self, config: PervasiveConfig, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        super().__init__()
        self.config = config
        self.make_grid(source_vocab_size, target_vocab_size, config.depth)
        self.online_features = config.online_features
        self.aggregator = (
            LastCell(config.size)
            if self.online_features == "cell"
            else aggregator(config.aggregation, config.size, config.attention_activation)
        )
        pooled = self.aggregator.output_size
        classified = config.classified
        # The projection starts near zero: the first loss is log V, so large learning rates work.
        self.output_map = (
            output_map(pooled, classified)
            if config.output_map or pooled != classified
            else nn.Identity()
        )
        own = config.tie == "none"
        self.make_classifier(target_vocab_size, classified, own=own, bias=config.output_bias)
        # The last cell read has no cells to its right.
        one_side = config.source_causal or self.online_features == "cell"
        seen = config.source_kernel // 2 if one_side else config.source_kernel - 1
        self.traits = Traits(
            prefix_safe=config.source_causal,
            every_cell=config.source_causal,
            source_receptive_field=1 + config.depth * seen,
            target_receptive_field=1 + config.depth * (config.target_kernel // 2),
            aligns=True,
            reads=config.reader != "none",
        )
        # A reader is drawn last: models without one have the same weights for the same seed.
        self.reader: SharedReader | OwnReader | None = None
        if config.reader == "shared":
            self.reader = SharedReader(config.size, detached=config.reader_detached)
        elif config.reader == "own":
            self.reader = OwnReader(config, source_vocab_size, target_vocab_size)

    def begin(self, source: Tensor, source_lengths: Tensor) -> GridState:
        """Return the state before the first row; a source of no columns begins a stream."""
        state = super().begin(source, source_lengths)
        if isinstance(self.reader, OwnReader):
            reader = self.reader.begin(source, source_lengths)
            state = dataclasses.replace(state, reader=reader)
        if source.shape[1] or not self.config.source_causal:
            return state
        # If predictions use all rows, a new column has to be computed in all of them.
        rows = None if self.online_features == "grid" else self.traits.target_receptive_field
        return state.streaming(rows)

    def extend(self, tokens: Tensor, state: GridState) -> GridState:
        """Return the state with one more source column [R]; `<pad>` adds nothing to its row."""
        if not self.config.source_causal:
            raise self.refusal()
        is_source = tokens != PAD
        column = self._columns(tokens[:, None], state.columns.shape[1])
        features, state = state.add_column(self.network, column, is_source)
        # The row last considered gets the new column's logit, so that the agent can decide again
        # without a WRITE between two READs.
        considered = features
        if isinstance(self.reader, OwnReader):
            assert state.reader is not None
            considered, reader = self.reader.read(tokens, is_source, state.reader)
            state = dataclasses.replace(state, reader=reader)
        if self.reader is not None and state.logits is not None and considered is not None:
            logit = self.reader.decide(considered[:, -1:])
            state = dataclasses.replace(state, logits=torch.cat([state.logits, logit], 1))
        return state if features is None else self._widen(features, state)

    def features_with_reading(
        self, batch: Batch, sites: PredictionSites, *, learn_features: bool = True
    ) -> tuple[Tensor, Tensor]:
        if not isinstance(self.reader, SharedReader):
            return super().features_with_reading(batch, sites, learn_features=learn_features)
        self._check_sites(batch, sites)
        # The grid needs a gradient if the features learn, or if the decisions are not detached from
        # it; the pooling above it only if the features learn.
        learns = torch.is_grad_enabled()
        with torch.set_grad_enabled(learns and (learn_features or not self.reader.detached)):
            cells, layout = self._run(batch)
        with torch.set_grad_enabled(learns and learn_features):
            features = self._at_sites(cells, layout, sites)
        return features, self._decide(cells, layout)

    def reading(self, batch: Batch) -> Tensor:
        if self.reader is None:
            raise self.no_reader()
        own = self.reader if isinstance(self.reader, OwnReader) else None
        return self._decide(*(self._run(batch) if own is None else own.run(batch)))

    def consider(self, tokens: Tensor, state: GridState) -> GridState:
        if self.reader is None:
            raise self.no_reader()
        if isinstance(self.reader, OwnReader):
            assert state.reader is not None
            features, reader = self.reader.write(tokens, state.reader)
            state = dataclasses.replace(state, reader=reader)
        else:
            # The shared grid now has this row: `step` takes the features from the state and does
            # not run the network again.
            features, state = self._write(tokens, state)
            state = dataclasses.replace(state, considered=features)
        return dataclasses.replace(state, logits=self.reader.decide(features))

    def reading_row(self, state: GridState) -> Tensor:
        if self.reader is None:
            raise self.no_reader()
        if state.logits is None:
            raise ValueError("no row has been considered yet")
        return state.logits

    def counterparts(self) -> dict[str, str | None]:
        """Return the translation network's counterpart, if any, of each tensor of the reader."""
        # A separate reader has the translation network's layout, so it can start from its weights;
        # the decision has no counterpart and keeps its initial values.
        names = self.state_dict().keys()
        counterparts = {name: name.removeprefix("reader.") for name in names}
        return {
            name: other if other in names else None
            for name, other in counterparts.items()
            if name != other
        }

    def report(self, source_length: float, target_length: float) -> Report:
        config, traits, types = self.config, self.traits, self.classifier().weight.shape[0]
        # Both sides are projected separately, so the input grid costs |x| + |y| products, not
        # |x||y|.
        sides = 2.0 * config.size * config.embedded * (source_length + target_length)
        cells = source_length * target_length * cell_flops(config)
        if isinstance(self.reader, OwnReader):
            # The thesis' agent embeds both sides anew and runs its own blocks, without pooling.
            depth = config.reader_depth or config.depth
            agent = dataclasses.replace(
                config, depth=depth, online_features="cell", aggregation="max"
            )
            cells += source_length * target_length * cell_flops(agent)
            sides *= 2
        return table_report(
            "Pervasive Attention",
            3.0 * (sides + cells + 2.0 * types * target_length * config.classified),
            f"{traits.source_receptive_field} source and {traits.target_receptive_field} target "
            "tokens",
            (source_length, target_length),
            (config.depth, config.depth),
            config.target_kernel,
        )

    def stages(self) -> dict[str, nn.Module]:
        """Return the grid H^0 and the outputs of the 2N layers (N if they are dense).

        The outputs are h_n or, with gated and dense skip connections, what the layer adds: with
        gated ones nothing reads the last h_n, and with dense ones there is no h_n.
        """
        return numbered(network=self.network.stages())

    def _network_points(self) -> dict[str, ProbePoint]:
        return {f"network.{name}": point for name, point in self.network.points().items()}

    def _widen(self, features: Tensor, state: GridState) -> GridState:
        """Add the features [R, h, D] of a new column to the state's cells."""
        considered, above = state.considered, state.above
        if considered is not None:
            # No prediction has used the last row yet, so it is not part of `above`.
            considered = torch.cat([considered, features[:, -1:]], 1)
            features = features[:, :-1]
        if above is not None:
            # The new column's prefix over all rows is that of the last column, merged with the new
            # cells of all rows above.
            prefix_form = prefix_pooling(self.aggregator)
            new = tuple(part[:, -1:] for part in prefix_form.scan_source(features))
            merged = prefix_form.combine(tuple(part[:, -1:] for part in above), new)
            above = tuple(torch.cat(pair, 1) for pair in zip(above, merged, strict=True))
        return dataclasses.replace(state, considered=considered, above=above, partial=None)

    def _decide(self, features: Tensor, layout: GridLayout) -> Tensor:
        """Return READ logits [B, T, S], zero on padding, for features [cells, D]."""
        assert self.reader is not None
        return layout.pad(self.reader.decide(features)[:, None])[..., 0]
