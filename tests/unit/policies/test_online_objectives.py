"""Online objectives against sums over paths and cells taken one by one; agents against formulas."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import collate
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.online.objectives.wait_k import (
    AreaSettings,
    SampledSettings,
    SampledWaitK,
    WaitKArea,
    WaitKLikelihood,
    WaitKSettings,
)
from nmtgrid.online.policies import AlongPaths, Threshold, WaitK
from nmtgrid.search.api import Agent
from nmtgrid.search.paths import sample_k
from tests.unit.policies.all_paths import all_paths

BATCH = collate([[5, 6, 7], [8]], [[4, 5], [6, 7, 4]])
SOURCES, TARGETS = (4, 2), (3, 4)


def build(arch: str, **changes: object) -> TranslationModel:
    torch.manual_seed(0)
    small = {"size": 16, "feed_forward_size": 16, "dropout": 0.0, "embedding_dropout": 0.0}
    return zoo.build(arch, None, {**small, **changes}, source_vocab_size=9, target_vocab_size=9)


def grid() -> TranslationModel:
    return build("pervasive", depth=2, source_causal=True, output_dropout=0.0)


def transformer() -> TranslationModel:
    return build("transformer", encoder_depth=1, decoder_depth=1, heads=2, encoder="unidirectional")


def likelihoods(model: TranslationModel, sentence: int, path: list[int]) -> list[float]:
    """Return log p(y_t) along a path of one sentence, computed alone."""
    alone = BATCH.select(torch.tensor([sentence]))
    logits = model.classify(
        model.features(alone, PredictionSites.along(alone, torch.tensor([path])))
    )
    values = logits.log_softmax(1).gather(1, alone.target_output[0, :, None])
    return values[:, 0].tolist()


def wait_k(sentence: int, k: int) -> list[int]:
    return [min(k + t, SOURCES[sentence]) for t in range(TARGETS[sentence])]


MODELS = pytest.mark.parametrize("make", [grid, transformer])


@MODELS
@pytest.mark.parametrize("k", [1, 2, 9])
def test_one_path(make: Callable[[], TranslationModel], k: int) -> None:
    model = make().eval()
    parts = WaitKLikelihood(WaitKSettings(k, label_smoothing=0.0)).loss(model, BATCH)
    expected = -sum(sum(likelihoods(model, row, wait_k(row, k))) for row in (0, 1))
    assert parts.total.item() == pytest.approx(expected, rel=1e-5)
    assert parts.nll.item() == pytest.approx(expected, rel=1e-5)
    assert parts.tokens == 7


def test_a_path_that_finishes_reading() -> None:
    model = grid().eval()
    settings = WaitKSettings(1, finish_reading=True, label_smoothing=0.0)
    total = WaitKLikelihood(settings).loss(model, BATCH).total.item()
    expected = -sum(likelihoods(model, 0, [1, 2, 4])) - sum(likelihoods(model, 1, [1, 2, 2, 2]))
    assert total == pytest.approx(expected, rel=1e-5)


@MODELS
@pytest.mark.parametrize("count", [1, 3])
def test_sampled_paths_are_averaged(make: Callable[[], TranslationModel], count: int) -> None:
    model = make().train()
    objective = SampledWaitK(SampledSettings(count, label_smoothing=0.0))
    torch.manual_seed(7)
    parts = objective.loss(model, BATCH)
    torch.manual_seed(7)
    drawn = sample_k(BATCH.source_lengths, count).view(2, count).tolist()
    expected = -sum(
        sum(likelihoods(model, row, wait_k(row, k))) / count for row in (0, 1) for k in drawn[row]
    )
    assert parts.total.item() == pytest.approx(expected, rel=1e-5)
    assert parts.tokens == 7


def test_validation_draws_the_same_paths_again() -> None:
    model, objective = grid().eval(), SampledWaitK(SampledSettings())
    first = objective.loss(model, BATCH).total.item()
    torch.rand(5)
    assert objective.loss(model, BATCH).total.item() == first


def _cells(model: TranslationModel, sentence: int) -> Tensor:
    """Return log p(y_t | t, j) [T, S] of every cell, one constant path at a time."""
    columns = [
        likelihoods(model, sentence, [j] * TARGETS[sentence])
        for j in range(1, SOURCES[sentence] + 1)
    ]
    return torch.tensor(columns).T


@pytest.mark.parametrize("k", [1, 2])
def test_binary_weights_sum_every_cell_right_of_the_path(k: int) -> None:
    model = grid().eval()
    parts = WaitKArea(AreaSettings(k, label_smoothing=0.0)).loss(model, BATCH)
    expected, cells = 0.0, 0
    for row in (0, 1):
        for t, j in itertools.product(range(TARGETS[row]), range(SOURCES[row])):
            if j + 1 >= min(k + t, SOURCES[row]):
                expected -= _cells(model, row)[t, j].item()
                cells += 1
    assert parts.total.item() == pytest.approx(expected, rel=1e-5)
    assert parts.nll.item() == pytest.approx(expected / cells * 7, rel=1e-5)


@pytest.mark.parametrize("k", [1, 2])
def test_exact_weights_are_the_mean_over_all_paths(k: int) -> None:
    model = grid().eval()
    parts = WaitKArea(AreaSettings(k, "exact", label_smoothing=0.0)).loss(model, BATCH)
    expected = 0.0
    for row in (0, 1):
        cells = _cells(model, row)
        paths = [
            path
            for path in all_paths(SOURCES[row], TARGETS[row])
            if all(z >= least for z, least in zip(path, wait_k(row, k), strict=True))
        ]
        sums = [sum(cells[t, z - 1].item() for t, z in enumerate(path)) for path in paths]
        expected -= sum(sums) / len(sums)
    assert parts.total.item() == pytest.approx(expected, rel=1e-5)
    assert parts.nll.item() == pytest.approx(expected, rel=1e-5)


def test_drawn_cells_keep_the_loss_on_average() -> None:
    model = grid().train()
    whole = WaitKArea(AreaSettings(label_smoothing=0.0))
    drawn = WaitKArea(AreaSettings(cells_per_token=1.5, label_smoothing=0.0))
    torch.manual_seed(5)
    totals = torch.tensor([drawn.loss(model, BATCH).total.item() for _ in range(400)])
    error = totals.std().item() / 400**0.5
    assert 0 < error < 2
    assert totals.mean().item() == pytest.approx(
        whole.loss(model, BATCH).total.item(), abs=4 * error
    )
    plenty = WaitKArea(AreaSettings(cells_per_token=9, label_smoothing=0.0))
    assert plenty.loss(model, BATCH).total.item() == pytest.approx(
        whole.loss(model, BATCH).total.item()
    )
    assert drawn.loss(model.eval(), BATCH).total.item() == pytest.approx(
        whole.loss(model, BATCH).total.item()
    )


@pytest.mark.parametrize(
    "objective",
    [WaitKLikelihood(WaitKSettings()), SampledWaitK(SampledSettings()), WaitKArea(AreaSettings())],
)
def test_models_that_need_the_whole_source_are_refused(objective: WaitKLikelihood) -> None:
    with pytest.raises(ConfigError, match="cannot translate simultaneously"):
        objective.check(
            zoo.build("bilstm", None, {"size": 8}, source_vocab_size=9, target_vocab_size=9)
        )
    with pytest.raises(ConfigError, match="every cell"):
        WaitKArea(AreaSettings()).check(transformer())


def test_faulty_settings_are_told_by_name() -> None:
    assert WaitKSettings(0).faults() == ["`objective.k` must be at least 1, but is 0."]
    assert len(SampledSettings(0, validate_k=0, label_smoothing=1.0).faults()) == 3
    assert len(AreaSettings(-1).faults()) == 1


def reads(agent: object, step: int, before: list[int], lengths: list[int], *rho: object) -> object:
    rows = torch.arange(len(before))
    parts = agent.next_reads(  # type: ignore[attr-defined]
        step, rows, torch.tensor(before), torch.tensor(lengths), *(rho or (None,))
    )
    return parts.tolist()


def test_next_reads() -> None:
    """Wait-k reads one more for each write, a threshold until the probability falls below it."""
    assert reads(WaitK(3), 0, [1, 1], [9, 2]) == [3, 2]
    assert reads(WaitK(3), 4, [6, 2], [9, 2]) == [7, 2]
    assert reads(WaitK(math.inf), 4, [1], [9]) == [9]
    rho = torch.tensor([[0.9, 0.2, 0.8, 0.1], [0.9, 0.9, 0.9, 0.9]])
    assert reads(Threshold(0.5), 1, [1, 1], [4, 3], rho) == [2, 3]
    assert reads(Threshold(0.5), 2, [3, 3], [4, 3], rho) == [4, 3]
    assert reads(Threshold(0.85), 2, [3, 1], [4, 4], rho) == [3, 4]
    # Paths go on with the whole source.
    agent = AlongPaths(torch.tensor([[1, 2, 2], [3, 3, 9]]), torch.tensor([3, 2]))
    assert reads(agent, 1, [1, 3], [5, 4]) == [2, 3]
    assert reads(agent, 2, [2, 3], [5, 4]) == [2, 4]
    assert reads(agent, 7, [2, 4], [5, 4]) == [5, 4]


@pytest.mark.parametrize(
    ("agent", "name", "value"),
    [
        *((WaitK, "k", value) for value in (0, -1, 1.5, math.nan)),
        *((Threshold, "threshold", value) for value in (0.0, 1.0, -0.1, math.nan)),
    ],
)
def test_faulty_agents_are_refused(
    agent: Callable[[float], Agent], name: str, value: float
) -> None:
    with pytest.raises(ConfigError, match=f"`{name}` must be"):
        agent(value)
