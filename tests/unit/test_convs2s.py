"""ConvS2S against its formulas, written out in NumPy, and its published sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import Batch, collate
from nmtgrid.layers.convolution import NormalisedWeight
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites
from nmtgrid.models.convs2s import ConvS2S

SMALL: dict[str, Any] = {
    "encoder_depth": 3,
    "decoder_depth": 2,
    "size": 6,
    "embedding_size": 4,
    "kernel": 3,
    "max_positions": 32,
    "dropout": 0.0,
    "embedding_dropout": 0.0,
    "output_dropout": 0.0,
}
Array = NDArray[Any]
GAMMA = math.sqrt(0.5)


def tiny(**changes: Any) -> ConvS2S:
    """Return a small float64 model whose every parameter has been moved, biases too."""
    torch.manual_seed(3)
    model = zoo.build(
        "convs2s", None, {**SMALL, **changes}, source_vocab_size=12, target_vocab_size=11
    )
    assert isinstance(model, ConvS2S)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.double().eval()


def pairs() -> Batch:
    return collate([[4, 5, 6, 7, 8], [9, 10]], [[4, 5, 6], [7, 8, 9, 10, 4, 5, 6]])


class Written:
    """The model of one sentence pair, Eq. (2.32)-(2.38) position by position."""

    def __init__(self, model: ConvS2S) -> None:
        self.config = model.config
        self.held = {name: value.numpy() for name, value in model.state_dict().items()}

    def weight(self, name: str) -> Array:
        v: Array = self.held[name + ".weight"]
        if not self.config.weight_norm:
            return v
        lengths = np.sqrt((v * v).sum(1, keepdims=True))
        normed: Array = self.held[name + ".gain"][:, None] * v / lengths
        return normed

    def mapped(self, x: Array, name: str) -> Array:
        result: Array = x @ self.weight(name).T + self.held[name + ".bias"]
        return result

    def gated(self, x: Array, name: str, before: int) -> Array:
        kernel, size = self.config.kernel, self.config.size
        rows = []
        for place in range(len(x)):
            reads = [place - before + tap for tap in range(kernel)]
            laid = [x[r] if 0 <= r < len(x) else np.zeros(size) for r in reads]
            value = self.mapped(np.concatenate(laid), name)
            rows.append(value[:size] / (1 + np.exp(-value[size:])))
        return np.array(rows)

    def embedded(self, tokens: Array, side: str) -> Array:
        vectors: Array = self.held[side + "_embedding.weight"][tokens]
        places = np.minimum(np.arange(len(tokens)), self.config.max_positions - 1)
        result: Array = vectors + self.held[side + "_embedding.position_weight"][places]
        return result

    def logits(self, source: Array, target: Array) -> tuple[Array, list[Array]]:
        """Return logits [T, V] and each layer's attention weights [T, S]."""
        config, kernel = self.config, self.config.kernel
        first = self.embedded(source, "source")
        s = self.mapped(first, "encoder_enter")
        for place in range(config.encoder_depth):
            s = GAMMA * (s + self.gated(s, f"encoder.{place}.convolution", kernel // 2))
        keys = self.mapped(s, "encoder_leave")
        values = GAMMA * (keys + first)
        if config.length_scale:
            values = values * math.sqrt(len(source))
        start = self.embedded(target, "target")
        h, weights = self.mapped(start, "decoder_enter"), []
        for place in range(config.decoder_depth):
            name = f"decoder.{place}."
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
        matrix = self.held.get("output_weight", self.held["target_embedding.weight"])
        result: Array = self.mapped(h, "decoder_leave") @ matrix.T + self.held["output_bias"]
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
    model, batch = tiny(**changes), pairs()
    written = Written(model)
    sites = PredictionSites.offline(batch)
    found = model.classify(model.features(batch, sites)).detach().numpy()
    shares = model.alignments(batch).numpy()
    start = 0
    for row in range(len(batch)):
        lengths = int(batch.source_lengths[row]), int(batch.target_lengths[row])
        source = batch.source[row, : lengths[0]].numpy()
        target = batch.target_input[row, : lengths[1]].numpy()
        wanted, weights = written.logits(source, target)
        assert np.allclose(found[start : start + lengths[1]], wanted, atol=1e-10)
        start += lengths[1]
        kept = shares[row, : lengths[1], : lengths[0]]
        assert np.allclose(kept, np.mean(weights, 0), atol=1e-7)


def test_the_last_layer_alone_may_align() -> None:
    model, batch = tiny(alignment="last"), pairs()
    _, weights = Written(model).logits(batch.source[0].numpy(), batch.target_input[0, :4].numpy())
    assert np.allclose(model.alignments(batch)[0, :4].numpy(), weights[-1], atol=1e-7)
    with pytest.raises(ConfigError, match="no energies"):
        model.alignments(batch, "energies")


def test_the_thesis_count_by_hand() -> None:
    """19.49M at 8,848 and 6,632 types: every weight row has a gain and a bias."""
    d, layers, positions = 256, 16, 1024
    convolutions = 2 * layers * (2 * d) * (3 * d + 2)
    attentions = 2 * layers * d * (d + 2)
    stacks = 4 * d * (d + 2)
    embeddings = d * (8848 + 6632 + 2 * positions) + 6632
    with torch.device("meta"):
        model = zoo.build("convs2s", source_vocab_size=8848, target_vocab_size=6632)
    assert model.count_parameters() == convolutions + attentions + stacks + embeddings
    assert round(model.count_parameters() / 1e6, 2) == 19.49


def test_tied_matrices_are_shared_and_positions_are_not() -> None:
    with torch.device("meta"):
        both = zoo.build(
            "convs2s", None, {"tie": "all"}, source_vocab_size=100, target_vocab_size=100
        )
        one = zoo.build("convs2s", source_vocab_size=100, target_vocab_size=100)
    assert one.count_parameters() - both.count_parameters() == 100 * 256


def test_beyond_the_last_position_its_vector_serves() -> None:
    """Three positions, nine tokens: places 2 to 9 differ by their neighbours alone."""
    model = tiny(max_positions=3, encoder_depth=1, decoder_depth=1)
    batch = collate([[5] * 9], [[6] * 9])
    states = model.target_embedding(batch.target_input)[0]
    assert torch.equal(states[3:], states[3].expand(7, -1))
    assert not torch.equal(states[1], states[3])
    wanted = model.classify(model.features(batch, PredictionSites.offline(batch)))
    state = model.begin(batch.source, batch.source_lengths)
    for place in range(10):
        step = model.step(batch.target_input[:, place], state)
        assert torch.allclose(step.logits[0], wanted[place], atol=1e-9)
        state = step.state


def test_a_feature_sees_the_target_tokens_that_the_report_tells() -> None:
    model = tiny()
    reach = model.traits.target_receptive_field
    assert reach == 1 + 2 * 2
    batch = collate([[5]], [[6] * 9])
    caught: list[Tensor] = []

    def catch(module: nn.Module, given: Any, output: Tensor) -> Tensor:
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
    model, batch = tiny(gradient_scale=scaled), pairs()

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
    model, batch = tiny(), pairs()
    state = model.begin(batch.source, batch.source_lengths)

    def refuse(self: NormalisedWeight, *given: Any) -> Any:
        raise AssertionError("a step must not normalise weights")

    monkeypatch.setattr(NormalisedWeight, "effective_weight", refuse)
    monkeypatch.setattr(NormalisedWeight, "scaled", refuse)
    assert model.step(batch.target_input[:, 0], state).logits.shape[0] == len(batch)


def test_reported_cost_is_what_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = tiny(size=32, embedding_size=24)
    batch = collate([[4, 5, 6, 7, 8, 9, 10]], [[5, 6, 7, 8, 9]])
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model.classify(model.features(batch, PredictionSites.offline(batch)))
    counted = counter.get_total_flops()
    assert model.report(8, 6).flops_per_pair / 3 == pytest.approx(counted, rel=1e-6)


def test_stages_are_called_once_in_order() -> None:
    model, batch, called = tiny(tie="none"), pairs(), []
    stages = model.stages()
    wanted = [*(f"encoder.{n}" for n in range(4)), *(f"decoder.{n}" for n in range(3))]
    assert list(stages) == wanted
    for name, module in stages.items():

        def note(module: nn.Module, given: Any, output: Tensor, name: str = name) -> None:
            assert output.shape[-1] in (4, 6)
            called.append(name)

        module.register_forward_hook(note)
    model.features(batch, PredictionSites.offline(batch))
    assert called == wanted


def test_other_sites_are_refused() -> None:
    model, batch = tiny(), pairs()
    sites = PredictionSites.offline(batch)
    with pytest.raises(ConfigError, match="both directions"):
        model.features(batch, PredictionSites(sites.sentence, sites.position, sites.position + 1))


def test_faulty_settings_are_told_all_at_once() -> None:
    wrong = {"kernel": 4, "encoder_depth": 0, "max_positions": 0, "dropout": 1.0, "size": 0}
    with pytest.raises(ConfigError) as caught:
        zoo.build("convs2s", None, wrong, source_vocab_size=9, target_vocab_size=9)
    assert len(caught.value.faults) == 5
    assert "take 3 or 5" in str(caught.value)
