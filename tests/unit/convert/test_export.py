"""Export to CTranslate2: the same tokens as ours, and plain words for what cannot be exported."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.cli.app import main
from nmtgrid.convert import to_ctranslate2
from nmtgrid.convert.to_ctranslate2 import NEVER
from nmtgrid.data.batches import collate
from nmtgrid.data.dataset import Dataset
from nmtgrid.models import zoo
from nmtgrid.models.directory import LoadedModel, load_model, save_model
from nmtgrid.models.transformer.model import Transformer
from nmtgrid.search import engine
from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.text.pipeline import Pipeline
from nmtgrid.text.vocabulary import BEGIN, PAD
from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings
from tests.unit.helpers.toy_model import TINY_GRID
from tests.unit.helpers.train_command import toy_data

SMALL: dict[str, Any] = {
    "encoder_depth": 2, "decoder_depth": 3, "size": 16, "feed_forward_size": 24, "heads": 4,
}  # fmt: skip
PLAIN = LikelihoodSettings(label_smoothing=0.0)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "post-norm": {"norm": "post", "output_bias": True},
    "pre-norm": {"norm": "pre", "tie": "none", "output_bias": True},
    "shared": {"tie": "all", "output_bias": True},
    "learned": {
        "positions": "learned", "max_positions": 6, "scale_embeddings": False, "output_bias": True,
    },
    "transparent": {"transparent": True},
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_data(tmp_path_factory.mktemp("export") / "data", "--joint-vocabulary").parent


def make(home: Path, kind: str = "plain") -> Path:
    """Return a model that was trained for a moment, so that its translations end, in 4 to 14 words.

    It is made once for all tests.
    """
    folder = home / kind
    if folder.exists():
        return folder
    data = Dataset.open(home / "data")
    pipeline = data.pipeline
    torch.manual_seed(3)
    is_grid = kind == "pervasive"
    model = zoo.build(
        "pervasive" if is_grid else "transformer",
        overrides=TINY_GRID if is_grid else SMALL | KINDS[kind],
        source_vocab_size=len(pipeline.source_vocabulary),
        target_vocab_size=len(pipeline.target_vocabulary),
    )  # fmt: skip
    train = data.split("train")
    targets = [train.target(i)[: 4 + i % 11] for i in range(len(train))]
    batch = collate([train.source(i)[:12] for i in range(len(train))], targets)
    optimiser, objective = torch.optim.Adam(model.parameters(), 0.01), Likelihood(PLAIN)
    for _ in range(100):
        optimiser.zero_grad()
        parts = objective.loss(model, batch)
        (parts.total / parts.tokens).backward()
        optimiser.step()
    save_model(folder, model, pipeline, {"search": {"beam": 5}})
    return folder


def export(model: Path, out: Path, *options: str) -> int:
    return main(["export", str(model), "--to", "ctranslate2", "--out", str(out), *options])


def ours(loaded: LoadedModel, sources: list[list[str]], plan: SearchPlan) -> list[Hypothesis]:
    encode = loaded.pipeline.source_vocabulary.encode
    batch = collate([encode(units) for units in sources], [[]] * len(sources))
    results = engine.search([loaded.model], batch.source, batch.source_lengths, plan)
    return [hypotheses[0] for hypotheses in results]


def theirs(folder: Path, sources: list[list[str]], **options: Any) -> Any:
    ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    translator = ctranslate2.Translator(str(folder), intra_threads=1)
    return translator.translate_batch(sources, return_end_token=True, return_scores=True, **options)


@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.parametrize("kind", ["post-norm", "pre-norm", "shared", "learned"])
def test_exports_write_the_same(home: Path, tmp_path: Path, kind: str, beam: int) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    folder = make(home, kind)
    assert export(folder, tmp_path / "out") == 0
    loaded = load_model(folder)
    lines = Dataset.open(home / "data").split("test").raw_source()[:20]
    pipeline = Pipeline.load(tmp_path / "out")
    sources = [pipeline.source.tokens(line) for line in lines]
    longest = 2 * max(map(len, sources))
    # Drawn weights end where they like: every translation gets the same limit on both sides.
    plan = SearchPlan(
        beam=beam, length_penalty=0.0, max_length_a=longest, max_length_b=0.0, renormalize=True
    )
    expected = ours(loaded, sources, plan)
    limits = {"min_decoding_length": 0, "max_decoding_length": longest + 1}
    translations = theirs(tmp_path / "out", sources, beam_size=beam, length_penalty=0.0, **limits)
    ended = 0
    for mine, its in zip(expected, translations, strict=True):
        units = its.hypotheses[0]
        if units[-1] != "</s>" or len(mine.tokens) == longest:
            continue  # cut at the limit, where ours writes an end symbol
        ended += 1
        assert units[:-1] == pipeline.target_vocabulary.decode(mine.tokens)
        assert its.scores[0] == pytest.approx(mine.log_probability, abs=1e-4)
    assert ended >= 10


def test_scores_divide_by_the_length_with_the_end_symbol(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    folder = make(home)
    assert export(folder, tmp_path / "out") == 0
    loaded = load_model(folder)
    lines = Dataset.open(home / "data").split("test").raw_source()[:8]
    sources = [loaded.pipeline.source.tokens(line) for line in lines]
    translations = theirs(tmp_path / "out", sources, beam_size=1, length_penalty=0.7)
    compared = 0
    plan = SearchPlan(length_penalty=0.7)
    for mine, its in zip(ours(loaded, sources, plan), translations, strict=True):
        if its.hypotheses[0][-1] == "</s>" and len(mine.tokens) + 1 == len(its.hypotheses[0]):
            assert its.scores[0] == pytest.approx(mine.score, abs=0.01)
            compared += 1
    assert compared >= 5


@pytest.mark.parametrize("quantization", ["int8", "float16"])
def test_quantised_models_load(home: Path, tmp_path: Path, quantization: str) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    folder = make(home)
    report = tmp_path / "report.json"
    options = ("--quantization", quantization, "--json", str(report))
    assert export(folder, tmp_path / "out", *options) == 0
    values = json.loads(report.read_text(encoding="utf-8"))
    assert values["quantization"] == quantization and values["to"] == "ctranslate2"
    names = {"model.bin", "config.json", "README.md", "bpe.codes", "text.json"}
    assert names <= set(values["files"])
    assert values["bytes"] == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert theirs(tmp_path / "out", [["a", "b"]])[0].hypotheses


def test_symbols_that_are_never_written_are_low() -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    from nmtgrid.convert.to_ctranslate2 import _package, _specification

    overrides = {**SMALL, "output_bias": True}
    model = zoo.build("transformer", overrides=overrides, source_vocab_size=9, target_vocab_size=8)
    assert isinstance(model, Transformer)
    spec = _specification(_package(), model)
    low = [index for index, value in enumerate(spec.decoder.projection.bias) if value == NEVER]
    assert low == [PAD, BEGIN]
    assert model.output_bias is not None and not model.output_bias.any()


@pytest.mark.parametrize(
    ("kind", "words"),
    [("pervasive", "`pervasive` cannot"), ("transparent", "Transparent attention cannot")],
)
def test_what_cannot_be_exported_is_told(
    home: Path, tmp_path: Path, kind: str, words: str, refused: Callable[..., str]
) -> None:
    folder, out = make(home, kind), tmp_path / "out"
    message = refused("export", folder, "--to", "ctranslate2", "--out", out)
    assert words in message and "`transformer` without `model.transparent`" in message
    assert not out.exists()
    assert "ctranslate2" in refused("export", folder, "--to", "onnx", "--out", out)


def test_the_missing_package_is_named(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(home)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert export(folder, tmp_path / "out") == 2
    assert "pip install ctranslate2" in capsys.readouterr().err


def test_taken_folders_stay(home: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    folder, out = make(home), tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("kept", encoding="utf-8")
    assert "exists already" in refused("export", folder, "--to", "ctranslate2", "--out", out)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    assert not list(tmp_path.glob(".out*"))


def test_the_readme_translates_any_line(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own code, on words that look like symbols and on a line that is too long."""
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    folder = make(home)
    assert export(folder, tmp_path / "out") == 0
    (word, *_), *_ = (
        line.split() for line in Dataset.open(home / "data").split("test").raw_source()
    )
    lines = [f"<s> {word}", f"qqqq {word}", f"{word} " * 3000]
    code = (tmp_path / "out" / "README.md").read_text(encoding="utf-8").split("```python\n")[1]
    assert "max_decoding_length=min(2048, int(10 + 2 * (1 + max(map(len, sources)))))" in code
    assert "min_decoding_length=0," in code and "CTranslate2 has no" not in code
    code = code.split("```")[0].replace('lines = ["..."]', f"lines = {lines!r}")
    capsys.readouterr()
    names: dict[str, Any] = {}
    exec(code, names)
    first, second, _ = names["sources"]
    unknown = names["pipeline"].encode_source("qqqq")
    assert "<s>" not in first and second[: len(unknown)] == ["<unk>"] * len(unknown)
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_the_readme_has_the_search_of_the_model(home: Path, tmp_path: Path) -> None:
    """And names what CTranslate2 has no counterpart of."""
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    search = {
        "beam": 5, "length_penalty": 1.0, "max_length_a": 10.0, "max_length_b": 2.0,
        "min_length": 7, "coverage_penalty": 0.3, "length_offset": 5.0,
    }  # fmt: skip
    to_ctranslate2.export(load_model(make(home)), tmp_path / "out", search)
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "min_decoding_length=7," in text
    assert "has no `search.coverage_penalty=0.3` and no `search.length_offset=5`" in text
