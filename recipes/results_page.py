"""The pages of results, generated from records and published figures.

RESULTS.md has the real runs by question, SMALL.md the runs with `SMALL=1`, PUBLISHED.md the
published figures, CLAIMS.md the claims of the thesis with our results (claims.py). The README
shows the short answers (short_answers.py) between its markers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.markdown import fill_blocks
from nmtgrid.base.spans import plural
from nmtgrid.online.published import CURVES
from recipes import claims
from recipes.results import HERE, RECORDS, read
from recipes.seeds import PART, Record
from recipes.short_answers import OTHER, QUESTIONS, anchor, short_answers
from recipes.tables import Row, columns, markdown, shown, table_of

RESULTS, SMALL, PUBLISHED, CLAIMS = (
    HERE / f"{name}.md" for name in ("RESULTS", "SMALL", "PUBLISHED", "CLAIMS")
)
README = HERE.parent / "README.md"
MAX_ROWS = 24
NAME = "name of the record"

INTRODUCTIONS = {
    RESULTS: """\
# Results

Every figure on this page comes from a record in `recipes/records`, written by a recipe; above its
tables are the record's name, the command, date, machine and versions. Minutes are comparable only
within a record: machines of the same name may differ in speed by a factor of two.
`python -m recipes.results write` generates the page. Published figures, marked *published*, follow
ours; the two are comparable only if the corpus, the model and the length of training agree.

BLEU is sacreBLEU's, in percent, on tokenised text with the signature
`nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:2.6.0`, unless a table names another. ± is
the standard deviation over seeds; results are for one seed unless a number is given. p-values of
two systems are from a paired bootstrap with 1,000 samples (`analyze compare`) on detokenised text
(`tok:13a`, `case:lc` if the corpus is lower-cased); p-values of reading policies are on tokenised
text. Latency is in source tokens, as defined in the thesis. [CLAIMS.md](CLAIMS.md) goes through the
thesis claim by claim, [SMALL.md](SMALL.md) shows that every experiment runs,
[PUBLISHED.md](PUBLISHED.md) has all published figures, and `benchmarks/results` has speed
measurements.
""",
    SMALL: """\
# Every experiment, run small

Each table on this page is the output of a recipe with `SMALL=1`: dozens of updates of a tiny
model on the toy corpus. **The scores mean nothing.** The page shows that every experiment runs
from its first command to its table or figure (`bash recipes/small.sh` repeats this). Real runs are
in [RESULTS.md](RESULTS.md).
""",
    PUBLISHED: """\
# Published figures

The figures that the recipes aim to reproduce, as reported by the thesis, its papers and the cited
systems. They are copied from the publications, not measured here; our own runs are in
[RESULTS.md](RESULTS.md).
""",
}


TITLES = {
    "conll": "CoNLL paper", "transparent": "Deep encoders, plain and transparent",
    "tune": "Tuned settings", "policies": "Reading policies",
}  # fmt: skip


def stale() -> dict[Path, str]:
    """Return the pages that are out of date, with their new text."""
    records = {path.stem: read(path) for path in sorted(RECORDS.glob("*.json"))}
    published = json.loads((HERE / "published.json").read_text(encoding="utf-8")) | curves()
    answers = {"results": lambda: short_answers(records, readme=True)}
    pages = {
        RESULTS: results_page(records, published),
        SMALL: small_page(records),
        PUBLISHED: published_page(published),
        CLAIMS: claims.page(records),
        README: fill_blocks(README.read_text(encoding="utf-8"), answers),
    }
    return {
        path: text
        for path, text in pages.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    }


def results_page(records: Mapping[str, Record], published: Mapping[str, Any]) -> str:
    """Return the page of real runs by question, each followed by published figures."""
    real = _grouped({name: record for name, record in records.items() if not record["small"]})
    parts = [INTRODUCTIONS[RESULTS], "## Short answers\n", short_answers(records)]
    remaining = {*real, *published, *_grouped(records)}
    for question in (*QUESTIONS, OTHER):
        ours = sorted((e for e in remaining if e.startswith(question.experiments)), key=_order)
        remaining -= set(ours)
        if ours:
            parts.append(f"## {question.title}\n")
        parts += [_experiment(e, real[e], published.get(e)) for e in ours if e in real]
        missing = [_missing(e, records, published) for e in ours if e not in real]
        if missing:
            parts.append(f"No record of a real run yet: {', '.join(missing)}.\n")
    return "\n".join(parts)


def small_page(records: Mapping[str, Record]) -> str:
    """Return the page of runs with SMALL=1."""
    small = _grouped({name: record for name, record in records.items() if record["small"]})
    groups = [_experiment(name, small[name], None) for name in sorted(small, key=_order)]
    return "\n".join([INTRODUCTIONS[SMALL], *groups]).replace("\n### ", "\n## ")


def published_page(published: Mapping[str, Any]) -> str:
    """Return the page of published figures."""
    tables = [
        f"## {_title(name, ())}\n\n" + _published(published[name])
        for name in sorted(published, key=_order)
    ]
    return "\n".join([INTRODUCTIONS[PUBLISHED], *tables])


def _grouped(records: Mapping[str, Record]) -> dict[str, list[Record]]:
    """Group records, with their names, by experiment.

    `figure-4.12-pervasive` belongs to `figure-4.12`.
    """
    groups: dict[str, list[Record]] = {}
    for name, record in records.items():
        part = re.match(r"(?:table|figure)-[0-9A-Z]\.\d+", record["experiment"])
        experiment = part[0] if part else record["experiment"]
        groups.setdefault(experiment, []).append(record | {NAME: name})
    return groups


def _order(experiment: str) -> tuple[int, list[int], str]:
    """Return the sort key: tables and figures by number, then appendices, then the rest."""
    number = re.fullmatch(r"(?:table|figure)-([0-9A-Z])\.(\d+)(.*)", experiment)
    if not number:
        return (2, [], experiment)
    chapter = number[1]
    order = int(chapter) if chapter.isdigit() else 10 + ord(chapter) - ord("A")
    return (0 if chapter.isdigit() else 1, [order, int(number[2])], experiment)


def _title(experiment: str, records: Sequence[Record]) -> str:
    """Return a heading: the number of a table or figure and the common title of its records."""
    if experiment in TITLES:
        return TITLES[experiment]
    kind, _, number = experiment.partition("-")
    titles = list(dict.fromkeys(str(record["title"]) for record in records))
    if kind not in ("table", "figure"):
        return min(titles, key=len) if titles else experiment
    return f"{kind.capitalize()} {number}" + (f": {titles[0]}" if len(titles) == 1 else "")


def _experiment(experiment: str, records: Sequence[Record], published: Any) -> str:
    """Return the section of one experiment: our tables, then the published ones."""
    title = _title(experiment, records)
    parts = [f"### {title}\n"]
    ordered = sorted(records, key=lambda record: not title.endswith(record["title"]))
    tables = [_record(record, title) for record in ordered]
    tables += [_published(published)] if published else []
    fitted = published.get("fitted", {}) if published else {}
    return "\n".join(parts + [_marked(table, fitted) for table in tables])


def _marked(table: str, fitted: Mapping[str, str]) -> str:
    """Mark parameter counts that only a fitted size reproduces, and add the reason below."""
    for cell, reason in fitted.items():
        if f"| {cell} |" in table:
            table = table.replace(f"| {cell} |", f"| {cell} † |") + f"\n† {reason}\n"
    return table


def _record(record: Record, heading: str) -> str:
    """Return the provenance of a record, its tables and its notes, to follow `heading`."""
    name, title = record[NAME], record["title"]
    blocks = [] if heading.endswith(title) else [f"**{title}**"]
    blocks.append(
        f"[`{name}`](records/{name}.json): `{record['command']}`; {record['date']}; "
        f"{record['machine']}{_speed(record)}; {record['software']}"
        + (f"; commit {record['commit']}." if "commit" in record else ".")
    )
    if "picture" in record:
        blocks.append(f"![{title}](figures/{record['picture']})")
    parts: dict[str, list[Row]] = {}
    for row in record["rows"]:
        parts.setdefault(str(row.get(PART, "")), []).append(row)
    for part, rows in parts.items():
        if part and len(columns(rows)) < 2:
            continue
        blocks += [f"{part[0].upper()}{part[1:].replace('_', ' ')}:"] if part else []
        if "bucket" in rows[0]:
            score = "mean sentence BLEU" if rows[0].get("by") == "difficulty" else "BLEU"
            blocks.append(f"The columns of systems have {score} on the sentences of each bucket.")
        blocks.append(table_of(rows[:MAX_ROWS]).rstrip())
        if more := rows[MAX_ROWS:]:
            # As a separate table: Markdown cannot fold a part of one.
            head = f'<details markdown="1"><summary>{plural(len(more), "more row")}</summary>'
            blocks += [head, table_of(more).rstrip(), "</details>"]
    signatures = sorted({
        str(value) for row in record["rows"] for column, value in row.items()
        if column.startswith("signature") and value
    })  # fmt: skip
    names = ", ".join(f"`{signature}`" for signature in signatures)
    blocks += [f"Signatures: {names}."] if names else []
    blocks += record.get("notes", [])
    return "\n\n".join(blocks) + "\n"


def _speed(record: Record) -> str:
    """Return the speed of one core of the record's machine, if it was measured."""
    speed = record.get("speed", {})
    rates = [f"{rate} GFLOP/s in {precision}" for precision, rate in speed.items()]
    return f" (one core: {', '.join(rates)})" if rates else ""


def _missing(experiment: str, records: Mapping[str, Record], published: Mapping[str, Any]) -> str:
    """Return the name of an experiment without a real run, with links to its other results."""
    ours = _grouped(records).get(experiment, [])
    title = _title(experiment, ours)
    links = [f"[small run](SMALL.md#{anchor(title)})"] if ours else []
    if experiment in published:
        links.append(f"[published](PUBLISHED.md#{anchor(_title(experiment, ()))})")
    return f"{title} ({', '.join(links)})"


def _published(figures: Mapping[str, Any]) -> str:
    lines = [[str(name) for name in figures["columns"]], ["---"] * len(figures["columns"])]
    lines += [[shown(value) for value in row] for row in figures["rows"]]
    return f"*Published* ({figures['what']}):\n\n" + markdown(lines)


def curves() -> dict[str, Row]:
    """Return the published curves of figures 4.11 to 4.14, with a row for each point."""
    wait_k = {
        "iwslt14-de-en": "figure-4.12", "iwslt15-en-vi": "figure-4.12",
        "iwslt14-en-de": "figure-4.11", "iwslt15-vi-en": "figure-4.11",
        "wmt15-de-en": "figure-4.13",
    }  # fmt: skip
    rows: dict[str, list[list[Any]]] = {name: [] for name in (*wait_k.values(), "figure-4.14")}
    for curve in CURVES:
        figure = wait_k[curve.data] if curve.policy == "wait-k" else "figure-4.14"
        rows[figure] += [
            [curve.data, curve.label, curve.source, *figures]
            for figures in ((point.setting, point.bleu, point.al) for point in curve.points)
        ]
    names = ["corpus", "system", "source", "k or threshold", "BLEU", "AL"]
    what = "test sets, greedy; the sources are in nmtgrid/online/published.py"
    return {name: {"what": what, "columns": names, "rows": points} for name, points in rows.items()}
