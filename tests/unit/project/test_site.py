"""The site builds without warnings and network; drawings and the notebook are right."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import matplotlib
import pytest
import torch

from docs import drawings
from nmtgrid.layers.kernels.grid_conv import live_taps
from nmtgrid.search.paths import wait_k

PROJECT = Path(__file__).resolve().parents[3]
DOCS = PROJECT / "docs"
_LOADED = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?([^"'\s>]+)""")
_LINKED = re.compile(r"""<link\b[^>]*\bhref=["']?([^"'\s>]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("mkdocs") is None or find_spec("mkdocstrings") is None:
        pytest.skip("the site needs `pip install '.[docs]'`")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        # Not `--quiet`: with it, hidden warnings are not errors of `--strict` either.
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=PROJECT, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_has_every_page_and_loads_nothing_from_a_network(site: Path) -> None:
    for path in DOCS.glob("*.md"):
        assert (site / path.with_suffix(".html").name).is_file()
    for page in site.rglob("*.html"):
        if "figures" in page.parts:  # a report, which has its own test
            continue
        text = page.read_text(encoding="utf-8")
        for address in _LOADED.findall(text) + _LINKED.findall(text):
            assert not address.startswith(("http:", "https:", "//")), (page.name, address)
            if not address.startswith("data:"):
                target = address.partition("#")[0].partition("?")[0]
                # The error page is served at any address, so its links start at the site's root.
                base = site if page.name == "404.html" else page.parent
                assert (base / target.lstrip("/")).exists(), (page.name, address)
    for style in site.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*[\"']?https?:", style.read_text(encoding="utf-8"))
    assert not list(site.rglob("*.py"))


def test_the_site_has_results_the_api_and_a_search(site: Path) -> None:
    results = (site / "recipes" / "RESULTS.html").read_text(encoding="utf-8")
    assert 'id="which-reading-policy"' in results
    explained = (site / "explained.html").read_text(encoding="utf-8")
    assert "recipes/RESULTS.html#is-pervasive-attention-competitive" in explained
    policies = (site / "api" / "online.html").read_text(encoding="utf-8")
    assert 'id="nmtgrid.online.policies.WaitK"' in policies
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    places = {entry["location"] for entry in index["docs"]}
    assert "api/online.html#nmtgrid.online.policies.WaitK" in places and "glossary.html" in places


def test_a_warning_fails_the_build(site: Path, tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "index.md").write_text("[x](missing.md) [y](#nowhere)\n", encoding="utf-8")
    text = (PROJECT / "mkdocs.yml").read_text(encoding="utf-8")
    text = re.sub(r"^(hooks|nav):.*?(?=^\w|\Z)", "", text, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "mkdocs.yml").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "missing.md" in done.stderr and "nowhere" in done.stderr


def test_drawings_are_current_and_show_what_the_code_computes() -> None:
    for name, draw in drawings.DRAWINGS.items():
        text = (DOCS / "pictures" / name).read_text(encoding="utf-8")
        assert text == draw(), "run `python -m docs.drawings`"
    weight = torch.ones(drawings.KERNEL, drawings.KERNEL, 1)
    half = range(-(drawings.KERNEL // 2), drawings.KERNEL // 2 + 1)
    for causal in (False, True):
        live = sum(drawings.is_live(r, c, source_causal=causal) for r in half for c in half)
        assert live == live_taps(weight, source_causal=causal).numel()
        assert f"{live} of" in " ".join((DOCS / "explained.md").read_text().split())
    source, target = len(drawings.SOURCE), len(drawings.TARGET)
    path = wait_k(2, torch.tensor([source]), target)[0].tolist()
    assert drawings.wait_k_reads(2, source, target) == path


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On 150 pairs and for 6 updates; everything else unchanged."""
    notebook = json.loads((DOCS / "pervasive.ipynb").read_text(encoding="utf-8"))
    code = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    assert not any(cell.get("outputs") for cell in notebook["cells"])
    assert sum("10000, 650" in cell for cell in code) == 1
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    names: dict[str, object] = {}
    for cell in code:
        exec(compile(cell.replace("10000, 650", "150, 6"), "pervasive.ipynb", "exec"), names)
    assert len(names["translations"]) == 3  # type: ignore[arg-type]
    assert (tmp_path / "runs/notebook/alignment.png").read_bytes().startswith(b"\x89PNG")
