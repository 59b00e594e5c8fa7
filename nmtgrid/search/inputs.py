"""What a translator is given: models that fit together, lines and pairs of raw text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from nmtgrid.base.errors import ConfigError, InputError, ModelError
from nmtgrid.models.directory import LoadedModel

_SHOWN = 40
"""Characters of what is no pair that are shown."""


def check_lines(lines: Iterable[object], what: str = "lines") -> None:
    """Raise TypeError for one string: its letters would be taken for lines."""
    if isinstance(lines, (str, bytes)):
        raise TypeError(
            f"{what} must be several strings, not one: its letters would be taken for lines. "
            f"Pass a list, also of one line: [{_short(lines)}]."
        )


def check_pairs(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the pairs of raw source and target. Raises TypeError for what is no such pair."""
    check_lines(pairs, "pairs")
    found: list[tuple[str, str]] = []
    for number, pair in enumerate(pairs, start=1):
        is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
        if not (is_pair and all(isinstance(side, str) for side in pair)):
            raise TypeError(
                f"pairs must be pairs of strings, source and target, but number {number} is "
                f"{_short(pair)}. Pass a list, also of one pair: [(source, target)]."
            )
        found.append(pair)
    return found


def with_prefixes(
    lines: Iterable[str], prefixes: Iterable[str] | None
) -> Iterator[tuple[str, str]]:
    """Yield each line with the beginning of its translation; all begin freely where none are given.

    Raises InputError when there are fewer or more prefixes than lines.
    """
    if prefixes is None:
        yield from ((line, "") for line in lines)
        return
    held, count = iter(prefixes), 0
    for count, line in enumerate(lines, start=1):
        prefix = next(held, None)
        if prefix is None:
            raise unequal_prefixes(count - 1, f"line {count:,} has none")
        yield line, prefix
    if next(held, None) is not None:
        raise unequal_prefixes(count + 1, f"there are only {count:,} lines")


def unequal_prefixes(count: int, told: str, path: str | Path = "") -> InputError:
    """Return the fault of `count` prefixes (at least) that are not one for each line."""
    return InputError(
        f"there are prefixes for {count:,} lines, but {told}.",
        "Give one for each line of the input, an empty one where the translation begins freely.",
        path=path,
    )


def check_ensemble(loaded: Sequence[LoadedModel]) -> None:
    """Raise ConfigError without a model, ModelError unless all prepare text alike."""
    if not loaded:
        raise ConfigError("There is no model to translate with.")
    first, advice = loaded[0], "Only models made from one dataset can be averaged."
    for other in loaded[1:]:
        both = f"{first.folder} and {other.folder}"
        for side in ("source", "target"):
            types = [getattr(one.pipeline, f"{side}_vocabulary").types for one in (first, other)]
            if types[0] != types[1]:
                sizes = f"{len(types[0]):,} and {len(types[1]):,} types"
                raise ModelError(f"{both} have different {side} vocabularies ({sizes}).", advice)
        if first.pipeline.facts != other.pipeline.facts:
            raise ModelError(f"{both} prepare text differently.", advice)


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
