"""From hypotheses to raw text, and scores of translations against a split's references.

Called by translate.py and by the command `decode`.
"""

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
    """One line and its translation; an empty line has no hypotheses and an empty text.

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
    targets, words = [], []
    for hypothesis in hypotheses:
        units = pipeline.target_tokens(hypothesis.tokens)
        if replace_unknown and hypothesis.alignment is not None:
            # The last row and column of an alignment are those of the end symbols.
            columns = hypothesis.alignment[: len(units), :-1].argmax(1).tolist()
            for row, token in enumerate(hypothesis.tokens):
                if token == UNKNOWN:
                    units[row] = whole_word(source, columns[row])
        # The model wrote the prefix as ids, where a type unknown to it has become `<unk>`.
        units = [*prefix, *units[len(prefix) :]]
        text = " ".join(units)
        targets.append(units)
        # Words as the dataset has them: `bleu_tokenized` compares these.
        words.append(text if pipeline.target.codes is None else remove_bpe(text))
    texts = [pipeline.target.moses.detokenize(text) for text in words]
    best = (words[0], targets[0]) if hypotheses else ("", [])
    return Translation(line, source, hypotheses, texts, *best)


def whole_word(units: Sequence[str], index: int) -> str:
    """Return the word that the unit at `index` belongs to."""
    first = last = index
    while first > 0 and units[first - 1].endswith(JOINER):
        first -= 1
    while units[last].endswith(JOINER) and last + 1 < len(units):
        last += 1
    return remove_bpe(" ".join(units[first : last + 1]))


def scores(
    translations: Sequence[Translation], split: Split, *, lowercase: bool, with_ter: bool = False
) -> dict[str, Any]:
    """Return JSON keys: tokenised and raw scores in percent, with signatures; TER takes minutes.

    `bleu_tokenized` compares words as the dataset has them (multi-bleu's protocol); the others
    compare raw text, all in lower case if `lowercase`, as a lower-cased model can give no more.
    `references_escaped` counts those that are not raw: they hold `&apos;` and the like.
    """
    words = [translation.tokenized for translation in translations]
    text = [translation.text for translation in translations]
    tokenized, raw = split.tokenized_target(), split.raw_target()
    metrics = {
        "bleu_tokenized": bleu(words, tokenized, "none"),
        "bleu": bleu(text, raw, lowercase=lowercase),
        "chrf": chrf(text, raw, lowercase),
    }
    if with_ter:
        metrics["ter"] = ter(text, raw, lowercase)
    hypothesis_words = sum(len(line.split()) for line in words)
    reference_words = sum(len(line.split()) for line in tokenized)
    return {
        **{name: metric.value for name, metric in metrics.items()},
        **{f"signature_{name}": metric.signature for name, metric in metrics.items()},
        "references_lowercased": lowercase,
        "references_escaped": count_escaped(raw),
        "length_ratio": hypothesis_words / max(reference_words, 1),
    }


def scores_of_captions(translations: Sequence[Translation], split: PictureSplit) -> dict[str, Any]:
    """Return JSON keys: BLEU-1 to 4 and CIDEr against all captions of each picture, in words."""
    words = [translation.tokenized for translation in translations]
    return caption_scores(words, split.references())
