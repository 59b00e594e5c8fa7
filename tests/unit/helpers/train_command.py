"""`nmtgrid train` as tests call it, with a toy dataset and a model that trains in a moment."""

import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from nmtgrid.cli.app import main

TINY_MODEL = (
    "--set", "model.depth=1", "--set", "model.size=8", "--set", "model.feed_forward_size=8",
)  # fmt: skip
SMALL_TRANSFORMER = (
    "--arch", "transformer", "--preset", "toy", "--precision", "fp32",
    *("--set", "model.size=16", "--set", "model.heads=2", "--set", "model.feed_forward_size=16"),
    *("--set", "model.encoder_depth=1", "--set", "model.decoder_depth=1"),
    *("--set", "training.validate_epochs=0", "--set", "training.validate_bleu=false"),
)  # fmt: skip


def toy_data(folder: Path, *options: str) -> Path:
    """Return `folder` with a toy dataset; `options` are those of `bpe learn`."""
    assert main(["preprocess", "--toy", "60", "--out", str(folder)]) == 0
    assert main(["bpe", "learn", str(folder), "--merges", "40", *options]) == 0
    return folder


def train(*arguments: object) -> int:
    return main(["train", *map(str, arguments)])


def on_two_ranks(module: str, arguments: Sequence[object], *folders: Path) -> list[tuple[int, str]]:
    """Run a module in two processes, each in its own folder; return exit codes and messages.

    They are forked from a process that has imported torch, which saves most of the time.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    forks = multiprocessing.get_context("forkserver")
    # The modules that torch loads with the first optimiser take as long as torch itself.
    forks.set_forkserver_preload(
        ["tests.unit.helpers.train_command", "nmtgrid.cli.train.run", "torch._dynamo"]
    )
    words = [module, *map(str, arguments)]
    with tempfile.TemporaryDirectory() as logs:
        paths = [Path(logs) / str(rank) for rank in range(2)]
        running = [
            forks.Process(target=_rank, args=(rank, port, words, folder, path))
            for rank, (folder, path) in enumerate(zip(folders, paths, strict=True))
        ]
        for process in running:
            process.start()
        for process in running:
            process.join(timeout=300)
        return [
            (-1 if p.exitcode is None else p.exitcode, path.read_text())
            for p, path in zip(running, paths, strict=True)
        ]


def _rank(rank: int, port: str, words: list[str], folder: Path, messages: Path) -> None:
    """Run one of two processes, without the pause in which torchrun would end it."""
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
    }  # fmt: skip
    os.chdir(folder)
    with messages.open("wb") as file:
        os.dup2(file.fileno(), 2)
    pause = time.sleep
    time.sleep = lambda _: pause(0.1)
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__")
