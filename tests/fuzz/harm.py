"""Damage to valid files: changed bytes and JSON values, drawn by hypothesis."""

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

PIECES = (
    b"\x00", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\n", b"\n\n", b" ", b"\t", b"\x85",
    "\u2028".encode(), "\u0663".encode(), "\u00b2".encode(), b"-1", b"0", b"1e999", b"-0.0", b"NaN",
    b"Infinity", b"99999999999999999999", b"9" * 5000, b"[" * 5000, b'{"a":' * 2000, b'"\\ud800"',
    b"null", b"true", b"{}", b"[]", b'"', b"\\", b"1..9", b"..", b",", b":", b"@@", b"</w>", b"<s>",
    b"<seg id=", b"</seg>", b"#version: 0.2", b"#fairseq:overwrite", b"-", b"?", b"..........",
)  # fmt: skip
"""Bytes that readers may fail on."""
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1000, 50_000, 2**31, 2**63, 10**30, -0.5, 1e308, float("nan"),
    float("inf"), "",
    "x", "\ud800", "../../x", "/etc/passwd", [], {}, [[]], [None], {"a": []}, "1", [1, 2, 3],
)  # fmt: skip
"""JSON values that may replace valid ones."""

_NUMBER = st.sampled_from(range(1 << 20))  # as likely late in a file as early
_EDIT = st.tuples(
    st.sampled_from(("set", "insert", "delete", "double", "cut", "swap", "digit", "copy", "space")),
    _NUMBER, _NUMBER, st.one_of(st.sampled_from(PIECES), st.binary(max_size=12)),
)  # fmt: skip


def damaged(examples: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Return examples with one to four pieces changed, or arbitrary bytes."""
    changed = st.builds(_apply, st.sampled_from(examples), st.lists(_EDIT, min_size=1, max_size=4))
    soup = st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=9)), max_size=30)
    return st.one_of(changed, changed, changed, soup.map(b"".join))


def _apply(content: bytes, edits: Sequence[tuple[str, int, int, bytes]]) -> bytes:
    for kind, first, second, piece in edits:
        size = len(content) + 1
        begin = first % size
        end = min(len(content), begin + 1 + second % (1 + len(content) // 4))
        if kind == "set":
            content = content[:begin] + piece + content[begin + len(piece) :]
        elif kind == "insert":
            content = content[:begin] + piece + content[begin:]
        elif kind == "delete":
            content = content[:begin] + content[end:]
        elif kind == "double":
            content = content[:end] + content[begin:]
        elif kind == "cut":
            content = content[:begin]
        elif kind == "digit":
            content = content[:begin] + b"%d" % (second % 10) + content[begin + 1 :]
        elif kind == "copy":
            content = content[:begin] + content[second % size : second % size + 5] + content[begin:]
        elif kind == "space":
            content = content[:begin] + b" " + content[begin + 1 :]
        else:
            content = content[end:] + content[begin:end] + content[:begin]
    return content


def changed_values(values: Any) -> st.SearchStrategy[Any]:
    """Return copies of a JSON value in which one to three values are changed, lost or added."""
    edit = st.tuples(st.sampled_from(("set", "set", "drop", "add")), _NUMBER,
                     st.sampled_from(VALUES))  # fmt: skip
    return st.lists(edit, min_size=1, max_size=3).map(lambda edits: _edited(values, edits))


def _edited(values: Any, edits: Sequence[tuple[str, int, Any]]) -> Any:
    values = copy.deepcopy(values)
    for kind, number, drawn in edits:
        places, value = list(_places(values)), copy.deepcopy(drawn)
        if not places:
            return value
        holder, key = places[number % len(places)]
        if kind == "set":
            holder[key] = value
        elif kind == "drop":
            del holder[key]
        elif isinstance(holder, dict):
            holder["more"] = value
        else:
            holder.append(value)
    return values


def _places(values: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (holder, key) of everything in a value of tables and lists."""
    keys: list[Any] = []
    if isinstance(values, dict):
        keys = list(values)
    elif isinstance(values, list):
        keys = list(range(len(values)))
    for key in keys:
        yield values, key
        yield from _places(values[key])


def as_json(values: Any) -> bytes:
    """Return a value as in a JSON file; a lone surrogate stays an escape."""
    return json.dumps(values).encode()
