"""`nmtgrid train` refuses what would lose something, or be without effect, before it begins."""

import json
from pathlib import Path

import pytest

from nmtgrid.cli.app import main
from nmtgrid.training.settings import RunSettings, TrainingSettings
from tests.unit.helpers.train_command import TINY_MODEL, toy_data, train

SMALL = [
    *TINY_MODEL,
    "--set", "training.validate_bleu=false", "--set", "training.warmup_updates=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(toy_data(tmp_path_factory.mktemp("refusals") / "data", "--joint-vocabulary"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    "name",
    ["checkpoints/lightning/epoch=9.ckpt", "model.safetensors", "metrics.jsonl", "vocab.qa.txt",
     "bpe.codes", "text.json"],
)
def test_overwrite_spares_other_peoples_files(
    data: str, tmp_path: Path, messages: list[str], name: str
) -> None:
    """A folder of another toolkit has such names too, and no `config.json` of ours."""
    out = tmp_path / "project"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("theirs")
    before = contents(out)
    assert train(data, "--out", out, "--overwrite", "--max-updates", 1, *SMALL) == 2
    assert "other files than those of a model" in messages[-1]
    assert contents(out) == before


def test_no_seed_is_trained_where_one_has_no_folder(
    data: str, tmp_path: Path, messages: list[str]
) -> None:
    (tmp_path / "seed-2").mkdir()
    (tmp_path / "seed-2" / "mine.txt").write_text("keep")
    assert train(data, "--out", tmp_path, "--seeds", "1,2", "--max-updates", 1, *SMALL) == 2
    assert "seed-2 exists already" in messages[-1]
    assert list(contents(tmp_path)) == ["seed-2/mine.txt"]


def test_two_matrices_are_not_loaded_into_one(
    data: str, tmp_path: Path, messages: list[str]
) -> None:
    """Tied weights have the names and shapes of untied ones: the last would win."""
    apart, tied = tmp_path / "apart", tmp_path / "tied"
    assert train(data, "--out", apart, "--max-updates", 1, *SMALL) == 0
    all_tied = ["--set", "model.tie=all"]
    assert train(data, "--out", tied, "--init", apart, "--max-updates", 1, *SMALL, *all_tied) == 2
    assert (
        "are shared by the model, but differ in the file" in messages[-1]
        and "embedding" in messages[-1]
    )
    assert not tied.exists()
    # Tied ones begin both tied and untied models.
    assert train(data, "--out", tied, "--max-updates", 1, *SMALL, *all_tied) == 0
    for number, options in enumerate((all_tied, [])):
        again = tmp_path / f"again{number}"
        assert (
            train(data, "--out", again, "--init", tied, "--max-updates", 1, *SMALL, *options) == 0
        )


def test_the_plan_of_a_run_that_goes_on_is_its_own(
    data: str, tmp_path: Path, messages: list[str]
) -> None:
    out, report = tmp_path / "m", tmp_path / "plan.json"
    assert train(data, "--out", out, "--max-updates", 1, *SMALL) == 0
    assert train(data, "--out", out, "--resume", "--dry-run", "--json", report) == 0
    assert json.loads(report.read_text())["settings"]["model"]["size"] == 8
    assert train(data, "--out", out, "--resume", "--dry-run", "--arch", "bilstm") == 2
    assert "was started with pervasive" in messages[-1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--resume"], "`--out MODEL` is missing"),
        (["--out", "x", "--resume", "--overwrite"], "contradict each other"),
        (["--seeds", "1,1"], "1 is listed twice"),
        (["--source-vocab-size", "9"], "only to `--dry-run` without DATA"),
    ],
)
def test_a_plan_refuses_what_a_run_would(
    data: str, messages: list[str], options: list[str], words: str
) -> None:
    assert train(data, "--dry-run", *options) == 2
    assert words in messages[-1]


def test_nothing_can_count_validations_that_there_are_not() -> None:
    faults = TrainingSettings(patience=3, schedule="plateau", validate_epochs=0).faults()
    assert len(faults) == 2 and "patience" in faults[0] and "plateau" in faults[1]
    for settings in (
        TrainingSettings(validate_epochs=0),
        TrainingSettings(patience=3, schedule="plateau", validate_epochs=0, validate_minutes=1),
    ):
        assert settings.faults() == []

    def notes(**values: object) -> str:
        return " ".join(RunSettings("pervasive", training=TrainingSettings(**values)).notes())  # type: ignore[arg-type]

    assert "4,000 updates, but the run has only 2,000" in notes(max_updates=2000)
    assert notes(max_updates=4000) == ""
    assert notes(max_updates=0, max_epochs=1) == ""
    assert notes(max_updates=9, max_minutes=1, schedule="cosine-time") == ""
    assert "`training.average=1` has no effect" in notes(average=1)
    assert notes(average=2) == notes(average=0) == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["training.r_drop=-1"], "`training.r_drop` must be a number from 0 on, but is -1.0"),
        (["training.r_drop_from=1"], "must be at least 0 and below 1, but is 1.0"),
        (
            ["model.dropout=0", "model.embedding_dropout=0", "model.output_dropout=0"],
            "Set `model.dropout`, `model.embedding_dropout`, `model.output_dropout` above 0",
        ),
        (["model.source_causal=true", "model.reader=own"], "`dynamic` learns decisions"),
    ],
)
def test_two_passes_are_refused_where_they_have_no_meaning(
    data: str, tmp_path: Path, messages: list[str], options: list[str], words: str
) -> None:
    """Before the run begins, and by the plan of it."""
    changes = [word for option in ("training.r_drop=5", *options) for word in ("--set", option)]
    if "reader" in options[-1]:
        changes += ["--objective", "dynamic"]
    out = tmp_path / "m"
    for where in (["--out", out], ["--dry-run"]):
        assert train(data, *where, "--max-updates", 1, *SMALL, *changes) == 2
        assert words in messages[-1]
    assert not out.exists()


def test_a_model_with_transparent_attention_alone_has_dropout_there(
    data: str, messages: list[str]
) -> None:
    options = ["--arch", "transformer", "--dry-run", "--set", "training.r_drop=1"]
    options += ["--set", "model.dropout=0", "--set", "model.embedding_dropout=0"]
    assert train(data, *options) == 2
    assert "the model has no dropout" in messages[-1] and "transparent" not in messages[-1]
    assert train(data, *options, "--set", "model.transparent=true") == 0


def test_nor_in_data_without_a_validation_split(tmp_path: Path, messages: list[str]) -> None:
    for language in ("de", "en"):
        (tmp_path / f"train.{language}").write_text("a b c\n" * 9)
    folder, out = tmp_path / "data", tmp_path / "m"
    named = ["--source-lang", "de", "--target-lang", "en", "--train", str(tmp_path / "train")]
    assert main(["preprocess", *named, "--out", str(folder)]) == 0
    assert main(["bpe", "learn", str(folder), "--words"]) == 0
    waits = ["--set", "training.patience=2"]
    assert train(folder, "--out", out, "--max-updates", 1, *SMALL, *waits) == 2
    assert "has no split `valid`, but `training.patience`" in messages[-1] and not out.exists()
    translates = ["--set", "training.best_by=bleu", "--set", "training.validate_bleu=true"]
    assert train(folder, "--out", out, "--max-updates", 1, *SMALL, *translates) == 2
    assert "has no split `valid`, but `training.best_by`" in messages[-1] and not out.exists()
    assert train(folder, "--out", out, "--max-updates", 1, *SMALL) == 0


def test_what_weights_are_chosen_by_can_be_computed_and_stays(
    data: str, tmp_path: Path, messages: list[str]
) -> None:
    out, by = tmp_path / "m", ["--set", "training.best_by=bleu"]
    assert train(data, "--out", out, "--max-updates", 1, *SMALL, *by) == 2
    assert "`training.best_by=bleu` needs translations: set `training.validate_bleu=true`" in (
        messages[-1]
    )
    translates = [*SMALL, "--set", "training.validate_bleu=true"]
    cider = ["--set", "training.best_by=cider"]
    for more in ([], ["--dry-run"]):
        messages.clear()
        assert train(data, "--out", out, "--max-updates", 1, *translates, *cider, *more) == 2
        assert "`training.best_by=cider` is for captions of images" in messages[-1]
    assert not out.exists()
    assert train(data, "--out", out, "--max-updates", 1, *translates, *by) == 0
    by = ["--set", "training.best_by=loss"]
    assert train("--out", out, "--resume", "--max-updates", 2, *by) == 2
    assert "but `training.best_by` would change" in messages[-1]
