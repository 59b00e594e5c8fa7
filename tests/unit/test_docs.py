"""The documentation: generated pages are current, links lead somewhere, commands can be called."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from docs.commands import commands
from docs.departures import departures
from docs.generate import BLOCKS, PAGES, TUTORIALS, main, stale
from docs.markdown import plain, table
from docs.settings import presets, settings
from nmtgrid.base.config import describe, meanings
from nmtgrid.cli import app
from nmtgrid.cli.objectives import objectives
from nmtgrid.models import zoo
from nmtgrid.training.settings import RunSettings, TrainingSettings, settings_type

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE_NAMES = sorted(path.name for path in DOCS.glob("*.md"))
_SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^    ((?:nmtgrid|python) (?:[^\n\\]|\\\n)*)", re.MULTILINE)


def typed(name: str) -> list[list[str]]:
    """Return the commands on a page, a list of words each, without the program's name."""
    text = (DOCS / name).read_text(encoding="utf-8")
    lines = [line for block in _SHELL.findall(text) for line in block.splitlines()]
    lines += [found.replace("\\\n", " ") for found in _INDENTED.findall(text)]
    # Where the screen's text goes is the shell's business.
    words = [shlex.split(line.partition(" > ")[0]) for line in lines]
    return [line[1:] for line in words if line[0] == "nmtgrid"]


HAND_WRITTEN = [name for name in PAGE_NAMES if name not in PAGES]
COMMANDS = [(name, words) for name in HAND_WRITTEN for words in typed(name)]


def test_what_is_generated_is_current() -> None:
    """Run `python -m docs.generate` where this fails."""
    assert [path.name for path in stale()] == []


def test_generating_again_changes_nothing(tmp_path: Path) -> None:
    """Not for another width of the terminal, another folder or another language either."""
    environment = {**os.environ, "COLUMNS": "31", "LC_ALL": "C", "PYTHONPATH": str(DOCS.parent)}
    done = subprocess.run(
        [sys.executable, "-m", "docs.generate", "--check"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_missing_is_written(tmp_path: Path) -> None:
    (tmp_path / "own.md").write_text(
        "# Own\n\n<!-- generated: departures -->\nold\n<!-- end -->\nkept\n", encoding="utf-8"
    )
    pages = stale(tmp_path)
    assert {path.name for path in pages} == {*PAGES, "own.md"}
    held = pages[tmp_path / "own.md"]
    assert held.endswith("<!-- end -->\nkept\n") and departures() in held and "\nold\n" not in held
    assert not (tmp_path / "reference-commands.md").exists()


def test_checking_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("docs.generate.stale", lambda: {DOCS / "never-written.md": "x"})
    assert main(["--check"]) == 1
    assert not (DOCS / "never-written.md").exists()
    assert "python -m docs.generate" in capsys.readouterr().err


@pytest.mark.parametrize("name", PAGE_NAMES)
def test_links_lead_somewhere(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert link.startswith("https://") or (DOCS / link).exists(), link
    for path in re.findall(r"`((?:recipes|nmtgrid|tests|benchmarks)/[\w./-]+)`", text):
        assert (DOCS.parent / path).exists(), path
    for block in re.findall(r"<!-- generated: (\w+) -->", text):
        assert block in BLOCKS


def test_every_page_can_be_reached_from_the_first() -> None:
    seen, open_ = set(), {"index.md"}
    while open_:
        name = open_.pop()
        seen.add(name)
        links = re.findall(r"\]\(([\w-]+\.md)", (DOCS / name).read_text(encoding="utf-8"))
        open_ |= set(links) - seen
    assert seen == set(PAGE_NAMES)


def _parse(words: list[str]) -> Any:
    """Parse a command line without running it; options and arguments must exist and fit."""
    command: Any = typer.main.get_command(app.assemble([words[0]])).commands[words[0]]  # type: ignore[attr-defined]
    rest = words[1:]
    if hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    with command.make_context("nmtgrid", rest) as context:
        return context.params


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=[" ".join(w)[:60] for _, w in COMMANDS])
def test_commands_can_be_called(page: str, words: list[str]) -> None:
    """Each parses; a training's plan is made too, so that its settings and presets exist."""
    assert words[0] in app.COMMANDS
    parameters = _parse(words)
    assert parameters
    if words[0] == "train" and "--list" not in words:
        kept = [f"--{name}" for name in ("arch", "preset", "objective")]
        plan = [w for key in kept for w in _given(words, key)] + _given(words, "--set")
        sizes = ["--source-vocab-size", "99", "--target-vocab-size", "99"]
        assert app.main(["train", "--dry-run", *plan, *sizes]) == 0


def _given(words: list[str], option: str) -> list[str]:
    places = [place for place, word in enumerate(words) if word == option]
    return [word for place in places for word in words[place : place + 2]]


def test_a_wrong_option_would_be_seen() -> None:
    with pytest.raises(Exception, match="--no-such"):
        _parse(["decode", "MODEL", "--no-such", "1"])


QUICKER = {
    "10000": "120", "700": "60", "0.1..0.9:0.2": "0.5", "1,2,3,5,7,inf": "1,inf", "2000": "50",
    "150": "3", "200": "20",
}  # fmt: skip
"""Words of the tutorials that a test replaces so as to take seconds."""
RUN_WHOLE = ("pervasive", "online", "adaptive", "analysis")


def test_tutorials_run_from_the_first_command_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 120 pairs, for three updates and three sentences; everything else as it stands there.

    One test, for later pages need what earlier ones made.
    """
    monkeypatch.chdir(tmp_path)
    given = [words for name in RUN_WHOLE for words in typed(f"{name}.md")]
    for words in given:
        quicker = [QUICKER.get(word, word) for word in words]
        if words[0] == "train" and "--dry-run" not in words and "--list" not in words:
            quicker += ["--max-updates", "3", "--set", "model.size=32"]
            quicker += ["--set", "training.validate_sentences=4"]
        if words[0] in ("online-eval", "adaptive-tune"):
            quicker += ["--sentences", "3"]
        if words[0] == "decode":  # what has hardly been trained does not end by itself
            quicker += ["--set", "max_length_a=3", "--set", "max_length_b=0"]
        if "--stream" in words:
            tmp_path.joinpath("one.qa").write_text("ba\n", encoding="utf-8")
            quicker = ["one.qa" if word.endswith("test.qa") else word for word in quicker]
        assert app.main(quicker) == 0, " ".join(quicker)
    outs = [Path(words[words.index("--out") + 1]) for words in given if "--out" in words]
    assert outs and all(out.exists() for out in outs)


def test_tutorials_are_listed_in_order() -> None:
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    there = [name for name in TUTORIALS if (DOCS / f"{name}.md").is_file()]
    places = [text.index(f"]({name}.md)") for name in there]
    assert len(there) >= 4 and places == sorted(places)


def test_references_name_everything() -> None:
    page = commands()
    for name in app.COMMANDS:
        assert f"`nmtgrid {name}`" in page
    assert "| `--lowercase` | Its training text" in page and "`--reference` `-r` `FILE`" in page
    every = [*zoo.architectures()]
    assert all(f"## `--arch {name}`" in settings() for name in every)
    for name in every:
        assert all(f"### `--preset {preset}`\n" in presets() for preset in zoo.presets(name))
    assert "| `training.momentum` | a number | `0.99` | Of Nesterov's SGD. |" in settings()


def test_texts_below_fields_are_found() -> None:
    assert meanings(TrainingSettings)["decay_updates"] == "Updates between decays (step)."
    assert meanings(RunSettings)["batches.accumulation"] == "Batches of an update."


@pytest.mark.parametrize("arch", [*zoo.architectures()])
def test_every_setting_has_a_meaning(arch: str) -> None:
    for name in objectives:
        held = zoo.architectures().get(arch)
        root = settings_type(held.config, objectives.get(name).settings)
        known = meanings(root)
        assert [name for name, _ in describe(root) if "." in name and name not in known] == []


def test_every_departure_is_listed() -> None:
    page = departures()
    count = sum(
        path.read_text(encoding="utf-8").count("Departs:")
        for path in (DOCS.parent / "nmtgrid").rglob("*.py")
    )
    assert len(re.findall(r"^\| `\w+/", page, re.MULTILINE)) == count > 30
    assert "`layers/grid/convolution.py` `DepthwiseConvolution`" in page


def test_tables_hold_any_text() -> None:
    assert table(("a",), [("x|y",)]) == "| a |\n| --- |\n| x\\|y |\n"
    assert plain("a <b>\n  `<s>` c") == "a &lt;b> `<s>` c"
