"""The Transformer against its formulas, written out position by position in float64."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import Batch, collate
from nmtgrid.models.api import PredictionSites
from nmtgrid.models.transformer.model import Transformer
from tests.unit.helpers import tiny_transformer

Array = NDArray[Any]


def tiny(**changes: Any) -> Transformer:
    """Return a small float64 model whose every parameter has been drawn, biases too."""
    return tiny_transformer.tiny(**changes).double()


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
        for position, k in itertools.product(range(len(ids)), range(size // 2)):
            omega = 10000 ** (-2 * k / size)
            vectors[position, 2 * k] += math.sin(omega * position)
            vectors[position, 2 * k + 1] += math.sin(math.pi / 2 + omega * position)
        return vectors

    def memory(self, states: list[Array]) -> list[Array]:
        """What each decoder block reads: the last state, or its own mixture of all of them."""
        blocks = self.config.decoder_depth
        if not self.config.transparent:
            actual = [states[-1]] * blocks
        else:
            shares = np.exp(self.held["mixtures.weight"])
            shares /= shares.sum(1, keepdims=True)
            actual = [sum(s * h for s, h in zip(row, states, strict=True)) for row in shares]
        if self.config.norm == "pre":
            actual = [self.normed(state, "encoder_norm") for state in actual]
        return actual

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
            actual = self.attended(query, keys, values, False)
            return self.mapped(actual, name + ".source_attention.output_map")

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
    actual = model.classify(model.features(batch, PredictionSites.offline(batch)))
    expected = Written(model).scores(batch.source[0].tolist(), batch.target_input[0].tolist())
    np.testing.assert_allclose(actual.detach().numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("alignment", ["last", "mean"])
def test_alignments_are_the_mean_of_the_heads(alignment: str) -> None:
    model, batch = tiny(alignment=alignment), pair()
    written = Written(model)
    written.scores(batch.source[0].tolist(), batch.target_input[0].tolist())
    blocks = written.attention[1::2]  # self-attention and attention over the source take turns
    expected = blocks[-1] if alignment == "last" else np.mean(blocks, axis=0)
    np.testing.assert_allclose(model.alignments(batch)[0].numpy(), expected, atol=1e-6)
    with pytest.raises(ConfigError, match="no energies for `transformer`"):
        model.alignments(batch, "energies")
