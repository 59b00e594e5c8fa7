"""Converts dictionaries and BPE codes of other programs.

A dictionary of fairseq is a text file with `token count` on each line. Its ids begin with `<s>`,
`<pad>`, `</s>` and `<unk>`, which the file omits, and continue in the order of the lines; ours
begin with `<pad>` and `<s>`, and all others are the same. A line that ends with
`#fairseq:overwrite` replaces an earlier line with the same token, whose id is then unused. Fillers
(`madeupword0000`) are types like any other, but no text contains them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from torch import Tensor

from nmtgrid.base.errors import InputError
from nmtgrid.base.io.text import DAMAGED, check_file, open_text, read_error, read_lines
from nmtgrid.text.bpe import Codes
from nmtgrid.text.vocabulary import SPECIALS, Vocabulary

_OVERWRITE = "#fairseq:overwrite"
# Maximum bytes and types of a dictionary: ten times those of any known one.
_MAX_BYTES, _MAX_TYPES = 1 << 25, 1_000_000


def read_dictionary(path: Path) -> Vocabulary:
    """Return the vocabulary of a dictionary, whose ids from 4 on are those of the file.

    Types that no text can contain (unused ids, names with spaces) get names in angle brackets.
    Raises InputError with the line that is not an entry or repeats a token.
    """
    names: list[str | None] = []
    counts: list[int] = []
    indices: dict[str, int | None] = dict.fromkeys(SPECIALS)
    for number, line in enumerate(_lines(path), start=1):
        name, count, overwrites = _entry(line, path, number)
        if name in indices and not overwrites:
            raise InputError(
                f"the token `{name[:60]}` is listed twice.",
                f"Add ` {_OVERWRITE}` to the line if it is meant to replace the earlier one, as in "
                "early versions of fairseq.",
                path=path,
                line=number,
            )
        before = indices.get(name)
        if before is not None:
            # The earlier line keeps its id, which no text produces any more.
            names[before] = None
        # Our text is split at spaces, so a name that contains one could never match.
        is_word = name not in SPECIALS and name.split() == [name] and "\0" not in name
        indices[name] = len(names) if is_word else None
        names.append(name if is_word else None)
        # Fillers may have a count of -1; our files have at most 18 digits.
        counts.append(min(max(count, 0), 10**18 - 1))
    if not names:
        raise InputError("the file contains no tokens.", "Give fairseq's `dict.*.txt`.", path=path)
    return Vocabulary(named(names), counts)


def reordered(rows: Tensor) -> Tensor:
    """Return `rows`, in fairseq's order of types, in our order: `<s>` and `<pad>` swap.

    rows [V, ...] are embeddings, or weights or biases of a classifier.
    """
    swapped = rows.clone()
    swapped[0], swapped[1] = rows[1], rows[0]
    return swapped


def read_codes(path: Path) -> Codes:
    """Return the codes in `path`: subword-nmt's, or fastBPE's, which have a count on each line.

    Raises InputError with the invalid line.
    """
    check_file(path)
    lines = read_lines(path)
    first = next(lines)
    # Only fastBPE writes a count after the two units of a merge.
    if first.count(" ") != 2 or not first.rpartition(" ")[2].isdecimal():
        return Codes.load(path)
    merges = []
    for number, line in enumerate(chain([first], lines), start=1):
        fields = line.strip("\r ").split(" ")
        if len(fields) != 3 or not fields[2].isdecimal() or not all(f.strip("\r") for f in fields):
            raise InputError(
                f"a merge of fastBPE must be two units and a count, but is `{line[:60]}`.",
                "Give the codes of fastBPE or subword-nmt.",
                path=path,
                line=number,
            )
        merges.append(" ".join(fields[:2]))
    return Codes(merges)


def _lines(path: Path) -> list[str]:
    """Return the lines of a text as Python reads them: any kind of line end counts."""
    with open_text(path) as file:
        try:
            # One byte beyond the limit reveals a file that is too large without reading all of it.
            raw = file.read(_MAX_BYTES + 1)
            text = raw.decode("utf-8")
        except UnicodeDecodeError as fault:
            line = raw[: fault.start].count(b"\n") + 1
            raise InputError(
                "is not valid UTF-8.", "Give fairseq's `dict.*.txt`.", path=path, line=line
            ) from fault
        except (*DAMAGED, OSError) as fault:
            raise read_error(path, fault) from fault
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if len(raw) > _MAX_BYTES or text.count("\n") > _MAX_TYPES:
        raise InputError(
            "is too large for a dictionary.", "Give fairseq's `dict.*.txt`.", path=path
        )
    return text.removesuffix("\n").split("\n") if text else []


def _entry(line: str, path: Path, number: int) -> tuple[str, int, bool]:
    """Return (token, count, whether it replaces an earlier line) of a line."""
    name, _, count = line.rstrip().rpartition(" ")
    overwrites = count == _OVERWRITE
    if overwrites:
        name, _, count = name.rpartition(" ")
    digits = count.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19 and " " in line):
        raise InputError(
            f"a line of a dictionary must be `token count`, but is `{line[:60]}`.",
            "Give fairseq's `dict.*.txt`, as `fairseq-preprocess` wrote it.",
            path=path,
            line=number,
        )
    return name, int(count), overwrites


def named(names: Sequence[str | None]) -> list[str]:
    """Return the names, with a new one such as `<line-7>` for each that is None."""
    # A real token may look like our filler, which then gets one bracket more.
    words = [(name, name.lstrip("<")) for name in names if name is not None]
    brackets = [len(name) - len(word) for name, word in words if word.startswith("line-")]
    prefix = "<" * (1 + max(brackets, default=0)) + "line-"
    return [f"{prefix}{line}>" if name is None else name for line, name in enumerate(names, 1)]
