"""Tables of recipes/pervasive.sh, from files as the commands leave them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conftest import recipe_module

pervasive_table = recipe_module("pervasive_table")


def test_models_in_one_file_keep_their_names(tmp_path: Path) -> None:
    """Those of `analyze alignments` are systems; of `blocks`, blocks; a model alone has neither."""
    values = {"entropy": 2.0, "coverage": 0.5}
    compared = [{"system": "max", **values}, {"system": "Bi-LSTM", **values}]
    held: dict[str, Any] = {
        "several": {"sections": [{"models": compared}]},
        "blocks": {"rows": [{"block": "transformer, block 1", **values}]},
        "one": values,
    }
    named = {}
    for name, content in held.items():
        named[name] = str(tmp_path / f"{name}.json")
        Path(named[name]).write_text(json.dumps(content))
    found = [row["model"] for row in pervasive_table.alignments(named)]
    assert found == ["max", "Bi-LSTM", "transformer, block 1", "one"]
