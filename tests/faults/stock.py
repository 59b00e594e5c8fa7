"""Valid datasets, models and results, created once; the cases work on copies of them."""

import contextlib
import io
import random
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from matplotlib.figure import Figure

from nmtgrid.cli.app import main
from tests.unit.convert.fairseq_files import TYPES, content, write_checkpoint, write_dictionaries
from tests.unit.convert.fairseq_reference_recurrent import LSTM
from tests.unit.convert.marian_folders import bare_folder

_SIZES = {"train": 12, "valid": 3, "test": 4}
_PLAIN = ["--arch", "transformer", *(f"--set=model.{text}" for text in (
    "size=8", "heads=2", "feed_forward_size=8", "encoder_depth=1", "decoder_depth=1"))]  # fmt: skip
SMALL = ["--arch", "transformer", *(f"--set=model.{text}" for text in (
    "size=8", "heads=2", "feed_forward_size=8", "encoder_depth=1", "decoder_depth=2",
    "exits=separate", "encoder=unidirectional"))]  # fmt: skip
TRAIN = [
    "train", "data", *SMALL, "--max-updates", "5", "--average", "2",
    *(f"--set={text}" for text in (
        "training.validate_updates=2", "training.save_minutes=1e-9", "training.log_updates=1",
        "training.precision=fp32", "batches.max_tokens=30")),
]  # fmt: skip
SHORT = ["--set", "max_length_a=0", "--set", "max_length_b=6", "--device", "cpu"]
PREPROCESS = [
    "preprocess", "--source-lang", "xx", "--target-lang", "yy", "--train", "text/train",
    "--valid", "text/valid", "--test", "text/test",
]  # fmt: skip
ONLINE = ["online-eval", "model", "--data", "data", "--k", "1,3"]


def make(folder: Path) -> None:
    """Fill `folder`: text, bare (no units), data, model, broken (a run half done), and results.

    And `plain`, a model that can be exported, a checkpoint of fairseq's in `fairseq`, and
    a model of transformers' in `marian`.
    """
    _text(folder / "text")
    done(folder, [*PREPROCESS, "--out", "bare"])
    shutil.copytree(folder / "bare", folder / "data")
    done(folder, ["bpe", "learn", "data", "--merges", "8"])
    done(folder, [*TRAIN, "--out", "model"])
    done(folder, [*TRAIN, "--max-updates", "2", "--out", "broken"])
    done(folder, ["train", "data", *_PLAIN, "--max-updates", "1", "--out", "plain"])
    bare_folder(folder / "marian")
    (folder / "fairseq").mkdir()
    write_dictionaries(folder / "fairseq")
    reference = LSTM(TYPES)
    write_checkpoint(folder / "fairseq" / "c.pt", content(reference.options, reference.state))
    done(folder, ["decode", "model", "text/test.xx", "--exit", "1", "--traces", "traces.jsonl",
                  "--out", "translated.yy", *SHORT])  # fmt: skip
    done(folder, [*ONLINE, "--out", "online", "--device", "cpu"])
    done(folder, ["adaptive-tune", "model", "--data", "data", "--samples", "20", "--finalists",
                  "1", "--json", "tuned.json", "--name", "fast", "--device", "cpu"])  # fmt: skip
    done(folder, ["analyze", "report", "--curves", "model", "--out", "page.html"])


def done(folder: Path, words: list[str]) -> None:
    """Run a command in this process, so that processes forked from it have all modules loaded.

    Raises RuntimeError if it fails.
    """
    raw = io.BytesIO()
    said = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(said),
    ):
        code = main(words)
    if code:
        raise RuntimeError(f"{' '.join(words)}: {code}\n{raw.getvalue().decode()}")


def empty_pictures() -> None:
    """From now on, write figures without drawing anything: their content is not compared."""
    setattr(Figure, "draw", lambda *_: None)  # noqa: B010


def copy(stock: Path, folder: Path, names: Iterable[str]) -> Path:
    """Create `folder` with copies of the entries `names` of the stock."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in names:
        if (stock / name).is_dir():
            shutil.copytree(stock / name, folder / name)
        else:
            shutil.copy(stock / name, folder / name)
    return folder


def lay_out(stock: Path, folder: Path, begins: Mapping[str, str]) -> Path:
    """Create `folder` with copies of entries of the stock (values) under new names (keys)."""
    copy(stock, folder, set(begins.values()))
    for name, stored in begins.items():
        if name != stored:
            (folder / stored).rename(folder / name)
    return folder


def _text(folder: Path) -> None:
    """Write parallel text of made-up words."""
    folder.mkdir()
    draw = random.Random(7)
    for name, count in _SIZES.items():
        pairs = [[draw.choice("abcdefgh") * draw.randint(1, 3) for _ in range(draw.randint(2, 5))]
                 for _ in range(count)]  # fmt: skip
        for language, change in (("xx", str), ("yy", str.upper)):
            lines = "".join(" ".join(map(change, words)) + "\n" for words in pairs)
            (folder / f"{name}.{language}").write_text(lines, encoding="utf-8")
