"""How a report looks: its style sheet, and the colours of its figures in both schemes."""

from __future__ import annotations

from nmtgrid.analysis.plotting.lines import COLOURS, INK, PALE, darker

_LIGHT = {
    "ink": INK, "soft": "#5c5c5c", "axis": "#888888", "rule": PALE, "paper": "#ffffff",
    "page": "#ffffff", "band": "#f4f6f8", "link": "#00588a",
}  # fmt: skip
_DARK = {
    "ink": "#e4e6e8", "soft": "#aab0b6", "axis": "#80868c", "rule": "#3a4047", "paper": "#191c1f",
    "page": "#191c1f", "band": "#22272b", "link": "#7cc4f0",
}  # fmt: skip
# The same hues, light enough for a dark page.
_DARK_COLOURS = ("#4aa8e0", "#f08a4b", "#3cc79a", "#e3a0c6", "#f0b840", "#b0b4b8", "#8ccdf5")

VARIABLES: dict[str, str] = {
    **{_LIGHT[name]: f"var(--{name})" for name in ("ink", "axis", "rule", "paper")},
    "#000000": "var(--ink)",
    "#999999": "var(--axis)",
    **{darker(colour): f"var(--name-{place})" for place, colour in enumerate(COLOURS)},
    **{colour: f"var(--line-{place})" for place, colour in enumerate(COLOURS)},
}
"""Colours of figures, as drawn, and the variables that stand for them on the page."""


def on_page(colour: str) -> str:
    """Return what stands on the page for a colour of a figure: greys are turned round when dark."""
    colour = colour.lower()
    if colour in VARIABLES:
        return VARIABLES[colour]
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    if max(red, green, blue) - min(red, green, blue) > 8:
        return colour
    # From white on black to the page's own two ends.
    other = 0x1C + (0xFF - green) * (0xE4 - 0x1C) // 0xFF
    return f"light-dark({colour}, #{other:02x}{other:02x}{other:02x})"


def _declared(values: dict[str, str], lines: tuple[str, ...], names: tuple[str, ...]) -> str:
    held = {
        **values,
        **{f"line-{place}": colour for place, colour in enumerate(lines)},
        **{f"name-{place}": colour for place, colour in enumerate(names)},
    }
    return " ".join(f"--{name}: {value};" for name, value in held.items())


def style_sheet() -> str:
    """Return the CSS of a report: one column on a phone, both schemes, and paper."""
    light = _declared(_LIGHT, COLOURS, tuple(map(darker, COLOURS)))
    dark = _declared(_DARK, _DARK_COLOURS, _DARK_COLOURS)
    return f"""
:root {{ color-scheme: light dark; {light} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}
{_RULES}"""


_RULES = """
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
a { color: var(--link); }
main, header, footer { max-width: 62rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2.5rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.35rem; line-height: 1.25; margin: 3rem 0 .5rem; padding-top: 1rem;
  border-top: 1px solid var(--rule); }
p { margin: .5rem 0; max-width: 44rem; }
code { font: .86em ui-monospace, "SF Mono", Menlo, Consolas, monospace; background: var(--band);
  padding: .05em .3em; border-radius: 3px; overflow-wrap: anywhere; }
.soft, figcaption, caption, footer { color: var(--soft); font-size: .9rem; }
nav ul { list-style: none; margin: 1.2rem 0 0; padding: 0; display: flex; flex-wrap: wrap;
  gap: .35rem .6rem; }
nav a { display: inline-block; padding: .15rem .7rem; border-radius: 1rem;
  background: var(--band); text-decoration: none; }
figure { margin: 1.4rem 0; }
.plot { overflow-x: auto; }
.plot svg { display: block; max-width: 100%; height: auto; }
.plot.on-light { color-scheme: light; background: #ffffff; border-radius: 6px;
  width: fit-content; max-width: 100%; }
.plot.on-light svg { --ink: #333333; --axis: #888888; --rule: #dddddd; --paper: #ffffff; }
figcaption { margin-top: .35rem; max-width: 44rem; }
.table { overflow-x: auto; margin: 1.2rem 0; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .35rem; white-space: pre-line; }
th, td { padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--rule); overflow-wrap: break-word; max-width: 24rem; }
th { font-weight: 600; vertical-align: bottom; }
th:last-child, td:last-child { padding-right: 0; }
td.long { min-width: 14rem; }
th.number, td.number { text-align: right; white-space: nowrap; }
th.number { white-space: normal; }
summary { cursor: pointer; color: var(--link); margin: 1rem 0 .2rem; }
footer { margin-top: 3.5rem; padding-bottom: 2.5rem; overflow-wrap: anywhere; }
footer p:first-child { border-top: 1px solid var(--rule); padding-top: 1rem; max-width: none; }
@media screen and (max-width: 40rem) {
  header { padding-top: 1.4rem; }
  h1 { font-size: 1.5rem; }
  .plot svg { max-width: none; width: max(100%, min(var(--width), 34rem)); }
}
@media print {
  :root { color-scheme: light; }
  body { font-size: 10.5pt; }
  nav { display: none; }
  main, header, footer { max-width: none; padding: 0; }
  h2 { break-after: avoid; }
  figure, tr { break-inside: avoid; }
  .table, .plot { overflow: visible; }
  details::details-content { content-visibility: visible; block-size: auto; }
  summary { display: none; }
  a { color: inherit; text-decoration: none; }
}
"""
