"""The Bi-LSTM encoder-decoder with attention, called RNNsearch in the CoNLL paper (section 2.6.1).

Training runs the whole target in one loop (`layers.recurrent.input_feeding`), with a hand-written
backward pass; `benchmarks/kernels.py` and `training_speed.py` measure it. Decoding does the same
arithmetic step by step, with `CellWeights`.

Choices that the texts leave open follow from the published count of 8.50M parameters: the last
output is fed back into the first decoder layer, the query is projected to the size of the encoder's
states without a bias, the output is tanh(W [context, state]) without a bias, and one pair of
projections, shared by all layers, maps the final states of an encoder layer to the initial states
of the decoder layer.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from nmtgrid.base.rows import cache_on_host, host_values, is_token
from nmtgrid.data.batches import Batch
from nmtgrid.layers.attention import attend, attention_weights, source_mask
from nmtgrid.layers.embedding import Embedding
from nmtgrid.layers.kernels.dropout import dropout
from nmtgrid.layers.kernels.linear import linear
from nmtgrid.layers.recurrent.input_feeding import Masks, run_input_feeding
from nmtgrid.layers.recurrent.lstm import (
    CellWeights,
    EncoderLSTM,
    LayerOutput,
    LiveRows,
    States,
    draw_uniform,
    run_lstm,
)
from nmtgrid.layers.source_cache import SourceCache
from nmtgrid.models.api import PredictionSites, Report, Step, Traits, TranslationModel, numbered
from nmtgrid.models.bilstm_config import BiLSTMConfig
from nmtgrid.models.config_checks import first_alias
from nmtgrid.models.cost_report import table_report
from nmtgrid.text.vocabulary import PAD


@dataclasses.dataclass(frozen=True)
class BiLSTMState:
    """Decoding state: the layers' states, the last output [R, O], the projected source."""

    layers: States
    output: Tensor
    memory: SourceCache
    weights: CellWeights


class BiLSTM(TranslationModel):
    """A bi-directional LSTM encoder and an LSTM decoder with dot-product attention."""

    architecture = "bilstm"
    why_no_energies = (
        "the attended source goes through a tanh, so its score is not a sum over source tokens"
    )

    def __init__(
        self, config: BiLSTMConfig, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        super().__init__()
        self.config = config
        encoded, decoded, classified = config.encoded, config.decoded, config.classified
        # The order of construction is that of the random draws and of the optimiser's parameters.
        self.source_embedding = _embedding(config, source_vocab_size)
        self.target_embedding = (
            self.source_embedding if config.tie == "all" else _embedding(config, target_vocab_size)
        )
        sizes = [config.embedded] + [encoded] * (config.encoder_depth - 1)
        layers = (EncoderLSTM(size, config.size, config.both_ways) for size in sizes)
        self.encoder = nn.ModuleList(layers)
        self.encoder_outputs = nn.ModuleList(LayerOutput(config.dropout) for _ in sizes)
        fed = classified if config.input_feeding else 0
        sizes = [config.embedded + fed] + [decoded] * (config.decoder_depth - 1)
        self.decoder = nn.ModuleList(nn.LSTMCell(size, decoded) for size in sizes)
        self.decoder_output = LayerOutput(0.0)
        if config.initial == "mapped":
            self.initial_hidden = nn.Linear(encoded, decoded)
            self.initial_cell = nn.Linear(encoded, decoded)
        self.query_map = nn.Linear(decoded, encoded, bias=False)
        self.output_map = nn.Linear(encoded + decoded, classified, bias=False)
        matrix = torch.empty(target_vocab_size, classified)
        self.output_weight = nn.Parameter(matrix) if config.tie == "none" else None
        bias = torch.empty(target_vocab_size)
        self.output_bias = nn.Parameter(bias) if config.output_bias else None
        self.traits = Traits(aligns=True)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter uniformly, from +-0.1 at 256 features; rows of padding are zero."""
        draw_uniform(self, self.config.size)
        with torch.no_grad():
            for embedding in (self.source_embedding, self.target_embedding):
                embedding.weight[PAD].zero_()
            if self.output_bias is not None:
                self.output_bias.zero_()

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        self.check_sites(sites)
        outputs, _ = self._run(batch)
        cells = sites.position * outputs.shape[1] + sites.sentence  # time comes first
        return outputs.flatten(0, 1).index_select(0, cells)

    @torch.no_grad()
    def begin(self, source: Tensor, source_lengths: Tensor) -> BiLSTMState:
        keys, values, start, mask = self._encode(source, source_lengths)
        # The caches are fp32: a step's products with the source are too small to gain from bf16.
        high = torch.promote_types(keys.dtype, torch.float32)
        layers = tuple((hidden.to(high), cell.to(high)) for hidden, cell in start)
        keys, values = keys[:, None].to(high), values[:, None].to(high)
        mask = None if mask is None else mask.to(high)
        output = values.new_zeros(source.shape[0], self.config.classified)
        memory = SourceCache((keys,), (values,), mask)
        return BiLSTMState(layers, output, memory, CellWeights.make(self.decoder, self._readout()))

    @torch.no_grad()
    def step(
        self,
        tokens: Tensor,
        state: BiLSTMState,
        *,
        reads: Tensor | None = None,
        align: bool = False,
    ) -> Step:
        if reads is not None:
            raise self.refusal()
        inputs = self.target_embedding(tokens[:, None])[:, 0]
        if self.config.input_feeding:
            inputs = torch.cat([inputs, state.output], 1)
        layers = state.weights.advance(inputs, state.layers)
        query = layers[-1][0][:, None]
        # The keys already include the query's projection (`_encode`): the query is the state.
        context = state.memory.attend(0, query, scale=1.0)[:, 0]
        output = state.weights.read_out(context, query[:, 0])
        alignment = state.memory.weights(0, query, scale=1.0)[:, 0] if align else None
        state = dataclasses.replace(state, layers=layers, output=output)
        return Step(self.classify(output), state, alignment)

    def _attention(self, batch: Batch) -> Tensor:
        return self._run(batch)[1].float()

    def report(self, source_length: float, target_length: float) -> Report:
        config = self.config
        source = sum(p.numel() for p in self.encoder.parameters() if p.dim() > 1)
        # Keys and values are projected once for each source token, see `_encode`.
        source += config.encoded * (config.decoded + config.classified)
        target = sum(p.numel() for p in self.decoder.parameters() if p.dim() > 1)
        target += config.decoded * config.classified + self.classifier().weight.numel()
        attended = (config.decoded + config.classified) * source_length * target_length
        return table_report(
            "RNN + attention",
            6.0 * (source * source_length + target * target_length + attended),
            "the whole source and the whole target prefix",
            (source_length, target_length),
            (config.encoder_depth, config.decoder_depth),
        )

    def stages(self) -> dict[str, nn.Module]:
        # The decoder's layers run in one loop over time, so there are no points between them.
        return numbered(
            encoder=[self.source_embedding, *self.encoder_outputs],
            decoder=[self.target_embedding, self.decoder_output],
        )

    def _encode(
        self, source: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor, States, Tensor | None]:
        """Return keys [B, S, D], values [B, S, O], first states and the mask of padding or None.

        The query's map is applied to the keys and the context's map to the values: the scores
        h^T (W s) = (W^T h)^T s and W_c (sum_j a_j h_j) = sum_j a_j (W_c h_j) are the same.
        """
        config = self.config
        is_source = is_token(lengths, source.shape[1])
        # Longest first: at each position the sentences still running are then the first rows, and
        # the LSTM computes no padding. `inverse` restores the batch's order.
        order = lengths.argsort(descending=True, stable=True)
        inverse = order.argsort()
        lengths = cache_on_host(lengths[order], sorted(host_values(lengths), reverse=True))
        rows = LiveRows.of_lengths(lengths)
        states = self.source_embedding(source[order, : len(rows.counts)].t())
        last_states = []
        for layer, output in zip(self.encoder, self.encoder_outputs, strict=True):
            states, hidden, cell = layer(states, lengths, rows)
            states = output(states)
            last_states.append((hidden[inverse], cell[inverse]))
        states = states.index_select(1, inverse)
        keys = linear(states, self.query_map.weight.t())
        values = linear(states, self.output_map.weight[:, : config.encoded].contiguous())
        shift = config.encoder_depth - config.decoder_depth
        # Stacks of different depths are aligned at their tops; lower decoder layers share the
        # encoder's first layer.
        below = [last_states[max(n + shift, 0)] for n in range(config.decoder_depth)]
        if config.initial == "zero":
            zeros = below[0][1].new_zeros(len(source), config.decoded)
            start: States = ((zeros, zeros),) * config.decoder_depth
        else:
            start = tuple((self.initial_hidden(h), self.initial_cell(c)) for h, c in below)
        # The loop ends at the longest sentence; the batch may be padded beyond that.
        padding = (0, 0, 0, source.shape[1] - len(rows.counts))
        keys, values = (nn.functional.pad(x.transpose(0, 1), padding) for x in (keys, values))
        return keys.contiguous(), values.contiguous(), start, source_mask(is_source, keys)

    def _run(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return outputs [T, B, O] and attention [B, T, S]."""
        keys, values, start, mask = batch.encode_source(self._encode)
        embedded = self.target_embedding(batch.target_input).transpose(0, 1)
        first = self.decoder[0]
        assert isinstance(first, nn.LSTMCell)
        # The true prefix is known, so its part of the first layer is one product over all
        # positions; only the part of the fed-back output is computed in the loop.
        inputs = linear(
            embedded,
            first.weight_ih[:, : self.config.embedded].contiguous(),
            first.bias_ih + first.bias_hh,
        )
        if self.config.input_feeding:
            mask = None if mask is None else mask[:, 0]
            outputs, attention = run_input_feeding(
                inputs, keys, values, mask, start, self._weights(), self._masks(inputs)
            )
        else:
            outputs, attention = self._parallel(inputs, keys, values, mask, start)
        return self.decoder_output(outputs), attention

    def _parallel(
        self, inputs: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, start: States
    ) -> tuple[Tensor, Tensor]:
        config, rows = self.config, LiveRows.full(*inputs.shape[:2])
        states = inputs
        for n, cell in enumerate(self.decoder):
            assert isinstance(cell, nn.LSTMCell)
            if n:
                inputs = linear(states, cell.weight_ih, cell.bias_ih + cell.bias_hh)
            states = run_lstm(inputs, cell.weight_hh, rows, start[n])[0]
            states = dropout(states, config.dropout, self.training)
        query = states.transpose(0, 1)[:, None]
        keys, values = keys[:, None], values[:, None]
        # Without input feeding, attention runs once for all positions.
        context = attend(query.to(keys.dtype), keys, values, mask, scale=1.0)[:, 0].transpose(0, 1)
        outputs = torch.tanh(context + linear(states, self._readout()))
        with torch.no_grad():
            # The fused attention returns no weights; only alignments need them, without a gradient.
            attention = attention_weights(query, keys, mask, scale=1.0)[:, 0]
        return dropout(outputs, config.output_dropout, self.training), attention

    def _weights(self) -> CellWeights:
        # [W_ih W_hh] side by side: one product per layer and step. Of the first layer's W_ih only
        # the fed-back output's columns remain; its bias is already in the inputs, see `_run`.
        joined, biases = [], []
        for n, cell in enumerate(self.decoder):
            assert isinstance(cell, nn.LSTMCell)
            read = cell.weight_ih if n else cell.weight_ih[:, self.config.embedded :]
            joined.append(torch.cat([read, cell.weight_hh], 1))
            biases += [cell.bias_ih + cell.bias_hh] if n else []
        return CellWeights(tuple(joined), tuple(biases), self._readout())

    def _masks(self, like: Tensor) -> Masks:
        """Return the layers' dropout masks for inputs [T, B, ...], and that of the outputs."""
        # Drawn before the loop, because the backward pass reads them again; layer by layer and then
        # for the output, because reproducible runs depend on the order of the draws.
        config = self.config

        def draw(rate: float, size: int) -> Tensor | None:
            if not (self.training and rate):
                return None
            return dropout(torch.ones(*like.shape[:2], size, device=like.device), rate, True)

        layers = [draw(config.dropout, config.decoded) for _ in self.decoder]
        return [*layers, draw(config.output_dropout, config.classified)]

    def _readout(self) -> Tensor:
        """Return the part [O, D] of the output map that reads the decoder's state, contiguous."""
        return self.output_map.weight[:, self.config.encoded :].contiguous()


def _embedding(config: BiLSTMConfig, count: int) -> Embedding:
    return Embedding(
        count, config.embedded, positions="none", scale=False,
        dropout_rate=config.embedding_dropout, padding=PAD, alias=first_alias(config.first_symbol),
    )  # fmt: skip
