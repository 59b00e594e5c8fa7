"""Pervasive Attention against its formulas, written out cell by cell in float64."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import Batch, collate
from nmtgrid.layers.grid.convolution import AllRows
from nmtgrid.layers.kernels.layout import GridLayout
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites
from nmtgrid.models.pervasive.model import PervasiveAttention
from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings

SKIPS = ["residual", "residual-norm", "residual-cumulative", "residual-gated", "dense"]
AGGREGATIONS = ["max", "average", "attention", "gated-max", "max-attention"]
SMALL: dict[str, Any] = {
    "depth": 2,
    "size": 6,
    "feed_forward_size": 10,
    "target_kernel": 3,
    "source_kernel": 5,
    "growth": 4,
    "dropout": 0.0,
}
Array = NDArray[Any]


def tiny(**changes: Any) -> PervasiveAttention:
    """Return a small float64 model whose every parameter has been drawn, biases too."""
    torch.manual_seed(3)
    model = zoo.build(
        "pervasive", None, {**SMALL, **changes}, source_vocab_size=12, target_vocab_size=11
    )
    assert isinstance(model, PervasiveAttention)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "convolution" not in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.double().eval()


def normed(x: Array, parameters: dict[str, Array], name: str) -> Array:
    spread = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    result: Array = (x - x.mean(-1, keepdims=True)) / spread
    return result * parameters[name + ".weight"] + parameters[name + ".bias"]


def mapped(x: Array, parameters: dict[str, Array], name: str) -> Array:
    return np.asarray(x @ parameters[name + ".weight"].T + parameters[name + ".bias"])


def convolved(x: Array, kernel: Array) -> Array:
    """Eq. (3.2) with its correction: rows above and the current one, all columns around."""
    rows, columns, size = x.shape
    up, left = kernel.shape[0] // 2, kernel.shape[1] // 2
    y = np.zeros_like(x)
    for t, j, i, k in itertools.product(
        range(rows), range(columns), range(up + 1), range(kernel.shape[1])
    ):
        above, beside = t - (up - i), j + k - left
        if 0 <= above < rows and 0 <= beside < columns:
            y[t, j] += kernel[i, k] * x[above, beside]
    assert size == kernel.shape[2]
    return y


def layer(x: Array, parameters: dict[str, Array], index: int) -> Array:
    """F_n of Eq. (3.15)."""
    name = f"network.layers.{index}"
    if index % 2 == 0:
        return convolved(
            mapped(x, parameters, f"{name}.map"), parameters[f"{name}.convolution.weight"]
        )
    hidden = np.maximum(mapped(x, parameters, f"{name}.widen"), 0)
    return mapped(hidden, parameters, f"{name}.narrow")


def network(x: Array, parameters: dict[str, Array], config: Any) -> Array:
    """H_conv of section 3.2.3 for the grid x = H^0."""
    count = 2 * config.depth
    if config.skip == "dense":
        parts = [x]
        for index in range(config.depth):
            name = f"network.layers.{index}"
            joined = np.concatenate(parts, -1)
            if config.dense_norm:
                joined = normed(joined, parameters, f"{name}.first_norm")
            middle = mapped(np.maximum(joined, 0), parameters, f"{name}.narrow")
            if config.dense_norm:
                middle = normed(middle, parameters, f"{name}.second_norm")
            inner = mapped(np.maximum(middle, 0), parameters, f"{name}.convolution.map")
            parts.append(convolved(inner, parameters[f"{name}.convolution.convolution.weight"]))
        wide = mapped(np.concatenate(parts, -1), parameters, "network.compress.0")
        return mapped(wide, parameters, "network.compress.1")
    inputs, outputs = [x], [x]
    for index in range(count):
        y = layer(inputs[-1], parameters, index)
        outputs.append(y)
        if config.skip == "residual":
            inputs.append(inputs[-1] + y)
        elif config.skip == "residual-norm":
            inputs.append(normed(inputs[-1] + y, parameters, f"network.norms.{index}"))
        elif config.skip == "residual-cumulative":
            inputs.append(np.sqrt(0.5) * (inputs[-1] + y))
        else:
            inputs.append(parameters["network.forward_gates"][index] * (inputs[-1] + y))
    if config.skip == "residual-gated":
        gated = zip(parameters["network.snapshot_gates"], outputs, strict=True)
        return np.asarray(sum(s * h for s, h in gated))
    if config.skip == "residual-cumulative":
        kept = inputs if config.accumulate == "layers" else inputs[::2]
        power = 0.5 if config.accumulate_scale == "square-root" else 1.0
        return np.asarray(sum(kept) / len(kept) ** power)
    return inputs[-1]


def aggregated(
    cells: Array, parameters: dict[str, Array], kind: str, activation: str, prefix: str = ""
) -> Array:
    """H_out of section 3.2.5 for one row of cells [S, D]."""
    name = f"aggregator.{prefix}"
    if kind == "max":
        return np.asarray(cells.max(0))
    if kind == "average":
        return np.asarray(cells.sum(0) / np.sqrt(len(cells)))
    if kind == "gated-max":
        both = mapped(cells, parameters, f"{name}gate")
        half = both.shape[1] // 2
        return np.asarray((both[:, :half] / (1 + np.exp(-both[:, half:]))).max(0))
    if kind == "attention":
        hidden = cells @ parameters[f"{name}map.weight"].T
        hidden = np.tanh(hidden) if activation == "tanh" else hidden
        scores = hidden @ parameters[f"{name}vector"]
        share = np.exp(scores - scores.max())
        return np.asarray(cells.T @ (share / share.sum()))
    return np.concatenate(
        [cells.max(0), aggregated(cells, parameters, "attention", activation, "attention.")]
    )


def positions(count: int, size: int) -> Array:
    """Eq. (2.39)."""
    table = np.zeros((count, size))
    for index, dimension in itertools.product(range(count), range(size)):
        rate = 10000.0 ** (-2 * (dimension // 2) / size)
        table[index, dimension] = (np.sin, np.cos)[dimension % 2](rate * index)
    return table


def logits(model: PervasiveAttention, source: list[int], target: list[int]) -> Array:
    """Return [T, V] for source ids with `</s>` and target ids that begin with `<s>`."""
    parameters = {name: value.numpy() for name, value in model.state_dict().items()}
    config = model.config
    sides = []
    for name, ids in (("source", source), ("target", target)):
        vectors = parameters[f"{name}_embedding.weight"][ids]
        if config.scale_embeddings:
            vectors = vectors * np.sqrt(vectors.shape[1])
        if config.positions == "sinusoidal":
            vectors = vectors + positions(len(ids), vectors.shape[1])
        sides.append(vectors)
    grid = np.zeros((len(target), len(source), config.size))
    for t, j in itertools.product(range(len(target)), range(len(source))):
        grid[t, j] = parameters["grid_map"] @ np.concatenate([sides[1][t], sides[0][j]])
        if config.grid_bias:
            grid[t, j] += parameters["grid_bias"]
    features = network(grid, parameters, config)
    kinds = config.aggregation, config.attention_activation
    pooled = np.stack([aggregated(row, parameters, *kinds) for row in features])
    if "output_map.weight" in parameters:
        pooled = mapped(pooled, parameters, "output_map")
    scores: Array = pooled @ parameters["target_embedding.weight"].T
    if config.output_bias:
        scores = scores + parameters["output_bias"]
    return scores


def teacher_forced(model: PervasiveAttention, batch: Batch) -> Array:
    sites = PredictionSites.offline(batch)
    with torch.no_grad():
        return np.asarray(model.classify(model.features(batch, sites)))


CASES = [
    *({"skip": skip, "aggregation": "max"} for skip in SKIPS),
    *({"skip": "residual-cumulative", "aggregation": kind} for kind in AGGREGATIONS),
    {"skip": "dense", "dense_norm": False},
    {"accumulate": "layers", "accumulate_scale": "square-root"},
    {"positions": "none", "scale_embeddings": False, "grid_bias": False, "output_bias": False},
    {"attention_activation": "tanh"},
    {"aggregation": "max-attention", "attention_activation": "tanh"},
    {"embedding_size": 4},
    {"output_map": True},
]


@pytest.mark.parametrize("changes", CASES, ids=lambda case: ",".join(map(str, case.values())))
def test_equals_the_formulas(changes: dict[str, Any]) -> None:
    model = tiny(**changes)
    source, target = [5, 9, 4, 11, 6, 7], [8, 4, 10]
    expected = logits(model, [*source, 2], [1, *target])
    np.testing.assert_allclose(
        teacher_forced(model, collate([source], [target])), expected, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("skip", ["residual-cumulative", "dense"])
def test_receptive_field_is_what_the_traits_say(skip: str) -> None:
    model = tiny(skip=skip, target_kernel=5, source_kernel=3)
    rows, columns = 9, 11
    layout = GridLayout.make(torch.tensor([rows]), torch.tensor([columns]))
    cells = torch.randn(rows * columns, 6, dtype=torch.float64, requires_grad=True)
    middle = (rows - 1) * columns + columns // 2
    model.network(cells, AllRows(layout))[middle].sum().backward()
    assert cells.grad is not None
    seen = cells.grad.abs().sum(1).view(rows, columns) > 0
    assert model.traits.target_receptive_field == 1 + 2 * 2 == int(seen.any(1).sum())
    assert model.traits.source_receptive_field == 1 + 2 * 2 == int(seen.any(0).sum())
    assert seen[rows - 1].any() and not seen[: rows - 5].any()


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("output_map", [False, True])
def test_energies_add_up_to_the_score_of_the_true_token(aggregation: str, output_map: bool) -> None:
    """CoNLL Eq. (5)-(6): the sum over the source is the score, less what biases add."""
    model = tiny(aggregation=aggregation, output_map=output_map)
    batch = collate([[4, 5, 6], [7, 8, 9, 10, 4]], [[5, 6], [7, 8, 9]])
    energies = model.alignments(batch, "energies").sum(-1).double()
    sites = PredictionSites.offline(batch)
    truth = batch.target_output[sites.sentence, sites.position]
    scores = torch.from_numpy(teacher_forced(model, batch)).gather(1, truth[:, None])[:, 0]
    parameters = model.state_dict()
    constant = parameters["output_bias"][truth]
    if "output_map.bias" in parameters:
        rows = parameters["target_embedding.weight"][truth]
        constant = constant + rows @ parameters["output_map.bias"]
    summed = energies[sites.sentence, sites.position]
    torch.testing.assert_close(summed, scores - constant, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_alignment_weights_are_distributions_over_the_real_source(aggregation: str) -> None:
    model = tiny(aggregation=aggregation)
    batch = collate([[4, 5, 6], [7, 8, 9, 10, 4]], [[5, 6, 7], [7]])
    shares = model.alignments(batch)
    assert shares.shape == (2, 4, 6)
    torch.testing.assert_close(shares[batch.is_target].sum(-1), torch.ones(6))
    assert shares[0, :, 4:].abs().max() == 0 and shares[1, 2:].abs().max() == 0


@pytest.mark.parametrize("skip", SKIPS)
def test_a_deep_network_begins_at_an_even_guess(skip: str) -> None:
    """The first loss is log V, through the 28 layers of the thesis' models too."""
    torch.manual_seed(4)
    changes = {"size": 32, "embedding_size": 32, "feed_forward_size": 128, "growth": 8}
    model = zoo.build(
        "pervasive", "iwslt14-de-en", {**changes, "depth": 14, "skip": skip},
        source_vocab_size=500, target_vocab_size=500,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(5)
    text = torch.randint(4, 500, (4, 9), generator=generator).tolist()
    batch = collate(text[:2], text[2:])
    parts = Likelihood(LikelihoodSettings(label_smoothing=0.0)).loss(model.train(), batch)
    assert float(parts.nll) / parts.tokens == pytest.approx(math.log(500), abs=0.1)


def test_activation_checkpointing_changes_no_gradient() -> None:
    gradients = []
    for checkpointing in (False, True):
        model = tiny(checkpoint_activations=checkpointing, dropout=0.3).train()
        batch = collate([[4, 5, 6], [7, 8, 9, 10]], [[5, 6, 7], [7]])
        torch.manual_seed(5)
        model.features(batch, PredictionSites.offline(batch)).square().sum().backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second)


def test_sites_that_the_grid_does_not_serve_are_refused() -> None:
    batch = collate([[4, 5]], [[5]])
    sites = PredictionSites.offline(batch)
    ones = torch.ones_like(sites.position)
    with pytest.raises(ConfigError, match="both directions"):
        tiny().features(batch, PredictionSites(sites.sentence, sites.position, ones))
    with pytest.raises(ConfigError, match="has one exit"):
        tiny().features(batch, PredictionSites(sites.sentence, sites.position, None, ones))
