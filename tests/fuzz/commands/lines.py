"""The valid command lines that are changed, on data that is created once."""

import contextlib
import dataclasses
import functools
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import typer.main

from nmtgrid.base.config import describe
from nmtgrid.base.io.arrays import save_tensors
from nmtgrid.cli.app import COMMANDS, assemble
from nmtgrid.cli.objectives import objectives
from nmtgrid.models import zoo
from nmtgrid.online.settings import KINDS
from nmtgrid.search.api import SearchPlan
from nmtgrid.training.settings import settings_type
from tests.faults.stock import PREPROCESS, SHORT, SMALL, done
from tests.faults.stock import make as make_stock

INPUT = "text/test.xx"
"""The content of standard input."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A valid command line: `command`, its arguments, and its options with a list of values each.

    `needs` are the files and folders of the stock that it uses; `settings` are the names that
    `setting_option` may change.
    """

    command: list[str]
    arguments: list[str]
    options: dict[str, list[str]]
    needs: list[str]
    settings: tuple[str, ...] = ()
    label: str = ""
    setting_option: str = "--set"

    @property
    def name(self) -> str:
        """The command, and what kind of a call it is."""
        return " ".join([*self.command, *([self.label] if self.label else [])])

    def words(self) -> list[str]:
        """Return the words of the command line."""
        words = list(self.command)
        for option, values in self.options.items():
            if option in self.pairs:
                words += [option, *values]
            elif not values:
                words.append(option)
            else:
                words += [f"{option}={value}" for value in values]
        return [*words, "--", *self.arguments]

    @functools.cached_property
    def pairs(self) -> set[str]:
        """The options that take two values."""
        return {name for name, parameter in self.parameters.items() if parameter.nargs == 2}

    @functools.cached_property
    def parameters(self) -> dict[str, Any]:
        """The options that the command declares, each by its longest name."""
        command: Any = typer.main.get_command(assemble([self.command[0]]))
        for word in self.command:
            command = command.commands[word]
        return {
            max(parameter.opts, key=len): parameter
            for parameter in command.params
            if parameter.param_type_name == "option" and "--help" not in parameter.opts
        }


def make(folder: Path) -> None:
    """Fill `folder` with the input of the command lines."""
    make_stock(folder)
    (folder / "simuleval").mkdir()
    rows = [
        {"index": index, "prediction": "a b", "delays": [1, 3], "elapsed": [0, 0],
         "prediction_length": 2, "reference": "a c", "source": "x y z", "source_length": 3}
        for index in range(3)
    ]  # fmt: skip
    log = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "simuleval" / "instances.log").write_text(log, encoding="utf-8")
    text = (folder / "text" / "test.xx").read_text(encoding="utf-8").splitlines()
    (folder / "links").write_text("0-0 1-1\n" * len(text), encoding="utf-8")
    (folder / "gold").write_text("0-0 1?1\n" * len(text), encoding="utf-8")
    (folder / "numbers").write_text("0.5\n" * len(text), encoding="utf-8")
    (folder / "prefixes").write_text("A\n" * len(text), encoding="utf-8")
    (folder / "own.py").write_text(_OWN, encoding="utf-8")
    _pictures(folder / "pictures")
    done(
        folder,
        ["decode", "model", INPUT, "--traces", "attention.jsonl", "--out", "other.yy", *SHORT],
    )
    with _input("\n".join(text) + "\n"):
        done(folder, ["decode", "model", "--stream", "--k", "2", "--traces", "stream.jsonl"])


@contextlib.contextmanager
def _input(text: str) -> Iterator[None]:
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(text.encode()))
    try:
        yield
    finally:
        sys.stdin = before


def _pictures(folder: Path) -> None:
    folder.mkdir()
    images = [
        {"cocoid": number, "filename": f"a{number}.jpg", "split": split,
         "sentences": [{"raw": "A cat."}, {"raw": "a dog sits"}]}
        for number, split in enumerate(["train"] * 4 + ["val"] * 2 + ["test"] * 2)
    ]  # fmt: skip
    (folder / "captions.json").write_text(json.dumps({"images": images}), encoding="utf-8")
    draw = torch.Generator().manual_seed(1)
    features = {str(number): torch.rand(3, 4, generator=draw) for number in range(8)}
    save_tensors(folder / "features.safetensors", features)


_OWN = """
import dataclasses

from nmtgrid.online.policies import Policy


@dataclasses.dataclass(frozen=True)
class Sure(Policy):
    least: float = 0.5

    def decide(self, proposal):
        return proposal.log_probabilities.amax(1).exp() >= self.least


def lag(delays, source_length, target_length):
    return float(delays[0])
"""
_FILES = {"--reference": ["text/test.yy"], "--json": ["new.json"]}
_SHORT = {"--set": [word for word in SHORT if "=" in word], "--device": ["cpu"]}
_TRAIN = {
    "--max-updates": ["2"],
    "--device": ["cpu"],
    "--precision": ["fp32"],
    "--json": ["new.json"],
}
_TINY = ["training.validate_sentences=2", "batches.max_tokens=60"]


def lines() -> list[Line]:
    """Return all command lines."""
    return [*_data_lines(), *_train_lines(), *_decode_lines(), *_tuning_lines(), *_analyze_lines()]


def _data_lines() -> list[Line]:
    options = dict(zip(PREPROCESS[1::2], ([value] for value in PREPROCESS[2::2]), strict=True))
    toy = {"--toy": ["20"], "--out": ["new"], "--json": ["new.json"]}
    captions = {"--captions": ["pictures/captions.json"], "--features": [
        "pictures/features.safetensors"], "--out": ["new"], "--json": ["new.json"]}  # fmt: skip
    text = {**options, "--out": ["new"], "--json": ["new.json"]}
    codes = {"--codes": ["data/bpe.codes"], "--vocab-source": ["data/vocab.xx.txt"],
             "--vocab-target": ["data/vocab.yy.txt"], "--overwrite": [],
             "--json": ["new.json"]}  # fmt: skip
    convert = {"--dict-source": ["fairseq/dict.de.txt"], "--dict-target": ["fairseq/dict.en.txt"],
               "--out": ["new"], "--json": ["new.json"]}  # fmt: skip
    return [
        Line(["preprocess"], [], text, ["text"]),
        Line(["preprocess"], [], toy, [], label="(toy)"),
        Line(["preprocess"], [], captions, ["pictures"], label="(pictures)"),
        Line(["bpe", "learn"], ["bare"], {"--merges": ["8"], "--json": ["new.json"]}, ["bare"]),
        Line(["bpe", "learn"], ["data"], codes, ["data"], label="(codes)"),
        Line(["bpe", "apply"], ["data/bpe.codes"], {"--input": [INPUT], "--out": ["new"]},
             ["data", "text"]),
        Line(["bpe", "undo"], [], {"--input": [INPUT], "--out": ["new"]}, ["text"]),
        Line(["export"], ["plain"], {"--to": ["ctranslate2"], "--out": ["new"]},
             ["plain"]),
        Line(["import-fairseq"], ["fairseq/c.pt"], convert, ["fairseq"]),
        Line(["config-schema"], ["decode"], {"--out": ["new"]}, []),
        Line(["import-marian"], ["marian"], {"--out": ["new"], "--json": ["new.json"]}, ["marian"]),
    ]  # fmt: skip


def _train_lines() -> list[Line]:
    small = [word.removeprefix("--set=") for word in SMALL if word.startswith("--set=")]
    train = {**_TRAIN, "--arch": ["transformer"], "--set": [*small, *_TINY], "--out": ["new"]}
    resume: dict[str, list[str]] = {**_TRAIN, "--resume": [], "--max-updates": ["4"]}
    training = [
        Line(["train"], ["data"], train, ["data"], _settings("transformer")),
        Line(["train"], ["data"], {**resume, "--out": ["broken"]}, ["data", "broken"],
             _settings("transformer"), "--resume"),
        Line(["train"], ["data"], {**train, "--init": ["model"]}, ["data", "model"], (), "--init"),
        Line(["train"], [], {"--list": [], "--json": ["new.json"]}, [], (), "--list"),
    ]  # fmt: skip
    for arch in zoo.architectures():
        options = {"--dry-run": [], "--arch": [arch], "--source-vocab-size": ["50"],
                   "--target-vocab-size": ["40"], "--json": ["new.json"]}  # fmt: skip
        training.append(Line(["train"], [], options, [], _settings(arch), f"--dry-run {arch}"))
    return training


def _settings(arch: str, objective: str = "likelihood") -> tuple[str, ...]:
    kind = settings_type(zoo.architectures().get(arch).config, objectives.get(objective).settings)
    return tuple(name for name, _ in describe(kind) if "." in name)


def _decode_lines() -> list[Line]:
    plan = tuple(name for name, _ in describe(SearchPlan))
    text = {"--out": ["new"], "--traces": ["t.jsonl"], "--alignments": ["a"], **_SHORT}
    data = {"--data": ["data"], "--json": ["new.json"], **_SHORT}
    forced: dict[str, list[str]] = {
        "--data": ["data"], "--forced": [], "--json": ["new.json"], "--device": ["cpu"]
    }  # fmt: skip
    sample: dict[str, list[str]] = {"--sample": [], "--out": ["new"], **_SHORT}
    prefix = {"--prefix": ["prefixes"], "--out": ["new"], **_SHORT}
    exit_ = {"--exit": ["1"], "--out": ["new"], "--traces": ["t.jsonl"], **_SHORT}
    stream: dict[str, list[str]] = {
        "--stream": [], "--k": ["2"], "--traces": ["t.jsonl"], "--device": ["cpu"]
    }  # fmt: skip
    both, scored = ["model", "text"], ["model", "data"]
    return [
        Line(["decode"], ["model", INPUT], text, both, plan),
        Line(["decode"], ["model"], data, scored, (), "--data"),
        Line(["decode"], ["model"], forced, scored, (), "--forced"),
        Line(["decode"], ["model", INPUT], sample, both, (), "--sample"),
        Line(["decode"], ["model", INPUT], prefix, [*both, "prefixes"], (), "--prefix"),
        Line(["decode"], ["model", INPUT], exit_, both, (), "--exit"),
        Line(["decode"], ["model", INPUT], {"--nbest": ["2"], "--beam": ["2"], **_SHORT}, both, (),
             "--nbest"),
        Line(["decode"], ["model"], stream, both, plan, "--stream"),
    ]  # fmt: skip


def _tuning_lines() -> list[Line]:
    exits = {"--data": ["data"], "--samples": ["20"], "--out": ["new"], "--device": ["cpu"],
             "--json": ["new.json"]}  # fmt: skip
    tune = {**exits, "--finalists": ["1"]}
    loss = {**exits, "--split": ["test"], "--allow-loss": ["90"], "--confidence": ["0.1"],
            "--candidates": ["2"]}  # fmt: skip
    online = {"--data": ["data"], "--k": ["1,3"], "--out": ["new"], "--simuleval": ["logs"],
              "--json": ["new.json"], "--device": ["cpu"]}  # fmt: skip
    policies = tuple(
        f"{name} {setting}"
        for name, kind in KINDS.items()
        if kind.make
        for setting in (kind.sweep, "floor", "cap")
    )
    policy = {"--data": ["data"], "--sentences": ["2"], "--policy": ["Sure least=0.5"],
              "--import": ["own.py"], "--metric": ["lag"], "--clock": [],
              "--device": ["cpu"]}  # fmt: skip
    stream: dict[str, list[str]] = {
        "--stream": [], "--policy": ["Sure"], "--import": ["own.py"], "--device": ["cpu"]
    }  # fmt: skip
    certified = {"--data": ["data"], "--split": ["test"], "--allow-loss": ["90"],
                 "--confidence": ["0.1"], "--k": ["1,3"], "--json": ["new.json"],
                 "--device": ["cpu"]}  # fmt: skip
    log = {"--log": ["simuleval/instances.log"], "--json": ["new.json"]}
    results = {"--results": ["tuned.json"], "--out": ["new.png"], "--json": ["new.json"]}
    both = ["model", "data"]
    return [
        Line(["online-eval"], ["model"], online, both),
        Line(
            ["online-eval"], ["model"], policy, [*both, "own.py"], policies, "--policy", "--policy"
        ),
        Line(
            ["decode"],
            ["model"],
            stream,
            ["model", "own.py"],
            policies,
            "--stream --policy",
            "--policy",
        ),
        Line(["online-eval"], ["model"], certified, both, (), "--allow-loss"),
        Line(["online-eval"], [], log, ["simuleval"], (), "--log"),
        Line(["adaptive-tune"], ["model"], tune, both),
        Line(["adaptive-tune"], ["model"], loss, both, (), "--allow-loss"),
        Line(["adaptive-tune"], [], results, ["tuned.json"], (), "--results"),
    ]


def _analyze_lines() -> list[Line]:
    json_, both = {"--json": ["new.json"]}, ["text", "translated.yy", "other.yy"]
    drawn = {**json_, "--out": ["new.svg"]}
    source = {**_FILES, "--source": [INPUT]}
    systems = ["a=translated.yy", "b=other.yy"]
    report = {**source, "--latency": ["online"], "--depth": ["tuned.json"], "--curves": ["model"],
              "--out": ["new.html"]}  # fmt: skip
    return [
        Line(["analyze", "align"], [INPUT, "text/test.yy"], {**json_, "--out": ["new"], "--gold": [
            "gold"]}, ["text", "gold"]),
        Line(["analyze", "buckets"], systems, {**source, "--difficulty": ["numbers"], "--out": [
            "new"]}, [*both, "numbers"]),
        Line(["analyze", "compare"], systems, {**_FILES, "--out": ["new"]}, both),
        Line(["analyze", "difficulty"], systems, {**source, "--alignments": ["links"]},
             [*both, "links"]),
        Line(["analyze", "lengths"], systems, {**_FILES, **drawn}, both),
        Line(["analyze", "alignments"], ["attention.jsonl"], {**json_, "--out": ["new"], "--gold": [
            "gold"], "--pharaoh": ["p"]}, ["attention.jsonl", "gold"]),
        Line(["analyze", "exits"], ["traces.jsonl"], {**_FILES, "--out": ["new"]},
             ["traces.jsonl", "text"]),
        Line(["analyze", "paths"], ["stream.jsonl"], {**_FILES, "--out": ["new"], "--alignments": [
            "links"]}, ["stream.jsonl", "links", "text"]),
        Line(["analyze", "latency"], ["online"], drawn, ["online"]),
        Line(["analyze", "curves"], ["model"], drawn, ["model"]),
        Line(["analyze", "activations"], ["model"], {**drawn, "--data": ["data"]},
             ["model", "data"]),
        Line(["analyze", "report"], ["a=traces.jsonl", "b=translated.yy"], report,
             [*both, "traces.jsonl", "online", "tuned.json", "model"]),
    ]  # fmt: skip


def all_commands() -> set[str]:
    """Return the names of the commands that `nmtgrid` has, groups with their subcommands."""
    names: set[str] = set()
    for name in COMMANDS:
        group: Any = typer.main.get_command(assemble([name]))
        below = getattr(group.commands[name], "commands", {})
        names |= {f"{name} {child}" for child in below} or {name}
    # A server does not stop by itself: tests/unit/cli/test_serve.py tests it with invalid input.
    return names - {"demo"}
