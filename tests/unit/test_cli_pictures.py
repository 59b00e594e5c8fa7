"""Pictures from the command line: datasets, training, captions and scores, and what is refused."""

from __future__ import annotations

import json
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
from nmtgrid.models import zoo
from nmtgrid.models.directory import save_model
from nmtgrid.search.traces import read_traces
from tests.unit.tiny_pictures import coco, files, lines, split_of, write_json

SMALL = ["--set", "model.size=16", "--set", "batches.max_tokens=300", "--seed", "2"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with datasets `pictures` and `text`, and models of each; one has learnt enough."""
    folder = tmp_path_factory.mktemp("pictures")
    pictures, text = str(folder / "pictures"), str(folder / "text")
    assert main(["preprocess", "--toy-pictures", "60", "--out", pictures]) == 0
    assert main(["bpe", "learn", pictures, "--words", "--min-count", "2"]) == 0
    assert main(["preprocess", "--toy", "40", "--out", text]) == 0
    assert main(["bpe", "learn", text, "--words"]) == 0
    for arch, rate, updates in (
        ("caption-lstm", "0.02", "120"),
        ("caption-top-down", "0.002", "6"),
    ):
        train = ["train", pictures, "--arch", arch, "--preset", "toy-pictures", *SMALL]
        train += ["--set", f"training.learning_rate={rate}", "--max-updates", updates]
        assert main([*train, "--out", str(folder / arch)]) == 0
    pipeline = Dataset.open(text).pipeline
    sizes = len(pipeline.source_vocabulary), len(pipeline.target_vocabulary)
    model = zoo.build(
        "bilstm", overrides={"size": 8}, source_vocab_size=sizes[0], target_vocab_size=sizes[1]
    )
    save_model(folder / "bilstm", model, pipeline, {})
    return folder


def run(*arguments: str | Path) -> int:
    return main([*map(str, arguments)])


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Run what must be refused; return the message."""
    assert run(*arguments) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    return " ".join(message.split())


def report(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text())
    return values


@pytest.mark.parametrize("arch", ["caption-lstm", "caption-top-down"])
def test_a_split_is_captioned_and_scored(home: Path, tmp_path: Path, arch: str) -> None:
    """Scores are those of the captions written, against all references of each picture."""
    data, out, told = home / "pictures", tmp_path / "out", tmp_path / "r.json"
    traces = tmp_path / "t.jsonl"
    assert run(
        "decode", home / arch, "--data", data, "--out", out, "--json", told, "--traces", traces,
        "--device", "cpu",
    ) == 0  # fmt: skip
    found, written = report(told), lines(tmp_path, "out")
    split = split_of(Dataset.open(data), "test")
    assert len(written) == len(split) == found["sentences"] == 500
    wanted = caption_scores(written, split.references())
    assert {name: found[name] for name in wanted} == wanted
    assert found["signature_bleu_4"].startswith("nrefs:5|")
    first = next(read_traces(traces))
    regions = int(split.source_lengths[0])
    assert first.source == [f"region{place}" for place in range(1, regions + 1)]
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
    told = home / "greedy.json"
    model = home / "caption-lstm"
    arguments = ("--data", home / "pictures", "--split", "valid", "--beam", "1", "--json", told)
    assert run("decode", model, *arguments, "--device", "cpu", "--precision", "fp32") == 0
    found = report(told)
    assert found["bleu_4"] > 5 and found["cider"] > 5
    # Batches differ, and rounding may choose another word here and there.
    assert chosen["bleu"] == pytest.approx(found["bleu_4"], abs=0.3)
    assert chosen["cider"] == pytest.approx(found["cider"], abs=0.3)


def _features(split: Any) -> dict[str, torch.Tensor]:
    """The first pictures of a split, called so that the file lists them in another order."""
    return {
        f"p{9 - place}": torch.from_numpy(split.pictures.features(place)).half()
        for place in range(4)
    }


def test_other_pictures_in_the_order_of_their_file(home: Path, tmp_path: Path) -> None:
    split = split_of(Dataset.open(home / "pictures"), "test")
    save_tensors(tmp_path / "f.safetensors", _features(split))
    model, told, out = home / "caption-top-down", tmp_path / "r.json", tmp_path / "out"
    assert run("decode", model, tmp_path / "f.safetensors", "--out", out, "--json", told) == 0
    assert run("decode", model, "--data", home / "pictures", "--out", tmp_path / "all") == 0
    assert report(told)["pictures"] == ["p6", "p7", "p8", "p9"]
    assert lines(tmp_path, "out") == list(reversed(lines(tmp_path, "all")[:4]))


def test_ensembles_and_lists_of_captions(home: Path, tmp_path: Path) -> None:
    split = split_of(Dataset.open(home / "pictures"), "test")
    save_tensors(tmp_path / "f.safetensors", _features(split))
    assert run(
        "decode", home / "caption-lstm", tmp_path / "f.safetensors", "--out", tmp_path / "out",
        "--ensemble", home / "caption-top-down", "--beam", "2", "--nbest", "2",
    ) == 0  # fmt: skip
    assert [line.split(" ||| ")[0] for line in lines(tmp_path, "out")] == list("11223344")


def test_references_forced(home: Path, tmp_path: Path) -> None:
    told, traces = tmp_path / "r.json", tmp_path / "t"
    assert run(
        "decode", home / "caption-top-down", "--data", home / "pictures", "--forced",
        "--traces", traces, "--json", told,
    ) == 0  # fmt: skip
    assert report(told)["sentences"] == 500 and report(told)["perplexity"] > 1
    first = next(read_traces(traces))
    split = split_of(Dataset.open(home / "pictures"), "test")
    assert " ".join(first.target) == split.tokenized_target()[0]
    assert len(first.source) == split.source_lengths[0]


def test_from_python(home: Path) -> None:
    model = nmtgrid.load(home / "caption-lstm", device="cpu")
    split = split_of(Dataset.open(home / "pictures"), "test")
    pictures = [split.pictures.features(place) for place in range(3)]
    told: list[tuple[int, int]] = []
    found = list(model.caption(pictures, advance=lambda *counts: told.append(counts)))
    assert [one.line for one in found] == [1, 2, 3]
    assert sum(count for count, _ in told) == 3
    with pytest.raises(DataError, match="knows 64 features"):
        list(model.caption([pictures[0][:, :5]]))
    for asked in (lambda: model.translate(["x"]), lambda: model.score([("x", "y")])):
        with pytest.raises(ConfigError, match="captions pictures; it cannot read text"):
            asked()
    with pytest.raises(ConfigError, match="translates text"):
        nmtgrid.load(home / "bilstm", device="cpu").caption(pictures)


def test_models_and_sources_that_do_not_go_together(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures, text, top = home / "pictures", home / "text", home / "caption-top-down"
    new = tmp_path / "new"
    for words, arguments in {
        "captions pictures; it cannot read text": ("decode", top, "--data", text),
        "it cannot read text": ("decode", top, pictures / "raw/test.en"),
        "translates text; it cannot read pictures": ("decode", home / "bilstm", "--data", pictures),
        "cannot read pictures": ("decode", home / "bilstm", tmp_path / "f.safetensors"),
        "`--long-lines` is about text": (
            "decode", top, "--data", pictures, "--long-lines", "cut",
        ),
        "`--replace-unknown` is about text": (
            "decode", top, "--data", pictures, "--replace-unknown",
        ),
        "are pictures, but `bilstm` translates text": (
            "train", pictures, "--arch", "bilstm", "--out", new,
        ),
        "`caption-lstm` captions pictures, but": (
            "train", text, "--arch", "caption-lstm", "--out", new,
        ),
        "but the sources of": ("train", text, "--arch", "caption-lstm", "--dry-run"),
        "cannot go online": ("online-eval", top, "--data", pictures, "--k", "3", "--out", new),
        "one exit": ("adaptive-tune", top, "--data", pictures, "--out", new),
        "cannot be exported": ("export", top, "--to", "ctranslate2", "--out", new),
    }.items():  # fmt: skip
        assert words in refused(capsys, *arguments)
    assert not new.exists()


def test_features_that_the_model_does_not_know(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, top = tmp_path / "f.safetensors", home / "caption-top-down"
    save_tensors(path, {"a": torch.ones(2, 5)})
    assert "has 5 features of a region, but the model knows 64" in refused(
        capsys, "decode", top, path
    )
    save_tensors(path, {"a": torch.ones(2, SIZE), "b": torch.full((1, SIZE), torch.nan)})
    out = tmp_path / "out"
    assert "the picture `b` are not all finite" in refused(
        capsys, "decode", top, path, "--out", out
    )
    assert not out.exists()
    assert "is missing" in refused(capsys, "decode", top, tmp_path / "none.safetensors")


def test_captions_and_features(tmp_path: Path, told: list[str]) -> None:
    sources = files(tmp_path)
    data, json_file = tmp_path / "data", tmp_path / "r.json"
    given = ("preprocess", "--captions", sources.captions, "--features", sources.features[0])
    assert run(*given, "--out", data, "--json", json_file, "--target-lang", "eng") == 0
    assert report(json_file)["train"]["pictures"] == 2
    assert lines(data, "text/train.eng") == ["a cat", "one cat sits", "a dog runs"]
    assert any("1 pictures of Karpathy's split `restval` were left out" in line for line in told)
    assert any("1 pictures have features but no captions" in line for line in told)
    assert run(*given, "--out", data, "--cased", "--restval", "--overwrite") == 0
    assert lines(data, "text/train.en")[0] == "A cat"
    assert lines(data, "pictures/train.txt")[-1] == "a11"


def test_cocos_own_files_with_a_number_and_a_file(tmp_path: Path, told: list[str]) -> None:
    write_json(tmp_path / "c.json", coco({n: [f"picture {n}"] for n in range(6)}))
    write_json(tmp_path / "t.json", coco({7: ["seven"], 8: []}))
    for name, numbers in (("one", range(4)), ("two", range(4, 9))):
        save_tensors(tmp_path / name, {str(n): torch.ones(1, 3) for n in numbers})
    given = ("preprocess", "--captions", tmp_path / "c.json", "--out", tmp_path / "data")
    both = ("--features", tmp_path / "one", "--features", tmp_path / "two")
    assert run(*given, *both, "--valid", "2", "--test", tmp_path / "t.json") == 0
    assert lines(tmp_path / "data", "pictures/valid.txt") == ["1", "4"]
    assert any("1 pictures of `test` have no caption" in line for line in told)
    assert run(*given, *both, "--overwrite") == 0
    assert any("no validation pictures" in line for line in told)
    tests = ("--valid", "1", "--test", f"later={tmp_path / 't.json'}", "--test", "1", "--overwrite")
    assert run(*given, *both, *tests) == 0
    names = ("train", "valid", "later", "test")
    found = [lines(tmp_path / "data", f"pictures/{name}.txt") for name in names]
    assert list(map(len, found)) == [4, 1, 1, 1] and found[2] == ["7"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--captions", "c.json"], ["`--features` is missing"]),
        (["--features", "f"], ["`--captions` is missing"]),
        (["--restval"], ["`--captions` is missing", "`--features` is missing"]),
        (
            ["--captions", "c", "--features", "f", "--train", "t", "--xml", "--toy", "3"],
            ["`--train` is about text", "`--xml` is about text", "`--toy` is about text"],
        ),
        (
            ["--captions", "c", "--features", "f", "--valid-every", "3", "--source-lang", "de"],
            ["`--valid-every` is about text", "`--source-lang` is about text"],
        ),
        (
            ["--captions", "c", "--features", "f", "--toy-difficulty", "2", "--toy-seed", "3"],
            ["`--toy-difficulty` is about text", "`--toy-seed` belongs to `--toy-pictures N`"],
        ),
        (
            ["--captions", "c", "--features", "f", "--valid", "1", "--valid", "2"],
            ["`--valid` is given 2 times"],
        ),
        (
            ["--captions", "c", "--features", "f", "--test", "a=1", "--test", "a=2"],
            ["`--test a=` is given 2 times"],
        ),
        (
            ["--captions", "c", "--features", "f", "--max-ratio", "3", "--workers", "2"],
            ["`--max-ratio` is about text", "`--workers` is about text"],
        ),
        (
            ["--toy-pictures", "5", "--captions", "c", "--test", "t", "--restval"],
            ["leave `--captions` out", "leave `--test` out", "leave `--restval` out"],
        ),
        (["--toy-pictures", "0"], ["--toy-pictures"]),
        (["--captions", "none.json", "--features", "f"], ["none.json is missing"]),
    ],
)
def test_options_that_do_not_go_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    message = refused(capsys, "preprocess", "--out", tmp_path / "data", *arguments)
    assert all(word in message for word in words)
    assert not (tmp_path / "data").exists()
