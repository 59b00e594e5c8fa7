"""Optimisers by hand, schedules by their formulas."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmtgrid.base.errors import ConfigError
from nmtgrid.models import zoo
from nmtgrid.models.api import Classifier, TranslationModel
from nmtgrid.training import optimiser as optimiser_module
from nmtgrid.training.optimiser import (
    LearningRate,
    MuonAdamW,
    make_optimiser,
    optimiser_tensors,
    restore_optimiser,
)
from nmtgrid.training.settings import TrainingSettings
from nmtgrid.training.update import clip_and_scale
from tests.unit.helpers import tiny_run


def settings(**changes: Any) -> TrainingSettings:
    chosen = TrainingSettings(**changes)
    assert chosen.faults() == []
    return chosen


class Pair(TranslationModel):
    """A matrix, which is too small to be a map, and a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.full((1, 1), 2.0))
        self.bias = nn.Parameter(torch.full((1,), 2.0))


def one_step(**changes: Any) -> tuple[float, float]:
    """The weights after one step with gradient 0.5, from 2.0, at rate 0.1."""
    model = Pair()
    optimiser = make_optimiser(model, settings(**changes))
    for group in optimiser.param_groups:
        group["lr"] = 0.1
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    optimiser.step()
    return model.matrix.item(), model.bias.item()


@pytest.mark.parametrize(
    ("changes", "matrix", "bias"),
    [
        # Adam's first step is the rate, whatever the gradient's size; AdamW's decay takes
        # 0.1 * 0.2 * 2 more from matrices and nothing from biases.
        ({"optimiser": "adamw", "weight_decay": 0.2}, 2.0 * (1 - 0.1 * 0.2) - 0.1, 1.9),
        # Adam takes decay into the gradient, 0.5 + 0.2 * 2: the step's length is the rate again.
        ({"optimiser": "adam", "weight_decay": 0.2}, 1.9, 1.9),
        # buffer = g; step = g + 0.9 g
        ({"optimiser": "nesterov", "momentum": 0.9, "weight_decay": 0.0},
         2.0 - 0.1 * 1.9 * 0.5, 2.0 - 0.1 * 1.9 * 0.5),
    ],
)  # fmt: skip
def test_first_steps_by_hand(changes: dict[str, Any], matrix: float, bias: float) -> None:
    assert one_step(**changes) == pytest.approx((matrix, bias), abs=1e-6)


class Gains(nn.Module):
    vector_parameters = ("weight",)

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 4))


class Hidden(Pair):
    """An architecture of a user's own: torch's modules, a classifier's table, gains."""

    def __init__(self) -> None:
        super().__init__()
        self.source = nn.Embedding(7, 6)
        self.target = nn.Embedding(9, 6)
        self.cell = nn.GRUCell(6, 4)
        self.score = nn.Linear(4, 1)
        self.decision = nn.Linear(4, 5, bias=False)
        self.depthwise = nn.Conv2d(4, 4, 3, groups=4)
        self.kernel = nn.Conv2d(4, 6, 3)
        self.gains = Gains()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.table = nn.Parameter(torch.zeros(9, 4))

    def classifier(self) -> Classifier:
        return Classifier(self.table, None)

    def output_projections(self) -> list[Tensor]:
        return [*super().output_projections(), self.decision.weight]


@pytest.mark.parametrize("kind", ["adamw", "adam", "muon"])
def test_two_steps_of_adam_by_hand(kind: Any) -> None:
    """With gradients 1 and 3; Muon leaves vectors to AdamW."""
    model = Hidden()
    optimiser = make_optimiser(
        model, settings(optimiser=kind, beta1=0.5, beta2=0.9, epsilon=0.1, weight_decay=0.0)
    )
    for group in optimiser.param_groups:
        group["lr"] = 0.1
    for gradient in (1.0, 3.0):
        model.bias.grad = torch.full_like(model.bias, gradient)
        optimiser.step()
    # Means 0.5 1 / (1 - 0.5) = 1 and 0.1 1 / (1 - 0.9) = 1.
    first = 1.0 / (1.0 + 0.1)
    # Means 0.5 * 0.5 + 0.5 * 3 = 1.75 over 1 - 0.25, and 0.9 * 0.1 + 0.1 * 9 = 0.99 over 1 - 0.81.
    second = (1.75 / 0.75) / (math.sqrt(0.99 / 0.19) + 0.1)
    assert model.bias.item() == pytest.approx(2.0 - 0.1 * (first + second), abs=1e-6)


HIDDEN = ["cell.weight_ih", "cell.weight_hh", "kernel.weight"]


def test_hidden_matrices_map_features_to_features() -> None:
    model = Hidden()
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert [names[parameter] for parameter in model.hidden_matrices()] == HIDDEN


@pytest.mark.parametrize(
    ("arch", "overrides", "others", "maps"),
    [
        ("pervasive", {}, "convolution.weight", "grid_map"),
        ("pervasive", {"skip": "residual-gated"}, "_gates", "narrow.weight"),
        ("transformer", {"transparent": True, "norm": "pre"}, "mixtures", "source_projection"),
        ("transformer", {"exits": "tied", "halting": "multinomial"}, "halting_map", "input_map"),
        ("convrnn", {"convolution": "depthwise"}, "window.weight", "recurrent"),
        ("convrnn", {"convolution": "full"}, "embedding", "window.weight"),
        ("pervasive-densenet", {}, "embedding", "convolution.weight"),
        ("convs2s", {}, "position_weight", "convolution.weight"),
    ],
)
def test_what_layers_of_the_zoo_have_two_dimensions_for(
    arch: str, overrides: dict[str, Any], others: str, maps: str
) -> None:
    """Mixing weights, gains of several layers and kernels of one feature each are no maps."""
    model = zoo.build(arch, overrides=overrides, source_vocab_size=9, target_vocab_size=9)
    names = {parameter: name for name, parameter in model.named_parameters()}
    hidden = {names[parameter] for parameter in model.hidden_matrices()}
    assert any(others in name for name in names.values())
    assert not any(others in name for name in hidden) and any(maps in name for name in hidden)


def newton_schulz(x: float) -> float:
    """What five iterations make of a singular value, by the polynomial of Jordan et al."""
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5
    return x


@pytest.mark.parametrize("fast", [True, False])
def test_a_first_step_of_muon_by_hand(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient's singular values are alike, so all that happens to it is a factor."""
    monkeypatch.setattr(optimiser_module, "has_fast_bf16", lambda device: fast)
    model = Hidden()
    model.kernel.weight.data = torch.randn(6, 4, 3, 3)
    optimiser = make_optimiser(model, settings(optimiser="muon", weight_decay=0.2))
    for group in optimiser.param_groups:
        group["lr"] = 0.1
    # Six orthonormal rows [36]; taps that a model masks have no gradient, and must stay.
    live = torch.linalg.qr(torch.randn(24, 6, dtype=torch.float64)).Q.T.float()
    rows = torch.zeros(6, 4, 3, 3)
    rows[:, :, :2] = live.view(6, 4, 2, 3)
    before = model.kernel.weight.detach().clone()
    model.kernel.weight.grad = 0.01 * rows
    model.source.weight.grad = torch.full((7, 6), -0.5)
    source = model.source.weight.detach().clone()
    optimiser.step()
    # Divided by their norm first; the update's root mean square is 0.2, a value's 0.2 sqrt(36).
    size = newton_schulz(6**-0.5) * 0.2 * 36**0.5
    expected = before * (1 - 0.1 * 0.2) - 0.1 * size * rows
    distance = (model.kernel.weight - expected).norm() / (0.1 * size * 6**0.5)
    assert distance < (0.02 if fast else 1e-5)
    dead = slice(2, None)
    assert torch.equal(model.kernel.weight[:, :, dead], before[:, :, dead] * (1 - 0.1 * 0.2))
    # AdamW's first step, and no step without a gradient.
    torch.testing.assert_close(model.source.weight, source * (1 - 0.1 * 0.2) + 0.1)
    assert {name.split("|")[0] for name in optimiser_tensors(optimiser, model)} == {
        "kernel.weight", "source.weight",
    }  # fmt: skip


def test_muon_is_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16, for matrices that are wide and high."""
    monkeypatch.setattr(optimiser_module, "has_fast_bf16", lambda device: True)
    torch.manual_seed(3)
    model = Hidden()
    weights = model.cell.weight_ih, model.cell.weight_hh
    model.cell.weight_ih.data = torch.randn(12, 15)
    copies = [nn.Parameter(weight.detach().clone()) for weight in weights]
    chosen = settings(optimiser="muon", weight_decay=0.2, muon_momentum=0.8)
    ours = make_optimiser(model, chosen)
    theirs = torch.optim.Muon(
        copies, lr=0.1, momentum=0.8, weight_decay=0.2, adjust_lr_fn="match_rms_adamw"
    )
    for group in ours.param_groups:
        group["lr"] = 0.1
    for _ in range(3):
        for weight, copy in zip(weights, copies, strict=True):
            weight.grad = torch.randn(weight.shape)
            copy.grad = weight.grad.clone()
        ours.step()
        theirs.step()
    assert all(torch.equal(*pair) for pair in zip(weights, copies, strict=True))


def test_muon_moves_nothing_where_the_gradient_is_not_finite() -> None:
    """Neither weights nor moments, of its own part and AdamW's."""
    model = Hidden()
    optimiser = make_optimiser(model, settings(optimiser="muon", weight_decay=0.2))
    assert isinstance(optimiser, MuonAdamW)
    for group in optimiser.param_groups:
        group["lr"] = 0.1
    states = []
    for is_broken in (False, True):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, math.nan if is_broken else 1.0)
        optimiser.found_inf = torch.tensor(float(is_broken))
        optimiser.step()
        moments = optimiser_tensors(optimiser, model)
        states.append([value.clone() for value in (*model.parameters(), *moments.values())])
    assert all(map(torch.equal, *states))


def test_muon_without_matrices_is_refused() -> None:
    model = tiny_run.TinyModel()
    with pytest.raises(ConfigError, match="hidden matrices"):
        make_optimiser(model, settings(optimiser="muon"))
    (fault,) = TrainingSettings(optimiser="muon", shard=True).faults()
    assert "`training.shard" in fault


@pytest.mark.parametrize(
    ("name", "shape"),
    [("cell.weight_hh|exp_avg", (12, 4)), ("source.weight|momentum_buffer", (7, 6))],
)
def test_moments_of_the_other_part_are_refused(name: str, shape: tuple[int, ...]) -> None:
    model = Hidden()
    optimiser = make_optimiser(model, settings(optimiser="muon"))
    with pytest.raises(ValueError, match="is not of this model and optimiser"):
        restore_optimiser(optimiser, model, {name: torch.zeros(shape)}, lambda p, value: value)


@pytest.mark.parametrize("kind", ["adamw", "adam", "nesterov"])
def test_moments_come_back_under_their_parameters_names(kind: Any) -> None:
    torch.manual_seed(3)
    straight, broken = Pair(), Pair()
    first, second = (make_optimiser(m, settings(optimiser=kind)) for m in (straight, broken))
    for step in range(4):
        if step == 2:
            fresh = make_optimiser(broken, settings(optimiser=kind))
            tensors = {name: t.clone() for name, t in optimiser_tensors(second, broken).items()}
            assert all(name.split("|")[0] in ("matrix", "bias") for name in tensors)
            restore_optimiser(fresh, broken, tensors, lambda parameter, value: value)
            second = fresh
        for model, optimiser in ((straight, first), (broken, second)):
            for group in optimiser.param_groups:
                group["lr"] = 0.1
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 0.5 - 0.3 * step)
            optimiser.step()
    assert torch.equal(straight.matrix, broken.matrix)
    assert torch.equal(straight.bias, broken.bias)


@pytest.mark.parametrize(
    ("clip_norm", "clipped"), [(0.0, [3.0, 4.0]), (2.0, [1.2, 1.6]), (6.0, [3.0, 4.0])]
)
def test_gradients_are_divided_by_tokens_then_clipped(
    clip_norm: float, clipped: list[float]
) -> None:
    gradient = torch.tensor([30.0, 40.0])
    assert clip_and_scale([gradient], 10, clip_norm).item() == pytest.approx(5.0)
    torch.testing.assert_close(gradient, torch.tensor(clipped), rtol=1e-5, atol=0)


SCHEDULES: dict[str, tuple[dict[str, Any], dict[tuple[int, float], float]]] = {
    # Updates 1 to 4 climb by 0.2 from 0.2; update n > 4 has sqrt(4 / n).
    "inverse square root": (
        {"learning_rate": 1.0, "initial_learning_rate": 0.2, "warmup_updates": 4},
        {(0, 0): 0.4, (1, 0): 0.6, (2, 0): 0.8, (3, 0): 1.0, (15, 0): 0.5, (99, 0): 0.2},
    ),
    "cosine": (
        {"schedule": "cosine", "learning_rate": 1.0, "final_learning_rate": 0.1,
         "warmup_updates": 10, "initial_learning_rate": 0.0, "max_updates": 110},
        {(4, 0): 0.5, (9, 0): 1.0, (59, 0): 0.55, (109, 0): 0.1, (500, 0): 0.1},
    ),
    # Cosine by time looks at the minutes alone.
    "cosine by time": (
        {"schedule": "cosine-time", "learning_rate": 1.0, "final_learning_rate": 0.0,
         "warmup_fraction": 0.1, "initial_learning_rate": 0.0, "max_minutes": 10.0,
         "max_updates": 0},
        {(700, 0.5): 0.5, (3, 1.0): 1.0, (3, 5.5): 0.5,
         (3, 7.75): 0.5 * (1 + math.cos(math.pi * 0.75)), (3, 10.0): 0.0, (3, 11.0): 0.0},
    ),
    "step": (
        {"schedule": "step", "learning_rate": 1.0, "warmup_updates": 0, "decay_updates": 10,
         "decay_factor": 0.5},
        {(0, 0): 1.0, (8, 0): 1.0, (9, 0): 0.5, (29, 0): 0.125},
    ),
    # Steps are counted from the end of the warm-up.
    "step after a warm-up": (
        {"schedule": "step", "learning_rate": 1.0, "initial_learning_rate": 0.0,
         "warmup_updates": 5, "decay_updates": 10, "decay_factor": 0.5},
        {(1, 0): 0.4, (4, 0): 1.0, (13, 0): 1.0, (14, 0): 0.5, (23, 0): 0.5, (24, 0): 0.25},
    ),
    "constant": (
        {"schedule": "constant", "learning_rate": 0.3, "warmup_updates": 2},
        {(1, 0): 0.3, (500, 0): 0.3},
    ),
}  # fmt: skip
"""Settings, and learning rates by updates and minutes."""


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_their_formulas(name: str) -> None:
    changes, rates = SCHEDULES[name]
    schedule = LearningRate(settings(**changes))
    actual = {clock: schedule.at(*clock) for clock in rates}
    assert actual == pytest.approx(rates, rel=1e-9, abs=1e-9)


def test_plateau_decays_after_three_evaluations_without_improvement() -> None:
    chosen = settings(schedule="plateau", learning_rate=1.0, warmup_updates=0, decay_patience=3)
    schedule = LearningRate(chosen)
    seen = []
    for loss in (2.0, 1.5, 1.6, 1.5, 1.7, 1.4, 1.5, 1.5, 1.5):
        schedule.evaluated(loss)
        seen.append(round(schedule.at(10, 0), 6))
    assert seen == [1.0, 1.0, 1.0, 1.0, 0.8, 0.8, 0.8, 0.8, 0.64]


def test_a_plateau_is_left_by_more_than_the_threshold() -> None:
    """The best loss is the last one that was better by so much: small steps add up to a large."""
    chosen = settings(
        schedule="plateau", learning_rate=1.0, warmup_updates=0, decay_patience=2,
        decay_threshold=0.5, decay_factor=0.5,
    )  # fmt: skip
    schedule = LearningRate(chosen)
    seen = []
    # 3.5 is just 0.5 below 4 and not more; 3.25 is, and 2.5 again; 2.25 and 2.0 are not.
    for loss in (4.0, 3.5, 3.25, 3.0, 2.5, 2.25, 2.0):
        schedule.evaluated(loss)
        seen.append(schedule.at(10, 0))
    assert seen == [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5]
    assert schedule.best == 2.5
    # As torch's own scheduler has it, which decays once there were more than `patience`.
    weight = nn.Parameter(torch.zeros(1))
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        torch.optim.SGD([weight], lr=1.0), factor=0.5, patience=1, threshold=0.5,
        threshold_mode="abs",
    )  # fmt: skip
    ours = LearningRate(chosen)
    for loss in (4.0, 3.5, 3.5, 3.25, 3.5, 1.0, 0.5, 0.25, 0.0, -0.5):
        ours.evaluated(loss)
        theirs.step(loss)
        assert ours.at(10, 0) == theirs.get_last_lr()[0]
    assert "training.decay_threshold" in TrainingSettings(decay_threshold=-0.1).faults()[0]


def test_a_schedules_state_comes_back() -> None:
    chosen = settings(schedule="plateau", learning_rate=1.0, warmup_updates=0)
    first, other = LearningRate(chosen), LearningRate(chosen)
    other.restore(first.state())
    assert math.isinf(other.best)
    for loss in (2.0, 2.0, 2.0):
        first.evaluated(loss)
    other.restore(first.state())
    first.evaluated(2.0)
    other.evaluated(2.0)
    assert first.at(5, 0) == other.at(5, 0) == pytest.approx(0.8)
