"""Settings without effect: declarations that hold, and what users are told."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.cli.app import main
from nmtgrid.cli.objectives import objectives
from nmtgrid.models import zoo
from nmtgrid.training.optimiser import LearningRate, make_optimiser
from nmtgrid.training.prepare import Request, resolve
from nmtgrid.training.settings import TrainingSettings
from tests.invariants.helpers import ragged_batch, teacher_forced
from tests.unit.helpers.train_command import TINY_MODEL, train

OF_MODELS = [
    (arch, name)
    for arch in zoo.architectures()
    for name in getattr(zoo.architectures().get(arch).config, "only_with", {})
]
OF_OBJECTIVES = [
    (objective, name)
    for objective in objectives
    for name in objectives.get(objective).settings.only_with
]
READER = {"source_causal": True, "reader": "own"}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "exits-aligned": ("transformer", "toy-exits", {}),
    "exits-halting": ("transformer", "toy-exits", {"halting": "multinomial"}),
}
CHOICES = {
    "optimiser": ("adamw", "adam", "nesterov", "muon"),
    "schedule": ("inverse-sqrt", "cosine", "cosine-time", "plateau", "step", "constant"),
}


def other_value(value: Any) -> Any:
    """A valid value that is another one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return {"none": "tanh", "blocks": "layers", "count": "square-root"}[value]
    return value + 1 if isinstance(value, int) else value / 2 + 0.01


def messages_of(request: Request) -> list[str]:
    return request.without_effect(resolve(request, objectives))


@pytest.mark.parametrize(("arch", "name"), OF_MODELS, ids="-".join)
def test_models_are_the_same_with_any_value(arch: str, name: str) -> None:
    config = zoo.architectures().get(arch).config()
    other, values = config.only_with[name]
    if getattr(config, other) in values:
        changes = {"aggregation": "max", "skip": "residual", "positions": "none"}
        config = dataclasses.replace(config, **{other: changes[other]})
    settings = {other: getattr(config, other)}
    outputs = []
    for value in (getattr(config, name), other_value(getattr(config, name))):
        torch.manual_seed(1)
        changed = {**settings, name: value}
        model = zoo.build(arch, "toy", changed, source_vocab_size=20, target_vocab_size=20).train()
        torch.manual_seed(2)
        batch = ragged_batch((5, 3), (4, 6), 20, 20)
        outputs.append((model.state_dict(), teacher_forced(model, batch)))
    (weights, values), (other_weights, other_values) = outputs
    assert weights.keys() == other_weights.keys()
    assert all(torch.equal(weights[key], other_weights[key]) for key in weights)
    assert torch.equal(values, other_values)


# Of what is not done at all then: translations, shares of a run, averages, second passes. Their
# effects are tested in test_validate.py, test_train_log.py and test_trainer.py.
UNDONE = {"validate_sentences", "validate_share", "ema_updates", "r_drop_from"}


@pytest.mark.parametrize("name", sorted(TrainingSettings.only_with.keys() - UNDONE))
def test_training_is_the_same_with_any_value(name: str) -> None:
    other, values = TrainingSettings.only_with[name]
    assert isinstance(values, tuple)
    idle = [choice for choice in CHOICES[other] if choice not in values]
    assert idle and len(idle) + len(values) == len(CHOICES[other])
    assert all(does(name, other, choice) for choice in values)
    assert not any(does(name, other, choice) for choice in idle)


def does(name: str, other: str, choice: str) -> bool:
    """Whether weights or rates are others with another value of setting `name`."""
    first = TrainingSettings(max_minutes=5.0, max_updates=300, warmup_updates=30, decay_updates=50)
    value = getattr(first, name)
    changed = value / 2 if isinstance(value, float) and value else other_value(value)
    results = []
    for each in (value, changed):
        changes: dict[str, Any] = {other: choice, name: each}
        settings = dataclasses.replace(first, **changes)
        results.append(moved_by(settings) if other == "optimiser" else rates_of(settings))
    return results[0] != results[1]


def moved_by(settings: TrainingSettings) -> list[float]:
    """The sums of a model's weights after three steps."""
    torch.manual_seed(1)
    model = zoo.build("transformer", "toy", source_vocab_size=9, target_vocab_size=9)
    optimiser = make_optimiser(model, settings)
    for _ in range(3):
        for group in optimiser.param_groups:
            group["lr"] = 0.1
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter) * 1e-6
        optimiser.step()
    return [parameter.double().sum().item() for parameter in model.parameters()]


def rates_of(settings: TrainingSettings) -> list[float]:
    """The rates of a run whose validation loss falls by little, then not at all."""
    rate, rates = LearningRate(settings), []
    for update in range(300):
        rates.append(rate.at(update, update / 60))
        if update % 20 == 0:
            rate.evaluated(4.0 - 0.0003 * min(update, 100))
    return rates


@pytest.mark.parametrize(("objective", "name"), OF_OBJECTIVES, ids="-".join)
def test_losses_are_the_same_with_any_value(objective: str, name: str) -> None:
    kind = objectives.get(objective)
    other = kind.settings.only_with[name][0]
    arch, preset, changes = MODELS.get(objective, ("pervasive", "toy", READER))
    model = zoo.build(arch, preset, changes, source_vocab_size=20, target_vocab_size=20)
    idle = {} if "." in other else {other: "oracle" if other == "labels" else 0.0}
    first = kind.settings(**idle)
    value = getattr(first, name)
    # The other choices: a setting with none is a number.
    choices = {
        "write": "path", "agent_area": "path", "gradient_form": "printed", "kernel": "normalised",
    }  # fmt: skip
    second = dataclasses.replace(first, **{name: choices.get(name) or other_value(value)})
    parts = []
    for settings in (first, second):
        for is_training in (True, False):
            torch.manual_seed(2)
            model.train(is_training)
            loss = kind.make(settings).loss(model, ragged_batch((5, 3), (4, 6), 20, 20))
            extra = {key: float(number) for key, number in loss.extra.items()}
            parts.append((loss.total.item(), loss.nll.item(), loss.criterion, extra))
    assert parts[:2] == parts[2:]


def test_settings_of_objectives_are_told() -> None:
    asked = Request(
        "transformer", "toy-exits", "exits-halting",
        changes=["model.halting=multinomial", "objective.kernel=normalised",
                 "training.ema_updates=9", "objective.validate_threshold=0.3"],
    )  # fmt: skip
    assert messages_of(asked) == [
        "`objective.kernel` has no effect with `objective.sigma=0.0`, only with a number above 0.",
        "`objective.validate_threshold` has no effect with `model.halting=multinomial`, only with "
        "`geometric`.",
        "`training.ema_updates` has no effect with `training.ema_decay=0.0`, only with a number "
        "above 0.",
    ]
    reader = Request("pervasive", "toy", "dynamic", changes=["objective.search_to=9"])
    assert messages_of(reader) == [
        "`objective.search_to` has no effect with `objective.labels=oracle`, only with "
        "`binary-search`."
    ]


def test_what_is_asked_for_is_told() -> None:
    asked = Request(
        "transformer", "multi30k",
        changes=["model.window=5", "training.optimiser=adam", "training.momentum=0.5",
                 "training.schedule=cosine-time"],
        flags={"training.warmup_updates": 9, "training.max_minutes": 3.0, "training.seed": None},
    )  # fmt: skip
    assert messages_of(asked) == [
        "`model.window` has no effect with `model.encoder=bidirectional`, only with `window`.",
        "`training.momentum` has no effect with `training.optimiser=adam`, only with `nesterov`.",
        "`training.warmup_updates` has no effect with `training.schedule=cosine-time`.",
    ]
    # What the preset says waits for other settings.
    assert messages_of(dataclasses.replace(asked, changes=asked.changes[3:], flags={
        "training.max_minutes": 3.0
    })) == []  # fmt: skip
    used = Request("transformer", changes=["model.window=5", "model.encoder=window"])
    assert messages_of(used) == []


def test_sampling_and_shares_of_a_run_are_told() -> None:
    asked = Request(changes=["search.top_k=5", "training.validate_share=0.1"])
    sampling = "`search.top_k` has no effect with `search.sample=false`, only with `true`."
    share = "`training.validate_share` has no effect with `training."
    assert messages_of(asked) == [sampling]
    for change, name in (
        ("patience=3", "patience`."), ("schedule=plateau", "schedule` plateau."),
        ("validate_updates=9", "validate_updates`."), ("validate_minutes=9", "validate_minutes`."),
    ):  # fmt: skip
        more = dataclasses.replace(asked, changes=[*asked.changes, f"training.{change}"])
        assert messages_of(more) == [f"{share}{name}", sampling]
    later = dataclasses.replace(asked, changes=["training.r_drop_from=0.5"])
    assert messages_of(later) == [
        "`training.r_drop_from` has no effect with `training.r_drop=0.0`, only with a number above "
        "0."
    ]
    later = dataclasses.replace(later, changes=[*later.changes, "training.r_drop=5"])
    assert messages_of(later) == []
    sampled = dataclasses.replace(asked, changes=["search.top_k=5", "search.sample=true"])
    assert messages_of(sampled) == []


def test_of_a_file_what_is_not_the_default(tmp_path: Path, messages: list[str]) -> None:
    file = tmp_path / "run.toml"
    file.write_text('arch = "transformer"\n[model]\nwindow = 7\nmax_positions = 5\n')
    sizes = ("--source-vocab-size", 50, "--target-vocab-size", 50)
    assert train("--config", file, *sizes, "--dry-run") == 0
    assert [message for message in messages if "no effect" in message] == [
        f"{file}:4: `model.max_positions` has no effect with `model.positions=sinusoidal`, only "
        "with `learned`."
    ]


def test_averages_that_nothing_chooses(tmp_path: Path, messages: list[str]) -> None:
    for language in ("de", "en"):
        (tmp_path / f"a.{language}").write_text("the red dog\nthe dog\nred and the dog\n" * 5)
    data = tmp_path / "data"
    pairs = ("--source-lang", "de", "--target-lang", "en", "--train", tmp_path / "a")
    assert main(["preprocess", *map(str, (*pairs, "--out", data))]) == 0
    assert main(["bpe", "learn", str(data), "--merges", "5"]) == 0
    options = (data, "--out", tmp_path / "m", *TINY_MODEL, "--max-updates", 2)
    assert train(*options, "--set", "training.ema_decay=0.5") == 0
    assert "no validation pairs" in " ".join(messages)
    messages.clear()
    changes = ("--set", "training.average=2", "--set", "training.validate_epochs=0")
    assert train(*options, "--overwrite", *changes) == 0
    assert "averages the checkpoints of scheduled validations" in " ".join(messages)
    assert "no validation pairs" not in " ".join(messages)
