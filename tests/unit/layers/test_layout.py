"""Grid layouts: where valid cells lie, and that padding and packing undo each other."""

import pytest
import torch

from nmtgrid.layers.kernels.layout import GridLayout, collect_cells, scatter_cells


def _layout(targets: list[int], sources: list[int]) -> GridLayout:
    return GridLayout.make(torch.tensor(targets), torch.tensor(sources))


def test_places_of_cells_by_hand() -> None:
    layout = _layout([2, 1], [1, 3])
    assert (layout.batch_size, layout.target_size, layout.source_size) == (2, 2, 3)
    assert layout.cell_count == 5
    assert not layout.is_full
    assert layout.offsets.tolist() == [0, 2]
    assert layout.sentence.tolist() == [0, 0, 1, 1, 1]
    assert layout.target_position.tolist() == [0, 1, 0, 0, 0]
    assert layout.source_position.tolist() == [0, 0, 0, 1, 2]
    assert layout.cells.tolist() == [0, 3, 6, 7, 8]
    padded = layout.pad(torch.arange(1.0, 6)[:, None])[..., 0]
    assert padded.tolist() == [[[1, 0, 0], [2, 0, 0]], [[3, 4, 5], [0, 0, 0]]]
    # Padding gets no gradient; other dtypes and strides are padded and packed alike.
    grid = torch.randn(2, 2, 3, 1, requires_grad=True)
    layout.pack(grid).sum().backward()
    assert grid.grad is not None and torch.equal(grid.grad[..., 0] > 0, padded > 0)
    for x in (torch.tensor([[True], [False], [True], [True], [False]]), torch.randn(4, 5).t()):
        assert torch.equal(layout.pack(layout.pad(x)), x)


def test_margins_stay_empty() -> None:
    layout = _layout([2, 1], [1, 2])
    grid = scatter_cells(torch.ones(4, 1), layout, margins=(2, 1, 1, 0))[..., 0]
    assert grid.shape == (2, 2 + 2 + 1, 1 + 2)
    assert grid.nonzero().tolist() == [[0, 2, 1], [0, 3, 1], [1, 2, 1], [1, 2, 2]]


def test_runs_of_one_shape() -> None:
    layout = _layout([2, 2, 1, 2], [3, 3, 4, 3])
    assert layout.runs == ((0, 2, 2, 3), (12, 1, 1, 4), (16, 1, 2, 3))
    x = torch.arange(22.0)[:, None]
    first, second, third = layout.runs
    assert first.of(x)[1, 1, 0].item() == 9
    assert second.of(x)[..., 0].tolist() == [[[12, 13, 14, 15]]]
    assert third.of(x).data_ptr() == x[16:].data_ptr()
    # Some runs alone, in an order of their own.
    grid = scatter_cells(x, layout, (1, 0, 0, 0), [third, first])[..., 0]
    assert grid.tolist() == [
        [[0, 0, 0], [16, 17, 18], [19, 20, 21]],
        [[0, 0, 0], [0, 1, 2], [3, 4, 5]],
        [[0, 0, 0], [6, 7, 8], [9, 10, 11]],
    ]
    collected = torch.zeros(22, 1)
    collect_cells(grid[:, 1:, :, None], [third, first], collected)
    assert collected[:, 0].tolist() == [*range(12), 0, 0, 0, 0, *range(16, 22)]


SHAPES = [([3, 1, 4], [5, 2, 1]), ([1], [1]), ([2, 2], [3, 3]), ([1, 9], [7, 1])]


@pytest.mark.parametrize(("targets", "sources"), SHAPES)
def test_pack_undoes_pad(targets: list[int], sources: list[int]) -> None:
    layout = _layout(targets, sources)
    x = torch.randn(layout.cell_count, 3, dtype=torch.float64, requires_grad=True)
    padded = layout.pad(x)
    assert torch.equal(layout.pack(padded), x)
    is_cell = layout.pad(torch.ones(layout.cell_count, 1))[..., 0] > 0
    assert bool((padded[~is_cell] == 0.0).all())
    assert torch.equal(padded[is_cell], x)
    grid = torch.randn(padded.shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layout.pad, (x,))
    assert torch.autograd.gradcheck(layout.pack, (grid,))
    assert torch.autograd.gradgradcheck(layout.pack, (grid,))


def test_full_layouts_are_views() -> None:
    layout = _layout([2, 2], [3, 3])
    assert layout.is_full
    x = torch.randn(12, 4)
    assert layout.pad(x).data_ptr() == x.data_ptr()
    grid = torch.randn(2, 2, 3, 4)
    assert layout.pack(grid).data_ptr() == grid.data_ptr()


@pytest.mark.parametrize(
    ("targets", "sources"), [([], []), ([1, 2], [1]), ([0, 1], [1, 1]), ([1], [-2])]
)
def test_impossible_lengths_are_refused(targets: list[int], sources: list[int]) -> None:
    with pytest.raises(ValueError, match=r"at least one|must both"):
        GridLayout.make(
            torch.tensor(targets, dtype=torch.int64), torch.tensor(sources, dtype=torch.int64)
        )
