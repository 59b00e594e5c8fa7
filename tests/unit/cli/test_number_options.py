"""Numbers on the command line: ASCII digits, not too many, read alike by every option."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nmtgrid.base.spans import real_number, whole_number

BAD_WHOLE = ["٣", "1_000", "1.5", "", "0x10", "9" * 5000, "inf", "1e3", "²"]
BAD_REAL = ["٣", "1_0.5", "", "1,5", "9" * 5000, "1e99999", "five", "0x1p3"]


@pytest.mark.parametrize(("text", "value"), [("7", 7), (" +7 ", 7), ("-12", -12), ("0" * 18, 0)])
def test_whole_numbers(text: str, value: int) -> None:
    assert whole_number(text) == value


@pytest.mark.parametrize(("text", "value"), [("1", 1.0), (".5", 0.5), ("1e-3", 1e-3), ("-2.", -2)])
def test_real_numbers(text: str, value: float) -> None:
    assert real_number(text) == value


@pytest.mark.parametrize("text", BAD_WHOLE)
def test_what_is_no_whole_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"whole number|digits") as caught:
        whole_number(text)
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize("text", BAD_REAL)
def test_what_is_no_real_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"a number|digits"):
        real_number(text)


COMMANDS = [
    ("preprocess --toy {} --out OUT", "`--toy`"),
    ("preprocess --toy 10 --workers {} --out OUT", "`--workers`"),
    ("preprocess --toy 10 --max-ratio {} --out OUT", "`--max-ratio`"),
    ("bpe learn DATA --merges {}", "`--merges`"),
    ("train DATA --arch pervasive --out OUT --max-updates {}", "`--max-updates`"),
    ("train DATA --arch pervasive --out OUT --seeds {}", "`--seeds`"),
    ("train DATA --arch pervasive --out OUT --set training.max_updates={}", "max_updates"),
    ("train DATA --arch pervasive --dry-run --set batches.max_length={}", "max_length"),
    ("decode MODEL --beam {}", "`--beam`"),
    ("decode MODEL --length-penalty {}", "`--length-penalty`"),
    ("online-eval MODEL --data DATA --k {}", "`--k`"),
    ("online-eval MODEL --data DATA --k 1 --line {}", "`--line`"),
    ("adaptive-tune MODEL --data DATA --samples {} --out OUT", "`--samples`"),
]


@pytest.mark.parametrize(("command", "option"), COMMANDS)
@pytest.mark.parametrize("number", ["٣", "1_000", "9" * 5000])
def test_all_commands_refuse_them(
    refused: Callable[..., str], tmp_path: Path, toy_dataset: Path, command: str, option: str,
    number: str,
) -> None:  # fmt: skip
    paths = {"OUT": tmp_path / "out", "DATA": toy_dataset, "MODEL": tmp_path}
    words = [paths.get(word, word.format(number)) for word in command.split()]
    message = refused(*words)
    assert option in message and len(message) < 1000
    assert not (tmp_path / "out").exists()


def test_numbers_out_of_range_are_named(refused: Callable[..., str], tmp_path: Path) -> None:
    message = refused("preprocess", "--toy", 0, "--toy-seed", -1, "--out", tmp_path / "data")
    assert "`--toy` must be at least 1, but is 0." in message
    assert "`--toy-seed` must be at least 0, but is -1." in message


@pytest.mark.parametrize("number", ["9" * 5000, "٣", "1_0"])
def test_exits_have_short_numbers(
    refused: Callable[..., str], tiny_model: Path, number: str
) -> None:
    message = refused("decode", tiny_model, "--exit", number)
    assert "exit" in message and len(message) < 500


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_limit_that_leaves_no_pair(
    refused: Callable[..., str], toy_dataset: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    message = refused(
        "train", toy_dataset, "--arch", "pervasive", "--preset", "toy", "--out", tmp_path / "m",
        "--set", "batches.max_length=1", *more,
    )  # fmt: skip
    assert "longer than 1 tokens" in message and "Set a larger `batches.max_length`" in message
