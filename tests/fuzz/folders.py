"""The readers of directories: models, datasets, saved states; one file in them is damaged.

Checksums protect against accidents, not intent: if a file contains its own checksum, the checksum
is updated after the damage, so that the code behind the check is reached.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from nmtgrid.adaptive.exit_presets import EXIT_FILE
from nmtgrid.base.io.atomic import digest
from nmtgrid.cli.app import main
from nmtgrid.data import directory
from nmtgrid.data.dataset import Dataset
from nmtgrid.models.directory import load_model
from nmtgrid.training.checkpoint import Checkpoints
from tests.fuzz.harm import as_json, changed_values, damaged

Case = tuple[str, bytes]
"""The name of a file in a folder, and its new content."""
EXITS = {"format": 1, "settings": {"fast": {"mechanism": "confidence", "thresholds": [0.5],
         "split": "valid", "bleu": 3.5, "average_exit": 1.2}}}  # fmt: skip


def make(folder: Path) -> None:
    """Create a tiny dataset `data` and a tiny model `model` in `folder`."""
    words = [str(folder / "data"), str(folder / "model")]
    assert main(["preprocess", "--toy", "30", "--out", words[0]]) == 0
    assert main(["bpe", "learn", words[0], "--merges", "20"]) == 0
    small = [f"--set=model.{name}=4" for name in ("size", "embedding_size")]
    assert main(["train", words[0], "--arch", "bilstm", *small, "--max-updates", "1", "--set",
                 "training.validate_sentences=2", "--out", words[1]]) == 0  # fmt: skip
    (folder / "model" / "exits.json").write_bytes(as_json(EXITS))


def _harmed(folder: Path, names: list[str]) -> st.SearchStrategy[Case]:
    """Return one of the files with changed bytes, or changed JSON values and a new checksum."""
    drawn = []
    for name in names:
        content = (folder / name).read_bytes()
        drawn.append(damaged([content]).map(functools.partial(_named, name)))
        if name.endswith(".json"):
            values = changed_values(json.loads(content))
            drawn.append(values.map(functools.partial(_sealed, name)))
    return st.one_of(*drawn)


def _named(name: str, content: bytes) -> Case:
    return name, content


def _sealed(name: str, values: Any) -> Case:
    return name, as_json(_seal(name, values))


def _seal(name: str, values: Any) -> Any:
    """Return JSON values with valid checksums, so that the damage is not detected by them.

    A file without its checksum is accepted as it is; a manifest gets a new one.
    """
    if not isinstance(values, dict):
        return values
    values = {key: value for key, value in values.items() if key != "sha256"}
    if name == directory.NAME:
        return values | {"sha256": digest(values)}
    return values | {"sha256": {}} if name == "text.json" else values


def _read_dataset(folder: Path) -> None:
    data = Dataset.open(folder)
    for name in data.names:
        split = data.split(name)
        for index in range(min(len(split), 3)):
            split.source(index), split.target(index)
        split.tokenized_source()


def folders(folder: Path) -> dict[str, tuple[Path, st.SearchStrategy[Case], Callable[[Path], Any]]]:
    """Return each folder, the changed file, and its reader, by name."""
    make(folder)
    model, data = folder / "model", folder / "data"
    texts = ["text.json", *(path.name for path in model.glob("vocab.*")), "bpe.codes"]
    state = max((model / "checkpoints").iterdir()).relative_to(model).as_posix()
    splits = [path.name for path in data.glob("*.safetensors")]
    saved = [f"{state}/training.json", f"{state}/training.safetensors"]
    described = ["config.json", "model.safetensors", *texts]
    return {
        "model": (model, _harmed(model, described), load_model),
        "dataset": (data, _harmed(data, [directory.NAME, *texts, *splits]), _read_dataset),
        "saved state": (model, _harmed(model, saved), lambda path: Checkpoints(path).load()),
        "kept exits": (model, _harmed(model, ["exits.json"]), EXIT_FILE.load),
    }
