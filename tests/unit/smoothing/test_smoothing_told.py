"""What people are told of loss smoothing, and what a resumed run finds again."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from nmtgrid.adaptive.objectives import Mixed, MixedSettings
from nmtgrid.base.io.arrays import load_tensors
from nmtgrid.cli.app import main
from nmtgrid.data.batches import collate
from nmtgrid.data.dataset import Dataset
from nmtgrid.models import zoo
from nmtgrid.smoothing.objectives import Smoothed
from nmtgrid.smoothing.rewards import BleuReward
from nmtgrid.smoothing.vectors import few_vectors
from nmtgrid.training.api import OBJECTIVE_FILE, LossParts
from nmtgrid.training.settings import SequenceSmoothing, SmoothingSettings
from tests.unit.smoothing.test_smoothing import BOTH, SMALL, data, settings

__all__ = ["data"]

TOKENS = ["--set", "smoothing.token.alpha=0.2", "--set", "objective.label_smoothing=0"]


def write_vectors(path: Path, data: Path, count: int, seed: int = 0) -> None:
    """Write vectors of the first `count` types."""
    types = Dataset.open(data).pipeline.target_vocabulary.types[4 : 4 + count]
    values = torch.randn(len(types), 3, generator=torch.Generator().manual_seed(seed)).tolist()
    rows = zip(types, values, strict=True)
    path.write_text("".join(f"{token} {' '.join(map(str, row))}\n" for token, row in rows))


def test_what_is_told(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "m"
    idle = [*SMALL, "--set", "smoothing.sequence.lazy=true", "--max-updates", "1"]
    for plan in ["--dry-run"], []:
        assert main(["train", str(data), "--out", str(out), *idle, *plan]) == 0
        message = " ".join(capfd.readouterr().err.split())
        assert "`smoothing.sequence.lazy` has no effect" in message
    again = [*SMALL, *BOTH, "--max-updates", "2", "--overwrite"]
    assert main(["train", str(data), "--out", str(out), *again]) == 0
    assert "no effect" not in capfd.readouterr().err
    first = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
    assert 0 < first["extra"]["changed"] < 1
    capfd.readouterr()
    changed = ["--resume", "--set", "smoothing.entropy=0.5"]
    assert main(["train", str(data), "--out", str(out), *changed]) == 2
    assert "`smoothing.entropy`" in capfd.readouterr().err


def sequence_notes(*changes: str) -> list[str]:
    """What is told of these changes, all of them asked for."""
    return settings(*changes).without_effect([change.split("=")[0] for change in changes])


def test_what_has_no_effect() -> None:
    for name in (field.name for field in dataclasses.fields(SequenceSmoothing)):
        assert name == "alpha" or name in SequenceSmoothing.only_with
    assert settings().smoothing.without_effect() == []
    changes = ("smoothing.sequence.lazy=true", "smoothing.token.rarity=1", "smoothing.entropy=1")
    idle = settings(*changes)
    assert idle.smoothing.without_effect() == [
        "`smoothing.token.rarity` has no effect while `smoothing.token.alpha` is 0.",
    ]
    assert sequence_notes(*changes) == [
        "`smoothing.sequence.lazy` has no effect with `smoothing.sequence.alpha=0.0`, only with a "
        "number above 0.",
    ]
    drawn = ("smoothing.sequence.alpha=0.5", "smoothing.sequence.substitutes=similar")
    similar = settings(*drawn, "smoothing.token.temperature=1")
    assert similar.smoothing.without_effect() == [], "substitutes are drawn as tokens spread"
    drawn = ("smoothing.sequence.alpha=0.5", "smoothing.sequence.proposal_temperature=1")
    (message,) = sequence_notes(*drawn)
    assert message.startswith("`smoothing.sequence.proposal_temperature` has no effect with")
    weighed = ("smoothing.sequence.reward=bleu", "smoothing.sequence.samples=2")
    assert sequence_notes(*drawn, *weighed) == []
    assert settings(*drawn, *weighed).smoothing.without_effect() == []
    # Unknown tokens do not count: of ten others nine and a half have one, or eight.
    vectors = torch.tensor([[0.0], [0.0], [0.0], [0.0], [1.0], [0.0]])
    assert few_vectors(vectors, torch.tensor([0.0, 0.0, 0.0, 1.0, 9.5, 0.5])) == []
    (message,) = few_vectors(vectors, torch.tensor([0.0, 0.0, 0.0, 1.0, 8.0, 2.0]))
    assert "1 of 2 target types have vectors, and so 80.0% of the training tokens" in message


def test_label_smoothing_beside_it_is_told(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["train", str(data), "--out", str(tmp_path / "m"), *SMALL, "--max-updates", "1"]
    for plan in ["--dry-run"], []:
        assert main([*command, *TOKENS[:2], *plan]) == 0
        warning = " ".join(capfd.readouterr().err.split())
        assert "`objective.label_smoothing` also smooths" in warning
    assert main([*command, *TOKENS, "--overwrite"]) == 0
    assert "`objective.label_smoothing`" not in capfd.readouterr().err


def test_vectors_of_few_types_are_told(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "vectors.txt", tmp_path / "m"
    write_vectors(path, data, 1)
    command = ["train", str(data), "--out", str(out), *SMALL, *TOKENS, "--max-updates", "1"]
    command += ["--set", f"smoothing.token.vectors={path}"]
    assert main(command) == 0
    assert "types have vectors, and so" in " ".join(capfd.readouterr().err.split())
    write_vectors(path, data, 10_000)
    assert main([*command, "--overwrite"]) == 0
    assert "have vectors" not in capfd.readouterr().err


def test_a_resumed_run_has_the_vectors_that_it_began_with(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    write_vectors(path, data, 10_000)
    more = [*SMALL, *TOKENS, "--set", f"smoothing.token.vectors={path}"]
    for name in ("whole", "parts"):
        limit = "4" if name == "whole" else "2"
        command = ["train", str(data), "--out", str(tmp_path / name), "--max-updates"]
        assert main([*command, limit, *more]) == 0
    path.unlink()
    assert main([*command, "4", "--resume"]) == 0
    weights = [load_tensors(tmp_path / name / "last.safetensors") for name in ("whole", "parts")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    # Begun anew, they are those of today.
    write_vectors(path, data, 10_000, seed=1)
    before = load_tensors(tmp_path / "parts" / OBJECTIVE_FILE)["vectors"]
    assert main([*command, "1", *more, "--overwrite"]) == 0
    assert not torch.equal(load_tensors(tmp_path / "parts" / OBJECTIVE_FILE)["vectors"], before)


@pytest.mark.parametrize("plan", [[], ["--dry-run"]])
def test_vectors_that_are_not_there(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], plan: list[str]
) -> None:
    command = ["train", str(data), "--out", str(tmp_path / "m"), *SMALL, *TOKENS, *plan]
    assert main([*command, "--set", "smoothing.token.vectors=nowhere"]) == 2
    message = " ".join(capfd.readouterr().err.split())
    assert "nowhere is neither a file nor a model directory" in message


def test_a_plan_tells_of_drawn_sentences(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for lazy, count in (("false", 2), ("true", 0)):
        more = [*SMALL, *BOTH, "--set", f"smoothing.sequence.lazy={lazy}", "--dry-run", "--json"]
        assert main(["train", str(data), *more, "-"]) == 0
        message = capfd.readouterr()
        assert json.loads(message.out)["drawn_sentences_per_pair"] == count
        assert ("samples 2 more sentences for each" in " ".join(message.err.split())) == bool(count)


class _Nothing:
    """An objective whose loss is always zero."""

    def check(self, model: object) -> None: ...

    def agent(self) -> None: ...

    def loss(self, model: object, batch: object) -> LossParts:
        return LossParts(torch.zeros(()), 1, torch.zeros(()))


def test_what_is_logged_counts_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sentences, of which the second, with two changes of four tokens, counts a quarter."""
    pair = collate([[3]], [[4, 5, 6, 7]])
    sequence = SequenceSmoothing(alpha=0.5, reward="bleu", samples=2)
    smoothed = Smoothed(_Nothing(), SmoothingSettings(sequence=sequence), 9, reward=BleuReward())
    tokens = torch.tensor([[[4, 5, 6, 7, 2], [5, 4, 6, 7, 2]]])
    drawn = smoothed.draw(pair)
    drawn = type(drawn)(tokens, torch.tensor([[0, 2]]), drawn.logs)
    monkeypatch.setattr(smoothed, "draw", lambda batch: drawn)
    shares = torch.tensor([[0.75, 0.25]]).double()
    monkeypatch.setattr(smoothed, "weigh", lambda batch, samples: shares)
    model = torch.nn.Linear(1, 1)
    extra = smoothed.loss(model, pair).extra  # type: ignore[arg-type]
    assert float(extra["changed"]) == pytest.approx(0.5)
    # The end symbol is a target too.
    assert float(extra["effective"]) == pytest.approx(5 / (0.75**2 + 0.25**2))


def test_exits_of_samples_are_averaged() -> None:
    """Where only sampled sentences are seen, each counts its share of the average exit."""
    changes = {"dropout": 0.0, "embedding_dropout": 0.0, "size": 16, "heads": 2}
    model = zoo.build("transformer", "toy-exits", changes, source_vocab_size=9, target_vocab_size=9)
    mixed = Mixed(MixedSettings(sequences=2))
    sequence = SequenceSmoothing(alpha=1.0, samples=20)
    pair = collate([[4, 5]], [[4, 5, 6, 7]])
    parts = Smoothed(mixed, SmoothingSettings(sequence=sequence), 9).loss(model.train(), pair)
    # Exits 1 to 6 are equally likely.
    assert 2.5 < float(parts.extra["average_exit"]) / parts.tokens < 4.5
