"""Running averages and exchanged weights, of parameters and of buffers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nmtgrid.models.api import TranslationModel
from nmtgrid.training.checkpoint import Checkpoints, Snapshot
from nmtgrid.training.distributed import Processes
from nmtgrid.training.progress import Progress
from nmtgrid.training.validate import Score
from nmtgrid.training.weights import RunningAverage, swapped_weights
from tests.unit.tiny_run import Scores, TinyModel, trainer


class _Model(nn.Module):
    statistic: torch.Tensor
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0]))
        self.register_buffer("statistic", torch.tensor([10.0]))
        self.register_buffer("count", torch.tensor(1))
        self.register_buffer("passing", torch.tensor([5.0]), persistent=False)

    def put(self, weight: float, statistic: float, count: int) -> None:
        with torch.no_grad():
            self.weight.fill_(weight)
            self.statistic.fill_(statistic)
            self.count.fill_(count)


def test_buffers_are_averaged_with_the_weights_and_counts_are_copied() -> None:
    model = _Model()
    average = RunningAverage(model, decay=0.75)
    assert set(average.weights) == {"weight", "statistic", "count"}
    # The first one keeps nothing of what the model began with, the next ones 1/2 and 2/3.
    for step, wanted in ((1, (3.0, 20.0)), (2, (4.0, 25.0)), (3, (6.0, 30.0))):
        model.put((0.0, 3.0, 5.0, 10.0)[step], (0.0, 20.0, 30.0, 40.0)[step], step)
        average.step()
        assert average.weights["weight"].item() == pytest.approx(wanted[0])
        assert average.weights["statistic"].item() == pytest.approx(wanted[1])
        assert average.weights["count"].item() == step


def test_a_state_without_buffers_begins_with_those_of_now() -> None:
    model = _Model()
    average = RunningAverage(model, decay=0.9)
    model.put(3.0, 20.0, 7)
    average.restore({"weight": torch.tensor([2.0])}, 4, torch.Tensor.copy_)
    held = {name: value.item() for name, value in average.weights.items()}
    assert held == {"weight": 2.0, "statistic": 20.0, "count": 7} and average.steps == 4


def test_swapped_weights_come_with_their_statistics() -> None:
    model = _Model()
    average = RunningAverage(model, decay=0.9)
    model.put(3.0, 20.0, 2)
    with swapped_weights(model, average.weights):
        assert model.weight.item() == 1.0 and model.statistic.item() == 10.0
        assert model.count.item() == 1
        assert model.state_dict()["statistic"].item() == 10.0
    assert model.weight.item() == 3.0 and model.statistic.item() == 20.0
    assert model.count.item() == 2


def test_swapped_weights_return_after_an_error() -> None:
    model = _Model()
    average = RunningAverage(model, decay=0.9)
    model.put(3.0, 20.0, 2)
    with pytest.raises(RuntimeError), swapped_weights(model, average.weights):
        raise RuntimeError
    assert model.statistic.item() == 20.0


def test_the_mean_of_the_last_states_copies_whole_numbers(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for value in (1, 2, 6):
        weights = {"statistic": torch.tensor([float(value)]), "count": torch.tensor(value)}
        progress = Progress(update=value)
        progress.validated(0.0, due=True)
        facts = {"progress": progress.to_json()}
        checkpoints.save(Snapshot(weights, {"x": torch.zeros(1)}, facts), None)
    mean = checkpoints.average()
    assert mean["statistic"].item() == 3.0 and mean["count"].item() == 6


class _WithStatistic(TinyModel):
    """It has a running statistic, as batch normalisation has."""

    statistic: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("statistic", torch.zeros(1))


class _Statistics(Scores):
    """Notes the running statistics of what it is given to score."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.seen: list[float] = []

    def score(self, model: TranslationModel) -> Score:
        assert isinstance(model, _WithStatistic)
        self.seen.append(model.statistic.item())
        return super().score(model)


def test_all_processes_validate_with_the_first_ones_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the weights, and those of their running average."""
    first = iter((7.0, 5.0))  # what the first process has of each
    validator = _Statistics()
    made = trainer(
        tmp_path, model=_WithStatistic(), validator=validator, ema_decay=0.9, ema_updates=1,
        max_updates=2,
    )  # fmt: skip

    def same(self: Processes, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            if tensor.shape == (1,):
                tensor.fill_(next(first))

    monkeypatch.setattr(Processes, "broadcast", same)
    list(made.run())
    assert validator.seen == [7.0, 5.0]
