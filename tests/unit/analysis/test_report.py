"""The report: one page that asks for nothing, whose figures are there, in both colour schemes."""

import dataclasses
import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy
import pytest

from nmtgrid.analysis.plotting.bars import Group, Series, draw_bars
from nmtgrid.analysis.plotting.grids import HeatMap, draw_maps
from nmtgrid.analysis.report import POLICY, VARIABLES, inline, page
from nmtgrid.analysis.section import Picture, Section, Table, format_cell
from nmtgrid.cli.app import main
from nmtgrid.metrics import quality
from nmtgrid.search.traces import Trace
from tests.conftest import PROJECT

HYPOTHESES = {
    "first": ["the cat sat on the mat", "a dog runs", "", "<b>bold</b> & brave words"],
    "second": ["a cat sat on a mat", "the dog runs home", "no line here", "bold and brave"],
}
REFERENCES = ["the cat sat on a mat", "the dog runs home", "one line", "bold & brave words"]
SOURCES = ["eine Katze sitzt hier", "der Hund geht heim", "eine Zeile", "große & tapfere Worte"]


def _bars(path: Path) -> None:
    groups = [Group("short", 3), Group("long", 1)]
    draw_bars(
        groups, [Series("first", [1.0, 2.0]), Series("second", [None, 3.0])], path,
        title="Bars", x_label="length", y_label="BLEU (percent)",
    )  # fmt: skip


def _heat(path: Path) -> None:
    draw_maps([HeatMap("map", ["a", "b"], ["c", "d"], numpy.eye(2), "share")], path)


def _section(name: str = "one") -> Section:
    short = Table("Short <table> of `a`", ["system", "score"], [["a & b", 1.5], ["c", None]])
    long = Table("Long", ["n", "text"], [[n, "words " * 30] for n in range(30)])
    pictures = [Picture("bars", 'Bars "quoted"', _bars), Picture("heat", "Heat of `a`", _heat)]
    return Section(name, f"Section {name}", "See `code`, nrefs:1|tok:13a.\n\nMore <b>.",
                   [short, long], pictures, {})  # fmt: skip


def test_pieces_of_a_page(tmp_path: Path) -> None:
    cells = [
        format_cell(12345),
        format_cell(1.234),
        format_cell(None),
        format_cell(float("nan")),
        format_cell("x"),
    ]
    assert cells == ["12,345", "1.23", "-", "-", "x"]
    table = Table("", list("abc"), [[1, "0.05", "x"], [None, "-", "y"]])
    assert table.is_numeric == [True, True, False]
    path = tmp_path / "x.svg"
    _bars(path)
    drawn = inline(path.read_text(encoding="utf-8"), "a b", "label")
    assert drawn.startswith("<svg viewBox=") and drawn.endswith("</svg>")
    assert "<?xml" not in drawn and "<metadata" not in drawn and "DOCTYPE" not in drawn
    points = float(re.search(r'viewBox="0 0 ([\d.]+)', drawn)[1])  # type: ignore[index]
    assert f'width="{points * 4 / 3:.0f}"' in drawn


def test_the_page_asks_for_nothing_and_says_all() -> None:
    text = page("A & B", "Intro.", [_section(), _section("two")], "Made here.")
    assert "<title>A &amp; B</title>" in text
    addresses = re.findall(r"""(?:src|href)="([^"]*)""", text) + re.findall(r"url\(([^)]*)", text)
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert "<script" not in text and "@import" not in text
    assert text.count('<section id="') == 2 and text.count("<figure>") == 4
    assert "Short &lt;table&gt;" in text and "More &lt;b&gt;." in text
    assert "<code>code</code>" in text and "<code>nrefs:1|tok:13a</code>." in text
    assert "<caption>Short &lt;table&gt; of <code>a</code></caption>" in text
    assert "<figcaption>Heat of <code>a</code></figcaption>" in text
    # Long tables are folded, short ones are not; the first stands before the figures.
    assert text.count("<details>") == 2 and text.index("Short &lt;") < text.index("<figure>")
    assert text == page("A & B", "Intro.", [_section(), _section("two")], "Made here.")


# What a browser would load or run, or be sent to, beside styles and images of the page itself.
_ACTIVE = re.compile(
    r"<(?:script|iframe|frame|object|embed|form|base|audio|video)\b|<[^>]*\son\w+\s*=|javascript:",
    re.I,
)


def test_each_page_allows_a_browser_only_what_it_has(tmp_path: Path) -> None:
    """No module but that of the report writes HTML; a page that is in the repository counts too."""
    package, figures = PROJECT / "nmtgrid", PROJECT / "recipes" / "figures"
    modules = [path for path in package.rglob("*.py") if "<html" in path.read_text("utf-8")]
    assert modules == [package / "analysis" / "report.py"]
    attack = '</title><script>alert(1)</script><img src=x onerror="alert(1)">'
    pages = [page(attack, attack, [_section(), _section("two")], attack)]
    for path in [_report(tmp_path), *figures.glob("*.html")]:
        pages.append(path.read_text(encoding="utf-8"))
    assert len(pages) == 3
    for text in pages:
        policies = re.findall(
            r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text
        )
        assert policies == [POLICY]
        # A policy holds for what follows it.
        assert text.index("Content-Security-Policy") < text.index("<title>") < text.index("<style")
        assert not _ACTIVE.search(text)
        links = re.findall(r'<link [^>]*href="([^"]*)"', text)
        images = re.findall(r'<ima?ge?\b[^>]*?(?:href|src)="([^"]*)"', text)
        assert all(address.startswith("data:") for address in links + images)


def test_figures_have_ids_of_their_own_and_follow_the_scheme() -> None:
    text = page("t", "", [_section(), _section("two")], "")
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    used = set(re.findall(r"(?:xlink:href=\"#|url\(#)([^\")]+)", text))
    assert used and used <= set(ids)
    figures = re.findall(r"<svg.*?</svg>", text, re.S)
    left = set(re.findall(r"#[0-9a-f]{6}", figures[0].lower()))
    assert (
        not left & set(VARIABLES) and "var(--ink)" in figures[0] and "var(--line-0)" in figures[0]
    )
    # What is painted, not drawn, stays on a light ground.
    assert text.count("plot on-light") == 2
    # Letters are text: found, read out and drawn in whatever script.
    assert re.search(r"<text[^>]*>short</text>", figures[0])
    assert 'aria-label="Bars &quot;quoted&quot;"' in figures[0]


def test_colours_are_those_of_marks_alone() -> None:
    text = '<text fill="#0072b2">a#0072b2</text>'
    drawn = f'<svg viewBox="0 0 1 1" width="72pt" height="72pt">{text}</svg>'
    assert 'fill="var(--line-0)">a#0072b2<' in inline(drawn, "x", "y")


def _files(folder: Path) -> list[str]:
    for name, lines in {**HYPOTHESES, "reference": REFERENCES, "source": SOURCES}.items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [str(folder / name) for name in HYPOTHESES]


def _report(folder: Path) -> Path:
    systems, out = _files(folder), folder / "page.html"
    arguments = ["analyze", "report", *systems, "-r", str(folder / "reference"),
                 "-s", str(folder / "source"), "--out", str(out), "--json",
                 str(folder / "page.json"), "--bootstrap", "20"]  # fmt: skip
    assert main(arguments) == 0
    return out


def test_difficulties_are_those_of_the_command_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the same words, whatever the tokeniser that the scores are counted by."""
    texts = {
        "a": ["cat", "no"],
        "r": ["A cat, a mat.", "(No.)"],
        "s": ["Katze, Matte; so.", "Nein!"],
    }
    for name, lines in texts.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    reference, alone, page = (str(tmp_path / name) for name in ("r", "alone.json", "page.json"))
    command = [str(tmp_path / "a"), "-r", reference, "-s", str(tmp_path / "s")]
    assert main(["analyze", "difficulty", *command, "--json", alone]) == 0
    out = str(tmp_path / "page.html")
    capsys.readouterr()
    assert main(["analyze", "report", *command, "--out", out, "--json", page]) == 0
    assert "learned from only 2 pairs" in " ".join(capsys.readouterr().err.split())
    facts = json.loads(Path(page).read_text(encoding="utf-8"))["difficulty"]
    assert {**facts, "pictures": []} == json.loads(Path(alone).read_text(encoding="utf-8"))
    links = tmp_path / "links"
    links.write_text("0-0\n0-0\n", encoding="utf-8")
    assert main(["analyze", "report", *command, "--out", out, "--alignments", str(links)]) == 0
    assert "learned from" not in capsys.readouterr().err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = _report(tmp_path).read_text(encoding="utf-8")
    assert "Written" in capsys.readouterr().err
    names = ["compare", "buckets", "lengths", "difficulty"]
    assert re.findall(r'<section id="([^"]+)"', text) == names
    assert list(json.loads((tmp_path / "page.json").read_text())) == names
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; brave words" in text


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    names = ("first/test.txt", "second/test.txt", "reference")
    for path in map(tmp_path.joinpath, names):
        path.parent.mkdir(exist_ok=True)
        path.write_text("a b\n")
    first, second, reference = (str(tmp_path / name) for name in names)
    out = tmp_path / "page.html"
    command = ["analyze", "report", f"a={first}", f"b={second}", "-r", reference]
    assert main([*command, "--bootstrap", "9", "--out", str(out)]) == 0
    assert f", of {', '.join(names)}.</p></footer>" in out.read_text(encoding="utf-8")


def test_it_opens_with_who_is_better_and_the_method_stands_behind(tmp_path: Path) -> None:
    _files(tmp_path)
    # Ten sentences of which the second system has all right and the first a word wrong in each.
    for name, word in (("reference", "d"), ("first", "x"), ("second", "d")):
        lines = "".join(f"a b c {n} {word} e\n" for n in range(10))
        (tmp_path / name).write_text(lines)
    out, values = tmp_path / "page.html", tmp_path / "page.json"
    command = ["analyze", "report", str(tmp_path / "first"), str(tmp_path / "second")]
    command += ["-r", str(tmp_path / "reference"), "--out", str(out), "--json", str(values)]
    assert main([*command, "--bootstrap", "99"]) == 0
    text = out.read_text(encoding="utf-8")
    assert "<h1>Translation systems compared: reference</h1>" in text
    wrong, right = ([f"a b c {n} {word} e" for n in range(10)] for word in "xd")
    first = quality.bleu(wrong, right).value
    finding = json.loads(values.read_text())["compare"]["finding"]
    verdict, how = finding.split("\n\n")
    # All sentences are alike, so that every sample has the same difference.
    ends = f"[+{100 - first:.2f}, +{100 - first:.2f}]"
    assert verdict.startswith(
        f"On reference: second is better than first by {100 - first:.2f} BLEU (100.00 against "
        f"{first:.2f}; 95 % interval of the difference {ends}; p = 0.0100; chrF +"
    )
    assert how.startswith("Test: paired bootstrap with 99 samples. Signature of BLEU: nrefs:1|")
    header = text[text.index("<header>") : text.index("<nav")]
    assert verdict in html.unescape(header) and "nrefs:1|case:mixed" in header
    compared = text[text.index('<section id="compare">') : text.index('<section id="buckets">')]
    assert compared.rindex("<figure>") < compared.index("How it was computed")
    assert compared.index("How it was computed") < compared.index("Corpus scores are sacreBLEU")
    # In the order of the arguments, the same; of two equal ones nothing is better.
    (tmp_path / "second").write_bytes((tmp_path / "first").read_bytes())
    assert main([*command, "--bootstrap", "9", "--corpus", "WMT", "--title", "T"]) == 0
    finding = json.loads(values.read_text())["compare"]["finding"]
    assert finding.startswith(f"On WMT: second and first are identical ({first:.2f} BLEU).")
    assert "<h1>T</h1>" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to report on"),
        (["first"], "`--reference FILE` is missing"),
        (["--curves", "x"], "error: x: there is no such file"),
        (["first", "-r", "reference", "--data", "x"], "`--data` provides what `--reference` gives"),
        (["--curves", "x", "--data", "x"], "`--data` applies to translations"),
        (["first", "-r", "reference", "--split", "x"], "`--split` names a part of a dataset"),
        (["first", "-r", "reference", "--line", "0"], "`--line` counts from 1"),
        (["first", "-r", "reference", "--train", "x", "y"], "`--train` needs the source"),
        (["t.jsonl", "-r", "reference", "--train", "x", "y"], "`--train` needs the source"),
        (["first", "-r", "reference", "--line", "1"], "`--line` names lines of traces"),
        (["first", "-r", "reference", "--alignments", "no"], "`--alignments` are links from"),
        (
            ["first", "--data", "x", "--source", "reference", "--activations", "m"],
            "`--data` provides what `--source` gives",
        ),
        (
            ["first", "-r", "reference", "--data", "x", "--alignments", "no", "--activations", "m"],
            "`--alignments` are links from the source",
        ),
        (["t.jsonl", "reads.jsonl", "-r", "three"], "reads.jsonl:2: it has no `reads`"),
        (["--curves", "x", "-r", "no", "--bootstrap", "9"], "`--bootstrap` applies to"),
        (["--curves", "x", "--lowercase", "--line", "4"], "`--lowercase` applies to"),
        (["a=first", "a=second", "-r", "reference"], "Two systems have the name `a`"),
        (["first", "short", "-r", "reference"], "it has 1 line, but"),
        (["first", "empty", "-r", "reference"], "empty: the file is empty"),
        (["first", "-r", "reference", "--out", "x.pdf"], "ends in .html"),
        (["first", "-r", "reference", "--out", "no/x.html"], "there is no folder no"),
    ],
)
def test_bad_input_is_told(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _files(tmp_path)
    (tmp_path / "short").write_text("one\n")
    (tmp_path / "empty").touch()
    (tmp_path / "three").write_text("a\na\n")
    plain = [Trace(line, ["x"], ["a"], "a", [-0.1, -0.1], -0.2, -0.2) for line in (1, 2)]
    mixed = [dataclasses.replace(plain[0], reads=[1, 2]), plain[1]]
    for name, traces in (("t.jsonl", plain), ("reads.jsonl", mixed)):
        (tmp_path / name).write_text("".join(f"{trace.to_line()}\n" for trace in traces))
    monkeypatch.chdir(tmp_path)
    assert main(["analyze", "report", "--out", "page.html", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "page.html").exists()


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
PROBE = """<script>window.addEventListener("load", () => {
  const sizes = [...document.querySelectorAll("figure svg")].map(e => e.getBoundingClientRect());
  document.title = JSON.stringify({
    figures: sizes.length, least: Math.min(...sizes.map(r => Math.min(r.width, r.height))),
    over: document.documentElement.scrollWidth - window.innerWidth,
    paper: getComputedStyle(document.body).backgroundColor,
    letters: getComputedStyle(document.querySelector("figure svg text")).fill,
  });});</script>"""


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1200])
def test_in_a_browser(scheme: str, width: int, tmp_path: Path) -> None:
    """No error, every figure there, nothing wider than the window; light or dark as asked."""
    text = _report(tmp_path).read_text(encoding="utf-8")
    probe = tmp_path / "probe.html"
    # The probe is a script; what the page itself has must pass under its own policy.
    probed = text.replace(POLICY, f"{POLICY}; script-src 'unsafe-inline'")
    probe.write_text(probed.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    assert BROWSER is not None
    # A window has a least width of 500: a narrower page stands in a frame.
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<iframe src="probe.html" width="{width}" height="900" onload="setTimeout(() => '
        'document.body.innerText = this.contentDocument.title, 200)"></iframe>'
    )
    preferred = {"light": 1, "dark": 0}[scheme]
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--allow-file-access-from-files", f"--blink-settings=preferredColorScheme={preferred}",
        f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1300,1000",
        "--virtual-time-budget=5000", "--enable-logging=stderr", "--dump-dom", frame.as_uri(),
    ]  # fmt: skip
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    written = re.search(r"\{.*\}", done.stdout)
    assert written is not None, done.stdout[-500:] + done.stderr[-1000:]
    facts = json.loads(written[0])
    assert "CONSOLE" not in done.stderr
    assert facts["figures"] == text.count("<figure>") >= 5
    assert facts["least"] > 100 and facts["over"] <= 0
    is_dark = sum(map(int, re.findall(r"\d+", facts["paper"])[:3])) < 150
    assert is_dark == (scheme == "dark")
    letters = sum(map(int, re.findall(r"\d+", facts["letters"])[:3]))
    assert (letters > 500) == is_dark
