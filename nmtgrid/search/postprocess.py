"""Scores of translations against the references of a dataset's split."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from nmtgrid.data.dataset import PictureSplit, Split
from nmtgrid.metrics.quality import bleu, caption_scores, chrf, ter
from nmtgrid.search.api import Hypothesis
from nmtgrid.text.bpe import JOINER, remove_bpe
from nmtgrid.text.moses import count_escaped
from nmtgrid.text.pipeline import Pipeline
from nmtgrid.text.vocabulary import UNKNOWN


@dataclasses.dataclass(frozen=True)
class Translation:
    """One line and what became of it; an empty line has no hypotheses and an empty text.

    `line` counts from 1, `source` are its units, `texts` the raw texts of the hypotheses, best
    first, `tokenized` and `target` the best one's words and units. `source_end` says whether the
    source has an end symbol, that of the last column of alignments; pictures have none.
    """

    line: int
    source: list[str]
    hypotheses: list[Hypothesis]
    texts: list[str]
    tokenized: str
    target: list[str]
    source_end: bool = True

    @property
    def text(self) -> str:
        """The best translation as raw text."""
        return self.texts[0] if self.texts else ""


def restore(
    pipeline: Pipeline,
    line: int,
    source: list[str],
    hypotheses: list[Hypothesis],
    replace_unknown: bool = False,
    prefix: Sequence[str] = (),
) -> Translation:
    """Return the translation of line number `line` with these source units.

    `replace_unknown` puts the aligned source word where the model wrote `<unk>`. `prefix` are the
    target units that were forced: they stand there as they were given, unknown ones too.
    """
    units = [pipeline.target_tokens(one.tokens) for one in hypotheses]
    if replace_unknown:
        units = [
            _without_unknown(source, one, of_one)
            for one, of_one in zip(hypotheses, units, strict=True)
        ]
    units = [[*prefix, *of_one[len(prefix) :]] for of_one in units]
    words = [" ".join(of_one) for of_one in units]
    if pipeline.target.codes is not None:
        words = [remove_bpe(text) for text in words]
    texts = [pipeline.target.moses.detokenize(text) for text in words]
    best = (words[0], units[0]) if hypotheses else ("", [])
    return Translation(line, source, hypotheses, texts, *best)


def whole_word(units: Sequence[str], place: int) -> str:
    """Return the word that the unit at `place` belongs to."""
    first = last = place
    while first > 0 and units[first - 1].endswith(JOINER):
        first -= 1
    while units[last].endswith(JOINER) and last + 1 < len(units):
        last += 1
    return remove_bpe(" ".join(units[first : last + 1]))


def _without_unknown(source: list[str], hypothesis: Hypothesis, units: list[str]) -> list[str]:
    if hypothesis.alignment is None or UNKNOWN not in hypothesis.tokens:
        return units
    places = hypothesis.alignment[: len(units), :-1].argmax(1).tolist()
    return [
        whole_word(source, place) if token == UNKNOWN else unit
        for token, unit, place in zip(hypothesis.tokens, units, places, strict=True)
    ]


def scores(
    translations: Sequence[Translation], split: Split, *, lowercase: bool, with_ter: bool = False
) -> dict[str, Any]:
    """Return JSON keys: tokenised and raw scores in percent, with signatures; TER takes minutes.

    `bleu_tokenized` compares words as the dataset has them (multi-bleu's protocol); the others
    compare raw text, all in lower case if `lowercase`, as a lower-cased model can give no more.
    `references_escaped` counts those that are not raw: they hold `&apos;` and the like.
    """
    words, text = [one.tokenized for one in translations], [one.text for one in translations]
    tokenized, raw = split.tokenized_target(), split.raw_target()
    found = {
        "bleu_tokenized": bleu(words, tokenized, "none"),
        "bleu": bleu(text, raw, lowercase=lowercase),
        "chrf": chrf(text, raw, lowercase),
    }
    if with_ter:
        found["ter"] = ter(text, raw, lowercase)
    written = sum(len(line.split()) for line in words)
    wanted = sum(len(line.split()) for line in tokenized)
    return {
        **{name: score.value for name, score in found.items()},
        **{f"signature_{name}": score.signature for name, score in found.items()},
        "references_lowercased": lowercase,
        "references_escaped": count_escaped(raw),
        "length_ratio": written / max(wanted, 1),
    }


def scores_of_captions(translations: Sequence[Translation], split: PictureSplit) -> dict[str, Any]:
    """Return JSON keys: BLEU-1 to 4 and CIDEr against all captions of each picture, in words."""
    return caption_scores([one.tokenized for one in translations], split.references())
