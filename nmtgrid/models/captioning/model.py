"""An LSTM that sees the mean region of a picture once and then writes (Vinyals et al., 2015)."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from nmtgrid.data.batches import Batch
from nmtgrid.layers.kernels.dropout import dropout
from nmtgrid.layers.kernels.linear import linear
from nmtgrid.layers.recurrent.lstm import Rows, run_lstm
from nmtgrid.layers.recurrent.lstm_step import States, StepWeights
from nmtgrid.models.api import Report, Sites, Step, Traits
from nmtgrid.models.captioning.caption_model import CaptionModel
from nmtgrid.models.captioning.config import CaptionLSTMConfig


@dataclasses.dataclass(frozen=True)
class CaptionLSTMState:
    """What decoding keeps: the layers' states [R, D]; the picture is in them."""

    layers: States
    weights: StepWeights


class CaptionLSTM(CaptionModel):
    """A language model whose first input, or first states, are a map of the picture."""

    architecture = "caption-lstm"
    config: CaptionLSTMConfig

    def __init__(
        self, config: CaptionLSTMConfig, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        super().__init__(config, source_vocab_size, target_vocab_size)
        shown = config.embedded if config.picture == "input" else 2 * config.depth * config.size
        self.picture_map = nn.Linear(self.feature_size, shown)
        sizes = [config.embedded] + [config.size] * (config.depth - 1)
        self.cells = nn.ModuleList(nn.LSTMCell(size, config.size) for size in sizes)
        self.traits = Traits(source_features=self.feature_size)
        self.reset_parameters()

    def features(self, batch: Batch, sites: Sites) -> Tensor:
        """Return [M, C]: the output of each site's position."""
        self.check_sites(sites)
        shown, states = batch.encoded(self._picture), self.embedded(batch)
        is_input = self.config.picture == "input"
        if is_input:
            states = torch.cat([shown[None].to(states.dtype), states])
        starts = None if is_input else self._states(shown)
        rows = Rows.full(*states.shape[:2])
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
        """Return the state that has seen the pictures, source [R, S, F] with lengths [R]."""
        first = self.cells[0]
        assert isinstance(first, nn.LSTMCell)
        # The output is mapped elsewhere: the step's own readout is not used.
        weights = StepWeights.make(self.cells, first.weight_hh)
        shown = self._picture(source, source_lengths)
        high = torch.promote_types(shown.dtype, torch.float32)
        if self.config.picture == "state":
            held = tuple((hidden.to(high), cell.to(high)) for hidden, cell in self._states(shown))
            return CaptionLSTMState(held, weights)
        zeros = shown.new_zeros(len(source), self.config.size, dtype=high)
        layers = weights.advance(shown, ((zeros, zeros),) * self.config.depth)
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
        """Feed the last written tokens [R] and return logits [R, V]."""
        if reads is not None:
            raise self.refusal()
        inputs = self.target_embedding(tokens[:, None])[:, 0]
        layers = state.weights.advance(inputs, state.layers)
        outputs = self.classified(layers[-1][0])
        return Step(self.classify(outputs), dataclasses.replace(state, layers=layers))

    def report(self, source_length: float, target_length: float) -> Report:
        """Return properties and cost for pictures of so many regions and captions of this length.

        The LSTM runs one position more than the caption has where the picture is an input.
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
        )

    def stages(self) -> dict[str, nn.Module]:
        """Return the picture's map, the embeddings and the output."""
        return {
            "encoder.1": self.picture_map,
            "decoder.0": self.target_embedding,
            "decoder.1": self.decoder_output,
        }

    def _picture(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Return the map of the pictures' mean regions [B, ..]."""
        shown: Tensor = self.picture_map(self.mean_region(source, lengths))
        return shown

    def _states(self, shown: Tensor) -> States:
        """Return the first hidden state and cell [B, D] of each layer."""
        parts = shown.chunk(2 * self.config.depth, 1)
        return tuple(zip(parts[::2], parts[1::2], strict=True))


def build(config: Any, source_vocab_size: int, target_vocab_size: int) -> CaptionLSTM:
    """Return a new model with drawn weights."""
    return CaptionLSTM(config, source_vocab_size, target_vocab_size)
