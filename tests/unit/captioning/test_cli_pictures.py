"""Pictures from the command line: datasets, training, captions and scores, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import nmtgrid
from nmtgrid.analysis.alignment.models import heat
from nmtgrid.base.errors import ConfigError, DataError
from nmtgrid.base.io.arrays import save_tensors
from nmtgrid.cli.app import main
from nmtgrid.data.dataset import Dataset
from nmtgrid.data.toy.pictures import SIZE
from nmtgrid.metrics.quality import caption_scores
from nmtgrid.search.traces import read_traces
from tests.unit.captioning.tiny_pictures import coco, files, lines, split_of, write_json
from tests.unit.helpers.toy_model import read_json, toy_model

SMALL = ["--set", "model.size=16", "--set", "batches.max_tokens=300", "--seed", "2"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, toy_dataset: Path) -> Path:
    """A folder with datasets `pictures` and `text`, and models of each; one has learnt enough."""
    folder = tmp_path_factory.mktemp("pictures")
    pictures = folder / "pictures"
    assert run("preprocess", "--toy-pictures", 60, "--out", pictures) == 0
    assert run("bpe", "learn", pictures, "--words", "--min-count", 2) == 0
    (folder / "text").symlink_to(toy_dataset)
    for arch, rate, updates in (("caption-lstm", 0.02, 120), ("caption-top-down", 0.002, 6)):
        train = ["train", pictures, "--arch", arch, "--preset", "toy-pictures", *SMALL]
        train += ["--set", f"training.learning_rate={rate}", "--max-updates", updates]
        assert run(*train, "--out", folder / arch) == 0
    toy_model(folder / "bilstm", toy_dataset, "bilstm", {"size": 8})
    return folder


def run(*arguments: object) -> int:
    return main([*map(str, arguments)])


@pytest.mark.parametrize("arch", ["caption-lstm", "caption-top-down"])
def test_a_split_is_captioned_and_scored(home: Path, tmp_path: Path, arch: str) -> None:
    """Scores are those of the captions written, against all references of each picture."""
    data, out, report = home / "pictures", tmp_path / "out", tmp_path / "r.json"
    traces = tmp_path / "t.jsonl"
    assert run(
        "decode", home / arch, "--data", data, "--out", out, "--json", report, "--traces", traces,
        "--device", "cpu",
    ) == 0  # fmt: skip
    values, written = read_json(report), lines(tmp_path, "out")
    split = split_of(Dataset.open(data), "test")
    assert len(written) == len(split) == values["sentences"] == 500
    expected = caption_scores(written, split.references())
    assert {name: values[name] for name in expected} == expected
    assert values["signature_bleu_4"].startswith("nrefs:5|")
    first = next(read_traces(traces))
    regions = int(split.source_lengths[0])
    assert first.source == [f"region{index}" for index in range(1, regions + 1)]
    assert (first.alignment is not None) == (arch == "caption-top-down")
    if first.alignment is not None:
        # No end symbol is looked at: all that there is to cover are the regions.
        assert first.alignment.shape == (len(first.target) + 1, regions)
        assert not first.source_end and len(heat("", first).source) == regions
        assert first.alignment.sum(1) == pytest.approx(1.0, abs=1e-3)


def test_validation_scores_all_references(home: Path) -> None:
    """The validation that chose the weights scored them as `decode` does."""
    events = [json.loads(line) for line in lines(home, "caption-lstm/metrics.jsonl")]
    chosen = [event for event in events if event.get("is_best")][-1]
    report = home / "greedy.json"
    model = home / "caption-lstm"
    arguments = ("--data", home / "pictures", "--split", "valid", "--beam", "1", "--json", report)
    assert run("decode", model, *arguments, "--device", "cpu", "--precision", "fp32") == 0
    values = read_json(report)
    assert values["bleu_4"] > 5 and values["cider"] > 5
    # Batches differ, and rounding may choose another word here and there.
    assert chosen["bleu"] == pytest.approx(values["bleu_4"], abs=0.3)
    assert chosen["cider"] == pytest.approx(values["cider"], abs=0.3)


def test_the_card_is_that_of_a_captioning_model(home: Path) -> None:
    card = (home / "caption-lstm" / "README.md").read_text()
    # Only captions have a language.
    assert card.startswith("---\nlicense: unknown\nlanguage:\n- en\nlibrary_name: nmtgrid\n")
    assert "pipeline_tag: image-to-text\n" in card and "# pictures to en" in card
    assert "nmtgrid decode MODEL features.safetensors --out output.en" in card


def _features(split: Any) -> dict[str, torch.Tensor]:
    """The first pictures of a split, called so that the file lists them in another order."""
    return {
        f"p{9 - index}": torch.from_numpy(split.pictures.features(index)).half()
        for index in range(4)
    }


def test_pictures_of_a_file(home: Path, tmp_path: Path) -> None:
    split = split_of(Dataset.open(home / "pictures"), "test")
    save_tensors(tmp_path / "f.safetensors", _features(split))
    model, report, out = home / "caption-top-down", tmp_path / "r.json", tmp_path / "out"
    assert run("decode", model, tmp_path / "f.safetensors", "--out", out, "--json", report) == 0
    assert run("decode", model, "--data", home / "pictures", "--out", tmp_path / "all") == 0
    assert read_json(report)["pictures"] == ["p6", "p7", "p8", "p9"]
    assert lines(tmp_path, "out") == list(reversed(lines(tmp_path, "all")[:4]))
    save_tensors(tmp_path / "f.safetensors", _features(split))
    assert run(
        "decode", home / "caption-lstm", tmp_path / "f.safetensors", "--out", tmp_path / "out",
        "--ensemble", home / "caption-top-down", "--beam", "2", "--nbest", "2",
    ) == 0  # fmt: skip
    assert [line.split(" ||| ")[0] for line in lines(tmp_path, "out")] == list("11223344")


def test_references_forced(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, traces = tmp_path / "r.json", tmp_path / "t"
    assert run(
        "decode", home / "caption-top-down", "--data", home / "pictures", "--forced",
        "--traces", traces, "--json", report,
    ) == 0  # fmt: skip
    assert read_json(report)["sentences"] == 500 and read_json(report)["perplexity"] > 1
    first = next(read_traces(traces))
    split = split_of(Dataset.open(home / "pictures"), "test")
    assert " ".join(first.target) == split.tokenized_target()[0]
    assert len(first.source) == split.source_lengths[0]
    assert "Only the first caption of each picture is scored" in capsys.readouterr().err


def test_from_python(home: Path) -> None:
    model = nmtgrid.load(home / "caption-lstm", device="cpu")
    split = split_of(Dataset.open(home / "pictures"), "test")
    pictures = [split.pictures.features(index) for index in range(3)]
    progress: list[tuple[int, int]] = []
    captions = list(model.caption(pictures, on_progress=lambda *counts: progress.append(counts)))
    assert [caption.line for caption in captions] == [1, 2, 3]
    assert sum(count for count, _ in progress) == 3
    with pytest.raises(DataError, match="expects 64 features"):
        list(model.caption([pictures[0][:, :5]]))
    for asked in (lambda: model.translate(["x"]), lambda: model.score([("x", "y")])):
        with pytest.raises(ConfigError, match="captions pictures; it cannot read text"):
            asked()
    with pytest.raises(ConfigError, match="translates text"):
        nmtgrid.load(home / "bilstm", device="cpu").caption(pictures)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("decode {top} --data {text}", "captions pictures; it cannot read text"),
        ("decode {top} {pictures}/raw/test.en", "it cannot read text"),
        ("decode {bilstm} --data {pictures}", "translates text; it cannot read pictures"),
        ("decode {bilstm} f.safetensors", "cannot read pictures"),
        ("decode {top} --data {pictures} --long-lines cut", "`--long-lines` applies to text"),
        ("decode {top} --data {pictures} --replace-unknown", "`--replace-unknown` applies to text"),
        ("train {pictures} --arch bilstm --out new", "are pictures, but `bilstm` translates text"),
        ("train {text} --arch caption-lstm --out new", "`caption-lstm` is for image captioning"),
        ("train {text} --arch caption-lstm --dry-run", "but the sources of"),
        ("online-eval {top} --data {pictures} --k 3 --out new", "cannot caption simultaneously"),
        ("adaptive-tune {top} --data {pictures} --out new", "one exit"),
        ("export {top} --to ctranslate2 --out new", "cannot be exported"),
    ],
)
def test_models_and_sources_that_do_not_go_together(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str],
    command: str, words: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    paths = {name: home / name for name in ("text", "pictures", "bilstm")}
    top = home / "caption-top-down"
    assert words in refused(*(word.format(top=top, **paths) for word in command.split()))
    assert not Path("new").exists()


def test_features_that_the_model_does_not_know(
    home: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    path, out = tmp_path / "f.safetensors", tmp_path / "out"
    decode = ["decode", home / "caption-top-down"]
    save_tensors(path, {"a": torch.ones(2, 5)})
    assert "has 5 features per region, but the model expects 64" in refused(*decode, path)
    save_tensors(path, {"a": torch.ones(2, SIZE), "b": torch.full((1, SIZE), torch.nan)})
    assert "the picture `b` are not all finite" in refused(*decode, path, "--out", out)
    assert not out.exists()
    assert "is missing" in refused(*decode, tmp_path / "none.safetensors")


def test_captions_and_features(tmp_path: Path, messages: list[str]) -> None:
    sources = files(tmp_path)
    data, report = tmp_path / "data", tmp_path / "r.json"
    command = ("preprocess", "--captions", sources.captions, "--features", sources.features[0])
    assert run(*command, "--out", data, "--json", report, "--target-lang", "eng") == 0
    assert read_json(report)["splits"]["train"]["pictures"] == 2
    assert lines(data, "text/train.eng") == ["a cat", "one cat sits", "a dog runs"]
    assert any(
        "1 pictures of Karpathy's split `restval` were left out" in line for line in messages
    )
    assert any("1 picture has features but no captions" in line for line in messages)
    assert run(*command, "--out", data, "--cased", "--restval", "--overwrite") == 0
    assert lines(data, "text/train.en")[0] == "A cat"
    assert lines(data, "pictures/train.txt")[-1] == "a11"


def test_cocos_own_files_with_a_number_and_a_file(tmp_path: Path, messages: list[str]) -> None:
    write_json(tmp_path / "c.json", coco({n: [f"picture {n}"] for n in range(6)}))
    write_json(tmp_path / "t.json", coco({7: ["seven"], 8: []}))
    for name, numbers in (("one", range(4)), ("two", range(4, 9))):
        save_tensors(tmp_path / name, {str(n): torch.ones(1, 3) for n in numbers})
    command = ("preprocess", "--captions", tmp_path / "c.json", "--out", tmp_path / "data")
    both = ("--features", tmp_path / "one", "--features", tmp_path / "two")
    assert run(*command, *both, "--valid", "2", "--test", tmp_path / "t.json") == 0
    assert lines(tmp_path / "data", "pictures/valid.txt") == ["1", "4"]
    assert any("1 picture of `test` has no caption" in line for line in messages)
    assert run(*command, *both, "--overwrite") == 0
    assert any("no validation pictures" in line for line in messages)
    tests = ("--valid", "1", "--test", f"later={tmp_path / 't.json'}", "--test", "1", "--overwrite")
    assert run(*command, *both, *tests) == 0
    names = ("train", "valid", "later", "test")
    pictures = [lines(tmp_path / "data", f"pictures/{name}.txt") for name in names]
    assert list(map(len, pictures)) == [4, 1, 1, 1] and pictures[2] == ["7"]


BOTH = "--captions c --features f"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--captions c.json", "`--features` is missing"),
        ("--features f", "`--captions` is missing"),
        ("--restval", "`--captions` is missing|`--features` is missing"),
        (
            f"{BOTH} --train t --xml --toy 3",
            "`--train` applies to text|`--xml` applies to text|`--toy` applies to text",
        ),
        (
            f"{BOTH} --valid-every 3 --source-lang de",
            "`--valid-every` applies to text|`--source-lang` applies to text",
        ),
        (
            f"{BOTH} --toy-difficulty 2 --toy-seed 3",
            "`--toy-difficulty` applies to text|`--toy-seed` belongs to `--toy-pictures N`",
        ),
        (f"{BOTH} --valid 1 --valid 2", "`--valid` is given 2 times"),
        (f"{BOTH} --test a=1 --test a=2", "`--test a=` is given 2 times"),
        (
            f"{BOTH} --max-ratio 3 --workers 2",
            "`--max-ratio` applies to text|`--workers` applies to text",
        ),
        (
            "--toy-pictures 5 --captions c --test t --restval",
            "leave `--captions` out|leave `--test` out|leave `--restval` out",
        ),
        ("--toy-pictures 0", "--toy-pictures"),
        ("--captions none.json --features f", "none.json is missing"),
    ],
)
def test_options_that_do_not_go_together(
    tmp_path: Path, refused: Callable[..., str], options: str, words: str
) -> None:
    message = refused("preprocess", "--out", tmp_path / "data", *options.split())
    assert all(word in message for word in words.split("|"))
    assert not (tmp_path / "data").exists()
