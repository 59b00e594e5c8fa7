"""Scores of a translated split: computed against its references, and printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nmtgrid.base import console
from nmtgrid.data.dataset import Split
from nmtgrid.metrics.quality import bleu, chrf, ter
from nmtgrid.search.api import Translation
from nmtgrid.text.moses import Moses, count_escaped
from nmtgrid.text.scripts import bleu_tokenizer

_FEW_ESCAPED = 0.01
"""Share of references that may hold `&apos;` and still be raw text that speaks of it."""
TRANSLATION_SCORES = {
    "bleu_tokenized": "BLEU, tokenised (%)",
    "bleu": "BLEU, raw text (%)",
    "chrf": "chrF2, raw text (%)",
    "ter": "TER, raw text (%)",
}
_CAPTION_SCORES = {
    "bleu_1": "BLEU-1 (%)",
    "bleu_2": "BLEU-2 (%)",
    "bleu_3": "BLEU-3 (%)",
    "bleu_4": "BLEU-4 (%)",
    "cider": "CIDEr-D (x 100)",
}


def scores(
    translations: Sequence[Translation], split: Split, moses: Moses, *, with_ter: bool
) -> dict[str, Any]:
    """Return JSON keys: tokenised and raw scores in percent, with signatures; TER takes minutes.

    `bleu_tokenized` compares words as the dataset has them (multi-bleu's protocol); the others
    compare raw text, all in lower case if `moses` has it, as a lower-cased model can give no more.
    BLEU compares characters where there are no spaces between words, as its signature says.
    `references_escaped` counts those that are not raw: they hold `&apos;` and the like.
    """
    words = [translation.tokenized for translation in translations]
    text = [translation.text for translation in translations]
    tokenized, raw = split.tokenized_target(), split.raw_target()
    lowercase = moses.lowercase
    if lowercase:
        raw = list(map(moses.lower, raw))  # in some languages not as the metrics do it
    words_as, raw_as = (bleu_tokenizer(moses.lang, raw, name) for name in ("none", "13a"))
    metrics = {
        "bleu_tokenized": bleu(words, tokenized, words_as),
        "bleu": bleu(text, raw, raw_as, lowercase),
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


def print_scores(values: Mapping[str, Any], report: Mapping[str, Any], title: str) -> None:
    """Print scores of translations or captions, their signatures and the average exit.

    Also what about the references makes scores of raw text differ from published ones.
    """
    is_text = "bleu_tokenized" in values
    titles = TRANSLATION_SCORES if is_text else _CAPTION_SCORES
    names = [name for name in titles if name in values]
    console.table(
        f"{title} in {report['seconds']:.1f} s, {report['tokens_per_second']:,.0f} target tokens/s",
        ["score" if is_text else "score, all references", "value"],
        [[titles[name], values[name]] for name in names],
    )
    # BLEU-1 to BLEU-4 are one computation, with one signature.
    for name in names if is_text else ("bleu_4", "cider"):
        console.say(f"signature of {name}: {values[f'signature_{name}']}")
    if "average_exit" in report:
        console.say(f"average exit: {report['average_exit']:.2f} blocks per token")
    if not is_text:
        return
    if values["references_lowercased"]:
        console.say(
            "The dataset is lower-cased: raw references are compared in lower case (case:lc)."
        )
    if values["references_escaped"] > _FEW_ESCAPED * report["sentences"]:
        console.warn(
            f"{values['references_escaped']:,} references contain escapes of Moses' tokeniser, "
            "such as `&apos;`, so they are not raw text. Raw BLEU splits each escape into three "
            "words and is too high: quote tokenised BLEU."
        )
