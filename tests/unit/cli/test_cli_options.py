"""Commands with a dataclass of arguments, and the rules on which options go together."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
import typer

from nmtgrid.base.errors import ConfigError
from nmtgrid.cli import bpe, preprocess
from nmtgrid.cli.decode import arguments as decode
from nmtgrid.cli.options import (
    Alone,
    CommandArguments,
    Excludes,
    Needs,
    Requires,
    Rule,
    Weights,
    argument,
    check_rules,
    explicit_options,
    flag,
    option,
    option_names,
    takes,
)
from nmtgrid.cli.train import arguments as train


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(CommandArguments):
    model: str = argument("A model.", "MODEL|-")
    top_k: int | None = option("How many.", "K")
    names: list[str] | None = option("Names.", "NAME", "--name")
    fast: bool = flag("--fast", "Hurry.")
    seed: int = option("A seed.", default=1)
    weights: Weights = "best"


def run(*words: str) -> Arguments:
    """Return the arguments parsed from the command line `words`."""
    results: list[Arguments] = []

    @takes(Arguments, {})
    def command(arguments: Arguments) -> None:
        """Do nothing."""
        results.append(arguments)

    assert command.__doc__ == "Do nothing."
    names = [field.name for field in dataclasses.fields(Arguments)]
    assert list(inspect.signature(command).parameters) == names
    app = typer.Typer()
    app.command()(command)
    typer.main.get_command(app).main(list(words), standalone_mode=False)
    return results[0]


def test_the_command_line_makes_one_record() -> None:
    assert explicit_options(run("m")) == ["model"]
    words = ("m", "--top-k", "0", "--name", "a", "--name", "b", "--fast", "--weights", "last")
    arguments = run(*words, "--seed", "1")
    expected = Arguments(model="m", top_k=0, names=["a", "b"], fast=True, weights="last")
    assert arguments == expected
    assert explicit_options(arguments) == ["model", "top_k", "names", "fast", "weights"]


def test_names_are_those_of_the_command_line() -> None:
    assert option_names(Arguments) == {
        "model": "MODEL", "top_k": "`--top-k`", "names": "`--name`", "fast": "`--fast`",
        "seed": "`--seed`", "weights": "`--weights`",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "fits", "message"),
    [
        (Requires("top_k", "fast seed"), ["--seed", "2"], "`--top-k` belongs to `--fast`: add it."),
        (Requires("top_k", "fast", unless="names"), ["--name", "a"], "`--top-k` belongs"),
        (Needs("names", "weights"), ["--name", "a"], "`--name` is missing."),
        (Needs("names seed", "fast"), ["--fast"], "`--name` is missing.\n`--seed` is"),
        (Excludes("model", message="no {option}", unless="fast"), ["--fast"], "no MODEL"),
    ],
)
def test_rules(rule: Rule, fits: list[str], message: str) -> None:
    check_rules(run("m", "--top-k", "3", *fits), [rule])
    with pytest.raises(ConfigError) as caught:
        check_rules(run("m", "--top-k", "3"), [rule])
    assert caught.value.problem.startswith(message)


def test_all_faults_are_in_one_message() -> None:
    rules = [
        Excludes("fast names", "seed"),
        Alone("seed", "model", "{other} has no use for {options}."),
        Requires("seed", "weights", "`--seed` belongs to `--weights`: add it.", advice="Add it."),
        Requires("seed", "weights"),
    ]
    with pytest.raises(ConfigError) as caught:
        check_rules(run("m", "--fast", "--name", "a", "--seed", "2"), rules, ["Too late."])
    assert caught.value.faults == [
        "`--fast` and `--seed` contradict each other; give one of them.",
        "`--name` and `--seed` contradict each other; give one of them.",
        "`--seed` has no use for `--name`, `--fast`.",
        "`--seed` belongs to `--weights`: add it.",
        "Too late.",
    ]
    assert caught.value.advice == "Leave out `--name`, `--fast`. Add it."


@pytest.mark.parametrize(
    ("kind", "rules"),
    [
        (bpe.LearnArguments, bpe.RULES),
        (preprocess.PreprocessArguments, [*preprocess.TEXT_RULES, *preprocess.PICTURE_RULES]),
        (train.TrainArguments, train.RULES),
        (decode.DecodeArguments, [*decode.RULES, *decode.STREAM_RULES, *decode.PICTURE_RULES]),
    ],
)
def test_rules_name_fields(kind: type[CommandArguments], rules: list[Rule]) -> None:
    for rule in rules:
        words = f"{rule.options} {rule.others} {rule.unless}".split()
        assert set(words) <= set(option_names(kind))


def test_panels_order_options_behind_arguments() -> None:
    @takes(Arguments, {"Speed": "fast", "Choice": "weights top_k"}, "nmtgrid x")
    def command(arguments: Arguments) -> None:
        """Do nothing."""

    hints = command.__annotations__
    panels = {name: hints[name].__metadata__[0].rich_help_panel for name in hints}
    assert panels == {
        "model": None, "fast": "Speed", "weights": "Choice", "top_k": "Choice", "names": "General",
        "seed": "General",
    }  # fmt: skip
    order = [*inspect.signature(command).parameters]
    assert order == ["model", "fast", "weights", "top_k", "names", "seed"]
    with pytest.raises(ValueError, match="Arguments has no quick"):
        takes(Arguments, {"Speed": "fast quick"})
