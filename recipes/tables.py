"""Tables of the recipes: rows of JSON, and their values as the text of cells in Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.markdown import table_row
from recipes.seeds import PART

WRITTEN = {
    "bleu": "BLEU", "nll": "NLL", "al": "AL", "dal": "DAL", "laal": "LAAL", "yaal": "YAAL",
    "ap": "AP", "aer": "AER", "cw": "CW", "chrf": "chrF", "cider": "CIDEr", "flops": "FLOPs",
    "gflop": "GFLOP", "mflops": "MFLOPs", "mebibytes": "MiB", "bits": "bits/token",
    "beam1": "BLEU, greedy", "beam5": "BLEU, beam 5",
}  # fmt: skip
"""Spelling of words of column names in headings."""
HEADINGS = {
    "greedy": "BLEU, greedy", "training_speed": "training, target tokens/s",
    "decoding_speed": "greedy decoding, target tokens/s", "mflops": "MFLOPs per token",
    "label": "budget of average exit, or exit", "share": "time / that of the full stack",
    "words that decided": "words measured",
}  # fmt: skip
"""Headings of columns whose names are not self-explanatory."""

Row = dict[str, Any]


def read_json(path: Path) -> Any:
    """Return the JSON that an earlier step of a recipe wrote. Raises SystemExit if missing."""
    if not path.is_file():
        raise SystemExit(f"error: {path} is missing: has the recipe run to its end?")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {path} cannot be read as JSON: {error}") from None


def table_of(rows: Sequence[Row]) -> str:
    """Return rows as a table in Markdown."""
    names = columns(rows)
    lines = [[heading(name) for name in names], ["---"] * len(names)]
    lines += [[_cell(row, name) for name in names] for row in rows]
    return markdown(lines)


def heading(name: str) -> str:
    """Return the heading of a column: `valid_nll` is "valid NLL"."""
    return HEADINGS.get(name) or " ".join(WRITTEN.get(word, word) for word in name.split("_"))


def write_table(rows: Sequence[Row], prefix: str) -> None:
    """Write rows as PREFIX.md and, for `keep`, PREFIX.json; print the table."""
    table = table_of(rows)
    Path(f"{prefix}.md").write_text(table, encoding="utf-8")
    Path(f"{prefix}.json").write_text(json.dumps({"rows": rows}, indent=1), encoding="utf-8")
    print(table, end="")


def find(rows: Sequence[Row], **values: Any) -> Row:
    """Return the row with these values. Raises ValueError unless there is exactly one."""
    (row,) = (row for row in rows if values.items() <= row.items())
    return row


def areas_of(rows: Sequence[Row], system: str, curve: str | None) -> dict[str, Row]:
    """Return the rows of areas between a curve and wait-k, by latency metric.

    `curve` None: relative to wait-k of the model that the system was trained from.
    """
    return {
        row["latency"]: row
        for row in rows
        if row["system"] == system and "latency" in row and row.get("curve") == curve
    }


def mean_of(value: Any) -> float:
    """Return a value, or the mean of several seeds."""
    return float(value["mean"] if isinstance(value, Mapping) else value)


def gain_of(row: Row) -> str:
    """Return the gain of a row's loss over maximum likelihood, in BLEU."""
    return signed(row["above_mle"])


def signed(value: Any) -> str:
    """Return a difference with its sign, and its deviation if there are several seeds."""
    deviation = value.get("standard_deviation") if isinstance(value, Mapping) else None
    return f"{mean_of(value):+.1f}" + ("" if deviation is None else f" ± {deviation:.1f}")


def columns(rows: Sequence[Row]) -> list[str]:
    """Return the columns that a page shows: those with a value in some row.

    Columns whose names are numbers, such as exits, are grouped in ascending order.
    """
    names = [
        name for name in dict.fromkeys(name for row in rows for name in row)
        if name != PART and not name.startswith("signature")
        and any(row.get(name) not in (None, "") for row in rows)
    ]  # fmt: skip
    numbers = sorted(filter(str.isdigit, names), key=int)
    if not numbers:
        return names
    first = next(position for position, name in enumerate(names) if name.isdigit())
    others = [name for name in names if not name.isdigit()]
    return others[:first] + numbers + others[first:]


def _cell(row: Row, name: str) -> str:
    value = row.get(name)
    if name == "k" and row.get("policy") == "wait-k":
        return "∞" if value is None else f"{value:g}"
    return shown(value)


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells as a Markdown table; the first line is the header."""
    return "".join(f"{table_row(line)}\n" for line in lines)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a text file."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def shown(value: Any) -> str:
    """Return a value as the text of a cell; numbers have two decimals or two significant digits."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        mean, spread = shown(value["mean"]), value.get("standard_deviation")
        if spread is None:
            return mean
        decimals = len(mean.partition(".")[2])
        return f"{mean} ± {shown(spread) if 'e' in mean else f'{spread:,.{decimals}f}'}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    if value == 0 or abs(value) >= 0.1:
        return f"{value:.2f}"
    return f"{value:.2g}"
