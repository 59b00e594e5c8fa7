"""Documented behaviour that was untested according to mutation testing (tests/mutants.py)."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.adaptive.halting_objective import predicted_exits
from nmtgrid.base import console
from nmtgrid.base.errors import StorageError
from nmtgrid.base.io import atomic, lock
from nmtgrid.base.io.atomic import CHECKSUM, with_checksum, write_json
from nmtgrid.base.io.records import read_json
from nmtgrid.data.batches import DataCursor
from nmtgrid.models.directory import TrainingLengths
from nmtgrid.online.evaluate import Decoded, measure
from nmtgrid.online.policies import WaitK
from nmtgrid.online.settings import Setting
from nmtgrid.online.stream import StreamTranslator
from nmtgrid.search import engine, long_sources
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.long_sources import SourceLimits
from nmtgrid.training.progress import Progress
from nmtgrid.training.settings import TrainingSettings
from tests.unit.helpers.tiny_online import plain_outcome, sentence, translator
from tests.unit.helpers.tiny_run import Sentences, trainer
from tests.unit.search.table_model import TableModel, batch


def test_exits_of_several_tokens_are_those_of_each() -> None:
    """Logits [B, T, N]: the most likely exit is that over exits, not over tokens."""
    logits = torch.tensor([[[0.0, 3.0, 1.0], [5.0, 4.0, 0.0]]])
    assert predicted_exits(logits, "multinomial").tolist() == [[2, 1]]
    chi = torch.tensor([[[-1.0, 2.0], [-1.0, -2.0]]])
    assert predicted_exits(chi, "geometric").tolist() == [[2, 3]]


def test_a_process_of_another_user_is_running(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: int, signal: int) -> None:
        raise PermissionError(process)

    monkeypatch.setattr(os, "kill", refuse)
    assert atomic._is_running(1)


def test_a_lock_without_a_record_is_another_process_s() -> None:
    assert lock._describe(None) == "another process"


def test_json_is_not_read_from_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(StorageError, match="is a pipe"):
        read_json(tmp_path / "config.json")


@pytest.mark.parametrize("policy", ["wait-k", "confidence"])
def test_what_never_revises_has_no_erasure(policy: str) -> None:
    known = plain_outcome(["a"], "a", "a", [1, 1])
    assert Decoded(Setting(policy, 0.5), [known], 1.0).erasure is None
    revised = dataclasses.replace(known, erased=2)
    assert Decoded(Setting("re-translation", 0), [revised], 1.0).erasure == 2.0


@pytest.mark.parametrize(("lowercase", "bleu"), [(True, 100.0), (False, 0.0)])
def test_raw_references_are_lowered_for_lower_cased_models_alone(
    lowercase: bool, bleu: float
) -> None:
    pair = dataclasses.replace(sentence(1, "a b", "c d e f"), raw_reference="C D E F")
    known = plain_outcome([*"cdef"], "c d e f", "c d e f", [1, 2, 2, 2, 3])
    decoded = Decoded(Setting("wait-k", 1), [known], 1.0)
    # Lower-cased by a function that the caller passes, since Turkish has its own.
    measured = measure([pair], decoded, "@@", lowercase=lowercase, lower=lambda text: text.lower())
    assert measured.raw.value == pytest.approx(bleu)


def test_a_stream_scores_as_the_search_does() -> None:
    loaded = translator("pervasive")
    plan = dataclasses.replace(loaded.plan, length_penalty=0.7, length_offset=2.0)
    stream = StreamTranslator(loaded.models, loaded.pipeline, WaitK(1), plan).begin()
    for word in ("ab", "cd"):
        stream.read(word)
    stream.end()
    result = stream.hypothesis()
    count = len(result.log_probabilities)
    expected = sum(result.log_probabilities) / ((2.0 + count) / 3.0) ** 0.7
    assert result.score == pytest.approx(expected)


@pytest.mark.parametrize(("count", "ending"), [(10, "10 (5)"), (11, "10 (5) and 1 more")])
def test_ten_lines_are_numbered(count: int, ending: str) -> None:
    assert long_sources._numbered(dict.fromkeys(range(1, count + 1), 5)).endswith(ending)


def test_alignments_of_pieces_stand_along_the_diagonal() -> None:
    first, second = torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([[0.7, 0.3], [0.4, 0.6]])
    whole = long_sources._diagonal([first, second])
    assert whole is not None
    # The first piece's end symbol is not part of the whole; its column is the source's end.
    expected = [[0.9, 0.0, 0.1], [0.0, 0.7, 0.3], [0.0, 0.4, 0.6]]
    assert torch.equal(whole, torch.tensor(expected))
    alone = long_sources._diagonal([first])
    assert alone is not None and torch.equal(alone, first)


def test_messages_are_printed_to_the_letter(capsys: pytest.CaptureFixture[str]) -> None:
    console.say("a file named [red]x[/red]")
    assert capsys.readouterr().err == "a file named [red]x[/red]\n"


def test_control_characters_are_no_commands_to_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console.say("a\x1b[31mb\x07c\x9bd\r\te\nf")
    console.table("t\x1b", ["x"], [["y\x1b[2J"]])
    shown = capsys.readouterr().err
    assert "a\\x1b[31mb\\x07c\\x9bd\\x0d" in shown and "y\\x1b[2J" in shown
    assert not {"\x1b", "\x07", "\x9b", "\r"} & set(shown)


def test_samples_of_neighbouring_lines_have_nothing_in_common() -> None:
    """Nor have the second sample of a line and the first of the next one."""
    plan = SearchPlan(sample=True, nbest=3, seed=2, min_length=8)
    drawn = engine.search([TableModel(17, types=30)], *batch(*[[3, 4, 5]] * 4), plan)
    texts = [tuple(hypothesis.tokens) for line in drawn for hypothesis in line]
    assert len(set(texts)) == len(texts) == 12


def test_limits_are_at_least_one_unit() -> None:
    assert SourceLimits.of([TrainingLengths()], None) == SourceLimits(1, 1, 0)


def test_states_without_a_validation_have_none() -> None:
    values = dataclasses.asdict(Progress())
    del values["checkpoint_update"], values["validated_update"]
    assert Progress.from_json(values).checkpoint_update == 0


def test_older_states_call_the_cursor_a_place() -> None:
    progress = Progress(update=9, cursor=DataCursor(3, 1, 4))
    values = dataclasses.asdict(progress)
    assert Progress.from_json(values) == progress
    values["place"] = values.pop("cursor")
    assert Progress.from_json(values) == progress


def test_a_decay_that_does_not_decay_is_refused() -> None:
    assert any("decay_factor" in fault for fault in TrainingSettings(decay_factor=1.0).faults())


def test_every_pair_is_in_the_fingerprint_of_the_data(tmp_path: Path) -> None:
    """Including the first: a run is resumed only on the same pairs."""
    facts = []
    for extra in (0, 1):
        sentences = Sentences()
        source, target = sentences.pairs[0]
        sentences.pairs[0] = (source + source[:1] * extra, target)
        run = trainer(tmp_path / str(extra), sentences=sentences)
        facts.append(run._data_facts["lengths"])
    assert facts[0] != facts[1]


def test_epochs_are_bounded_by_the_batches_of_all_updates(tmp_path: Path) -> None:
    """Two updates of three batches may span six epochs, if there is only one pair."""
    changes: dict[str, Any] = {"sentences": Sentences(count=1), "accumulation": 3}
    first = trainer(tmp_path, max_updates=2, **changes)
    for _ in first.run():
        pass
    again = trainer(tmp_path, max_updates=3, **changes)
    assert again.resume() and again.progress.cursor.epoch == 6
    path = first.checkpoints.existing()[-1] / "training.json"
    facts = read_json(path)
    facts["progress"]["cursor"]["epoch"] = 7
    del facts[CHECKSUM]
    write_json(path, with_checksum(facts))
    with pytest.raises(StorageError, match="no batch"):
        trainer(tmp_path, max_updates=3, **changes).resume()


def test_what_a_killed_run_left_is_removed_before_a_state_is_saved(tmp_path: Path) -> None:
    run = trainer(tmp_path, max_updates=1)
    leftover = run.checkpoints.folder / ".000009.part"
    leftover.mkdir(parents=True)
    (leftover / "big").write_bytes(bytes(1000))
    for _ in run.run():
        pass
    assert not leftover.exists() and run.checkpoints.existing()
    assert json.loads((run.checkpoints.existing()[-1] / "training.json").read_text())
