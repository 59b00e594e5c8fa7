"""The architecture of docs/own-architecture.md: 80 lines that train, translate, obey the laws."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nmtgrid.cli.app import main

PROJECT = Path(__file__).resolve().parents[2]
PAGE = PROJECT / "docs" / "own-architecture.md"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's code in `my_model.py`."""
    folder = tmp_path_factory.mktemp("own")
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    (folder / "my_model.py").write_text(block, encoding="utf-8")
    return folder


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = f"{home}{os.pathsep}{PROJECT}"
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=PROJECT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_it_has_at_most_80_lines(home: Path) -> None:
    lines = (home / "my_model.py").read_text(encoding="utf-8").splitlines()
    assert 60 < len(lines) <= 80 and max(map(len, lines)) <= 100


def test_the_commands_of_the_page_train_and_translate(home: Path) -> None:
    """As they stand there, in a folder of their own, with fewer pairs and updates."""
    text = PAGE.read_text(encoding="utf-8")
    commands = re.findall(r"^    python my_model\.py (.*)$", text, re.MULTILINE)
    assert [line.split()[0] for line in commands] == ["preprocess", "bpe", "train", "decode"]
    for line in commands:
        for word in ("DATA", "MODEL"):
            line = line.replace(word, str(home / word))
        words = line.replace("2000", "100").replace("updates 300", "updates 4").split()
        if words[0] in ("preprocess", "bpe"):  # they know no architecture
            assert main(words) == 0
        else:
            done = run(home, str(home / "my_model.py"), *words)
            assert done.returncode == 0, done.stderr
    assert (home / "MODEL" / "model.safetensors").is_file()


def test_the_laws_run_over_it(home: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (wanted,) = re.findall(r'python -m (pytest tests/laws .*) -k "(.*)"$', text, re.MULTILINE)
    done = run(home, "-m", *wanted[0].split(), "-k", wanted[1], "-q", "-n", "0",
               "-p", "no:cacheprovider")  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > 50 and "failed" not in done.stdout
