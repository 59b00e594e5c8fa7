"""The known preparation of IWSLT'14 German-English, reproduced exactly (needs the real files)."""

import lzma
import os
from pathlib import Path
from typing import Any

import pytest

from nmtgrid.data.build import TextPlan, preprocess_files
from nmtgrid.data.dataset import Dataset
from nmtgrid.data.subwords import SubwordPlan, learn_subwords

pytestmark = pytest.mark.real

RAW = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")


def _lines(path: Path) -> list[str]:
    content = path.read_bytes()
    if path.suffix == ".xz":
        content = lzma.decompress(content)
    return content.decode("utf-8").removesuffix("\n").split("\n")


def test_the_raw_xml_gives_the_6750_test_lines(data_folder: Path, tmp_path: Path) -> None:
    folder = data_folder / "iwslt14.de-en"
    prefixes = [str(folder / "raw" / f"IWSLT14.{name}.de-en") for name in RAW]
    plan = TextPlan("de", "en", lowercase=True)
    preprocess_files(plan, {"train": prefixes, "test": prefixes}, tmp_path / "data", xml=True)
    for language in ("de", "en"):
        ours = _lines(tmp_path / f"data/text/test.{language}")
        assert len(ours) == 6750
        assert ours == _lines(folder / f"test.{language}.xz")


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The tokenised text with the recipe's codes and dictionaries."""
    folder = Path(os.environ["NMTGRID_DATA"]) / "iwslt14.de-en"
    out = tmp_path_factory.mktemp("iwslt") / "data"
    prefixes = {name: [str(folder / name)] for name in ("train", "valid", "test")}
    preprocess_files(TextPlan("de", "en", tokenize="none"), prefixes, out)
    plan = SubwordPlan(
        codes=(str(folder / "bpe10k.codes.xz"),),
        source_vocabulary=str(folder / "dict.de.txt.xz"),
        target_vocabulary=str(folder / "dict.en.txt.xz"),
    )
    return out, learn_subwords(out, plan)


def test_bpe_lengths_are_those_of_table_3_2(learned: tuple[Path, dict[str, Any]]) -> None:
    expected = {
        "train": ((7, 19, 56), (7, 19, 54)),
        "valid": ((6, 19, 59), (7, 19, 56)),
        "test": ((6, 19, 54), (6, 18, 52)),
    }
    for name, sides in expected.items():
        split = learned[1]["splits"][name]
        for side, percentiles in zip(("source", "target"), sides, strict=True):
            lengths = split[f"{side}_lengths"]
            assert tuple(lengths[key] for key in ("p5", "p50", "p95")) == percentiles
    dataset = Dataset.open(learned[0])
    sizes = {name: len(dataset.split(name)) for name in dataset.names}
    assert sizes == {"train": 45_623, "valid": 7_283, "test": 6_750}


def test_vocabularies_have_the_published_sizes(learned: tuple[Path, dict[str, Any]]) -> None:
    facts = learned[1]
    assert (facts["source_vocab_size"], facts["target_vocab_size"]) == (8_848, 6_632)


def test_word_lists_of_iwslt15(data_folder: Path, tmp_path: Path) -> None:
    folder = data_folder / "iwslt15.en-vi"
    prefixes = {"train": [str(folder / "train-head500")], "test": [str(folder / "test")]}
    plan = TextPlan("en", "vi", tokenize="none")
    manifest = preprocess_files(plan, prefixes, tmp_path / "data")
    # The corpus has one line that is empty on one side.
    assert manifest["splits"]["train"]["dropped"]["empty"] == 1
    assert manifest["splits"]["test"]["pairs_kept"] == 1268
    words = SubwordPlan(
        words=True,
        source_vocabulary=str(folder / "vocab.en.xz"),
        target_vocabulary=str(folder / "vocab.vi.xz"),
    )
    facts = learn_subwords(tmp_path / "data", words)
    # 17,191 and 7,709 lines, three of which are special symbols; ours has `<pad>` as well.
    assert (facts["source_vocab_size"], facts["target_vocab_size"]) == (17_192, 7_710)
