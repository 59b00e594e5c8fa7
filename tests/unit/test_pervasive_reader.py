"""Readers: their sizes, how they begin, and what they take from a model without one."""

from __future__ import annotations

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


def made(seed: int = 0, **changes: Any) -> TranslationModel:
    torch.manual_seed(seed)
    settings = {**SMALL, **changes}
    return zoo.build("pervasive", None, settings, source_vocab_size=9, target_vocab_size=9)


def test_sizes() -> None:
    """A reader of one's own is a second grid and an affine map; a shared one is the map alone."""
    alone, own = made(), made(reader="own")
    assert made(reader="shared").count_parameters() == alone.count_parameters() + 9
    grid = sum(
        held.numel()
        for name, held in alone.named_parameters()
        if name.startswith(("source_embedding", "target_embedding", "grid_", "network"))
    )
    assert own.count_parameters() == alone.count_parameters() + grid + 9
    block = own.count_parameters() - made(reader="own", reader_depth=1).count_parameters()
    inner = sum(held.numel() for held in alone.network.layers[:2].parameters())  # type: ignore[union-attr,index]
    assert block == inner


def test_a_reader_changes_no_other_part() -> None:
    """Its parts are drawn last, and named so that models without one load as before."""
    alone, own = made().state_dict(), made(reader="own").state_dict()
    assert [name for name in own if name not in alone] == [n for n in own if "reader." in n]
    assert all(torch.equal(own[name], held) for name, held in alone.items())


@pytest.mark.parametrize("reader", ["own", "shared"])
def test_reading_begins_undecided(reader: str) -> None:
    rho = made(size=64, reader=reader).eval().reading(BATCH).sigmoid()
    assert rho.shape == (2, 4, 4)
    assert (rho - 0.5).abs().max() < 0.05


def test_both_sides_may_share_a_matrix() -> None:
    model = made(reader="own", tie="all")
    assert model.reader.source_embedding is model.reader.target_embedding  # type: ignore[union-attr]
    assert model.reader.source_embedding is not model.source_embedding  # type: ignore[union-attr]


def test_faults() -> None:
    with pytest.raises(ConfigError) as caught:
        made(reader="own", source_causal=False, reader_depth=-1)
    assert len(caught.value.faults) == 2
    assert "needs `model.source_causal=true`" in str(caught.value)


def test_an_unconsidered_row_has_no_reading() -> None:
    model = made(reader="own")
    with pytest.raises(ValueError, match="no row has been considered"):
        model.reading_row(model.begin(BATCH.source, BATCH.source_lengths))


def test_a_reader_begins_as_the_translation_network(tmp_path: Path) -> None:
    """Its map to a logit has no counterpart: it stays as drawn."""
    file = tmp_path / "model.safetensors"
    alone, own = made(1), made(2, reader="own")
    drawn = {name: held.clone() for name, held in own.state_dict().items()}
    save_tensors(file, alone.state_dict())
    with pytest.raises(ModelError, match=r"`reader.* is missing"):
        load_weights(own, file)
    load_weights(own, file, begin=True)
    given = alone.state_dict()
    for name, held in own.state_dict().items():
        if name.startswith("reader.decision."):
            assert torch.equal(held, drawn[name])
        else:
            assert torch.equal(held, given[name.removeprefix("reader.")])
    own.eval(), alone.eval()
    features, _ = own.reader.run(BATCH)  # type: ignore[union-attr,operator]
    wanted, _ = alone._run(BATCH)  # type: ignore[operator]
    torch.testing.assert_close(features, wanted)
    # Copies, not the same memory: what one learns the other does not.
    with torch.no_grad():
        own.reader.grid_map.zero_()  # type: ignore[union-attr,operator]
    assert torch.equal(own.grid_map, given["grid_map"])  # type: ignore[arg-type]


def test_a_reader_of_another_depth_takes_what_there_is(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    alone, deeper, shared = made(1), made(2, reader="own", reader_depth=3), made(3, reader="shared")
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
    first, second = made(1, reader="own"), made(2, reader="own")
    save_tensors(file, first.state_dict())
    load_weights(second, file, begin=True)
    held = first.state_dict()
    assert all(torch.equal(value, held[name]) for name, value in second.state_dict().items())
    del held["reader.grid_map"]
    save_tensors(file, held)
    with pytest.raises(ModelError, match=r"`reader\.grid_map` is missing"):
        load_weights(second, file, begin=True)
