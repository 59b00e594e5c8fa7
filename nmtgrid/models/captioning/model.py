"""Image captioning: the common base, and the LSTM without attention (appendix E.3.1).

A picture is a set of regions [S, F] instead of a source; `CaptionModel` has embeddings, output and
classifier. `CaptionLSTM` sees the mean region once and then writes (Vinyals et al., 2015);
`top_down.CaptionTopDown` attends to the regions at every word.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.rows import is_token
from nmtgrid.data.batches import Batch
from nmtgrid.layers.embedding import Embedding
from nmtgrid.layers.kernels.dropout import dropout
from nmtgrid.layers.kernels.linear import linear
from nmtgrid.layers.recurrent.lstm import (
    CellWeights,
    LayerOutput,
    LiveRows,
    States,
    draw_uniform,
    run_lstm,
)
from nmtgrid.models.api import PredictionSites, Report, Step, Steps, Traits, TranslationModel
from nmtgrid.models.captioning.config import CaptionConfig, CaptionLSTMConfig
from nmtgrid.text.vocabulary import PAD, SPECIALS


class CaptionModel(TranslationModel):
    """Base of captioning models; a subclass's constructor must end with `reset_parameters`."""

    config: CaptionConfig

    def __init__(
        self, config: CaptionConfig, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        """Raise ConfigError if the source size leaves no features."""
        super().__init__()
        self.config = config
        self.feature_size = source_vocab_size - len(SPECIALS)
        if self.feature_size < 1:
            raise ConfigError(
                f"`{self.architecture}` counts the features of a region as source types, after "
                f"{len(SPECIALS)} special symbols: a size of {source_vocab_size} leaves none.",
                "For F features give `--source-vocab-size` F + 4.",
            )
        self.target_embedding = Embedding(
            target_vocab_size, config.embedded, positions="none", scale=False,
            dropout_rate=config.embedding_dropout, padding=PAD,
        )  # fmt: skip
        self.decoder_output = LayerOutput(config.output_dropout)
        # The order of construction is that of the random draws; the subclass draws everything again
        # at the end of its constructor (`draw_uniform`), in this order of registration.
        is_mapped = config.classified != config.size
        self.output_map = nn.Linear(config.size, config.classified, False) if is_mapped else None
        matrix = torch.empty(target_vocab_size, config.classified)
        self.output_weight = nn.Parameter(matrix) if config.tie == "none" else None
        self.output_bias = (
            nn.Parameter(torch.empty(target_vocab_size)) if config.output_bias else None
        )

    def reset_parameters(self) -> None:
        """Draw every parameter uniformly, from +-0.1 at 256 features; `<pad>` and biases zero."""
        draw_uniform(self, self.config.size)
        with torch.no_grad():
            self.target_embedding.weight[PAD].zero_()
            if self.output_bias is not None:
                self.output_bias.zero_()

    def mean_region(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Return [B, F], the mean over the regions of each picture."""
        is_region = is_token(lengths, source.shape[1])[:, :, None]
        count = lengths[:, None].to(source.dtype)
        return source.masked_fill(~is_region, 0.0).sum(1) / count

    def classified(self, states: Tensor) -> Tensor:
        """Return the classifier's input [..., C] for states [..., D]."""
        return states if self.output_map is None else linear(states, self.output_map.weight)

    def at_sites(self, states: Tensor, sites: PredictionSites) -> Tensor:
        """Return the features [M, C] of sites, for the states [T, B, D] of all positions."""
        outputs: Tensor = self.decoder_output(self.classified(states))
        cells = sites.position * outputs.shape[1] + sites.sentence  # time comes first
        return outputs.flatten(0, 1).index_select(0, cells)

    def embedded(self, batch: Batch) -> Tensor:
        vectors: Tensor = self.target_embedding(batch.target_input)
        return vectors.transpose(0, 1)

    def refusal(self) -> ConfigError:
        return ConfigError(
            f"`{self.architecture}` cannot caption simultaneously, because the regions of a "
            "picture have no order.",
            "For online translation train a `transformer` or `pervasive` on text.",
        )


@dataclasses.dataclass(frozen=True)
class CaptionLSTMState:
    """Decoding state: the layers' states [R, D], which include the picture."""

    layers: States
    weights: CellWeights


class CaptionLSTM(CaptionModel):
    """A language model whose first input, or initial states, are a projection of the picture."""

    architecture = "caption-lstm"
    config: CaptionLSTMConfig

    def __init__(
        self, config: CaptionLSTMConfig, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        super().__init__(config, source_vocab_size, target_vocab_size)
        # As states: one hidden and one cell state for each layer.
        projected = config.embedded if config.picture == "input" else 2 * config.depth * config.size
        self.picture_map = nn.Linear(self.feature_size, projected)
        sizes = [config.embedded] + [config.size] * (config.depth - 1)
        self.cells = nn.ModuleList(nn.LSTMCell(size, config.size) for size in sizes)
        self.traits = Traits(source_features=self.feature_size)
        self.reset_parameters()

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        self.check_sites(sites)
        picture, states = batch.encode_source(self._picture), self.embedded(batch)
        is_input = self.config.picture == "input"
        if is_input:
            # The picture is a word before `<s>`; its own output is dropped below.
            states = torch.cat([picture[None].to(states.dtype), states])
        starts = None if is_input else self._states(picture)
        rows = LiveRows.full(*states.shape[:2])
        for n, cell in enumerate(self.cells):
            assert isinstance(cell, nn.LSTMCell)
            if n:
                states = dropout(states, self.config.dropout, self.training)
            below = linear(states, cell.weight_ih, cell.bias_ih + cell.bias_hh)
            start = None if starts is None else starts[n]
            states = run_lstm(below, cell.weight_hh, rows, start)[0]
        return self.at_sites(states[1:] if is_input else states, sites)

    @torch.no_grad()
    def begin(self, source: Tensor, source_lengths: Tensor) -> CaptionLSTMState:
        """Return the state after reading the pictures, source [R, S, F] with lengths [R]."""
        first = self.cells[0]
        assert isinstance(first, nn.LSTMCell)
        # The readout is a placeholder: `classified` maps the output.
        weights = CellWeights.make(self.cells, first.weight_hh)
        picture = self._picture(source, source_lengths)
        # Steps run in fp32 at least: their products are too small to gain from bf16.
        high = torch.promote_types(picture.dtype, torch.float32)
        if self.config.picture == "state":
            states = tuple(
                (hidden.to(high), cell.to(high)) for hidden, cell in self._states(picture)
            )
            return CaptionLSTMState(states, weights)
        zeros = picture.new_zeros(len(source), self.config.size, dtype=high)
        layers = weights.advance(picture, ((zeros, zeros),) * self.config.depth)
        return CaptionLSTMState(layers, weights)

    @torch.no_grad()
    def step(
        self,
        tokens: Tensor,
        state: CaptionLSTMState,
        *,
        reads: Tensor | None = None,
        align: bool = False,
    ) -> Step:
        if reads is not None:
            raise self.refusal()
        inputs = self.target_embedding(tokens[:, None])[:, 0]
        layers = state.weights.advance(inputs, state.layers)
        outputs = self.classified(layers[-1][0])
        return Step(self.classify(outputs), dataclasses.replace(state, layers=layers))

    def report(self, source_length: float, target_length: float) -> Report:
        """Return properties and cost for these numbers of regions and of caption tokens.

        If the picture is an input, the LSTM runs one position more than the caption has.
        """
        recurrent = sum(p.numel() for p in self.cells.parameters() if p.dim() > 1)
        mapped = 0 if self.output_map is None else self.output_map.weight.numel()
        classified = self.classifier().weight.numel() + mapped
        positions = target_length + (self.config.picture == "input")
        weights = self.picture_map.weight.numel() + recurrent * positions
        return Report(
            flops_per_pair=6.0 * (weights + classified * target_length),
            receptive_field="the mean of all regions and the whole prefix",
            computation="O(N d² |y|)",
            sequential="O(N |y|)",
            target_path="O(|y|)",
            source_path="O(|y|)",
            steps=Steps(
                self.config.depth * positions, target_length, target_length, (1, self.config.depth)
            ),
        )

    def stages(self) -> dict[str, nn.Module]:
        return {
            "encoder.1": self.picture_map,
            "decoder.0": self.target_embedding,
            "decoder.1": self.decoder_output,
        }

    def _picture(self, source: Tensor, lengths: Tensor) -> Tensor:
        picture: Tensor = self.picture_map(self.mean_region(source, lengths))
        return picture

    def _states(self, picture: Tensor) -> States:
        """Return the first hidden state and cell [B, D] of each layer."""
        parts = picture.chunk(2 * self.config.depth, 1)
        return tuple(zip(parts[::2], parts[1::2], strict=True))
