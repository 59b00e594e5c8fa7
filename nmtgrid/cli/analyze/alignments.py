"""`nmtgrid analyze alignments`: what models look at, in numbers, heat maps and links."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.analyze.show import Format, Out, check_out, line_faults, show
from nmtgrid.cli.options import JsonFile, check_outputs

Lines = Annotated[
    list[int] | None,
    typer.Option(
        "--line", metavar="N", help="Lines to draw, from 1; may be repeated.  [default: one]"
    ),
]
Words = Annotated[
    bool, typer.Option("--words", help="Join BPE pieces to words, those of tokenised text.")
]


def command(
    traces: Annotated[
        list[str],
        typer.Argument(metavar="[NAME=]TRACES", help="Files of `decode --traces`, a model each."),
    ],
    out: Out = None,
    line: Lines = None,
    words: Words = False,
    pharaoh: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write links, `i-j` from 0 (of several models: the name added)."
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Link shares from this on.  [default: the largest]"),
    ] = None,
    gold: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Links by people (possible ones `i?j`): gives the error rate."
        ),
    ] = None,
    picture: Format = "png",
    json: JsonFile = None,
) -> None:
    """Show how sharp alignments are and what they cover; draw them as heat maps side by side.

    Entropy is in nats per target token (lower is surer), coverage the mean share of a source
    token that is aligned to; end symbols count on both sides.
    """
    from nmtgrid.analysis.systems import named_files

    files = named_files(traces)
    check_out(out, json, [*files.values(), gold])
    outputs = _outputs(pharaoh, [*files])
    inputs = {"--gold": gold, **{f"TRACES {path}": path for path in files.values()}}
    check_outputs({f"--pharaoh {name}": path for name, path in outputs.items()}, inputs)
    check_lines(line or [], out)
    if threshold is not None and pharaoh is None and gold is None:
        raise ConfigError("`--threshold` makes links: add `--pharaoh FILE` or `--gold FILE`.")
    from nmtgrid.analysis.alignment.models import AlignmentOptions, alignments_section, read_models
    from nmtgrid.analysis.alignment.pharaoh import write_links

    options = AlignmentOptions(list(dict.fromkeys(line or [])), words, threshold)
    models = read_models(files, options, gold)
    for model in models if pharaoh is not None else ():
        write_links(outputs[model.name], model.links)
        console.say(f"Written: {outputs[model.name]}")
    show([alignments_section(models, options)], out, picture, json)


def check_lines(lines: list[int], out: Path | None) -> None:
    """Raise ConfigError for lines that are none, and where there is no picture to show them."""
    faults = line_faults(lines)
    if lines and out is None:
        faults.append("`--line` says what to draw: say where with `--out`.")
    if faults:
        raise ConfigError(faults)


def _outputs(pharaoh: Path | None, names: list[str]) -> dict[str, Path]:
    """Return the file of links of each model."""
    if pharaoh is None:
        return {}
    if len(names) == 1:
        return {names[0]: pharaoh}
    if bad := [name for name in names if "/" in name]:
        raise ConfigError(
            f"`--pharaoh` makes files of the models' names, but `{bad[0]}` holds a `/`."
        )
    return {name: pharaoh.with_name(f"{pharaoh.stem}-{name}{pharaoh.suffix}") for name in names}
