"""The dataset of recipes/distill.sh: a teacher's translations in the place of the references."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.base.io.text import read_lines
from nmtgrid.base.subword_marks import JOINER
from nmtgrid.data.dataset import Dataset
from nmtgrid.search.traces import Trace
from recipes import distill_table
from tests.unit.helpers.train_command import toy_data

SEARCH = {"max_length_a": 2.0, "max_length_b": 1.0}
SIZE = 25


@pytest.fixture(scope="module", params=["--joint-vocabulary", "--separate"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_data(tmp_path_factory.mktemp("distill") / "data", request.param)


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    folder = tmp_path / "teacher"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def _trace(line: int, source: list[str], target: list[str], text: str) -> Trace:
    return Trace(line, source, target, text, [-0.1] * (len(target) + 1), -1.0, -0.5)


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        ([], "empty"),
        (["lo", f"noz{JOINER}", "al", "."], ""),
        (["lo", "<unk>", "."], "altered by detokenising"),
        (["lo"] * 5, "at the limit of length"),
        (["lo"] * 4, ""),
    ],
)
def test_what_is_not_learnt_from(data: Path, target: list[str], fault: str) -> None:
    pipeline = Dataset.open(data).pipeline
    text = pipeline.target.moses.detokenize(" ".join(target).replace(f"{JOINER} ", ""))
    trace = _trace(1, ["a", "b", "c"], target, text)
    assert distill_table.fault_of(trace, SEARCH, pipeline) == fault


def _translate(data: Path, lines: Path, bad: int) -> None:
    """Write traces in which each source is translated as its reference, `bad` of them empty."""
    dataset = Dataset.open(data)
    references = iter(distill_table.raw_pairs(dataset))
    search: dict[str, Any] = {"search": {"max_length_a": 10.0, "max_length_b": 5.0}}
    for path in sorted(lines.glob("*.source")):
        traces = []
        for number, source in enumerate(read_lines(path), 1):
            raw, text = next(references)
            assert source == raw
            text = "" if bad > 0 else text
            bad -= 1
            units = dataset.pipeline.target.tokens(text)
            traces.append(_trace(number, dataset.pipeline.source.tokens(raw), units, text))
        path.with_suffix(".jsonl").write_text("".join(f"{t.to_line()}\n" for t in traces))
        path.with_suffix(".json").write_text(json.dumps(search))


@pytest.mark.parametrize("originals", [False, True])
def test_translations_take_the_place_of_references(
    data: Path, teacher: Path, tmp_path: Path, originals: bool
) -> None:
    """With the same units; the teacher's are the references here, so the ids are the same too."""
    lines, new = tmp_path / "lines", tmp_path / "new"
    distill_table.split(data, lines, SIZE, teacher, 5)
    assert len(list(lines.glob("*.source"))) == 3
    _translate(data, lines, bad=2)
    distill_table.make_dataset(data, lines, new, originals)
    before, after = Dataset.open(data), Dataset.open(new)
    assert after.pipeline.facts == before.pipeline.facts
    for side in ("source_vocabulary", "target_vocabulary"):
        assert getattr(after.pipeline, side).types == getattr(before.pipeline, side).types
    counts = json.loads((tmp_path / "new.json").read_text())
    assert counts["left_out"] == {"empty": 2} and counts["distilled"] == 58
    assert counts["kept"] == (118 if originals else 58)
    old, distilled = before.split("train"), after.split("train")
    pairs = [*range(2, 60), *(range(60) if originals else ())]
    assert [distilled.source(i) for i in range(len(distilled))] == [old.source(i) for i in pairs]
    assert [distilled.target(i) for i in range(len(distilled))] == [old.target(i) for i in pairs]
    for name in ("valid", "test"):
        assert after.split(name).raw_target() == before.split(name).raw_target()
        assert torch.equal(
            after.split(name).batch([0, 1]).target_output,
            before.split(name).batch([0, 1]).target_output,
        )


def test_lines_of_another_run_are_not_taken(data: Path, teacher: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    distill_table.split(data, lines, SIZE, teacher, 5)
    (lines / "0001.txt").write_text("work")
    distill_table.split(data, lines, SIZE, teacher, 5)
    for size, beam, weights in ((SIZE + 1, 5, b"weights"), (SIZE, 4, b"weights"), (SIZE, 5, b"x")):
        (teacher / "model.safetensors").write_bytes(weights)
        with pytest.raises(SystemExit, match="another dataset, teacher, beam or SPLIT"):
            distill_table.split(data, lines, size, teacher, beam)
    assert (lines / "0001.txt").read_text() == "work"


def test_a_dataset_of_another_teacher_is_not_taken(
    data: Path, teacher: Path, tmp_path: Path
) -> None:
    """Not even where its lines were removed: the table would be of the teacher before."""
    lines, out = tmp_path / "lines", tmp_path / "distilled"
    distill_table.split(data, lines, SIZE, teacher, beam=5)
    _translate(data, lines, bad=0)
    distill_table.make_dataset(data, lines, out, originals=False)
    distill_table.make_dataset(data, lines, out, originals=False)
    (teacher / "model.safetensors").write_bytes(b"other weights")
    shutil.rmtree(lines)
    distill_table.split(data, lines, SIZE, teacher, beam=5)
    with pytest.raises(SystemExit, match="distilled was made with another dataset, teacher"):
        distill_table.make_dataset(data, lines, out, originals=False)


def test_what_is_missing_is_named(data: Path, teacher: Path, tmp_path: Path) -> None:
    lines, new = tmp_path / "lines", tmp_path / "new"
    distill_table.split(data, lines, SIZE, teacher, 5)
    _translate(data, lines, bad=60)
    with pytest.raises(SystemExit, match="no translation is usable for training: 60 empty"):
        distill_table.make_dataset(data, lines, new, originals=False)
    _translate(data, lines, bad=0)
    traces = lines / "0002.jsonl"
    traces.write_text("".join(traces.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(SystemExit, match="has 25 lines, but 24 translations"):
        distill_table.make_dataset(data, lines, new, originals=False)
    (lines / "0003.json").unlink()
    (lines / "0002.json").unlink()
    with pytest.raises(SystemExit, match=r"0002.source has not been translated"):
        distill_table.make_dataset(data, lines, new, originals=False)
    assert not new.exists() and not (tmp_path / "new.json").exists()


def test_the_table_has_p_values_against_the_first() -> None:
    names = ("original", "distilled", "teacher")
    tested = [
        {"system": name, "p_value": p} for name, p in zip(names, (None, 0.01, 0.5), strict=True)
    ]
    compared = {
        "scores": {
            "systems": [{"system": name, "bleu": 30.0, "chrf": 50.0} for name in names],
            "signature_bleu": "nrefs:1",
        },
        "tests": [{"metrics": [{"metric": m, "systems": tested} for m in ("bleu", "chrf")]}],
    }
    rows = distill_table.rows_of(compared, {"kept": 7, "left_out": {"empty": 2, "ratio": 1}})
    assert [row["p_bleu"] for row in rows] == [None, 0.01, 0.5]
    assert [row.get("left_out") for row in rows] == [None, 3, None]
