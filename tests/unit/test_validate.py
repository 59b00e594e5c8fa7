"""Validation: the loss is the mean over all target tokens; scores are of greedy decoding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nmtgrid.cli.app import main
from nmtgrid.data.dataset import Dataset
from nmtgrid.metrics.quality import bleu
from nmtgrid.models import zoo
from nmtgrid.models.api import TranslationModel
from nmtgrid.models.directory import LoadedModel
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.translate import TranslationOptions, Translator
from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings
from nmtgrid.training.settings import BatchSettings
from nmtgrid.training.validate import Score, SplitValidator

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("validate") / "data"
    assert main(["preprocess", "--toy", "60", "--out", str(folder)]) == 0
    assert main(["bpe", "learn", str(folder), "--merges", "40"]) == 0
    return Dataset.open(folder)


@pytest.fixture
def model(data: Dataset) -> TranslationModel:
    made = zoo.build(
        "pervasive",
        overrides={"depth": 1, "size": 8, "feed_forward_size": 8},
        source_vocab_size=len(data.pipeline.source_vocabulary),
        target_vocab_size=len(data.pipeline.target_vocabulary),
    )
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


def validator(data: Dataset, max_tokens: int, sentences: int = 0) -> SplitValidator:
    objective = Likelihood(LikelihoodSettings(0.3))
    batches = BatchSettings(max_tokens=max_tokens)
    return SplitValidator(data, data.split("valid"), objective, batches, CPU, sentences=sentences)


def test_the_loss_is_the_unsmoothed_mean_over_target_tokens(
    data: Dataset, model: TranslationModel
) -> None:
    split = data.split("valid")
    plain = Likelihood(LikelihoodSettings(0.0))
    model.eval()
    with torch.no_grad():
        total = sum(plain.loss(model, split.batch([i])).total.item() for i in range(len(split)))
    tokens = int(split.target_lengths.sum()) + len(split)
    for max_tokens in (30, 4000):
        found = validator(data, max_tokens).score(model)
        assert found == Score(found.nll) and found.nll == pytest.approx(total / tokens, rel=1e-5)


def test_bleu_is_that_of_the_command_that_decodes(data: Dataset, model: TranslationModel) -> None:
    split = data.split("valid")
    loaded = LoadedModel(model.eval(), data.pipeline, {}, Path())
    translator = Translator([loaded], SearchPlan(), TranslationOptions())
    lines = [found.tokenized for found in translator.stream(split.raw_source())]
    references = split.tokenized_target()
    found = validator(data, 300).quality(model)
    assert found.bleu == pytest.approx(bleu(lines, references, "none").value)
    first = validator(data, 300, sentences=7).quality(model)
    assert first.bleu == pytest.approx(bleu(lines[:7], references[:7], "none").value)
    assert found.cider is first.cider is None


def test_validation_draws_no_random_numbers(data: Dataset, model: TranslationModel) -> None:
    before = torch.get_rng_state()
    made = validator(data, 300, sentences=5)
    made.score(model)
    made.quality(model)
    assert torch.equal(before, torch.get_rng_state())
