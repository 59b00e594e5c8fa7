"""`nmtgrid train` as tests call it, with a toy dataset and a model that takes a moment."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from nmtgrid.cli.app import main
from tests.conftest import PROJECT

TINY_MODEL = (
    "--set", "model.depth=1", "--set", "model.size=8", "--set", "model.feed_forward_size=8",
)  # fmt: skip
SMALL_TRANSFORMER = (
    "--arch", "transformer", "--preset", "toy", "--precision", "fp32",
    *("--set", "model.size=16", "--set", "model.heads=2", "--set", "model.feed_forward_size=16"),
    *("--set", "model.encoder_depth=1", "--set", "model.decoder_depth=1"),
    *("--set", "training.validate_epochs=0"),
)  # fmt: skip


def toy_data(folder: Path, *options: str) -> Path:
    """Return `folder` with a toy dataset; `options` are those of `bpe learn`."""
    assert main(["preprocess", "--toy", "60", "--out", str(folder)]) == 0
    assert main(["bpe", "learn", str(folder), "--merges", "40", *options]) == 0
    return folder


def train(*arguments: object) -> int:
    return main(["train", *map(str, arguments)])


def on_two_ranks(module: str, arguments: Sequence[object], *folders: Path) -> list[tuple[int, str]]:
    """Run a module in two processes, each in its own folder; return exit codes and messages."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    running = []
    for rank, folder in enumerate(folders):
        environment = {
            **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(PROJECT),
        }  # fmt: skip
        command = [sys.executable, "-m", module, *map(str, arguments)]
        running.append(subprocess.Popen(
            command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
        ))  # fmt: skip
    messages = [process.communicate(timeout=300)[1] for process in running]
    return [(p.returncode, message) for p, message in zip(running, messages, strict=True)]
