"""Gradients between the layers: by hand, and without a trace in the run that is watched."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nmtgrid.base.devices import random_states
from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import Batch, collate
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites, Traits, TranslationModel
from nmtgrid.training import events
from nmtgrid.training.api import LossParts
from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings
from nmtgrid.training.metrics_log import MetricsLog
from nmtgrid.training.prepare import check_parts
from nmtgrid.training.settings import RunSettings, TrainingSettings
from nmtgrid.training.trained_model import TrainedModel
from nmtgrid.training.update import GradientWatch, Updater, gradient_ratio
from tests.invariants.helpers import Case, basic_cases, batch_for, frozen_statistics
from tests.unit.helpers.tiny_run import TYPES, Sentences, TinyConfig, TinyModel, trainer

CPU = torch.device("cpu")


class Scale(nn.Module):
    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.weight * hidden


class Chain(TranslationModel):
    """h_0 = 1 for each target position, h_n = w_n h_{n-1}, and an idle layer."""

    architecture = "chain"

    def __init__(self, *weights: float, recomputed: bool = False) -> None:
        super().__init__()
        self.traits = Traits()
        self.recomputed = recomputed
        self.embedding = nn.Embedding(TYPES, 1)
        nn.init.ones_(self.embedding.weight)
        self.layers = nn.ModuleList(Scale(weight) for weight in weights)
        self.idle = Scale(1.0)

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        hidden = self.embedding(batch.target_input)
        self.idle(hidden)
        for layer in self.layers:
            if self.recomputed:
                hidden = checkpoint(layer, hidden, use_reentrant=False)
            else:
                hidden = layer(hidden)
        features: Tensor = hidden[sites.sentence, sites.position]
        return features

    def stages(self) -> dict[str, nn.Module]:
        layers = {f"encoder.{number}": layer for number, layer in enumerate(self.layers, 1)}
        return {"encoder.0": self.embedding, **layers, "decoder.1": self.idle}


class Sum:
    """The loss is the sum of the features at all target positions."""

    def check(self, model: TranslationModel) -> None:
        pass

    def agent(self) -> None:
        pass

    def loss(self, model: TranslationModel, batch: Batch) -> LossParts:
        total = model.features(batch, PredictionSites.offline(batch)).sum()
        return LossParts(total, int(batch.target_lengths.sum()), total.detach())


def norms_of(
    model: TranslationModel, batches: list[Batch], objective: Any = None
) -> dict[str, float]:
    """Return the norms of the gradients of one update on these batches."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0, fused=True)
    objective = objective or Likelihood(LikelihoodSettings())
    updater = Updater(TrainedModel(model, objective), optimiser, CPU, bf16=False, clip_norm=0.0)
    norms = updater.apply(batches, 0.0, GradientWatch(model)).gradients
    assert norms is not None
    return norms


def measured(
    model: TranslationModel, *sizes: tuple[int, ...], objective: Any = None
) -> dict[str, float]:
    """Return the norms of one update on batches with targets of these lengths."""
    batches = [collate([[4]] * len(size), [[5] * length for length in size]) for size in sizes]
    return norms_of(model, batches, objective or Sum())


@pytest.mark.parametrize("recomputed", [False, True])
def test_norms_are_those_computed_by_hand(recomputed: bool) -> None:
    # Nine target tokens (2 + 5, with end symbols 3 + 6) and the slope of each position is 1 at
    # h_3, 5 at h_2, 5 * 0.5 at h_1 and 5 * 0.5 * 3 at h_0. Three of twelve positions are padding.
    norms = measured(Chain(3.0, 0.5, 5.0, recomputed=recomputed), (2, 5))
    root = math.sqrt(9) / 9
    expected = {
        "encoder.0": 7.5 * root, "encoder.1": 2.5 * root, "encoder.2": 5.0 * root,
        "encoder.3": root, "decoder.1": 0.0,
    }  # fmt: skip
    assert list(norms) == list(expected)
    assert norms == pytest.approx(expected, rel=1e-6)
    assert gradient_ratio(norms) == pytest.approx(2.5)
    # Micro-batches are one batch.
    whole = measured(Chain(3.0, 0.5, recomputed=recomputed), (2, 5, 1))
    parts = measured(Chain(3.0, 0.5, recomputed=recomputed), (5,), (1, 2))
    assert parts == pytest.approx(whole, rel=1e-6)
    assert whole["encoder.2"] == pytest.approx(math.sqrt(11) / 11)


def test_what_was_measured_before_memory_ran_out_does_not_count() -> None:
    class Once(Sum):
        refused = 0

        def loss(self, model: TranslationModel, batch: Batch) -> LossParts:
            features = model.features(batch, PredictionSites.offline(batch))
            if len(batch) > 2:
                weight = model.get_parameter("embedding.weight")

                def refuse(_: Tensor) -> None:
                    handle.remove()
                    Once.refused += 1
                    raise MemoryError

                handle = weight.register_hook(refuse)
            total = features.sum()
            return LossParts(total, int(batch.target_lengths.sum()), total.detach())

    whole = measured(Chain(3.0, 0.5), (2, 5, 1), (4,))
    halved = measured(Chain(3.0, 0.5), (2, 5, 1), (4,), objective=Once())
    assert Once.refused == 1
    assert halved == pytest.approx(whole, rel=1e-6)


def test_what_vanishes_is_still_reported() -> None:
    norms = measured(Chain(2.0, 1e-30, 1.0), (2,))
    assert norms["encoder.1"] == pytest.approx(1e-30 * math.sqrt(3) / 3, rel=1e-5)
    assert gradient_ratio(norms) == pytest.approx(1e-30, rel=1e-5)


class Shared(Chain):
    """One embedding serves both sides, the source first."""

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        source = self.embedding(batch.source).mean(1)
        hidden = source[:, None] + 2.0 * self.embedding(batch.target_input)
        features: Tensor = hidden[sites.sentence, sites.position]
        return features

    def stages(self) -> dict[str, nn.Module]:
        return {"encoder.0": self.embedding, "decoder.0": self.embedding}


def test_a_shared_module_has_a_name_for_each_call() -> None:
    # One source token and its end symbol are averaged: each gets half of 1 + 2 = 3 target slopes.
    norms = measured(Shared(), (2,))
    assert norms["encoder.0"] == pytest.approx(math.sqrt(2 * 1.5**2) / 3)
    assert norms["decoder.0"] == pytest.approx(2 * math.sqrt(3) / 3)


def test_the_ratio_is_that_of_the_encoder() -> None:
    norms = {"decoder.1": 9.0, "encoder.0": 7.0, "encoder.10": 2.0, "encoder.1": 3.0}
    assert gradient_ratio(norms) == 1.5
    assert gradient_ratio({"network.0": 1.0, "network.1": 4.0, "network.2": 8.0}) == 0.5
    assert gradient_ratio({"encoder.1": 1.0, "encoder.2": 0.0}) is None
    assert gradient_ratio({"encoder.0": 1.0}) is None and gradient_ratio({}) is None


class Stages(TinyModel):
    """The tiny model, with its embeddings as stages."""

    def stages(self) -> dict[str, nn.Module]:
        return {"encoder.0": self.source, "decoder.0": self.target}


@pytest.mark.parametrize("bf16", [False, True])
def test_a_watched_run_is_the_same_run(tmp_path: Path, bf16: bool) -> None:
    results, runs = [], []
    for every in (0, 1):
        torch.manual_seed(5)
        run = trainer(
            tmp_path / str(every), model=Stages(TinyConfig(dropout=0.3)), accumulation=2,
            watch_gradients=every,
        )  # fmt: skip
        run.updater.bf16 = bf16
        runs.append(list(run.run()))
        tensors = {f"w|{name}": t for name, t in run.model.state_dict().items()}
        tensors |= {f"s|{name}": t for name, t in random_states(CPU).items()}
        for number, state in enumerate(run.optimiser.state.values()):
            tensors |= {f"o|{number}|{key}": t for key, t in state.items()}
        results.append({name: tensor.clone() for name, tensor in tensors.items()})
    plain, watched = results
    assert plain.keys() == watched.keys()
    assert [name for name in plain if not torch.equal(plain[name], watched[name])] == []
    losses = [[e.loss for e in run if isinstance(e, events.Updated)] for run in runs]
    assert losses[0] == losses[1]
    assert not any(isinstance(event, events.Gradients) for event in runs[0])
    measurements = [event for event in runs[1] if isinstance(event, events.Gradients)]
    assert [event.update for event in measurements] == [1, 2, 3, 4]
    assert all(value > 0 for event in measurements for value in event.gradients.values())


def test_measurements_go_to_the_log(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run", model=Stages(), watch_gradients=3, max_updates=7)
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for event in run.run():
        log.write(event)
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    measurements = [line for line in lines if line["event"] == "gradients"]
    assert [line["update"] for line in measurements] == [1, 3, 6]
    assert set(measurements[0]["gradients"]) == {"encoder.0", "decoder.0"}
    assert measurements[0]["gradient_ratio"] is None and "perplexity" not in measurements[0]
    tokens = sum(line["tokens"] for line in lines if line["event"] == "updated")
    batches = [run.train.batch(taken) for _, (_, taken) in zip(range(7), run.plan.walk(
        type(run.progress.cursor).begin()), strict=False)]  # fmt: skip
    assert tokens == sum(int(batch.target_lengths.sum()) for batch in batches)


def test_hooks_are_there_in_measured_updates_alone(tmp_path: Path) -> None:
    model = Stages()
    for _ in trainer(tmp_path, model=model, watch_gradients=2, max_updates=3).run():
        assert not model.source._forward_hooks and not model.target._forward_hooks


def test_models_without_stages_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before any data are read, when the model is an outline without memory."""
    with pytest.raises(ConfigError, match="`tiny` does not define"):
        trainer(tmp_path, watch_gradients=5)
    assert "watch_gradients" in TrainingSettings(watch_gradients=-1).faults()[0]

    def make(arch: str, config: Any, source: int, target: int) -> TranslationModel:
        assert torch.empty(()).device.type == "meta"
        return TinyModel()

    monkeypatch.setattr(zoo, "from_config", make)
    bare = SimpleNamespace(faults=list)
    watched = RunSettings("tiny", model=bare, training=TrainingSettings(watch_gradients=5))
    with pytest.raises(ConfigError, match="does not define"):
        check_parts(watched, torch.device("cpu"))
    check_parts(RunSettings("tiny", model=bare), torch.device("cpu"))


@pytest.mark.parametrize("case", basic_cases(), ids=str)
def test_every_architecture_is_measured_alike_in_any_batch(case: Case) -> None:
    """Each stage is passed once, is reached by the loss, and padding adds nothing to its norm."""
    model = case.build()
    if not model.stages():
        with pytest.raises(ConfigError, match="does not define"):
            GradientWatch(model)
        return
    batch = batch_for(model, (7, 4, 1), (3, 8, 5))
    with frozen_statistics(model):
        whole = norms_of(model, [batch])
        alone = norms_of(model, [batch.select(torch.tensor([row])) for row in range(3)])
    assert list(whole) == list(model.stages())
    assert all(0 < norm < math.inf for norm in whole.values())
    assert alone == pytest.approx(whole, rel=1e-4)
    assert gradient_ratio(whole) is not None


def test_the_transformer_has_a_stage_for_each_block() -> None:
    torch.manual_seed(2)
    sizes = {"encoder_depth": 3, "decoder_depth": 2, "size": 8, "heads": 2, "feed_forward_size": 16}
    model = zoo.build("transformer", None, sizes, source_vocab_size=TYPES, target_vocab_size=TYPES)
    norms = norms_of(model, [Sentences().batch(range(6))])
    assert list(norms) == [*(f"encoder.{n}" for n in range(4)), *(f"decoder.{n}" for n in range(3))]
    assert gradient_ratio(norms) == pytest.approx(norms["encoder.1"] / norms["encoder.3"])
