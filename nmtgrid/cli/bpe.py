"""`nmtgrid bpe`: learn subwords for a dataset; apply and undo BPE or SentencePiece on text."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typer import Typer

from nmtgrid.base import console
from nmtgrid.base.io.text import STANDARD, Meter, is_plain, open_writer, read_lines
from nmtgrid.base.spans import plural
from nmtgrid.cli.options import (
    INPUT_OUTPUT,
    CommandArguments,
    Excludes,
    JsonFile,
    Workers,
    add_command,
    argument,
    check_outputs,
    check_rules,
    flag,
    option,
    say_notes,
    takes,
    write_report,
)

if TYPE_CHECKING:
    from nmtgrid.data.subwords import SubwordPlan

app = Typer(
    help="Learn subwords for a dataset; apply and undo BPE or SentencePiece on text.",
    epilog="`nmtgrid bpe COMMAND --help` shows the options of each, with examples.",
    no_args_is_help=True,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnArguments(CommandArguments):
    data: Path = argument("A dataset directory.", "DATA")
    method: Literal["bpe", "sentencepiece"] | None = option(
        "Subword method: `bpe`, or `sentencepiece`, which needs no spaces between words.  "
        "[default: bpe]"
    )
    merges: int | None = option("Number of BPE merge operations to learn.  [default: 10000]")
    pieces: int | None = option("Size of the SentencePiece model.  [default: 10000]", "N")
    joint: bool | None = option(
        "Learn merges or pieces jointly for both languages, or separately.  [default: joint]",
        None,
        "--joint/--separate",
    )
    codes: list[Path] | None = option(
        "Use existing BPE codes; give it twice for source and target.", "FILE"
    )
    model: list[Path] | None = option(
        "Use an existing SentencePiece `.model`; give it twice for source and target.", "FILE"
    )
    joint_vocabulary: bool = flag(
        "--joint-vocabulary", "One vocabulary for both languages, as required by `model.tie=all`."
    )
    words: bool = flag("--words", "Whole words instead of subwords.")
    min_count: int = option("Drop types with fewer than N occurrences in training.", "N", default=1)
    vocab_source: Path | None = option(
        "Use this dictionary: nmtgrid's, fairseq's or a word list.", "F"
    )
    vocab_target: Path | None = option("The same for the target language.", "F")
    workers: Workers = 1
    json: JsonFile = None
    overwrite: bool = flag("--overwrite", "Replace existing vocabularies in DATA.")


_INEFFECTIVE = "{option} has no effect with {other}: leave it out."
RULES = [
    Excludes("merges", "words codes model pieces", _INEFFECTIVE),
    Excludes("pieces", "words codes model", _INEFFECTIVE),
    Excludes("model", "words codes", _INEFFECTIVE),
    Excludes("joint method", "words", _INEFFECTIVE),
]


@takes(
    LearnArguments,
    {
        "Subwords": "method merges pieces joint codes model words",
        "Vocabularies": "joint_vocabulary min_count vocab_source vocab_target overwrite",
    },
    "nmtgrid bpe learn DATA --merges 10000",
    "nmtgrid bpe learn DATA --method sentencepiece --pieces 8000",
    "nmtgrid bpe learn DATA --codes codes.de --codes codes.en --separate",
)
def learn(arguments: LearnArguments) -> None:
    """Learn subwords and vocabularies from the training text and encode all splits of DATA.

    `--method sentencepiece` works on raw text: use `preprocess --tokenize none`.
    """
    codes = arguments.model or arguments.codes or []
    method = arguments.method or ("sentencepiece" if arguments.model else "bpe")
    check_rules(arguments, RULES, _faults(arguments, method))
    inputs = {f"--codes {path}": path for path in arguments.codes or ()}
    inputs |= {f"--model {path}": path for path in arguments.model or ()}
    vocabularies = {
        "--vocab-source": arguments.vocab_source,
        "--vocab-target": arguments.vocab_target,
    }
    check_outputs({"--json": arguments.json}, {**inputs, **vocabularies})
    from nmtgrid.base.io.workers import count_workers
    from nmtgrid.data.subwords import SubwordPlan, learn_subwords

    source, target = arguments.vocab_source, arguments.vocab_target
    plan = SubwordPlan(
        merges=10000 if arguments.merges is None else arguments.merges,
        pieces=10000 if arguments.pieces is None else arguments.pieces,
        method=method,
        words=arguments.words,
        joint=arguments.joint is not False,
        joint_vocabulary=arguments.joint_vocabulary,
        min_count=arguments.min_count,
        codes=tuple(map(str, codes)),
        source_vocabulary=str(source) if source else None,
        target_vocabulary=str(target) if target else None,
        workers=count_workers(arguments.workers),
    )
    before = _vocabulary_files(arguments.data)
    with console.progress("reading") as bar:

        def report(stage: str, done: int, total: int) -> None:
            bar.stage(stage)  # reading, learning and encoding each restart the bar
            rate = f"{done / bar.seconds:,.0f}/s" if bar.seconds else ""
            bar.update(completed=done, total=total, note=rate)

        facts = learn_subwords(arguments.data, plan, report, overwrite=arguments.overwrite)
    # Models trained with other ids keep their own vocabularies, but a resumed run would read the
    # new ids: warn the user.
    if before and before != _vocabulary_files(arguments.data):
        console.warn(
            f"{arguments.data} had other vocabularies, which are replaced. Models that were "
            "trained with them still translate, but `train --resume` cannot continue with them."
        )
    _print_facts(facts, plan)
    unsegmented = _unsegmented(arguments.data)
    if unsegmented and plan.subwords != "sentencepiece":
        console.warn(
            f"the text in {' and '.join(unsegmented)} has no spaces between words, so a whole "
            "sentence counts as one word: use `--method sentencepiece`."
        )
    console.say(f"`nmtgrid train {arguments.data} --arch ARCH --out MODEL` trains a model on it.")
    write_report(arguments.json, facts)


def _faults(arguments: LearnArguments, method: str) -> list[str]:
    """Return errors in options that do not apply to this method or contradict each other."""
    faults = []
    files = arguments.model or arguments.codes or []
    if arguments.joint and len(files) == 2:
        option = "--model" if arguments.model else "--codes"
        faults.append(
            f"`--joint` uses the same subwords for both languages, but `{option}` is given twice: "
            "leave one out."
        )
    if arguments.words:
        return faults
    if method == "bpe":
        for name in ("model", "pieces"):
            if getattr(arguments, name) is not None:
                faults.append(
                    f"`--{name}` applies to SentencePiece only: add `--method sentencepiece`."
                )
    elif arguments.model is None and (arguments.merges is not None or arguments.codes):
        option = "--codes" if arguments.codes else "--merges"
        faults.append(f"`{option}` applies to BPE only: leave it out, or `--method sentencepiece`.")
    return faults


def _vocabulary_files(data: Path) -> dict[str, Any]:
    """Return the entries of the vocabulary files in a dataset's manifest."""
    from nmtgrid.data import directory

    files = directory.read(data)["files"]
    return {name: facts for name, facts in files.items() if name.startswith("vocab.")}


def _unsegmented(data: Path) -> list[str]:
    """Return the languages of a dataset whose text has no spaces between words."""
    from nmtgrid.data import directory

    splits = directory.read(data)["splits"].values()
    return list(dict.fromkeys(lang for split in splits for lang in split.get("unsegmented", ())))


def _print_facts(facts: dict[str, Any], plan: SubwordPlan) -> None:
    """Print the sizes of the vocabularies and the lengths."""
    sizes = facts["source_vocab_size"], facts["target_vocab_size"]
    same = " (the same ones)" if facts["joint_vocabulary"] else ""
    console.say(
        f"Vocabularies: {sizes[0]:,} source and {sizes[1]:,} target types{same}, with specials."
    )
    # Existing codes and vocabularies are not learned, so the facts lack these keys.
    merges = facts.get("merges", [])
    if "words_learned_from" in facts and merges and min(merges) < plan.merges:
        console.warn(
            f"only {plural(min(merges), 'merge')} of {plan.merges:,}: no further pair occurs twice."
        )
    pieces = facts.get("pieces", [])
    if "words_learned_from" in facts and pieces and min(pieces) < plan.pieces:
        console.warn(
            f"only {plural(min(pieces), 'piece')} of {plan.pieces:,}: the text has no more."
        )
    if facts.get("source_forgotten_words") or facts.get("target_forgotten_words"):
        console.warn(
            "the text has so many distinct words that rare ones were not counted "
            f"({facts['source_forgotten_words']:,} and {facts['target_forgotten_words']:,})."
        )
    if any(facts.get("words_not_learned_from", [])):
        console.say(
            f"Subwords were learned from the {max(facts['words_learned_from']):,} most frequent "
            f"words, without {sum(facts['words_not_learned_from']):,} rarer ones."
        )
    headings = ["split", "side", "5 %", "50 %", "95 %", "total", "unknown"]
    rows = [
        [name, side, *split[f"{side}_lengths"].values(), split[f"{side}_unknown"]]
        for name, split in facts["splits"].items()
        for side in ("source", "target")
    ]
    console.table("Lengths in units, end symbol not counted", headings, rows)
    _warn_of_unknown_units(rows, plan)


def _warn_of_unknown_units(rows: Sequence[Sequence[Any]], plan: SubwordPlan) -> None:
    """Warn of sides whose units are mostly unknown; `rows` are those of the table of lengths."""
    from nmtgrid.search.unknown_units import are_too_many

    vocabularies = {"source": plan.source_vocabulary, "target": plan.target_vocabulary}
    for name, side, *_, total, unknown in rows:
        if not are_too_many(unknown, total, plan.subwords):
            continue
        share = f"{100 * unknown / total:.0f} % of the {side} units of `{name}` are"
        if name != "train":
            if side in vocabularies:
                console.warn(
                    f"{share} unknown from training: are its files in the same languages as those "
                    "of `train`?"
                )
        elif vocabularies.pop(side) is None and plan.min_count > 1:
            # The other splits lack them too, for the same reason.
            console.warn(
                f"{share} unknown, because they occur fewer than {plan.min_count:,} times: give a "
                "smaller `--min-count`."
            )
        else:
            console.warn(f"{share} not in the given vocabulary: does it match these subwords?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentArguments(CommandArguments):
    input: Path = option("Input file; `-`: standard input.", "FILE", default=Path("-"))
    out: Path = option("Output file; `-`: standard output.", "FILE", default=Path("-"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ApplyArguments(SegmentArguments):
    codes: Path = argument("BPE codes, or a SentencePiece `.model`.", "CODES")
    workers: Workers = 1


@takes(
    ApplyArguments,
    {INPUT_OUTPUT: "input out"},
    "nmtgrid bpe apply DATA/bpe.codes < words > units",
)
def apply(arguments: ApplyArguments) -> None:
    """Segment tokenised text into subword units.

    A single process writes each line at once; several processes write many lines at a time.
    """
    from nmtgrid.base.io.workers import count_workers, map_ordered
    from nmtgrid.text.bpe import Codes
    from nmtgrid.text.sentencepiece_model import ENDINGS, SentencePieceModel
    from nmtgrid.text.shards import read_shards, segment_lines

    source, out, codes = arguments.input, arguments.out, arguments.codes
    check_outputs({"--out": out}, {"--input": source, "CODES": codes})
    kind = SentencePieceModel if codes.suffix in ENDINGS else Codes
    bpe, processes = kind.load(codes), count_workers(arguments.workers)
    if processes == 1:
        # Line by line, so that a program at the other end of a pipe gets each line at once.
        _map_lines(source, out, lambda line: " ".join(bpe.segment(line.split())))
        return
    notes: Counter[str] = Counter()
    with open_writer(out) as file, _progress(source, out) as advance:
        shards = read_shards(source, notes)
        for shard, (lines, own) in map_ordered(partial(segment_lines, bpe), shards, processes):
            notes += own
            file.write(lines)
            advance(len(shard.raw))
    say_notes(source, notes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UndoArguments(SegmentArguments):
    method: Literal["bpe", "sentencepiece"] | None = option(
        "Subword method.  [default: detected from the marks in each line]"
    )


@takes(
    UndoArguments, {INPUT_OUTPUT: "input out", "Subwords": "method"},
    "nmtgrid bpe undo < units > words",
)  # fmt: skip
def undo(arguments: UndoArguments) -> None:
    """Join subword units into words.

    A line that begins with `▁` is treated as SentencePiece, unless a unit ends in `@@` and the
    next does not begin with `▁`. `--method bpe` leaves every `▁` as it is.
    """
    from itertools import pairwise

    from nmtgrid.base.subword_marks import JOINER, SPACE, joined_words, mark_of
    from nmtgrid.text.bpe import remove_bpe

    def join(line: str) -> str:
        units = line.split()
        # In SentencePiece text, the first unit of a line has the mark, or the second one after a
        # language tag. Elsewhere a `▁` may be a word of BPE text.
        is_pieces = mark_of(units[:2]) == SPACE and not any(
            unit.endswith(JOINER) and not following.startswith(SPACE)
            for unit, following in pairwise(units)
        )
        if arguments.method == "sentencepiece" or (arguments.method is None and is_pieces):
            return " ".join(joined_words(units, SPACE))
        return remove_bpe(line)

    check_outputs({"--out": arguments.out}, {"--input": arguments.input})
    _map_lines(arguments.input, arguments.out, join)


def _map_lines(source: Path, out: Path, function: Callable[[str], str]) -> None:
    notes: Counter[str] = Counter()
    meter, shown = Meter() if _is_file(source) else None, 0
    with open_writer(out) as file, _progress(source, out) as advance:
        # No program waits for the lines of a file, where flushing would take a tenth of the time.
        is_awaited = not file.seekable()
        for line in read_lines(source, notes, meter=meter):
            file.write(function(line).encode("utf-8") + b"\n")
            if is_awaited:
                file.flush()
            if meter is not None and meter.taken - shown >= 1 << 20:
                advance(meter.taken - shown)
                shown = meter.taken
    say_notes(source, notes)


def _is_file(source: Path) -> bool:
    """Return whether an input is a file of known size rather than a pipe."""
    return str(source) != STANDARD and source.is_file()


@contextmanager
def _progress(source: Path, out: Path) -> Iterator[Callable[[int], None]]:
    """Show how much of a file has been read; yield a function that takes the bytes just read.

    Nothing is shown for a pipe, or while lines are written to standard output.
    """
    is_file = _is_file(source)
    # A compressed file has more bytes than it takes on the disk.
    total = source.stat().st_size / 2**20 if is_file and is_plain(source) else None
    with console.progress("MiB", total, hidden=not is_file or str(out) == STANDARD) as bar:
        yield lambda count: bar.update(advance=count / 2**20)


add_command(app, "learn", learn)
add_command(app, "apply", apply)
add_command(app, "undo", undo)
