"""Bi-LSTM, ConvRNN and ConvS2S against their equations in NumPy, and their published sizes."""

from __future__ import annotations

import itertools
import math
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import Batch, collate
from nmtgrid.layers.convolution import (
    Convolution,
    NormalisedWeight,
    PhraseConvolution,
    PhraseWindow,
    Resample,
    ReverseConvolution,
)
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.models.bilstm import BiLSTM
from nmtgrid.models.convrnn import ConvRNN
from nmtgrid.models.convs2s import ConvS2S
from tests.unit.helpers.toy_model import count_parameters
from tests.unit.layers.test_recurrent import lstm_by_hand, sigmoid

Array = NDArray[Any]
OFF = {"dropout": 0.0, "embedding_dropout": 0.0, "output_dropout": 0.0}
SMALL: dict[str, dict[str, Any]] = {
    "bilstm": {"size": 4, "embedding_size": 3, "decoder_size": 5, **OFF},
    "convrnn": {"size": 4, "embedding_size": 3, **OFF},
    "convs2s": {"encoder_depth": 3, "decoder_depth": 2, "size": 6, "embedding_size": 4,
                "kernel": 3, "max_positions": 32, **OFF},
}  # fmt: skip


def tiny(arch: str, **changes: Any) -> TranslationModel:
    torch.manual_seed(3)
    settings = {**SMALL[arch], **changes}
    return zoo.build(arch, None, settings, source_vocab_size=12, target_vocab_size=11)


def tiny_bilstm(**changes: Any) -> BiLSTM:
    return cast(BiLSTM, tiny("bilstm", **changes).double().eval())


def tiny_convrnn(**changes: Any) -> ConvRNN:
    return cast(ConvRNN, tiny("convrnn", **changes).double().eval())


def tiny_convs2s(**changes: Any) -> ConvS2S:
    """Return a small float64 model whose every parameter has been moved, biases too."""
    model = tiny("convs2s", **changes)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.3)
    return cast(ConvS2S, model.double().eval())


@pytest.mark.parametrize(
    ("arch", "settings", "error"),
    [
        ("bilstm", {"size": 32, "embedding_size": 24, "decoder_size": 40}, 0.03),
        ("convs2s", {"size": 32, "embedding_size": 24}, 1e-6),
    ],
)
def test_cost_is_what_torch_counts(arch: str, settings: dict[str, int], error: float) -> None:
    model = tiny(arch, **settings).double().eval()
    batch = collate([[4, 5, 6, 7, 8, 9, 10]], [[5, 6, 7, 8, 9]])
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model.classify(model.features(batch, PredictionSites.offline(batch)))
    counted = counter.get_total_flops()
    assert model.report(8, 6).flops_per_pair / 3 == pytest.approx(counted, rel=error)


@pytest.mark.parametrize(
    ("arch", "encoder", "sizes"),
    [
        ("bilstm", 3, [3, 8, 8, 3, 3]),
        ("convs2s", 4, [4, 6, 6, 6, 4, 6, 6]),
        ("convrnn", None, [0] * 7),
    ],
)
def test_stages_are_passed_in_order(arch: str, encoder: int | None, sizes: list[int]) -> None:
    model, passed = tiny(arch).double().eval(), list[tuple[str, int]]()
    for name, stage in model.stages().items():
        stage.register_forward_hook(lambda _, __, y, name=name: passed.append((name, y.shape[-1])))
    batch = collate([[4, 5, 6]], [[5, 6, 7]])
    model.features(batch, PredictionSites.offline(batch))
    names = [name for name, _ in passed]
    assert sorted(names) == sorted(model.stages()) and len(names) == len(sizes)
    if encoder is not None:
        parts = ("encoder", encoder), ("decoder", len(sizes) - encoder)
        assert names == [f"{part}.{n}" for part, count in parts for n in range(count)]
        assert names == list(model.stages()) and [size for _, size in passed] == sizes


@pytest.mark.parametrize("arch", SMALL)
def test_other_sites_are_refused(arch: str) -> None:
    model, batch = tiny(arch).double().eval(), collate([[4, 5]], [[5]])
    sites = PredictionSites.offline(batch)
    with pytest.raises(ConfigError, match="both directions"):
        model.features(batch, PredictionSites(sites.sentence, sites.position, sites.position + 1))
    with pytest.raises(ConfigError, match="has one exit"):
        depth = torch.tensor([1, 1])
        model.features(batch, PredictionSites(sites.sentence, sites.position, None, depth))
    if arch != "convrnn":
        with pytest.raises(ConfigError, match="no energies"):
            model.alignments(batch, "energies")


@pytest.mark.parametrize(
    ("arch", "wrong", "words"),
    [
        ("bilstm", {"encoder_depth": 0, "decoder_depth": 1000, "size": 0, "decoder_size": 0,
                    "dropout": 1.0}, "must"),
        ("convrnn", {"encoder_depth": 0, "merge": 0, "size": 0, "output_dropout": -0.5}, "must"),
        ("convrnn", {"encoder_depth": 31}, "must be from 1 to 30, but is 31"),
        ("convs2s", {"kernel": 4, "encoder_depth": 0, "max_positions": 0, "dropout": 1.0,
                     "size": 0}, "take 3 or 5"),
    ],
)  # fmt: skip
def test_faulty_settings_are_told_all_at_once(arch: str, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        zoo.configure(arch, None, wrong)
    assert len(caught.value.faults) == len(wrong)
    assert all(f"`model.{name}`" in str(caught.value) for name in wrong)


def test_published_count_of_the_thesis() -> None:
    """8.50M (table 3.7), part by part, d = 256."""
    d = 256
    embeddings = (8848 + 6632) * d
    encoder = 2 * (4 * d * (d + d) + 8 * d) + 2 * (4 * d * (2 * d + d) + 8 * d)
    decoder = 4 * d * ((d + d) + d) + 8 * d + 4 * d * (d + d) + 8 * d
    attention = d * 2 * d + (2 * d + d) * d
    first_states = 2 * (2 * d * d + d)
    counted = count_parameters("bilstm", "iwslt14-de-en", 8848, 6632)
    assert counted == embeddings + encoder + decoder + attention + first_states
    assert counted == pytest.approx(8.50e6, rel=0.005)

    # Table 3 of the CoNLL paper, first version, in whole millions: German to English and back.
    for source, target, published in ((12000, 9000, 6), (9000, 12000, 7)):
        counted = count_parameters("bilstm", "iwslt14-de-en-conll", source, target)
        assert round(counted / 1e6) == published


def source_by_hand(tensors: dict[str, Array], tokens: Array) -> tuple[Array, list[Any]]:
    """Return the memory [S, 2 D] and each layer's last states [2 D]."""
    states = tensors["source_embedding.weight"][tokens]
    lasts: list[Any] = []
    for n in range(2):
        sides = []
        for end in ("", "_reverse"):
            name = f"encoder.{n}.lstm."
            weights = [tensors[f"{name}{kind}_l0{end}"] for kind in ("weight_ih", "weight_hh")]
            bias = tensors[f"{name}bias_ih_l0{end}"] + tensors[f"{name}bias_hh_l0{end}"]
            inputs = states @ weights[0].T + bias
            order = slice(None, None, -1) if end else slice(None)
            zero = np.zeros(weights[1].shape[1])
            out, cell = lstm_by_hand(inputs[order], weights[1], zero, zero)
            sides.append((out[order], out[-1], cell))
        states, hidden, cell = (np.concatenate(parts, -1) for parts in zip(*sides, strict=True))
        lasts.append((hidden, cell))
    return states, lasts


def outputs_by_hand(model: BiLSTM, source: list[int], target: list[int]) -> tuple[Array, Array]:
    """Return outputs [T, O] and attention [T, S], equation by equation, position by position."""
    tensors = {name: value.numpy() for name, value in model.state_dict().items()}
    memory, lasts = source_by_hand(tensors, np.array(source))
    layers = [
        [tensors[f"initial_{kind}.weight"] @ last + tensors[f"initial_{kind}.bias"]
         for kind, last in zip(("hidden", "cell"), pair, strict=True)]
        for pair in lasts
    ]  # fmt: skip
    output, outputs, shares = np.zeros(3), [], []
    for token in target:
        above = tensors["target_embedding.weight"][token]
        if model.config.input_feeding:
            above = np.concatenate([above, output])
        for n, (hidden, cell) in enumerate(layers):
            name = f"decoder.{n}."
            gates = tensors[name + "weight_ih"] @ above + tensors[name + "bias_ih"]
            gates = gates + tensors[name + "weight_hh"] @ hidden + tensors[name + "bias_hh"]
            i, f, g, o = np.split(gates, 4)
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            layers[n] = [sigmoid(o) * np.tanh(cell), cell]
            above = layers[n][0]
        scores = memory @ (tensors["query_map.weight"] @ above)
        share = np.exp(scores) / np.exp(scores).sum()
        output = np.tanh(tensors["output_map.weight"] @ np.concatenate([share @ memory, above]))
        outputs.append(output)
        shares.append(share)
    return np.array(outputs), np.array(shares)


@pytest.mark.parametrize("input_feeding", [True, False])
def test_outputs_follow_the_equations(input_feeding: bool) -> None:
    model = tiny_bilstm(input_feeding=input_feeding)
    batch = collate([[4, 5, 6, 7], [8, 3]], [[5, 6, 7], [9, 4, 3, 8]])
    features = model.features(batch, PredictionSites.offline(batch)).detach().numpy()
    attention = model.alignments(batch).numpy()
    done = 0
    for row in range(2):
        length = int(batch.source_lengths[row])
        source = batch.source[row, :length].tolist()
        target = batch.target_input[row, : int(batch.target_lengths[row])].tolist()
        outputs, shares = outputs_by_hand(model, source, target)
        np.testing.assert_allclose(features[done : done + len(target)], outputs, atol=1e-10)
        np.testing.assert_allclose(attention[row, : len(target), :length], shares, atol=1e-6)
        done += len(target)


def test_depths_and_dropout_of_the_bilstm() -> None:
    """The top layers stand beside each other; a decoder layer below all reads the first."""
    for depths in ((1, 3), (3, 1)):
        model = tiny_bilstm(encoder_depth=depths[0], decoder_depth=depths[1])
        batch = collate([[4, 5, 6]], [[5, 6]])
        assert model.features(batch, PredictionSites.offline(batch)).shape == (3, 3)
    batch = collate([[4, 5, 6, 7]], [[5, 6, 7]])
    sites = PredictionSites.offline(batch)
    for name in ("dropout", "embedding_dropout", "output_dropout"):
        for feeding in (True, False):
            model = tiny_bilstm(**{name: 0.5, "input_feeding": feeding})
            assert torch.equal(model.features(batch, sites), model.features(batch, sites))
            model.train()
            assert not torch.equal(model.features(batch, sites), model.features(batch, sites))
    plain = tiny_bilstm()
    before = plain.features(batch, sites)
    assert torch.equal(plain.train().features(batch, sites), before)


@pytest.mark.parametrize("kind", ["full", "depthwise"])
@pytest.mark.parametrize("kernel", [1, 2, 3])
def test_a_window_is_the_sum_over_its_places(kernel: int, kind: Convolution) -> None:
    torch.manual_seed(1)
    window = PhraseWindow(3, kernel, kind).double()
    states = torch.randn(2, 5, 3).double()
    result = window(states).detach()
    assert result.shape == (2, 5 - kernel + 1, 3)
    weight = window.weight.detach()
    for row, index in itertools.product(range(2), range(5 - kernel + 1)):
        total = window.bias.detach().clone()
        for k in range(kernel):
            read = states[row, index + k]
            part = weight[:, 3 * k : 3 * k + 3] @ read if kind == "full" else weight[k] * read
            total = total + part
        torch.testing.assert_close(result[row, index], total.tanh())


def test_the_kernels_of_figure_7_2_merge_four_words() -> None:
    """Six words become five pairs (K_2), then three phrases of four words each (K_3)."""
    model = tiny_convrnn()
    lengths = torch.tensor([6])
    for layer, length in zip(model.encoder, (5, 3), strict=True):
        assert isinstance(layer, PhraseConvolution)
        lengths = layer.lengths_after(lengths)
        assert lengths.tolist() == [length]
    assert [layer.kernel for layer in model.decoder] == [3, 2]
    states = torch.randn(1, 6, 4).double().requires_grad_()
    phrases = model.encoder[1](model.encoder[0](states, torch.tensor([6])), torch.tensor([5]))
    (gradient,) = torch.autograd.grad(phrases[0, 1].sum(), states)
    assert (gradient[0].abs().sum(-1) > 0).tolist() == [False, True, True, True, True, False]


def test_a_row_shorter_than_the_kernel_skips_it() -> None:
    torch.manual_seed(2)
    layer = PhraseConvolution(3, 3, "full", 0.0).double()
    states, lengths = torch.randn(3, 5, 3).double(), torch.tensor([5, 2, 3])
    result = layer(states, lengths)
    assert layer.lengths_after(lengths).tolist() == [3, 2, 1]
    torch.testing.assert_close(result[0], layer.window(states[:1])[0])
    torch.testing.assert_close(result[1, :2], states[1, :2])
    torch.testing.assert_close(result[2, :1], layer.window(states[2:, :3])[0])
    torch.testing.assert_close(layer(states[1:2, :2], lengths[1:2])[0], states[1, :2])


def test_the_reverse_convolution_adds_what_the_kernel_lost() -> None:
    torch.manual_seed(4)
    layer = ReverseConvolution(2, 3, "depthwise", 0.0).double()
    states = torch.randn(1, 4, 2).double()
    actual = layer(states, torch.tensor([2]))
    weight, bias = layer.window.weight.detach(), layer.window.bias.detach()
    assert actual.shape == (1, 6, 2)
    a, b = states[0, 0], states[0, 1]
    expected = [a * weight[2], a * weight[1] + b * weight[2], a * weight[0] + b * weight[1],
              b * weight[0]]  # fmt: skip
    torch.testing.assert_close(actual[0, :4].detach(), torch.tanh(torch.stack(expected) + bias))


def resampled(states: Tensor, length: int, target: float, count: int) -> Tensor:
    lengths = torch.tensor([length]), torch.tensor([target]).double()
    actual: Tensor = Resample().double()(states, *lengths, count)
    return actual.detach()


def test_resampling() -> None:
    """p = 4, n = 2: the centres are 0.5 and 2.5, the spread (0.5 + 0.1) x 2 positions."""
    states = torch.randn(1, 5, 3).double()
    actual = resampled(states, 4, 2.0, 2)
    for index, centre in enumerate((0.5, 2.5)):
        weights = np.exp(-0.5 * ((np.arange(4) - centre) / 1.2) ** 2)
        expected = (weights / weights.sum()) @ states[0, :4].numpy()
        np.testing.assert_allclose(actual[0, index].numpy(), expected, atol=1e-10)
    states = torch.randn(1, 4, 3).double()
    six, other = resampled(states, 4, 6.0, 6), resampled(states, 4, 6.001, 6)
    assert 0 < float((six - other).abs().max()) < 1e-2
    constant = resampled(torch.ones(1, 4, 3).double(), 4, 9.3, 12)
    torch.testing.assert_close(constant, torch.ones_like(constant))


def test_predicted_lengths_lie_on_a_line_within_bounds() -> None:
    model, lengths = tiny_convrnn(), torch.tensor([1, 4, 10])
    for line, expected in (([1.5, -2.0], [1.0, 4.0, 13.0]), ([90.0, 0.0], [20.0, 32.0, 56.0])):
        model.length_line.data.copy_(torch.tensor(line))
        assert model.predict_lengths(lengths).tolist() == expected


@pytest.mark.parametrize("form", ["phrase", "sentence"])
def test_the_predicted_length_sets_the_number_of_words(form: str) -> None:
    """Eight source tokens, two a word, make twelve: nine phrases, and K_3 and K_2 add three."""
    model = tiny_convrnn(form=form)
    model.length_line.data.copy_(torch.tensor([1.5, 0.0]))
    words, predicted, last = model._words(torch.randint(3, 12, (2, 8)), torch.tensor([8, 2]))
    assert predicted.tolist() == [12.0, 3.0] and last.tolist() == [11, 3]
    assert words.shape[1] == 12


def test_beyond_the_predicted_end_the_last_word_is_read() -> None:
    model = tiny_convrnn()
    model.recurrent.data.zero_()
    model.distance.data.zero_()
    batch = collate([[4, 5, 6, 7, 8]], [[5] * 12])
    states = model.features(batch, PredictionSites.offline(batch))
    torch.testing.assert_close(states[6:], states[5:6].expand(7, -1))
    assert (states[4] - states[5]).abs().max() > 1e-4
    assert (states[3] - states[4]).abs().max() > 1e-4


def test_one_vector_stands_for_the_sentence() -> None:
    """What is unfolded depends on the phrases only through `size` numbers."""
    model = tiny_convrnn(form="sentence", merge=3)
    phrases = torch.randn(1, 5, 4).double().requires_grad_()
    unfolded, places = model._one_vector(phrases, torch.tensor([5]))
    assert unfolded.shape == (1, 3, 4) and places.tolist() == [3]
    rows = [torch.autograd.grad(v, phrases, retain_graph=True)[0] for v in unfolded.flatten()]
    assert torch.linalg.matrix_rank(torch.stack(rows).flatten(1), rtol=1e-8) == 4


def test_growing_kernels_and_presets() -> None:
    for name, preset in zoo.presets("convrnn").items():
        source, target = preset.vocabulary or (100, 90)
        model = zoo.build("convrnn", name, source_vocab_size=source, target_vocab_size=target)
        assert isinstance(model, ConvRNN)
        depth = model.config.encoder_depth
        assert [layer.kernel for layer in model.encoder] == list(range(2, depth + 2))
        report = model.report(20, 18)
        assert report.flops_per_pair > 0 and "|y|" in report.sequential


GAMMA = math.sqrt(0.5)


def pairs() -> Batch:
    return collate([[4, 5, 6, 7, 8], [9, 10]], [[4, 5, 6], [7, 8, 9, 10, 4, 5, 6]])


class WrittenConvS2S:
    """The model of one sentence pair, Eq. (2.32)-(2.38) position by position."""

    def __init__(self, model: ConvS2S) -> None:
        self.config = model.config
        self.weights = {name: value.numpy() for name, value in model.state_dict().items()}

    def mapped(self, x: Array, name: str) -> Array:
        v: Array = self.weights[name + ".weight"]
        if self.config.weight_norm:
            lengths = np.sqrt((v * v).sum(1, keepdims=True))
            v = self.weights[name + ".gain"][:, None] * v / lengths
        result: Array = x @ v.T + self.weights[name + ".bias"]
        return result

    def gated(self, x: Array, name: str, before: int) -> Array:
        kernel, size = self.config.kernel, self.config.size
        rows = []
        for position in range(len(x)):
            reads = [position - before + tap for tap in range(kernel)]
            laid = [x[r] if 0 <= r < len(x) else np.zeros(size) for r in reads]
            value = self.mapped(np.concatenate(laid), name)
            rows.append(value[:size] / (1 + np.exp(-value[size:])))
        return np.array(rows)

    def embedded(self, tokens: Array, side: str) -> Array:
        vectors: Array = self.weights[side + "_embedding.weight"][tokens]
        places = np.minimum(np.arange(len(tokens)), self.config.max_positions - 1)
        result: Array = vectors + self.weights[side + "_embedding.position_weight"][places]
        return result

    def logits(self, source: Array, target: Array) -> tuple[Array, list[Array]]:
        """Return logits [T, V] and each layer's attention weights [T, S]."""
        config, kernel = self.config, self.config.kernel
        first = self.embedded(source, "source")
        s = self.mapped(first, "encoder_enter")
        for layer in range(config.encoder_depth):
            s = GAMMA * (s + self.gated(s, f"encoder.{layer}.convolution", kernel // 2))
        keys = self.mapped(s, "encoder_leave")
        values = GAMMA * (keys + first)
        if config.length_scale:
            values = values * math.sqrt(len(source))
        start = self.embedded(target, "target")
        h, weights = self.mapped(start, "decoder_enter"), []
        for layer in range(config.decoder_depth):
            name = f"decoder.{layer}."
            r = self.gated(h, name + "convolution", kernel - 1)
            if config.residual == "convolution":
                r = GAMMA * (h + r)
            query = GAMMA * (self.mapped(r, name + "query_map") + start)
            if config.attention_scale == "size":
                query = query / math.sqrt(config.embedding_size)
            shares = np.exp(query @ keys.T)
            shares = shares / shares.sum(1, keepdims=True)
            weights.append(shares)
            out = GAMMA * (self.mapped(shares @ values, name + "output_map") + r)
            h = GAMMA * (h + out) if config.residual == "layer" else out
        matrix = self.weights.get("output_weight", self.weights["target_embedding.weight"])
        result: Array = self.mapped(h, "decoder_leave") @ matrix.T + self.weights["output_bias"]
        return result, weights


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"residual": "layer"},
        {"attention_scale": "size"},
        {"length_scale": False},
        {"weight_norm": False},
        {"tie": "none", "residual": "layer"},
        {"kernel": 5, "max_positions": 3},
    ],
    ids=str,
)
def test_features_and_alignments_follow_the_formulas(changes: dict[str, Any]) -> None:
    model, batch = tiny_convs2s(**changes), pairs()
    written = WrittenConvS2S(model)
    sites = PredictionSites.offline(batch)
    actual = model.classify(model.features(batch, sites)).detach().numpy()
    shares = model.alignments(batch).numpy()
    start = 0
    for row in range(len(batch)):
        lengths = int(batch.source_lengths[row]), int(batch.target_lengths[row])
        source = batch.source[row, : lengths[0]].numpy()
        target = batch.target_input[row, : lengths[1]].numpy()
        expected, weights = written.logits(source, target)
        assert np.allclose(actual[start : start + lengths[1]], expected, atol=1e-10)
        start += lengths[1]
        kept = shares[row, : lengths[1], : lengths[0]]
        assert np.allclose(kept, np.mean(weights, 0), atol=1e-7)


def test_the_last_layer_alone_may_align() -> None:
    model, batch = tiny_convs2s(alignment="last"), pairs()
    source, target = batch.source[0].numpy(), batch.target_input[0, :4].numpy()
    _, weights = WrittenConvS2S(model).logits(source, target)
    assert np.allclose(model.alignments(batch)[0, :4].numpy(), weights[-1], atol=1e-7)


def test_the_thesis_count_by_hand() -> None:
    """19.49M at 8,848 and 6,632 types: every weight row has a gain and a bias.

    Tied matrices are shared and positions are not.
    """
    d, layers, positions = 256, 16, 1024
    convolutions = 2 * layers * (2 * d) * (3 * d + 2)
    attentions = 2 * layers * d * (d + 2)
    stacks = 4 * d * (d + 2)
    embeddings = d * (8848 + 6632 + 2 * positions) + 6632
    counted = count_parameters("convs2s", None, 8848, 6632)
    assert counted == convolutions + attentions + stacks + embeddings
    assert round(counted / 1e6, 2) == 19.49
    tied = count_parameters("convs2s", None, 100, 100, tie="all")
    apart = count_parameters("convs2s", None, 100, 100)
    assert apart - tied == 100 * 256


def test_beyond_the_last_position_its_vector_serves() -> None:
    """Three positions, nine tokens: places 2 to 9 differ by their neighbours alone."""
    model = tiny_convs2s(max_positions=3, encoder_depth=1, decoder_depth=1)
    batch = collate([[5] * 9], [[6] * 9])
    states = model.target_embedding(batch.target_input)[0]
    assert torch.equal(states[3:], states[3].expand(7, -1))
    assert not torch.equal(states[1], states[3])
    expected = model.classify(model.features(batch, PredictionSites.offline(batch)))
    state = model.begin(batch.source, batch.source_lengths)
    for position in range(10):
        step = model.step(batch.target_input[:, position], state)
        assert torch.allclose(step.logits[0], expected[position], atol=1e-9)
        state = step.state


def test_a_feature_sees_the_target_tokens_that_the_report_tells() -> None:
    model = tiny_convs2s()
    assert model.traits.target_receptive_field == 1 + 2 * 2
    batch = collate([[5]], [[6] * 9])
    caught: list[Tensor] = []

    def catch(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        caught.append(output.detach().requires_grad_())
        return caught[0]

    model.target_embedding.register_forward_hook(catch)
    features = model.features(batch, PredictionSites.offline(batch))
    (gradient,) = torch.autograd.grad(features[8].sum(), caught[0])
    assert gradient[0].abs().sum(-1).nonzero()[:, 0].tolist() == [4, 5, 6, 7, 8]
    assert "5 target tokens" in model.report(10, 10).receptive_field


@pytest.mark.parametrize("scaled", [True, False])
def test_the_gradient_into_the_encoder_is_divided(scaled: bool) -> None:
    """By twice the number of attentions, while training; not that of the source embeddings' sum."""
    model, batch = tiny_convs2s(gradient_scale=scaled), pairs()

    def gradients() -> tuple[Tensor, Tensor]:
        model.zero_grad()
        readout = torch.linspace(-1, 1, 12 * 4, dtype=torch.float64).view(12, 4)
        (model.features(batch, PredictionSites.offline(batch)) * readout).sum().backward()
        weights = (model.encoder_leave.weight, model.decoder_leave.weight)
        inner, outer = (weight.grad for weight in weights)
        assert inner is not None and outer is not None
        return inner.clone(), outer.clone()

    inner, outer = gradients()
    model.train()
    trained_inner, trained_outer = gradients()
    assert torch.allclose(trained_outer, outer)
    assert torch.allclose(trained_inner, inner / 4 if scaled else inner)


def test_weights_are_normalised_once_for_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = tiny_convs2s(), pairs()
    state = model.begin(batch.source, batch.source_lengths)

    refuse = Mock(side_effect=AssertionError("a step must not normalise weights"))
    monkeypatch.setattr(NormalisedWeight, "effective_weight", refuse)
    monkeypatch.setattr(NormalisedWeight, "scaled", refuse)
    assert model.step(batch.target_input[:, 0], state).logits.shape[0] == len(batch)
