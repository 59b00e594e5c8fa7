"""The Transformer against its formulas, written out position by position in float64."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtgrid.base.config import override
from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import Batch, collate
from nmtgrid.models import zoo
from nmtgrid.models.api import Sites
from nmtgrid.models.transformer import Transformer
from nmtgrid.models.transformer_config import TransformerConfig
from nmtgrid.training.likelihood import LikelihoodSettings
from nmtgrid.training.settings import settings_type

SMALL: dict[str, Any] = {
    "encoder_depth": 2, "decoder_depth": 3, "size": 8, "feed_forward_size": 10, "heads": 2,
    "dropout": 0.0, "embedding_dropout": 0.0,
}  # fmt: skip
Array = NDArray[Any]
PUBLISHED = [name for name, held in zoo.presets("transformer").items() if held.parameters]


def tiny(**changes: Any) -> Transformer:
    """Return a small float64 model whose every parameter has been drawn, biases too."""
    torch.manual_seed(3)
    model = zoo.build(
        "transformer", None, {**SMALL, **changes}, source_vocab_size=12, target_vocab_size=11
    )
    assert isinstance(model, Transformer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.double().eval()


def pair() -> Batch:
    return collate([[4, 5, 6, 7]], [[5, 6, 7]])


class Written:
    """The model's formulas over one sentence, with its weights."""

    def __init__(self, model: Transformer) -> None:
        self.held = {name: value.numpy() for name, value in model.state_dict().items()}
        self.config = model.config
        self.attention: list[Array] = []

    def mapped(self, x: Array, name: str) -> Array:
        result: Array = x @ self.held[name + ".weight"].T + self.held[name + ".bias"]
        return result

    def normed(self, x: Array, name: str) -> Array:
        """Eq. (2.43), with the usual 1e-5 under the root."""
        spread = np.sqrt(((x - x.mean(1, keepdims=True)) ** 2).mean(1, keepdims=True) + 1e-5)
        result: Array = (x - x.mean(1, keepdims=True)) / spread
        result *= self.held[name + ".weight"]
        result += self.held[name + ".bias"]
        return result

    def joined(self, x: Array, name: str, change: Any) -> Array:
        """Eq. (2.42), or with the normalisation moved before the sub-layer."""
        if self.config.norm == "post":
            return self.normed(x + change(x), name + ".norm")
        result: Array = x + change(self.normed(x, name + ".norm"))
        return result

    def attended(self, query: Array, keys: Array, values: Array, causal: bool) -> Array:
        """Eq. (2.40) for each head, and the heads' mean attention."""
        heads, (rows, size) = self.config.heads, query.shape
        each, read = size // heads, np.zeros_like(query)
        mean = np.zeros((rows, len(keys)))
        for head, t in itertools.product(range(heads), range(rows)):
            part = slice(head * each, (head + 1) * each)
            seen = t + 1 if causal else len(keys)
            scores = keys[:seen, part] @ query[t, part] / math.sqrt(each)
            shares = np.exp(scores) / np.exp(scores).sum()
            read[t, part] = shares @ values[:seen, part]
            mean[t, :seen] += shares / heads
        self.attention.append(mean)
        return read

    def self_attended(self, x: Array, name: str, causal: bool) -> Array:
        query, keys, values = np.split(self.mapped(x, name + ".input_map"), 3, axis=1)
        return self.mapped(self.attended(query, keys, values, causal), name + ".output_map")

    def fed(self, x: Array, name: str) -> Array:
        """Eq. (2.41)."""
        return self.mapped(np.maximum(self.mapped(x, name + ".widen"), 0), name + ".narrow")

    def embedded(self, ids: list[int], side: str) -> Array:
        """Embeddings times sqrt(d) plus Eq. (2.39)."""
        size = self.config.size
        vectors: Array = self.held[f"{side}_embedding.weight"][ids] * math.sqrt(size)
        for place, k in itertools.product(range(len(ids)), range(size // 2)):
            omega = 10000 ** (-2 * k / size)
            vectors[place, 2 * k] += math.sin(omega * place)
            vectors[place, 2 * k + 1] += math.sin(math.pi / 2 + omega * place)
        return vectors

    def memory(self, states: list[Array]) -> list[Array]:
        """What each decoder block reads: the last state, or its own mixture of all of them."""
        blocks = self.config.decoder_depth
        if not self.config.transparent:
            found = [states[-1]] * blocks
        else:
            shares = np.exp(self.held["mixtures.weight"])
            shares /= shares.sum(1, keepdims=True)
            found = [sum(s * h for s, h in zip(row, states, strict=True)) for row in shares]
        if self.config.norm == "pre":
            found = [self.normed(state, "encoder_norm") for state in found]
        return found

    def scores(self, source: list[int], target: list[int]) -> Array:
        """Return logits [T, V]."""
        states = [self.embedded(source, "source")]
        for n in range(self.config.encoder_depth):
            name = f"encoder.{n}"
            x = self.joined(
                states[-1], name + ".add_attention",
                lambda y, name=name: self.self_attended(y, name + ".attention", False),
            )  # fmt: skip
            fed = self.joined(
                x, name + ".add_feed_forward",
                lambda y, name=name: self.fed(y, name + ".feed_forward"),
            )  # fmt: skip
            states.append(fed)
        self.attention.clear()
        x = self.embedded(target, "target")
        for n, read in enumerate(self.memory(states)):
            x = self.decoded(x, read, n)
        if self.config.norm == "pre":
            x = self.normed(x, "decoder_norm")
        result: Array = x @ self.held["target_embedding.weight"].T
        return result

    def decoded(self, x: Array, read: Array, n: int) -> Array:
        name, size = f"decoder.{n}", self.config.size
        weight = self.held["source_projection.weight"].reshape(-1, 2, size, size)[n]
        bias = self.held["source_projection.bias"].reshape(-1, 2, size)[n]
        keys, values = (read @ weight[i].T + bias[i] for i in (0, 1))

        def from_source(y: Array) -> Array:
            query = self.mapped(y, name + ".source_attention.query_map")
            found = self.attended(query, keys, values, False)
            return self.mapped(found, name + ".source_attention.output_map")

        x = self.joined(
            x, name + ".add_self", lambda y: self.self_attended(y, name + ".self_attention", True)
        )
        x = self.joined(x, name + ".add_source", from_source)
        return self.joined(
            x, name + ".add_feed_forward", lambda y: self.fed(y, name + ".feed_forward")
        )


@pytest.mark.parametrize("transparent", [False, True])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_logits_are_the_formulas(norm: str, transparent: bool) -> None:
    model, batch = tiny(norm=norm, transparent=transparent), pair()
    found = model.classify(model.features(batch, Sites.offline(batch)))
    wanted = Written(model).scores(batch.source[0].tolist(), batch.target_input[0].tolist())
    np.testing.assert_allclose(found.detach().numpy(), wanted, atol=1e-6)


@pytest.mark.parametrize("alignment", ["last", "mean"])
def test_alignments_are_the_mean_of_the_heads(alignment: str) -> None:
    model, batch = tiny(alignment=alignment), pair()
    written = Written(model)
    written.scores(batch.source[0].tolist(), batch.target_input[0].tolist())
    blocks = written.attention[1::2]  # self-attention and attention over the source take turns
    wanted = blocks[-1] if alignment == "last" else np.mean(blocks, axis=0)
    np.testing.assert_allclose(model.alignments(batch)[0].numpy(), wanted, atol=1e-6)
    with pytest.raises(ConfigError, match="Energies"):
        model.alignments(batch, "energies")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts(name: str) -> None:
    held = zoo.preset("transformer", name)
    assert held.vocabulary and held.parameters
    source, target = held.vocabulary
    with torch.device("meta"):
        model = zoo.build("transformer", name, source_vocab_size=source, target_vocab_size=target)
    assert model.count_parameters() == pytest.approx(held.parameters, rel=0.01)


def test_transparent_attention_adds_m_times_n_plus_one_parameters() -> None:
    more = tiny(transparent=True).count_parameters() - tiny().count_parameters()
    assert more == 3 * (2 + 1)


@pytest.mark.parametrize("name", sorted(zoo.presets("transformer")))
def test_presets_name_settings_that_there_are(name: str) -> None:
    held = zoo.preset("transformer", name)
    kind = settings_type(TransformerConfig, LikelihoodSettings)
    override(kind("transformer"), held.settings)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("tie", ["none", "target", "all"])
def test_stages_are_called_once_each_and_yield_the_states(norm: str, tie: str) -> None:
    torch.manual_seed(1)
    changes = {**SMALL, "norm": norm, "tie": tie}
    model = zoo.build("transformer", None, changes, source_vocab_size=12, target_vocab_size=12)
    stages = model.stages()
    assert list(stages) == [
        "encoder.0", "encoder.1", "encoder.2", "decoder.0", "decoder.1", "decoder.2", "decoder.3",
    ]  # fmt: skip
    caught: dict[str, list[Tensor]] = {name: [] for name in stages}
    for name, stage in stages.items():
        stage.register_forward_hook(lambda _, __, out, name=name: caught[name].append(out))
    batch = collate([[4, 5, 6], [7]], [[5, 6], [8, 9, 5]])
    features = model.features(batch, Sites.offline(batch))
    assert all(len(found) == 1 for found in caught.values())
    assert all(found[0].shape == (2, 4, 8) for found in caught.values())
    if norm == "post":
        assert torch.equal(features, caught["decoder.3"][0][batch.is_target])
        last = caught["encoder.2"][0]
        torch.testing.assert_close(last.mean(-1), torch.zeros(2, 4), atol=1e-5, rtol=0)


@pytest.mark.parametrize("transparent", [False, True])
def test_reported_cost_is_what_torch_counts(transparent: bool) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    shape = {"encoder_depth": 3, "decoder_depth": 2, "size": 32, "feed_forward_size": 64}
    model = zoo.build(
        "transformer", None, {**shape, "transparent": transparent, "heads": 4},
        source_vocab_size=12, target_vocab_size=11,
    )  # fmt: skip
    model = model.double().eval()  # products of float64 are all the counter's own
    batch = collate([[4, 5, 6, 7, 8, 9, 10]], [[5, 6, 7, 8, 9]])
    plain = sdpa_kernel(SDPBackend.MATH)  # the counter does not know the CPU's fused attention
    with FlopCounterMode(display=False) as counter, torch.no_grad(), plain:
        model.classify(model.features(batch, Sites.offline(batch)))
    assert model.report(8, 6).flops_per_pair / 3 == pytest.approx(
        counter.get_total_flops(), rel=0.03
    )


def test_initial_values_are_those_of_the_published_systems() -> None:
    torch.manual_seed(1)
    model = zoo.build(
        "transformer", None, {"size": 64, "encoder_depth": 1, "decoder_depth": 1, "heads": 4},
        source_vocab_size=500, target_vocab_size=400,
    )  # fmt: skip
    held = dict(model.named_parameters())
    inward, outward = math.sqrt(6 / (4 * 64)), math.sqrt(6 / (2 * 64))
    for name in ("encoder.0.attention.input_map", "decoder.0.source_attention.query_map"):
        assert 0.9 * inward < float(held[name + ".weight"].detach().abs().max()) <= inward
    assert 0.9 * inward < float(held["source_projection.weight"].detach().abs().max()) <= inward
    largest = float(held["encoder.0.attention.output_map.weight"].detach().abs().max())
    assert 0.9 * outward < largest <= outward
    assert float(held["target_embedding.weight"].detach().std()) == pytest.approx(1 / 8, rel=0.05)
    biases = [value for name, value in held.items() if name.endswith("bias")]
    assert biases and all(bool((bias == 0).all()) for bias in biases)


def test_mixtures_start_as_means_and_are_dropped_in_training_alone() -> None:
    from nmtgrid.layers.mixture import StateMixtures

    mixtures = StateMixtures(2, 4, dropout_rate=0.5).eval()
    states = [torch.full((1, 3, 2), float(n)) for n in range(4)]
    for mixed in mixtures(states):
        torch.testing.assert_close(mixed, torch.full((1, 3, 2), 1.5))
    torch.manual_seed(4)
    shares = mixtures.train().shares()
    # W = 0: a dropped score is 0, a kept one 2 x 1/4, so shares have two values at most.
    ratios = (shares / shares.amin(1, keepdim=True)).detach().flatten()
    assert {round(float(r), 4) for r in ratios} == {1.0, round(math.exp(0.5), 4)}


def test_bf16_keeps_states_narrow_and_values_near() -> None:
    model = tiny(size=16, heads=2).float()
    batch = collate([[4, 5, 6, 7], [8, 9]], [[5, 6, 7], [8]])
    wanted = model.classify(model.features(batch, Sites.offline(batch))).log_softmax(-1)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        found = model.classify(model.features(batch, Sites.offline(batch)))
        state = model.begin(batch.source, batch.source_lengths)
        step = model.step(batch.target_input[:, 0], state)
    assert found.dtype is torch.bfloat16 and step.state.cache.buffer.dtype is torch.bfloat16
    first = torch.stack([found[0], found[4]]).float().log_softmax(-1)
    assert (found.float().log_softmax(-1) - wanted).abs().mean() < 0.15
    torch.testing.assert_close(step.logits.float().log_softmax(-1), first, atol=0.2, rtol=0.05)


def test_learned_positions_beyond_the_last_share_its_vector() -> None:
    model = tiny(positions="learned", max_positions=3)
    embedding = model.source_embedding
    found = embedding(torch.tensor([[4, 4, 4, 4, 4]]))[0]
    assert torch.equal(found[2], found[4]) and not torch.equal(found[1], found[2])
    assert embedding.position_weight is not None and len(embedding.position_weight) == 3


def test_faults_are_told_all_at_once() -> None:
    wrong = {"size": 10, "heads": 4, "encoder_depth": 0, "dropout": 1.0, "decoder_depth": 2000}
    with pytest.raises(ConfigError) as caught:
        zoo.build("transformer", None, wrong, source_vocab_size=9, target_vocab_size=9)
    text = str(caught.value)
    for name in ("heads", "encoder_depth", "dropout", "decoder_depth"):
        assert f"`model.{name}`" in text
