"""Records of the results of recipes, and the pages that are generated from them.

python -m recipes.results keep EXPERIMENT --title TITLE --table FILE --command TEXT --out RECORD
        [--seeds "1 2"] [--picture PNG] [--note TEXT]
    Save the rows of FILE as a record, with the command, the date, the machine, its speed, the
    software versions, the commit of the checkout and the note; a picture is copied next to it.
    FILE is JSON: a list of flat objects or {"rows": [...]}, or the output of `nmtgrid analyze
    latency`, `analyze curves`, `analyze activations` or `adaptive-tune` (`--json` or `--out`).
python -m recipes.results adopt [--other-seeds] [--title TITLE] [--note TEXT] RECORD...
    Copy records to recipes/records and their pictures to recipes/figures, and write the pages.
    --other-seeds combines each with the existing record of other seeds (recipes/seeds.py);
    --title and --note change the title and add a note.
python -m recipes.results write
    Write the pages (recipes/results_page.py) from recipes/records and recipes/published.json.
python -m recipes.results check
    Report whether the pages are current; exit 1 if they are not.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtgrid.base.errors import NmtgridError
from nmtgrid.base.io.atomic import make_folder, write_text
from recipes.machine import commit, machine, software, speed
from recipes.seeds import PART, Record, combine
from recipes.tables import Row, read_json

HERE = Path(__file__).resolve().parent
RECORDS = HERE / "records"
FIGURES = HERE / "figures"
PLACES = ("path", "folder", "file", "traces", "data")
"""Names of values that are local paths."""


def keep(experiment: str, title: str, table: Path, command: str, seeds: str = "1") -> Record:
    """Return a record of the rows of `table`. Raises SystemExit for a file without rows."""
    revision = commit()
    return {
        "experiment": experiment,
        "title": title,
        "command": command,
        "seeds": seeds,
        "small": "SMALL=1" in command.split(),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "speed": speed(),
        "software": software(),
        **({"commit": revision} if revision else {}),
        "rows": rows_of(table),
    }


def rows_of(path: Path) -> list[Row]:
    """Return the rows of a table as flat objects. Raises SystemExit if there are none."""
    values = read_json(path)
    rows = _rows(values) if isinstance(values, dict | list) else []
    if not rows:
        raise SystemExit(f"error: {path} has no rows in a known format.")
    return [_flat(row) for row in rows]


def _rows(values: Any) -> list[Row]:
    if isinstance(values, list):
        return [row for row in values if isinstance(row, dict)]
    for key in ("rows", "settings", "models", "systems"):
        if isinstance(values.get(key), list):
            return _rows(values[key])
    if "fixed" in values and "full" in values:
        return _tuned(values)
    # Several named sections, or a single one.
    parts = {name: _rows(section) for name, section in values.items() if isinstance(section, dict)}
    parts = {name: rows for name, rows in parts.items() if rows}
    if len(parts) == 1:
        return next(iter(parts.values()))
    return [{PART: name} | row for name, rows in parts.items() for row in rows]


def _tuned(values: Mapping[str, Any]) -> list[Row]:
    """Return the rows of `adaptive-tune`: exits, points, baselines, a guarantee.

    A row that is dominated by another on that machine names it.
    """
    kinds: dict[str, Callable[[Row], str]] = {
        "fixed": lambda row: f"exit {row['exit']}",
        "verified": lambda row: f"verified {row['exit']}",
        "points": lambda row: f"budget {row['budget']:g}",
        "baselines": lambda row: f"{row['name']}, {row['depth']} blocks alone",
    }
    return [
        {"decoding": label(row)}
        | (row["test"] if isinstance(row.get("test"), dict) else row)
        | ({"beaten_by": row["beaten_by"]} if row.get("beaten_by") else {})
        for kind, label in kinds.items()
        for row in values.get(kind, ())
    ] + ([_guarantee(values["calibrated"])] if values.get("calibrated") else [])


def _guarantee(facts: Mapping[str, Any]) -> Row:
    """Return the guarantee of the thresholds, and whether it held on the test split."""
    test = facts.get("test") or {}
    return {
        "decoding": f"guaranteed to lose at most {facts['allow_loss']:g} % ({facts['risk']})",
        "confidence": facts["confidence"],
        "certified": facts["certified"],
        "loss_percent": facts["loss"],
        "p_value": facts["p_value"],
        "test_loss_percent": test.get("loss"),
        "holds_on_test": test.get("holds"),
    }


def _flat(row: Mapping[str, Any]) -> Row:
    """Return a flat row without lists and file paths; a mean stays together with its deviation."""
    flat: Row = {}
    for name, value in row.items():
        if isinstance(value, Mapping) and "mean" in value:
            flat[name] = dict(value)
        elif isinstance(value, Mapping):
            flat |= {f"{name}_{inner}": v for inner, v in _flat(value).items()}
        elif not isinstance(value, list) and name not in PLACES:
            flat[name] = value
    return flat


def adopt(
    paths: Sequence[Path], other_seeds: bool = False, title: str = "", note: str = ""
) -> None:
    """Copy records into the project, replacing those of the same name.

    With `other_seeds`, each is combined with the existing record instead. A title replaces that of
    the recipe; a note is added.
    """
    for path in paths:
        record = read(path)
        record["rows"] = [_flat(row) for row in record["rows"]]
        target = RECORDS / f"{'small-' if record['small'] else ''}{path.name}"
        if other_seeds:
            record = combine(read(target), record)
        if title:
            record["title"] = title
        if note:
            record["notes"] = [*record.get("notes", []), note]
        picture = record.pop("picture", None)
        if picture and not record["small"]:
            record["picture"] = picture
            # A record of the project that only gets a title or a note already has its picture here.
            if not other_seeds and path.resolve() != target.resolve():
                _copy(path.with_name(picture), FIGURES / picture)
        _write(record, target)
        print(f"{target.name}: {len(record['rows'])} rows")


def _copy(picture: Path, target: Path) -> None:
    """Copy a picture. Raises SystemExit if it is missing or cannot be written."""
    try:
        shutil.copyfile(picture, target)
    except OSError as fault:
        raise SystemExit(f"error: the picture {picture} cannot be copied: {fault}") from None


def read(path: Path) -> Record:
    """Return a record. Raises SystemExit if the file is not one."""
    record = read_json(path)
    if not isinstance(record, dict) or not _is_record(record):
        raise SystemExit(f"error: {path} is not a record written by `results.py keep`.")
    return record


def _is_record(values: Row) -> bool:
    """Return whether all required fields of a record are present and have the right types."""
    texts = ("experiment", "title", "command", "date", "machine", "software")
    rows, notes, picture = values.get("rows"), values.get("notes", []), values.get("picture", "")
    return (
        all(isinstance(values.get(name), str) for name in texts)
        and isinstance(values.get("small"), bool)
        and isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
        and isinstance(notes, list) and all(isinstance(note, str) for note in notes)
        and isinstance(picture, str) and Path(picture).name == picture
    )  # fmt: skip


def _write(record: Record, path: Path) -> None:
    """Write a record as JSON, with one row per line."""
    make_folder(path.parent)
    facts = json.dumps(record | {"rows": []}, indent=1, ensure_ascii=False)
    rows = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in record["rows"])
    text = facts.replace('"rows": []', f'"rows": [\n  {rows}\n ]', 1)
    write_text(path, text + "\n")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="what", required=True)
    keeping = commands.add_parser("keep", help="save a table as a record")
    keeping.add_argument("experiment")
    for name in ("title", "command"):
        keeping.add_argument(f"--{name}", required=True)
    for name in ("table", "out"):
        keeping.add_argument(f"--{name}", type=Path, required=True)
    keeping.add_argument("--seeds", default="1")
    keeping.add_argument("--picture", type=Path)
    keeping.add_argument("--note", default="")
    adopting = commands.add_parser("adopt", help="copy records into the project")
    adopting.add_argument("records", nargs="+", type=Path)
    adopting.add_argument("--other-seeds", action="store_true")
    adopting.add_argument("--title", default="")
    adopting.add_argument("--note", default="")
    commands.add_parser("write", help="write the pages")
    commands.add_parser("check", help="report whether the pages are current")
    try:
        return _run(parser.parse_args())
    except NmtgridError as fault:
        raise SystemExit(f"error: {fault}") from None


def _run(options: argparse.Namespace) -> int:
    """Run the parsed command."""
    if options.what == "keep":
        record = keep(
            options.experiment, options.title, options.table, options.command, options.seeds
        )
        if options.note:
            record["notes"] = [options.note]
        if options.picture:
            picture = options.out.with_suffix(options.picture.suffix)
            record["picture"] = picture.name
            make_folder(picture.parent)
            _copy(options.picture, picture)
        _write(record, options.out)
        return 0
    if options.what == "adopt":
        adopt(options.records, options.other_seeds, options.title, options.note)
    from recipes import results_page  # which imports this module

    stale = results_page.stale()
    if options.what == "check":
        print("\n".join(f"{path.name} is not current" for path in stale) or "current")
        return int(bool(stale))
    for path, text in stale.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
