"""`nmtgrid bpe`: learn units for a dataset; apply and undo BPE on text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.options import JsonFile, Workers, check_outputs, write_report

app = typer.Typer(
    help="Learn units for a dataset; apply and undo BPE on text.", no_args_is_help=True
)

_Input = Annotated[Path, typer.Option("--input", metavar="FILE", help="`-`: standard input.")]
_Output = Annotated[Path, typer.Option("--out", metavar="FILE", help="`-`: standard output.")]


@app.command("learn")
def learn(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A dataset directory.")],
    merges: Annotated[
        int | None, typer.Option(help="Merge operations to learn.  [default: 10000]")
    ] = None,
    joint: Annotated[
        bool | None,
        typer.Option(
            "--joint/--separate",
            help="One set of merges for both languages, or one for each.  [default: joint]",
        ),
    ] = None,
    codes: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Use these codes; twice: those of the source and of the target."
        ),
    ] = None,
    joint_vocabulary: Annotated[
        bool,
        typer.Option(
            "--joint-vocabulary",
            help="One vocabulary for both languages, as `model.tie=all` needs it.",
        ),
    ] = False,
    words: Annotated[bool, typer.Option("--words", help="Whole words instead of BPE.")] = False,
    min_count: Annotated[
        int, typer.Option(metavar="N", help="Leave out types seen less than N times in training.")
    ] = 1,
    vocab_source: Annotated[
        Path | None,
        typer.Option(metavar="F", help="Use this dictionary: ours, fairseq's or a word list."),
    ] = None,
    vocab_target: Annotated[
        Path | None, typer.Option(metavar="F", help="The same for the target language.")
    ] = None,
    workers: Workers = 1,
    json: JsonFile = None,
) -> None:
    """Learn merges and vocabularies from the training text and encode all splits of DATA."""
    faults = [
        f"`{option}` has no effect with `--{'words' if words else 'codes'}`: leave it out."
        for option, given in (("--merges", merges), ("--joint/--separate", joint))
        if given is not None and (words or (codes and option == "--merges"))
    ]
    if joint and codes is not None and len(codes) == 2:
        faults.append("`--joint` shares the merges, but `--codes` is given twice: leave one out.")
    if faults:
        raise ConfigError(faults)
    check_outputs({"--json": json})
    from nmtgrid.base.io.workers import count_workers
    from nmtgrid.data import directory
    from nmtgrid.data.subwords import SubwordPlan, learn_subwords

    plan = SubwordPlan(
        merges=10000 if merges is None else merges,
        joint=joint is not False,
        joint_vocabulary=joint_vocabulary,
        words=words,
        min_count=min_count,
        codes=tuple(map(str, codes or ())),
        source_vocabulary=str(vocab_source) if vocab_source else None,
        target_vocabulary=str(vocab_target) if vocab_target else None,
        workers=count_workers(workers),
    )
    before = vocabularies(directory.read(data))
    with console.progress("reading") as bar:

        def report(stage: str, done: int, total: int) -> None:
            task = bar.tasks[0]
            if task.description != stage:
                bar.reset(task.id, description=stage)
            rate = f"{task.speed:,.0f}/s" if task.speed else ""
            bar.update(task.id, completed=done, total=total, note=rate)

        facts = learn_subwords(data, plan, report)
    if before and before != vocabularies(directory.read(data)):
        console.warn(
            f"other vocabularies were in {data}, which are replaced. Models that were trained with "
            "them still translate, but `train --resume` cannot go on with them."
        )
    show(facts, plan.merges)
    write_report(json, {**facts["splits"], **facts})


def vocabularies(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a dataset's manifest says of its vocabularies' files."""
    files = described["files"]
    return {name: fact for name, fact in files.items() if name.startswith("vocab.")}


def show(facts: dict[str, Any], merges: int) -> None:
    """Print the sizes of the vocabularies and the lengths."""
    sizes = facts["source_vocab_size"], facts["target_vocab_size"]
    same = " (the same ones)" if facts["joint_vocabulary"] else ""
    console.say(
        f"Vocabularies: {sizes[0]:,} source and {sizes[1]:,} target types{same}, with specials."
    )
    if "words_learned_from" in facts and min(facts["merges"]) < merges:
        console.warn(
            f"only {min(facts['merges']):,} merges of {merges:,}: no further pair occurs twice."
        )
    if facts.get("source_forgotten_words") or facts.get("target_forgotten_words"):
        console.warn(
            f"so many distinct words that rare ones were left out of the counts "
            f"({facts['source_forgotten_words']:,} and {facts['target_forgotten_words']:,})."
        )
    if any(facts.get("words_not_learned_from", [])):
        console.say(
            f"Merges were learned from the {max(facts['words_learned_from']):,} most frequent "
            f"words; {sum(facts['words_not_learned_from']):,} rarer ones were left out of it."
        )
    rows = [
        [name, side, *split[f"{side}_lengths"].values(), split[f"{side}_unknown"]]
        for name, split in facts["splits"].items()
        for side in ("source", "target")
    ]
    console.table(
        "Lengths in units, end symbol not counted",
        ["split", "side", "5 %", "50 %", "95 %", "total", "unknown"],
        rows,
    )


@app.command("apply")
def apply(
    codes: Annotated[Path, typer.Argument(metavar="CODES", help="A codes file.")],
    source: _Input = Path("-"),
    out: _Output = Path("-"),
    workers: Workers = 1,
) -> None:
    """Cut the words of tokenised text into units.

    One process writes each line as soon as it has come, several write many lines at once.
    """
    from nmtgrid.base.io.text import open_writer
    from nmtgrid.base.io.workers import count_workers, map_ordered
    from nmtgrid.text.bpe import Codes
    from nmtgrid.text.shards import LineSegmenter, read_shards

    held, count = Codes.load(codes), count_workers(workers)
    if count == 1:
        _filter(source, out, lambda line: " ".join(held.segment(line.split())))
        return
    check_outputs({"--out": out}, {"--input": source})
    with open_writer(out) as file:
        for _, lines in map_ordered(LineSegmenter(held), read_shards(source), count):
            file.write(lines)


@app.command("undo")
def undo(source: _Input = Path("-"), out: _Output = Path("-")) -> None:
    """Join units to words again."""
    from nmtgrid.text.bpe import remove_bpe as join

    _filter(source, out, join)


def _filter(source: Path, out: Path, change: Callable[[str], str]) -> None:
    from nmtgrid.base.io.text import open_writer, read_lines

    check_outputs({"--out": out}, {"--input": source})
    with open_writer(out) as file:
        for line in read_lines(source):
            file.write(change(line).encode("utf-8") + b"\n")
