"""What recipes found, and the page recipes/RESULTS.md that is made from it.

python recipes/results.py keep EXPERIMENT --title TITLE --table FILE --command TEXT --out RECORD
    Keep the rows of FILE as a record: with the command, the day, the machine and the versions.
    FILE is JSON: a list of flat objects or {"rows": [...]}, or what `nmtgrid analyze latency`,
    `analyze curves`, `analyze activations` or `adaptive-tune` wrote with `--json` or `--out`.
python recipes/results.py adopt RECORD...
    Copy records into recipes/records, by experiment, corpus and scale, and write the page.
python recipes/results.py write
    Write the page from recipes/records, recipes/published.json and recipes/longer-runs.md.
python recipes/results.py check
    Say whether the page is what `write` would write; exit 1 if it is not.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import nmtgrid
from nmtgrid.online.published import CURVES

HERE = Path(__file__).resolve().parent
KEPT, PUBLISHED = HERE / "records", HERE / "published.json"
LONGER, PAGE = HERE / "longer-runs.md", HERE / "RESULTS.md"
MOST_ROWS = 40
PART = "part of the page"
PLACES = ("path", "folder", "file", "traces", "data")
"""Names under which commands write where on this machine something lay."""

Row = dict[str, Any]
Record = dict[str, Any]

INTRODUCTION = """\
# Results

This page is made by `python recipes/results.py write`: the tables of the recipes' own JSON
(`recipes/records`), published figures beside them, and, at the end, runs that were longer.

* **SMALL** tables are `SMALL=1` runs, dozens of updates of tiny models: that an experiment runs
  from its first command to its table or picture is all that they show. Their scores say nothing
  about a method.
* Other tables say on which corpus and how long. A published figure beside ours is of another size
  of data, model and training wherever the lines above it differ: it is there to be aimed at, not
  to be compared with.
* BLEU is sacreBLEU's, in percent, tokenised, with the signature
  `nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:2.6.0` unless a table names another.
  Latency counts source tokens in the thesis' convention.
"""


def keep(experiment: str, title: str, table: Path, command: str) -> Record:
    """Return a record of the rows of `table`. Raises SystemExit for a file without rows."""
    return {
        "experiment": experiment,
        "title": title,
        "command": command,
        "small": "SMALL=1" in command.split(),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "software": software(),
        "rows": rows_of(table),
    }


def machine() -> str:
    """Return the GPUs, or the processor and its cores where there is none."""
    if shutil.which("nvidia-smi"):
        ask = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        names = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.split("\n")
        if names[0]:
            return f"{len(names) - 1} x {names[0]}"
    name = platform.machine()
    facts = Path("/proc/cpuinfo")
    if facts.is_file() and (found := re.search(r"model name\s*: (.+)", facts.read_text())):
        name = found[1]
    return f"{name}, {os.cpu_count()} cores, no GPU"


def software() -> str:
    """Return the versions that a result rests on."""
    torch, python = metadata.version("torch"), platform.python_version()
    return f"nmtgrid {nmtgrid.__version__}, torch {torch}, Python {python}"


def rows_of(path: Path) -> list[Row]:
    """Return the rows of a table, each a flat object. Raises SystemExit where there are none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {path} cannot be read as JSON: {error}") from None
    found = _rows(values)
    if not found:
        raise SystemExit(f"error: {path} holds no rows that this program knows.")
    return [_flat(row) for row in found]


def _rows(values: Any) -> list[Row]:
    if isinstance(values, list):
        return [row for row in values if isinstance(row, dict)]
    for key in ("rows", "settings", "models", "systems"):
        if isinstance(values.get(key), list):
            return list(values[key])
    if "fixed" in values and "full" in values:
        return _tuned(values)
    # A page of several sections, or one section under its name.
    parts = {name: _rows(held) for name, held in values.items() if isinstance(held, dict)}
    parts = {name: rows for name, rows in parts.items() if rows}
    if len(parts) == 1:
        return next(iter(parts.values()))
    return [{PART: name} | row for name, rows in parts.items() for row in rows]


def _tuned(values: Mapping[str, Any]) -> list[Row]:
    """Return what `adaptive-tune` found: fixed exits, points, models trained alone, a promise."""
    kinds: dict[str, Callable[[Row], str]] = {
        "fixed": lambda row: f"exit {row['exit']}",
        "points": lambda row: f"budget {row['budget']:g}",
        "baselines": lambda row: f"{row['name']}, {row['depth']} blocks alone",
    }
    return [
        {"decoding": label(row)} | (row["test"] if isinstance(row.get("test"), dict) else row)
        for kind, label in kinds.items()
        for row in values[kind]
    ] + ([_promise(values["calibrated"])] if values.get("calibrated") else [])


def _promise(held: Mapping[str, Any]) -> Row:
    """Return what was promised of thresholds, and whether other sentences have kept to it."""
    test = held.get("test") or {}
    return {
        "decoding": f"promised to lose at most {held['allow_loss']:g} % ({held['risk']})",
        "confidence": held["confidence"],
        "certified": held["certified"],
        "loss_percent": held["loss"],
        "p_value": held["p_value"],
        "test_loss_percent": test.get("loss"),
        "holds_on_test": test.get("holds"),
    }


def _flat(row: Mapping[str, Any]) -> Row:
    """Return a row without lists and places of files; a mean keeps its deviation beside it."""
    flat: Row = {}
    for name, value in row.items():
        if isinstance(value, Mapping) and "mean" in value:
            flat[name] = dict(value)
        elif isinstance(value, Mapping):
            flat |= {f"{name}_{inner}": v for inner, v in _flat(value).items()}
        elif not isinstance(value, list) and name not in PLACES:
            flat[name] = value
    return flat


def adopt(paths: Sequence[Path]) -> None:
    """Copy records into the project, in the place of what is there of the same name."""
    for path in paths:
        record = read(path)
        record["rows"] = [_flat(row) for row in record["rows"]]
        target = KEPT / f"{'small-' if record['small'] else ''}{path.name}"
        _write(record, target)
        print(f"{target.name}: {len(record['rows'])} rows")


def read(path: Path) -> Record:
    """Return a record. Raises SystemExit for a file that is none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {path} cannot be read: {error}") from None
    wanted = {"experiment", "title", "command", "small", "date", "machine", "software", "rows"}
    if not isinstance(record, dict) or not wanted <= set(record):
        raise SystemExit(f"error: {path} is no record of `results.py keep`.")
    return record


def page(records: Mapping[str, Record], published: Mapping[str, Any], longer: str) -> str:
    """Return RESULTS.md of the records by name: longer runs before small ones."""
    groups: dict[str, list[Record]] = {}
    for record in sorted(records.values(), key=lambda one: one["small"]):
        groups.setdefault(_whole(record["experiment"]), []).append(record)
    parts = [INTRODUCTION, "## What there is\n\n" + _overview(groups, published)]
    for experiment in sorted({*groups, *published}, key=_order):
        held = groups.get(experiment, [])
        parts.append(f"## {_title(experiment, held)}\n")
        parts += [_ours(record) for record in held]
        if not held:
            parts.append("Not run yet.\n")
        if experiment in published:
            parts.append(_theirs(published[experiment]))
    return "\n".join(parts) + "\n" + longer


def _overview(groups: Mapping[str, Sequence[Record]], published: Mapping[str, Any]) -> str:
    lines = ["| experiment | runs |", "|---|---|"]
    for experiment in sorted({*groups, *published}, key=_order):
        runs = dict.fromkeys(f"`{one['command']}`" for one in groups.get(experiment, []))
        name = _title(experiment, groups.get(experiment, []))
        anchor = re.sub(r"[^a-z0-9 -]", "", name.lower()).replace(" ", "-")
        lines.append(f"| [{name}](#{anchor}) | {'<br>'.join(runs) or 'none'} |")
    return "\n".join(lines) + "\n"


def _whole(experiment: str) -> str:
    """Return the table or figure that `experiment` is a part of, as figure-4.12-pervasive is."""
    found = re.match(r"(?:table|figure)-[0-9A-Z]\.\d+", experiment)
    return found[0] if found else experiment


def _write(record: Record, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _order(experiment: str) -> tuple[int, list[int], str]:
    """Sort tables and figures by their numbers, appendices behind, what has no number last."""
    found = re.fullmatch(r"(?:table|figure)-([0-9A-Z])\.(\d+)(.*)", experiment)
    if not found:
        return (2, [], experiment)
    chapter = found[1]
    number = int(chapter) if chapter.isdigit() else 10 + ord(chapter) - ord("A")
    return (0 if chapter.isdigit() else 1, [number, int(found[2])], experiment)


def _title(experiment: str, held: Sequence[Record]) -> str:
    """Return a heading: the number of a table or figure, or what the first record is called."""
    kind, _, rest = experiment.partition("-")
    if kind in ("table", "figure"):
        return f"{kind.capitalize()} {rest}"
    return str(held[0]["title"]) if held else experiment


def _ours(record: Record) -> str:
    scale = "**SMALL.** " if record["small"] else ""
    parts: dict[str, list[Row]] = {}
    for row in record["rows"][:MOST_ROWS]:
        parts.setdefault(str(row.get(PART, "")), []).append(row)
    tables = [
        (f"{name.replace('_', ' ').capitalize()}:\n\n" if name else "") + table_of(rows)
        for name, rows in parts.items()
        if not name or len(_names(rows)) > 1
    ]
    left = len(record["rows"]) - MOST_ROWS
    more = f"\n{left} more rows are in the JSON.\n" if left > 0 else ""
    signatures = sorted({
        str(value) for row in record["rows"] for name, value in row.items()
        if name.startswith("signature")
    })  # fmt: skip
    return (
        f"{scale}{record['title']}: `{record['command']}`, {record['date']}, {record['machine']}, "
        f"{record['software']}.\n\n" + "\n".join(tables) + more + _notes(record, signatures)
    )


def table_of(rows: Sequence[Row]) -> str:
    """Return rows as a table in Markdown."""
    names = _names(rows)
    lines = [[name.replace("_", " ") for name in names], ["---"] * len(names)]
    lines += [[_cell(row, name) for name in names] for row in rows]
    return _markdown(lines)


def write_table(rows: Sequence[Row], prefix: str) -> None:
    """Write rows as PREFIX.md and, for `keep`, PREFIX.json; print the table."""
    table = table_of(rows)
    Path(f"{prefix}.md").write_text(table, encoding="utf-8")
    Path(f"{prefix}.json").write_text(json.dumps({"rows": rows}, indent=1), encoding="utf-8")
    print(table, end="")


def _names(rows: Sequence[Row]) -> list[str]:
    """Return the columns that have a value somewhere, of those that a page shows."""
    return [
        name for name in dict.fromkeys(name for row in rows for name in row)
        if name != PART and not name.startswith("signature")
        and any(row.get(name) not in (None, "") for row in rows)
    ]  # fmt: skip


def _cell(row: Row, name: str) -> str:
    value = row.get(name)
    if name == "k" and row.get("policy") == "wait-k":
        return "∞" if value is None else f"{value:g}"
    return shown(value)


def _notes(record: Record, signatures: Sequence[str]) -> str:
    told = [f"Signatures: {', '.join(f'`{one}`' for one in signatures)}."] if signatures else []
    return "".join(f"\n{note}\n" for note in [*told, *record.get("notes", [])])


def _theirs(held: Mapping[str, Any]) -> str:
    lines = [[str(name) for name in held["columns"]], ["---"] * len(held["columns"])]
    lines += [[shown(value) for value in row] for row in held["rows"]]
    return f"Published ({held['what']}):\n\n" + _markdown(lines)


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def shown(value: Any) -> str:
    """Return a cell's text: numbers with as many digits as tell something."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        spread = value.get("standard_deviation")
        return shown(value["mean"]) + ("" if spread is None else f" ± {shown(spread)}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    if value == 0 or abs(value) >= 0.1:
        return f"{value:.2f}"
    return f"{value:.2g}"


def online() -> dict[str, Row]:
    """Return the published curves of figures 4.12 to 4.14, a row for each point."""
    rows: dict[str, list[list[Any]]] = {"figure-4.12": [], "figure-4.13": [], "figure-4.14": []}
    for curve in CURVES:
        wait_k = "figure-4.13" if curve.data.startswith("wmt15") else "figure-4.12"
        rows[wait_k if curve.policy == "wait-k" else "figure-4.14"] += [
            [curve.data, curve.label, curve.source, *figures]
            for figures in ((point.setting, point.bleu, point.al) for point in curve.points)
        ]
    columns = ["corpus", "system", "source", "k or threshold", "BLEU", "AL"]
    what = "test sets, greedy; the sources are in nmtgrid/online/published.py"
    return {name: {"what": what, "columns": columns, "rows": held} for name, held in rows.items()}


def written() -> str:
    """Return the page of what is kept in the project."""
    records = {path.stem: read(path) for path in sorted(KEPT.glob("*.json"))}
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    return page(records, published | online(), LONGER.read_text(encoding="utf-8"))


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="what", required=True)
    keeping = commands.add_parser("keep", help="keep a table as a record")
    keeping.add_argument("experiment")
    for name in ("title", "command"):
        keeping.add_argument(f"--{name}", required=True)
    for name in ("table", "out"):
        keeping.add_argument(f"--{name}", type=Path, required=True)
    adopting = commands.add_parser("adopt", help="copy records into the project")
    adopting.add_argument("records", nargs="+", type=Path)
    commands.add_parser("write", help="write the page")
    commands.add_parser("check", help="compare the page with what it should be")
    given = parser.parse_args()
    if given.what == "keep":
        _write(keep(given.experiment, given.title, given.table, given.command), given.out)
        return 0
    if given.what == "adopt":
        adopt(given.records)
    if given.what == "check":
        is_current = PAGE.read_text(encoding="utf-8") == written()
        print("current" if is_current else f"{PAGE.name} is not what `results.py write` writes")
        return not is_current
    PAGE.write_text(written(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
