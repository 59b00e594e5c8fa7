"""The model card: what training, imports and scores enter, and what people wrote is kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nmtgrid.base.io.arrays import CHECKSUM, read_header
from nmtgrid.cli.app import main
from nmtgrid.models.card import CARD, FACTS, ScoreRecord, update_card


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy of a model that was trained for two updates, with its card."""
    shutil.copytree(tiny_model, tmp_path / "model")
    return tmp_path / "model"


def _score(model: Path, value: float, beam: int = 5, checksum: str | None = None) -> ScoreRecord:
    _, facts, _ = read_header(model / "model.safetensors")
    return ScoreRecord(
        split="test", data="toy", sentences=7, figures={"bleu": value},
        signatures={"bleu": "nrefs:1|tok:13a"}, beam=beam, checksum=checksum or facts[CHECKSUM],
    )  # fmt: skip


def test_training_writes_it(model: Path) -> None:
    card = (model / CARD).read_text()
    assert card.startswith("---\nlicense: unknown\nlanguage:\n- qa\n- qb\n")
    assert "| architecture | transformer |" in card and "# qa to qb" in card
    assert "| pairs of train | 6" in card and "| training | 2 updates, 0 full epochs, " in card
    assert "`data`" in card and "nmtgrid decode MODEL input.qa --out output.qb" in card
    assert "None yet" in card


def test_what_people_wrote_is_kept(model: Path) -> None:
    path = model / CARD
    text = path.read_text().replace("license: unknown", "license: cc-by-4.0")
    path.write_text(text.replace("architecture", "nonsense") + "My own notes.\n")
    update_card(model, score=_score(model, 12.345))
    text = path.read_text()
    assert "license: cc-by-4.0\n" in text and text.endswith("-->\nMy own notes.\n")
    assert "nonsense" not in text
    assert "| test of toy (7) | bleu | 12.35 | 5 | best | `nrefs:1\\|tok:13a` |" in text


def test_text_that_is_not_utf_8_is_kept_but_for_the_odd_bytes(model: Path) -> None:
    path = model / CARD
    notes = "license: mit\nM\xfcller wrote this.\n".encode("latin-1")
    path.write_bytes(path.read_bytes().replace(b"license: unknown\n", b"") + notes)
    update_card(model, score=_score(model, 12.345))
    text = path.read_text()
    assert text.startswith("---\nlicense: mit\n") and text.endswith("M\ufffdller wrote this.\n")


def test_scores_replace_their_like_and_go_with_their_weights(model: Path) -> None:
    update_card(model, score=_score(model, 11.0))
    update_card(model, score=_score(model, 22.0, beam=1))
    update_card(model, score=_score(model, 33.0))
    card = (model / CARD).read_text()
    assert "11.00" not in card and "22.00" in card and "33.00" in card
    update_card(model, score=_score(model, 44.0, checksum="of other weights"))
    assert "44.00" not in (model / CARD).read_text()


def test_damaged_facts_and_a_card_of_ones_own(model: Path) -> None:
    (model / FACTS).write_text("[")
    (model / CARD).write_text("license: mit\nWritten before.\n")
    update_card(model, origin="From elsewhere.")
    card = (model / CARD).read_text()
    assert card.startswith("---\nlicense: mit\n") and "From elsewhere." in card
    assert card.endswith("Written before.\n")
    assert json.loads((model / FACTS).read_text())["origin"] == "From elsewhere."


def test_decode_enters_scores_only_when_asked(
    model: Path, toy_dataset: Path, tmp_path: Path
) -> None:
    before = (model / CARD).read_bytes()
    command = ["decode", str(model), "--data", str(toy_dataset), "--split", "test", "--beam", "1"]
    assert main(command) == 0
    assert (model / CARD).read_bytes() == before
    assert main([*command, "--card"]) == 0
    card = (model / CARD).read_text()
    for name in ("bleu_tokenized", "bleu", "chrf"):
        assert f"| {name} |" in card
    assert "tok:13a" in card and "| 1 | best |" in card
    # Datasets with the same name are told apart by the folders that they are in.
    name = f"{toy_dataset.resolve().parent.name}/{toy_dataset.resolve().name}"
    other = tmp_path / "other" / toy_dataset.resolve().name
    shutil.copytree(toy_dataset, other)
    command[3] = str(other)
    assert main([*command, "--card"]) == 0
    card = (model / CARD).read_text()
    assert f"| test of {name} (" in card and f"| test of other/{other.name} (" in card


def test_what_changes_translations_does_not_replace_a_score(
    model: Path, toy_dataset: Path, refused: Callable[..., str]
) -> None:
    command = ["decode", str(model), "--data", str(toy_dataset), "--beam", "2", "--card"]
    assert main([*command, "--precision", "fp32", "--long-lines", "split"]) == 0
    before = (model / CARD).read_bytes(), (model / FACTS).read_bytes()
    for options in (
        "--precision bf16", "--precision int8", "--precision auto", "--length-penalty 0",
        "--coverage-penalty 0.2", "--nbest 2", "--max-source 3", "--long-lines cut",
        "--replace-unknown", "--set min_length=9", "--set search.max_length_a=1", "--sample",
        "--exit 1", "--prefix file",
    ):  # fmt: skip
        message = refused(*command, *options.split(" "))
        assert f"leave out `{options.split(' ')[0]}`" in message, options
    message = refused(*command, "--max-source", "3", "--length-penalty", "0")
    assert "leave out `--length-penalty`, `--max-source`" in message
    assert before == ((model / CARD).read_bytes(), (model / FACTS).read_bytes())
    assert main([*command, "--weights", "last"]) == 0
    assert "| 2 | last |" in (model / CARD).read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "`--card` enters scores: name a dataset"),
        (("--data", "d", "--ensemble", "m"), "leave out `--ensemble`"),
        (("--data", "d", "--forced"), "`--card` has no effect with `--forced`"),
    ],
)
def test_bad_options(
    options: tuple[str, ...], message: str, model: Path, refused: Callable[..., str]
) -> None:
    assert message in refused("decode", model, "--card", *options)
