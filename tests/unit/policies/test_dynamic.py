"""The joint objective of writing and reading, cell by cell; what weights are chosen by."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nmtgrid.adaptive.halting_objective import CompoundLoss, HaltingSettings
from nmtgrid.analysis.training_curves import NAME, read_run
from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.arrays import load_tensors
from nmtgrid.cli.app import main
from nmtgrid.cli.objectives import objectives
from nmtgrid.cli.train.run import print_event
from nmtgrid.data.batches import collate
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.online.objectives.dynamic import Dynamic, DynamicSettings
from nmtgrid.online.policies import Threshold
from nmtgrid.training import events
from nmtgrid.training.api import LossParts
from nmtgrid.training.distributed import Processes
from nmtgrid.training.metrics_log import MetricsLog
from nmtgrid.training.settings import BatchSettings
from nmtgrid.training.validate import Score, SplitValidator
from tests.unit.adaptive.test_exit_objectives import BATCH as EXIT_BATCH
from tests.unit.adaptive.test_exit_objectives import model as with_halting
from tests.unit.helpers.tiny_run import Scores, trainer
from tests.unit.policies.all_paths import all_paths
from tests.unit.training.test_validate import CPU, data

__all__ = ["data"]

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
    alone = BATCH.select(torch.tensor([sentence]))
    site = PredictionSites(torch.tensor([0]), torch.tensor([t]), torch.tensor([reads]))
    return model.classify(model.features(alone, site))[0].log_softmax(0).detach()


def cost(model: TranslationModel, sentence: int, t: int, reads: int) -> float:
    return -float(log_p(model, sentence, t, reads)[BATCH.target_output[sentence, t]])


def best_path(model: TranslationModel, sentence: int, delay_weight: float) -> tuple[int, ...]:
    source = SOURCES[sentence]

    def total(path: tuple[int, ...]) -> float:
        return along(model, sentence, path) + delay_weight * sum(path) / source

    return min(all_paths(source, TARGETS[sentence]), key=total)


def decision(model: TranslationModel, sentence: int, t: int, reads: int, enough: int) -> float:
    """Return the agent's loss at a cell: it should read if fewer than `wanted` tokens are read."""
    rho = float(model.reading(BATCH)[sentence, t, reads - 1].detach().sigmoid())
    return -math.log(rho if reads < enough else 1 - rho)


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
    parts = run(model, validate_threshold=threshold)
    expected = sum(along(model, sentence, path) for sentence, path in enumerate(paths))
    assert float(parts.nll) == pytest.approx(expected, rel=1e-5)
    shares = (z / SOURCES[sentence] for sentence, path in enumerate(paths) for z in path)
    assert float(parts.extra["agent_reads"]) == pytest.approx(sum(shares))


@pytest.mark.parametrize("delay_weight", [0.0, 3.0])
@pytest.mark.parametrize("reader", ["own", "shared"])
def test_the_loss_is_the_formula(reader: str, delay_weight: float) -> None:
    """Eq. (4.45) and (4.46), smoothed, with the oracle's path found by enumeration."""
    model = grid(reader=reader)
    parts = run(model, delay_weight=delay_weight, alpha=0.7, beta=1.3, label_smoothing=0.2)
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
    assert float(parts.total.detach()) == pytest.approx(0.7 * write + 1.3 * read, rel=1e-5)
    assert float(parts.extra["oracle_nll"]) == pytest.approx(best, rel=1e-5)
    assert parts.tokens == sum(TARGETS)
    extra = {name: float(value) for name, value in parts.extra.items()}
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
    parts = run(model, write="path", agent_area="path", label_smoothing=0.0)
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
    assert float(parts.total.detach()) == pytest.approx(write + read, rel=1e-5)
    assert float(parts.extra["oracle_nll"]) == pytest.approx(write, rel=1e-5)
    assert int(parts.extra["write_cells"]) == sum(TARGETS)


def test_the_agents_hits_are_decisions() -> None:
    model = grid()
    with torch.no_grad():
        for name, parameter in model.reader.decision.named_parameters():  # type: ignore[union-attr]
            parameter.fill_(-1.0 if name == "bias" else 0.0)
    # An agent that never reads is right on z* and right of it, but in the last column.
    pairs = [(SOURCES[sentence], z) for sentence in EVERY for z in best_path(model, sentence, 0.0)]
    extra = run(model).extra
    assert int(extra["agent_hits"]) == sum(source - z for source, z in pairs)
    assert int(extra["agent_cells"]) == sum(source - 1 for source, _ in pairs)


def gradients(model: TranslationModel, **settings: Any) -> set[str]:
    model.zero_grad(set_to_none=True)
    run(model, **settings).total.backward()
    moved = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
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
    is_same = []
    for changes in ({}, {"reader_detached": True}):
        model = grid(reader=reader, **changes)
        rows = []
        for settings in ({}, {"beta": 0.0}):
            model.zero_grad(set_to_none=True)
            run(model, **settings).total.backward()
            assert isinstance(model.grid_map, torch.nn.Parameter)
            assert model.grid_map.grad is not None
            rows.append(model.grid_map.grad)
        is_same.append(torch.allclose(rows[0], rows[1], atol=1e-6))
    assert is_same == ([True, True] if reader == "own" else [False, True])


def test_weights_scale_and_batches_add_up() -> None:
    model = grid()
    whole = float(run(model, alpha=2.0, beta=3.0).total.detach())
    write = float(run(model, beta=0.0).total.detach())
    read = float(run(model, alpha=0.0).total.detach())
    assert whole == pytest.approx(2 * write + 3 * read, rel=1e-5)
    assert read == pytest.approx(float(run(model).extra["agent_loss"]))
    at_once = run(model)
    halves = [
        Dynamic(DynamicSettings()).loss(model, BATCH.select(torch.tensor(rows)))
        for rows in ([0], [1, 2])
    ]
    torch.testing.assert_close(halves[0].total + halves[1].total, at_once.total)
    for name, value in at_once.extra.items():
        assert float(value) == pytest.approx(sum(float(h.extra[name]) for h in halves), rel=1e-5)
    model = grid().eval()
    with torch.no_grad():
        parts = run(model)
    assert not parts.total.requires_grad
    torch.testing.assert_close(parts.total, run(model).total.detach())


@pytest.mark.parametrize("reader", ["own", "shared"])
def test_what_has_no_weight_does_not_run(reader: str) -> None:
    model = grid(reader=reader)
    calls: list[str] = []
    model.network.register_forward_hook(lambda *_: calls.append("model"))  # type: ignore[union-attr]
    decision = model.reader.decision  # type: ignore[union-attr]
    decision.register_forward_hook(lambda *_: calls.append("reader"))  # type: ignore[union-attr]
    run(model)
    assert sorted(calls) == ["model", "reader"]
    parts = run(model, beta=0.0)
    assert sorted(calls) == ["model", "model", "reader"] and "agent_loss" not in parts.extra
    assert "write_cells" not in run(model, alpha=0.0).extra


def test_the_oracle_sees_dropout() -> None:
    model = grid(output_dropout=0.5)
    torch.manual_seed(3)
    parts = run(model, write="path", beta=0.0, label_smoothing=0.0)
    torch.testing.assert_close(parts.total.detach(), parts.nll)
    assert float(parts.nll) != pytest.approx(float(run(model.eval()).nll), rel=1e-3)


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
    assert Dynamic(DynamicSettings(validate_threshold=0.3)).agent() == Threshold(0.3)
    assert Dynamic(DynamicSettings(beta=0.0)).agent() is None


def test_a_dynamic_agent_begins_from_a_model(tmp_path: Path, toy_dataset: Path) -> None:
    """The pretrained weights are those of the model and of the agent (section 4.5.5)."""
    toy, alone, both = str(toy_dataset), str(tmp_path / "alone"), str(tmp_path / "both")
    options = [
        "model.depth=1", "model.size=8", "model.feed_forward_size=8", "model.source_causal=true",
        "batches.max_tokens=400", "training.validate_sentences=5",
        "training.initial_learning_rate=0", "training.learning_rate=1e-30",
    ]  # fmt: skip
    small = [part for option in options for part in ("--set", option)]
    small += ["--max-updates", "1", "--precision", "fp32"]
    assert main(["train", toy, "--out", alone, *small]) == 0
    agent = ["--objective", "dynamic", "--set", "model.reader=own", "--init", alone]
    assert main(["train", toy, "--out", both, *agent, *small]) == 0
    pretrained = load_tensors(Path(alone) / "model.safetensors")
    initial = load_tensors(Path(both) / "last.safetensors")
    assert {name.split(".")[1] for name in initial if name.startswith("reader.")} > {"network"}
    for name, tensor in initial.items():
        if "decision" not in name:
            torch.testing.assert_close(tensor, pretrained[name.removeprefix("reader.")])
    assert main(["train", toy, "--out", both + "2", *agent[:2], *small]) == 2


class Judged(Scores):
    def score(self, model: TranslationModel) -> Score:
        value = super().score(model).nll
        return Score(10.0 - value, value, {"agreement": 0.5})


def test_the_best_weights_are_those_of_the_least_criterion(tmp_path: Path) -> None:
    tiny = trainer(tmp_path, validator=Judged(3.0, 0.0, 2.0), max_updates=3, validate_updates=1)
    kept: dict[str, Tensor] = {}
    log = MetricsLog(tmp_path / NAME)
    for event in tiny.run():
        log.write(event)
        if isinstance(event, events.Validated):
            assert event.is_best == (event.update <= 2)
            if event.update == 2:
                kept = {name: t.clone() for name, t in tiny.model.state_dict().items()}
    assert isinstance(event, events.Finished)
    assert (event.best_update, event.best_nll, event.best_criterion) == (2, 10.0, 0.0)
    best = load_tensors(tmp_path / "model.safetensors")
    assert all(torch.equal(tensor, kept[name]) for name, tensor in best.items())
    read = read_run(tmp_path / NAME, "run")
    assert read.best is not None and (read.best["update"], read.best["criterion"]) == (2, 0.0)
    lines = [json.loads(line) for line in (tmp_path / NAME).read_text().splitlines()]
    assert [x["extra"] for x in lines if x["event"] == "validated"] == [{"agreement": 0.5}] * 3


def test_patience_and_schedule_go_by_the_criterion(tmp_path: Path) -> None:
    tiny = trainer(
        tmp_path, validator=Judged(3.0, 2.0, 2.5, 2.5, 1.0), max_updates=50, validate_updates=1,
        patience=2, schedule="plateau", decay_patience=0,
    )  # fmt: skip
    *_, last = tiny.run()
    assert isinstance(last, events.Finished) and last.update == 4
    assert tiny.rate.factor < 1


def test_a_run_that_had_no_criterion_gets_one(tmp_path: Path) -> None:
    list(trainer(tmp_path, validator=Scores(0.5), max_updates=1, validate_updates=1).run())
    tiny = trainer(tmp_path, validator=Judged(3.0), max_updates=2, validate_updates=1)
    tiny.resume()
    list(tiny.run())
    assert (tiny.selection.best.update, tiny.selection.best.criterion) == (2, 3.0)


def test_people_are_told(messages: list[str]) -> None:
    event = events.Validated(4, 0, 0.1, 2.0, "last", {"last": 2.0}, None, True, 1.0, None, 3.25)
    with console.progress("") as bar:
        print_event(event, bar)
        print_event(dataclasses.replace(event, criterion=None), bar)
    assert "criterion 3.2500" in messages[0] and "criterion" not in messages[1]


class Counting:
    """An objective whose sums are numbers of sentences and tokens."""

    def check(self, model: TranslationModel) -> None: ...
    def agent(self) -> None: ...
    def loss(self, model: TranslationModel, batch: object) -> LossParts:
        lengths: Tensor = batch.target_lengths  # type: ignore[attr-defined]
        count, tokens = torch.tensor(float(len(lengths))), lengths.sum()
        return LossParts(tokens, int(tokens), 2.0 * tokens, {"each": tokens}, count)


class Second(Processes):
    """One of two processes, of which the other has had no batch."""

    def gather(self, payload: bytes) -> list[bytes]:
        return [b"{}", payload]


@pytest.mark.parametrize("processes", [Processes(), Second()])
def test_a_split_is_scored_by_means_over_its_tokens(data: object, processes: Processes) -> None:
    split = data.split("valid")  # type: ignore[attr-defined]
    validator = SplitValidator(
        data, split, Counting(), BatchSettings(max_tokens=60), CPU, with_quality=False,  # type: ignore[arg-type]
        processes=processes,
    )  # fmt: skip
    tokens = int(split.target_lengths.sum()) + len(split)
    assert validator.score(torch.nn.Linear(1, 1)) == Score(2.0, len(split) / tokens, {"each": 1.0})  # type: ignore[arg-type]


def test_a_dynamic_agent_pays_for_its_delay() -> None:
    model = grid().eval()
    expected = 0.0
    for sentence in EVERY:
        path = agent_path(model, sentence, 0.5)
        expected += along(model, sentence, path)
        # The first read is free.
        expected += sum(0.7 * (reads - 1) / SOURCES[sentence] for reads in path)
    parts = run(model, delay_weight=0.7)
    assert parts.criterion is not None
    assert float(parts.criterion) == pytest.approx(expected, rel=1e-5)
    assert run(model).criterion is None and len(BATCH) == len(EVERY)


def set_chances(model: TranslationModel, chance: float) -> None:
    logit = torch.tensor(chance).logit()
    for name, parameter in model.named_parameters():
        if "halting" in name:
            parameter.data.fill_(float(logit) if name.endswith("bias") else 0.0)


def test_a_predictor_that_never_exits_is_not_the_best() -> None:
    model = with_halting(halting="geometric").eval()
    model.classifier(1).weight.data.mul_(30)  # sure of itself, and wrong
    objective = CompoundLoss(HaltingSettings(depth_penalty=1000.0))
    parts = []
    for chance in (0.999, 0.001):
        set_chances(model, chance)
        parts.append(objective.loss(model, EXIT_BATCH))
    exits, never = parts
    assert float(exits.extra["oracle_exit"]) == float(exits.extra["average_exit"]) == exits.tokens
    assert float(never.extra["average_exit"]) == 3 * never.tokens
    assert float(never.nll) < float(exits.nll)
    assert exits.criterion is not None and never.criterion is not None
    assert float(exits.criterion) < float(never.criterion)
