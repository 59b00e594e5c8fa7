"""The marginal over all READ/WRITE paths against enumeration, its fused loss against autograd."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.rows import is_token
from nmtgrid.cli.objectives import objectives
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.online.objectives.marginal import (
    Marginal,
    MarginalSettings,
    log_marginal,
    write_posteriors,
)
from nmtgrid.online.oracle import writing_costs
from nmtgrid.online.policies import Threshold
from nmtgrid.training.api import LossParts
from tests.unit.policies.all_paths import all_paths, lengths, path_log_probabilities
from tests.unit.policies.test_dynamic import BATCH, EVERY, SOURCES, TARGETS, agent_path, along, grid

GRIDS = list(itertools.product(range(1, 6), range(1, 6)))


def ragged(sizes: list[tuple[int, int]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return emissions, logits, source and target lengths; padding holds what must not be read."""
    generator = torch.Generator().manual_seed(5)
    source_lengths, target_lengths = lengths(sizes)
    shape = len(sizes), int(target_lengths.max()), int(source_lengths.max())
    emission = -3 * torch.rand(shape, dtype=torch.float64, generator=generator)
    logits = 2 * torch.randn(shape, dtype=torch.float64, generator=generator)
    inside = (
        is_token(target_lengths, shape[1])[..., None] & is_token(source_lengths, shape[2])[:, None]
    )
    return (
        emission.masked_fill(~inside, torch.nan), logits.masked_fill(~inside, torch.inf),
        source_lengths, target_lengths,
    )  # fmt: skip


def path_log(emission: Tensor, logits: Tensor, path: tuple[int, ...], source: int) -> float:
    """Return what one path contributes, action by action, from one token read."""
    total, reads = 0.0, 1
    for t, z in enumerate(path):
        while reads < z:
            total += float(logsigmoid(logits[t, reads - 1]))
            reads += 1
        if reads < source:
            total += float(logsigmoid(-logits[t, reads - 1]))
        total += float(emission[t, z - 1])
    return total


def by_enumeration(emission: Tensor, logits: Tensor, source: int, target: int) -> float:
    paths = [path_log(emission, logits, path, source) for path in all_paths(source, target)]
    return float(torch.tensor(paths, dtype=torch.float64).logsumexp(0))


def test_the_marginal_is_the_sum_over_all_paths() -> None:
    emission, logits, *sizes = ragged(GRIDS)
    got = log_marginal(emission, logits, *sizes)
    expected = [by_enumeration(emission[i], logits[i], *size) for i, size in enumerate(GRIDS)]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-10)


def test_the_probabilities_of_all_paths_sum_to_one() -> None:
    _, logits, *sizes = ragged(GRIDS)
    sums = log_marginal(torch.zeros_like(logits), logits, *sizes)
    torch.testing.assert_close(sums, torch.zeros_like(sums), rtol=0, atol=1e-12)


@pytest.mark.parametrize("certain", [40.0, 1e4])
def test_where_reading_is_certain_it_is_one_paths_likelihood(certain: float) -> None:
    emission, _, *sizes = ragged([(5, 4), (3, 5)])
    paths = torch.tensor([[2, 2, 5, 5, 5], [1, 3, 3, 3, 3]])
    reads = torch.arange(1, 6)
    logits = torch.where(reads < paths[..., None], certain, -certain).double()
    expected = [emission[i, range(n), paths[i, :n] - 1].sum() for i, n in ((0, 4), (1, 5))]
    torch.testing.assert_close(log_marginal(emission, logits, *sizes), torch.stack(expected))
    # Its posterior is that path.
    posteriors = write_posteriors(emission, logits, *sizes)[1]
    expected_cells = (reads == paths[..., None]) & is_token(sizes[1], 5)[..., None]
    torch.testing.assert_close(posteriors, expected_cells.double())


def test_it_agrees_with_the_probabilities_of_the_policy() -> None:
    _, logits, *sizes = ragged([(4, 3)])
    for path in all_paths(4, 3):
        chosen = torch.full((1, 3, 4), -1e6, dtype=torch.float64)
        chosen[0, torch.arange(3), torch.tensor(path) - 1] = 0.0
        by_policy = path_log_probabilities(logits.float(), torch.tensor([path]), *sizes)
        torch.testing.assert_close(log_marginal(chosen, logits, *sizes).float(), by_policy)


def test_gradients() -> None:
    emission, logits, *sizes = ragged([(4, 3), (1, 2), (3, 4), (2, 1)])
    inputs = emission.nan_to_num().requires_grad_(), logits.clamp(-9, 9).requires_grad_()
    assert torch.autograd.gradcheck(lambda e, r: log_marginal(e, r, *sizes), inputs)


def test_posteriors_are_shares_of_the_paths() -> None:
    emission, logits, *sizes = ragged([(4, 3), (3, 5), (1, 2)])
    log_sums, posteriors = write_posteriors(emission, logits, *sizes)
    for i, (source, target) in enumerate([(4, 3), (3, 5), (1, 2)]):
        expected = torch.zeros(5, 4, dtype=torch.float64)
        for path in all_paths(source, target):
            share = math.exp(path_log(emission[i], logits[i], path, source) - float(log_sums[i]))
            for t, z in enumerate(path):
                expected[t, z - 1] += share
        torch.testing.assert_close(posteriors[i], expected)


def run(model: TranslationModel, **settings: Any) -> LossParts:
    return Marginal(MarginalSettings(**settings)).loss(model, BATCH)


def plain(
    model: TranslationModel, delay_weight: float, eps: float, offline: float, area: float
) -> tuple[Tensor, Tensor]:
    """Return (loss, marginal) with all logits in memory, and autograd through everything."""
    reading = model.reading(BATCH)
    total, marginal = torch.zeros(()), torch.zeros(())
    for b in EVERY:
        source, target = SOURCES[b], TARGETS[b]
        sites = [(b, t, j) for t in range(target) for j in range(1, source + 1)]
        columns = torch.tensor(sites).T
        features = model.features(BATCH, PredictionSites(columns[0], columns[1], columns[2]))
        log_p = model.classify(features).log_softmax(1).view(target, source, -1)
        tokens = BATCH.target_output[b, :target, None, None].expand(-1, source, 1)
        own = log_p.gather(2, tokens)[..., 0]
        price = delay_weight * torch.arange(source) / source
        terms = (own - price)[None], reading[b : b + 1, :target, :source]
        sizes = torch.tensor([source]), torch.tensor([target])
        negative = -log_marginal(*terms, *sizes).sum().float()
        posteriors = write_posteriors(terms[0], terms[1].detach(), *sizes)[1][0].float()
        smoothed = -(1 - eps) * own - eps * log_p.mean(2)
        marginal = marginal + negative
        total = total + negative + (posteriors * (smoothed + own)).sum()
        total = total + offline * smoothed[:, -1].sum() + area * smoothed.mean(1).sum()
    return total, marginal


@pytest.mark.parametrize(
    ("delay_weight", "label_smoothing", "offline", "area"),
    [(0.0, 0.0, 0.0, 0.0), (2.0, 0.0, 0.0, 0.0), (2.0, 0.2, 0.5, 0.0), (2.0, 0.2, 0.0, 0.7)],
)
@pytest.mark.parametrize("reader", ["own", "shared"])
def test_the_fused_loss_is_the_plain_one(
    reader: str, delay_weight: float, label_smoothing: float, offline: float, area: float
) -> None:
    model = grid(reader=reader)
    weights = {"delay_weight": delay_weight, "offline": offline, "area": area}
    parts = run(model, label_smoothing=label_smoothing, **weights)
    names, parameters = zip(*model.named_parameters(), strict=True)
    got = torch.autograd.grad(parts.total, parameters)
    total, marginal = plain(model, delay_weight, label_smoothing, offline, area)
    torch.testing.assert_close(parts.total, total, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(parts.extra["marginal"].float(), marginal, rtol=1e-5, atol=1e-5)
    for name, mine, autograd in zip(
        names, got, torch.autograd.grad(total, parameters), strict=True
    ):
        torch.testing.assert_close(mine, autograd, rtol=1e-3, atol=2e-5, msg=name)


def test_without_alpha_the_reader_alone_learns() -> None:
    """Its gradient is that of the marginal; the translation model has none."""
    model = grid(reader="own")
    names, parameters = zip(*model.named_parameters(), strict=True)
    both = torch.autograd.grad(run(model, delay_weight=2.0).total, parameters)
    parts = run(model, delay_weight=2.0, alpha=0.0)
    alone = torch.autograd.grad(parts.total, parameters, allow_unused=True)
    of_reader = {name for name, gradient in zip(names, alone, strict=True) if gradient is not None}
    assert of_reader and all(name.startswith("reader.") for name in of_reader)
    for name, mine, other in zip(names, alone, both, strict=True):
        if mine is not None:
            torch.testing.assert_close(mine, other, msg=name)
    torch.testing.assert_close(parts.total.double(), parts.extra["marginal"])
    half = torch.autograd.grad(run(model, delay_weight=2.0, alpha=0.5).total, parameters)
    for name, mine, other in zip(names, half, both, strict=True):
        share = 1.0 if name in of_reader else 0.5
        torch.testing.assert_close(mine, share * other, msg=name)


def test_validation_follows_the_agent() -> None:
    """The likelihood, the reads and the price of the path that `validate_threshold` takes."""
    model = grid().eval()
    with torch.no_grad():
        parts = run(model, delay_weight=2.0, validate_threshold=0.48)
    paths = [agent_path(model, sentence, 0.48) for sentence in EVERY]
    nll = sum(along(model, sentence, path) for sentence, path in enumerate(paths))
    assert float(parts.nll) == pytest.approx(nll, rel=1e-5)
    price = sum(2 * (z - 1) / SOURCES[b] for b, path in enumerate(paths) for z in path)
    assert parts.criterion is not None
    assert float(parts.criterion) == pytest.approx(nll + price, rel=1e-5)
    assert not parts.total.requires_grad and parts.tokens == sum(TARGETS)
    with torch.no_grad():
        assert run(model).criterion is None
    torch.testing.assert_close(parts.total, run(model, delay_weight=2.0).total.detach())


def test_expected_reads_are_those_of_the_posterior() -> None:
    """An infinite price leaves the paths that write everything with one token read."""
    parts = run(grid(), delay_weight=1e4)
    assert float(parts.extra["expected_reads"]) == pytest.approx(3 / 4 + 4 / 2 + 2, rel=1e-4)
    costs = writing_costs(grid().eval(), BATCH)
    first_column = costs[..., 0].sum()
    # What is left is writing there, and the reader's own probability of doing so.
    assert float(parts.extra["marginal"]) > float(first_column)


def test_cells_that_no_path_writes_at_are_left_out() -> None:
    """A price that leaves one path: its cells are all that the classifier learns from."""
    model = grid()
    sizes = BATCH.source_lengths, BATCH.target_lengths
    posteriors = write_posteriors(-writing_costs(model, BATCH), model.reading(BATCH), *sizes)[1]
    assert int(run(model).extra["write_cells"]) == int((posteriors > 1e-7).sum()) > sum(TARGETS)
    assert int(run(model, delay_weight=1e4).extra["write_cells"]) == sum(TARGETS)
    # With the likelihood of the last column another cell of each row counts, unless it is the same.
    parts = run(model, delay_weight=1e4, offline=0.5)
    assert int(parts.extra["write_cells"]) == 2 * (3 + 4) + 2


def test_batches_add_up() -> None:
    model = grid()
    whole = run(model, delay_weight=1.0)
    objective = Marginal(MarginalSettings(delay_weight=1.0))
    halves = [objective.loss(model, BATCH.select(torch.tensor(rows))) for rows in ([0], [1, 2])]
    torch.testing.assert_close(halves[0].total + halves[1].total, whole.total)
    for name, value in whole.extra.items():
        assert float(value) == pytest.approx(sum(float(h.extra[name]) for h in halves), rel=1e-5)


def test_in_bf16() -> None:
    model = grid()
    exact = run(model, delay_weight=1.0)
    with torch.autocast("cpu", torch.bfloat16):
        parts = run(model, delay_weight=1.0)
    parts.total.backward()
    assert float(parts.total.detach()) == pytest.approx(float(exact.total.detach()), rel=0.05)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_other_models_are_refused() -> None:
    with pytest.raises(ConfigError, match="`marginal` needs predictions at every cell"):
        Marginal(MarginalSettings()).check(grid(source_causal=False, reader="none"))
    with pytest.raises(ConfigError, match="has no reader"):
        Marginal(MarginalSettings()).check(grid(reader="none"))


def test_settings_are_checked() -> None:
    kind = objectives.get("marginal")
    assert isinstance(kind.make(kind.settings()), Marginal)
    assert MarginalSettings().faults() == []
    wrong = {"delay_weight": -1.0, "alpha": -1.0, "offline": -1.0, "area": -1.0}
    assert len(MarginalSettings(**wrong, validate_threshold=0.0, label_smoothing=1.0).faults()) == 6
    (fault,) = MarginalSettings(alpha=0.0, area=1.0).faults()
    assert "leaves as it is" in fault
    assert Marginal(MarginalSettings(validate_threshold=0.3)).agent() == Threshold(0.3)
