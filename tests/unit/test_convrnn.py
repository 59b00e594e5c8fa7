"""The convolution-to-recurrent model: its figures' lengths, its equations, its predicted length."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import collate
from nmtgrid.layers.convolution import (
    Convolution,
    PhraseConvolution,
    PhraseWindow,
    Resample,
    ReverseConvolution,
)
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites
from nmtgrid.models.convrnn import ConvRNN

SMALL: dict[str, Any] = {
    "size": 4, "embedding_size": 3,
    "dropout": 0.0, "embedding_dropout": 0.0, "output_dropout": 0.0,
}  # fmt: skip


def tiny(**changes: Any) -> ConvRNN:
    torch.manual_seed(3)
    model = zoo.build(
        "convrnn", None, {**SMALL, **changes}, source_vocab_size=12, target_vocab_size=11
    )
    assert isinstance(model, ConvRNN)
    return model.double().eval()


@pytest.mark.parametrize("kind", ["full", "depthwise"])
@pytest.mark.parametrize("kernel", [1, 2, 3])
def test_a_window_is_the_sum_over_its_places(kernel: int, kind: Convolution) -> None:
    torch.manual_seed(1)
    window = PhraseWindow(3, kernel, kind).double()
    states = torch.randn(2, 5, 3).double()
    found = window(states).detach()
    assert found.shape == (2, 5 - kernel + 1, 3)
    weight = window.weight.detach()
    for row, place in itertools.product(range(2), range(5 - kernel + 1)):
        total = window.bias.detach().clone()
        for k in range(kernel):
            read = states[row, place + k]
            part = weight[:, 3 * k : 3 * k + 3] @ read if kind == "full" else weight[k] * read
            total = total + part
        torch.testing.assert_close(found[row, place], total.tanh())


def test_the_kernels_of_figure_7_2_merge_four_words() -> None:
    """Six words become five pairs (K_2), then three phrases of four words each (K_3)."""
    model = tiny()
    lengths = torch.tensor([6])
    for layer, wanted in zip(model.encoder, (5, 3), strict=True):
        assert isinstance(layer, PhraseConvolution)
        lengths = layer.lengths_after(lengths)
        assert lengths.tolist() == [wanted]
    assert [layer.kernel for layer in model.decoder] == [3, 2]
    states = torch.randn(1, 6, 4).double().requires_grad_()
    phrases = model.encoder[1](model.encoder[0](states, torch.tensor([6])), torch.tensor([5]))
    (gradient,) = torch.autograd.grad(phrases[0, 1].sum(), states)
    assert (gradient[0].abs().sum(-1) > 0).tolist() == [False, True, True, True, True, False]


def test_a_row_shorter_than_the_kernel_skips_it() -> None:
    torch.manual_seed(2)
    layer = PhraseConvolution(3, 3, "full", 0.0).double()
    states, lengths = torch.randn(3, 5, 3).double(), torch.tensor([5, 2, 3])
    found = layer(states, lengths)
    assert layer.lengths_after(lengths).tolist() == [3, 2, 1]
    torch.testing.assert_close(found[0], layer.window(states[:1])[0])
    torch.testing.assert_close(found[1, :2], states[1, :2])
    torch.testing.assert_close(found[2, :1], layer.window(states[2:, :3])[0])
    alone = layer(states[1:2, :2], lengths[1:2])
    torch.testing.assert_close(alone[0], states[1, :2])


def test_the_reverse_convolution_adds_what_the_kernel_lost() -> None:
    torch.manual_seed(4)
    layer = ReverseConvolution(2, 3, "depthwise", 0.0).double()
    states = torch.randn(1, 4, 2).double()
    found = layer(states, torch.tensor([2]))
    weight, bias = layer.window.weight.detach(), layer.window.bias.detach()
    assert found.shape == (1, 6, 2)
    a, b = states[0, 0], states[0, 1]
    wanted = [a * weight[2], a * weight[1] + b * weight[2], a * weight[0] + b * weight[1],
              b * weight[0]]  # fmt: skip
    torch.testing.assert_close(found[0, :4].detach(), torch.tanh(torch.stack(wanted) + bias))


def resampled(states: Tensor, length: int, wanted: float, count: int) -> Tensor:
    layer = Resample().double()
    given = torch.tensor([wanted]).double()
    found: Tensor = layer(states, torch.tensor([length]), given, count)
    return found.detach()


def test_resampling_to_half_the_length_takes_the_middles() -> None:
    """p = 4, n = 2: the centres are 0.5 and 2.5, the spread (0.5 + 0.1) x 2 positions."""
    states = torch.randn(1, 5, 3).double()
    found = resampled(states, 4, 2.0, 2)
    for place, centre in enumerate((0.5, 2.5)):
        weights = np.exp(-0.5 * ((np.arange(4) - centre) / 1.2) ** 2)
        wanted = (weights / weights.sum()) @ states[0, :4].numpy()
        np.testing.assert_allclose(found[0, place].numpy(), wanted, atol=1e-10)


def test_resampling_to_more_positions_is_smooth_in_their_number() -> None:
    states = torch.randn(1, 4, 3).double()
    one, other = resampled(states, 4, 6.0, 6), resampled(states, 4, 6.001, 6)
    assert 0 < float((one - other).abs().max()) < 1e-2
    constant = resampled(torch.ones(1, 4, 3).double(), 4, 9.3, 12)
    torch.testing.assert_close(constant, torch.ones_like(constant))


def test_predicted_lengths_lie_on_a_line_within_bounds() -> None:
    model = tiny()
    with torch.no_grad():
        model.length_line.copy_(torch.tensor([1.5, -2.0]))
    lengths = torch.tensor([1, 4, 10])
    assert model.predict_lengths(lengths).tolist() == [1.0, 4.0, 13.0]
    with torch.no_grad():
        model.length_line.copy_(torch.tensor([90.0, 0.0]))
    assert model.predict_lengths(lengths).tolist() == [20.0, 32.0, 56.0]


@pytest.mark.parametrize("form", ["phrase", "sentence"])
def test_the_predicted_length_sets_the_number_of_words(form: str) -> None:
    """Eight source tokens, two a word, make twelve: nine phrases, and K_3 and K_2 add three."""
    model = tiny(form=form)
    with torch.no_grad():
        model.length_line.copy_(torch.tensor([1.5, 0.0]))
    source = torch.randint(3, 12, (2, 8))
    words, predicted, last = model._words(source, torch.tensor([8, 2]))
    assert predicted.tolist() == [12.0, 3.0]
    assert last.tolist() == [11, 3]
    assert words.shape[1] == 12


def test_beyond_the_predicted_end_the_last_word_is_read() -> None:
    """With no recurrence and one history, only the distance from the end tells steps apart."""
    model = tiny()
    with torch.no_grad():
        model.recurrent.zero_()
        model.distance.zero_()
    batch = collate([[4, 5, 6, 7, 8]], [[5] * 12])
    states = model.features(batch, PredictionSites.offline(batch))
    torch.testing.assert_close(states[6:], states[5:6].expand(7, -1))
    assert (states[4] - states[5]).abs().max() > 1e-4
    assert (states[3] - states[4]).abs().max() > 1e-4


def test_one_vector_stands_for_the_sentence() -> None:
    """What is unfolded depends on the phrases only through `size` numbers."""
    model = tiny(form="sentence", merge=3)
    phrases = torch.randn(1, 5, 4).double().requires_grad_()
    unfolded, places = model._one_vector(phrases, torch.tensor([5]))
    assert unfolded.shape == (1, 3, 4) and places.tolist() == [3]
    rows = [
        torch.autograd.grad(value, phrases, retain_graph=True)[0].flatten()
        for value in unfolded.flatten()
    ]
    assert torch.linalg.matrix_rank(torch.stack(rows), rtol=1e-8) == 4


def test_growing_kernels_and_presets() -> None:
    for name, held in zoo.presets("convrnn").items():
        source, target = held.vocabulary or (100, 90)
        model = zoo.build("convrnn", name, source_vocab_size=source, target_vocab_size=target)
        assert isinstance(model, ConvRNN)
        depth = model.config.encoder_depth
        assert [layer.kernel for layer in model.encoder] == list(range(2, depth + 2))
        report = model.report(20, 18)
        assert report.flops_per_pair > 0 and "|y|" in report.sequential


def test_stages_are_passed_once_each() -> None:
    model = tiny()
    seen: dict[str, int] = {}
    for name, part in model.stages().items():
        part.register_forward_hook(
            lambda _, __, out, name=name: seen.update({name: seen.get(name, 0) + out.dim() // 3})
        )
    batch = collate([[4, 5, 6]], [[5, 6, 7]])
    model.features(batch, PredictionSites.offline(batch))
    assert seen == dict.fromkeys(model.stages(), 1)
    assert len(seen) == 7


def test_what_cannot_be_asked_is_said() -> None:
    model = tiny()
    batch = collate([[4, 5]], [[5]])
    sites = PredictionSites.offline(batch)
    with pytest.raises(NotImplementedError, match="one exit"):
        model.features(
            batch, PredictionSites(sites.sentence, sites.position, None, torch.tensor([1, 1]))
        )
    with pytest.raises(ConfigError, match="both directions"):
        model.features(batch, PredictionSites(sites.sentence, sites.position, sites.position + 1))
    wrong = {"encoder_depth": 0, "merge": 0, "size": 0, "output_dropout": -0.5}
    with pytest.raises(ConfigError) as caught:
        zoo.configure("convrnn", None, wrong)
    for name in wrong:
        assert f"`model.{name}`" in str(caught.value)
    with pytest.raises(ConfigError, match="at most"):
        zoo.configure("convrnn", None, {"encoder_depth": 31})
