"""Small online models over a made-up language, and sentences for them; not a test itself."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.cli.app import main
from nmtgrid.data.dataset import Dataset
from nmtgrid.models import zoo
from nmtgrid.models.directory import LoadedModel, save_model
from nmtgrid.online.evaluate import Outcome, Sentence
from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.search.translate import TranslationOptions, Translator
from nmtgrid.text.bpe import Codes
from nmtgrid.text.pipeline import Pipeline, TextFacts
from nmtgrid.text.vocabulary import Vocabulary
from tests.unit.helpers.train_command import toy_data

LETTERS = "abcdefgh"
SMALL: dict[str, dict[str, Any]] = {
    "pervasive": {"depth": 2, "size": 16, "feed_forward_size": 16, "target_kernel": 5,
                  "source_kernel": 3, "source_causal": True},
    "transformer": {"encoder_depth": 2, "decoder_depth": 2, "size": 16, "feed_forward_size": 16,
                    "heads": 2, "encoder": "unidirectional"},
}  # fmt: skip


def pipeline() -> Pipeline:
    """Return a pipeline over words of letters; only `a` and `b` are merged into a unit."""
    types = [*LETTERS, *(f"{letter}@@" for letter in LETTERS), "ab", "ab@@"]
    facts = TextFacts("qa", "qb", tokenize="none")
    return Pipeline(
        facts, Vocabulary(types), Vocabulary(types), Codes(["#version: 0.2", "a b</w>"])
    )


def units_of_words(text: Pipeline, line: str) -> list[list[str]]:
    """Return the units of each raw word of a source line, tokenised separately, as in a stream."""
    return [text.source.tokens(word) for word in line.split()]


def translator(arch: str, batch_tokens: int = 4000, **settings: Any) -> Translator:
    """Return a greedy translator with random weights, which writes up to 4 + 1.5 |x| units."""
    torch.manual_seed(3)
    text = pipeline()
    types = len(text.source_vocabulary)
    model = zoo.build(
        arch, overrides=SMALL[arch] | settings, source_vocab_size=types, target_vocab_size=types
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    plan = SearchPlan(max_length_a=4, max_length_b=1.5)
    loaded = LoadedModel(model, text, {}, Path(arch))
    return Translator([loaded], plan, TranslationOptions(batch_tokens=batch_tokens))


def sentence(line: int, source: str, target: str) -> Sentence:
    """Return a sentence of raw words."""
    text = pipeline()
    words = units_of_words(text, source)
    units = [unit for word in words for unit in word]
    return Sentence(
        line, source.split(), [len(word) for word in words], units,
        text.source_vocabulary.encode(units), text.target.encode_words(target.split()), target,
        target,
    )  # fmt: skip


def sentences(count: int = 8, seed: int = 1) -> list[Sentence]:
    """Return random sentences; the third is empty."""
    draw = random.Random(seed)

    def words() -> str:
        return " ".join(
            "".join(draw.choices(LETTERS, k=draw.randint(1, 3))) for _ in range(draw.randint(1, 7))
        )

    return [sentence(n, "" if n == 3 else words(), words()) for n in range(1, count + 1)]


def plain_outcome(
    units: Sequence[str] = (), words: str = "", text: str = "", reads: Sequence[int] = (),
    seconds: Sequence[float] = (),
) -> Outcome:  # fmt: skip
    """Return a translation without further information, with log-probabilities of -1."""
    scores = [-1.0] * len(reads)
    tokens = list(range(4, 4 + len(units)))
    best = Hypothesis(tokens, scores, sum(scores), sum(scores), reads=list(reads))
    return Outcome(best, list(units), words, text, seconds=seconds)


def toy_home(folder: Path, models: Mapping[str, tuple[str, Mapping[str, Any]]]) -> Path:
    """Fill `folder` with a toy dataset `data` and models with random weights for it.

    They hardly ever stop by themselves, but at the limit of 5 + |x| units.
    """
    pipeline = Dataset.open(toy_data(folder / "data")).pipeline
    for name, (arch, changes) in models.items():
        torch.manual_seed(1)
        model = zoo.build(
            arch, overrides={**SMALL[arch], **changes},
            source_vocab_size=len(pipeline.source_vocabulary),
            target_vocab_size=len(pipeline.target_vocabulary),
        )  # fmt: skip
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        search = {"max_length_a": 5.0, "max_length_b": 1.0, "beam": 4, "length_penalty": 0.6}
        save_model(folder / name, model, pipeline, {"search": search})
    return folder


def online(*arguments: object) -> int:
    # A log is scored without a device.
    device = () if "--log" in arguments else ("--device", "cpu")
    return main(["online-eval", *map(str, arguments), *device])


def report(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a command that must fail; return the message."""
    assert online(*arguments) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    return " ".join(message.split())
