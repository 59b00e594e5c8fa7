"""The convolution-to-recurrent model of the book chapter (7.1; Kalchbrenner and Blunsom, 2013).

Convolutions K_2, K_3, ... merge the words of the source into phrases. In the form "sentence"
(figure 7.1) a last kernel L merges those into one vector, which the reverse kernel unfolds; in the
form "phrase" (figure 7.2) a transfer layer maps source phrases to target phrases. The reverse
convolutions ..., K_3, K_2 unfold target phrases into target words, as many as a length model
predicts, and a recurrent network that also reads the words written so far predicts the next word.

Choices that the chapter leaves open:
* The length model is linear, m = a |x| + b. The only training signal for lengths is the likelihood,
  so m enters the prediction in two differentiable ways: it stretches the transfer (layers/
  convolution.py, Resample), and the recurrent network reads its distance from the predicted
  end, tanh((m - t) / 4), from which it learns when to write the end symbol; a and b learn
  from both. Rounded, m is the number of target words that the reverse convolutions produce; beyond
  it the recurrent network keeps reading the last one.
* A kernel for each length would rarely be trained. L has `merge` bins, each reading the mean of
  the phrases around it, and its reverse unfolds as many, stretched to the predicted number of
  phrases; a row shorter than a kernel K_i skips it.
* Each convolution is followed by tanh and dropout; the recurrent network is plain, as in 2013
  (`cell` lstm makes it an LSTM), starts at zero, and its output goes through a map if tied.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from nmtgrid.data.batches import Batch
from nmtgrid.layers.convolution import PhraseConvolution, Resample, ReverseConvolution
from nmtgrid.layers.embedding import Embedding
from nmtgrid.layers.kernels.dropout import dropout
from nmtgrid.layers.kernels.linear import linear
from nmtgrid.layers.recurrent.lstm import (
    LayerOutput,
    LiveRows,
    cell_forward,
    run_lstm,
    run_rnn,
    squash,
)
from nmtgrid.layers.source_cache import SourceCache
from nmtgrid.models.api import (
    PredictionSites,
    Report,
    Step,
    Steps,
    Traits,
    TranslationModel,
    numbered,
)
from nmtgrid.models.convrnn_config import ConvRNNConfig
from nmtgrid.text.vocabulary import PAD

_LONGEST = (4.0, 16.0)
"""(factor, words): the predicted length is at most factor |x| + words."""
_NEAR = 4.0
"""Scale, in words, of the distance from the predicted end."""
_ONCE = ("merge.", "unfold.")
"""Prefixes of parameters that are used once per sentence."""


@dataclasses.dataclass(frozen=True)
class ConvRNNState:
    """Decoding state: hidden state and cell [R, D], predicted lengths and last words [R].

    `words` holds the target words' inputs to the recurrent network, [B, 1, P, G], once per
    sentence; `position` counts the written tokens.
    """

    hidden: Tensor
    cell: Tensor
    predicted: Tensor
    last: Tensor
    words: SourceCache
    position: int


class ConvRNN(TranslationModel):
    """Convolutions read the source and unfold the target; a recurrent network writes it."""

    architecture = "convrnn"

    def __init__(
        self, config: ConvRNNConfig, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        super().__init__()
        self.config = config
        size, embedded = config.size, config.embedded
        self.source_embedding = _embedding(config, source_vocab_size)
        self.target_embedding = (
            self.source_embedding if config.tie == "all" else _embedding(config, target_vocab_size)
        )
        # The order of construction is that of the random draws and of the optimiser's parameters.
        self.source_map = nn.Linear(embedded, size) if embedded != size else nn.Identity()
        kernels = range(2, config.encoder_depth + 2)
        options = (config.convolution, config.dropout)
        self.encoder = nn.ModuleList(
            PhraseConvolution(size, kernel, *options) for kernel in kernels
        )
        self.decoder = nn.ModuleList(
            ReverseConvolution(size, kernel, *options) for kernel in reversed(kernels)
        )
        self.stretch = Resample()
        self.transfer = nn.Linear(size, size)
        if config.form == "sentence":
            self.gather = Resample()
            self.merge = nn.Linear(config.merge * size, size)
            self.unfold = nn.Linear(size, config.merge * size)
        self.length_line = nn.Parameter(torch.tensor([1.0, 0.0]))
        gates = 4 * size if config.cell == "lstm" else size
        self.word_map = nn.Linear(size, gates)
        self.history_map = nn.Linear(embedded, gates, bias=False)
        self.recurrent = nn.Parameter(torch.empty(gates, size))
        self.distance = nn.Parameter(torch.empty(gates))
        self.decoder_output = LayerOutput(config.output_dropout)
        classified = size if config.tie == "none" else embedded
        self.output_map = nn.Identity() if config.tie == "none" else nn.Linear(size, classified)
        own = config.tie == "none"
        self.make_classifier(target_vocab_size, classified, own=own, bias=True)
        self.traits = Traits()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the maps (Xavier) and the recurrence (orthogonal)."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias) if module.bias is not None else None
        # A tanh follows, whose gain is 5/3. The transfer is drawn a second time, after the loop
        # above.
        nn.init.xavier_uniform_(self.transfer.weight, gain=5 / 3)
        # Each gate's matrix is orthogonal by itself.
        for part in self.recurrent.data.split(self.config.size):
            nn.init.orthogonal_(part)
        nn.init.normal_(self.distance, std=0.5)

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        self.check_sites(sites)
        words, predicted, last = batch.encode_source(self._words)
        # Beyond the predicted length the last word is repeated.
        positions = torch.arange(batch.target_input.shape[1], device=words.device)
        read = positions[None].minimum(last[:, None])
        read_words = words.gather(1, read[..., None].expand(-1, -1, words.shape[-1]))
        history = linear(self.target_embedding(batch.target_input), self.history_map.weight)
        inputs = read_words + history + self._distance(predicted[:, None] - positions)
        inputs = inputs.transpose(0, 1).contiguous()  # the recurrence reads time first
        if self.config.cell == "lstm":
            states = run_lstm(inputs, self.recurrent, LiveRows.full(*inputs.shape[:2]))[0]
        else:
            states = run_rnn(inputs, self.recurrent)
        states = self.decoder_output(states)
        cells = sites.position * states.shape[1] + sites.sentence
        finished: Tensor = self.output_map(states.flatten(0, 1).index_select(0, cells))
        return finished

    @torch.no_grad()
    def begin(self, source: Tensor, source_lengths: Tensor) -> ConvRNNState:
        words, predicted, last = self._words(source, source_lengths)
        # Steps run in fp32 at least: their products are too small to gain from bf16.
        words = words.to(torch.promote_types(words.dtype, torch.float32))
        zeros = words.new_zeros(source.shape[0], self.config.size)
        memory = SourceCache((words[:, None],), (), None)
        return ConvRNNState(zeros, zeros, predicted, last, memory, 0)

    @torch.no_grad()
    def step(
        self,
        tokens: Tensor,
        state: ConvRNNState,
        *,
        reads: Tensor | None = None,
        align: bool = False,
    ) -> Step:
        if reads is not None:
            raise self.refusal()
        keys, width = state.words.keys[0][:, 0], state.words.width
        # The words are cached once per sentence and shared by the `width` rows of its beam, which
        # are all at the same position.
        positions = state.last[::width].clamp(max=state.position)
        read_word = keys[torch.arange(len(keys), device=keys.device), positions]
        read_word = read_word.repeat_interleave(width, 0) if width > 1 else read_word
        history = linear(self.target_embedding(tokens[:, None])[:, 0], self.history_map.weight)
        inputs = read_word + history + self._distance(state.predicted - state.position)
        inputs = inputs + linear(state.hidden, self.recurrent)
        inputs = inputs.to(state.hidden.dtype)
        hidden, cell = torch.empty_like(state.hidden), state.cell
        if self.config.cell == "lstm":
            # The kernel writes into new tensors: other hypotheses may share the old state.
            cell, squashed = torch.empty_like(cell), hidden
            hidden = cell_forward(inputs, state.cell, cell, squashed) * squashed
        else:
            squash(inputs, hidden)
        logits = self.classify(self.output_map(hidden))
        state = dataclasses.replace(state, hidden=hidden, cell=cell, position=state.position + 1)
        return Step(logits, state)

    def report(self, source_length: float, target_length: float) -> Report:
        """Return properties and cost for sentences of these lengths (not in the thesis' tables)."""
        depth = self.config.encoder_depth
        source = sum(p.numel() for p in self.encoder.parameters())
        once = sum(p.numel() for name, p in self.named_parameters() if name.startswith(_ONCE))
        target = sum(p.numel() for p in self.decoder.parameters()) + self.recurrent.numel()
        target += sum(m.weight.numel() for m in (self.word_map, self.history_map, self.transfer))
        target += self.classifier().weight.numel()
        return Report(
            flops_per_pair=6.0 * (source * source_length + target * target_length + once),
            receptive_field=(
                "the whole source and the whole target prefix"
                if self.config.form == "sentence"
                else f"about {2 * self.config.merged_positions + 1} source tokens around the same "
                "part of the sentence, and the whole target prefix"
            ),
            computation="O(N k d² |x| + N k d² |y|)",
            sequential=f"O(|y| + {2 * depth})",
            target_path="O(|y|)",
            source_path="O(N)",
            steps=Steps(target_length + 2 * depth, target_length, depth, (depth, 1)),
        )

    def stages(self) -> dict[str, nn.Module]:
        return numbered(
            encoder=[self.source_embedding, *self.encoder],
            decoder=[self.target_embedding, *self.decoder, self.decoder_output],
        )

    def predict_lengths(self, source_lengths: Tensor) -> Tensor:
        """Return the predicted target lengths [B] (real-valued) for source lengths [B]."""
        lengths = source_lengths.to(self.length_line.dtype)
        line = lengths * self.length_line[0] + self.length_line[1]
        return line.clamp(min=1.0).minimum(_LONGEST[0] * lengths + _LONGEST[1])

    def _words(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the inputs from target words [B, P, G], predicted lengths and last indices [B]."""
        config = self.config
        predicted = self.predict_lengths(lengths)
        # Each convolution leaves fewer phrases than it read; `left` counts them for each sentence.
        states, left = self.source_map(self.source_embedding(source)), lengths
        for layer in self.encoder:
            assert isinstance(layer, PhraseConvolution)
            states = layer(states, left)
            left = layer.lengths_after(left)
        if config.form == "sentence":
            states, left = self._one_vector(states, left)
        # The real-valued length stretches the transfer and has a gradient; the rounded one counts
        # words.
        merged_lengths = (predicted - config.merged_positions).clamp(min=1.0)
        counts = (predicted.detach().round().long() - config.merged_positions).clamp(min=1)
        states = self.stretch(states, left, merged_lengths, int(counts.max()))
        states = torch.tanh(linear(states, self.transfer.weight, self.transfer.bias))
        for layer in self.decoder:
            assert isinstance(layer, ReverseConvolution)
            states = layer(states, counts)
            counts = counts + layer.kernel - 1
        words = linear(states, self.word_map.weight, self.word_map.bias)
        return words, predicted, counts - 1

    def _one_vector(self, phrases: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return [B, merge, D] unfolded from the vector that the phrases [B, S, D] merge into."""
        count = self.config.merge
        bins = torch.full_like(lengths, count)
        gathered = self.gather(phrases, lengths, bins, count).flatten(1)
        sentence = torch.tanh(linear(gathered, self.merge.weight, self.merge.bias))
        sentence = dropout(sentence, self.config.dropout, self.training)
        unfolded = torch.tanh(linear(sentence, self.unfold.weight, self.unfold.bias))
        return unfolded.unflatten(1, (count, -1)), bins

    def _distance(self, words: Tensor) -> Tensor:
        """Return the inputs [..., G] from the distance [...] to the predicted end."""
        return torch.tanh(words / _NEAR)[..., None] * self.distance


def _embedding(config: ConvRNNConfig, count: int) -> Embedding:
    return Embedding(
        count, config.embedded, positions="none", scale=True,
        dropout_rate=config.embedding_dropout, padding=PAD,
    )  # fmt: skip
