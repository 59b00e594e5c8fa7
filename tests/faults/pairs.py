"""Two simultaneous commands that write to one path, also if one is killed and a third follows."""

import dataclasses
import random
import re
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.faults.process import Ended, Kill, Running, run
from tests.faults.results import Left, content, differing, left, leftovers
from tests.faults.stock import ONLINE, PREPROCESS, SHORT, TRAIN, lay_out
from tests.faults.tally import Tally

_HOLDER = re.compile(r"is in use: `nmtgrid [a-z -]+` \(process (\d+) on ")
State = dict[str, Left]


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two commands, in a folder with copies of `begins` (name there: name in the stock).

    `makes` are the files and folders that they write. With `is_reader`, the second one reads the
    output of the first, and may fail with another message than that of a lock.
    """

    name: str
    first: list[str]
    second: list[str]
    begins: dict[str, str]
    makes: list[str]
    is_reader: bool = False

    def begin(self, stock: Path, folder: Path) -> Path:
        """Create `folder` as it is before the commands."""
        return lay_out(stock, folder, self.begins)

    def left(self, folder: Path) -> State:
        """Return the existing files among their outputs."""
        return {
            name: left(folder / name) if (folder / name).is_dir() else {"": content(folder / name)}
            for name in self.makes
            if (folder / name).exists()
        }


@dataclasses.dataclass(frozen=True)
class Undisturbed:
    """An order of the commands (0 and 1), the exit code of each, and their output."""

    order: tuple[int, ...]
    codes: dict[int, int]
    state: State


def pairs_of_commands() -> list[Pair]:
    """Return all pairs of commands."""
    train = [*TRAIN, "--out", "model"]
    resume = ["train", "data", "--resume", "--max-updates", "7", "--out", "model"]
    make = [*PREPROCESS, "--out", "data"]
    again = [*make, "--overwrite"]
    learn = ["bpe", "learn", "data", "--overwrite", "--merges"]
    tune = ["adaptive-tune", "model", "--data", "data", "--samples", "20", "--finalists", "1",
            "--only", "points", "--name", "new", "--device", "cpu"]  # fmt: skip
    decode = ["decode", "model", "text/test.xx", "--out", "out.yy", *SHORT, "--beam"]
    online = [*ONLINE[:-2], "--out", "online", "--device", "cpu", "--k"]
    convert = ["import-fairseq", "fairseq/c.pt", "--dict-source", "fairseq/dict.de.txt",
               "--dict-target", "fairseq/dict.en.txt", "--out", "new"]  # fmt: skip
    export = ["export", "plain", "--to", "ctranslate2", "--out", "new"]
    report = ["analyze", "report", "--curves", "model", "--out", "page.html"]
    data, text = {"data": "data"}, {"text": "text"}
    trained = {**data, "model": "model"}
    return [
        Pair("train twice", train, [*train, "--seed", "2"], data, ["model"]),
        Pair("train --overwrite twice", [*train, "--overwrite"],
             [*train, "--seed", "2", "--overwrite"], {**data, "model": "broken"}, ["model"]),
        Pair("train --resume twice", resume, resume, {**data, "model": "broken"},
             ["model"]),
        Pair("train --overwrite, train --resume", [*train, "--overwrite"], resume,
             {**data, "model": "broken"}, ["model"]),
        Pair("train --resume, adaptive-tune", resume, tune, trained, ["model"]),
        Pair("adaptive-tune twice", tune, [*tune, "--seed", "2"], trained, ["model"]),
        Pair("preprocess twice", make, [*make, "--lowercase"], text, ["data"]),
        Pair("preprocess, preprocess --overwrite", make, [*again, "--lowercase"], text, ["data"]),
        Pair("preprocess --overwrite twice", again, [*again, "--lowercase"], {**data, **text},
             ["data"]),
        Pair("preprocess --overwrite, bpe learn", again, [*learn, "4"], {**data, **text}, ["data"]),
        Pair("bpe learn twice", [*learn, "8"], [*learn, "4"], {"data": "bare"}, ["data"]),
        Pair("bpe learn, train", [*learn, "4"], train, data, ["data", "model"], True),
        Pair("preprocess --overwrite, train", again, train, {**data, **text}, ["data", "model"],
             True),
        Pair("decode twice", [*decode, "1"], [*decode, "3"], {**text, "model": "model"},
             ["out.yy"]),
        Pair("train --resume, decode", resume, [*decode, "1"], {**trained, **text},
             ["model", "out.yy"], True),
        Pair("online-eval twice", [*online, "1"], [*online, "2"], trained, ["online"]),
        Pair("import-fairseq twice", convert, [*convert, "--lowercase"],
             {"fairseq": "fairseq"}, ["new"]),
        Pair("export twice", export, [*export, "--quantization", "int8"], {"plain": "plain"},
             ["new"]),
        Pair("report twice", report, report, {"model": "model"}, ["page.html"]),
    ]  # fmt: skip


def pairs(
    stock: Path, folder: Path, rounds: int, draw: random.Random, names: Sequence[str] = ("",)
) -> Iterator[tuple[str, Tally]]:
    """Yield the outcomes of each pair: `rounds` times simultaneously, half as often with a kill.

    Only pairs with any of `names` in their names.
    """
    for pair in pairs_of_commands():
        if not any(name in pair.name for name in names):
            continue
        began = time.monotonic()
        expected = undisturbed(pair, stock, folder)
        seconds = (time.monotonic() - began) / 6
        tally = Tally()
        for _ in range(rounds):
            _beside(tally, pair, stock, folder, expected, draw.uniform(-seconds, seconds), draw)
        for _ in range((rounds + 1) // 2):
            _killed(tally, pair, stock, folder, expected, seconds, draw)
        yield f"pair {pair.name}", tally


def undisturbed(pair: Pair, stock: Path, folder: Path) -> list[Undisturbed]:
    """Return the outputs of each command alone, and of both one after the other."""
    results = []
    for order in ((0,), (1,), (0, 1), (1, 0)):
        pair.begin(stock, folder)
        ended = {number: run((pair.first, pair.second)[number], folder) for number in order}
        for number, end in ended.items():
            if end.code and not end.is_refused:
                raise RuntimeError(f"{pair.name} {order} {number}: {end.code} {end.said}")
        codes = {number: end.code for number, end in ended.items()}
        results.append(Undisturbed(order, codes, pair.left(folder)))
    return results


def _start(pair: Pair, folder: Path, offset: float, draw: random.Random) -> list[Running]:
    """Start both, the second `offset` seconds after the first, or before it."""
    running: dict[int, Running] = {}
    for number in (0, 1) if offset >= 0 else (1, 0):
        if running:
            # Mostly close to each other, so that they interfere.
            time.sleep(abs(offset) * draw.choice((1, 0.3, 0.1, 0.02)))
        running[number] = Running((pair.first, pair.second)[number], folder)
    return [running[0], running[1]]


def _beside(
    tally: Tally, pair: Pair, stock: Path, folder: Path, expected: Sequence[Undisturbed],
    offset: float, draw: random.Random,
) -> None:  # fmt: skip
    running = _start(pair, pair.begin(stock, folder), offset, draw)
    ended = [process.wait() for process in running]
    faults = [f"left behind: {name}" for name in leftovers(folder)]
    outcome, more = judged(pair, ended, [process.process for process in running], pair.left(folder),
                           expected)  # fmt: skip
    tally.add(f"{pair.name}, {offset:+.3f} s", outcome, faults + more)


def judged(
    pair: Pair, ended: Sequence[Ended], processes: Sequence[int], state: State,
    expected: Sequence[Undisturbed],
) -> tuple[str, list[str]]:  # fmt: skip
    """Return the outcome of two simultaneous commands, and their faults."""
    for end in ended:
        if end.code and not end.is_refused:
            return "", [f"ended with {end.code}: {end.said[-600:]}"]
    codes = {number: end.code for number, end in enumerate(ended)}
    if not any("is in use" in end.said for end in ended):
        for whole in expected:
            if len(whole.order) == 2 and whole.codes == codes and not _unlike(state, whole.state):
                return "sequential", []
    winners = [number for number in (0, 1) if not codes[number]]
    if len(winners) != 1:
        differences = [_unlike(state, whole.state)[:3] for whole in expected]
        return "", [f"codes {codes}, unlike all: {differences}; {ended[0].said[-300:]}"
                    f" {ended[1].said[-300:]}"]  # fmt: skip
    winner, said = winners[0], ended[1 - winners[0]].said
    faults = []
    alone = next(whole for whole in expected if whole.order == (winner,))
    if unlike := _unlike(state, alone.state):
        faults.append(f"{winner} won, but it is not whole: {unlike[:5]}")
    match = _HOLDER.search(said)
    if match is None and not pair.is_reader:
        faults.append(f"does not name the holder: {said[-400:]}")
    if match and int(match[1]) != processes[winner]:
        faults.append(f"names process {match[1]}, not {processes[winner]}: {said[-300:]}")
    return "one refused", faults


def _killed(
    tally: Tally, pair: Pair, stock: Path, folder: Path, expected: Sequence[Undisturbed],
    seconds: float, draw: random.Random,
) -> None:  # fmt: skip
    """Kill one of the two, and let a third one continue."""
    offset, victim = draw.uniform(-seconds, seconds) / 2, draw.randrange(2)
    kill = Kill(draw.uniform(0, seconds), signal.SIGKILL)
    running = _start(pair, pair.begin(stock, folder), offset, draw)
    ended = {victim: running[victim].wait(kill), 1 - victim: running[1 - victim].wait()}
    case = f"{pair.name}, {offset:+.3f} s, {victim} killed after {kill.after:.3f} s"
    faults = [
        f"{number} ended with {end.code}: {end.said[-600:]}"
        for number, end in ended.items()
        if end.code and not end.is_refused and end.code != -signal.SIGKILL
    ]
    last = Ended(2, "")
    for words in _third(pair, victim):
        last = run(words, folder)
        if not last.code:
            break
    complete = [whole.state for whole in expected]
    state = pair.left(folder)
    is_complete = any(not _unlike(state, whole) for whole in complete)
    if last.code and not last.is_refused:
        faults.append(f"going on: {last.code} {last.said[-600:]}")
    elif last.code and not (is_complete or pair.is_reader):
        faults.append(f"cannot go on: {last.said[-400:]}")
    elif not last.code and not is_complete and not pair.is_reader:
        differences = [_unlike(state, whole)[:3] for whole in complete]
        faults.append(f"unlike all: {differences}")
    if not last.code:
        faults += [f"left behind: {name}" for name in leftovers(folder)]
    tally.add(case, "continued" if not last.code else "already complete", faults)


def _third(pair: Pair, victim: int) -> list[list[str]]:
    """Return the commands to continue with: the first one that is not refused counts."""
    words = [(pair.first, pair.second)[victim], (pair.first, pair.second)[1 - victim]]
    if words[0][0] == "train":
        folder = words[0][words[0].index("--out") + 1]
        resumed = ["train", "data", "--resume", "--out", folder]
        again = [word for word in words[0] if word not in ("--resume", "--overwrite")]
        return [words[0], resumed, *([[*again, "--overwrite"]] if "--arch" in again else [])]
    if words[0][0] in ("preprocess", "bpe"):
        return [*words, *([*word, "--overwrite"] for word in words if word[0] == "preprocess")]
    return words


def _unlike(state: State, expected: State) -> list[str]:
    return [
        f"{name}/{file}"
        for name in sorted({*state, *expected})
        for file in differing(state.get(name, {}), expected.get(name, {}))
        or ([] if (name in state) == (name in expected) else [""])
    ]
