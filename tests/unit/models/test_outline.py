"""Outlines: the shapes of a model without its memory, and settings that ask for too much."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from nmtgrid.base.errors import ModelError
from nmtgrid.models import zoo
from nmtgrid.models.api import TranslationModel
from nmtgrid.models.bilstm import BiLSTM
from nmtgrid.models.bilstm_config import BiLSTMConfig
from nmtgrid.models.directory import load_model, meta_model, save_model
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


class OwnModel(BiLSTM):
    """Its constructor makes tensors that are in no file, of which one needs values."""

    architecture = "own-outlined"

    def __init__(self, config: BiLSTMConfig, source_types: int, target_types: int) -> None:
        super().__init__(config, source_types, target_types)
        self.register_buffer("gain", torch.linspace(0, 1, 3), persistent=False)
        self.table = torch.arange(4.0)
        # A parameter [3] whose shape an operation in place has changed.
        self.bias = nn.Parameter(torch.ones(1, 3).squeeze_())


class ReadingModel(OwnModel):
    """Its constructor reads values, which an outline does not have."""

    architecture = "own-reading"

    def __init__(self, config: BiLSTMConfig, source_types: int, target_types: int) -> None:
        super().__init__(config, source_types, target_types)
        self.total = self.table.sum().item()


class FaultyModel(OwnModel):
    architecture = "own-faulty"
    has_fault = False

    def __init__(self, config: BiLSTMConfig, source_types: int, target_types: int) -> None:
        super().__init__(config, source_types, target_types)
        if self.has_fault:
            raise TypeError("my bug")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = zoo.architectures()
    monkeypatch.setattr(registry, "_entries", {**registry._entries})
    for kind in (OwnModel, ReadingModel, FaultyModel):
        zoo.register(kind.architecture, "one's own", BiLSTMConfig, kind, [])


def saved(folder: Path, arch: str) -> TranslationModel:
    """Return a small model of `arch`, saved in `folder` / "own" with the text of another one."""
    other = load_model(taken(folder, LSTM(TYPES)).folder)
    types = [len(getattr(other.pipeline, f"{side}_vocabulary")) for side in ("source", "target")]
    model = zoo.from_config(arch, BiLSTMConfig(size=8), *types)
    save_model(folder / "own", model, other.pipeline, {})
    return model


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("kind", [OwnModel, ReadingModel])
def test_own_architectures_may_make_tensors_that_are_in_no_file(
    tmp_path: Path, kind: type[OwnModel]
) -> None:
    model = saved(tmp_path, kind.architecture)
    loaded = load_model(tmp_path / "own").model
    assert isinstance(loaded, kind)
    assert loaded.get_buffer("gain").tolist() == [0, 0.5, 1]
    assert loaded.table.tolist() == [0, 1, 2, 3] and loaded.bias.shape == (3,)
    for name, value in model.state_dict().items():
        assert loaded.state_dict()[name].equal(value), name


@pytest.mark.usefixtures("registered")
def test_an_own_config_that_asks_for_too_much_takes_no_memory(tmp_path: Path) -> None:
    saved(tmp_path, OwnModel.architecture)
    path = tmp_path / "own" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["model"]["size"] = 10**6  # matrices of terabytes
    del config["sha256"]
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match="does not fit the model"):
        load_model(tmp_path / "own")


@pytest.mark.usefixtures("registered")
def test_faults_of_an_own_constructor_stay_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, FaultyModel.architecture)
    monkeypatch.setattr(FaultyModel, "has_fault", True)
    with pytest.raises(TypeError, match="my bug"):
        load_model(tmp_path / "own")


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
