"""Validation: the loss is the mean over all target tokens; scores are of greedy decoding."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.cli.app import main
from nmtgrid.data.dataset import Dataset
from nmtgrid.metrics.quality import bleu
from nmtgrid.models import zoo
from nmtgrid.models.api import TranslationModel
from nmtgrid.models.directory import LoadedModel, load_model
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.engine import search
from nmtgrid.search.translate import TranslationOptions, Translator
from nmtgrid.training import validate
from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings
from nmtgrid.training.settings import BatchSettings
from nmtgrid.training.validate import Score, SplitValidator
from tests.unit.helpers.text_data import CHINESE, text_data
from tests.unit.helpers.toy_model import read_json, toy_model
from tests.unit.helpers.train_command import TINY_MODEL, toy_data, train

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset.open(toy_data(tmp_path_factory.mktemp("validate") / "data"))


@pytest.fixture
def model(data: Dataset) -> TranslationModel:
    chosen = zoo.build(
        "pervasive",
        overrides={"depth": 1, "size": 8, "feed_forward_size": 8},
        source_vocab_size=len(data.pipeline.source_vocabulary),
        target_vocab_size=len(data.pipeline.target_vocabulary),
    )
    for parameter in chosen.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return chosen


def validator(data: Dataset, max_tokens: int, sentences: int = 0) -> SplitValidator:
    objective = Likelihood(LikelihoodSettings(label_smoothing=0.3))
    batches = BatchSettings(max_tokens=max_tokens)
    return SplitValidator(data, data.split("valid"), objective, batches, CPU, sentences=sentences)


def test_the_loss_is_the_unsmoothed_mean_over_target_tokens(
    data: Dataset, model: TranslationModel
) -> None:
    split = data.split("valid")
    plain = Likelihood(LikelihoodSettings(label_smoothing=0.0))
    model.eval()
    with torch.no_grad():
        total = sum(plain.loss(model, split.batch([i])).total.item() for i in range(len(split)))
    tokens = int(split.target_lengths.sum()) + len(split)
    for max_tokens in (30, 4000):
        score = validator(data, max_tokens).score(model)
        assert score == Score(score.nll) and score.nll == pytest.approx(total / tokens, rel=1e-5)


def test_bleu_is_that_of_the_command_that_decodes(data: Dataset, model: TranslationModel) -> None:
    split = data.split("valid")
    loaded = LoadedModel(model.eval(), data.pipeline, {}, Path())
    translator = Translator([loaded], SearchPlan(), TranslationOptions())
    lines = [score.tokenized for score in translator.translations(split.raw_source())]
    references = split.tokenized_target()
    score = validator(data, 300).quality(model)
    assert score.bleu == pytest.approx(bleu(lines, references, "none").value)
    first = validator(data, 300, sentences=7).quality(model)
    assert first.bleu == pytest.approx(bleu(lines[:7], references[:7], "none").value)
    assert score.cider is first.cider is None


def decoded(model: Path, data: Dataset, *options: str) -> Any:
    """Return what `decode` reports of the validation split."""
    report = model / "report.json"
    command = ["decode", str(model), "--data", str(data.path), "--split", "valid", *options]
    assert main([*command, "--device", "cpu", "--json", str(report)]) == 0
    return read_json(report)


def test_text_without_spaces_is_scored_as_decode_does(tmp_path: Path) -> None:
    """By raw references: Moses sets marks apart, so that its text seems to have spaces."""
    data = Dataset.open(text_data(tmp_path, CHINESE))
    folder = toy_model(tmp_path / "model", data.path, std=0.5)
    values = decoded(folder, data, "--beam", "1")
    assert "tok:zh" in values["signature_bleu_tokenized"]
    quality = validator(data, 300).quality(load_model(folder).model)
    assert quality.bleu == pytest.approx(values["bleu_tokenized"]) != 0


def test_empty_sides_count_as_in_decode(tmp_path: Path, messages: list[str]) -> None:
    """Neither in the loss, as is told; but a source without a reference is translated in both."""
    lines = [f"cat number {n}" for n in range(6)]
    sides = {"de": [*lines, "", "cat number", ""], "en": [*lines, "cat", "", ""]}
    data = Dataset.open(text_data(tmp_path, sides))
    folder = toy_model(tmp_path / "model", data.path, seed=3, std=0.5)
    model, values = load_model(folder).model, decoded(folder, data, "--beam", "1")
    assert validator(data, 300).quality(model).bleu == pytest.approx(values["bleu_tokenized"]) != 0
    values = decoded(folder, data, "--forced")
    split, plain = data.split("valid"), Likelihood(LikelihoodSettings(label_smoothing=0.0))
    with torch.no_grad():
        total = sum(plain.loss(model, split.batch([i])).total.item() for i in range(6))
    # Units and an end symbol of each of the first six alone.
    tokens = int(split.target_lengths[:6].sum()) + 6
    assert (values["sentences"], values["target_tokens"]) == (6, tokens)
    assert values["nll"] == pytest.approx(total / tokens, rel=1e-5)
    assert validator(data, 300).score(model).nll == pytest.approx(total / tokens, rel=1e-5)
    assert train(data.path, "--out", tmp_path / "run", *TINY_MODEL, "--max-updates", 1) == 0
    assert any("3 of 9 validation pairs have no text on one side" in line for line in messages)


def test_what_does_not_fit_into_memory_is_validated_in_halves(
    data: Dataset, model: TranslationModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, scarce = validator(data, 4000), validator(data, 4000)
    sizes: list[int] = []

    def limited(work: Any, rows: Any) -> Any:
        """Return the work, for which memory is too small with more than three rows."""

        def run(first: Any, batch: Any, *more: Any, **options: Any) -> Any:
            sizes.append(rows(batch))
            if sizes[-1] > 3:
                raise torch.OutOfMemoryError("out of memory")
            return work(first, batch, *more, **options)

        return run

    expected = whole.score(model).nll, whole.quality(model).bleu
    monkeypatch.setattr(scarce.objective, "loss", limited(scarce.objective.loss, len))
    assert scarce.score(model).nll == pytest.approx(expected[0], rel=1e-5) and max(sizes) > 3
    sizes.clear()
    monkeypatch.setattr(validate, "search", limited(search, len))
    assert scarce.quality(model).bleu == pytest.approx(expected[1]) and max(sizes) > 3
    monkeypatch.setattr(scarce.objective, "loss", limited(whole.objective.loss, lambda _: 4))
    with pytest.raises(torch.OutOfMemoryError):
        scarce.score(model)


def test_validation_draws_no_random_numbers(data: Dataset, model: TranslationModel) -> None:
    before = torch.get_rng_state()
    chosen = validator(data, 300, sentences=5)
    chosen.score(model)
    chosen.quality(model)
    assert torch.equal(before, torch.get_rng_state())
