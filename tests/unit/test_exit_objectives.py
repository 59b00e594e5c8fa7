"""Objectives of early exits against their formulas, token by token and gradient by gradient."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmtgrid.adaptive.halting_objective import (
    CompoundLoss,
    Family,
    HaltingSettings,
    OracleScore,
    exit_log_probabilities,
    predicted_exits,
    sequence_oracle,
    token_oracle,
)
from nmtgrid.adaptive.objectives import (
    Aligned,
    AlignedSettings,
    Mixed,
    MixedSettings,
    Weighting,
    exit_weights,
)
from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.objectives import objectives
from nmtgrid.data.batches import collate
from nmtgrid.models.api import ExitModel, PredictionSites, TranslationModel
from nmtgrid.models.transformer.model import Transformer
from nmtgrid.training.api import LossParts
from tests.unit.tiny_transformer import tiny

BATCH = collate([[5, 6, 7], [8], []], [[4, 5], [6, 7, 4, 9], [5]])
TARGETS = (3, 5, 2)
EXITS = 3
ALL: list[Family] = ["sequence", "multinomial", "geometric"]


def model(**changes: Any) -> ExitModel:
    """Return a Transformer with three exits."""
    found = tiny(**{"exits": "separate", **changes})
    assert isinstance(found, ExitModel)
    return found


def log_p(held: ExitModel) -> Tensor:
    """Return log-probabilities [M, N, V] of all exits at all target positions."""
    states = held.exit_features(BATCH, PredictionSites.offline(BATCH))
    found = []
    for exit, state in enumerate(states, 1):
        output = held.classifier(exit)
        logits = state @ output.weight.t()
        found.append((logits if output.bias is None else logits + output.bias).log_softmax(-1))
    return torch.stack(found, 1)


def targets() -> Tensor:
    return torch.cat([row[:size] for row, size in zip(BATCH.target_output, TARGETS, strict=True)])


def costs(values: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the smoothed cross-entropies [M, N] of log-probabilities [M, N, V]."""
    true = values[torch.arange(len(values)), :, targets()]
    return -(1 - smoothing) * true - smoothing * values.mean(-1)


def parameters_of(module: nn.Module) -> list[nn.Parameter]:
    return [held for held in module.parameters() if held.requires_grad]


def gradients(value: Tensor, wanted: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of `value`, zero where it does not depend on something."""
    found = torch.autograd.grad(value, wanted, retain_graph=True, allow_unused=True)
    return [
        torch.zeros_like(held) if part is None else part
        for held, part in zip(wanted, found, strict=True)
    ]


def assert_same(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("exits", ["tied", "separate"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("weights", ["uniform", "linear", "inverse"])
def test_aligned_is_the_weighted_sum(exits: str, norm: str, weights: Weighting) -> None:
    held = model(exits=exits, norm=norm)
    found = Aligned(AlignedSettings(weights=weights, label_smoothing=0.2)).loss(held, BATCH)
    values = log_p(held)
    shares = torch.tensor(exit_weights(weights, EXITS))
    wanted = (costs(values, 0.2) @ shares).sum()
    torch.testing.assert_close(found.total, wanted)
    told = [float(found.extra[f"nll_exit_{exit}"]) for exit in range(1, EXITS + 1)]
    assert told == pytest.approx(costs(values).sum(0).tolist(), rel=1e-5)
    assert float(found.nll) == pytest.approx(told[-1])
    assert found.tokens == sum(TARGETS)
    every = parameters_of(held)
    assert_same(gradients(found.total, every), gradients(wanted, every))


@pytest.mark.parametrize("exits", ["tied", "separate"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("ratio", [0.5, 1.1])
@pytest.mark.parametrize("weights", ["uniform", "linear"])
def test_the_exact_ratio_scales_each_blocks_own_gradient(
    exits: str, norm: str, ratio: float, weights: Weighting
) -> None:
    """Block n gets gamma_n times its own loss's gradient and the later ones'; others as before."""
    held = model(exits=exits, norm=norm)
    settings = AlignedSettings(weights=weights, gradient_ratio=ratio, label_smoothing=0.2)
    found = Aligned(settings).loss(held, BATCH)
    plain = Aligned(AlignedSettings(weights=weights, label_smoothing=0.2)).loss(held, BATCH)
    torch.testing.assert_close(found.total, plain.total)
    own = costs(log_p(held), 0.2).sum(0) * torch.tensor(exit_weights(weights, EXITS))
    for n in range(1, EXITS + 1):
        scale = ratio * (EXITS - n) if n < EXITS else 1.0
        wanted = scale * own[n - 1] + own[n:].sum()
        assert_same(block_gradients(found.total, held, n), block_gradients(wanted, held, n))
    inside = {id(part) for module in decoder_parts(held) for part in module.parameters()}
    others = [part for part in parameters_of(held) if id(part) not in inside]
    assert_same(gradients(found.total, others), gradients(plain.total, others))


def blocks_of(held: TranslationModel) -> list[nn.Module]:
    return [stage for name, stage in held.stages().items() if name.startswith("decoder.")][1:]


def decoder_parts(held: TranslationModel) -> list[nn.Module]:
    """Return the blocks and what makes keys and values of the source for all of them."""
    assert isinstance(held, Transformer)
    return [*blocks_of(held), held.source_projection]


def block_gradients(value: Tensor, held: TranslationModel, n: int) -> list[Tensor]:
    """Return the gradients of block n's parameters, its keys and values of the source too."""
    shared = gradients(value, parameters_of(decoder_parts(held)[-1]))
    inside = gradients(value, parameters_of(blocks_of(held)[n - 1]))
    return inside + [part.chunk(EXITS)[n - 1] for part in shared]


def test_the_printed_ratio_never_changes() -> None:
    """Algorithm 2 scales all that reaches block n by gamma_n, its own loss and the later ones."""
    held = model()
    plain = Aligned(AlignedSettings("linear")).loss(held, BATCH)
    found = Aligned(AlignedSettings("linear", 0.7, "printed")).loss(held, BATCH)
    torch.testing.assert_close(found.total, plain.total)
    for n, scale in enumerate([1.4, 0.7, 1.0], 1):
        wanted = [scale * part for part in block_gradients(plain.total, held, n)]
        assert_same(block_gradients(found.total, held, n), wanted)


def test_validation_knows_no_gradient_ratio() -> None:
    held = model()
    with torch.no_grad():
        found = Aligned(AlignedSettings(gradient_ratio=0.5)).loss(held, BATCH)
        plain = Aligned(AlignedSettings()).loss(held, BATCH)
    assert float(found.total) == pytest.approx(float(plain.total))


def mixed_costs(held: ExitModel, depth: Tensor, smoothing: float) -> Tensor:
    """Return the costs [M] along one sequence of exits [M] of each sentence."""
    sites = PredictionSites.offline(BATCH)
    sites = PredictionSites(sites.sentence, sites.position, depth=depth, mixed=True)
    features, found = held.features(BATCH, sites), []
    for place, exit in enumerate(depth.tolist()):
        output = held.classifier(exit)
        logits = output.weight @ features[place]
        values = (logits if output.bias is None else logits + output.bias).log_softmax(0)
        true = values[targets()[place]]
        found.append(-(1 - smoothing) * true - smoothing * values.mean())
    return torch.stack(found)


@pytest.mark.parametrize("exits", ["tied", "separate"])
@pytest.mark.parametrize("sequences", [1, 3])
def test_mixed_is_the_mean_over_drawn_sequences(
    exits: str, sequences: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = model(exits=exits).train()
    draw = torch.Generator().manual_seed(3)
    # The order in the batch: the sequences of one sentence beside each other.
    drawn = [[torch.randint(1, 4, (size,), generator=draw) for _ in range(sequences)]
             for size in TARGETS]  # fmt: skip
    flat = torch.cat(list(itertools.chain.from_iterable(drawn)))
    monkeypatch.setattr("nmtgrid.adaptive.objectives.draw_exits", lambda *_: flat)
    found = Mixed(MixedSettings(sequences, 0.2)).loss(held, BATCH)
    along = [torch.cat([drawn[sentence][m] for sentence in range(3)]) for m in range(sequences)]
    wanted = torch.stack([mixed_costs(held, depth, 0.2).sum() for depth in along]).mean()
    torch.testing.assert_close(found.total, wanted)
    told = torch.stack([mixed_costs(held, depth, 0.0).sum() for depth in along]).mean()
    torch.testing.assert_close(found.nll, told.detach())
    assert found.tokens == sum(TARGETS)
    assert float(found.extra["average_exit"]) == pytest.approx(float(flat.sum()) / sequences)
    every = parameters_of(held)
    assert_same(gradients(found.total, every), gradients(wanted, every))


def test_mixed_draws_anew_in_training_alone() -> None:
    held, objective = model(), Mixed(MixedSettings(2))
    assert objective.loss(held, BATCH).nll == objective.loss(held, BATCH).nll
    held.train()
    found = {float(objective.loss(held, BATCH).nll) for _ in range(4)}
    assert len(found) > 1


def compound(held: ExitModel, **settings: Any) -> LossParts:
    return CompoundLoss(HaltingSettings(**settings)).loss(held, BATCH)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("halting", ALL)
@pytest.mark.parametrize("oracle", ["likelihood", "correctness"])
@pytest.mark.parametrize(("depth_penalty", "sigma"), [(0.0, 0.0), (0.3, 0.0), (0.1, 3.0)])
def test_compound_is_the_formula(
    norm: str, halting: Family, oracle: OracleScore, depth_penalty: float, sigma: float
) -> None:
    """Eq. (5.10): decoding, plus alpha times the sum over tokens of H(q*_t, q_t)."""
    held = model(halting=halting, norm=norm)
    found = compound(
        held, alpha=0.7, oracle=oracle, depth_penalty=depth_penalty, sigma=sigma,
        label_smoothing=0.2, kernel="normalised",
    )  # fmt: skip
    values = log_p(held)
    nll = costs(values).detach()
    hits = (values.argmax(-1) == targets()[:, None]).double()
    wanted = best_exits(-nll if oracle == "likelihood" else hits, halting, depth_penalty, sigma)
    sites = PredictionSites.offline(BATCH)
    logits = held.halting_logits(BATCH, held.exit_features(BATCH, sites))
    if halting == "sequence":
        logits = logits[sites.sentence]
    chosen = exit_log_probabilities(logits, halting).gather(1, wanted[:, None] - 1)
    total = costs(values, 0.2).mean(1).sum() - 0.7 * chosen.sum()
    torch.testing.assert_close(found.total, total)
    wanted_least = costs(values).mean(1).sum() - 0.7 * chosen.sum()
    torch.testing.assert_close(found.criterion, wanted_least.detach())
    taken = predicted_exits(logits, halting)
    along = nll.gather(1, taken[:, None] - 1).sum()
    assert float(found.nll) == pytest.approx(float(along), rel=1e-5)
    told = {name: float(found.extra[name]) for name in ("average_exit", "oracle_exit", "agreement")}
    assert told == {
        "average_exit": float(taken.sum()), "oracle_exit": float(wanted.sum()),
        "agreement": float((taken == wanted).sum()),
    }  # fmt: skip
    assert float(found.extra["nll_exit_2"]) == pytest.approx(float(nll[:, 1].sum()), rel=1e-5)
    every = parameters_of(held)
    assert_same(gradients(found.total, every), gradients(total, every))


def best_exits(scores: Tensor, halting: Family, depth_penalty: float, sigma: float) -> Tensor:
    """Return the oracle's exits [M], each sentence by itself."""
    found = []
    for part in scores.split(TARGETS):
        length = torch.tensor([len(part)])
        if halting == "sequence":
            exit = sequence_oracle(part[None], length, depth_penalty)
            found.append(exit.expand(len(part)))
        else:
            exits = token_oracle(part[None], length, depth_penalty, sigma, "normalised")
            found.append(exits[0])
    return torch.cat(found)


def test_a_threshold_moves_the_likelihood_told() -> None:
    held = model(halting="geometric")
    early, late = (compound(held, validate_threshold=at) for at in (0.0, 1.0))
    assert float(early.nll) == pytest.approx(float(early.extra["nll_exit_1"]))
    assert float(late.nll) == pytest.approx(float(late.extra["nll_exit_3"]))
    assert float(late.extra["average_exit"]) == EXITS * sum(TARGETS)


def test_models_that_cannot_be_trained_so_are_refused() -> None:
    plain = tiny()
    for name in ("exits-aligned", "exits-mixed", "exits-halting"):
        kind = objectives.get(name)
        objective = kind.make(kind.settings())
        assert objective.agent() is None
        with pytest.raises(ConfigError, match="one exit"):
            objective.check(plain)
    with pytest.raises(ConfigError, match="no exit predictor"):
        CompoundLoss(HaltingSettings()).check(model())
    with pytest.raises(ConfigError, match=r"objective\.sigma"):
        CompoundLoss(HaltingSettings(sigma=1.0)).check(model(halting="sequence"))
    Aligned(AlignedSettings()).check(model())
    Mixed(MixedSettings()).check(model())
    CompoundLoss(HaltingSettings(sigma=1.0)).check(model(halting="geometric"))


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (AlignedSettings(gradient_ratio=-1, label_smoothing=1), ["gradient_ratio", "smoothing"]),
        (MixedSettings(sequences=0), ["sequences"]),
        (HaltingSettings(alpha=-1, depth_penalty=float("inf"), sigma=-0.1, validate_threshold=2),
         ["alpha", "depth_penalty", "sigma", "validate_threshold"]),
    ],
)  # fmt: skip
def test_faulty_settings_are_all_named(settings: Any, names: list[str]) -> None:
    found = settings.faults()
    assert len(found) == len(names)
    for name, fault in zip(names, found, strict=True):
        assert name in fault
