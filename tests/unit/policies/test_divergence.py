"""Divergence from the future: its measures by hand, its labels and loss cell by cell."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.objectives import objectives
from nmtgrid.layers.kernels.linear_loss import Measure, linear_divergence
from nmtgrid.models.api import TranslationModel
from nmtgrid.online.objectives.divergence import Divergence, DivergenceSettings
from nmtgrid.online.policies import Threshold
from nmtgrid.training.api import LossParts
from tests.unit.policies.test_dynamic import (
    BATCH,
    EVERY,
    SOURCES,
    TARGETS,
    agent_path,
    along,
    cost,
    grid,
    log_p,
)

MEASURES: tuple[Measure, ...] = get_args(Measure)


def by_definition(p: Tensor, q: Tensor, measure: Measure) -> float:
    """Return the divergence of p [V] from q [V]; both in float64."""
    pairs: list[tuple[float, float]] = list(zip(p.tolist(), q.tolist(), strict=True))
    if measure == "kl":
        return 1 - math.exp(-sum(b * math.log(b / a) for a, b in pairs))
    if measure == "total-variation":
        return sum(abs(a - b) for a, b in pairs) / 2
    if measure == "euclidean":
        return math.sqrt(sum((a - b) ** 2 for a, b in pairs) / 2)
    squares = sum(a * a for a, _ in pairs) * sum(b * b for _, b in pairs)
    return 1 - sum(a * b for a, b in pairs) / math.sqrt(squares)


@pytest.mark.parametrize("chunk", [1, 3, None])
@pytest.mark.parametrize("measure", MEASURES)
def test_measures_are_their_definitions(measure: Measure, chunk: int | None) -> None:
    generator = torch.Generator().manual_seed(4)
    features, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((7, 3), (5, 3), (5,))
    )
    got = linear_divergence(features, weight, bias, torch.tensor([3, 4]), measure, chunk)
    p = (features @ weight.t() + bias).softmax(1)
    expected = [by_definition(p[i], p[r], measure) for i, r in enumerate([2, 2, 2, 6, 6, 6, 6])]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))
    assert float(got[[2, 6]].abs().max()) < 1e-12


@pytest.mark.parametrize("measure", MEASURES)
def test_measures_go_from_zero_to_one(measure: Measure) -> None:
    """Predictions that have nothing in common are as far from one another as can be."""
    features, weight = torch.eye(2) * 200, torch.eye(2)
    values = linear_divergence(features, weight, None, torch.tensor([2]), measure)
    torch.testing.assert_close(values, torch.tensor([1.0, 0.0]))


def test_by_hand() -> None:
    # p = (3/4, 1/4), q = (1/4, 3/4): KL(q || p) = log(3) / 2.
    features, weight = torch.tensor([[1.0], [-1.0]]), torch.tensor([[math.log(3.0)], [0.0]])
    expected = {"kl": 1 - 3**-0.5, "total-variation": 0.5, "euclidean": 0.5, "cosine": 0.4}
    for measure in MEASURES:
        value = linear_divergence(features, weight, None, torch.tensor([2]), measure)[0]
        assert float(value) == pytest.approx(expected[measure], rel=1e-5)


def run(model: TranslationModel, **settings: Any) -> LossParts:
    return Divergence(DivergenceSettings(**settings)).loss(model, BATCH)


def label(model: TranslationModel, b: int, t: int, reads: int, measure: Measure) -> float:
    here, whole = (log_p(model, b, t, z).double().exp() for z in (reads, SOURCES[b]))
    return by_definition(here / here.sum(), whole / whole.sum(), measure)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("reader", ["own", "shared"])
def test_the_loss_is_the_formula(reader: str, measure: Measure) -> None:
    model = grid(reader=reader).eval()
    parts = run(model, measure=measure, alpha=0.7, k=2, label_smoothing=0.2)
    rho = model.reading(BATCH).detach().sigmoid()
    write, read, error, sum_of_labels, read_cells, write_cells = 0.0, 0.0, 0.0, 0.0, 0, 0
    for b in EVERY:
        for t in range(TARGETS[b]):
            for reads in range(min(2 + t, SOURCES[b]), SOURCES[b] + 1):
                smooth = -float(log_p(model, b, t, reads).mean())
                write += 0.8 * cost(model, b, t, reads) + 0.2 * smooth
                write_cells += 1
            for reads in range(1, SOURCES[b]):
                d, r = label(model, b, t, reads, measure), float(rho[b, t, reads - 1])
                read -= d * math.log(r) + (1 - d) * math.log(1 - r)
                error, sum_of_labels, read_cells = (
                    error + abs(r - d),
                    sum_of_labels + d,
                    read_cells + 1,
                )
    extra = {name: float(value) for name, value in parts.extra.items()}
    assert float(parts.total.detach()) == pytest.approx(0.7 * write + read, rel=1e-5)
    assert parts.criterion is not None
    assert float(parts.criterion) == pytest.approx(0.7 * write + read, rel=1e-5)
    assert extra["agent_loss"] == pytest.approx(read, rel=1e-5)
    assert extra["agent_error"] == pytest.approx(error, rel=1e-4)
    assert extra["divergence"] == pytest.approx(sum_of_labels, rel=1e-4)
    assert (extra["agent_cells"], extra["write_cells"]) == (read_cells, write_cells)
    assert parts.tokens == sum(TARGETS)


def test_validation_follows_the_agent() -> None:
    model = grid().eval()
    parts = run(model, validate_threshold=0.48)
    paths = [agent_path(model, b, 0.48) for b in EVERY]
    nll = sum(along(model, b, path) for b, path in enumerate(paths))
    assert float(parts.nll) == pytest.approx(nll, rel=1e-5)
    shares = sum(z / SOURCES[b] for b, path in enumerate(paths) for z in path)
    assert float(parts.extra["agent_reads"]) == pytest.approx(shares)


def gradients(model: TranslationModel, **settings: Any) -> set[str]:
    model.zero_grad(set_to_none=True)
    run(model, **settings).total.backward()
    names = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {"reader" if name.startswith("reader.") else "model" for name in names}


def test_gradients_flow_where_they_should() -> None:
    assert gradients(grid()) == {"model", "reader"}
    assert gradients(grid(), alpha=0.0) == {"reader"}
    shared, cut = grid(reader="shared"), grid(reader="shared", reader_detached=True)
    assert gradients(shared, alpha=0.0) == {"model", "reader"}
    assert gradients(cut, alpha=0.0) == {"reader"}


def test_dropout_is_no_divergence() -> None:
    """Labels are those of evaluation mode, and the model is left in the mode that it was in."""
    model = grid(output_dropout=0.5, dropout=0.3)
    torch.manual_seed(3)
    noisy = run(model.train(), alpha=0.0)
    assert all(module.training for module in model.modules())
    exact = run(model.eval(), alpha=0.0)
    assert not any(module.training for module in model.modules())
    torch.testing.assert_close(noisy.extra["divergence"], exact.extra["divergence"])
    assert noisy.criterion is None


def test_a_reader_learns_the_divergence() -> None:
    """With the translation model fixed, rho comes near to the label at each cell."""
    model = grid()
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    errors = []
    for _ in range(40):
        optimiser.zero_grad()
        parts = run(model, alpha=0.0, measure="total-variation")
        parts.total.backward()
        optimiser.step()
        errors.append(float(parts.extra["agent_error"] / parts.extra["agent_cells"]))
    assert errors[-1] < 0.05 < errors[0]


def test_in_bf16() -> None:
    model = grid()
    exact = run(model)
    with torch.autocast("cpu", torch.bfloat16):
        parts = run(model)
    parts.total.backward()
    assert float(parts.total.detach()) == pytest.approx(float(exact.total.detach()), rel=0.05)


def test_other_models_are_refused() -> None:
    with pytest.raises(ConfigError, match="`divergence` needs predictions at every cell"):
        Divergence(DivergenceSettings()).check(grid(source_causal=False, reader="none"))
    with pytest.raises(ConfigError, match="has no reader"):
        Divergence(DivergenceSettings()).check(grid(reader="none"))


def test_settings_are_checked() -> None:
    kind = objectives.get("divergence")
    assert isinstance(kind.make(kind.settings()), Divergence)
    assert DivergenceSettings().faults() == []
    assert len(DivergenceSettings("kl", -1.0, 0, 0.0, label_smoothing=1.0).faults()) == 4
    assert Divergence(DivergenceSettings(validate_threshold=0.3)).agent() == Threshold(0.3)
