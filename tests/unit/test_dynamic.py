"""The joint objective of writing and reading: against its formula, cell by cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.objectives import objectives
from nmtgrid.data.batches import collate
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.online.dynamic import Dynamic, DynamicSettings
from nmtgrid.online.policies import Threshold
from nmtgrid.training.api import LossParts
from tests.unit.all_paths import all_paths

BATCH = collate([[5, 6, 7], [8], []], [[4, 5], [6, 7, 4], [5]])
SOURCES, TARGETS = (4, 2, 1), (3, 4, 2)
EVERY = range(3)


def grid(**changes: Any) -> TranslationModel:
    """Return a model whose costs of writing differ much from cell to cell."""
    torch.manual_seed(1)
    small = {
        "depth": 2, "size": 16, "feed_forward_size": 16, "source_causal": True, "reader": "own",
        "dropout": 0.0, "embedding_dropout": 0.0, "output_dropout": 0.0, "aggregation": "max",
        "output_map": True, **changes,
    }  # fmt: skip
    model = zoo.build("pervasive", None, small, source_vocab_size=9, target_vocab_size=9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def run(model: TranslationModel, **settings: Any) -> LossParts:
    return Dynamic(DynamicSettings(**settings)).loss(model, BATCH)


def log_p(model: TranslationModel, sentence: int, t: int, reads: int) -> torch.Tensor:
    """Return the log-probabilities [V] at one cell of one sentence, computed alone."""
    one = BATCH.select(torch.tensor([sentence]))
    site = PredictionSites(torch.tensor([0]), torch.tensor([t]), torch.tensor([reads]))
    return model.classify(model.features(one, site))[0].log_softmax(0).detach()


def cost(model: TranslationModel, sentence: int, t: int, reads: int) -> float:
    return -float(log_p(model, sentence, t, reads)[BATCH.target_output[sentence, t]])


def best_path(model: TranslationModel, sentence: int, delay_weight: float) -> tuple[int, ...]:
    """Return z* by trying every path."""
    source = SOURCES[sentence]

    def total(path: tuple[int, ...]) -> float:
        return sum(
            cost(model, sentence, t, reads) + delay_weight * reads / source
            for t, reads in enumerate(path)
        )

    return min(all_paths(source, TARGETS[sentence]), key=total)


def decision(model: TranslationModel, sentence: int, t: int, reads: int, wanted: int) -> float:
    """Return the agent's loss at a cell: it should read if fewer than `wanted` tokens are read."""
    rho = float(model.reading(BATCH)[sentence, t, reads - 1].detach().sigmoid())
    return -math.log(rho if reads < wanted else 1 - rho)


def agent_path(model: TranslationModel, sentence: int, threshold: float) -> list[int]:
    """Return the path of an agent that reads on while its probability is not below `threshold`."""
    reads, path = 1, []
    for row in model.reading(BATCH)[sentence, : TARGETS[sentence]].detach().sigmoid().tolist():
        while reads < SOURCES[sentence] and row[reads - 1] >= threshold:
            reads += 1
        path.append(reads)
    return path


def along(model: TranslationModel, sentence: int, path: Sequence[int]) -> float:
    return sum(cost(model, sentence, t, z) for t, z in enumerate(path))


@pytest.mark.parametrize("threshold", [0.48, 0.5, 0.52])
def test_the_likelihood_told_is_that_along_the_agents_path(threshold: float) -> None:
    model = grid()
    paths = [agent_path(model, sentence, threshold) for sentence in EVERY]
    found = run(model, validate_threshold=threshold)
    wanted = sum(along(model, sentence, path) for sentence, path in enumerate(paths))
    assert float(found.nll) == pytest.approx(wanted, rel=1e-5)
    shares = (z / SOURCES[sentence] for sentence, path in enumerate(paths) for z in path)
    assert float(found.extra["agent_reads"]) == pytest.approx(sum(shares))


@pytest.mark.parametrize("delay_weight", [0.0, 3.0])
@pytest.mark.parametrize("reader", ["own", "shared"])
def test_the_loss_is_the_formula(reader: str, delay_weight: float) -> None:
    """Eq. (4.45) and (4.46), smoothed, with the oracle's path found by enumeration."""
    model = grid(reader=reader)
    found = run(model, delay_weight=delay_weight, alpha=0.7, beta=1.3, label_smoothing=0.2)
    paths = [best_path(model, sentence, delay_weight) for sentence in EVERY]
    write, write_cells, read, read_cells, best, share = 0.0, 0, 0.0, 0, 0.0, 0.0
    for sentence, path in enumerate(paths):
        for t, z in enumerate(path):
            best += cost(model, sentence, t, z)
            share += z / SOURCES[sentence]
            for reads in range(z, SOURCES[sentence] + 1):
                smooth = -float(log_p(model, sentence, t, reads).mean())
                write += 0.8 * cost(model, sentence, t, reads) + 0.2 * smooth
                write_cells += 1
            for reads in range(1, SOURCES[sentence]):
                read += decision(model, sentence, t, reads, z)
                read_cells += 1
    assert float(found.total.detach()) == pytest.approx(0.7 * write + 1.3 * read, rel=1e-5)
    assert float(found.extra["oracle_nll"]) == pytest.approx(best, rel=1e-5)
    assert found.tokens == sum(TARGETS)
    extra = {name: float(value) for name, value in found.extra.items()}
    assert extra["oracle_reads"] == pytest.approx(share)
    assert extra["agent_loss"] == pytest.approx(read, rel=1e-5)
    assert (extra["write_cells"], extra["agent_cells"]) == (write_cells, read_cells)


def test_delay_costs() -> None:
    """With a higher lambda the oracle reads less, at the price of likelihood."""
    model = grid()
    parts = [run(model, delay_weight=weight) for weight in (0.0, 3.0, 1000.0)]
    reads = [float(part.extra["oracle_reads"]) for part in parts]
    assert reads[0] >= reads[1] >= reads[2] and reads[0] > reads[2]
    # One token of each source.
    assert reads[2] == pytest.approx(3 / 4 + 4 / 2 + 2)
    nll = [float(part.extra["oracle_nll"]) for part in parts]
    assert nll[0] <= nll[1] <= nll[2] and nll[0] < nll[2]


def test_along_the_path_alone() -> None:
    """Eq. (4.43), and the likelihood of z* alone."""
    model = grid()
    found = run(model, write="path", agent_area="path", label_smoothing=0.0)
    write, read = 0.0, 0.0
    for sentence in EVERY:
        before = 1
        for t, z in enumerate(best_path(model, sentence, 0.0)):
            write += cost(model, sentence, t, z)
            read += sum(
                decision(model, sentence, t, reads, z)
                for reads in range(before, min(z + 1, SOURCES[sentence]))
            )
            before = z
    assert float(found.total.detach()) == pytest.approx(write + read, rel=1e-5)
    assert float(found.extra["oracle_nll"]) == pytest.approx(write, rel=1e-5)
    assert int(found.extra["write_cells"]) == sum(TARGETS)


def test_the_agents_hits_are_decisions() -> None:
    model = grid()
    with torch.no_grad():
        for name, held in model.reader.decision.named_parameters():  # type: ignore[union-attr]
            held.fill_(-1.0 if name == "bias" else 0.0)
    # An agent that never reads is right on z* and right of it, but in the last column.
    pairs = [(SOURCES[sentence], z) for sentence in EVERY for z in best_path(model, sentence, 0.0)]
    extra = run(model).extra
    assert int(extra["agent_hits"]) == sum(source - z for source, z in pairs)
    assert int(extra["agent_cells"]) == sum(source - 1 for source, _ in pairs)


def gradients(model: TranslationModel, **settings: Any) -> set[str]:
    """Return the parts of the model that have a gradient."""
    model.zero_grad(set_to_none=True)
    run(model, **settings).total.backward()
    moved = {name for name, held in model.named_parameters() if held.grad is not None}
    return {
        "reader" if name.startswith("reader.decision") else
        "reader's network" if name.startswith("reader.") else "model"
        for name in moved
    }  # fmt: skip


def test_gradients_flow_where_they_should() -> None:
    own, shared, cut = grid(), grid(reader="shared"), grid(reader="shared", reader_detached=True)
    agent_alone, model_alone = {"alpha": 0.0}, {"beta": 0.0}
    assert gradients(own) == {"model", "reader", "reader's network"}
    assert gradients(own, **agent_alone) == {"reader", "reader's network"}
    assert gradients(own, **model_alone) == {"model"}
    for model in (shared, cut):
        assert gradients(model) == {"model", "reader"}
        assert gradients(model, **model_alone) == {"model"}
    assert gradients(shared, **agent_alone) == {"model", "reader"}
    assert gradients(cut, **agent_alone) == {"reader"}


@pytest.mark.parametrize("reader", ["own", "shared"])
def test_the_agents_loss_moves_the_shared_network_unless_it_is_detached(reader: str) -> None:
    """The model's gradient is that of its own loss, beside the agent's where they share."""
    found = []
    for changes in ({}, {"reader_detached": True}):
        model = grid(reader=reader, **changes)
        rows = []
        for settings in ({}, {"beta": 0.0}):
            model.zero_grad(set_to_none=True)
            run(model, **settings).total.backward()
            assert isinstance(model.grid_map, torch.nn.Parameter)
            assert model.grid_map.grad is not None
            rows.append(model.grid_map.grad)
        found.append(torch.allclose(rows[0], rows[1], atol=1e-6))
    assert found == ([True, True] if reader == "own" else [False, True])


def test_weights_scale_their_parts() -> None:
    model = grid()
    whole = float(run(model, alpha=2.0, beta=3.0).total.detach())
    write = float(run(model, beta=0.0).total.detach())
    read = float(run(model, alpha=0.0).total.detach())
    assert whole == pytest.approx(2 * write + 3 * read, rel=1e-5)
    assert read == pytest.approx(float(run(model).extra["agent_loss"]))


@pytest.mark.parametrize("reader", ["own", "shared"])
def test_what_has_no_weight_does_not_run(reader: str) -> None:
    model = grid(reader=reader)
    calls = {"model": 0, "reader": 0}

    def count(name: str) -> Any:
        return lambda *given: calls.update({name: calls[name] + 1})

    model.network.register_forward_hook(count("model"))  # type: ignore[union-attr]
    model.reader.decision.register_forward_hook(count("reader"))  # type: ignore[union-attr]
    run(model)
    assert calls == {"model": 1, "reader": 1}
    parts = run(model, beta=0.0)
    assert calls == {"model": 2, "reader": 1}
    assert "agent_loss" not in parts.extra
    assert "write_cells" not in run(model, alpha=0.0).extra


def test_the_oracle_sees_dropout() -> None:
    """In training mode the likelihood along z* is that of the predictions that are trained."""
    model = grid(output_dropout=0.5)
    torch.manual_seed(3)
    parts = run(model, write="path", beta=0.0, label_smoothing=0.0)
    torch.testing.assert_close(parts.total.detach(), parts.nll)
    assert float(parts.nll) != pytest.approx(float(run(model.eval()).nll), rel=1e-3)


def test_batches_add_up() -> None:
    model = grid()
    whole = run(model)
    halves = [
        Dynamic(DynamicSettings()).loss(model, BATCH.select(torch.tensor(rows)))
        for rows in ([0], [1, 2])
    ]
    torch.testing.assert_close(halves[0].total + halves[1].total, whole.total)
    for name, value in whole.extra.items():
        assert float(value) == pytest.approx(sum(float(h.extra[name]) for h in halves), rel=1e-5)


def test_without_gradients() -> None:
    model = grid().eval()
    with torch.no_grad():
        parts = run(model)
    assert not parts.total.requires_grad
    torch.testing.assert_close(parts.total, run(model).total.detach())


def test_other_models_are_refused() -> None:
    objective = Dynamic(DynamicSettings())
    with pytest.raises(ConfigError, match="every cell"):
        objective.check(grid(source_causal=False, reader="none"))
    with pytest.raises(ConfigError, match="has no reader") as caught:
        run(grid(reader="none"))
    assert "model.reader=own" in caught.value.advice
    # Without the agent's part no reader is needed: the model alone learns to write at z*.
    assert run(grid(reader="none"), beta=0.0).total.requires_grad


def test_settings_are_checked() -> None:
    kind = objectives.get("dynamic")
    assert isinstance(kind.make(kind.settings()), Dynamic)
    assert DynamicSettings().faults() == []
    wrong = DynamicSettings(-1.0, alpha=0, beta=0, validate_threshold=1.0, label_smoothing=1.0)
    assert len(wrong.faults()) == 4
    assert "objective.beta" in DynamicSettings(beta=math.inf).faults()[0]


def test_validation_reads_as_the_agent_says() -> None:
    assert Dynamic(DynamicSettings(validate_threshold=0.3)).agent() == Threshold(0.3)
    assert Dynamic(DynamicSettings(beta=0.0)).agent() is None
