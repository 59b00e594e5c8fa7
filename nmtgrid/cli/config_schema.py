"""`nmtgrid config-schema`: the JSON Schema of configuration files, for checks in editors."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from nmtgrid.base.errors import ConfigError, nearest
from nmtgrid.base.spans import shortened
from nmtgrid.cli.options import (
    INPUT_OUTPUT,
    CommandArguments,
    argument,
    check_outputs,
    file_options,
    option,
    takes,
    write_report,
)

_DRAFT = "http://json-schema.org/draft-07/schema#"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigSchemaArguments(CommandArguments):
    command: str = argument(
        "Command that reads the file: train, decode, online-eval or adaptive-tune.",
        "COMMAND",
        default="train",
    )
    out: Path = option("Output file; `-`: standard output.", "FILE", default=Path("-"))


@takes(
    ConfigSchemaArguments,
    {INPUT_OUTPUT: "out"},
    "nmtgrid config-schema train --out nmtgrid.schema.json",
)
def command(arguments: ConfigSchemaArguments) -> None:
    """Write the JSON Schema of the files that COMMAND reads with `--config`.

    An editor with TOML support then completes the names of settings, shows their meaning, and marks
    unknown names and wrong types. The command itself checks ranges.
    """
    check_outputs({"--out": arguments.out})
    write_report(arguments.out, schema(arguments.command))


def schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema of the files of a command's `--config`."""
    kind = _arguments(command)
    options = {key: option.schema() for key, option in file_options(kind).items()}
    values = {
        "$schema": _DRAFT,
        "title": f"nmtgrid {command} --config",
        "type": "object",
        "properties": options,
        "additionalProperties": False,
    }
    if command != "train":
        return values
    tables, cases = _settings()
    return {**values, "properties": {**options, **tables}, "allOf": cases}


def _arguments(command: str) -> type[CommandArguments]:
    # Imported late: each module loads parts of its command.
    from nmtgrid.cli.adaptive_tune.arguments import AdaptiveTuneArguments
    from nmtgrid.cli.decode.arguments import DecodeArguments
    from nmtgrid.cli.online_eval.arguments import OnlineEvalArguments
    from nmtgrid.cli.train.arguments import TrainArguments

    kinds: dict[str, type[CommandArguments]] = {
        "train": TrainArguments,
        "decode": DecodeArguments,
        "online-eval": OnlineEvalArguments,
        "adaptive-tune": AdaptiveTuneArguments,
    }
    if command not in kinds:
        raise ConfigError(
            f"`{shortened(command)}` has no option `--config`.",
            nearest(command, kinds) or f"Name one of {', '.join(kinds)}.",
        )
    return kinds[command]


def _settings() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the tables of settings, and the cases that depend on architecture or objective."""
    from nmtgrid.base.config import json_schema
    from nmtgrid.cli.objectives import objectives
    from nmtgrid.models import zoo
    from nmtgrid.training.settings import RunSettings

    tables = {
        name: table
        for name, table in json_schema(RunSettings)["properties"].items()
        if table.get("type") == "object"
    }
    known = zoo.architectures()
    tables |= {
        "arch": {"enum": list(known), "description": "Architecture.", "default": "pervasive"},
        "model": {"type": "object"},
        "objective": {"type": ["string", "object"]},
    }
    cases = []
    for name in known:
        properties = {
            "model": json_schema(known.get(name).config, "model"),
            "preset": {"enum": list(zoo.presets(name)), "description": "Named settings."},
        }
        cases.append(_case(_named("arch", name, name == "pervasive"), properties))
    for name in objectives:
        table = json_schema(objectives.get(name).settings, "objective")
        table["properties"]["name"] = {"enum": list(objectives), "default": "likelihood"}
        within = _named("name", name, name == "likelihood")
        cases.append(_case(_is_objective({"type": "object", **within}), {"objective": table}))
    choice = {"objective": {"enum": list(objectives)}}
    cases.append(_case(_is_objective({"type": "string"}), choice))
    return tables, cases


def _is_objective(schema: dict[str, Any]) -> dict[str, Any]:
    return {"properties": {"objective": schema}, "required": ["objective"]}


def _named(key: str, name: str, is_default: bool) -> dict[str, Any]:
    """Return the schema of a table whose `key` is `name`, or, for a default, is missing."""
    condition: dict[str, Any] = {"properties": {key: {"const": name}}}
    return condition if is_default else {**condition, "required": [key]}


def _case(condition: dict[str, Any], properties: dict[str, Any]) -> dict[str, Any]:
    return {"if": condition, "then": {"properties": properties}}
