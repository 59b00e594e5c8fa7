"""The commands to disturb: their inputs, their outputs, and how to continue afterwards."""

import dataclasses
import time
from pathlib import Path

from tests.faults.process import Ended, run
from tests.faults.results import Left, content, differing, left, leftovers
from tests.faults.stock import ONLINE, PREPROCESS, SHORT, TRAIN, lay_out
from tests.faults.taps import counting

_RESUME = ["train", "data", "--resume", "--max-updates", "5", "--out", "model"]


@dataclasses.dataclass(frozen=True)
class Undisturbed:
    """The output of an undisturbed command, its number of moments, and its duration."""

    expected: dict[str, Left]
    moments: int
    seconds: float


_UNDISTURBED: dict[tuple[str, Path], Undisturbed] = {}
"""By the scene's name and the stock."""


@dataclasses.dataclass(frozen=True)
class Scene:
    """A command, run in a folder with copies of `begins` (name there: name in the stock).

    `makes` are the files and folders that it writes; `again` are commands to continue with after it
    was ended, of which the first one that is not refused counts; `probe` reads the output.
    """

    name: str
    words: list[str]
    begins: dict[str, str]
    makes: list[str]
    again: list[list[str]]
    probe: list[str] | None = None
    is_whole: bool = True
    """Whether each of `makes` must appear completely or not at all."""

    def begin(self, stock: Path, folder: Path) -> Path:
        """Create `folder` as it is before the command."""
        return lay_out(stock, folder, self.begins)

    def left(self, folder: Path) -> dict[str, Left]:
        """Return the existing files among the command's outputs."""
        return {
            name: left(folder / name) if (folder / name).is_dir() else {"": content(folder / name)}
            for name in self.makes
            if (folder / name).exists()
        }

    def undisturbed(self, stock: Path, folder: Path) -> Undisturbed:
        """Return the output of the undisturbed command; it runs once for all series."""
        if (self.name, stock) not in _UNDISTURBED:
            began = time.monotonic()
            ended = run(self.words, self.begin(stock, folder), counting())
            if ended.code:
                raise RuntimeError(f"{self.name}: {ended.code}\n{ended.said}")
            result = Undisturbed(self.left(folder), ended.moments, time.monotonic() - began)
            _UNDISTURBED[self.name, stock] = result
        return _UNDISTURBED[self.name, stock]


def scenes() -> list[Scene]:
    """Return all scenes."""
    decode = ["decode", "model", "text/test.xx", "--out", "out.yy", "--traces", "t.jsonl",
              "--alignments", "links", *SHORT]  # fmt: skip
    text, data = {"text": "text"}, {"data": "data"}
    learn = ["bpe", "learn", "data", "--merges", "8"]
    make = [*PREPROCESS, "--out", "data"]
    open_data = ["train", "data", "--dry-run"]
    translate = ["decode", "model", "text/test.xx", *SHORT]
    train = [*TRAIN, "--out", "model"]
    replace = [*train, "--overwrite"]
    with_text = {**data, **text}
    online = [*ONLINE, "--out", "online", "--device", "cpu"]
    apply = ["bpe", "apply", "data/bpe.codes", "--input", "text/train.xx", "--out", "units"]
    report = ["analyze", "report", "--curves", "model", "--out", "page.html"]
    return [
        Scene("preprocess", make, text, ["data"], [make, [*make, "--overwrite"]]),
        Scene("preprocess --overwrite", [*make, "--overwrite"], with_text, ["data"],
              [[*make, "--overwrite"]]),
        Scene("bpe learn", learn, {"data": "bare"}, ["data"], [learn], open_data, False),
        Scene("bpe learn again", [*learn, "--overwrite"], data, ["data"], [[*learn, "--overwrite"]],
              open_data, False),
        Scene("bpe apply", apply, with_text, ["units"], [apply]),
        Scene("train", train, with_text, ["model"], [_RESUME, train, replace], translate, False),
        Scene("train --resume", _RESUME, {**with_text, "model": "broken"}, ["model"], [_RESUME],
              translate, False),
        Scene("train --overwrite", replace, {**with_text, "model": "broken"}, ["model"],
              [replace], translate, False),
        Scene("decode", decode, {**text, "model": "model"}, ["out.yy", "t.jsonl", "links"],
              [decode]),
        Scene("online-eval", online, {**data, "model": "model"}, ["online"], [online], None, False),
        Scene("analyze report", report, {"model": "model"}, ["page.html"], [report]),
    ]  # fmt: skip


def go_on(scene: Scene, folder: Path, expected: dict[str, Left]) -> tuple[str, list[str]]:
    """Check the output of a disturbed command, and continue; return the outcome and the faults."""
    faults = _torn(scene, folder, expected)
    if scene.probe is not None:
        read = run(scene.probe, folder)
        if read.code and not read.is_refused:
            faults.append(f"reading: {read.code} {read.said[-600:]}")
    outcome, ended = "already complete", Ended(2, "")
    for number, words in enumerate(scene.again):
        ended = run(words, folder)
        if not ended.code:
            outcome = "resumed" if "--resume" in words else "restarted"
            break
        if not ended.is_refused:
            break
        if number == 0 and not _unlike(scene.left(folder), expected) and "--resume" not in words:
            return outcome, faults
    if ended.code:
        return "stuck", [*faults, f"going on: {ended.code} {ended.said[-600:]}"]
    faults += [f"differs: {name}" for name in _unlike(scene.left(folder), expected)]
    faults += [f"left behind: {name}" for name in leftovers(folder)]
    return outcome, faults


def _torn(scene: Scene, folder: Path, expected: dict[str, Left]) -> list[str]:
    """Return outputs that are incomplete although they must be complete or absent."""
    if not scene.is_whole or scene.makes[0] in scene.begins:
        return []
    actual = scene.left(folder)
    return [f"half of {name} is there" for name in actual if actual[name] != expected[name]]


def _unlike(actual: dict[str, Left], expected: dict[str, Left]) -> list[str]:
    return [
        f"{name}/{file}"
        for name in expected
        for file in differing(actual.get(name, {}), expected[name])
    ]
