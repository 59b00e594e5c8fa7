"""The CoNLL paper's model against its formulas, cell by cell."""

from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from nmtgrid.data.batches import Batch
from nmtgrid.layers.grid import densenet
from nmtgrid.layers.grid.convolution import FullConvolution
from nmtgrid.models.api import PredictionSites
from nmtgrid.models.pervasive.densenet import PervasiveDensenet
from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings
from tests.unit.kernels.plain_kernels import plain_dense_grid_convolution
from tests.unit.layers.densenet_reference import Array, Reference, ragged, softmax, tiny

AGGREGATIONS = ["max", "average", "attention", "gated-max", "max-attention"]


def found_logits(model: PervasiveDensenet, batch: Batch) -> Array:
    """Return logits [M, V], sentence after sentence."""
    return model.classify(model.features(batch, PredictionSites.offline(batch))).detach().numpy()


@pytest.mark.parametrize("gates", ["none", "convolution", "both"])
@pytest.mark.parametrize("halve", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_the_network_is_that_of_the_text(gates: str, halve: bool, training: bool) -> None:
    """Every layer normalises all that it reads anew there; here each feature once."""
    model = tiny(gates=gates, halve_input=halve, halve_output=halve).train(training)
    batch = ragged()
    reference = Reference(model, training)
    grids = reference.network(batch)
    expected = np.concatenate([reference.logits(grid.max(1)) for grid in grids])
    assert np.allclose(found_logits(model, batch), expected, atol=1e-6)


@pytest.mark.parametrize("halve", [False, True])
def test_the_input_may_be_normalised(halve: bool) -> None:
    """Each cell over its features, after the map that halves their number."""
    model, batch = tiny(normalise_input=True, halve_input=halve), ragged()
    reference = Reference(model, training=False)
    grids = reference.network(batch)
    expected = np.concatenate([reference.logits(grid.max(1)) for grid in grids])
    assert np.allclose(found_logits(model, batch), expected, atol=1e-6)


@pytest.mark.parametrize("aggregation", ["max", "average", "attention", "max-attention"])
def test_aggregation(aggregation: str) -> None:
    """Eq. (2), (3), (8), (9) and both side by side."""
    model, batch = tiny(aggregation=aggregation), ragged()
    reference = Reference(model, training=False)
    rows = []
    for grid in reference.network(batch):
        root = np.sqrt(grid.shape[1])
        parts = {"max": grid.max(1), "average": grid.sum(1) / root}
        name = "aggregator.attention.vector" if "max-" in aggregation else "aggregator.vector"
        if "attention" in aggregation:
            share = softmax(grid @ reference.weights[name])
            parts["attention"] = root * np.einsum("ts,tsd->td", share, grid)
        parts["max-attention"] = np.concatenate(
            [parts["max"], parts.get("attention", grid[:, 0])], 1
        )
        rows.append(reference.logits(parts[aggregation]))
    assert np.allclose(found_logits(model, batch), np.concatenate(rows), atol=1e-6)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("tie", ["target", "none"])
def test_energies_add_up_to_the_score_of_the_true_token(aggregation: str, tie: str) -> None:
    """Eq. (5)-(7): summed over the source they are the logit, biases left out."""
    model, batch = tiny(aggregation=aggregation, tie=tie), ragged()
    energies = model.alignments(batch, "energies")
    present = batch.is_target[:, :, None] & batch.is_source[:, None, :]
    assert (energies[~present] == 0).all()
    sites, classifier = PredictionSites.offline(batch), model.classifier()
    tokens = batch.target_output[sites.sentence, sites.position]
    logits = model.classify(model.features(batch, sites)).gather(1, tokens[:, None])[:, 0]
    assert classifier.bias is not None
    biases = classifier.bias[tokens]
    if tie == "target":
        assert isinstance(model.output_map, torch.nn.Linear)
        biases = biases + classifier.weight[tokens] @ model.output_map.bias
    summed = energies.sum(-1)[batch.is_target]
    assert torch.allclose(summed.double(), (logits - biases).detach(), atol=1e-5)


def test_alignments_of_max_and_attention() -> None:
    """Eq. (7), channel by channel."""
    model, batch = tiny(tie="none"), ragged()
    grids = Reference(model, training=False).network(batch)
    energies = model.alignments(batch, "energies").numpy()
    shares = model.alignments(batch, "weights").numpy()
    weight = model.classifier().weight.detach().numpy()
    for row, grid in enumerate(grids):
        for t in range(grid.shape[0]):
            expected, votes = np.zeros(grid.shape[1]), np.zeros(grid.shape[1])
            for d in range(grid.shape[2]):
                j = int(grid[t, :, d].argmax())
                expected[j] += weight[int(batch.target_output[row, t]), d] * grid[t, j, d]
                votes[j] += 1 / grid.shape[2]
            assert np.allclose(energies[row, t, : grid.shape[1]], expected, atol=1e-5)
            assert np.allclose(shares[row, t, : grid.shape[1]], votes, atol=1e-5)
    model, batch = tiny(aggregation="attention"), ragged()
    reference = Reference(model, training=False)
    shares = model.alignments(batch).numpy()
    for row, grid in enumerate(reference.network(batch)):
        expected = softmax(grid @ reference.weights["aggregator.vector"])
        assert np.allclose(shares[row, : grid.shape[0], : grid.shape[1]], expected, atol=1e-6)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("halve", [False, True])
@pytest.mark.parametrize("gates", ["none", "both"])
def test_gradients_are_those_of_the_plain_form(
    checkpointed: bool, halve: bool, gates: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against autograd through separate parts and the library's convolution, in training mode."""
    gradients, statistics = [], []
    for plain in (False, True):
        if plain:
            monkeypatch.setattr(
                densenet, "FeatureMatrix", lambda like, size: densenet.FeatureList()
            )
            monkeypatch.setattr(
                FullConvolution,
                "all_rows",
                lambda layer, x, layout: plain_dense_grid_convolution(x, layer.weight, layout),
            )
        model = tiny(
            checkpoint_activations=checkpointed and not plain, halve_output=halve, gates=gates
        ).train()
        Likelihood(LikelihoodSettings(label_smoothing=0.1)).loss(model, ragged()).total.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
        statistics.append(dict(model.named_buffers()))
    fast, slow = gradients
    for name, expected in slow.items():
        gradient = fast[name]
        assert gradient is not None and expected is not None
        assert torch.allclose(gradient, expected, atol=1e-8), name
    for name, statistic in statistics[1].items():
        assert torch.allclose(statistics[0][name], statistic), name


def test_what_is_recomputed_knows_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch keeps the random state of those devices alone on which an argument is a tensor."""
    calls: list[tuple[Any, ...]] = []

    def spy(function: Any, *inputs: Any, **options: Any) -> Any:
        calls.append(inputs)
        return checkpoint(function, *inputs, **options)

    monkeypatch.setattr(densenet, "checkpoint", spy)
    model = tiny(checkpoint_activations=True).train()
    Likelihood(LikelihoodSettings(label_smoothing=0.1)).loss(model, ragged()).total.backward()
    assert calls
    assert all(any(isinstance(value, torch.Tensor) for value in inputs) for inputs in calls)


def test_stages_are_called_once_and_get_gradients() -> None:
    model, batch = tiny().train(), ragged()
    norms: dict[str, list[tuple[int, ...]]] = {name: [] for name in model.stages()}
    assert list(norms) == ["network.0", "network.1", "network.2"]
    for name, part in model.stages().items():

        def catch(_: Any, __: Any, output: torch.Tensor, name: str = name) -> None:
            output.register_hook(lambda gradient: norms[name].append(tuple(gradient.shape)))

        part.register_forward_hook(catch)
    Likelihood(LikelihoodSettings()).loss(model, batch).total.backward()
    cells = 5 * 4 + 3 * 6
    assert norms == {
        "network.0": [(cells, 4)],
        "network.1": [(cells, 3)],
        "network.2": [(cells, 3)],
    }


@pytest.mark.parametrize("normalisation", ["layer", "none"])
def test_without_batch_norm_nothing_is_kept(normalisation: Literal["layer", "none"]) -> None:
    model = tiny(normalisation=normalisation)
    assert not list(model.buffers()) and not model.traits.batch_statistics
