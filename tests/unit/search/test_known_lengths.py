"""Lengths that the host knows: what needs them asks no device, which here has no values."""

import torch

from nmtgrid.base.rows import cache_on_host, host_values, is_token, is_true_everywhere
from nmtgrid.data.batches import collate
from nmtgrid.layers.kernels.layout import GridLayout
from nmtgrid.models.api import PredictionSites, check_reads

META = torch.device("meta")


def _lengths(values: list[int]) -> torch.Tensor:
    return cache_on_host(torch.empty(len(values), dtype=torch.long, device=META), values)


def test_lengths_and_their_masks() -> None:
    assert host_values(_lengths([3, 1, 2])) == [3, 1, 2]
    assert not is_true_everywhere(is_token(_lengths([3, 1, 2]), 3))
    assert is_true_everywhere(is_token(_lengths([3, 3]), 3))
    assert host_values(torch.tensor([2, 1])) == [2, 1]
    assert not is_true_everywhere(is_token(torch.tensor([2, 1]), 2))


def test_a_batch_keeps_them() -> None:
    batch = collate([[5, 6], [7]], [[5], [6, 7, 8]]).to(META)
    assert batch.token_count == 6
    assert batch.twice().token_count == 12
    repeated, rows = batch.repeated(3)
    assert repeated.token_count == 18 and host_values(rows) == [0, 0, 0, 1, 1, 1]
    assert repeated.select(_lengths([5, 0])).target_input.shape == (2, 4)
    layout = GridLayout.make(batch.target_lengths, batch.source_lengths)
    assert layout.shapes == ((2, 3), (4, 2)) and layout.cell_count == 14


def test_a_whole_grid() -> None:
    batch = collate([[5, 6], [7]], [[5], [6, 7, 8]]).to(META)
    sites = PredictionSites.everywhere(batch)
    check_reads(batch, sites)
    assert [len(index) for index in sites.cells] == [2 * 3 + 4 * 2] * 3
    assert host_values(batch.source_widths) == [3, 3, 2, 2, 2, 2]


def test_sites_are_those_of_the_mask() -> None:
    batch = collate([[5, 6], [7], [8]], [[5], [], [6, 7, 8]])
    sites = PredictionSites.offline(batch)
    assert sites.sentence.tolist() == [0, 0, 1, 2, 2, 2, 2]
    assert sites.position.tolist() == [0, 1, 0, 0, 1, 2, 3]
    assert len(PredictionSites.offline(batch.to(META))) == 7
