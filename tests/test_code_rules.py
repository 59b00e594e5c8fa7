"""Layered dependencies, one importer of each third-party package, no pickle, plain names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.code_rules import LAYERS, LONG_FUNCTION, MODULES_PER_FOLDER, measure, risen, violations
from tests.count_code import BASELINE


def test_the_package_obeys_the_rules(project: Path) -> None:
    assert violations(project) == []


def test_every_package_has_a_layer(project: Path) -> None:
    folders = {path.name for path in (project / "nmtgrid").iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} <= set(LAYERS)


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
    "higher layer": ("base/errors.py", "from nmtgrid.text import moses"),
    "higher layer, in a function": ("text/bpe.py", "def f():\n    import nmtgrid.cli.options"),
    "another package of its own layer": ("layers/gates.py", "from nmtgrid.text.bpe import learn"),
    "another package": ("layers/gates.py", "from ..text.bpe import learn"),
    "cycle models/api.py -> models/tower.py": ("models/api.py", "import nmtgrid.models.tower"),
    "does not exist": ("models/api.py", "from nmtgrid.layers.nothing import x"),
    "depends on the architecture": ("search/engine.py", "from nmtgrid.models.tower import Tower"),
    "which only text/bpe.py may import": ("models/api.py", "import subword_nmt.x"),
    "imports pandas, which only nothing may import": ("cli/app.py", "import pandas"),
    "imports pickle": ("base/errors.py", "from pickle import dumps"),
    "uses torch.load": ("models/api.py", "x = torch.load('x')"),
    "uses torch.save": ("cli/app.py", "keep = torch.save"),
    "uses np.save": ("base/errors.py", "np.save('x', y)"),
    "prints": ("search/engine.py", "def f():\n    print('here')"),
    "hides an import": ("base/errors.py", "importlib.import_module('nmtgrid.cli')"),
    "belongs to no layer": ("attic/__init__.py", ""),
    "long has 121 lines": ("base/errors.py", "def long():\n" + "    ...\n" * 120),
    "a module's name says": ("base/utils.py", ""),
}


def _write(root: Path, files: dict[str, str]) -> None:
    (root / "nmtgrid").mkdir(exist_ok=True)
    (root / "nmtgrid/__init__.py").touch()
    for name, text in files.items():
        path = root / "nmtgrid" / name
        path.parent.mkdir(exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)


def test_clean_code_has_no_violation(tmp_path: Path) -> None:
    _write(tmp_path, CLEAN)
    assert violations(tmp_path) == []


@pytest.mark.parametrize("what", BREACHES)
def test_a_breach_is_caught(tmp_path: Path, what: str) -> None:
    name, line = BREACHES[what]
    _write(tmp_path, CLEAN | {name: CLEAN.get(name, "") + line + "\n"})
    messages = violations(tmp_path)
    assert len(messages) == 1
    assert what.partition(", in")[0] in messages[0] and messages[0].startswith(name)


def test_a_crowded_folder_is_caught(tmp_path: Path) -> None:
    _write(tmp_path, {f"base/part{n}.py": "" for n in range(MODULES_PER_FOLDER + 1)})
    (message,) = violations(tmp_path)
    assert message.startswith("nmtgrid/base: has 16 modules")


def test_counts_do_not_rise(project: Path) -> None:
    """If counts have decreased, lower the baseline: `python -m tests.count_code --lower`."""
    baseline = json.loads(BASELINE.read_text(encoding="utf-8"))
    counts = measure(project)
    assert risen(counts, baseline) == []
    assert risen(baseline, counts) == [], "lower the baseline: python -m tests.count_code --lower"


def test_what_rises_is_caught(tmp_path: Path) -> None:
    _write(tmp_path, CLEAN)
    baseline = measure(tmp_path)
    long = "def long():\n" + "    ...\n" * LONG_FUNCTION
    worse = {
        "base/errors.py": "held = 1\n",
        "search/deed.py": "def f(place): return place\n",
        "search/engine.py": CLEAN["search/engine.py"]
        + "from nmtgrid.search.deed import f\n"
        + long,
    }
    _write(tmp_path, worse)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/table.py").write_text("found = 1\n", encoding="utf-8")
    messages = risen(measure(tmp_path), baseline)
    assert [message.split(":")[0] for message in messages] == [
        "base/", "recipes/", "search/", "search/deed.py", "search/engine.py",
    ]  # fmt: skip
    assert "1 variables" in messages[0] and "2 variables" in messages[2]
