"""Scripts without spaces between words: whether a text is in one of them and unsegmented.

`preprocess` asks, since in such text a sentence is one word: lengths are estimated from letters,
and scores count characters.
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
"""Letters of a word: of Chinese and Japanese, and of Thai, Khmer, Burmese and the like."""
_MOST_WORDS = 2.5
"""Words between two spaces, as letters let expect, from which text counts as unsegmented."""


def count_unspaced(lines: Iterable[str]) -> Counter[str]:
    """Return how many `lines` there are, how many are `unspaced`: mostly in such a script.

    And of the latter the `words`, as letters let expect, and the `chunks` that spaces separate.
    """
    counts: Counter[str] = Counter()
    for line in lines:
        counts["lines"] += 1
        # Most text has no such letter at all.
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
    """Return how many `words` there are, where those without spaces between them count as several.

    Of such scripts the letters tell: a word has about two or five, by the script.
    """
    count = len(words)
    for word in words:
        # Words of up to three letters, and most other text, are words.
        if len(word) > _HAN_WORD + 1 and not word.isascii():
            han = len(_HAN.findall(word))
            other = len(_UNSPACED.findall(word)) - han
            if 2 * (han + other) > len(word):
                count += max(0, round(han / _HAN_WORD + other / _OTHER_WORD) - 1)
    return count


def bleu_tokenizer(language: str, lines: Iterable[str], tokenizer: str) -> str:
    """Return sacreBLEU's name of how words are counted: `tokenizer`, or by characters.

    The latter where the `lines`, such as references, have no spaces between words; in Chinese other
    words stay whole. Give raw lines: a tokeniser sets marks apart, and the text seems segmented.
    """
    if not is_unsegmented(count_unspaced(lines)):
        return tokenizer
    return "zh" if language.partition("-")[0].partition("_")[0] in ("zh", "zho", "cmn") else "char"
