"""`nmtgrid decode`: translates raw text, or a split of a dataset and scores it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.options import (
    EXIT_EXCLUDES_ENSEMBLE,
    Device,
    Ensemble,
    JsonFile,
    Overrides,
    Precision,
    Weights,
    check_outputs,
    write_report,
)


def command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model directory.")],
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="INPUT|-",
            help="Raw text, one sentence a line; or features of pictures (.safetensors).  "
            "[default: -]",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the text goes.  [default: -]")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DATA", help="Translate a split and score it.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(metavar="NAME", help="The split of `--data`.  [default: test]")
    ] = None,
    ter: Annotated[
        bool, typer.Option("--ter", help="With `--data`: TER too (slow, minutes for bad ones).")
    ] = False,
    forced: Annotated[
        bool,
        typer.Option(
            "--forced", help="Write no translations: force the split's references (perplexity)."
        ),
    ] = False,
    energies: Annotated[
        bool,
        typer.Option("--energies", help="With `--forced`: what each source unit adds to a score."),
    ] = False,
    beam: Annotated[
        int | None, typer.Option(metavar="N", help="Width; 1 is greedy.  [default: the model's]")
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(
            metavar="A",
            help="Score = log-probability / ((mu + length) / (mu + 1))^A, end symbol counted in "
            "the length.  [default: the model's]",
        ),
    ] = None,
    coverage_penalty: Annotated[
        float | None, typer.Option(metavar="B", help="Weight of what is left untranslated.")
    ] = None,
    nbest: Annotated[
        int | None,
        typer.Option(metavar="N", help="Write N lines `line ||| text ||| log-prob. ||| score`."),
    ] = None,
    ensemble: Ensemble = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Draw translations instead of seeking the best.")
    ] = False,
    temperature: Annotated[
        float | None, typer.Option(help="Of sampling; below 1 is sharper.  [default: 1]")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample among the K likeliest.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample among the likeliest that hold this share.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of sampling.  [default: 1]")] = None,
    prefix: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Raw text, a line for each of INPUT: whole words that its translation begins "
            "with, perhaps none.",
        ),
    ] = None,
    traces: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write one JSON record a line, with alignments."),
    ] = None,
    alignments: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write links of words, `source-target` from 0."),
    ] = None,
    replace_unknown: Annotated[
        bool, typer.Option("--replace-unknown", help="Copy the aligned word for `<unk>`.")
    ] = False,
    batch_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Source tokens x beam of a batch.  [default: 4000]"),
    ] = None,
    max_source: Annotated[
        int | None,
        typer.Option(metavar="N", help="Units of the longest source taken whole.  [default: 512]"),
    ] = None,
    long_lines: Annotated[
        Literal["split", "cut"] | None,
        typer.Option(help="Translate longer ones in pieces, or cut them.  [default: split]"),
    ] = None,
    weights: Weights = "best",
    exit: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|N|auto",
            help="Leave the decoder early: by the thresholds that `adaptive-tune` kept under NAME, "
            "after block N, or where the model's own predictor says so.",
        ),
    ] = None,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream", help="Translate words as they come; needs one of `--k`, `--threshold`."
        ),
    ] = False,
    k: Annotated[
        str | None,
        typer.Option(metavar="N", help="Streams: stay N source units behind; `inf` waits for all."),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(metavar="TAU", help="Streams: the model's agent reads on above this."),
    ] = None,
    finish_reading: Annotated[
        bool, typer.Option("--finish-reading", help="Streams: no end before all has been read.")
    ] = False,
    changes: Overrides = None,
    precision: Precision = "fp32",
    device: Device = "auto",
    json: JsonFile = None,
) -> None:
    """Translate raw text line for line, or score the translations of a dataset's split.

    A model that captions pictures reads features instead, in the file's order of pictures, and is
    scored by BLEU-1 to BLEU-4 and CIDEr against all captions of each.

    `--set` reaches the other settings of the search: max_length_a and max_length_b (at most
    a + b x source length), length_offset (mu), min_length.

    With `--stream` each word is written to standard output as soon as it is final, while the line
    still arrives: greedily, one output line for each input line. Detokenised as far as nothing has
    to be taken back; words are tokenised one by one.
    """
    if stream:
        in_vain = {
            "out": out, "data": data, "split": split, "ter": ter, "forced": forced,
            "energies": energies, "beam": beam if beam != 1 else None,
            "length-penalty": length_penalty, "coverage-penalty": coverage_penalty,
            "nbest": nbest if nbest != 1 else None, "sample": sample, "temperature": temperature,
            "top-k": top_k, "top-p": top_p, "seed": seed, "prefix": prefix,
            "alignments": alignments, "replace-unknown": replace_unknown,
            "batch-tokens": batch_tokens, "long-lines": long_lines,
        }  # fmt: skip
        from nmtgrid.cli.decode import stream as decode_stream

        order = decode_stream.StreamArguments(
            [model, *(ensemble or [])], source or Path("-"), k, threshold, finish_reading, traces,
            512 if max_source is None else max_source, changes or [], weights, precision, device,
            exit,
        )  # fmt: skip
        decode_stream.check(order, [n for n, held in in_vain.items() if held not in (None, False)])
        check_outputs(
            {"--stream": Path("-"), "--traces": traces, "--json": json}, {"INPUT": source}
        )
        decode_stream.translate_stream(order, json)
        return
    faults = ["Give INPUT or `--data`, not both."] if data and source else []
    if forced and data is None:
        faults.append("`--forced` needs references: name a dataset with `--data`.")
    of_search = {
        "out": out, "ensemble": ensemble, "beam": beam, "length-penalty": length_penalty,
        "coverage-penalty": coverage_penalty, "nbest": nbest, "sample": sample,
        "prefix": prefix, "replace-unknown": replace_unknown, "max-source": max_source,
        "long-lines": long_lines, "set": changes, "ter": ter,
    }  # fmt: skip
    faults += [
        f"`--{name}` has no effect with `--forced`, which translates nothing."
        for name, held in of_search.items()
        if forced and held not in (None, False, [])
    ]
    if exit is not None and forced:
        faults.append("`--exit` is for decoding; `--forced` runs all blocks: leave one of them.")
    if exit is not None and ensemble:
        faults.append(EXIT_EXCLUDES_ENSEMBLE.message)
    if energies and not forced:
        faults.append("`--energies` are those of given translations: add `--forced`.")
    if split is not None and data is None:
        faults.append("`--split` belongs to `--data`: name the dataset.")
    if ter and data is None:
        faults.append("`--ter` needs references: name a dataset with `--data`.")
    streams = {"k": k, "threshold": threshold, "finish-reading": finish_reading or None}
    for name, asked in streams.items():
        if asked is not None:
            faults.append(f"`--{name}` belongs to `--stream`: add it, or see `online-eval`.")
    draws = {"temperature": temperature, "top-k": top_k, "top-p": top_p, "seed": seed}
    for name, given in draws.items():
        if given is not None and not sample:
            faults.append(f"`--{name}` has no effect without `--sample`.")
    if str(prefix) == "-" and data is None and str(source or "-") == "-":
        faults.append("`--prefix` and INPUT cannot both be standard input: name a file.")
    if faults:
        raise ConfigError(faults)
    text_out = Path("-") if out is None and data is None else out
    check_outputs(
        {"--out": text_out, "--traces": traces, "--alignments": alignments, "--json": json},
        {"INPUT": source, "--prefix": prefix},
    )
    search = {
        "beam": beam,
        "length_penalty": length_penalty,
        "coverage_penalty": coverage_penalty,
        "nbest": nbest,
        "sample": sample or None,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
    }
    text = {
        "batch_tokens": batch_tokens,
        "max_source": max_source,
        "long_lines": long_lines,
        "replace_unknown": replace_unknown or None,
    }
    from nmtgrid.base.devices import find_device
    from nmtgrid.cli.decode import run as decode_run

    translator = decode_run.make_translator(
        [model, *(ensemble or [])],
        decode_run.Changes(search, text, changes or []),
        weights=weights,
        precision=precision,
        device=find_device(device),
        exit=exit,
    )
    from nmtgrid.cli.decode import pictures as decode_pictures

    of_text = {
        "replace-unknown": replace_unknown or None, "max-source": max_source,
        "long-lines": long_lines, "prefix": prefix, "ter": ter or None,
    }  # fmt: skip
    useless = [name for name, held in of_text.items() if held is not None]
    decode_pictures.check_source(translator, source, data, useless)
    outputs = decode_run.Outputs(out, traces, alignments)
    if forced and data is not None:
        from nmtgrid.cli.decode.run import force_split

        kind: Literal["weights", "energies"] = "energies" if energies else "weights"
        report = force_split(translator, data, split or "test", outputs, kind)
    elif translator.features and data is not None:
        report = decode_pictures.caption_split(translator, data, split or "test", outputs)
    elif translator.features and source is not None:
        report = decode_pictures.caption_file(translator, source, outputs)
    elif data is None:
        report = decode_run.translate_text(translator, source or Path("-"), outputs, prefix)
    else:
        report = decode_run.translate_split(translator, data, split or "test", outputs, prefix, ter)
    write_report(json, report)
