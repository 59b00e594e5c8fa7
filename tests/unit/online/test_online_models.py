"""What online models do, against hand-made expectations: aggregates, masks, markers, streams."""

import math

import pytest
import torch
from torch import Tensor, nn

from nmtgrid.base.errors import ConfigError
from nmtgrid.convert.to_ctranslate2 import check
from nmtgrid.data.batches import collate
from nmtgrid.layers.attention import window_mask
from nmtgrid.layers.grid.aggregation import Aggregation, LastCell, MaxPooling, aggregator
from nmtgrid.layers.grid.prefix_pooling import PrefixMax, prefix_max, prefix_pooling
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites, TranslationModel, path_of
from nmtgrid.models.transformer.source import PrefixPlan
from nmtgrid.text.vocabulary import BEGIN, END

KINDS: tuple[Aggregation, ...] = ("max", "average", "attention", "gated-max", "max-attention")


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_running_max_has_the_gradient_of_cummax(dim: int) -> None:
    column = torch.tensor([[3.0], [1.0], [3.0], [5.0], [4.0]], requires_grad=True)
    running_maxima = prefix_max(column, 0)
    assert running_maxima[:, 0].tolist() == [3, 3, 3, 5, 5]
    # The first of equals takes the gradient; each value takes what it is the maximum for.
    running_maxima.backward(torch.tensor([[1.0], [2.0], [4.0], [8.0], [16.0]]))
    assert column.grad is not None
    assert column.grad[:, 0].tolist() == [7, 0, 0, 24, 0]
    values = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(3, 4, 5, dtype=torch.float64)
    actual = torch.autograd.grad((prefix_max(values, dim) * weights).sum(), values)
    expected = torch.autograd.grad((values.cummax(dim).values * weights).sum(), values)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_each_area_is_aggregated_as_one_row_of_its_cells(kind: Aggregation) -> None:
    """Fig. 4.4c, whether rows are scanned at once or merged one by one; and parts of a row."""
    whole = aggregator(kind, 6, "none").double()
    cells = torch.randn(2, 4, 5, 6, dtype=torch.float64) * 3
    form = prefix_pooling(whole)
    parts = form.scan_target(form.scan_source(cells))
    merged = form.scan_source(cells[:, 0])
    for rows in range(1, 5):
        if rows > 1:
            merged = form.combine(merged, form.scan_source(cells[:, rows - 1]))
        for columns in range(1, 6):
            counts = torch.full((2,), rows * columns)
            expected = whole(cells[:, :rows, :columns].flatten(1, 2), None)
            at_once = tuple(part[:, rows - 1, columns - 1] for part in parts)
            torch.testing.assert_close(form.finalize(at_once, counts), expected)
            in_turn = tuple(part[:, columns - 1] for part in merged)
            torch.testing.assert_close(form.finalize(in_turn, counts), expected)
    whole = aggregator(kind, 6, "tanh").double()
    form = prefix_pooling(whole)
    prefixes = form.finalize(form.scan_source(cells), torch.arange(1, 6).expand(2, 4, 5))
    for size in range(1, 6):
        torch.testing.assert_close(prefixes[:, :, size - 1], whole(cells[:, :, :size], None))


@pytest.mark.parametrize("kind", KINDS)
def test_running_aggregates_have_the_right_gradient(kind: Aggregation) -> None:
    cells = torch.randn(1, 3, 4, 3, dtype=torch.float64, requires_grad=True)
    form = prefix_pooling(aggregator(kind, 3, "none").double())
    assert torch.autograd.gradcheck(
        lambda x: form.finalize(form.scan_target(form.scan_source(x)), torch.ones(1, 3, 4)),
        (cells,),
    )


class _LogSumExp(MaxPooling):
    def forward(self, cells: torch.Tensor, is_source: torch.Tensor | None) -> torch.Tensor:
        return self._visible(cells, is_source).logsumexp(-2)


class _WithPrefixForm(_LogSumExp):
    def prefix_form(self) -> PrefixMax:
        return PrefixMax(self.transform)


def test_an_own_aggregation_is_not_taken_for_what_it_inherits() -> None:
    with pytest.raises(ConfigError, match="`_LogSumExp` cannot be computed for every prefix"):
        prefix_pooling(_LogSumExp(4))
    assert isinstance(prefix_pooling(_WithPrefixForm(4)), PrefixMax)


def test_scores_far_apart_do_not_drown_what_came_first() -> None:
    """Early parts of a row keep their exact attention when a later score is e^200 times larger."""
    attention = aggregator("attention", 2, "none")
    cells = torch.tensor([[[1.0, 2.0], [3.0, 5.0], [900.0, 0.0]]])
    with torch.no_grad():
        attention.map.weight.copy_(torch.eye(2))  # type: ignore[union-attr,operator]
        attention.vector.copy_(torch.tensor([1.0, 0.0]))  # type: ignore[operator]
    scanned = prefix_pooling(attention).scan_source(cells)[0][0]
    share = math.exp(1) / (math.exp(1) + math.exp(3))
    torch.testing.assert_close(scanned[0], torch.tensor([1.0, 2.0]))
    expected = torch.tensor([3 - 2 * share, 5 - 3 * share])
    torch.testing.assert_close(scanned[1], expected)
    torch.testing.assert_close(scanned[2], torch.tensor([900.0, 0.0]))


def test_the_last_cell_read_and_a_window() -> None:
    cells = torch.arange(2.0 * 3 * 4 * 2).view(2, 3, 4, 2)
    real = torch.tensor([[[True, True, False, False]], [[True] * 4]])
    last = LastCell(2)(cells, real)
    assert torch.equal(last[0], cells[0, :, 1]) and torch.equal(last[1], cells[1, :, 3])
    assert LastCell(2).weights(cells, real)[0, 0].tolist() == [0, 1, 0, 0]
    seen = window_mask(4, 2, torch.zeros(())) == 0
    assert seen.tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [False, True, True, False],
        [False, False, True, True],
    ]


def test_positions_that_are_not_asked_keep_the_reads_before_them() -> None:
    batch = collate([[4, 5, 6], [4]], [[3, 3, 3, 3], [3]])
    sites = PredictionSites(
        torch.tensor([0, 0, 0]), torch.tensor([1, 2, 4]), torch.tensor([2, 2, 4])
    )
    assert path_of(batch, sites).tolist() == [[2, 2, 2, 2, 4], [2, 2, 2, 2, 2]]
    falling = PredictionSites(torch.tensor([0, 0]), torch.tensor([1, 2]), torch.tensor([3, 2]))
    with pytest.raises(ValueError, match="must not decrease along a path"):
        path_of(batch, falling)
    plan = PrefixPlan.make(torch.tensor([[1, 2, 2, 5], [2, 2, 2, 2]]))
    pairs = set(zip(plan.sentence.tolist(), plan.reads.tolist(), strict=True))
    assert pairs == {(0, 1), (0, 2), (0, 5), (1, 2)} and len(plan.reads) == 4
    flat = plan.slots.flatten()[plan.slot_of]
    assert flat.tolist() == list(range(8))


def _model(arch: str, **changes: object) -> TranslationModel:
    small = {"depth": 3, "encoder_depth": 2, "decoder_depth": 2, "size": 8, "heads": 2,
             "feed_forward_size": 12, "target_kernel": 5, "source_kernel": 3, "window": 2,
             "dropout": 0.0, "embedding_dropout": 0.0, "output_dropout": 0.0}  # fmt: skip
    known = zoo.architectures().get(arch).config.__dataclass_fields__
    settings = {name: value for name, value in small.items() if name in known} | changes
    torch.manual_seed(3)
    return zoo.build(arch, overrides=settings, source_vocab_size=19, target_vocab_size=13).eval()


def _next(model: TranslationModel, source: list[int]) -> Tensor:
    """Return what may follow `<s>`, for source tokens as they come."""
    state = model.begin(torch.tensor([source]), torch.tensor([len(source)]))
    return model.step(torch.tensor([BEGIN]), state).logits


@pytest.mark.parametrize("encoder", ["bidirectional", "unidirectional", "window"])
def test_without_an_end_symbol_its_read_shows_nothing(encoder: str) -> None:
    model = _model("transformer", encoder=encoder, source_marker="none")
    assert torch.allclose(_next(model, [5, 6, END]), _next(model, [5, 6]), atol=1e-6)
    marked = _model("transformer", encoder=encoder)
    assert not torch.allclose(_next(marked, [5, 6, END]), _next(marked, [5, 6]), atol=1e-3)


def test_markers_of_the_source() -> None:
    """The same weights without the marker, with `<s>` in the source, predict the same."""
    marked, plain = _model("transformer", source_marker="begin"), _model("transformer")
    plain.load_state_dict(marked.state_dict())
    assert torch.allclose(_next(marked, [5, 6, END]), _next(plain, [BEGIN, 5, 6, END]), atol=1e-6)
    # With queries of zero it takes as much as each source token, so less is read.
    marked, plain = _model("transformer", source_marker="add-zero"), _model("transformer")
    plain.load_state_dict(marked.state_dict())
    seen: list[Tensor] = []
    for model in (marked, plain):
        for block in model.decoder:  # type: ignore[union-attr]
            attention = block.source_attention
            nn.init.zeros_(attention.query_map.weight)
            nn.init.zeros_(attention.query_map.bias)
        first = model.decoder[0].source_attention.output_map  # type: ignore[union-attr,index]
        first.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
        model.alignments(collate([[5, 6]], [[4]]))
    assert torch.allclose(seen[0], seen[1] * 3 / 4, atol=1e-6)
    batch = collate([[5, 6]], [[4]])
    assert torch.allclose(marked.alignments(batch), torch.full((1, 2, 3), 1 / 3))


def test_a_bi_directional_grid_is_refused() -> None:
    model = _model("pervasive")
    batch = collate([[5, 6]], [[4]])
    sites = PredictionSites(torch.tensor([0]), torch.tensor([0]), torch.tensor([1]))
    with pytest.raises(ConfigError, match="both directions, so it cannot translate simultaneously"):
        model.features(batch, sites)
    assert check(_model("transformer")).architecture == "transformer"
    with pytest.raises(ConfigError, match="encoder=window"):
        check(_model("transformer", encoder="window"))
    with pytest.raises(ConfigError, match="source_marker=begin"):
        check(_model("transformer", source_marker="begin"))


def test_a_read_costs_the_receptive_field_and_a_write_the_source_read() -> None:
    """Cells that each layer of a streaming grid computes: 1 + 3 * 2 rows see one cell here."""
    model = _model("pervasive", source_causal=True)
    field = model.traits.target_receptive_field
    assert field == 7
    cells: list[int] = []
    for layer in model.network.layers:  # type: ignore[union-attr]
        layer.register_forward_hook(
            lambda module, inputs, output: cells.append(output.numel() // output.shape[-1])
        )
    state = model.begin(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    for read in range(1, 40):
        cells.clear()
        state = model.extend(torch.tensor([4 + read % 9]), state)
        assert cells == [min(read - 1, field)] * 6 if read > 1 else not cells
        cells.clear()
        state = model.step(torch.tensor([4 + read % 5]), state).state
        assert cells == [read] * 6


@pytest.mark.parametrize("encoder", ["unidirectional", "window"])
def test_a_read_encodes_one_token(encoder: str) -> None:
    model = _model("transformer", encoder=encoder)
    tokens: list[int] = []
    for block in model.encoder:  # type: ignore[union-attr]
        block.feed_forward.register_forward_hook(
            lambda module, inputs, output: tokens.append(output.numel() // output.shape[-1])
        )
    state = model.begin(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))
    for read in range(1, 20):
        tokens.clear()
        state = model.extend(torch.tensor([4, 5]), state)
        assert tokens == [2, 2], read
        state = model.step(torch.tensor([4, 4]), state).state
        assert tokens == [2, 2]


@pytest.mark.parametrize("arch", ["transformer", "pervasive"])
def test_a_stream_begins_with_nothing(arch: str) -> None:
    changes = {"source_causal": True} if arch == "pervasive" else {"encoder": "unidirectional"}
    model = _model(arch, **changes)
    state = model.begin(torch.tensor([[5, END]]), torch.tensor([2]))
    with pytest.raises(ValueError, match="a stream begins with a source of no columns"):
        model.extend(torch.tensor([4]), state)
