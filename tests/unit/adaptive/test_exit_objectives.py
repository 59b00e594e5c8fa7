"""Early exits: weights, losses and objectives against their formulas, gradient by gradient."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmtgrid.adaptive.halting import FixedExit
from nmtgrid.adaptive.halting_objective import (
    CompoundLoss,
    Family,
    HaltingSettings,
    OracleScore,
    exit_log_probabilities,
    exit_loss,
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
    gradient_scales,
)
from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.objectives import objectives
from nmtgrid.data.batches import collate
from nmtgrid.models.api import ExitModel, PredictionSites, TranslationModel
from nmtgrid.models.transformer.model import Transformer
from nmtgrid.training.api import LossParts
from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings
from tests.unit.helpers.tiny_transformer import tiny


@pytest.mark.parametrize(
    ("weighting", "shares"),
    [
        ("uniform", [1, 1, 1, 1]),
        ("linear", [1, 2, 3, 4]),
        ("root", [1, math.sqrt(2), math.sqrt(3), 2]),
        ("inverse-root", [1, 1 / math.sqrt(2), 1 / math.sqrt(3), 1 / 2]),
        ("inverse", [1, 1 / 2, 1 / 3, 1 / 4]),
    ],
)
def test_weights_are_in_proportion_to_the_powers(weighting: Weighting, shares: list[float]) -> None:
    expected = [share / sum(shares) for share in shares]
    assert exit_weights(weighting, 4) == pytest.approx(expected)
    assert [sum(exit_weights(weighting, n)) for n in (1, 2, 6)] == pytest.approx([1.0] * 3)


FAMILIES: list[Family] = ["sequence", "multinomial", "geometric"]


def logits(family: Family) -> torch.Tensor:
    draw = torch.Generator().manual_seed(2)
    return 2 * torch.randn(7, 3 if family == "geometric" else 4, generator=draw)


@pytest.mark.parametrize("family", FAMILIES)
def test_distributions_and_their_losses(family: Family) -> None:
    actual = exit_log_probabilities(logits(family), family)
    assert actual.shape == (7, 4)
    torch.testing.assert_close(actual.exp().sum(-1), torch.ones(7))
    drawn = logits(family).requires_grad_()
    exits = torch.tensor([1, 2, 3, 4, 4, 1, 2])
    actual = exit_loss(drawn, exits, family)
    known = exit_log_probabilities(drawn.detach(), family)
    expected = [-float(known[m, n - 1]) for m, n in enumerate(exits)]
    assert actual.tolist() == pytest.approx(expected)
    actual.sum().backward()
    assert drawn.grad is not None and bool(drawn.grad.isfinite().all())
    drawn = logits(family).sign() * 200
    assert bool(exit_loss(drawn.half(), torch.full((7,), 2), family).isfinite().all())


def test_geometric_probabilities_are_those_of_trials() -> None:
    """Eq. (5.21): the first n - 1 trials fail, the n-th succeeds."""
    drawn = logits("geometric")
    actual = exit_log_probabilities(drawn, "geometric").exp()
    for row, chances in enumerate(drawn.sigmoid().tolist()):
        for n in range(4):
            failed = math.prod(1 - chance for chance in chances[:n])
            expected = failed * (chances[n] if n < 3 else 1.0)
            assert float(actual[row, n]) == pytest.approx(expected, rel=1e-5)


def test_predictions_by_hand() -> None:
    rows = [list(row) for row in itertools.product((-1.0, 1.0), repeat=2)]
    assert predicted_exits(torch.tensor(rows), "geometric").tolist() == [3, 2, 1, 1]
    assert predicted_exits(torch.tensor([[0.0]]), "geometric").tolist() == [2]  # 0.5 is not above
    assert predicted_exits(torch.tensor([[0.0, 2.0, 1.0]]), "multinomial").tolist() == [2]
    assert gradient_scales(0.5, 4) == [1.5, 1.0, 0.5, 1.0] and gradient_scales(0.5, 1) == [1.0]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_source_is_encoded_once(family: Family) -> None:
    model = tiny(exits="tied", halting=family, dropout=0.3).train()
    calls: list[object] = []
    model.encoder[0].register_forward_hook(lambda *call: calls.append(call))
    CompoundLoss(HaltingSettings()).loss(model, BATCH)
    assert len(calls) == 1


BATCH = collate([[5, 6, 7], [8], []], [[4, 5], [6, 7, 4, 9], [5]])
TARGETS = (3, 5, 2)
EXITS = 3


def model(**changes: Any) -> ExitModel:
    transformer = tiny(**{"exits": "separate", **changes})
    assert isinstance(transformer, ExitModel)
    return transformer


def log_p(network: ExitModel) -> Tensor:
    """Return log-probabilities [M, N, V] of all exits at all target positions."""
    states = network.exit_features(BATCH, PredictionSites.offline(BATCH))
    rows = []
    for exit, state in enumerate(states, 1):
        output = network.classifier(exit)
        logits = state @ output.weight.t()
        rows.append((logits if output.bias is None else logits + output.bias).log_softmax(-1))
    return torch.stack(rows, 1)


def targets() -> Tensor:
    return torch.cat([row[:size] for row, size in zip(BATCH.target_output, TARGETS, strict=True)])


def costs(values: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the smoothed cross-entropies [M, N] of log-probabilities [M, N, V]."""
    true = values[torch.arange(len(values)), :, targets()]
    return -(1 - smoothing) * true - smoothing * values.mean(-1)


def parameters_of(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def gradients(value: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of `value`, zero where it does not depend on something."""
    parts = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
    return [
        torch.zeros_like(parameter) if part is None else part
        for parameter, part in zip(parameters, parts, strict=True)
    ]


def assert_same(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("exits", ["tied", "separate"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("weights", ["uniform", "linear", "inverse"])
def test_aligned_is_the_weighted_sum(exits: str, norm: str, weights: Weighting) -> None:
    network = model(exits=exits, norm=norm)
    parts = Aligned(AlignedSettings(weights=weights, label_smoothing=0.2)).loss(network, BATCH)
    values = log_p(network)
    shares = torch.tensor(exit_weights(weights, EXITS))
    expected = (costs(values, 0.2) @ shares).sum()
    torch.testing.assert_close(parts.total, expected)
    reported = [float(parts.extra[f"nll_exit_{exit}"]) for exit in range(1, EXITS + 1)]
    assert reported == pytest.approx(costs(values).sum(0).tolist(), rel=1e-5)
    assert float(parts.nll) == pytest.approx(reported[-1]) and parts.tokens == sum(TARGETS)
    every = parameters_of(network)
    assert_same(gradients(parts.total, every), gradients(expected, every))


@pytest.mark.parametrize("exits", ["tied", "separate"])
def test_earlier_exits_learn_from_the_last_which_is_held_fixed(exits: str) -> None:
    network = model(exits=exits)
    settings = AlignedSettings(weights="linear", label_smoothing=0.2, distillation=0.6)
    parts = Aligned(settings).loss(network, BATCH)
    values = log_p(network)
    shares = torch.tensor(exit_weights("linear", EXITS))
    fixed = values[:, -1:].detach()
    divergence = (fixed.exp() * (fixed - values)).sum(2)
    assert bool((divergence[:, :-1] > 1e-6).all())
    divergence = divergence[:, :-1] @ shares[:-1]
    expected = (costs(values, 0.2) @ shares).sum() + 0.6 * divergence.sum()
    torch.testing.assert_close(parts.total, expected)
    every = parameters_of(network)
    assert_same(gradients(parts.total, every), gradients(expected, every))


@pytest.mark.parametrize("exits", ["tied", "separate"])
@pytest.mark.parametrize("kind", ["aligned", "mixed"])
def test_before_its_share_of_the_run_the_last_exit_alone_is_trained(exits: str, kind: str) -> None:
    """With the loss and the gradients of maximum likelihood; from there on, all exits are."""
    network = model(exits=exits)
    shared: dict[str, Any] = {"label_smoothing": 0.2, "distillation": 0.6}
    late: Aligned | Mixed
    if kind == "aligned":
        late = Aligned(AlignedSettings("linear", exits_from=0.5, **shared))
        whole = Aligned(AlignedSettings("linear", **shared)).loss(network, BATCH)
    else:
        late = Mixed(MixedSettings(2, exits_from=0.5, **shared))
        whole = Mixed(MixedSettings(2, **shared)).loss(network, BATCH)
    plain = Likelihood(LikelihoodSettings(label_smoothing=0.2)).loss(network, BATCH)
    parts = late.loss(network, dataclasses.replace(BATCH, fraction_done=0.49))
    every = parameters_of(network)
    torch.testing.assert_close(parts.total, plain.total)
    torch.testing.assert_close(parts.nll, plain.nll)
    assert_same(gradients(parts.total, every), gradients(plain.total, every))
    assert parts.tokens == sum(TARGETS) and parts.extra == {}
    # Without a share it is a validation, where all exits count.
    for share in (0.5, 0.9, None):
        parts = late.loss(network, dataclasses.replace(BATCH, fraction_done=share))
        torch.testing.assert_close(parts.total, whole.total)
        torch.testing.assert_close(parts.nll, whole.nll)
        assert_same(gradients(parts.total, every), gradients(whole.total, every))
        assert parts.extra.keys() == whole.extra.keys()
    assert float(whole.total.detach()) > 1.05 * float(plain.total.detach())


def test_the_best_weights_are_those_of_all_exits_where_they_are_trained_late() -> None:
    network = model()
    parts = Aligned(AlignedSettings("linear", exits_from=0.5)).loss(network, BATCH)
    expected = (costs(log_p(network)) @ torch.tensor(exit_weights("linear", EXITS))).sum()
    assert parts.criterion is not None
    torch.testing.assert_close(parts.criterion, expected.detach())
    assert Aligned(AlignedSettings("linear")).loss(network, BATCH).criterion is None


@pytest.mark.parametrize("rotation", [1, 2, 3])
def test_each_update_trains_some_of_the_exits_in_turn(rotation: int) -> None:
    """The loss of those alone, and on average over a turn that of all, gradients too."""
    network = model(decoder_depth=4, exits="tied")
    settings = AlignedSettings("linear", label_smoothing=0.2, distillation=0.6)
    whole = Aligned(settings).loss(network, BATCH)
    objective = Aligned(dataclasses.replace(settings, rotation=rotation))
    values, every = log_p(network), parameters_of(network)
    totals, trained = [], []
    for update in range(5, 8):
        parts = objective.loss(network, dataclasses.replace(BATCH, update=update))
        names = {int(name.removeprefix("nll_exit_")) for name in parts.extra}
        assert len(names) == rotation + 1 and 4 in names
        reported = [float(parts.extra[f"nll_exit_{n}"]) for n in sorted(names)]
        expected = [float(costs(values)[:, n - 1].sum().detach()) for n in sorted(names)]
        assert reported == pytest.approx(expected, rel=1e-5)
        totals.append(parts.total)
        trained += sorted(names - {4})
    assert sorted(trained) == sorted([1, 2, 3] * rotation)
    mean = torch.stack(totals).mean()
    torch.testing.assert_close(mean, whole.total)
    assert_same(gradients(mean, every), gradients(whole.total, every))
    with torch.no_grad():
        assert len(objective.loss(network, BATCH).extra) == 4


def test_scaled_gradients_of_exits_in_turn() -> None:
    network = model(exits="tied")
    settings = AlignedSettings(gradient_ratio=0.7)
    whole = Aligned(settings).loss(network, BATCH)
    objective = Aligned(dataclasses.replace(settings, rotation=1))
    losses = [
        objective.loss(network, dataclasses.replace(BATCH, update=update)).total
        for update in range(2)
    ]
    every = parameters_of(network)
    mean = torch.stack(losses).mean()
    assert_same(gradients(mean, every), gradients(whole.total, every))


def test_no_more_exits_in_turn_than_there_are() -> None:
    Aligned(AlignedSettings(rotation=2)).check(model())
    with pytest.raises(ConfigError, match=r"rotation=3.* before its last one \(2\)"):
        Aligned(AlignedSettings(rotation=3)).check(model())


K = torch.tensor([2, 1, 1])


@torch.no_grad()
def log_p_along(network: ExitModel) -> Tensor:
    """Return log-probabilities [M, N, V] of each exit, written step by step along wait-K."""
    rows = []
    for exit in range(1, EXITS + 1):
        state = network.begin(BATCH.source, BATCH.source_lengths)
        steps = []
        for position, tokens in enumerate(BATCH.target_input.unbind(1)):
            reads = torch.minimum(K + position, BATCH.source_lengths)
            step = network.step(tokens, state, reads=reads, halt=FixedExit(exit))
            steps.append(step.logits.log_softmax(-1))
            state = step.state
        values = torch.stack(steps, 1)
        rows.append(torch.cat([row[:size] for row, size in zip(values, TARGETS, strict=True)]))
    return torch.stack(rows, 1)


def limited(exits: str, **changes: Any) -> ExitModel:
    return model(exits=exits, encoder="unidirectional", **changes)


@pytest.mark.parametrize("exits", ["tied", "separate"])
def test_training_with_what_wait_k_has_read(exits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All three objectives, against decoding along those paths."""
    monkeypatch.setattr("nmtgrid.adaptive.objectives.sample_k", lambda *_, **__: K)
    network, shares = limited(exits), torch.tensor(exit_weights("linear", EXITS))
    values = log_p_along(network)
    assert float((values - log_p(network)).detach().abs().max()) > 0.01, "reading matters"
    settings = AlignedSettings("linear", label_smoothing=0.2, reads="sampled")
    parts = Aligned(settings).loss(network, BATCH)
    expected = (costs(values, 0.2) @ shares).sum()
    torch.testing.assert_close(parts.total, expected)
    scaled = dataclasses.replace(settings, gradient_ratio=0.5)
    torch.testing.assert_close(Aligned(scaled).loss(network, BATCH).total, expected)
    # Tokens of one sentence that all leave together are aligned.
    for exit in range(1, EXITS + 1):
        monkeypatch.setattr(
            "nmtgrid.adaptive.objectives.draw_exits",
            lambda like, *_, exit=exit: torch.full_like(like, exit),
        )
        mixed = MixedSettings(label_smoothing=0.2, reads="sampled", distillation=0.6)
        fixed = values[:, -1].detach()
        divergence = (fixed.exp() * (fixed - values[:, exit - 1])).sum()
        torch.testing.assert_close(
            Mixed(mixed).loss(network, BATCH).total,
            costs(values, 0.2)[:, exit - 1].sum() + 0.6 * divergence,
        )
    network = limited(exits, halting="geometric")
    parts = compound(network, reads="sampled", alpha=0.7, label_smoothing=0.2)
    values = log_p_along(network)
    reported = [float(parts.extra[f"nll_exit_{exit}"]) for exit in range(1, EXITS + 1)]
    assert reported == pytest.approx(costs(values).sum(0).tolist(), rel=1e-5)
    oracle = best_exits(-costs(values).detach(), "geometric", 0.0, 0.0)
    assert float(parts.extra["oracle_exit"]) == float(oracle.sum())


def test_drawn_reads_and_models_that_must_see_the_whole_source() -> None:
    network, objective = limited("tied"), Aligned(AlignedSettings(reads="sampled"))
    assert objective.loss(network, BATCH).nll == objective.loss(network, BATCH).nll
    network.train()
    assert len({float(objective.loss(network, BATCH).nll) for _ in range(6)}) > 1
    objective.check(network)
    with pytest.raises(ConfigError, match="whole source"):
        CompoundLoss(HaltingSettings(reads="sampled")).check(limited("tied", halting="sequence"))


@pytest.mark.parametrize("exits", ["tied", "separate"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("ratio", [0.5, 1.1])
@pytest.mark.parametrize("weights", ["uniform", "linear"])
def test_the_exact_ratio_scales_each_blocks_own_gradient(
    exits: str, norm: str, ratio: float, weights: Weighting
) -> None:
    """Block n gets gamma_n times its own loss's gradient and the later ones'; others as before."""
    network = model(exits=exits, norm=norm)
    settings = AlignedSettings(weights=weights, gradient_ratio=ratio, label_smoothing=0.2)
    parts = Aligned(settings).loss(network, BATCH)
    plain = Aligned(AlignedSettings(weights=weights, label_smoothing=0.2)).loss(network, BATCH)
    torch.testing.assert_close(parts.total, plain.total)
    own = costs(log_p(network), 0.2).sum(0) * torch.tensor(exit_weights(weights, EXITS))
    for n in range(1, EXITS + 1):
        expected = (ratio * (EXITS - n) if n < EXITS else 1.0) * own[n - 1] + own[n:].sum()
        assert_same(block_gradients(parts.total, network, n), block_gradients(expected, network, n))
    inside = {id(part) for module in decoder_parts(network) for part in module.parameters()}
    others = [part for part in parameters_of(network) if id(part) not in inside]
    assert_same(gradients(parts.total, others), gradients(plain.total, others))


def blocks_of(network: TranslationModel) -> list[nn.Module]:
    return [stage for name, stage in network.stages().items() if name.startswith("decoder.")][1:]


def decoder_parts(network: TranslationModel) -> list[nn.Module]:
    """Return the blocks and what makes keys and values of the source for all of them."""
    assert isinstance(network, Transformer)
    return [*blocks_of(network), network.source_projection]


def block_gradients(value: Tensor, network: TranslationModel, n: int) -> list[Tensor]:
    """Return the gradients of block n's parameters, its keys and values of the source too."""
    shared = gradients(value, parameters_of(decoder_parts(network)[-1]))
    inside = gradients(value, parameters_of(blocks_of(network)[n - 1]))
    return inside + [part.chunk(EXITS)[n - 1] for part in shared]


def test_the_printed_ratio_and_validation() -> None:
    """Algorithm 2 scales all that reaches block n by gamma_n, its own loss and the later ones."""
    network = model()
    plain = Aligned(AlignedSettings("linear")).loss(network, BATCH)
    parts = Aligned(AlignedSettings("linear", 0.7, "printed")).loss(network, BATCH)
    torch.testing.assert_close(parts.total, plain.total)
    for n, scale in enumerate([1.4, 0.7, 1.0], 1):
        expected = [scale * part for part in block_gradients(plain.total, network, n)]
        assert_same(block_gradients(parts.total, network, n), expected)
    with torch.no_grad():
        parts = Aligned(AlignedSettings(gradient_ratio=0.5)).loss(network, BATCH)
        plain = Aligned(AlignedSettings()).loss(network, BATCH)
    assert float(parts.total) == pytest.approx(float(plain.total))


def mixed_costs(
    network: ExitModel, depth: Tensor, smoothing: float, distillation: float = 0.0
) -> Tensor:
    """Return the costs [M] along one sequence of exits [M] of each sentence."""
    fixed = log_p(network)[:, -1].detach()
    sites = PredictionSites.offline(BATCH)
    sites = PredictionSites(sites.sentence, sites.position, depth=depth, mixed=True)
    features, smoothed = network.features(BATCH, sites), []
    for index, exit in enumerate(depth.tolist()):
        output = network.classifier(exit)
        values = nn.functional.linear(features[index], output.weight, output.bias).log_softmax(0)
        true = values[targets()[index]]
        divergence = (fixed[index].exp() * (fixed[index] - values)).sum() * (exit < EXITS)
        cost = -(1 - smoothing) * true - smoothing * values.mean()
        smoothed.append(cost + distillation * divergence)
    return torch.stack(smoothed)


@pytest.mark.parametrize("exits", ["tied", "separate"])
@pytest.mark.parametrize(("sequences", "distillation"), [(1, 0.0), (3, 0.0), (1, 0.6), (2, 0.6)])
def test_mixed_is_the_mean_over_drawn_sequences(
    exits: str, sequences: int, distillation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = model(exits=exits).train()
    draw = torch.Generator().manual_seed(3)
    # The order in the batch: the sequences of one sentence beside each other.
    drawn = [[torch.randint(1, 4, (size,), generator=draw) for _ in range(sequences)]
             for size in TARGETS]  # fmt: skip
    flat = torch.cat(list(itertools.chain.from_iterable(drawn)))
    monkeypatch.setattr("nmtgrid.adaptive.objectives.draw_exits", lambda *_: flat)
    settings = MixedSettings(sequences, distillation=distillation, label_smoothing=0.2)
    parts = Mixed(settings).loss(network, BATCH)
    along = [torch.cat([drawn[sentence][m] for sentence in range(3)]) for m in range(sequences)]
    expected = torch.stack(
        [mixed_costs(network, depth, 0.2, distillation).sum() for depth in along]
    ).mean()
    torch.testing.assert_close(parts.total, expected)
    reported = torch.stack([mixed_costs(network, depth, 0.0).sum() for depth in along]).mean()
    torch.testing.assert_close(parts.nll, reported.detach())
    assert parts.tokens == sum(TARGETS)
    assert float(parts.extra["average_exit"]) == pytest.approx(float(flat.sum()) / sequences)
    every = parameters_of(network)
    assert_same(gradients(parts.total, every), gradients(expected, every))


def test_draws_of_training_and_thresholds_of_validation() -> None:
    network, objective = model(), Mixed(MixedSettings(2))
    assert objective.loss(network, BATCH).nll == objective.loss(network, BATCH).nll
    network.train()
    assert len({float(objective.loss(network, BATCH).nll) for _ in range(4)}) > 1
    network = model(halting="geometric")
    early, late = (compound(network, validate_threshold=at) for at in (0.0, 1.0))
    assert float(early.nll) == pytest.approx(float(early.extra["nll_exit_1"]))
    assert float(late.nll) == pytest.approx(float(late.extra["nll_exit_3"]))
    assert float(late.extra["average_exit"]) == EXITS * sum(TARGETS)


def compound(network: ExitModel, **settings: Any) -> LossParts:
    return CompoundLoss(HaltingSettings(**settings)).loss(network, BATCH)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("halting", FAMILIES)
@pytest.mark.parametrize("oracle", ["likelihood", "correctness"])
@pytest.mark.parametrize(("depth_penalty", "sigma"), [(0.0, 0.0), (0.3, 0.0), (0.1, 3.0)])
def test_compound_is_the_formula(
    norm: str, halting: Family, oracle: OracleScore, depth_penalty: float, sigma: float
) -> None:
    """Eq. (5.10): decoding, plus alpha times the sum over tokens of H(q*_t, q_t)."""
    network = model(halting=halting, norm=norm)
    chosen_by = {"oracle": oracle, "depth_penalty": depth_penalty, "sigma": sigma}
    parts = compound(network, alpha=0.7, label_smoothing=0.2, kernel="normalised", **chosen_by)
    values = log_p(network)
    nll = costs(values).detach()
    hits = (values.argmax(-1) == targets()[:, None]).double()
    expected = best_exits(-nll if oracle == "likelihood" else hits, halting, depth_penalty, sigma)
    sites = PredictionSites.offline(BATCH)
    logits = network.halting_logits(BATCH, network.exit_features(BATCH, sites))
    if halting == "sequence":
        logits = logits[sites.sentence]
    chosen = exit_log_probabilities(logits, halting).gather(1, expected[:, None] - 1)
    total = costs(values, 0.2).mean(1).sum() - 0.7 * chosen.sum()
    torch.testing.assert_close(parts.total, total)
    wanted_least = costs(values).mean(1).sum() - 0.7 * chosen.sum()
    torch.testing.assert_close(parts.criterion, wanted_least.detach())
    taken = predicted_exits(logits, halting)
    along = nll.gather(1, taken[:, None] - 1).sum()
    assert float(parts.nll) == pytest.approx(float(along), rel=1e-5)
    logged = [float(parts.extra[name]) for name in ("average_exit", "oracle_exit", "agreement")]
    assert logged == [float(each.sum()) for each in (taken, expected, taken == expected)]
    assert float(parts.extra["nll_exit_2"]) == pytest.approx(float(nll[:, 1].sum()), rel=1e-5)
    every = parameters_of(network)
    assert_same(gradients(parts.total, every), gradients(total, every))


def best_exits(scores: Tensor, halting: Family, depth_penalty: float, sigma: float) -> Tensor:
    """Return the oracle's exits [M], each sentence by itself."""
    chosen = []
    for part in scores.split(TARGETS):
        options = part[None], torch.tensor([len(part)]), depth_penalty
        if halting == "sequence":
            chosen.append(sequence_oracle(*options).expand(len(part)))
        else:
            chosen.append(token_oracle(*options, sigma, "normalised")[0])
    return torch.cat(chosen)


def test_models_that_an_objective_does_not_train(capsys: pytest.CaptureFixture[str]) -> None:
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
    for objective in (Aligned(AlignedSettings()), Mixed(MixedSettings())):
        with pytest.raises(ConfigError, match=r"halting=geometric.*would not train"):
            objective.check(model(halting="geometric"))
    likelihood = Likelihood(LikelihoodSettings())
    likelihood.check(model(exits="tied"))
    assert capsys.readouterr().err == ""
    likelihood.check(model(exits="separate", halting="sequence"))
    message = " ".join(capsys.readouterr().err.split())
    assert "`model.exits=separate`" in message and "`model.halting=sequence`" in message
    likelihood.check(model(exits="separate"))
    message = " ".join(capsys.readouterr().err.split())
    assert "does not train the classifiers" in message and "predictor (" not in message


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (AlignedSettings(gradient_ratio=-1, label_smoothing=1), ["smoothing", "gradient_ratio"]),
        (MixedSettings(sequences=0, distillation=-1), ["distillation", "sequences"]),
        (AlignedSettings(exits_from=1), ["exits_from"]),
        (HaltingSettings(alpha=-1, depth_penalty=float("inf"), sigma=-0.1, validate_threshold=2),
         ["alpha", "depth_penalty", "sigma", "validate_threshold"]),
    ],
)  # fmt: skip
def test_faulty_settings_are_all_named(settings: Any, names: list[str]) -> None:
    faults = settings.faults()
    assert len(faults) == len(names)
    for name, fault in zip(names, faults, strict=True):
        assert name in fault
