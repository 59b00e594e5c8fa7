"""Mistakes in objectives, architectures and policies of one's own are named, with their line."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nmtgrid.base import own_code
from nmtgrid.cli.app import main
from nmtgrid.cli.objectives import objectives
from nmtgrid.models import zoo
from nmtgrid.models.transformer.model import Transformer
from tests.unit.helpers.train_command import SMALL_TRANSFORMER, train

OBJECTIVE = """
import dataclasses
from nmtgrid.cli.objectives import objectives
from nmtgrid.models.api import PredictionSites
from nmtgrid.training.api import BaseObjective, LossParts, ObjectiveKind
from nmtgrid.training.likelihood import site_loss
from nmtgrid.training.settings import SmoothedSettings

@dataclasses.dataclass(frozen=True)
class Settings(SmoothedSettings):
    scale: float = 1.0

class Mine(BaseObjective[Settings]):
    def check(self, model):
        pass

    def loss(self, model, batch):
        parts = site_loss(model, batch, PredictionSites.offline(batch))
        return dataclasses.replace(parts, total=parts.total * self.settings.scale)

objectives.add("mine", ObjectiveKind("mine", "likelihood, scaled", Settings, Mine))
"""
ARCHITECTURE = """
from nmtgrid.models import zoo
from nmtgrid.models.bilstm import BiLSTM
from nmtgrid.models.bilstm_config import BiLSTMConfig

class Mine(BiLSTM):
    architecture = "mine"

zoo.register("mine", "one's own", BiLSTMConfig, Mine, [])
"""
SMALL_MINE = ["--arch", "mine", "--set", "model.size=16"]


@pytest.fixture(autouse=True)
def nothing_of_ones_own_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for registry in (objectives, zoo.architectures()):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    monkeypatch.setattr(own_code, "_modules", {})
    yield


Check = Callable[..., None]


@pytest.fixture
def check_changed(toy_dataset: Path, tmp_path: Path, refused: Callable[..., str]) -> Check:
    """Train with a changed file; see the problem and its line, or success without a problem."""

    def run(text: str, before: str, after: str, problem: str, *options: str) -> None:
        assert before in text
        file = tmp_path / "own.py"
        file.write_text(text.replace(before, after, 1), encoding="utf-8")
        out = ["--out", tmp_path / "model", "--max-updates", 1]
        words = [toy_dataset, "--import", file, *options, *out]
        if not problem:
            assert train(*words) == 0
            return
        message = refused("train", *words)
        assert "bug in nmtgrid" not in message
        assert re.search(problem, message)

    return run


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("", "", ""),
        ("    def check(self, model):\n        pass\n", "", "has no method `check`"),
        ("loss(self, model, batch)", "loss(self, batch)", "method `loss` with other parameters"),
        ("        return dataclasses", "        dataclasses", "a NoneType in place of LossParts"),
        ("parts.total * ", "batch.source_lengths * parts.total * ", "which is not a single number"),
        ("replace(parts, ", "replace(parts, tokens=0, ", "not a whole number above 0, but 0"),
        (
            "replace(parts, ",
            "replace(parts, nll=parts.nll * float('nan'), ",
            r"reports nan as `nll`, which cannot be logged\. Report a finite sum\.",
        ),
        (
            "        return dataclasses",
            "        if not model.training:\n            return None\n        return dataclasses",
            "a NoneType in place of LossParts",
        ),
        ('ObjectiveKind("mine", "likelihood, scaled", Settings, Mine)', "Mine", "an ObjectiveKind"),
        ("@dataclasses.dataclass(frozen=True)\n", "", "dataclass.* above class Settings"),
        ("(SmoothedSettings)", "", "`objective.label_smoothing`, which .* `mine` does not have"),
        ("Settings, Mine", "Settings, lambda: Mine", r"must be called with \(settings\)"),
    ],
)
def test_objectives(before: str, after: str, problem: str, check_changed: Check) -> None:
    options = ["--objective", "mine", *SMALL_TRANSFORMER]
    check_changed(OBJECTIVE, before, after, problem, *options)


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("(BiLSTM)", "", "must be called with"),
        ("(BiLSTM)", "(zoo.Preset)", "which is not a model"),
        ('    architecture = "mine"', "    pass", "calls itself `bilstm`"),
        ('"mine"\n', '"mine"\n    def features(self, batch):\n        pass\n', "other parameters"),
        (
            '"mine"\n',
            '"mine"\n    def features(self, batch, sites):\n'
            "        return super().features(batch, sites)[:-1]\n",
            r"`features` of `Mine` has returned a Tensor of shape \[\d+, 16\]",
        ),
        ('"mine"\n', '"mine"\n    step = None\n', r"no method `step`.*\*, reads=\.\.\., align"),
        ('"mine"\n', '"mine"\n    def report(self):\n        pass\n', "other parameters"),
        (
            '"mine"\n',
            '"mine"\n    def __init__(self, *sizes):\n        super().__init__(*sizes)\n'
            "        del self.traits\n",
            r"has no `traits`.*self\.traits = Traits\(\)",
        ),
    ],
)
def test_architectures(before: str, after: str, problem: str, check_changed: Check) -> None:
    check_changed(ARCHITECTURE, before, after, problem, *SMALL_MINE)


POLICY = """
import sys
from nmtgrid.online.policies import Policy

class Leaves(Policy):
    def decide(self, proposal):
        sys.exit()
"""


def test_own_code_that_leaves_the_program_is_no_success(
    tiny_model: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    file, lines = tmp_path / "leaves.py", tmp_path / "in.txt"
    file.write_text(POLICY, encoding="utf-8")
    lines.write_text("a b\n", encoding="utf-8")
    words = [lines, "--import", file, "--stream", "--policy", "Leaves"]
    message = refused("decode", tiny_model, *words)
    assert f"{file}:7: your own code failed: SystemExit" in message


def test_a_policy_with_other_parameters(
    tiny_model: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    file, lines = tmp_path / "odd.py", tmp_path / "in.txt"
    file.write_text(POLICY.replace("self, proposal", "self"), encoding="utf-8")
    lines.write_text("a b\n", encoding="utf-8")
    words = [lines, "--import", file, "--stream", "--policy", "Leaves"]
    message = refused("decode", tiny_model, *words)
    assert "`Leaves` has a method `decide` with other parameters" in message
    assert "Write `def decide(self, proposal)`." in message


def test_weights_of_a_run_that_failed_at_once_are_not_taken_for_trained(
    toy_dataset: Path, tmp_path: Path, messages: list[str]
) -> None:
    file, out, lines = tmp_path / "nan.py", tmp_path / "model", tmp_path / "in.txt"
    file.write_text(OBJECTIVE.replace("total * ", 'total * float("nan") * '), encoding="utf-8")
    lines.write_text("a b\n", encoding="utf-8")
    words = ["--import", file, "--objective", "mine", *SMALL_TRANSFORMER, "--max-updates", 1]
    assert train(toy_dataset, *words, "--out", out) == 2
    assert any("not finite" in line for line in messages)
    decode = ["decode", str(out), str(lines), "--import", str(file)]
    assert main(decode) == 0
    warning = f"{out / 'model.safetensors'} has not been trained yet"
    assert any(warning in line for line in messages)
    messages.clear()
    mended = tmp_path / "mended.py"
    mended.write_text(OBJECTIVE, encoding="utf-8")
    objectives._entries.pop("mine")
    assert train("--resume", "--import", mended, "--out", out) == 0
    assert main(decode) == 0
    assert not any("has not been trained" in line for line in messages)


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ("step.logits, step.state", r"a tuple\. Here it must return a Step"),
        (
            "dataclasses.replace(step, logits=step.logits[None])",
            r"shape \[1, 192, \d+\]\. Here it must return logits of shape \[192, vocabulary\]",
        ),
    ],
)
def test_steps(returned: str, problem: str, check_changed: Check) -> None:
    step = (
        '"mine"\n\n    def step(self, tokens, state, *, reads=None, align=False):\n'
        f"        step = super().step(tokens, state)\n        return {returned}\n"
    )
    # The validation translates.
    text = f"import dataclasses\n{ARCHITECTURE}"
    check_changed(text, '"mine"\n', step, problem, *SMALL_MINE)


def test_steps_of_streams(
    tiny_model: Path, tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Transformer.step

    def step(self: Transformer, *arguments: Any, **named: Any) -> Any:
        return usual(self, *arguments, **named).logits

    monkeypatch.setattr(Transformer, "step", step)
    lines = tmp_path / "in.txt"
    lines.write_text("a b\n", encoding="utf-8")
    message = refused("decode", tiny_model, lines, "--stream", "--policy", "wait-k k=1")
    assert "a Tensor of shape [1, " in message and "Here it must return a Step" in message
