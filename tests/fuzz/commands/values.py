"""Values that replace valid ones in options, settings, files and JSON."""

import gzip
from typing import Any

from tests.fuzz.harm import VALUES

_LONG = "x" * 5000

TEXTS: dict[str, str] = {
    "5000 digits": "9" * 5000,
    "negative": "-1",
    "large negative": "-99999999999999999999",
    "zero": "0",
    "negative zero": "-0",
    "one": "1",
    "three": "3",
    "fraction": "0.5",
    "small fraction": "1e-320",
    "1e308": "1e308",
    "nan": "nan",
    "inf": "inf",
    "10**400": "1" + "0" * 400,
    "2**31": str(2**31),
    "2**63": str(2**63),
    "other digits": "\u0663",
    "superscript": "\u00b2",
    "wide digits": "\uff11",
    "underscore": "1_000",
    "hexadecimal": "0x10",
    "spaces": " 1 ",
    "empty": "",
    "blank": "  ",
    "long": _LONG,
    "script": "<script>alert(1)</script>",
    "list": "[1, 2]",
    "list of one": "[1]",
    "huge list": "[" + ",".join(["1"] * 3000) + "]",
    "nested": "[" * 3000,
    "nested whole": "[" * 3000 + "]" * 3000,
    "object": '{"a": 1}',
    "null": "null",
    "none": "none",
    "true": "true",
    "span": "1..3",
    "span down": "3..1",
    "huge span": "1..999999999999",
    "fine span": "0..1:1e-12",
    "commas": ",,",
    "equals": "a=b=c",
    "only a name": "name=",
    "dash": "-",
    "option": "--help",
    "control": "a\x1b[31m\x07\r\nb",
    "zero width": "a\u200b\u202eb\ufeff",
    "surrogate": "\udcff",
    "CJK": "\u6f22\u5b57\u304b\u306a",
    "dots": "../..",
    "slash": "a/b",
    "glob": "*",
    "braces": "{0.__class__}%s%n",
    "brackets": "[bold]x[/nobody]",
}
"""Values of options and settings. Arguments of a process cannot contain a zero byte."""

PATHS = (
    "missing", "missing folder", "folder", "empty folder", "file", "FIFO", "/dev/null", "/dev/zero",
    "/dev/full", "link", "link to nothing", "link to itself", "binary", "empty file", "zero width",
    "one word", "CJK", "unreadable", "standard",
)  # fmt: skip
"""Kinds of files that a path names instead (see `replacements.py`)."""

CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "one newline": b"\n",
    "newlines": b"\n" * 2000,
    "spaces": b"   \n" * 9,
    "binary": bytes(range(256)) * 40,
    "zeros": bytes(5000),
    "no UTF-8": b"a\xff\xfeb\n" * 4,
    "byte order mark": b"\xef\xbb\xbfa b\n",
    "UTF-16": "a b\n".encode("utf-16"),
    "CR": b"a b\rc d\r\n" * 3,
    "line separators": "a\u2028b\u2029c\x85d\x0be\x1cf\n".encode() * 4,
    "zero width": "a\u200b\u200db\u202e \u200b\n\u200b\n\ufeff\nc\n".encode(),
    "CJK": "\u6f22\u5b57\u304b\u306a\u6f22\u5b57\n".encode() * 4,
    "combining": ("a" + "\u0301" * 3000 + "\n").encode() * 4,
    "one word": b"w" * 1_000_000 + b"\n",
    "one word each": (b"w" * 250_000 + b"\n") * 4,
    "many words": b"a " * 10_000 + b"\n",
    "many lines": b"a b\n" * 20_000,
    "5000 digits": b"9" * 5000 + b"\n",
    "numbers": b"nan\ninf\n-1\n1e999\n",
    "other digits": "\u0663-\u0664\n".encode() * 4,
    "links": b"0-0 99999999999999999999-0\n-1-0\n0-0-0\n0-\n",
    "script": b"<script>alert(1)</script> <b>&\n" * 4,
    "nested": b"[" * 3000,
    "nested whole": b"[" * 3000 + b"]" * 3000 + b"\n",
    "nested objects": b'{"a":' * 3000 + b"1" + b"}" * 3000 + b"\n",
    "JSON null": b"null\n",
    "JSON list": b"[]\n",
    "JSON object": b"{}\n",
    "JSON number": b"1" * 5000 + b"\n",
    "JSON NaN": b'{"a": NaN}\n' * 4,
    "JSON twice": b'{"format": 1, "format": 2}\n',
    "gzip": gzip.compress(b"a b\n" * 4, mtime=0),
    "half a gzip": gzip.compress(bytes(range(256)) * 9, mtime=0)[:60],
    "specials": b"<pad> <s> </s> <unk> @@ @@\n" * 4,
    "bars": b"||| ||| |||\n" * 4,
    "codes": b"#version: 0.2\n",
    "half": b"",
    "twice": b"",
}
"""Contents of whole files; `half` and `twice` are derived from the original content."""

LEAVES: dict[str, Any] = {
    **{f"{value!r}"[:24]: value for value in VALUES},
    "10**400": 10**400,
    "-10**30": -(10**30),
    "long": _LONG,
    "script": "<script>alert(1)</script>",
    "list of lists": [[1, [2, [3]]]],
    "huge list": [1] * 20_000,
    "nested": None,
    "5000 digits": None,
    "left out": None,
}
"""Values in JSON; the last three are inserted as text, or by removing something."""
_NESTED = "[" * 3000 + "]" * 3000
SPLICED = {"nested": _NESTED, "5000 digits": "9" * 5000}
"""Values in JSON that Python does not write."""

LARGE = {
    "5000 digits", "1e308", "10**400", "2**31", "2**63", "huge span", "fine span", "huge list",
    "10**30", "1e+308", "50000", "2147483648", "9223372036854775808", "1000000000000000000000000",
}  # fmt: skip
"""Values that may mean much work in options that set the amount of work."""
LARGE_TEXTS = {"one word", "one word each"}
"""Contents of a megabyte, all of which must be translated."""
AMOUNTS = {
    "--max-updates", "--max-minutes", "--max-epochs", "--toy", "--toy-pictures", "--samples",
    "--repeats", "--bootstrap", "--iterations", "--workers", "--candidates", "--finalists",
    "--batch", "--beam", "--nbest", "--source-vocab-size", "--target-vocab-size",
}  # fmt: skip
"""Options that set the amount of work; among settings, these are all sizes of a model."""
