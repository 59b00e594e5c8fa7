"""Readers: their sizes, how they begin, and what they take from a model without one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.base.errors import ConfigError, ModelError
from nmtgrid.base.io.arrays import save_tensors
from nmtgrid.data.batches import collate
from nmtgrid.models import zoo
from nmtgrid.models.api import TranslationModel
from nmtgrid.models.directory import load_weights

SMALL = {"depth": 2, "size": 8, "feed_forward_size": 12, "source_causal": True}
BATCH = collate([[5, 6, 7], [8]], [[4, 5], [6, 7, 4]])


def build(seed: int = 0, **changes: Any) -> TranslationModel:
    torch.manual_seed(seed)
    settings = {**SMALL, **changes}
    return zoo.build("pervasive", None, settings, source_vocab_size=9, target_vocab_size=9)


def test_sizes() -> None:
    """A reader of one's own is a second grid and an affine map; a shared one is the map alone."""
    alone, own = build(), build(reader="own")
    assert build(reader="shared").count_parameters() == alone.count_parameters() + 9
    grid = sum(
        parameter.numel()
        for name, parameter in alone.named_parameters()
        if name.startswith(("source_embedding", "target_embedding", "grid_", "network"))
    )
    assert own.count_parameters() == alone.count_parameters() + grid + 9
    block = own.count_parameters() - build(reader="own", reader_depth=1).count_parameters()
    inner = sum(parameter.numel() for parameter in alone.network.layers[:2].parameters())  # type: ignore[union-attr,index]
    assert block == inner
    # It is drawn last, and named so that models without one load as before.
    plain, reading = alone.state_dict(), own.state_dict()
    assert [name for name in reading if name not in plain] == [n for n in reading if "reader." in n]
    assert all(torch.equal(reading[name], value) for name, value in plain.items())


@pytest.mark.parametrize("reader", ["own", "shared"])
def test_reading_begins_undecided(reader: str) -> None:
    rho = build(size=64, reader=reader).eval().reading(BATCH).sigmoid()
    assert rho.shape == (2, 4, 4)
    assert (rho - 0.5).abs().max() < 0.05


def test_faults() -> None:
    with pytest.raises(ConfigError, match=r"needs `model.source_causal=true`") as caught:
        build(reader="own", source_causal=False, reader_depth=-1)
    assert len(caught.value.faults) == 2
    model = build(reader="own", tie="all")
    assert model.reader.source_embedding is model.reader.target_embedding  # type: ignore[union-attr]
    assert model.reader.source_embedding is not model.source_embedding  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="no row has been considered"):
        model.reading_row(model.begin(BATCH.source, BATCH.source_lengths))


def test_a_reader_begins_as_the_translation_network(tmp_path: Path) -> None:
    """Its map to a logit has no counterpart: it stays as drawn."""
    file = tmp_path / "model.safetensors"
    alone, own = build(1), build(2, reader="own")
    drawn = {name: value.clone() for name, value in own.state_dict().items()}
    save_tensors(file, alone.state_dict())
    with pytest.raises(ModelError, match=r"`reader.* is missing"):
        load_weights(own, file)
    load_weights(own, file, begin=True)
    weights = alone.state_dict()
    for name, value in own.state_dict().items():
        if name.startswith("reader.decision."):
            assert torch.equal(value, drawn[name])
        else:
            assert torch.equal(value, weights[name.removeprefix("reader.")])
    own.eval(), alone.eval()
    features, _ = own.reader.run(BATCH)  # type: ignore[union-attr,operator]
    expected, _ = alone._run(BATCH)  # type: ignore[operator]
    torch.testing.assert_close(features, expected)
    # Copies, not the same memory: what one learns the other does not.
    with torch.no_grad():
        own.reader.grid_map.zero_()  # type: ignore[union-attr,operator]
    assert torch.equal(own.grid_map, weights["grid_map"])  # type: ignore[arg-type]


def test_a_reader_of_another_depth_takes_what_there_is(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    alone, deeper, shared = (
        build(1),
        build(2, reader="own", reader_depth=3),
        build(3, reader="shared"),
    )
    drawn = deeper.reader.network.layers[4].map.weight.clone()  # type: ignore[union-attr,index]
    save_tensors(file, alone.state_dict())
    load_weights(deeper, file, begin=True)
    layers = deeper.reader.network.layers  # type: ignore[union-attr]
    assert torch.equal(layers[4].map.weight, drawn)  # type: ignore[union-attr,index]
    assert torch.equal(layers[2].map.weight, alone.network.layers[2].map.weight)  # type: ignore[union-attr,index]
    load_weights(shared, file, begin=True)
    assert torch.equal(shared.grid_map, alone.grid_map)  # type: ignore[arg-type]


def test_a_reader_that_is_there_is_taken_whole(tmp_path: Path) -> None:
    """Nothing is made up for a reader that lacks a part."""
    file = tmp_path / "model.safetensors"
    first, second = build(1, reader="own"), build(2, reader="own")
    save_tensors(file, first.state_dict())
    load_weights(second, file, begin=True)
    whole = first.state_dict()
    assert all(torch.equal(value, whole[name]) for name, value in second.state_dict().items())
    del whole["reader.grid_map"]
    save_tensors(file, whole)
    with pytest.raises(ModelError, match=r"`reader\.grid_map` is missing"):
        load_weights(second, file, begin=True)
