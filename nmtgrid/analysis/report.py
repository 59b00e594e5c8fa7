"""One page with everything: sections as a self-contained HTML file.

The page asks nothing of a network and runs no script: figures stand in it as SVG with real text, in
colours that follow the reader's light or dark scheme; it is laid out for a phone and for paper too.
"""

from __future__ import annotations

import html
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nmtgrid.analysis.plotting.figure import as_text
from nmtgrid.analysis.report_style import on_page, style_sheet
from nmtgrid.analysis.section import Picture, Section, Table

_MOST_ROWS = 8
"""Longer tables are folded away."""
_LONG = 60
"""Characters of a cell that is to have room."""
_CODE = re.compile(r"`([^`]+)`|(\bnrefs:[^\s;,]+[^\s;,.])")
"""What stands between grave accents, and sacreBLEU's signatures."""
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}\b")
_IDENTITY = re.compile(r'(\bid="|href="#|url\(#)([^")]+)')
_ROOT = re.compile(r"<svg\b[^>]*>", re.S)
_SIZE = re.compile(r'\b(width|height)="([0-9.]+)pt"')
_BOX = re.compile(r'viewBox="([^"]+)"')
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.S)


def page(title: str, introduction: str, sections: Sequence[Section], made_by: str) -> str:
    """Return the page: `introduction` stands under the title, `made_by` at its foot."""
    links = "".join(
        f'<li><a href="#{_escaped(one.name)}">{_escaped(one.title)}</a></li>' for one in sections
    )
    body = "\n".join(map(_section, sections))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
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
    figures = "\n".join(_figure(one, f"{section.name}-{one.name}") for one in section.pictures)
    # The first table sums a section up; the rest are for reading on.
    is_short = bool(section.tables) and len(section.tables[0].rows) <= _MOST_ROWS
    first, rest = section.tables[:is_short], section.tables[is_short:]
    summary, tables = ("\n".join(map(_table, held)) for held in (first, rest))
    return f"""<section id="{_escaped(section.name)}">
<h2>{_escaped(section.title)}</h2>
{_paragraphs(section.text)}
{summary}
{figures}
{tables}
</section>"""


def _figure(picture: Picture, identity: str) -> str:
    with tempfile.TemporaryDirectory() as folder, as_text():
        path = Path(folder) / "figure.svg"
        picture.draw(path)
        drawn = path.read_text(encoding="utf-8")
    light = " on-light" if "<image" in drawn else ""
    return f"""<figure>
<div class="plot{light}">{inline(drawn, identity, picture.caption)}</div>
<figcaption>{_escaped(picture.caption)}</figcaption>
</figure>"""


def inline(drawn: str, identity: str, label: str) -> str:
    """Return an SVG file as an element of a page.

    Its ids are made its own by `identity`, its colours variables; `label` is read out in its place.
    """
    drawn = _METADATA.sub("", drawn[drawn.index("<svg") :])
    prefix = re.sub(r"\W+", "-", identity)
    drawn = _IDENTITY.sub(lambda found: f"{found[1]}{prefix}-{found[2]}", drawn)
    drawn = _COLOUR.sub(lambda found: on_page(found[0]), drawn)
    root = _ROOT.search(drawn)
    assert root is not None
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
    numeric = [table.is_numeric(place) for place in range(len(table.columns))]
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
        for row in table.told()
    )
    title = _escaped(table.title)
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
    parts = (_escaped(part) for part in text.split("\n\n") if part.strip())
    return "\n".join(f"<p>{_CODE.sub(_as_code, part)}</p>" for part in parts)


def _as_code(found: re.Match[str]) -> str:
    return f"<code>{found[1] or found[2]}</code>"


def _escaped(text: str) -> str:
    # What no encoding has (odd bytes of file names) is written as escapes.
    return html.escape(text.encode("utf-8", "backslashreplace").decode("utf-8"))
