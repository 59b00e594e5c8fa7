"""The XML of the IWSLT evaluations: `<seg>` files (dev, test) and `train.tags`.

Both are read line by line, as in published recipes: entities such as `&amp;` are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

from nmtgrid.base.errors import InputError

# Endings of file names after the language.
ENDINGS = (".xml", "")

_SEGMENT = re.compile(r'<seg id\s*=\s*"?[^">]*"?\s*>(.*)</seg>')
_OPENING = re.compile(r"\s*<(\?xml|!DOCTYPE|mteval|srcset|refset|tstset|seg)\b", re.IGNORECASE)
_OF_EITHER = re.compile(r"\s*(<(?!seg\b)|$)")
_DROPPED = re.compile(r"\s*</?(url|talkid|keywords|speaker|reviewer|translator|doc)\b[^>]*>")
_KEPT = re.compile(r"</?(title|description)>")


def read_xml(lines: Iterable[str], path: str = "") -> Iterator[str]:
    """Yield the text in `lines` of a `<seg>` file or of a `train.tags` file.

    The format is recognised by the first line that occurs in only one of them. Raises InputError
    for a segment that does not end on its line, for a file without text, and for plain text.
    """
    lines = iter(lines)
    # Both formats may begin with lines of other tags, or empty lines.
    head: list[str] = []
    for line in lines:
        head.append(line)
        if _OPENING.match(line) or not _OF_EITHER.match(line):
            break
    has_segments = bool(head) and _OPENING.match(head[-1]) is not None
    reader = read_segments if has_segments else read_tags
    is_empty = True
    for text in reader(chain(head, lines), path):
        is_empty = False
        yield text
    if is_empty:
        raise InputError(
            "the file has no line of text.", "Is it really one of IWSLT's XML files?", path=path
        )


def read_segments(lines: Iterable[str], path: str = "") -> Iterator[str]:
    """Yield the text of each `<seg id=...>` line, stripped; `’` becomes `'`."""
    for number, line in enumerate(lines, start=1):
        if "<seg id" not in line:
            continue
        match = _SEGMENT.search(line)
        if match is None:
            raise InputError(
                "a `<seg>` does not end on its line.",
                "Put the whole segment, up to `</seg>`, on one line.",
                path=path,
                line=number,
            )
        if "<seg" in match.group(1):
            raise InputError(
                "there are two `<seg>` on this line.",
                "Put each segment on a line of its own.",
                path=path,
                line=number,
            )
        yield match.group(1).strip().replace("’", "'")


def read_tags(lines: Iterable[str], path: str = "") -> Iterator[str]:
    """Yield the text of a `train.tags` file.

    Lines with url, talkid, keywords, speaker, reviewer, translator and doc are left out; of title
    and description only the tags are removed. Raises InputError for text without any such tag.
    """
    has_text = has_tag = False
    for line in lines:
        if _DROPPED.match(line):
            has_tag = True
            continue
        text = _KEPT.sub("", line)
        has_text, has_tag = True, has_tag or text != line
        yield text
    if has_text and not has_tag:
        raise InputError(
            "the file is plain text: it has no `<seg>` and no other tag of IWSLT's XML.",
            "Leave out `--xml`, or name the XML file.",
            path=path,
        )
