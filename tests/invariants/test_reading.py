"""Law of limited reads: a uni-directional model that has read j tokens depends on no others.

No prediction with a limited read may differ from that on the truncated source. A bidirectional
model must violate this; two small models here show that the test distinguishes the two.
"""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.rows import is_token
from nmtgrid.data.batches import Batch, collate
from nmtgrid.models.api import Classifier, PredictionSites, Traits, TranslationModel
from tests.invariants.helpers import (
    LIMIT,
    SOURCE_TYPES,
    Case,
    assert_close,
    batch_for,
    begin_tokens,
    every_case,
    every_online_case,
    model_and_batch,
    random_path,
    stepwise,
    take_rows,
    teacher_forced,
)


class _MeanReader(TranslationModel):
    """Predicts from the mean of the source tokens read so far, and the last target token.

    With `cheats` the mean is that of the whole source, regardless of the read.
    """

    def __init__(self, cheats: bool) -> None:
        super().__init__()
        self.cheats = cheats
        self.traits = Traits(prefix_safe=True)
        self.source, self.target = nn.Embedding(19, 8), nn.Embedding(13, 8)

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        lengths = batch.source_lengths[sites.sentence]
        if sites.reads is not None and not self.cheats:
            lengths = sites.reads
        kept = is_token(lengths, batch.source.shape[1])[..., None]
        mean = (self.source(batch.source)[sites.sentence] * kept).sum(1) / lengths[:, None]
        last: Tensor = self.target(batch.target_input)[sites.sentence, sites.position]
        return torch.tanh(mean + last)

    def classifier(self) -> Classifier:
        return Classifier(self.target.weight, None)


def _largest_difference(model: TranslationModel, batch: Batch) -> float:
    """Compare each limited read with the truncated source; return the largest difference."""
    whole = PredictionSites.offline(batch)
    worst = 0.0
    for reads in range(1, int(batch.source_lengths.max()) + 1):
        limits = batch.source_lengths.clamp(max=reads)
        limited = PredictionSites(whole.sentence, whole.position, limits[whole.sentence])
        cut = Batch(
            batch.source[:, :reads], limits, batch.target_input, batch.target_output,
            batch.target_lengths, batch.indices,
        )  # fmt: skip
        result, expected = teacher_forced(model, batch, limited), teacher_forced(model, cut)
        worst = max(worst, float((result - expected).abs().max().detach()))
    return worst


def test_the_law_accepts_a_uni_directional_model() -> None:
    assert _largest_difference(_MeanReader(cheats=False), _batch()) <= LIMIT


def test_the_law_refuses_a_bi_directional_model() -> None:
    assert _largest_difference(_MeanReader(cheats=True), _batch()) > 0.01


@every_case
def test_a_limited_read_is_a_truncated_source(case: Case) -> None:
    """Models that claim to be prefix-safe are; the others refuse limited reads or fail."""
    model, batch = model_and_batch(case, (7, 4, 9), (3, 6, 5))
    if model.traits.prefix_safe:
        assert _largest_difference(model, batch) <= LIMIT
        return
    try:
        worst = _largest_difference(model, batch)
    except ConfigError:
        with pytest.raises(ConfigError, match=r"cannot (translate|caption) simultaneously"):
            model.step(begin_tokens(3), _begin(model, batch), reads=torch.tensor([1, 1, 1]))
        with pytest.raises(ConfigError, match=r"cannot (translate|caption) simultaneously"):
            model.extend(begin_tokens(3), _begin(model, batch))
        return
    assert worst > 100 * LIMIT, "this model passes: `traits.prefix_safe` should be True"


@every_case
def test_the_whole_source_counts(case: Case) -> None:
    """Offline, the first prediction depends on every source token within reach."""
    model = case.build()
    reach = model.traits.source_receptive_field
    # The end symbol follows the last token, and a model may read only the last column.
    count = 5 if reach is None else min(5, max(1, reach - 1))
    batch = batch_for(model, (count,), (3,))
    before = teacher_forced(model, batch)
    for position in range(count):
        source = batch.source.clone()
        is_picture = bool(model.traits.source_features)
        source[0, position] = (
            source[0, position] + 1 if is_picture else 3 + (source[0, position] - 2) % 10
        )
        changed = dataclasses.replace(batch, source=source)
        assert (teacher_forced(model, changed) - before).abs().max() > 1e-4


@every_online_case
def test_stepwise_along_a_path_equals_teacher_forced(case: Case) -> None:
    model, batch = model_and_batch(case)
    for seed in range(3):
        path = random_path(batch, seed)
        expected = teacher_forced(model, batch, PredictionSites.along(batch, path))
        result, _, _ = stepwise(model, batch, path=path)
        assert_close(result[batch.is_target], expected[batch.is_target])


@every_online_case
def test_reading_all_is_offline(case: Case) -> None:
    """Also if everything is read late: all later predictions have the whole source."""
    model, batch = model_and_batch(case)
    path = batch.source_lengths[:, None].expand_as(batch.target_input)
    expected = teacher_forced(model, batch)[batch.is_target]
    assert_close(
        teacher_forced(model, batch, PredictionSites.along(batch, path))[batch.is_target], expected
    )
    assert_close(stepwise(model, batch, path=path)[0][batch.is_target], expected)
    late = random_path(batch)
    late[:, 3:] = path[:, 3:]
    state = stepwise(model, batch, 3, path=late)[2]
    step = model.step(batch.target_input[:, 3], state)
    expected = teacher_forced(model, batch, PredictionSites.along(batch, late))[:, 3]
    kept = batch.is_target[:, 3]
    assert_close(step.logits.log_softmax(-1)[kept], expected[kept])


@every_online_case
def test_alone_along_a_path_equals_in_a_padded_batch(case: Case) -> None:
    model, batch = model_and_batch(case)
    path = random_path(batch)
    together = teacher_forced(model, batch, PredictionSites.along(batch, path))
    for row in range(len(batch)):
        alone = batch.select(torch.tensor([row]))
        length = int(alone.target_lengths)
        sites = PredictionSites.along(alone, path[row : row + 1, :length])
        assert_close(teacher_forced(model, alone, sites)[0], together[row, :length])


@every_online_case
def test_rows_of_a_sentence_read_at_their_own_pace(case: Case) -> None:
    """Rows that are repeated, reordered and dropped continue along their own paths."""
    model, batch = model_and_batch(case, (7, 4, 5), (9, 9, 9))
    paths = [random_path(batch, seed) for seed in (0, 1)]
    for path in paths:
        path[:, :2] = torch.minimum(paths[0][:, :2], paths[1][:, :2])
    for path in paths:
        path[:, 2:] = torch.maximum(path[:, 2:], path[:, 1:2])
    forced = [teacher_forced(model, batch, PredictionSites.along(batch, path)) for path in paths]
    state = take_rows(stepwise(model, batch, 2, path=paths[0])[2], [0, 0, 1, 1, 2, 2])
    rows, which = [0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 1]
    orders = [0, 1, 2, 3, 4, 5], [5, 0, 1, 2], [3, 3, 0], [2, 1]
    for position, order in enumerate(orders, start=2):
        state = take_rows(state, order)
        rows, which = [rows[i] for i in order], [which[i] for i in order]
        reads = torch.stack([paths[w][r, position] for r, w in zip(rows, which, strict=True)])
        step = model.step(batch.target_input[rows, position], state, reads=reads)
        state = step.state
        expected = [forced[w][r, position] for r, w in zip(rows, which, strict=True)]
        assert_close(step.logits.log_softmax(-1), torch.stack(expected))


@every_online_case
def test_unread_tokens_have_no_gradient(case: Case) -> None:
    """Exactly zero, in the embedding matrix, whatever the last token read."""
    model = case.build(target_types=12)
    if dict(case.settings).get("tie") == "all":
        pytest.skip("source and target share one matrix")
    batch = collate([[4, 5, 6, 7, 8, 9]], [[3, 4, 5]])
    # A reader may have embeddings of its own, after those of the translation network.
    matrix, *_ = (
        parameter for parameter in model.parameters() if parameter.shape[:1] == (SOURCE_TYPES,)
    )
    path = torch.tensor([[2, 2, 4, 5]])
    for position, reads in enumerate(path[0].tolist()):
        sites = PredictionSites(torch.tensor([0]), torch.tensor([position]), torch.tensor([reads]))
        (gradient,) = torch.autograd.grad(model.features(batch, sites).square().sum(), matrix)
        moved = gradient.abs().amax(1) > 0
        assert not moved[4 + reads : 10].any()
        assert moved[3 + reads]


@every_online_case
def test_where_paths_meet(case: Case) -> None:
    """A grid does not depend on the path through it; models that do differ."""
    model, batch = model_and_batch(case, (7, 7), (5, 5))
    early, late = (torch.tensor([reads, reads]) for reads in ([6] * 6, [1, 2, 3, 6, 6, 6]))
    first, second = (
        teacher_forced(model, batch, PredictionSites.along(batch, path))[:, 3:]
        for path in (early, late)
    )
    difference = float((first - second).abs().max().detach())
    if model.traits.every_cell:
        assert difference <= LIMIT
    else:
        assert difference > 100 * LIMIT


@every_online_case
def test_all_cells_at_once(case: Case) -> None:
    """Grids predict at every cell in one pass; a model that depends on the path refuses."""
    model, batch = model_and_batch(case, (5, 3), (3, 4))
    cells = [
        (row, position, reads)
        for row in range(2)
        for position in range(int(batch.target_lengths[row]))
        for reads in range(1, int(batch.source_lengths[row]) + 1)
    ]
    sites = PredictionSites(*torch.tensor(cells).unbind(1))
    if not model.traits.every_cell:
        with pytest.raises(ValueError, match="two different reads"):
            model.features(batch, sites)
        return
    result = model.features(batch, sites)
    for reads in range(1, int(batch.source_lengths.max()) + 1):
        path = batch.source_lengths.clamp(max=reads)[:, None].expand_as(batch.target_input)
        expected = PredictionSites.along(batch, path)
        at = [cells.index(cell) for cell in zip(*_columns(expected), strict=True)]
        assert_close(result[at], model.features(batch, expected))


@every_online_case
def test_streaming_equals_simulation(case: Case) -> None:
    """The same for a source that arrives word by word, with rows taken meanwhile, for any reads."""
    model, batch = model_and_batch(case, (7, 3, 5), (21, 21, 21))
    size = batch.source.shape[1]
    for pace, order in (
        ([1, 1, 1, 2, 3, 3, 5] + [size] * 15, [2, 0, 0]),
        ([3] * 12 + [6] * 4 + [size] * 6, [1, 2, 0]),
        ([size] * 22, [0, 1, 2]),
    ):
        path = torch.minimum(torch.tensor(pace)[None], batch.source_lengths[:, None])
        expected, _, _ = stepwise(model, batch, path=path)
        state, rows, read = model.begin(batch.source[:, :0], torch.zeros(3).long()), [0, 1, 2], 0
        for position, reads in enumerate(pace):
            for column in range(read, reads):
                state = model.extend(batch.source[rows, column], state)
            read = reads
            if position == 4:
                state, rows = take_rows(state, order), order
            step = model.step(batch.target_input[rows, position], state)
            state = step.state
            assert_close(step.logits.log_softmax(-1), expected[rows, position])


@every_online_case
def test_reads_must_make_sense(case: Case) -> None:
    model, batch = model_and_batch(case, (5, 3), (3, 4))
    for reads in (0, 5):
        sites = PredictionSites(torch.tensor([1]), torch.tensor([0]), torch.tensor([reads]))
        with pytest.raises(ValueError, match="from 1 to the length of their source, which is 4"):
            model.features(batch, sites)


def _columns(sites: PredictionSites) -> tuple[list[int], list[int], list[int]]:
    assert sites.reads is not None
    return sites.sentence.tolist(), sites.position.tolist(), sites.reads.tolist()


def _begin(model: TranslationModel, batch: Batch) -> Any:
    return model.begin(batch.source, batch.source_lengths)


def _batch() -> Batch:
    draw = torch.Generator().manual_seed(3)
    sources = [torch.randint(3, 19, (length,), generator=draw).tolist() for length in (6, 2, 8)]
    targets = [torch.randint(3, 13, (length,), generator=draw).tolist() for length in (4, 5, 1)]
    return collate(sources, targets)
