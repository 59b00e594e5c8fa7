"""The network of the CoNLL paper's text in numpy, cell by cell, and small models to hold to it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nmtgrid.data.batches import Batch, collate
from nmtgrid.models import zoo
from nmtgrid.models.pervasive.densenet import PervasiveDensenet

ARCH = "pervasive-densenet"
SMALL: dict[str, Any] = {
    "depth": 2, "growth": 3, "bottleneck": 2, "kernel": 3, "embedding_size": 4, "dropout": 0.0,
    "embedding_dropout": 0.0, "output_dropout": 0.0,
}  # fmt: skip
Array = NDArray[Any]
Grids = list[Array]


def tiny(**changes: Any) -> PervasiveDensenet:
    """Return a small float64 model whose every parameter and statistic has been drawn."""
    torch.manual_seed(3)
    model = zoo.build(ARCH, None, {**SMALL, **changes}, source_vocab_size=12, target_vocab_size=11)
    assert isinstance(model, PervasiveDensenet)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        for name, buffer in model.named_buffers():
            buffer.copy_(torch.rand_like(buffer) + (0.5 if name.endswith("var") else -0.5))
    return model.double().eval()


def ragged() -> Batch:
    return collate([[4, 5, 6], [7, 3, 11, 8, 9]], [[5, 6, 7, 8], [9, 10]])


class Reference:
    """The text in numpy: every map cell by cell; statistics of all cells, or running ones."""

    def __init__(self, model: PervasiveDensenet, training: bool) -> None:
        self.config, self.training = model.config, training
        self.weights = {name: value.numpy() for name, value in model.state_dict().items()}

    def standard(self, grids: Grids, name: str) -> Grids:
        mean, variance = (
            self.weights.get(f"{name}.running_mean"),
            self.weights.get(f"{name}.running_var"),
        )
        if self.training:
            cells = np.concatenate([grid.reshape(-1, grid.shape[-1]) for grid in grids])
            mean, variance = cells.mean(0), cells.var(0)
        assert mean is not None and variance is not None
        return [(grid - mean) / np.sqrt(variance + 1e-5) for grid in grids]

    def affine(self, grids: Grids, name: str) -> Grids:
        scale, shift = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return [grid * scale + shift for grid in grids]

    def mapped(self, grids: Grids, name: str) -> Grids:
        bias = self.weights.get(f"{name}.bias", 0.0)
        return [grid @ self.weights[f"{name}.weight"].T + bias for grid in grids]

    def convolved(self, x: Array, name: str) -> Array:
        weight, (rows, columns, _) = self.weights[f"{name}.weight"], x.shape
        k = weight.shape[2]
        y = np.zeros((rows, columns, weight.shape[0]))
        for t, j, i, c in itertools.product(
            range(rows), range(columns), range(k // 2 + 1), range(k)
        ):
            above, beside = t - k // 2 + i, j - k // 2 + c
            if 0 <= above < rows and 0 <= beside < columns:
                y[t, j] += weight[:, :, i, c] @ x[above, beside]
        return y

    def grown(self, standard: Grids, name: str) -> Grids:
        """One dense layer."""
        narrowed = self.mapped(relu(self.affine(standard, f"{name}.first_norm")), f"{name}.narrow")
        if self.config.gates == "both":
            narrowed = gated(narrowed)
        second = self.affine(self.standard(narrowed, f"{name}.second_norm"), f"{name}.second_norm")
        grown = [self.convolved(grid, f"{name}.convolution") for grid in relu(second)]
        return gated(grown) if self.config.gates != "none" else grown

    def network(self, batch: Batch) -> Grids:
        """Return the grids [T, S, F] that are pooled."""
        grids = []
        for row in range(len(batch)):
            ys = batch.target_input[row, : int(batch.target_lengths[row])].numpy()
            xs = batch.source[row, : int(batch.source_lengths[row])].numpy()
            y, x = (
                self.weights["target_embedding.weight"][ys],
                self.weights["source_embedding.weight"][xs],
            )
            grids.append(
                np.array([[np.concatenate([y[t], x[j]]) for j in range(len(x))]
                          for t in range(len(y))])
            )  # fmt: skip
        if self.config.halve_input:
            grids = self.mapped(grids, "grid_map")
        if self.config.normalise_input:
            grids = self.affine([normed_cells(grid) for grid in grids], "grid_norm")
        # Batch norm of everything so far, in each layer anew, as the text has it.
        raw, names = [grids], ["network.statistics"]
        for layer in range(self.config.depth):
            raw.append(self.grown(self.joined(raw, names), f"network.layers.{layer}"))
            names.append(f"network.layers.{layer}.statistics")
        last = self.joined(raw, names)
        if self.config.halve_output:
            narrowed = relu(self.affine(last, "network.halving_norm"))
            last = self.standard(self.mapped(narrowed, "network.halve"), "network.final_norm")
        return relu(self.affine(last, "network.final_norm"))

    def joined(self, raw: list[Grids], names: list[str]) -> Grids:
        parts = [self.standard(grids, name) for grids, name in zip(raw, names, strict=True)]
        return [np.concatenate(grids_of_layers, -1) for grids_of_layers in zip(*parts, strict=True)]

    def logits(self, pooled: Array) -> Array:
        out = pooled @ self.weights["output_map.weight"].T + self.weights["output_map.bias"]
        result: Array = (
            out @ self.weights["target_embedding.weight"].T + self.weights["output_bias"]
        )
        return result


def normed_cells(grid: Array) -> Array:
    """Return each cell with mean 0 and variance 1 over its features."""
    centred = grid - grid.mean(-1, keepdims=True)
    result: Array = centred / np.sqrt(grid.var(-1, keepdims=True) + 1e-5)
    return result


def relu(grids: Grids) -> Grids:
    return [np.maximum(grid, 0.0) for grid in grids]


def gated(grids: Grids) -> Grids:
    halves = [np.split(grid, 2, -1) for grid in grids]
    return [value / (1 + np.exp(-gate)) for value, gate in halves]


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    result: Array = powers / powers.sum(-1, keepdims=True)
    return result
