"""Shared by the subcommands: option types, argument dataclasses, rules, common checks.

A command declares a frozen dataclass of its arguments, whose fields are annotated like Typer
parameters, a table of rules on which of them go together, and a function:

    @takes(DecodeArguments, {"Search": "beam nbest", GENERAL: "json"}, "nmtgrid decode MODEL FILE")
    def command(arguments: DecodeArguments) -> None:
        check_rules(arguments, RULES)

The help shows the options in panels, most used first, and ends with the examples.
"""

from __future__ import annotations

import copy
import dataclasses
import fnmatch
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import typer
import typer.core
from typer.models import ArgumentInfo, OptionInfo

from nmtgrid.base import console
from nmtgrid.base.config_file import ConfigFile, read_config
from nmtgrid.base.errors import ConfigError, DataError
from nmtgrid.base.io.atomic import is_stream, nan_to_none
from nmtgrid.base.io.text import NOTES, STANDARD, open_writer
from nmtgrid.base.spans import plural, real_number, whole_number
from nmtgrid.cli.config_options import FileOption, with_options

if TYPE_CHECKING:
    from nmtgrid.data.dataset import Dataset
    from nmtgrid.metrics.risk_control import Guarantee
    from nmtgrid.models.directory import LoadedModel
    from nmtgrid.search.translate import Translator

DeviceName = Literal["auto", "cpu", "cuda"]
PrecisionName = Literal["fp32", "bf16"]
DecodePrecisionName = Literal["fp32", "bf16", "int8", "auto"]
WeightsName = Literal["best", "last", "average"]

Device = Annotated[
    DeviceName, typer.Option("--device", help="Device; `auto`: a GPU if there is one.")
]
Precision = Annotated[
    PrecisionName, typer.Option("--precision", help="`bf16` may be faster, especially on a GPU.")
]
DecodePrecision = Annotated[
    DecodePrecisionName,
    typer.Option(
        "--precision",
        help="Precision of matrix products. `bf16` may be faster, and on a CPU also `int8`; `auto` "
        "(CPU) measures them and uses the fastest.",
    ),
]
Weights = Annotated[WeightsName, typer.Option("--weights", help="Weights of MODEL to use.")]
Ensemble = Annotated[
    list[Path] | None,
    typer.Option("--ensemble", metavar="MODEL2", help="Average with this model; may be repeated."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Change one setting; may be repeated."),
]
JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json", metavar="FILE", help="Write the results as JSON (`-`: standard output)."
    ),
]
Workers = Annotated[
    int, typer.Option("--workers", min=0, help="Number of processes; 0: one per core.")
]
Config = Annotated[
    ConfigFile | None,
    typer.Option(
        "--config",
        parser=ConfigFile,  # which is read when the command is called
        metavar="FILE",
        help="Read options from a TOML file; the command line takes precedence.",
    ),
]


_LARGEST_SEED = 2**63 - 1
_OF_ALL_COMMANDS = frozenset({"debug", "import", "quiet"})
"""Global options, which are removed from the line before a command is called."""
_CONTEXT = "context"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandArguments:
    """The arguments of a command: fields created by `argument`, `option` and `flag`.

    Options of several commands, such as `Device`, are annotated like Typer parameters instead.
    """

    not_in_file: ClassVar[frozenset[str]] = frozenset({"config"})
    """Options that a `--config` file cannot set, in addition to required ones."""
    file_settings: ClassVar[tuple[str, ...] | None] = None
    """Options that are also settings; None if a `--config` file cannot contain settings."""


REQUIRED = dataclasses.MISSING
"""The default of required arguments and options."""


def argument(help: str, metavar: str, *, default: Any = REQUIRED) -> Any:
    """Return a field for a positional argument."""
    return dataclasses.field(
        default=default, metadata={"typer": typer.Argument(help=help, metavar=metavar)}
    )


def option(
    help: str,
    metavar: str | None = None,
    *names: str,
    default: Any = None,
    min: float | None = None,
    max: float | None = None,
    show_default: bool | str = True,
) -> Any:
    """Return a field for an option, named after the field unless `names` are given."""
    info = typer.Option(
        *names, help=help, metavar=metavar, min=min, max=max, show_default=show_default
    )
    return dataclasses.field(default=default, metadata={"typer": info})


def flag(name: str, help: str) -> Any:
    """Return a field for a switch that is off by default."""
    return option(help, None, name, default=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuaranteeArguments(CommandArguments):
    """The options of a guarantee, for commands that choose the fastest setting within a bound."""

    allow_loss: float | None = option(
        "Calibrate: choose the fastest setting that loses at most this much, guaranteed with "
        "`--confidence`.",
        "PERCENT",
    )
    risk: Literal["bleu", "agreement"] | None = option(
        "With `--allow-loss`: the loss relative to offline translation or the full stack: mean "
        "loss of sentence BLEU, or share of units that differ.  [default: bleu]"
    )
    confidence: float | None = option(
        "With `--allow-loss`: confidence of the guarantee.  [default: 0.95]", "P"
    )

    @property
    def guarantee(self) -> Guarantee | None:
        """The guarantee on the loss, if one is requested."""
        if self.allow_loss is None:
            return None
        # Imported late: `--help` does not wait for numpy.
        from nmtgrid.metrics.risk_control import Guarantee

        confidence = 0.95 if self.confidence is None else self.confidence
        return Guarantee(self.risk or "bleu", self.allow_loss, confidence)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatencyUnitArguments(CommandArguments):
    """The options for counting latency, for commands that show it."""

    unit: Literal["token", "word"] | None = option(
        "Unit of latency: subword units, or words (source: see `online-eval --source`; target: "
        "tokenised).  [default: token; word with `--convention simuleval`]"
    )
    convention: Literal["thesis", "simuleval"] | None = option(
        "Length |y| in AL and AP: of the hypothesis, or of the reference as in SimulEval (words "
        "only).  [default: thesis; computation-aware: simuleval]"
    )

    @property
    def latency_convention(self) -> Literal["thesis", "simuleval"]:
        """The convention for |y|."""
        return self.convention or "thesis"

    @property
    def latency_unit(self) -> Literal["token", "word"]:
        """The unit of latency; SimulEval's convention allows words only."""
        return self.unit or ("word" if self.latency_convention == "simuleval" else "token")

    def unit_faults(self) -> list[str]:
        """Return an error if unit and convention do not go together."""
        if (self.unit, self.convention) == ("token", "simuleval"):
            return ["SimulEval's convention counts words: leave out `--unit token`."]
        return []


Arguments = TypeVar("Arguments", bound=CommandArguments)


_WIDEST_CHOICES = 20
INPUT_OUTPUT, GENERAL = "Input and output", "General"
"""Panels of options that most commands have; fields that no panel names are in the last one."""


class Command(typer.core.TyperCommand):
    """A Typer command that does not show a separate panel for `--help`."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return `--help`, in the last panel."""
        help_option: Any = super().get_help_option(ctx)
        if help_option is not None:
            help_option.rich_help_panel = GENERAL
        return help_option


def add_command(app: typer.Typer, name: str, command: Callable[..., None]) -> None:
    """Register a command created by `takes`."""
    # Markdown list items: only these are separate lines in every version of Typer.
    examples = [f"* `{example}`" for example in vars(command).get("examples", ())]
    epilog = "\n\n".join(["Examples:" if len(examples) > 1 else "Example:", *examples])
    app.command(name, cls=Command, epilog=epilog)(command)


def takes(
    kind: type[Arguments], panels: Mapping[str, str], *examples: str
) -> Callable[[Callable[[Arguments], None]], Callable[..., None]]:
    """Turn a function of one dataclass of arguments into a command for Typer.

    Each field becomes a parameter with the field's type and default. The function's docstring is
    the help. `panels` are the titles of groups of options, with the names of the fields in each,
    separated by spaces; `examples` are command lines.
    """
    parameters, hints = _in_panels(kind, panels)
    numbers: dict[str, _NumberOption] = {}
    names = option_names(kind)
    for index, parameter in enumerate(parameters):
        number, hint = _number_option(names[parameter.name], hints[parameter.name])
        if number is not None:
            numbers[parameter.name], hints[parameter.name] = number, hint
            # Typer checks that the default has the option's type, which is text for Typer.
            if isinstance(parameter.default, (int, float)):
                parameters[index] = parameter.replace(default=str(parameter.default))

    parameters = [parameter.replace(annotation=hints[parameter.name]) for parameter in parameters]
    if "config" in names:
        # Typer passes its context, which knows which options are on the command line.
        parameters.append(
            inspect.Parameter(_CONTEXT, inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        )
        hints[_CONTEXT] = typer.Context

    def decorate(function: Callable[[Arguments], None]) -> Callable[..., None]:
        def command(**values: Any) -> None:
            context = values.pop(_CONTEXT, None)
            values = _with_numbers(values, numbers)
            if values.get("config") is None:
                function(kind(**values))
            else:
                _call_with_file(function, kind, values, context)

        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.examples = examples  # type: ignore[attr-defined]
        # Typer, and the reference of commands in docs/, read these instead of `**values`.
        command.__annotations__ = hints
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def _in_panels(
    kind: type[CommandArguments], panels: Mapping[str, str]
) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    """Return the parameters of a command in the order of its help, and their hints for Typer."""
    hints = _hints(kind)
    panel_of = {name: panel for panel, names in panels.items() for name in names.split()}
    if unknown := [name for name in panel_of if name not in hints]:
        raise ValueError(f"{kind.__name__} has no {', '.join(unknown)}")
    # In the order of the panels: arguments first, fields that no panel names last.
    places = {name: number for number, name in enumerate(panel_of)}
    is_option = {name: isinstance(hint.__metadata__[0], OptionInfo) for name, hint in hints.items()}
    for name in filter(is_option.__getitem__, hints):
        annotation, info = get_args(hints[name])[0], copy.copy(hints[name].__metadata__[0])
        info.rich_help_panel = panel_of.get(name, GENERAL)
        choices = [str(choice) for choice in _choices(annotation)]
        if len("|".join(choices)) > _WIDEST_CHOICES and not info.metavar:
            # Wrapped in the narrow column of types, the choices would be unreadable.
            text, mark, default = info.help.partition("  [default")
            listed = ", ".join(f"`{choice}`" for choice in choices)
            info.metavar, info.help = "CHOICE", f"{text} One of {listed}.{mark}{default}"
        hints[name] = Annotated[annotation, info]
    parameters = sorted(
        inspect.signature(kind).parameters.values(),
        key=lambda each: (is_option[each.name], places.get(each.name, len(places))),
    )
    return parameters, hints


def _hints(kind: type[CommandArguments]) -> dict[str, Any]:
    """Return the type of each field, annotated with its option or argument for Typer."""
    # Resolved against the module that declares the fields, whose annotations are strings.
    hints = get_type_hints(kind, include_extras=True)
    return {
        field.name: Annotated[hints[field.name], field.metadata["typer"]]
        if field.metadata
        else hints[field.name]
        for field in dataclasses.fields(kind)
    }


def _call_with_file(
    function: Callable[[Arguments], None],
    kind: type[Arguments],
    values: dict[str, Any],
    context: typer.Context,
) -> None:
    """Call a command with the options of a `--config` file; errors name its lines."""
    file, options = read_config(values["config"].path), file_options(kind)
    names = option_names(kind)
    barred = _OF_ALL_COMMANDS.union(
        _key(names[field.name])
        for field in dataclasses.fields(kind)
        if field.name in kind.not_in_file or field.default is REQUIRED
    )
    typed = [
        option.field
        for option in options.values()
        # Compared by name: some versions of Typer bundle their own copy of click.
        if getattr(context.get_parameter_source(option.field), "name", "") == "COMMANDLINE"
    ]
    values, file = with_options(values, file, options, typed, barred, kind.file_settings)
    try:
        function(kind(**{**values, "config": file}))
    except ConfigError as fault:
        raise ConfigError(file.located(fault.faults, file.options), fault.advice) from fault


@dataclasses.dataclass(frozen=True)
class _NumberOption:
    """An option whose values are numbers of `kind`, from `least` to `most`."""

    name: str
    kind: type[int] | type[float]
    least: float | None
    most: float | None

    def parse(self, text: str) -> int | float:
        """Return the number in `text`. Raises ValueError if it is no number or out of range."""
        value = whole_number(text) if self.kind is int else real_number(text)
        if self.least is not None and value < self.least:
            raise ValueError(f"must be at least {self.least:g}, but is {value}.")
        if self.most is not None and value > self.most:
            raise ValueError(f"must be at most {self.most:g}, but is {value}.")
        return value


def _number_option(name: str, hint: Any) -> tuple[_NumberOption | None, Any]:
    """Return the parser of a numeric option (None for others), and the option's hint for Typer.

    For Typer it is text: which digits Typer accepts in a number, and how many, depends on its
    version.
    """
    annotation, info = get_args(hint)[0], hint.__metadata__[0]
    kind = _number_kind(annotation)
    if kind is None:
        return None, hint
    number = _NumberOption(name, kind, info.min, info.max)
    info = copy.copy(info)
    info.min = info.max = None
    info.metavar = info.metavar or ("N" if kind is int else "X")
    return number, Annotated[_as_text(annotation), info]


def _number_kind(annotation: Any) -> type[int] | type[float] | None:
    """Return int or float for annotations such as `int | None` and `list[int]`."""
    if annotation in (int, float):
        return cast(type[int] | type[float], annotation)
    return next(filter(None, map(_number_kind, get_args(annotation))), None)


def _choices(annotation: Any) -> tuple[Any, ...]:
    """Return the choices of annotations such as `Literal["a", "b"] | None`, none for others."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return next(filter(None, map(_choices, get_args(annotation))), ())


def _as_text(annotation: Any) -> Any:
    """Return `annotation` with `str` for its numbers."""
    if annotation in (int, float):
        return str
    if get_origin(annotation) is list:
        return list[str]
    parts = [part for part in get_args(annotation) if part is not type(None)]
    return _as_text(parts[0]) | None


def _with_numbers(
    values: Mapping[str, Any], numbers: Mapping[str, _NumberOption]
) -> dict[str, Any]:
    """Return the values of a command's options, numbers parsed. Raises ConfigError."""
    parsed, faults = dict(values), list[str]()
    for field, number in numbers.items():
        value = values[field]
        if value is None:
            continue
        try:
            if isinstance(value, (list, tuple)):
                parsed[field] = [number.parse(text) for text in value]
            else:
                parsed[field] = number.parse(value)
        except ValueError as fault:
            is_out_of_range = str(fault).startswith("must")
            faults.append(f"{number.name}{' ' if is_out_of_range else ': '}{fault}")
    if faults:
        raise ConfigError(faults)
    return parsed


def file_options(kind: type[CommandArguments]) -> dict[str, FileOption]:
    """Return the options that a `--config` file may set, by key."""
    hints, names, options = _hints(kind), option_names(kind), {}
    for field in dataclasses.fields(kind):
        if field.name in kind.not_in_file or field.default is REQUIRED:
            continue
        annotation, info = get_args(hints[field.name])
        label = names[field.name].strip("`")
        number, _ = _number_option(label, hints[field.name])
        key = _key(label) if label.startswith("--") else field.name
        options[key] = FileOption(
            field.name, label, annotation, info.help or "",
            None if number is None else number.parse, info.metavar == "LIST",
        )  # fmt: skip
    return options


def _key(label: str) -> str:
    return label.strip("`").removeprefix("--").replace("-", "_").lower()


def option_names(kind: type[CommandArguments]) -> dict[str, str]:
    """Return what messages call each field: `--k` in backticks, arguments by their metavar."""
    names = {}
    for field, hint in _hints(kind).items():
        info = hint.__metadata__[0]
        if isinstance(info, ArgumentInfo):
            names[field] = (info.metavar or field.upper()).partition("|")[0]
        else:
            # Typer keeps the first name in an annotation as the default.
            declared = info.default if isinstance(info.default, str) else f"--{field}"
            names[field] = f"`{declared.partition('/')[0].replace('_', '-')}`"
    return names


def explicit_options(arguments: CommandArguments) -> list[str]:
    """Return the fields that differ from their defaults.

    An option given at its default value changes nothing, so rules do not apply to it.
    """
    # Options in a `--config` file count as if given on the command line, valid or not.
    file = config_file(arguments)
    return [
        field.name
        for field in dataclasses.fields(arguments)
        if field.name != "config"
        and (
            getattr(arguments, field.name) not in (field.default, [])
            or field.name in file.faulty_fields
        )
    ]


def config_file(arguments: CommandArguments) -> ConfigFile:
    """Return the `--config` file, or an empty one if none is given."""
    return getattr(arguments, "config", None) or ConfigFile("")


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule on how `options`, fields of a command's arguments, combine with `others`.

    Both are names separated by spaces. `message` and `advice` may refer to `{option}` and
    `{other}`, or to `{options}`: then one message names all options at fault. The rule does not
    apply if one of the fields in `unless` is explicit.
    """

    options: str
    others: str = ""
    message: str = ""
    advice: str = ""
    unless: str = ""


@dataclasses.dataclass(frozen=True)
class Requires(Rule):
    """Each of `options` requires one of `others`."""

    message: str = "{option} belongs to {other}: add it."


@dataclasses.dataclass(frozen=True)
class Excludes(Rule):
    """`options` and `others` exclude each other; without `others`, `options` may not be given."""

    message: str = "{option} and {other} contradict each other; give one of them."


@dataclasses.dataclass(frozen=True)
class Needs(Rule):
    """Each of `options` must be given, or one of `others` instead."""

    message: str = "{option} is missing."


@dataclasses.dataclass(frozen=True)
class Alone(Rule):
    """With `options` (a single one), only `others` may be given; others would be ignored."""

    advice: str = "Leave out {options}."


EXIT_EXCLUDES_ENSEMBLE = Excludes(
    "exit", "ensemble", "`--exit` is for one decoder; it cannot be combined with `--ensemble`."
)
NAME_NEEDS_KEEP = Excludes(
    "name",
    "keep",
    "`--no-keep` stores nothing, so {options} would be ignored.",
    "Leave out {options}.",
)


def config_input(arguments: CommandArguments) -> dict[str, Path | None]:
    """Return the `--config` file, if any, as an input that no output may replace."""
    path = config_file(arguments).path
    return {"--config": Path(path)} if path else {}


def check_rules(
    arguments: CommandArguments, rules: Iterable[Rule], faults: Iterable[str] = (), advice: str = ""
) -> None:
    """Raise ConfigError with all rules that the arguments break, and all further `faults`.

    Errors in the options of a `--config` file come first.
    """
    explicit = explicit_options(arguments)
    # Dictionaries keep the order and drop duplicates.
    messages = dict.fromkeys(config_file(arguments).faults)
    advices = dict.fromkeys([advice] if advice else [])
    for rule in rules:
        if not set(explicit).isdisjoint(rule.unless.split()):
            continue
        options, others = rule.options.split(), rule.others.split()
        present = [name for name in options if name in explicit]
        other = ([name for name in others if name in explicit] or [""])[0]
        # Dispatched on the rule's type, so that tables of rules contain only data.
        match rule:
            case Requires():
                broken, other = [] if other else present, others[0]
            case Excludes():
                broken = present if other or not others else []
            case Needs():
                broken = [] if other else [name for name in options if name not in present]
            case Alone():
                surplus = [name for name in explicit if name not in (*options, *others)]
                broken, other = surplus if present else [], options[0]
            case _:
                raise TypeError(rule)
        names = option_names(type(arguments)) if broken else {}
        for option in broken:
            words = {
                "option": names[option],
                "options": ", ".join(names[name] for name in broken),
                "other": names.get(other, ""),
            }
            messages[rule.message.format(**words)] = None
            if rule.advice:
                advices[rule.advice.format(**words)] = None
    messages |= dict.fromkeys(faults)
    if messages:
        raise ConfigError(list(messages), " ".join(advices))


_PIPELINE = ("text.json", "vocab.*", "bpe*.codes", "sentencepiece*.model")
_FILES_OF = {
    ("model directory", "config.json"): (
        "config.json", "*.safetensors", "card.json", "README.md", "metrics.jsonl", "exits.json",
        "policies.json", *_PIPELINE,
    ),
    ("dataset", "manifest.json"): ("manifest.json", "*.safetensors", *_PIPELINE),
}  # fmt: skip
"""Names of the files of each kind of folder, by the kind and the file that identifies it."""
_PARTS_OF_DATASET = ("text", "raw", "truth", "pictures")
"""Subfolders of a dataset, whose files are named after its splits."""
PIPE_CLOSED = 1
"""The exit code when the reader of standard output has gone away."""


class Leave(Exception):
    """Ends the program with `code`; messages have been printed already."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(code)


def drop_output() -> None:
    """Redirect standard output to the null device, because Python still flushes it at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_outputs(
    outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | None] | None = None
) -> None:
    """Raise ConfigError unless each file (by its option) is writable and given only once.

    This is checked before the work begins, so that a missing folder is not reported hours later.
    """
    if faults := output_faults(outputs, inputs):
        raise ConfigError(faults)


def output_faults(
    outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | None] | None = None
) -> list[str]:
    """Return why files (by their options) cannot be written, or are given twice."""
    faults: list[str] = []
    # Keyed by the real path: two paths, one through a link, may name the same file.
    options: dict[str, str] = {}
    for name, path in (inputs or {}).items():
        if path is not None and str(path) != STANDARD:
            options[os.path.realpath(path)] = name
    for name, path in outputs.items():
        if path is None:
            continue
        faults += unwritable(name, path)
        key = STANDARD if str(path) == STANDARD else os.path.realpath(path)
        # Pipes and devices, such as /dev/null, may take several outputs.
        if key == STANDARD and key in options:
            faults.append(
                f"`{name} -`: standard output already takes what `{options[key]}` writes. Name a "
                "file for one of them."
            )
        elif key in options and not is_stream(path):
            faults.append(
                f"`{name} {path}` is also the file of `{options[key]}`: give another file."
            )
        options[key] = name
    return faults


def unwritable(name: str, path: Path) -> list[str]:
    """Return why the file of the option `name` cannot be written, if so.

    An output must not replace a file of a model directory or a dataset.
    """
    if str(path) == STANDARD:
        return []
    if path.is_dir():
        return [f"`{name} {path}` is a folder: name a file."]
    # The target of a link is replaced, not the link itself.
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        shown = folder if path.is_symlink() else path.parent
        return [f"`{name} {path}`: there is no folder {shown}. Create it, or correct the path."]
    # A temporary file in the same folder is written and then renamed, so the folder must be
    # writable.
    if not os.access(path if is_stream(path) else folder, os.W_OK):
        return [f"`{name} {path}` cannot be written: its folder is read-only."]
    return [
        f"`{name} {path}` would damage the {kind} {whole}: give another file."
        for kind, whole in _owners(Path(os.path.realpath(path)))
    ]


def _owners(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the kind and the folder of the model or the dataset that the file `path` is part of."""
    for (kind, mark), names in _FILES_OF.items():
        is_named = any(fnmatch.fnmatchcase(path.name, name) for name in names)
        if is_named and (path.parent / mark).is_file():
            yield kind, path.parent
    above = path.parent.parent
    if not path.is_file():
        return
    if path.parent.name in _PARTS_OF_DATASET and (above / "manifest.json").is_file():
        yield "dataset", above
    if above.name == "checkpoints" and (above.parent / "config.json").is_file():
        yield "model directory", above.parent


def seed_faults(seed: int) -> list[str]:
    """Return an error if `--seed` is out of range."""
    is_valid = 0 <= seed <= _LARGEST_SEED
    return [] if is_valid else [f"`--seed` must be from 0 to {_LARGEST_SEED:,}, but is {seed}."]


def unusable(name: str, folder: Path | None) -> list[str]:
    """Return why no results can be written to the folder of the option `name`, if so.

    The folder need not exist if it can be created; it must not be a model directory or a dataset.
    """
    if folder is None:
        return []
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if not existing.is_dir():
        where = "" if existing == folder else f": {existing}"
        return [f"`{name} {folder}`{where} is a file: name a folder."]
    if not os.access(existing, os.W_OK | os.X_OK):
        return [f"`{name} {folder}` cannot be written: {existing} is read-only."]
    for file, kind in {"config.json": "model directory", "manifest.json": "dataset"}.items():
        if (folder / file).is_file():
            return [f"`{name} {folder}` is a {kind}: name another folder for results."]
    return []


def write_report(path: Path | None, values: Mapping[str, Any]) -> None:
    """Write `values` as JSON to `path`: nothing for None, standard output for `-`.

    Numbers that are not finite become null.
    """
    if path is None:
        return
    text = json.dumps(nan_to_none(values), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with open_writer(path) as file:
        # File names may contain invalid characters, which are valid JSON when escaped.
        file.write(text.encode("utf-8", "backslashreplace"))


def say_notes(path: Path, notes: Mapping[str, int]) -> None:
    """Print the notes of `read_lines` on the text in `path`: what it removed or left in."""
    for name, count in notes.items():
        if count:
            console.say(f"note: {path}: {NOTES[name].format(lines=plural(count, 'line'))}")


def check_same_text(translator: Translator, dataset: Dataset) -> None:
    """Raise DataError unless model and dataset have the same languages.

    Warns if their texts are tokenised or lower-cased differently.
    """
    model, data = translator.pipeline.facts, dataset.pipeline.facts
    if (model.source_lang, model.target_lang) != (data.source_lang, data.target_lang):
        raise DataError(
            f"The model translates {model.source_lang}-{model.target_lang}, but {dataset.path} "
            f"is {data.source_lang}-{data.target_lang}.",
            "Use a dataset with the same languages.",
        )
    for name in ("tokenize", "lowercase"):
        if getattr(model, name) != getattr(data, name):
            console.warn(
                f"{dataset.path} has {name}={getattr(data, name)}, but the model was trained with "
                f"{name}={getattr(model, name)}: scores compare differently prepared texts."
            )


def check_vocabularies(model: Translator | LoadedModel, dataset: Dataset) -> None:
    """Raise DataError unless the dataset has the model's vocabularies."""
    for side in ("source", "target"):
        types = getattr(model.pipeline, side).vocabulary.types
        data_types = getattr(dataset.pipeline, side).vocabulary.types
        if types != data_types:
            raise DataError(
                f"The {side} vocabularies of the model and of {dataset.path} differ "
                f"({len(types):,} and {len(data_types):,} types).",
                "Use the dataset that the model was trained on.",
            )
