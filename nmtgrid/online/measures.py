"""What a decoding is worth: BLEU, and latency in tokens and words, in both conventions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from nmtgrid.metrics.latency import Convention, Latency, Unit, latency, reference_words
from nmtgrid.metrics.quality import Score, bleu
from nmtgrid.metrics.words import word_delays
from nmtgrid.online.evaluate import Decoded, Outcome
from nmtgrid.online.sentences import Sentence
from nmtgrid.online.simuleval import Instance
from nmtgrid.text.moses import unescape

WAYS: tuple[tuple[Unit, Convention], ...] = (
    ("token", "thesis"), ("word", "thesis"), ("word", "simuleval"),
)  # fmt: skip
"""The ways to count that make sense: SimulEval's convention knows words only."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """The scores of a decoding: BLEU of tokenised and of raw text, latency in each of `WAYS`."""

    decoded: Decoded
    tokenized: Score
    raw: Score
    latencies: dict[tuple[Unit, Convention], Latency]

    def values(self, unit: Unit, convention: Convention) -> dict[str, Any]:
        """Return JSON keys: the latency in one way, and in all of them under `latencies`."""
        seconds, tokens = self.decoded.seconds, self.decoded.target_tokens
        average = self.decoded.average_exit
        return {
            **self.decoded.setting.values(),
            "bleu_tokenized": self.tokenized.value,
            "bleu": self.raw.value,
            **self.latencies[unit, convention].values(),
            **({} if average is None else {"average_exit": average}),
            "target_tokens": tokens,
            "seconds": seconds,
            "tokens_per_second": tokens / max(seconds, 1e-9),
            "signature_bleu_tokenized": self.tokenized.signature,
            "signature_bleu": self.raw.signature,
            "latencies": [found.values() for found in self.latencies.values()],
        }


def measure(
    sentences: Sequence[Sentence], decoded: Decoded, joiner: str, *, lowercase: bool
) -> Measured:
    """Return the scores of a decoding; `joiner` ends target units that go on in the next one.

    Raw text is compared in lower case if `lowercase`, as a lower-cased model can give no more.
    """
    outcomes = decoded.outcomes
    tokenized = bleu(
        [one.words for one in outcomes], [one.reference for one in sentences], "none"
    )  # fmt: skip
    raw = bleu(
        [one.text for one in outcomes],
        [one.raw_reference for one in sentences],
        lowercase=lowercase,
    )
    pairs = list(zip(sentences, outcomes, strict=True))
    words = [delays_of_words(one, outcome, joiner) for one, outcome in pairs]
    found: dict[tuple[Unit, Convention], Latency] = {
        ("token", "thesis"): latency(
            [delays_of_tokens(one, outcome) for one, outcome in pairs],
            [len(one.source) for one in sentences],
            [len(one.target) for one in sentences],
        )
    }
    lengths = [len(one.words) for one in sentences]
    counts = {
        "thesis": [len(one.reference.split()) for one in sentences],
        "simuleval": [reference_words(one.reference) for one in sentences],
    }
    for unit, convention in WAYS[1:]:
        found[unit, convention] = latency(
            words, lengths, counts[convention], unit=unit, convention=convention
        )
    return Measured(decoded, tokenized, raw, found)


def delays_of_tokens(one: Sentence, outcome: Outcome) -> list[int]:
    """Return the delay of each target unit in source units; end symbols count on neither side."""
    return [min(reads, len(one.source)) for reads in outcome.reads[: len(outcome.units)]]


def delays_of_words(one: Sentence, outcome: Outcome, joiner: str) -> list[int]:
    """Return the delay of each target word in source words."""
    return word_delays(outcome.reads, one.sizes, outcome.units, joiner)


def instances(
    sentences: Sequence[Sentence], outcomes: Sequence[Outcome], joiner: str
) -> list[Instance]:
    """Return a log's sentences: raw source words, tokenised target words and references.

    Targets are without the tokenizer's escapes, which some of sacreBLEU's tokenizers cut in pieces.
    """
    return [
        Instance(
            one.line - 1,
            unescape(outcome.words),
            delays_of_words(one, outcome, joiner),
            len(one.words),
            " ".join(one.words),
            unescape(one.reference),
        )
        for one, outcome in zip(sentences, outcomes, strict=True)
    ]
