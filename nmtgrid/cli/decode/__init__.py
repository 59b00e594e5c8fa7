"""`nmtgrid decode`: translates raw text, or translates and scores a split of a dataset."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from nmtgrid.cli.decode.arguments import PANELS, RULES, STREAM_RULES, DecodeArguments
from nmtgrid.cli.options import (
    check_rules,
    config_input,
    output_faults,
    takes,
    write_report,
)


@takes(
    DecodeArguments,
    PANELS,
    "nmtgrid decode MODEL input.de --beam 5 --out output.en",
    "nmtgrid decode MODEL --data DATA --split test --beam 5",
    'echo "Guten Morgen!" | nmtgrid decode MODEL --stream --k 3',
)
def command(arguments: DecodeArguments) -> None:
    """Translate raw text line by line, or score the translations of a dataset's split.

    Captioning models read features of pictures instead, in the order of the file, and are scored by
    BLEU-1 to BLEU-4 and CIDEr against all captions of each picture.

    `--set` changes the other search settings: max_length_a and max_length_b (at most a + b x source
    length), length_offset (mu), min_length, style (when a beam ends), renormalize.

    Files appear when everything is translated. An interruption leaves the finished lines in
    FILE.partial. Lines from a pipe are translated as soon as no more of them are waiting.

    With `--stream`, decoding is greedy, and each word is written to standard output as soon as it
    is final, while the line is still arriving; there is one output line per input line. Output is
    detokenised as far as it is final; source words are tokenised one by one.
    """
    source, data, standard = arguments.source, arguments.data, Path("-")
    if arguments.stream:
        # A stream writes one greedy hypothesis, so `--beam 1` and `--nbest 1` are accepted.
        if arguments.beam == 1:
            arguments = dataclasses.replace(arguments, beam=None)
        if arguments.nbest == 1:
            arguments = dataclasses.replace(arguments, nbest=None)
        from nmtgrid.cli.decode.stream import faults_of_stream, translate_stream
        from nmtgrid.search.precision import check_stream_precision

        faults = faults_of_stream(arguments) + output_faults(
            {"--stream": standard, "--traces": arguments.traces, "--json": arguments.json},
            {"INPUT": source, **config_input(arguments)},
        )
        check_rules(arguments, STREAM_RULES, faults)
        check_stream_precision(arguments.precision)
        translate_stream(arguments)
        return
    faults = []
    if arguments.prefix == standard and data is None and source in (None, standard):
        faults.append("`--prefix` and INPUT cannot both be standard input: name a file.")
    faults += output_faults(
        {
            "--out": standard if arguments.out is None and data is None else arguments.out,
            "--traces": arguments.traces,
            "--alignments": arguments.alignments,
            "--json": arguments.json,
        },
        {"INPUT": source, "--prefix": arguments.prefix, **config_input(arguments)},
    )
    from nmtgrid.cli.decode import run

    check_rules(arguments, RULES, faults + run.option_faults(arguments))
    translator = run.make_translator(arguments)
    if arguments.forced:
        report = run.force_split(translator, arguments)
    elif data is not None:
        report = run.translate_split(translator, arguments)
    elif translator.features:  # of pictures; a text model has none
        report = run.caption_file(translator, arguments)
    else:
        report = run.translate_text(translator, arguments)
    write_report(arguments.json, {**run.conditions(translator, arguments), **report})
