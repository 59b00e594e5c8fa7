"""The HTML report: the sections of all analyses in one self-contained file.

`sections` yields the sections that the inputs allow, `page` lays them out. The page makes no
network requests and runs no script: its figures are SVG with real text, in colours that follow the
reader's light or dark scheme; it has layouts for a phone and for paper too. `nmtgrid analyze
report` writes it.
"""

from __future__ import annotations

import dataclasses
import functools
import html
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from nmtgrid.analysis import exits, latency, paths, training_curves, tuning
from nmtgrid.analysis.alignment import models as alignment_models
from nmtgrid.analysis.alignment.aligner import Advance, link_pairs, read_words
from nmtgrid.analysis.latency import read_online_results
from nmtgrid.analysis.plotting.figure import COLOURS, INK, PALE, as_text, darker, naming_corpus
from nmtgrid.analysis.quality import buckets, compare, difficulty, lengths
from nmtgrid.analysis.quality.evaluation import Evaluation
from nmtgrid.analysis.quality.names import Property
from nmtgrid.analysis.section import Picture, Section, Table
from nmtgrid.analysis.systems import is_traces, named_files
from nmtgrid.analysis.training_curves import read_runs
from nmtgrid.analysis.tuning import read_tuning
from nmtgrid.base import console
from nmtgrid.base.io.atomic import split_label
from nmtgrid.metrics.bootstrap import RESAMPLES
from nmtgrid.search.traces import Trace, read_traces

_LIGHT = {
    "ink": INK, "soft": "#5c5c5c", "axis": "#888888", "rule": PALE, "paper": "#ffffff",
    "page": "#ffffff", "band": "#f4f6f8", "link": "#00588a",
    **{f"line-{index}": colour for index, colour in enumerate(COLOURS)},
    **{f"name-{index}": darker(colour) for index, colour in enumerate(COLOURS)},
}  # fmt: skip

VARIABLES: dict[str, str] = {
    **{_LIGHT[name]: f"var(--{name})" for name in ("ink", "axis", "rule", "paper")},
    "#000000": "var(--ink)",
    "#999999": "var(--axis)",
    **{darker(colour): f"var(--name-{index})" for index, colour in enumerate(COLOURS)},
    **{colour: f"var(--line-{index})" for index, colour in enumerate(COLOURS)},
}
"""Colours of figures, as drawn, and the variables that replace them on the page."""


def on_page(colour: str) -> str:
    """Return a figure's colour as CSS, with greys inverted in the dark scheme."""
    colour = colour.lower()
    if colour in VARIABLES:
        return VARIABLES[colour]
    red, green, blue = bytes.fromhex(colour[1:])
    # Not a grey, but a colour of a colour map, which has a meaning.
    if max(red, green, blue) - min(red, green, blue) > 8:
        return colour
    # Inverted, between the page's darkest and lightest colours.
    other = 0x1C + (0xFF - green) * (0xE4 - 0x1C) // 0xFF
    return f"light-dark({colour}, #{other:02x}{other:02x}{other:02x})"


def style_sheet() -> str:
    """Return the CSS of a report: one column on a phone, both schemes, and paper."""
    light = " ".join(f"--{name}: {value};" for name, value in _LIGHT.items())
    rules = files("nmtgrid.analysis").joinpath("report.css").read_text("utf-8")
    return f"\n:root {{ color-scheme: light dark; {light} }}\n{rules}"


@dataclasses.dataclass(frozen=True)
class ReportInputs:
    """The inputs of a report and how to read them; names as in `analyze report`."""

    systems: Sequence[str] | None
    alignments: Path | None
    train: tuple[Path, Path] | None
    bootstrap: int | None
    line: Sequence[int] | None
    latency: Sequence[str] | None
    depth: Sequence[str] | None
    curves: Sequence[str] | None

    @functools.cached_property
    def files(self) -> dict[str, Path]:
        return named_files(self.systems or [])

    @functools.cached_property
    def traces(self) -> Mapping[Path, Sequence[Trace]]:
        return {path: list(read_traces(path)) for path in self.files.values() if is_traces(path)}

    def systems_with(self, field: str) -> dict[str, Path]:
        """Return the systems whose traces have this field."""
        return {
            name: path
            for name, path in self.files.items()
            if any(getattr(trace, field) is not None for trace in self.traces.get(path, ()))
        }


def sections(
    inputs: ReportInputs, evaluation: Evaluation | None, advance: Advance
) -> Iterator[Section]:
    """Yield the sections that the inputs allow; `advance` is called as alignments are learned.

    `evaluation` has the systems against the references, if there are any.
    """
    lines, references, corpus = inputs.line or [], None, ""
    if evaluation is not None:
        references, corpus = evaluation.reference_lines, evaluation.corpus
        yield from _text_sections(inputs, evaluation, advance)
    # The order is that of the page: from the whole to the details.
    if inputs.latency:
        read = [read_online_results(path, name) for name, path in map(split_label, inputs.latency)]
        yield latency.latency_section(
            [result for results, _ in read for result in results],
            areas=[area for _, areas in read for area in areas],
        )
    if online := inputs.systems_with("reads"):
        traced = {name: inputs.traces[path] for name, path in online.items()}
        paths.check_traced(online, traced)
        more = ([], []) if inputs.train is None else read_words(*inputs.train)
        links, origin = paths.learned_links(traced, more, "grow-diag-final-and", advance)
        systems = paths.as_paths(online, traced, links, "token")
        section = paths.paths_section(systems, lines, "token", origin, references)
        yield dataclasses.replace(section, corpus=corpus)
    if inputs.depth:
        tuned = map(split_label, inputs.depth)
        yield tuning.tuning_section([read_tuning(path, name) for name, path in tuned])
    if early := inputs.systems_with("exits"):
        traced = {name: inputs.traces[path] for name, path in early.items()}
        # Their sources have been compared, because the evaluation has all systems.
        exit_traces = exits.exits_of_systems(early, traced, lines, warn=console.warn)
        section = exits.exits_section(exit_traces, references)
        yield dataclasses.replace(section, corpus=corpus)
    if aligned := inputs.systems_with("alignment"):
        options = alignment_models.AlignmentOptions(lines)
        models = alignment_models.read_models(aligned, options)
        section = alignment_models.alignments_section(models, options)
        yield dataclasses.replace(section, corpus=corpus)
    if inputs.curves:
        training_curves.check_drawable(len(inputs.curves))
        runs = read_runs([split_label(text) for text in inputs.curves])
        yield training_curves.training_section(runs)


def _text_sections(
    inputs: ReportInputs, evaluation: Evaluation, advance: Advance
) -> Iterator[Section]:
    """Yield the sections on translations and references, and on difficulty if there is a source."""
    samples = RESAMPLES if inputs.bootstrap is None else inputs.bootstrap
    options = compare.ComparisonOptions(bootstrap=samples)
    yield compare.comparison_section(evaluation, options)
    by: list[Property] = ["reference-length"]
    if evaluation.source is not None:
        by.append("length-ratio")
    yield buckets.buckets_section(evaluation, by, samples=samples)
    yield lengths.lengths_section(evaluation)
    if evaluation.source is not None:
        words = evaluation.word_pairs
        pairs = link_pairs(words, inputs.alignments, inputs.train, advance=advance)
        lagging = difficulty.measure_difficulty(pairs)
        yield difficulty.difficulty_section(pairs, lagging, evaluation, samples=samples)


# Longer tables are folded away.
_MOST_ROWS = 8
# Characters of a cell that gets a wide column.
_LONG = 60
# Text between grave accents, and sacreBLEU's signatures.
_CODE = re.compile(r"`([^`]+)`|(\bnrefs:[^\s;,]+[^\s;,.])")
_TAG = re.compile(r"<[^>]*>")
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}\b")
_IDENTITY = re.compile(r'(\bid="|href="#|url\(#)([^")]+)')
_ROOT = re.compile(r"<svg\b[^>]*>", re.S)
_SIZE = re.compile(r'\b(width|height)="([0-9.]+)pt"')
_BOX = re.compile(r'viewBox="([^"]+)"')
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.S)


POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
"""The page's Content-Security-Policy: no script and no request, only its own styles and images.

Names of systems and lines of text come from other people's files: even if any of it ever passed as
HTML, a browser would run nothing and fetch nothing.
"""


def page(title: str, introduction: str, sections: Sequence[Section], made_by: str) -> str:
    """Return the page, with `introduction` under the title and `made_by` at its foot.

    Findings come before the sections, and methods after the figures.
    """
    links = "".join(
        f'<li><a href="#{_escaped(section.name)}">{_escaped(section.title)}</a></li>'
        for section in sections
    )
    body = "\n".join(map(_section, sections))
    findings = "\n".join(
        f'<div class="finding">{_paragraphs(section.finding)}</div>'
        for section in sections
        if section.finding
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{_escaped(title)}</title>
<link rel="icon" href="data:,">
<style>{style_sheet()}</style>
</head>
<body>
<header>
<h1>{_escaped(title)}</h1>
{_paragraphs(introduction)}
{findings}
<nav aria-label="Contents"><ul>{links}</ul></nav>
</header>
<main>
{body}
</main>
<footer>{_paragraphs(made_by)}</footer>
</body>
</html>
"""


def _section(section: Section) -> str:
    with naming_corpus(section.corpus):
        figures = "\n".join(
            _figure(picture, f"{section.name}-{picture.name}") for picture in section.pictures
        )
    # If the page begins with the finding, the method comes last.
    text, method = _paragraphs(section.text), ""
    if section.finding:
        text, method = "", f"<h3>How it was computed</h3>\n{text}"
    # The first table sums a section up; the others give the details.
    is_short = bool(section.tables) and len(section.tables[0].rows) <= _MOST_ROWS
    first, rest = section.tables[:is_short], section.tables[is_short:]
    summary, tables = ("\n".join(map(_table, part)) for part in (first, rest))
    return f"""<section id="{_escaped(section.name)}">
<h2>{_escaped(section.title)}</h2>
{text}
{summary}
{figures}
{tables}
{method}
</section>"""


def _figure(picture: Picture, identity: str) -> str:
    # Figures are drawn into files, whose content the page includes.
    with tempfile.TemporaryDirectory() as folder, as_text():
        path = Path(folder) / "figure.svg"
        picture.draw(path)
        drawn = path.read_text(encoding="utf-8")
    # Pixel images (maps) cannot follow the scheme.
    light = " on-light" if "<image" in drawn else ""
    return f"""<figure>
<div class="plot{light}">{inline(drawn, identity, picture.caption)}</div>
<figcaption>{_marked(picture.caption)}</figcaption>
</figure>"""


def inline(drawn: str, identity: str, label: str) -> str:
    """Return an SVG file as an element of a page.

    `identity` makes its ids unique, colours become variables, and screen readers read `label`.
    """
    drawn = _METADATA.sub("", drawn[drawn.index("<svg") :])
    # Ids of two figures on one page could clash: matplotlib derives them from the content.
    prefix = re.sub(r"\W+", "-", identity)
    drawn = _IDENTITY.sub(lambda match: f"{match[1]}{prefix}-{match[2]}", drawn)
    # Only within tags: what looks like a colour in a text is a word.
    drawn = _TAG.sub(lambda tag: _COLOUR.sub(lambda match: on_page(match[0]), tag[0]), drawn)
    root = _ROOT.search(drawn)
    assert root is not None
    # Points to CSS pixels.
    sizes = {name: float(value) * 4 / 3 for name, value in _SIZE.findall(root[0])}
    box = _BOX.search(root[0])
    assert box is not None
    opening = (
        f'<svg viewBox="{box[1]}" width="{sizes["width"]:.0f}" height="{sizes["height"]:.0f}" '
        f'style="--width: {sizes["width"]:.0f}px" role="img" aria-label="{_escaped(label)}" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return drawn.replace(root[0], opening, 1).strip()


def _table(table: Table) -> str:
    numeric = table.is_numeric
    head = "".join(
        f'<th scope="col"{_kind("", right)}>{_escaped(name)}</th>'
        for name, right in zip(table.columns, numeric, strict=True)
    )
    rows = "\n".join(
        "<tr>"
        + "".join(
            f"<td{_kind(cell, right)}>{_escaped(cell)}</td>"
            for cell, right in zip(row, numeric, strict=True)
        )
        + "</tr>"
        for row in table.formatted()
    )
    title = _marked(table.title)
    drawn = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>"
    if len(table.rows) <= _MOST_ROWS:
        return f'<div class="table"><table><caption>{title}</caption>\n{drawn}\n</table></div>'
    return (
        f"<details><summary>{title} ({len(table.rows):,} rows)</summary>\n"
        f'<div class="table"><table>\n{drawn}\n</table></div></details>'
    )


def _kind(cell: str, is_number: bool) -> str:
    if is_number:
        return ' class="number"'
    return ' class="long"' if len(cell) > _LONG else ""


def _paragraphs(text: str) -> str:
    return "\n".join(f"<p>{_marked(part)}</p>" for part in text.split("\n\n") if part.strip())


def _marked(text: str) -> str:
    return _CODE.sub(lambda match: f"<code>{match[1] or match[2]}</code>", _escaped(text))


def _escaped(text: str) -> str:
    return html.escape(console.printable(text))
