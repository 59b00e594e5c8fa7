"""Scores of translations against the references of a dataset's split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nmtgrid.data.dataset import PictureSplit, Split
from nmtgrid.metrics.quality import bleu, caption_scores, chrf, ter
from nmtgrid.search.postprocess import Translation
from nmtgrid.text.moses import count_escaped


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
