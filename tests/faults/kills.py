"""Commands killed at every moment at which they change the disk, and at random other moments."""

import random
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.faults.process import Ended, Kill, run, start
from tests.faults.results import Left
from tests.faults.scenes import Scene, go_on, scenes
from tests.faults.tally import Tally
from tests.faults.taps import killing

_KINDS = (signal.SIGKILL, signal.SIGTERM)


def kills(
    stock: Path, folder: Path, rounds: int, draw: random.Random
) -> Iterator[tuple[str, Tally]]:
    """Yield the outcomes of each command: `rounds` moments, a quarter as many times, one start."""
    for scene in scenes():
        alone = scene.undisturbed(stock, folder)
        expected = alone.expected
        tally = Tally()
        moments = range(1, alone.moments + 1)
        for at in sorted(draw.sample(moments, min(rounds, len(moments)))):
            kind = draw.choice(_KINDS)
            ended = run(scene.words, scene.begin(stock, folder), killing(at, kind))
            _judge(tally, f"{kind.name} at moment {at}", scene, folder, ended, expected, kind)
        for _ in range(rounds // 4):
            kill = Kill(draw.uniform(0, alone.seconds), draw.choice(_KINDS))
            ended = run(scene.words, scene.begin(stock, folder), None, kill)
            _judge(tally, f"{kill}", scene, folder, ended, expected, kill.kind)
        if rounds >= 8:
            kill = Kill(draw.uniform(0.2, 6), draw.choice(_KINDS))
            ended = start(scene.words, scene.begin(stock, folder), kill)
            _judge(tally, f"started, {kill}", scene, folder, ended, expected, kill.kind)
        yield f"kill {scene.name}", tally


def _judge(
    tally: Tally, case: str, scene: Scene, folder: Path, ended: Ended,
    expected: dict[str, Left], kind: signal.Signals,
) -> None:  # fmt: skip
    # Without handlers (while Python starts) SIGTERM ends a process like SIGKILL.
    fitting = (0, -kind, 128 + kind)
    faults = [] if ended.code in fitting else [f"ended with {ended.code}: {ended.said[-600:]}"]
    outcome, more = go_on(scene, folder, expected)
    tally.add(f"{scene.name}, {case}", outcome, faults + more)
