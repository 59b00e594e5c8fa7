"""Imports run down the floors, each third-party package has one door, and nothing is pickled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.floors import FLOORS, faults


def test_the_package_obeys(project: Path) -> None:
    assert faults(project) == []


def test_every_folder_has_a_floor(project: Path) -> None:
    folders = {path.name for path in (project / "nmtgrid").iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} <= set(FLOORS)


CLEAN = {
    "base/errors.py": "import json\n",
    "text/bpe.py": "import subword_nmt\nfrom nmtgrid.base import errors\n",
    "text/moses.py": "import sacremoses\n",
    "models/api.py": "import torch\nfrom nmtgrid.text.bpe import learn\n",
    "models/tower.py": "from . import api\n",
    "search/engine.py": "from nmtgrid.models.api import Step\n",
    "cli/options.py": "import typer\n",
    "cli/app.py": "import typer\nfrom nmtgrid.search import engine\nprint(engine)\n",
}

BREACHES = {
    "higher floor": ("base/errors.py", "from nmtgrid.text import moses"),
    "higher floor, in a function": ("text/bpe.py", "def f():\n    import nmtgrid.cli.options"),
    "neighbour on its own floor": ("layers/gates.py", "from nmtgrid.text.bpe import learn"),
    "neighbour": ("layers/gates.py", "from ..text.bpe import learn"),
    "circle models/api.py -> models/tower.py": ("models/api.py", "import nmtgrid.models.tower"),
    "does not exist": ("models/api.py", "from nmtgrid.layers.nothing import x"),
    "knows the architecture": ("search/engine.py", "from nmtgrid.models.tower import Tower"),
    "whose door is text/bpe.py": ("models/api.py", "import subword_nmt.x"),
    "imports pandas, whose door is nowhere": ("cli/app.py", "import pandas"),
    "imports pickle": ("base/errors.py", "from pickle import dumps"),
    "uses torch.load": ("models/api.py", "x = torch.load('x')"),
    "uses torch.save": ("cli/app.py", "keep = torch.save"),
    "uses np.save": ("base/errors.py", "np.save('x', y)"),
    "prints": ("search/engine.py", "def f():\n    print('here')"),
    "hides an import": ("base/errors.py", "importlib.import_module('nmtgrid.cli')"),
    "stands on no floor": ("attic/__init__.py", ""),
    "a module's name says": ("base/utils.py", ""),
}


def _write(root: Path, files: dict[str, str]) -> None:
    (root / "nmtgrid").mkdir()
    (root / "nmtgrid/__init__.py").touch()
    for name, text in files.items():
        path = root / "nmtgrid" / name
        path.parent.mkdir(exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)


def test_a_clean_house_has_no_fault(tmp_path: Path) -> None:
    _write(tmp_path, CLEAN)
    assert faults(tmp_path) == []


@pytest.mark.parametrize("what", BREACHES)
def test_a_breach_is_caught(tmp_path: Path, what: str) -> None:
    name, line = BREACHES[what]
    _write(tmp_path, CLEAN | {name: CLEAN.get(name, "") + line + "\n"})
    found = faults(tmp_path)
    assert len(found) == 1
    assert what.partition(", in")[0] in found[0] and found[0].startswith(name)
