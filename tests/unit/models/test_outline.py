"""Outlines: the shapes of a model without its memory, and settings that ask for too much."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nmtgrid.base.errors import ModelError
from nmtgrid.models import zoo
from nmtgrid.models.api import TranslationModel
from nmtgrid.models.directory import load_model, meta_model
from tests.unit.convert.fairseq_files import TYPES
from tests.unit.convert.fairseq_reference_recurrent import LSTM
from tests.unit.convert.test_import_fairseq import taken


@pytest.mark.parametrize("arch", list(zoo.architectures()))
def test_an_outline_has_the_shapes_of_the_model(arch: str) -> None:
    def make() -> TranslationModel:
        return zoo.build(arch, source_vocab_size=9, target_vocab_size=8)

    outlined, whole = meta_model(make).state_dict(), make().state_dict()
    assert {name: value.shape for name, value in outlined.items()} == {
        name: value.shape for name, value in whole.items()
    }
    assert {parameter.device.type for parameter in meta_model(make).parameters()} == {"meta"}


def test_an_outline_takes_no_memory_and_loads_no_compiler() -> None:
    code = (
        "import sys\n"
        "from nmtgrid.models import zoo\n"
        "from nmtgrid.models.directory import meta_model\n"
        "for arch in zoo.architectures():\n"
        "    sizes = {f'{side}_vocab_size': 10**9 for side in ('source', 'target')}\n"
        "    meta_model(lambda: zoo.build(arch, **sizes))\n"
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_values_are_drawn_again_afterwards() -> None:
    meta_model(lambda: torch.nn.Linear(3, 4))
    assert torch.nn.Linear(3, 4).weight.abs().sum() > 0
    assert torch.ones(2).zero_().tolist() == [0, 0]


@pytest.mark.parametrize("size", [1000, 10**6, 2**40, 2**63, 10**40])
def test_a_config_that_asks_for_more_than_there_is(tmp_path: Path, size: int) -> None:
    folder = taken(tmp_path, LSTM(TYPES)).folder
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["model"]["size"] = size
    del config["sha256"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(
        ModelError, match=r"does not fit the model|too large for any machine|whole number"
    ):
        load_model(folder)


def test_what_is_no_model_directory_is_told_apart(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "config.json").write_text('{"model_type": "marian"}')
    dataset = tmp_path / "dataset"
    dataset.mkdir()
    (dataset / "manifest.json").touch()
    for path, words in (
        (dataset, "is a dataset, not a model"),
        (foreign, "is not a model directory of nmtgrid"),
        (foreign / "config.json", "is a file, not a model directory"),
        (tmp_path / "none", "There is no model directory"),
    ):
        with pytest.raises(ModelError, match=words) as caught:
            load_model(path)
        assert "import-fairseq" in caught.value.advice
    (foreign / "config.json").write_text('{"format": 99}')
    with pytest.raises(ModelError, match="has format 99"):
        load_model(foreign)
