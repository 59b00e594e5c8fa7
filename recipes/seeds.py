"""Combines records of an experiment that were made with different seeds.

Seeds of a table can be trained separately, each with its own record: `python -m recipes.results
adopt --other-seeds` combines it with the existing one. Means and sample deviations are those of all
seeds together, computed from means, deviations and counts only. The commands may differ in their
seeds, their folders and the other experiments that they ran; models of one row must have equally
many parameters. Records whose command does not set UPDATES, so that time may limit the training,
must be from machines of the same speed (recipes/machine.py).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

Record = dict[str, Any]
EACH_SEED = ("p_of_bleu", "of_each_seed", "p_of_each_seed")
"""Columns that list a value per seed; so do those of intervals (SYSTEM_95_%)."""
PART = "part of the page"
"""Column that separates the tables of a record. A newer recipe may have added a table."""
NO_SETTINGS = ("SEED", "SEEDS", "ROUNDS", "DATA", "NMTGRID_DATA")
"""Variables of a command that do not affect the training and scoring of a seed."""
LIKE = 1.2
"""Machines whose speeds differ by less than this factor count as equally fast."""


def combine(first: Record, other: Record) -> Record:
    """Return a record over the seeds of both. Its picture is that of the first.

    Raises SystemExit for different experiments, a common seed, different settings or rows, or
    machines of different speed if the command does not set UPDATES.
    """
    name = first["experiment"]
    if name != other["experiment"]:
        raise SystemExit(f"error: {name} and {other['experiment']} are two experiments.")
    seeds = seeds_of(first), seeds_of(other)
    if both := [seed for seed in seeds[0] if seed in seeds[1]]:
        raise SystemExit(f"error: both records of {name} have seed {both[0]}.")
    _same_settings(name, _settings(first), _settings(other))
    if not any("UPDATES" in settings for settings in _settings(first)):
        _same_speed(name, first.get("speed", {}), other.get("speed", {}))
    rows = _rows(name, (first["rows"], other["rows"]), [len(each) for each in seeds])
    together = {
        key: "; ".join(dict.fromkeys(texts))
        for key in ("command", "machine", "software", "commit")
        if (texts := [record[key] for record in (first, other) if key in record])
    }
    notes = list(dict.fromkeys([*first.get("notes", []), *other.get("notes", [])]))
    return (
        first
        | together
        | {"date": max(first["date"], other["date"]), "seeds": " ".join(seeds[0] + seeds[1])}
        | {"rows": rows}
        | ({"notes": notes} if notes else {})
    )


def _settings(record: Record) -> list[dict[str, str]]:
    """Return the script and the variables of each command of a record, except NO_SETTINGS."""
    commands = []
    for command in record["command"].split("; "):
        words = shlex.split(command)
        start = next((n for n, word in enumerate(words) if "=" not in word), len(words))
        variables = dict(word.split("=", 1) for word in words[:start])
        # Arguments after the script only select experiments.
        commands.append({"script": " ".join(words[start : start + 2])} | {
            key: value for key, value in variables.items() if key not in NO_SETTINGS
        })  # fmt: skip
    return commands


def _same_settings(
    name: str, first: Sequence[dict[str, str]], other: Sequence[dict[str, str]]
) -> None:
    """Raise SystemExit if the commands of two records have different settings."""
    for settings in other:
        if settings in first:
            continue
        differences = ", ".join(
            f"{key}: {first[-1].get(key, 'not set')} and {settings.get(key, 'not set')}"
            for key in sorted(first[-1].keys() | settings.keys())
            if first[-1].get(key) != settings.get(key)
        )
        raise SystemExit(
            f"error: the commands of the records of {name} have other settings: {differences}."
        )


def _same_speed(name: str, first: Mapping[str, float], other: Mapping[str, float]) -> None:
    """Raise SystemExit for machines of different speed; old records do not have the speed."""
    for precision in sorted(first.keys() & other.keys()):
        rates = first[precision], other[precision]
        if max(rates) > LIKE * min(rates):
            raise SystemExit(
                f"error: the records of {name} are from machines of unlike speed: {rates[0]} and "
                f"{rates[1]} GFLOP/s in {precision}. In the same minutes, the faster one trains "
                "further."
            )


def seeds_of(record: Record) -> list[str]:
    """Return the seeds of a record, by default seed 1."""
    return str(record.get("seeds", "1")).split()


def _rows(
    name: str, tables: Sequence[Sequence[dict[str, Any]]], counts: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the rows over all seeds; a table that only one record has is copied."""
    parts = dict.fromkeys(row.get(PART) for table in tables for row in table)
    rows: list[dict[str, Any]] = []
    for part in parts:
        left, right = ([row for row in table if row.get(PART) == part] for table in tables)
        if part is not None and not (left and right):
            rows += left or right
            continue
        if len(left) != len(right):
            raise SystemExit(
                f"error: the records of {name} have {len(left)} and {len(right)} rows."
            )
        # Rows are in the order of training, which may differ between versions of a recipe.
        order = {_texts(row): index for index, row in enumerate(left)}
        if len(order) == len(left) and order.keys() == set(map(_texts, right)):
            right = sorted(right, key=lambda row: order[_texts(row)])
        rows += [
            _row(f"row {number} of {name}", pair, counts)
            for number, pair in enumerate(zip(left, right, strict=True), len(rows) + 1)
        ]
    return rows


def _texts(row: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the key of a row: its text columns, except signatures and values per seed."""
    return tuple(
        (name, value)
        for name, value in row.items()
        if isinstance(value, str) and not (_is_per_seed(name) or name.startswith("signature"))
    )


def _is_per_seed(name: str) -> bool:
    """Return whether a column lists a value per seed."""
    return name in EACH_SEED or name.endswith("_95_%")


def _row(where: str, pair: Sequence[Mapping[str, Any]], counts: Sequence[int]) -> dict[str, Any]:
    """Return a row over all seeds.

    A column that one record lacks is dropped, unless it lists a value per seed.
    """
    few, many = sorted(pair, key=len)
    if not few or few.keys() - many.keys():
        names = ", ".join(sorted(few.keys() ^ many.keys()))
        raise SystemExit(f"error: {where} has other columns in one record: {names}.")
    unknown = [", ".join("–" for _ in range(count)) for count in counts]
    return {
        name: _value(
            f"{name} in {where}", name,
            [row.get(name, none) for row, none in zip(pair, unknown, strict=True)], counts,
        )
        for name in many
        if name in few or _is_per_seed(name)
    }  # fmt: skip


def _value(where: str, name: str, values: Sequence[Any], counts: Sequence[int]) -> Any:
    """Return the value over all seeds: settings must agree, measurements are averaged."""
    if name == "seeds":
        texts = isinstance(values[0], str)
        return " ".join(values) if texts else sum(values)
    if _is_per_seed(name):
        return ", ".join(values)
    known = [(value, n) for value, n in zip(values, counts, strict=True) if value is not None]
    if len(known) < 2 or (values[0] == values[1] and not isinstance(values[0], Mapping)):
        return known[0][0] if known else None
    numeric = all(isinstance(value, float | int | Mapping) for value, _ in known)
    if name == "parameters" or not numeric:
        raise SystemExit(f"error: {where} is {values[0]!r} in one record and {values[1]!r}.")
    if all(isinstance(value, int) and not isinstance(value, bool) for value, _ in known):
        return round(sum(value * n for value, n in known) / sum(n for _, n in known))
    return _spread([
        (n, value["mean"], value["standard_deviation"]) if isinstance(value, Mapping)
        else (n, value, None)
        for value, n in known
    ])  # fmt: skip


def _spread(parts: Sequence[tuple[int, float, float | None]]) -> dict[str, float | None]:
    """Return mean and sample deviation of all values, from count, mean and deviation of each part.

    The deviation is None if that of a part with several values is unknown.
    """
    total = sum(n for n, _, _ in parts)
    mean = sum(n * m for n, m, _ in parts) / total
    if any(n > 1 and deviation is None for n, _, deviation in parts):
        return {"mean": mean, "standard_deviation": None}
    squares = sum((n - 1) * (d or 0.0) ** 2 + n * (m - mean) ** 2 for n, m, d in parts)
    return {"mean": mean, "standard_deviation": math.sqrt(squares / (total - 1))}
