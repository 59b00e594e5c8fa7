"""Scripts that are written without spaces between words: whether a text is in one, unsegmented.

`preprocess` asks, since word counts and length ratios mean nothing for such text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

# Thai, Lao, Tibetan, Burmese, Khmer, kana, and Han with its extensions.
_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff"
    "\uaa60-\uaa7f\uf900-\ufaff\U00020000-\U0003ffff]"
)
_MOST_LETTERS = 8
"""Letters between two spaces, on average, from which text counts as unsegmented.

Words of Chinese have about two, of Thai, Khmer and Burmese about five; sentences have many more.
"""


def count_unspaced(lines: Iterable[str]) -> Counter[str]:
    """Return how many `lines` there are, how many are `unspaced`: mostly in such a script.

    And of the latter the `letters`, and the `chunks` that spaces separate.
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
            counts.update(unspaced=1, letters=size, chunks=len(chunks))
    return counts


def is_unsegmented(counts: Counter[str]) -> bool:
    """Return whether most of the lines counted are in such a script and almost without spaces."""
    is_unspaced = 2 * counts["unspaced"] > counts["lines"]
    return is_unspaced and counts["letters"] >= _MOST_LETTERS * counts["chunks"]
