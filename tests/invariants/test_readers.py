"""Laws of reading probabilities: they depend on the tokens read and written, and nothing else."""

import pytest
import torch

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.rows import repeat
from nmtgrid.data.batches import Batch, collate
from nmtgrid.models.api import PredictionSites
from tests.invariants.helpers import (
    Case,
    assert_close,
    batch_for,
    begin_tokens,
    every_architecture,
    every_reader,
    model_and_batch,
    random_path,
    reader_cases,
    readings,
    stepwise,
    take_rows,
    teacher_forced,
)


def test_there_are_readers() -> None:
    assert {dict(case.settings)["reader"] for case in reader_cases()} == {"own", "shared"}
    assert all(case.traits.every_cell for case in reader_cases())


@every_architecture
def test_models_without_a_reader_say_so(case: Case) -> None:
    model = case.build()
    assert not model.traits.reads
    batch = batch_for(model, (3,), (2,))
    state = model.begin(batch.source, batch.source_lengths)
    for call in (
        lambda: model.reading(batch),
        lambda: model.consider(begin_tokens(1), state),
        lambda: model.reading_row(state),
        lambda: model.features_with_reading(batch, PredictionSites.offline(batch)),
    ):
        with pytest.raises(ConfigError, match="has no reader"):
            call()


@every_reader
def test_readings_are_not_idle(case: Case) -> None:
    """They depend on the source, on the prefix, and on the cell."""
    model = case.build()
    logits = model.reading(batch_for(model, (6, 6), (8, 8)))
    assert logits.shape == (2, 9, 7)
    assert (logits[0] - logits[1]).abs().max() > 1e-3
    for axis in (1, 2):
        assert logits.diff(dim=axis).abs().mean() > 1e-4


@every_reader
def test_stepwise_readings_equal_teacher_forced(case: Case) -> None:
    """Considering a row does not change the following prediction."""
    model, batch = model_and_batch(case)
    path = random_path(batch)
    logits, values = readings(model, batch, path)
    kept = batch.is_target[:, :, None] & batch.is_source[:, None, :]
    assert_close(logits[kept], model.reading(batch)[kept])
    expected = teacher_forced(model, batch, PredictionSites.along(batch, path))
    assert_close(values[batch.is_target], expected[batch.is_target])
    assert_close(values, stepwise(model, batch, path=path)[0])
    assert_close(readings(model, batch)[1], stepwise(model, batch)[0])


@every_reader
def test_readings_of_a_padded_batch(case: Case) -> None:
    model, batch = model_and_batch(case)
    together = model.reading(batch)
    for row in range(len(batch)):
        alone = model.reading(batch.select(torch.tensor([row])))[0]
        assert_close(together[row, : alone.shape[0], : alone.shape[1]], alone)


@every_reader
def test_a_reading_knows_no_later_token(case: Case) -> None:
    """Truncating source or target anywhere leaves the readings before it unchanged."""
    model, batch = model_and_batch(case, (7, 4, 9), (3, 6, 5))
    whole = model.reading(batch)
    for size in range(1, int(batch.source_lengths.max()) + 1):
        lengths = batch.source_lengths.clamp(max=size)
        cut = Batch(
            batch.source[:, :size], lengths, batch.target_input, batch.target_output,
            batch.target_lengths, batch.indices,
        )  # fmt: skip
        kept = cut.is_target[:, :, None] & cut.is_source[:, None, :]
        assert_close(model.reading(cut)[kept], whole[:, :, :size][kept])
    first = [batch.source[row, : int(batch.source_lengths[row]) - 1].tolist() for row in range(3)]
    written = [row[:2].tolist() for row in batch.target_output]
    short = model.reading(collate(first, written))
    kept = batch.is_source[:, None, :].expand(-1, 3, -1)
    assert_close(short[kept], whole[:, :3][kept])


@every_reader
def test_both_at_once(case: Case) -> None:
    model, batch = model_and_batch(case, (7, 4, 9), (3, 6, 5))
    sites = PredictionSites.along(batch, random_path(batch))
    features, logits = model.features_with_reading(batch, sites)
    assert_close(features, model.features(batch, sites))
    assert_close(logits, model.reading(batch))


@every_reader
def test_rows_that_are_considered_can_be_taken(case: Case) -> None:
    """Before a row is considered, after it, and after its prediction."""
    model, batch = model_and_batch(case, (7, 4, 5), (9, 9, 9))
    logits, values = readings(model, batch)
    state = repeat(model.begin(batch.source, batch.source_lengths), 2)
    rows = [0, 0, 1, 1, 2, 2]
    for position, orders in enumerate([([5, 0, 1, 2], [3, 0, 2]), ([2, 1, 1], [0, 1]), ([1], [0])]):
        tokens = batch.target_input[:, position]
        state = take_rows(state, orders[0])
        rows = [rows[i] for i in orders[0]]
        state = take_rows(model.consider(tokens[rows], state), orders[1])
        rows = [rows[i] for i in orders[1]]
        step = model.step(tokens[rows], state)
        state = step.state
        assert_close(step.logits.log_softmax(-1), values[rows, position])
        state = take_rows(state, list(range(len(rows))))
        assert_close(model.reading_row(state), logits[rows, position])


@every_reader
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 0]], ids=str)
def test_readings_of_a_stream(case: Case, order: list[int]) -> None:
    """The readings grow with the source, and so do the predictions."""
    model, batch = model_and_batch(case, (7, 3, 5), (21, 21, 21))
    size = batch.source.shape[1]
    for pace in ([1, 1, 1, 2, 3, 3, 5] + [size] * 15, [3] * 12 + [6] * 4 + [size] * 6, [size] * 22):
        path = torch.minimum(torch.tensor(pace)[None], batch.source_lengths[:, None])
        logits, values = readings(model, batch, path)
        state, rows, read = model.begin(batch.source[:, :0], torch.zeros(3).long()), [0, 1, 2], 1
        state = model.extend(batch.source[:, 0], state)
        for position, reads in enumerate(pace):
            state = model.consider(batch.target_input[rows, position], state)
            if position == 4:
                state, rows = take_rows(state, order), order
            for column in range(read, reads):
                kept = batch.is_source[rows, :column]
                assert_close(model.reading_row(state)[kept], logits[rows, position, :column][kept])
                state = model.extend(batch.source[rows, column], state)
            read = reads
            kept = batch.is_source[rows, :read]
            assert_close(model.reading_row(state)[kept], logits[rows, position, :read][kept])
            step = model.step(batch.target_input[rows, position], state)
            state = step.state
            assert_close(step.logits.log_softmax(-1), values[rows, position])


@every_reader
def test_a_stream_may_read_between_writes(case: Case) -> None:
    """Columns that arrive after a prediction belong to the row last considered."""
    model, batch = model_and_batch(case, (5,), (6,))
    expected = model.reading(batch)
    state = model.begin(batch.source[:, :0], torch.zeros(1).long())
    state = model.extend(batch.source[:, 0], state)
    for position, reads in enumerate([1, 2, 2, 4, 5, 6, 6]):
        tokens = batch.target_input[:, position]
        state = model.step(tokens, model.consider(tokens, state)).state
        for column in range(state.columns.shape[1], reads):
            state = model.extend(batch.source[:, column], state)
        assert_close(model.reading_row(state), expected[:, position, :reads])
