"""Help of every command: panels, widths, examples; and hints for options of other toolkits."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from nmtgrid.base.other_names import OPTIONS, SETTINGS
from nmtgrid.cli import app
from nmtgrid.cli.objectives import objectives
from nmtgrid.cli.options import GENERAL
from nmtgrid.models import zoo
from nmtgrid.search.api import SearchPlan
from nmtgrid.training.settings import BatchSettings, TrainingSettings

SHARED = {"json", "device", "precision", "weights", "workers", "batch_tokens", "help"}
"""Options that may be in the last panel, which also has options that no panel names."""


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command and subcommand with its words."""
    for name, each in getattr(command, "commands", {}).items():
        yield from walk(each, (*path, name))
    if path and not hasattr(command, "commands"):
        yield path, command


ROOT: Any = typer.main.get_command(app.assemble(list(app.COMMANDS)))
ALL = dict(walk(ROOT))


def parse(words: list[str]) -> Any:
    """Parse a command line without running it."""
    command, rest = ROOT, app.general_options(words)[0]
    while hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    with command.make_context("nmtgrid", rest) as context:
        return context.params


def test_help_of_the_program_has_the_general_options() -> None:
    options = {name for option in ROOT.params for name in option.opts}
    assert {"--version", "--import", "--quiet", "--debug"} <= options


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_has_panels_and_examples(path: tuple[str, ...]) -> None:
    command = ALL[path]
    with command.make_context("nmtgrid", [], resilient_parsing=True) as context:
        options = [each for each in command.get_params(context) if each.opts[0][0] == "-"]
    panels = {option.rich_help_panel for option in options}
    assert len(panels) <= 8 and None not in panels and options[-1].rich_help_panel == GENERAL
    assert {each.name for each in options if each.rich_help_panel == GENERAL} <= SHARED
    examples = re.findall(r"^\* `(.*)`$", command.epilog, re.MULTILINE)
    assert 1 <= len(examples) <= 3
    for example in examples:
        words = shlex.split(re.split(" [<>] ", example.rpartition(" | ")[2])[0])
        assert tuple(words[: len(path) + 1]) == ("nmtgrid", *path) and parse(words[1:])


@pytest.mark.parametrize("width", [80, 100])
def test_help_fits_the_screen(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", width)
    for path, command in ALL.items():
        assert app.main([*path, "--help"]) == 0
        shown = capsys.readouterr().out
        assert max(map(len, shown.splitlines())) <= width and "…" not in shown
        assert not re.search(r"<[\w|-]+\s", shown), f"choices are broken: {path}"
        for option in command.params:
            # Names are never broken across lines.
            assert all(name in shown for name in option.opts if name.startswith("--")), path


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("train --lr 3", "`--set training.learning_rate=...`"),
        ("train --batch-size=3", "`--set batches.max_tokens=...`"),
        ("train --bsz 3", "`--set batches.max_tokens=...`"),
        ("train --dropout 0.1", "`--set model.dropout=...`"),
        ("train --layers 3", "`--set model.depth=...` or `--set model.encoder_depth=...` or"),
        ("train --hidden_size 3", "`--set model.size=...`"),
        ("train --weight-decay 3", "`--set training.weight_decay=...`"),
        ("train --epochs 3", "`--max-epochs`"),
        ("train --gpu 0", "`--device`"),
        ("train --user-dir x", "`--import FILE`"),
        ("decode m --beam-size 3", "`--beam`"),
        ("decode m --lenpen 3", "`--length-penalty`"),
        ("decode m --gpu", "`--device`"),
        ("decode m --max-len-b 3", "`--set max_length_b=X`"),
        ("decode m --remove-bpe", "not needed"),
        ("online-eval m --waitk 3", "`--k`"),
        ("preprocess --trainpref x", "`--train`"),
        ("bpe learn d --num-operations 9", "`--merges`"),
    ],
)
def test_names_of_other_toolkits_lead_to_ours(
    line: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main(line.split()) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "error: No such option: --" in message and "Here it is" in message and hint in message
    assert "Possible options" not in message
    command = " ".join(line.split()[: 2 if line.startswith("bpe") else 1])
    assert f"`nmtgrid {command} --help`" in message


def test_a_spelling_mistake_is_told_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["decode", "m", "--nbset"]) == 2
    assert "--nbest" in (message := capsys.readouterr().err) and "Here it is" not in message


@pytest.mark.parametrize(
    ("arch", "change", "hint"),
    [
        ("pervasive", "layers=3", "Did you mean `model.depth`?"),
        ("transformer", "layers=3", "Did you mean `model.encoder_depth` or `model.decoder_depth`?"),
        ("transformer", "model.num_heads=3", "Did you mean `model.heads`?"),
        ("pervasive", "batch_size=3", "Did you mean `batches.max_tokens`?"),
        ("pervasive", "training.epochs=3", "Did you mean `training.max_epochs`?"),
    ],
)
def test_settings_are_found_by_other_names(
    arch: str, change: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main(["train", "DATA", "--out", "no", "--arch", arch, "--set", change]) == 2
    assert hint in " ".join(capsys.readouterr().err.split())


def test_the_tables_name_what_there_is() -> None:
    """All recommended options and settings exist, and none of ours is treated as another's."""
    groups: dict[str, set[str]] = {
        "training": {*TrainingSettings.__dataclass_fields__},
        "batches": {*BatchSettings.__dataclass_fields__},
        "model": {
            name
            for arch in zoo.architectures()
            for name in zoo.architectures().get(arch).config.__dataclass_fields__
        },
        "objective": {*objectives.get("likelihood").settings.__dataclass_fields__},
    }
    settings = {f"{group}.{name}" for group, names in groups.items() for name in names}
    assert {each for ours in SETTINGS.values() for each in ours} <= settings
    last = {name.rpartition(".")[2].replace("_", "-") for name in settings}
    # A word may be a setting of one architecture, and another toolkit's name for one of a second.
    assert not set(SETTINGS) & last
    for command, table in OPTIONS.items():
        own = {opt for path, each in ALL.items() if path[0] == command
               for param in each.params for opt in param.opts}  # fmt: skip
        arguments = {param.metavar.partition("|")[0] for path, each in ALL.items()
                     if path[0] == command for param in each.params
                     if param.opts[0][0] != "-"}  # fmt: skip
        assert not {f"--{name}" for name in table} & own
        for ours in {each for names in table.values() for each in names}:
            if match := re.fullmatch(r"`(--[\w-]+).*`", ours):
                assert match[1] in {*own, "--import"}, ours
            if match := re.fullmatch(r"`--set (\w+)=\w`", ours):
                assert match[1] in SearchPlan.__dataclass_fields__
            if match := re.fullmatch(r"the argument (\w+)", ours):
                assert match[1] in arguments, (command, ours)
            if match := re.match(r"`bpe learn DATA (--[\w-]+)", ours):
                assert match[1] in {opt for each in ALL["bpe", "learn"].params for opt in each.opts}
