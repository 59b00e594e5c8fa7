"""Scripts without spaces between words: detection of unsegmented text in them.

In such text a sentence is a single word, so `preprocess` estimates lengths from letters, and scores
count characters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

# Thai, Lao, Tibetan, Burmese, Khmer, kana, and Han with its extensions.
_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff"
    "\uaa60-\uaa7f\uf900-\ufaff\U00020000-\U0003ffff]"
)
_HAN = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_HAN_WORD, _OTHER_WORD = 2, 5
"""Letters per word: in Chinese and Japanese, and in Thai, Khmer, Burmese and the like."""
_MOST_WORDS = 2.5
"""Estimated words between two spaces from which text counts as unsegmented."""


def count_unspaced(lines: Iterable[str]) -> Counter[str]:
    """Return the number of `lines`, and of `unspaced` ones: mostly in such a script.

    Also the number of `words` of the latter, estimated from letters, and of the `chunks` that
    spaces separate.
    """
    counts: Counter[str] = Counter()
    for line in lines:
        counts["lines"] += 1
        # Most text has no such letters at all.
        if line.isascii() or _UNSPACED.search(line) is None:
            continue
        chunks = line.split()
        size = sum(map(len, chunks))
        letters = len(_UNSPACED.findall(line))
        if 2 * letters > size:
            counts.update(unspaced=1, words=estimated_words(chunks), chunks=len(chunks))
    return counts


def is_unsegmented(counts: Counter[str]) -> bool:
    """Return whether most of the lines counted are in such a script and almost without spaces."""
    is_unspaced = 2 * counts["unspaced"] > counts["lines"]
    return is_unspaced and counts["words"] >= _MOST_WORDS * counts["chunks"]


def estimated_words(words: Sequence[str]) -> int:
    """Return the number of `words`, counting unsegmented text as an estimated number of words.

    The estimate assumes two or five letters per word, depending on the script.
    """
    count = len(words)
    for word in words:
        # Words of up to three letters, and ASCII words, count as one.
        if len(word) > _HAN_WORD + 1 and not word.isascii():
            han = len(_HAN.findall(word))
            other = len(_UNSPACED.findall(word)) - han
            if 2 * (han + other) > len(word):
                count += max(0, round(han / _HAN_WORD + other / _OTHER_WORD) - 1)
    return count


def bleu_tokenizer(language: str, lines: Iterable[str], tokenizer: str) -> str:
    """Return the name of the tokenizer for sacreBLEU: `tokenizer`, or one of characters.

    The latter is used if the `lines`, such as references, have no spaces between words; in Chinese,
    words of other scripts stay whole. The lines must be raw: a tokenizer separates punctuation, so
    that the text would seem segmented.
    """
    if not is_unsegmented(count_unspaced(lines)):
        return tokenizer
    return "zh" if language.partition("-")[0].partition("_")[0] in ("zh", "zho", "cmn") else "char"
