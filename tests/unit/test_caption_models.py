"""Models of captions against their papers' equations, and their parameters counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import Batch
from nmtgrid.layers.recurrent.top_down import (
    TopDownWeights,
    attend_additively,
    attend_additively_backward,
    run_top_down,
)
from nmtgrid.layers.source_cache import SourceCache
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.models.captioning.model import CaptionLSTM
from nmtgrid.models.captioning.top_down import CaptionTopDown
from tests.laws.helpers import batch_for, teacher_forced

F, V = 5, 11
SMALL: dict[str, Any] = {"size": 6, "embedding_size": 4}


def build(arch: str, **settings: Any) -> TranslationModel:
    return zoo.build(
        arch, overrides={**SMALL, **settings}, source_vocab_size=F + 4, target_vocab_size=V
    ).eval()


def regions(batch: Batch, row: int) -> Tensor:
    return batch.source[row, : int(batch.source_lengths[row])]


def logits(model: TranslationModel, state: Tensor) -> Tensor:
    held = model.classifier()
    assert held.bias is not None
    return state @ held.weight.t() + held.bias


@torch.no_grad()
@pytest.mark.parametrize("picture", ["input", "state"])
def test_an_lstm_that_sees_the_mean_region_first(picture: str) -> None:
    """x_-1 = W v + b and x_t = W_e y_t through one LSTM; or W v + b are its first states."""
    model = build("caption-lstm", picture=picture, depth=1)
    assert isinstance(model, CaptionLSTM)
    batch = batch_for(model, (3, 0), (4, 2))
    found = teacher_forced(model, batch)
    cell = model.cells[0]
    assert isinstance(cell, nn.LSTMCell)
    for row in range(2):
        shown = model.picture_map(regions(batch, row).mean(0, keepdim=True))
        states = cell(shown) if picture == "input" else (shown[:, :6], shown[:, 6:])
        for place in range(int(batch.target_lengths[row])):
            words = model.target_embedding.weight[batch.target_input[row, place]][None]
            states = cell(words, states)
            wanted = logits(model, states[0]).log_softmax(1)[0]
            torch.testing.assert_close(found[row, place], wanted)


@torch.no_grad()
def test_top_down_attention_by_its_equations() -> None:
    """Eq. (2) to (7) of Anderson et al. (2018), region by region."""
    model = build("caption-top-down", attention_size=3)
    assert isinstance(model, CaptionTopDown)
    batch = batch_for(model, (3, 0, 5), (4, 2, 3))
    found, shares = teacher_forced(model, batch), model.alignments(batch)
    for row in range(3):
        seen = regions(batch, row)
        first = second = (torch.zeros(1, 6), torch.zeros(1, 6))
        for place in range(int(batch.target_lengths[row])):
            words = model.target_embedding.weight[batch.target_input[row, place]][None]
            mean = seen.mean(0, keepdim=True)
            first = model.attention_lstm(torch.cat([second[0], mean, words], 1), first)
            scores = [
                model.score
                @ torch.tanh(model.region_map.weight @ v + model.query_map.weight @ first[0][0])
                for v in seen
            ]
            weights = torch.stack(scores).softmax(0)
            read = (weights[:, None] * seen).sum(0, keepdim=True)
            second = model.language_lstm(torch.cat([read, first[0]], 1), second)
            wanted = logits(model, second[0]).log_softmax(1)[0]
            torch.testing.assert_close(found[row, place], wanted)
            torch.testing.assert_close(shares[row, place, : len(seen)], weights)


def _count(arch: str, preset: str | None, features: int, types: int, **settings: Any) -> int:
    with torch.device("meta"):
        model = zoo.build(
            arch, preset, settings, source_vocab_size=features + 4, target_vocab_size=types
        )
    return model.count_parameters()


def test_parameters_of_the_lstm_by_hand() -> None:
    """2048 features, 9,804 types, d = 512."""
    picture, embeddings = 2048 * 512 + 512, 9804 * 512
    lstm = 4 * 512 * (512 + 512) + 2 * 4 * 512
    output = 9804 * 512 + 9804
    wanted = picture + embeddings + lstm + output
    assert _count("caption-lstm", "mscoco", 2048, 9804) == wanted == 13_199_436
    tied = _count("caption-lstm", "mscoco", 2048, 9804, tie="target")
    assert tied == wanted - 9804 * 512
    as_states = _count("caption-lstm", "mscoco", 2048, 9804, picture="state")
    assert as_states == wanted + picture
    deeper = _count("caption-lstm", "mscoco", 2048, 9804, depth=2)
    assert deeper == wanted + lstm


def test_parameters_of_top_down_attention_by_hand() -> None:
    """2048 features, 9,804 types, M = E = 1000, H = 512."""
    embeddings = 9804 * 1000
    attention_lstm = 4 * 1000 * (1000 + 2048 + 1000 + 1000) + 2 * 4 * 1000
    attention = 512 * 2048 + 512 * 1000 + 512
    language_lstm = 4 * 1000 * (2048 + 1000 + 1000) + 2 * 4 * 1000
    output = 9804 * 1000 + 9804
    wanted = embeddings + attention_lstm + attention + language_lstm + output
    assert _count("caption-top-down", "mscoco", 2048, 9804) == wanted == 57_578_892
    bare = _count("caption-top-down", "mscoco", 2048, 9804, output_bias=False)
    assert bare == wanted - 9804


def test_a_classifier_tied_to_embeddings_of_another_size_is_mapped() -> None:
    """Embeddings of 4, states of 6: a map of 4 x 6 without a bias."""
    tied, own = build("caption-lstm", tie="target"), build("caption-lstm")
    assert tied.count_parameters() == own.count_parameters() - V * 6 + 4 * 6
    assert tied.classifier().weight.shape == (V, 4)


def test_reported_costs() -> None:
    """Multiply-adds of the products by hand, two FLOPs each, forward and twice backward."""
    lstm = build("caption-lstm", depth=1).report(3, 5).flops_per_pair
    positions = 6 * (4 * 6 * (4 + 6)) + 5 * V * 6
    assert lstm == 6 * (F * 4 + positions)
    top = build("caption-top-down", attention_size=3).report(3, 5).flops_per_pair
    attention_lstm, language_lstm = 24 * (6 + 4 + 6), 24 * (F + 6 + 6)
    position = attention_lstm + language_lstm + 3 * 6 + V * 6
    assert top == 6 * (24 * F + 3 * F * 3 + 5 * position + (3 + F) * 3 * 5)


def test_regions_are_needed() -> None:
    for arch in ("caption-lstm", "caption-top-down"):
        with pytest.raises(ConfigError, match="4 special symbols: 4 leave none"):
            zoo.build(arch, source_vocab_size=4, target_vocab_size=V)


@pytest.mark.parametrize(
    ("arch", "settings", "words"),
    [
        ("caption-lstm", {"depth": 0, "dropout": 1.0}, "`model.depth` must be at least 1"),
        ("caption-lstm", {"depth": 101}, "at most 100"),
        ("caption-lstm", {"size": 0}, "`model.size` must be at least 1"),
        ("caption-lstm", {"embedding_size": 0}, "`model.embedding_size`"),
        ("caption-lstm", {"picture": "both"}, "`model.picture`|picture"),
        ("caption-top-down", {"attention_size": 0}, "`model.attention_size` must be at least 1"),
        ("caption-top-down", {"output_dropout": -0.1}, r"`model.output_dropout` must be in \[0, 1"),
        ("caption-top-down", {"embedding_dropout": 1}, "`model.embedding_dropout` must be in"),
    ],
)
def test_faulty_settings(arch: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(arch, **settings)


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("caption-lstm", "dropout"), ("caption-lstm", "embedding_dropout"),
        ("caption-lstm", "output_dropout"), ("caption-top-down", "embedding_dropout"),
        ("caption-top-down", "output_dropout"),
    ],
)  # fmt: skip
def test_dropout_works_in_training_alone(arch: str, name: str) -> None:
    off = {"output_dropout": 0.0, "embedding_dropout": 0.0}
    if arch == "caption-lstm":
        off |= {"dropout": 0.0, "depth": 2}
    model = build(arch, **{**off, name: 0.5})
    batch = batch_for(model, (3, 2), (4, 5))
    sites = PredictionSites.offline(batch)
    assert torch.equal(model.features(batch, sites), model.features(batch, sites))
    model.train()
    assert not torch.equal(model.features(batch, sites), model.features(batch, sites))


def test_energies_and_depths_are_refused() -> None:
    model = build("caption-top-down")
    batch = batch_for(model, (3,), (4,))
    with pytest.raises(ConfigError, match="no energies"):
        model.alignments(batch, "energies")
    sites = PredictionSites.offline(batch)
    deep = PredictionSites(sites.sentence, sites.position, depth=torch.ones_like(sites.position))
    with pytest.raises(ConfigError, match="one exit"):
        model.features(batch, deep)


@pytest.mark.parametrize("is_masked", [False, True])
def test_the_gradient_of_additive_attention(is_masked: bool) -> None:
    """That of torch's own operations on the same formula."""
    shapes = ((2, 3, 5), (2, 4, 5), (5,))
    query, keys, weight = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes
    )
    values, of_read = (torch.randn(2, n, 6, dtype=torch.float64) for n in (4, 3))
    hide = torch.zeros(2, 1, 4, dtype=torch.float64)
    hide[0, 0, 2:] = -torch.inf
    mask = hide if is_masked else None
    scores = torch.tanh(query[:, :, None] + keys[:, None]) @ weight
    wanted = (scores if mask is None else scores + mask).softmax(-1)
    wanted_read = torch.einsum("bqs,bsf->bqf", wanted, values)
    with torch.no_grad():
        read, shares = attend_additively(query, keys, values, weight, mask)
        found = attend_additively_backward(of_read, query, keys, values, weight, shares)
    torch.testing.assert_close(read, wanted_read)
    torch.testing.assert_close(shares, wanted)
    assert bool((shares[0, :, 2:] == 0).all()) is is_masked
    gradients = torch.autograd.grad((wanted_read * of_read).sum(), (query, keys, weight))
    torch.testing.assert_close(found, gradients)


@pytest.mark.parametrize("is_masked", [False, True])
def test_the_gradient_of_top_down_attention(is_masked: bool) -> None:
    """Against finite differences, of all that has one."""
    positions, pictures, seen, size, compared = 3, 2, 3, 2, 4
    shapes = (
        (positions, pictures, 4 * size), (pictures, seen, compared), (4 * size, 2 * size),
        (compared, size), (compared,), (4 * size, F + 2 * size), (4 * size,),
    )  # fmt: skip
    given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    regions = torch.randn(pictures, 1, seen, F, dtype=torch.float64)
    hide = torch.zeros(pictures, 1, 1, seen, dtype=torch.float64)
    hide[0, :, :, 2:] = -torch.inf

    def run(below: Tensor, keys: Tensor, *weights: Tensor) -> Tensor:
        memory = SourceCache((keys[:, None],), (regions,), hide if is_masked else None)
        return run_top_down(below, memory, TopDownWeights(*weights))[0]

    assert torch.autograd.gradcheck(run, given)


@pytest.mark.parametrize("arch", ["caption-lstm", "caption-top-down"])
def test_bf16_is_near(arch: str) -> None:
    model = build(arch)
    batch = batch_for(model, (3, 2), (4, 5))
    wanted = teacher_forced(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        found = teacher_forced(model, batch)
        state = model.begin(batch.source, batch.source_lengths)
        first = model.step(batch.target_input[:, 0], state).logits.float().log_softmax(1)
    assert (found - wanted).abs().max() < 0.05
    assert (first - wanted[:, 0]).abs().max() < 0.05
