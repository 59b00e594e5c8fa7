"""The documentation: generated pages are up to date, links resolve, commands are valid."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
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
from nmtgrid.data.dataset import Dataset
from nmtgrid.models import zoo
from nmtgrid.text.vocabulary import BEGIN, END
from nmtgrid.training.settings import RunSettings, TrainingSettings, settings_type

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE_NAMES = sorted(path.name for path in DOCS.glob("*.md"))
_SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`(\w+\.py)`:\n\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^    ((?:nmtgrid|python) (?:[^\n\\]|\\\n)*)", re.MULTILINE)


def typed(name: str) -> list[list[str]]:
    """Return the commands on a page, a list of words each, without the program's name."""
    text = (DOCS / name).read_text(encoding="utf-8")
    lines = [line for block in _SHELL.findall(text) for line in block.splitlines()]
    lines += [command.replace("\\\n", " ") for command in _INDENTED.findall(text)]
    # Redirections are up to the shell.
    words = [shlex.split(line.partition(" > ")[0]) for line in lines]
    return [line[1:] for line in words if line[0] == "nmtgrid"]


HAND_WRITTEN = [name for name in PAGE_NAMES if name not in PAGES]
COMMANDS = [(name, words) for name in HAND_WRITTEN for words in typed(name)]


def test_what_is_generated_is_current(tmp_path: Path) -> None:
    """Run `python -m docs.generate` if this fails."""
    assert [path.name for path in stale()] == []
    # Nor do they depend on the terminal's width, the folder or the language.
    environment = {**os.environ, "COLUMNS": "31", "LC_ALL": "C", "PYTHONPATH": str(DOCS.parent)}
    done = subprocess.run(
        [sys.executable, "-m", "docs.generate", "--check"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_stale_pages_are_written_or_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.md").write_text(
        "# Own\n\n<!-- generated: departures -->\nold\n<!-- end -->\nkept\n", encoding="utf-8"
    )
    pages = stale(tmp_path)
    assert {path.name for path in pages} == {*PAGES, "own.md"}
    page = pages[tmp_path / "own.md"]
    assert page.endswith("<!-- end -->\nkept\n") and departures() in page and "\nold\n" not in page
    assert not (tmp_path / "reference-commands.md").exists()
    monkeypatch.setattr("docs.generate.stale", lambda: {DOCS / "never-written.md": "x"})
    assert main(["--check"]) == 1 and not (DOCS / "never-written.md").exists()
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


def test_every_page_can_be_reached_and_tutorials_are_in_order() -> None:
    seen, open_ = set(), {"index.md"}
    while open_:
        name = open_.pop()
        seen.add(name)
        links = re.findall(r"\]\(([\w-]+\.md)", (DOCS / name).read_text(encoding="utf-8"))
        open_ |= set(links) - seen
    assert seen == set(PAGE_NAMES)
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    there = [name for name in TUTORIALS if (DOCS / f"{name}.md").is_file()]
    places = [text.index(f"]({name}.md)") for name in there]
    assert len(there) >= 4 and places == sorted(places)


def _parse(words: list[str]) -> Any:
    """Parse a command line without running it; options and arguments must exist and fit."""
    command: Any = typer.main.get_command(app.assemble([words[0]])).commands[words[0]]  # type: ignore[attr-defined]
    rest = app.general_options(words)[0][1:]
    if hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    with command.make_context("nmtgrid", rest) as context:
        return context.params


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=[" ".join(w)[:60] for _, w in COMMANDS])
def test_commands_can_be_called(page: str, words: list[str]) -> None:
    assert words[0] in app.COMMANDS and _parse(words)
    with pytest.raises(Exception, match="--no-such"):
        _parse([*words, "--no-such", "1"])
    if words[0] == "train" and not {"--list", "--import"} & {*words}:
        kept = [f"--{name}" for name in ("arch", "preset", "objective")]
        plan = [w for key in kept for w in _values_of(words, key)] + _values_of(words, "--set")
        sizes = ["--source-vocab-size", "99", "--target-vocab-size", "99"]
        assert app.main(["train", "--dry-run", *plan, *sizes]) == 0


def _values_of(words: list[str], option: str) -> list[str]:
    places = [index for index, word in enumerate(words) if word == option]
    return [word for index in places for word in words[index : index + 2]]


QUICKER = {
    "10000": "120", "700": "60", "0.1..0.9:0.2": "0.5", "1,2,3,5,7,inf": "1,inf", "2000": "50",
    "150": "3", "200": "20",
}  # fmt: skip
"""Words of the tutorials that the test replaces, so that it takes seconds."""
RUN_WHOLE = ("pervasive", "online", "adaptive", "analysis")


def test_tutorials_run_from_first_to_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On 120 pairs, for three updates and three sentences; everything else as documented.

    A single test, because later pages need the results of earlier ones.
    """
    monkeypatch.chdir(tmp_path)
    for page in RUN_WHOLE:
        for name, code in _FILE.findall((DOCS / f"{page}.md").read_text(encoding="utf-8")):
            tmp_path.joinpath(name).write_text(code, encoding="utf-8")
    commands_typed = [words for name in RUN_WHOLE for words in typed(f"{name}.md")]
    for words in commands_typed:
        quicker = [QUICKER.get(word, word) for word in words]
        if words[0] == "train" and "--dry-run" not in words and "--list" not in words:
            quicker += ["--max-updates", "3", "--set", "model.size=32"]
            quicker += ["--set", "training.validate_sentences=4"]
            # Barely trained models do not stop by themselves.
            quicker += ["--set", "search.max_length_a=3", "--set", "search.max_length_b=0"]
        if words[0] in ("online-eval", "adaptive-tune") and "--log" not in words:
            quicker += ["--sentences", "3"]
        if words[0] == "adaptive-tune":
            quicker += ["--budget", "2"]
        if "--stream" in words:
            tmp_path.joinpath("one.qa").write_text("ba\n", encoding="utf-8")
            quicker = ["one.qa" if word.endswith("test.qa") else word for word in quicker]
        assert app.main(quicker) == 0, " ".join(quicker)
    outs = [Path(words[words.index("--out") + 1]) for words in commands_typed if "--out" in words]
    assert outs and all(out.exists() for out in outs)


def test_references_name_everything() -> None:
    page = commands()
    for name in app.COMMANDS:
        assert f"`nmtgrid {name}`" in page
    assert "| `--lowercase` | The training text" in page and "`--reference` `-r` `FILE`" in page
    every = [*zoo.architectures()]
    assert all(f"## `--arch {name}`" in settings() for name in every)
    for name in every:
        assert all(f"### `--preset {preset}`\n" in presets() for preset in zoo.presets(name))
    assert "| `training.momentum` | a number | `0.99` | Momentum of `nesterov`. |" in settings()
    assert meanings(TrainingSettings)["decay_patience"].startswith("With `plateau`: validations ")
    assert "gradient accumulation" in meanings(RunSettings)["batches.accumulation"]
    assert table(("a",), [("x|y",)]) == "| a |\n| --- |\n| x\\|y |\n"
    assert plain("a <b>\n  `<s>` c") == "a &lt;b> `<s>` c"


@pytest.mark.parametrize("arch", [*zoo.architectures()])
def test_every_setting_has_a_meaning(arch: str) -> None:
    for name in objectives:
        architecture = zoo.architectures().get(arch)
        root = settings_type(architecture.config, objectives.get(name).settings)
        known = meanings(root)
        assert [name for name, _ in describe(root) if "." in name and name not in known] == []


@pytest.mark.parametrize(
    ("page", "start", "end"),
    [("smoothing.md", "## 3.", "## 4."), ("../CHANGELOG.md", "* R-Drop", "* BPE-dropout")],
)
def test_objectives_that_refuse_r_drop_are_listed(page: str, start: str, end: str) -> None:
    kinds = [objectives.get(name) for name in objectives]
    text = (DOCS / page).read_text(encoding="utf-8")
    passage = text[text.index(start) : text.index(end)]
    assert all(f"`{kind.name}`" in passage for kind in kinds if not kind.takes_two_passes)


def test_every_departure_is_listed() -> None:
    page = departures()
    count = sum(
        path.read_text(encoding="utf-8").count("Departs:")
        for path in (DOCS.parent / "nmtgrid").rglob("*.py")
    )
    assert len(re.findall(r"^\| `\w+/", page, re.MULTILINE)) == count > 30
    assert "`layers/grid/convolution.py` `DepthwiseConvolution`" in page


PAGE = DOCS / "own-architecture.md"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names = "my_model.py", "my_attention.py", "my_aggregation.py", "my_objective.py"
    for name, block in zip(names, blocks, strict=True):
        (folder / name).write_text(block, encoding="utf-8")
    return folder


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = f"{home}{os.pathsep}{DOCS.parent}"
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=DOCS.parent,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def run_in_one_process(home: Path, lines: Sequence[Sequence[str]]) -> list[tuple[int, str]]:
    """Run commands in a single process, as loading torch takes most of the time.

    Returns the exit code and the messages of each.
    """
    code = (
        "import json, sys; from nmtgrid.cli.app import main\n"
        "for line in json.loads(sys.argv[1]): sys.stderr.write(f'\\nended: {main(line)}\\n')"
    )
    done = run(home, "-c", code, json.dumps(lines))
    assert done.returncode == 0, done.stderr
    parts = re.split(r"^ended: (\d+)\n", done.stderr, flags=re.MULTILINE)
    return [(int(ended), said) for said, ended in zip(parts[::2], parts[1::2], strict=False)]


def test_the_page_of_80_lines_trains_and_translates(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code_lines = (home / "my_model.py").read_text(encoding="utf-8").splitlines()
    assert 60 < len(code_lines) <= 80 and max(map(len, code_lines)) <= 100
    # As documented, in a separate folder, with fewer pairs and updates.
    text = PAGE.read_text(encoding="utf-8")
    commands = re.findall(r"^    nmtgrid (.*)$", text, re.MULTILINE)
    assert [line.split()[0] for line in commands] == [
        "preprocess", "bpe", "train", "decode", "train",
    ]  # fmt: skip
    lines = []
    for command in commands:
        for word in ("DATA", "MODEL", "LATER", "my_model.py", "my_objective.py"):
            command = command.replace(word, str(home / word))
        lines.append(command.replace("2000", "100").replace("updates 300", "updates 4").split())
    for words in lines[:2]:  # these have no architectures
        assert app.main(words) == 0
    # In separate processes both need the file; here the second one has loaded it already.
    assert all("--import" in words for words in lines[2:])
    for code, said in run_in_one_process(home, lines[2:]):
        assert code == 0, said
    assert (home / "MODEL" / "model.safetensors").is_file()
    assert (home / "LATER" / "model.safetensors").is_file()
    # Nothing was imported here; the message says how to do so.
    for words in (["decode", str(home / "MODEL")], ["train", str(home / "DATA"), "--out", "no",
                                                    "--arch", "mean"]):  # fmt: skip
        assert app.main(words) == 2
        message = " ".join(capsys.readouterr().err.split())
        assert "There is no architecture `mean`." in message
        assert "name the file that defines it: `--import FILE`, or `imports=[FILE]`" in message


def test_an_own_aggregation_trains_and_is_refused_for_prefixes(
    home: Path, toy_dataset: Path, tmp_path: Path
) -> None:
    small = ["--set", "model.size=8", "--set", "model.depth=1", "--max-updates", "2"]
    small += ["--import", str(home / "my_aggregation.py"), "--arch", "pervasive-smooth"]
    words = ["train", str(toy_dataset), *small, "--out"]
    online = ["--objective", "wait-k-area", "--set", "model.source_causal=true"]
    refused = [*words, str(tmp_path / "online"), *online]
    lines = [*words, str(tmp_path / "offline")], [*refused, "--dry-run"], refused
    (code, first), *others = run_in_one_process(home, lines)
    assert code == 0 and "cannot be computed" not in first, first
    for code, message in others:
        assert code == 2 and "`LogSumExp` cannot be computed for every" in message
    assert not list(tmp_path.glob("online/*.safetensors"))


def test_the_invariant_tests_run_over_it(home: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (command,) = re.findall(
        r'python -m (pytest tests/invariants .*) -k "(.*)"$', text, re.MULTILINE
    )
    second = re.search(r'`-p my_attention -k "(.*)"`', text)
    # The second file imports the first, so a single run covers both.
    words = command[0].replace("my_model", "my_attention").split()
    chosen = f"({command[1]}) or ({second[1]})"  # type: ignore[index]
    done = run(home, "-m", *words, "-k", chosen, "-q", "-n", "0", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > 70 and "failed" not in done.stdout


def bigram_loss(data: Path) -> float:
    """Return the lowest validation loss, in nats per token, of an interpolated bigram model."""
    train, valid = (
        [[*split.target(index), END] for index in range(len(split))]
        for split in map(Dataset.open(data).split, ("train", "valid"))
    )
    unigrams = Counter(token for sentence in train for token in sentence)
    bigrams = Counter(pair for sentence in train for pair in pairwise([BEGIN, *sentence]))
    contexts = Counter(token for sentence in train for token in [BEGIN, *sentence[:-1]])
    total, types = sum(unigrams.values()), max(unigrams) + 1

    def loss(weight: float) -> float:
        return -statistics.fmean(
            math.log(
                weight * bigrams[before, token] / max(contexts[before], 1)
                + (1 - weight) * (unigrams[token] + 1) / (total + types)
            )
            for sentence in valid for before, token in pairwise([BEGIN, *sentence])
        )  # fmt: skip

    return min(loss(tenth / 10) for tenth in range(10))


def test_the_attentive_model_learns_to_read_the_source(home: Path) -> None:
    """Its loss is below that of a bigram model of the target, which does not use the source."""
    data, model = home / "DATA-ATTENTIVE", home / "ATTENTIVE"
    assert app.main(["preprocess", "--toy", "2000", "--out", str(data)]) == 0
    assert app.main(["bpe", "learn", str(data), "--merges", "300", "--separate"]) == 0
    text = PAGE.read_text(encoding="utf-8")
    (line,) = re.findall(r"^    python my_attention\.py (train .*)$", text, re.MULTILINE)
    line = line.replace("updates 600", "updates 120").replace("tokens=1000", "tokens=600")
    line = line.replace("DATA", str(data)).replace("MODEL", str(model))
    quicker = ["--set", "training.validate_updates=120", "--set", "training.validate_epochs=0",
               "--set", "training.validate_bleu=false"]  # fmt: skip
    done = run(home, str(home / "my_attention.py"), *line.split(), *quicker)
    assert done.returncode == 0, done.stderr
    events = [json.loads(e) for e in (model / "metrics.jsonl").read_text("utf-8").splitlines()]
    loss = min(event["nll"] for event in events if event["event"] == "validated")
    assert loss < bigram_loss(data) - 0.5
