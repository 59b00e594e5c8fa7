"""`nmtgrid preprocess`: parallel text to a dataset directory."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.text import NOTES
from nmtgrid.cli.options import JsonFile, Workers, check_outputs, write_report


@dataclasses.dataclass(frozen=True)
class PictureArguments:
    """What was asked for; None or empty: not given."""

    captions: Path | None
    features: list[Path]
    held_out: dict[str, list[str]]
    restval: bool
    toy: int | None
    toy_seed: int | None
    target_lang: str | None
    tokenize: Literal["moses", "none"]
    lowercase: bool
    max_words: int


def option(split: str) -> str:
    """Return how the command line names a split that is held out."""
    return f"--{split}" if split in ("valid", "test") else f"--test {split}="


def check(order: PictureArguments, in_vain: dict[str, Any]) -> None:
    """Raise ConfigError with all that does not go together; `in_vain` are options about text."""
    faults = [
        f"`--{name}` is about text in two languages, but sources are pictures here: leave it out."
        for name, given in in_vain.items()
        if given
    ]
    if order.toy is not None:
        inputs = {
            "--captions": order.captions, "--features": order.features, "--restval": order.restval,
            **{option(name): given for name, given in order.held_out.items()},
        }  # fmt: skip
        faults += [
            f"`--toy-pictures` makes its own pictures: leave `{name}` out."
            for name, given in inputs.items()
            if given
        ]
    elif order.toy_seed is not None:
        faults.append("`--toy-seed` belongs to `--toy-pictures N`: leave it out.")
    if order.toy is None and order.captions is None:
        faults.append("`--captions` is missing: `--features` and `--restval` go with it.")
    if order.toy is None and not order.features:
        faults.append("`--features` is missing: name the file of the pictures' features.")
    faults += [
        f"`{option(name)}` is given {len(given)} times: name one file, or a number of pictures."
        for name, given in order.held_out.items()
        if len(given) > 1
    ]
    if faults:
        raise ConfigError(faults, "See `nmtgrid preprocess --help`.")


def build(order: PictureArguments, out: Path, overwrite: bool) -> dict[str, Any]:
    """Build the dataset; return its manifest."""
    from nmtgrid.data.captioning.build import CaptionPlan, CaptionSources, preprocess_captions
    from nmtgrid.data.toy.pictures import preprocess_toy_pictures

    plan = CaptionPlan(order.target_lang or "en", order.tokenize, order.lowercase, order.max_words)
    with console.progress("pictures") as bar:

        def report(done: int, total: int) -> None:
            bar.update(bar.task_ids[0], completed=done, total=total)

        if order.toy is not None:
            seed = 1 if order.toy_seed is None else order.toy_seed
            return preprocess_toy_pictures(
                plan, order.toy, out, seed=seed, overwrite=overwrite, report=report
            )
        assert order.captions is not None
        held_out = {name: given[0] for name, given in order.held_out.items() if given}
        sources = CaptionSources(order.captions, order.features, held_out, order.restval)
        return preprocess_captions(plan, sources, out, overwrite=overwrite, report=report)


def show_pictures(manifest: dict[str, Any], out: Path) -> None:
    """Print the counts, and what was left out."""
    splits = manifest["splits"]
    source = manifest["source"]
    reasons = list(next(iter(splits.values()))["dropped"])
    console.table(
        f"{out}: pictures of {source['size']:,} features of {source['type']} a region",
        ["split", "pictures", "captions read", "kept", *(f"dropped: {name}" for name in reasons)],
        [
            [name, split["pictures"], split["pairs_read"], split["pairs_kept"],
             *split["dropped"].values()]
            for name, split in splits.items()
        ],
    )  # fmt: skip
    for name, split in splits.items():
        if bare := split["pictures_without_captions"]:
            console.warn(f"{bare:,} pictures of `{name}` have no caption and were left out.")
    notes = manifest.get("notes", {})
    if notes.get("features_without_captions"):
        console.say(
            f"{notes['features_without_captions']:,} pictures have features but no captions that "
            "are used; they were left out."
        )
    if notes.get("restval"):
        console.say(
            f"{notes['restval']:,} pictures of Karpathy's split `restval` were left out; "
            "`--restval` puts them into training."
        )
    if "valid" not in splits:
        console.warn("there are no validation pictures; give `--valid FILE` or `--valid N`.")


_MAX_RATIO = 1.5
_NAMED_TEST = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=(.+)", re.DOTALL)


def command(
    out: Annotated[Path, typer.Option("--out", metavar="DATA", help="The new dataset directory.")],
    source_lang: Annotated[
        str | None, typer.Option(metavar="LANG", help="Suffix of the source files, such as `de`.")
    ] = None,
    target_lang: Annotated[
        str | None, typer.Option(metavar="LANG", help="Suffix of the target files, such as `en`.")
    ] = None,
    train: Annotated[
        list[str] | None,
        typer.Option(metavar="P", help="Prefix: reads P.de and P.en, also .gz, .xz, .bz2."),
    ] = None,
    valid: Annotated[
        list[str] | None,
        typer.Option(metavar="P", help="Validation text (of captions: a file or a number)."),
    ] = None,
    test: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]P",
            help="Test text (of captions: a file or a number); the same name again is put behind "
            "the first.",
        ),
    ] = None,
    toy: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Build the toy corpus with N training pairs."),
    ] = None,
    toy_difficulty: Annotated[
        int | None, typer.Option(metavar="D", help="1, 2 or 3.  [default: 1]")
    ] = None,
    toy_seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the toy corpus.  [default: 1]")
    ] = None,
    captions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Captions of pictures instead of text: Karpathy's or MS-COCO's own JSON.",
        ),
    ] = None,
    features: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Features of the pictures (safetensors); may be repeated."
        ),
    ] = None,
    restval: Annotated[
        bool, typer.Option("--restval", help="Karpathy's `restval` pictures train too.")
    ] = False,
    toy_pictures: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Build the toy pictures, N of them for training."),
    ] = None,
    xml: Annotated[bool, typer.Option("--xml", help="Read IWSLT's XML files.")] = False,
    tokenize: Annotated[
        Literal["moses", "none"], typer.Option(help="`none`: the text is tokenised already.")
    ] = "moses",
    lowercase: Annotated[
        bool | None,
        typer.Option(
            "--lowercase/--cased",
            help="Whether to lower-case all text.  [default: captions alone]",
        ),
    ] = None,
    max_words: Annotated[
        int, typer.Option(help="Drop training pairs with a side of more words.")
    ] = 175,
    max_ratio: Annotated[
        float, typer.Option(help="Drop training pairs whose lengths differ by a larger factor.")
    ] = _MAX_RATIO,
    valid_every: Annotated[
        int | None,
        typer.Option(metavar="N", help="Move each N-th kept training pair to validation."),
    ] = None,
    workers: Workers = 1,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing dataset.")
    ] = False,
    json: JsonFile = None,
) -> None:
    """Tokenise and filter parallel text and put it into a dataset directory.

    The filters concern training pairs only; every validation and test line is kept, in order.
    Afterwards run `nmtgrid bpe learn DATA`.

    With `--captions` and `--features` sources are pictures, whose captions are the targets; words
    are lower-cased and punctuation is left out, as the evaluation of MS-COCO does.
    """
    from nmtgrid.base.io.workers import count_workers

    if captions is not None or features or restval or toy_pictures is not None:
        order = PictureArguments(
            captions, features or [], _prefixes(None, valid, test), restval, toy_pictures,
            toy_seed, target_lang, tokenize, lowercase is not False, max_words,
        )  # fmt: skip
        about_text = {
            "source-lang": source_lang, "train": train, "toy": toy,
            "toy-difficulty": toy_difficulty, "xml": xml, "valid-every": valid_every,
            "max-ratio": max_ratio != _MAX_RATIO, "workers": workers != 1,
        }  # fmt: skip
        check(order, about_text)
        check_outputs({"--json": json})
        manifest = build(order, out, overwrite)
        show_pictures(manifest, out)
        write_report(json, report_of(manifest))
        return
    if toy is None:
        prefixes = _prefixes(train, valid, test)
        faults = [
            f"`--{name}` belongs to `--toy N`: leave it out."
            for name, given in (("toy-difficulty", toy_difficulty), ("toy-seed", toy_seed))
            if given is not None
        ]
        faults += [
            f"`--{name}` is missing."
            for name, given in (
                ("source-lang", source_lang),
                ("target-lang", target_lang),
                ("train", train),
            )
            if not given
        ]
        if faults:
            raise ConfigError(faults, "See `nmtgrid preprocess --help`, or use `--toy N`.")
    else:
        _refuse_with_toy(source_lang, target_lang, train, valid, test, xml)
        prefixes = {}
    check_outputs({"--json": json})
    manifest = _build(
        out,
        prefixes,
        plan={
            "source_lang": source_lang or "qa",
            "target_lang": target_lang or "qb",
            "tokenize": tokenize,
            "lowercase": bool(lowercase),
            "valid_every": valid_every,
            "workers": count_workers(workers),
        },
        filters={"max_words": max_words, "max_ratio": max_ratio},
        toy=None if toy is None else _toy(toy, toy_seed, toy_difficulty),
        xml=xml,
        overwrite=overwrite,
    )
    show(manifest, out)
    write_report(json, report_of(manifest))


def report_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return what `--json` writes: each split under `splits` and under its own name."""
    facts = {key: value for key, value in manifest.items() if key != "files"}
    return {**manifest["splits"], **facts}


def show(manifest: dict[str, Any], out: Path) -> None:
    """Print the counts, and what was put right."""
    splits = manifest["splits"]
    reasons = list(next(iter(splits.values()))["dropped"])
    console.table(
        f"{out}: pairs",
        ["split", "read", "kept", *(f"dropped: {reason}" for reason in reasons)],
        [
            [name, split["pairs_read"], split["pairs_kept"], *split["dropped"].values()]
            for name, split in splits.items()
        ],
    )
    for split in splits.values():
        if "moved_to_valid" in split:
            console.say(f"{split['moved_to_valid']:,} kept pairs were moved to valid.")
        for file, notes in split.get("notes", {}).items():
            for note, count in notes.items():
                console.say(f"{file}: {NOTES[note].format(count=f'{count:,}')}")
    if "valid" not in splits:
        console.warn("there is no validation text; give `--valid P` or `--valid-every 23`.")


def _prefixes(
    train: list[str] | None, valid: list[str] | None, test: list[str] | None
) -> dict[str, list[str]]:
    prefixes: dict[str, list[str]] = {} if train is None else {"train": train}
    if valid:
        prefixes["valid"] = valid
    for text in test or []:
        match = _NAMED_TEST.fullmatch(text)
        name, prefix = (match.group(1), match.group(2)) if match else ("test", text)
        if name in ("train", "valid"):
            raise ConfigError(f"`--test {text}`: a test cannot be called `{name}`.")
        prefixes.setdefault(name, []).append(prefix)
    return prefixes


def _toy(pairs: int, seed: int | None, difficulty: int | None) -> tuple[int, int, int]:
    return pairs, 1 if seed is None else seed, 1 if difficulty is None else difficulty


def _refuse_with_toy(
    source_lang: str | None,
    target_lang: str | None,
    train: list[str] | None,
    valid: list[str] | None,
    test: list[str] | None,
    xml: bool,
) -> None:
    faults = [
        f"`--toy` makes its own text: leave `--{name}` out."
        for name, given in (("train", train), ("valid", valid), ("test", test), ("xml", xml))
        if given
    ]
    if source_lang not in (None, "qa") or target_lang not in (None, "qb"):
        faults.append("The toy corpus goes from `qa` to `qb`: leave the languages out.")
    if faults:
        raise ConfigError(faults)


def _build(
    out: Path,
    prefixes: dict[str, list[str]],
    *,
    plan: dict[str, Any],
    filters: dict[str, Any],
    toy: tuple[int, int, int] | None,
    xml: bool,
    overwrite: bool,
) -> dict[str, Any]:
    from nmtgrid.base.io.text import Meter
    from nmtgrid.data.build import TextPlan, preprocess_files, preprocess_toy
    from nmtgrid.text.cleaning import Filters

    settings = TextPlan(**plan, filters=Filters(**filters))
    with console.progress("MiB read" if toy is None else "pairs") as bar:

        def report(meter: Meter, pairs: int) -> None:
            seconds = bar.tasks[0].elapsed or 1.0
            bar.update(
                bar.task_ids[0],
                completed=pairs if toy else meter.done >> 20,
                total=None if toy else max(meter.total >> 20, 1),
                note=f"{pairs:,} pairs, {pairs / seconds:,.0f} pairs/s",
            )

        if toy is not None:
            pairs, seed, difficulty = toy
            return preprocess_toy(
                settings, pairs, out, seed=seed, difficulty=difficulty,
                overwrite=overwrite, report=report,
            )  # fmt: skip
        return preprocess_files(
            settings, prefixes, out, xml=xml, overwrite=overwrite, report=report
        )
