"""Image captioning with top-down attention over regions (Anderson et al., 2018, section 3.2).

The attention LSTM reads the language LSTM's last state, the mean region and the last word; its
state h1 weights the regions, a_i = w^T tanh(W_v v_i + W_h h1), and the language LSTM reads their
weighted mean and h1. The equation numbers below are those of that paper.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from nmtgrid.base.rows import is_token
from nmtgrid.data.batches import Batch
from nmtgrid.layers.attention import source_mask
from nmtgrid.layers.kernels.linear import linear
from nmtgrid.layers.recurrent.lstm import States
from nmtgrid.layers.recurrent.top_down import TopDownWeights, run_top_down
from nmtgrid.layers.source_cache import SourceCache
from nmtgrid.models.api import PredictionSites, Report, Step, Steps, Traits
from nmtgrid.models.captioning.config import CaptionTopDownConfig
from nmtgrid.models.captioning.model import CaptionModel


@dataclasses.dataclass(frozen=True)
class TopDownState:
    """Decoding state: both LSTMs' states, the mean region's part of the gates, the regions."""

    layers: States
    mean: Tensor
    memory: SourceCache
    weights: TopDownWeights


class CaptionTopDown(CaptionModel):
    """An attention LSTM and a language LSTM over the regions of a picture."""

    architecture = "caption-top-down"
    why_no_energies = "its score is not a sum over regions"
    config: CaptionTopDownConfig

    def __init__(
        self, config: CaptionTopDownConfig, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        super().__init__(config, source_vocab_size, target_vocab_size)
        size, features = config.size, self.feature_size
        # Inputs side by side, in the order of eq. (2): language state, mean region, word.
        self.attention_lstm = nn.LSTMCell(size + features + config.embedded, size)
        self.region_map = nn.Linear(features, config.compared, bias=False)
        self.query_map = nn.Linear(size, config.compared, bias=False)
        self.score = nn.Parameter(torch.empty(config.compared))
        self.language_lstm = nn.LSTMCell(features + size, size)
        self.traits = Traits(source_features=self.feature_size, aligns=True)
        self.reset_parameters()

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        self.check_sites(sites)
        return self.at_sites(self._run(batch)[0], sites)

    @torch.no_grad()
    def begin(self, source: Tensor, source_lengths: Tensor) -> TopDownState:
        mean, keys, regions, mask = self._see(source, source_lengths)
        memory = SourceCache((keys,), (regions,), mask)
        high = torch.promote_types(mean.dtype, torch.float32)
        zeros = source.new_zeros(len(source), self.config.size, dtype=high)
        return TopDownState(((zeros, zeros),) * 2, mean, memory, self._weights().cast())

    @torch.no_grad()
    def step(
        self,
        tokens: Tensor,
        state: TopDownState,
        *,
        reads: Tensor | None = None,
        align: bool = False,
    ) -> Step:
        if reads is not None:
            raise self.refusal()
        words = self.target_embedding(tokens[:, None])[:, 0]
        # The mean region never changes, so its part of the gates is in the state.
        below = linear(words, self._of_word()) + state.mean
        layers, shares = state.weights.advance(below, state.layers, state.memory)
        outputs = self.classified(layers[1][0])
        following = dataclasses.replace(state, layers=layers)
        return Step(self.classify(outputs), following, shares if align else None)

    def _attention(self, batch: Batch) -> Tensor:
        return self._run(batch)[1]

    def report(self, source_length: float, target_length: float) -> Report:
        """Return properties and cost for these numbers of regions and of caption tokens.

        A multiply-add counts as two FLOPs; the backward pass costs twice the forward one.
        """
        config = self.config
        lstms = (self.attention_lstm, self.language_lstm, self.query_map)
        position = sum(p.numel() for lstm in lstms for p in lstm.parameters() if p.dim() > 1)
        # The mean region's part of the gates is computed once per picture.
        once = 4 * config.size * self.feature_size
        position += self.classifier().weight.numel() - once
        position += 0 if self.output_map is None else self.output_map.weight.numel()
        regions = self.region_map.weight.numel() * source_length
        attended = (config.compared + self.feature_size) * source_length * target_length
        return Report(
            flops_per_pair=6.0 * (once + regions + position * target_length + attended),
            receptive_field="all regions and the whole prefix",
            computation="O(d² |y| + d |x||y|)",
            sequential="O(|y|)",
            target_path="O(|y|)",
            source_path="O(1)",
            steps=Steps(2 * target_length, target_length, 1.0, (1, 2)),
        )

    def stages(self) -> dict[str, nn.Module]:
        return {
            "encoder.1": self.region_map,
            "decoder.0": self.target_embedding,
            "decoder.1": self.decoder_output,
        }

    def _run(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the language LSTM's states [T, B, D] and the attention [B, T, S]."""
        mean, keys, regions, mask = batch.encode_source(self._see)
        memory = SourceCache((keys,), (regions,), mask)
        # The true words are known, so their part of the gates is one product over all positions.
        below = linear(self.embedded(batch), self._of_word()) + mean
        states, shares = run_top_down(below, memory, self._weights())
        return states, shares.transpose(0, 1)

    def _see(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return the mean region's part of the gates [B, 4 D], and the regions to attend to.

        These are keys [B, 1, S, H], regions [B, 1, S, F] and the mask of padding or None.
        """
        # Whatever depends only on the picture is computed once per picture: the mean region's part
        # of the gates, with both biases, and the keys.
        lstm = self.attention_lstm
        first, last = self.config.size, self.config.size + self.feature_size
        of_mean = lstm.weight_ih[:, first:last].contiguous()
        mean = linear(self.mean_region(source, lengths), of_mean, lstm.bias_ih + lstm.bias_hh)
        keys = self.region_map(source).to(source.dtype)
        mask = source_mask(is_token(lengths, source.shape[1]), source)
        return mean, keys[:, None], source[:, None], mask

    def _of_word(self) -> Tensor:
        """Return [4 D, E]: the part of the attention LSTM's weights that reads the word."""
        return self.attention_lstm.weight_ih[:, -self.config.embedded :].contiguous()

    def _weights(self) -> TopDownWeights:
        first, second = self.attention_lstm, self.language_lstm
        return TopDownWeights(
            # [W_ih W_hh] side by side: one product for each LSTM and step.
            torch.cat([first.weight_ih[:, : self.config.size], first.weight_hh], 1),
            self.query_map.weight,
            self.score,
            torch.cat([second.weight_ih, second.weight_hh], 1),
            second.bias_ih + second.bias_hh,
        )
