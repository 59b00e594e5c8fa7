"""The cases: a command line, the changed part, and its new value."""

import dataclasses
import itertools
import random
import re
import shlex
from pathlib import Path

from tests.fuzz.commands import replacements
from tests.fuzz.commands.lines import INPUT, Line
from tests.fuzz.commands.values import CONTENTS, LEAVES, PATHS, TEXTS

KINDS = ("option", "setting", "path", "content", "value")
"""A value of an option or an argument; of `--set`; what a path names; a file; a value in JSON."""
_OUTPUTS = {"--out", "--json", "--traces", "--simuleval", "--difficulty-out", "--alignments-out",
            "--pharaoh"}  # fmt: skip
_PATH_WORDS = {"FILE", "DIR", "MODEL", "DATA", "P", "F", "SOURCE", "TARGET", "RESULTS", "TRACES"}
"""Words in the help of options about their values."""
_PROCESSES = {"zero", "negative zero", "three"}
"""Numbers of workers that start a Python of their own, which cases, run as nobody, may not read."""
_MOST_SHOWN = 300


@dataclasses.dataclass(frozen=True)
class Case:
    """A change: `target` is an option, an argument's number, a setting or a file."""

    line: Line
    kind: str
    target: str
    value: str
    address: replacements.Address = ()

    @property
    def name(self) -> str:
        """The value of `--case`."""
        where = "/".join(map(str, self.address))
        return ":".join([self.line.name, self.kind, self.target, where, self.value])

    def apply(self, folder: Path) -> list[str]:
        """Change the files in `folder`; return the words of the command line."""
        if self.kind == "option":
            return self._with(TEXTS[self.value])
        if self.kind == "setting":
            return self._with(f"{self.target}={TEXTS[self.value]}")
        if self.kind == "path":
            return self._with(replacements.replace(folder, self.value, self._good, self._is_output))
        path = folder / self.target
        if self.kind == "content":
            replacements.rewrite(path, self.value)
        else:
            replacements.change(path, self.address, self.value)
        replacements.seal(folder, path)
        return self.line.words()

    def command_line(self, words: list[str]) -> str:
        """Return the command line in readable form, with the change."""
        text = shlex.join(["nmtgrid", *words])
        if len(text) > _MOST_SHOWN:
            text = f"{text[:_MOST_SHOWN]}... ({len(text):,} characters)"
        changed = "" if self.kind in ("option", "setting") else f"  # {self.kind} {self.value!r}"
        if self.kind in ("content", "value"):
            changed += f" in {self.target} at {'/'.join(map(str, self.address)) or 'its top'}"
        return text + changed

    @property
    def _good(self) -> str | None:
        if self.target.isdigit():
            return self.line.arguments[int(self.target)]
        return next(iter(self.line.options.get(self.target, [])), None)

    @property
    def _is_output(self) -> bool:
        if self.line.command == ["decode"] and self.target == "--alignments":
            return True
        return self.target in _OUTPUTS

    def _with(self, value: str) -> list[str]:
        line = self.line
        if self.target.isdigit():
            arguments = [*line.arguments]
            arguments[int(self.target)] = value
            return dataclasses.replace(line, arguments=arguments).words()
        name = line.setting_option if self.kind == "setting" else self.target
        values = line.options.get(name, [])
        if name in line.pairs:
            values = [value, "text/test.yy"]
        elif line.parameters[name].multiple:
            values = [*values, value]
        else:
            values = [value]
        return dataclasses.replace(line, options={**line.options, name: values}).words()


def cases(line: Line, folder: Path, files: list[str]) -> dict[str, list[Case]]:
    """Return all cases of a command line by kind; `files`, in `folder`, are its input."""
    options = [
        name
        for name, parameter in line.parameters.items()
        if not getattr(parameter, "is_flag", False) and name != "--set"
    ]
    targets = [*options, *map(str, range(len(line.arguments)))]
    paths = [
        target
        for target in targets
        if target.isdigit() or _takes_path(line, target)
    ]  # fmt: skip
    value_cases = [
        Case(line, "value", name, value, address)
        for name in files
        for address in replacements.addresses(folder / name)
        for value in LEAVES
        if address or value != "left out"
    ]
    return {
        "option": [
            Case(line, "option", t, v)
            for t, v in itertools.product(targets, TEXTS)
            if t != "--workers" or v not in _PROCESSES
        ],
        "setting": [Case(line, "setting", t, v) for t in line.settings for v in TEXTS],
        "path": [Case(line, "path", t, v) for t, v in itertools.product(paths, PATHS)],
        "content": [Case(line, "content", t, v) for t, v in itertools.product(files, CONTENTS)],
        "value": value_cases,
    }


def _takes_path(line: Line, target: str) -> bool:
    metavar = str(line.parameters[target].metavar or "")
    return not _PATH_WORDS.isdisjoint(re.findall("[A-Z]+", metavar))


def drawn(by_line: list[dict[str, list[Case]]], count: int, seed: int) -> list[Case]:
    """Return so many cases: all kinds equally often, and within a kind all targets.

    If a kind has fewer cases than its share, all of them are returned.
    """
    draw = random.Random(seed)
    queues: dict[str, list[Case]] = {}
    for kind in KINDS:
        by_target: dict[tuple[str, str], list[Case]] = {}
        for case in itertools.chain.from_iterable(line[kind] for line in by_line):
            by_target.setdefault((case.line.name, case.target), []).append(case)
        for below in by_target.values():
            draw.shuffle(below)
        groups = list(by_target.values())
        draw.shuffle(groups)
        rounds = itertools.zip_longest(*groups)
        queues[kind] = [case for row in rounds for case in row if case is not None]
    mixed = itertools.zip_longest(*queues.values())
    return [case for row in mixed for case in row if case is not None][:count]


__all__ = ["INPUT", "KINDS", "Case", "cases", "drawn"]
