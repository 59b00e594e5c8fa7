"""Every kind of file that we write, with flipped, lost or added bytes, and its readers."""

import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.faults.process import Ended, run
from tests.faults.results import content, left
from tests.faults.stock import SHORT, SMALL, copy
from tests.faults.tally import Tally


@dataclasses.dataclass(frozen=True)
class Reading:
    """Files (patterns), the command that reads them, and its outputs."""

    files: list[str]
    words: list[str]
    makes: list[str]
    also: list[str] = dataclasses.field(default_factory=list)
    """Further files that the command needs."""
    spared: tuple[str, ...] = ()
    """Changes that do not damage them."""


def readings() -> list[Reading]:
    """Return a reader for every kind of file."""
    train = ["train", "data", *SMALL, "--max-updates", "2", "--set", "batches.max_tokens=60",
             "--set", "training.precision=fp32", "--out", "new"]  # fmt: skip
    test = ["decode", "model", "--data", "data", "--json", "scores.json", *SHORT]
    decode = ["decode", "model", "text/test.xx", "--out", "new", *SHORT]
    resume = ["train", "data", "--resume", "--max-updates", "4", "--out", "broken"]
    shown = ["--json", "new.json"]
    return [
        Reading(["data/*.*"], train, ["new"]),
        Reading(["data/text/*"], ["bpe", "learn", "data", "--merges", "8", "--overwrite"],
                ["data"]),
        Reading(["data/raw/test.*", "data/test.safetensors"], test, ["scores.json"], ["model"]),
        Reading(["model/*.json", "model/vocab*", "model/bpe.codes", "model/model.safetensors"],
                decode, ["new"], ["text"]),
        Reading(["model/last.safetensors"], [*decode, "--weights", "last"], ["new"], ["text"]),
        Reading(["model/average.safetensors"], [*decode, "--weights", "average"], ["new"],
                ["text"]),
        Reading(["model/exits.json"], [*decode, "--exit", "{exit}"], ["new"], ["text"]),
        Reading(["broken/*.json", "broken/checkpoints/*/*"], resume, ["broken"], ["data"]),
        Reading(["model/metrics.jsonl"], ["analyze", "curves", "model", *shown], ["new.json"]),
        # Any lines of traces, in any order, are a valid file of traces.
        Reading(["traces.jsonl"], ["analyze", "exits", "traces.jsonl", *shown], ["new.json"],
                spared=("line", "twice")),
        Reading(["online/results.json"], ["analyze", "latency", "online", *shown], ["new.json"]),
        Reading(["tuned.json"],
                ["adaptive-tune", "--results", "tuned.json", "--out", "new.png", *shown],
                ["new.json"]),
    ]  # fmt: skip


def flips(
    stock: Path, folder: Path, rounds: int, draw: random.Random
) -> Iterator[tuple[str, Tally]]:
    """Yield the outcomes for each kind of file: damaged `rounds` times, each at least once."""
    for reading in readings():
        tops = {pattern.split("/")[0] for pattern in reading.files}
        needed = sorted({*tops, *reading.also})
        words = [word.format(exit=_first_exit(stock)) for word in reading.words]
        plain = run(words, copy(stock, folder, needed))
        if plain.code:
            raise RuntimeError(f"{words}: {plain.said}")
        expected = _made(reading, folder)
        files = sorted({path for pattern in reading.files for path in stock.glob(pattern)})
        tally = Tally()
        for number in range(max(rounds, len(files))):
            path = files[number] if number < len(files) else draw.choice(files)
            name = path.relative_to(stock).as_posix()
            copy(stock, folder, needed)
            how = draw.choice(sorted(_HARMS.keys() - set(reading.spared)))
            before = (folder / name).read_bytes()
            harmed = _HARMS[how](before, draw)
            (folder / name).write_bytes(harmed)
            ended = run(words, folder)
            outcome, faults = _judged(ended, plain, name, _made(reading, folder) == expected)
            tally.add(
                f"{' '.join(words[:2])}: {name}, {how} {_where(before, harmed)}", outcome, faults
            )
        yield f"harm {', '.join(reading.files)[:40]}", tally


def _judged(ended: Ended, plain: Ended, name: str, same: bool) -> tuple[str, list[str]]:
    """Return the outcome: the same result, or an error that names the file."""
    parts = name.split("/")
    # A saved state that is refused as a whole is named by its folder.
    state = "/".join(parts[-3:-1]) if "checkpoints" in parts else parts[-1]
    is_named = parts[-1] in ended.said or state in ended.said
    if not ended.code:
        if same:
            return "unchanged", []
        is_said = is_named and ended.said.count(parts[-1]) > plain.said.count(parts[-1])
        return ("warned", []) if is_said else ("silent", [f"another result: {ended.said[-300:]}"])
    if not ended.is_refused:
        return "fell over", [f"{ended.code} {ended.said[-800:]}"]
    return "refused", [] if is_named else [f"does not name the file: {ended.said[-300:]}"]


def _made(reading: Reading, folder: Path) -> list[Any]:
    paths = [folder / name for name in reading.makes]
    return [left(path) if path.is_dir() else content(path) if path.exists() else None
            for path in paths]  # fmt: skip


def _first_exit(stock: Path) -> str:
    return str(next(iter(content(stock / "model" / "exits.json")["settings"])))


def _splice(
    content: bytes, draw: random.Random, size: int, change: Callable[[bytes], bytes],
    within: int | None = None,
) -> bytes:  # fmt: skip
    """Change `size` bytes at a random position, within the first `within` bytes if given."""
    index = draw.randrange(min(len(content), within or len(content)))
    return content[:index] + change(content[index : index + size]) + content[index + size :]


def _digit(content: bytes, draw: random.Random) -> bytes:
    """Change a digit, so that the text stays valid."""
    positions = [index for index, byte in enumerate(content) if chr(byte).isdigit()]
    if not positions:
        return _HARMS["bit"](content, draw)
    index = draw.choice(positions)
    return content[:index] + str((content[index] - 47) % 10).encode() + content[index + 1 :]


def _line(content: bytes, draw: random.Random) -> bytes:
    """Drop a line in the middle: a file that ends after a line could be a shorter valid one."""
    lines = content.splitlines(keepends=True)
    if len(lines) < 3:
        return _HARMS["lost"](content, draw)
    index = draw.randrange(1, len(lines) - 1)
    return b"".join(lines[:index] + lines[index + 1 :])


_HARMS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "bit": lambda data, draw: _splice(
        data, draw, 1, lambda old: bytes([old[0] ^ 1 << draw.randrange(8)])
    ),
    "digit": _digit,
    # A letter within the first part, which has headers and names.
    "head": lambda data, draw: _splice(
        data, draw, 1, lambda old: bytes([draw.randrange(32, 127)]), within=900
    ),
    "zeros": lambda data, draw: _splice(data, draw, 64, lambda old: b"\0" * len(old)),
    "lost": lambda data, draw: _splice(data, draw, draw.randint(1, 40), lambda old: b""),
    "line": _line,
    "cut": lambda data, draw: data[: draw.randrange(len(data))],
    "added": lambda data, draw: data + draw.randbytes(draw.randint(1, 5000)),
    "twice": lambda data, draw: data * draw.randint(2, 50),
    "empty": lambda data, draw: b"",
}


def _where(before: bytes, after: bytes) -> str:
    same = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None)
    return "" if same is None else f"at {same}: {before[max(0, same - 20) : same + 12]!r}"
