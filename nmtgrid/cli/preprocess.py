"""`nmtgrid preprocess`: turns parallel text, or captions of pictures, into a dataset directory."""

from __future__ import annotations

import dataclasses
import glob
import os
from pathlib import Path
from typing import Any, Literal

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.text import NOTES
from nmtgrid.base.spans import plural
from nmtgrid.cli.options import (
    INPUT_OUTPUT,
    REQUIRED,
    CommandArguments,
    Excludes,
    JsonFile,
    Needs,
    Requires,
    Workers,
    check_outputs,
    check_rules,
    flag,
    option,
    takes,
    write_report,
)

_HELP = "See `nmtgrid preprocess --help`"
TEXT_RULES = [
    Requires(
        "toy_difficulty toy_seed",
        "toy",
        "{option} belongs to `--toy N`: leave it out.",
        f"{_HELP}, or use `--toy N`.",
    ),
    Needs("source_lang target_lang train", "toy", advice=f"{_HELP}, or use `--toy N`."),
    Excludes("train valid test xml", "toy", "{other} makes its own text: leave {option} out."),
]
# Used instead of the rules above if any option is about pictures.
PICTURE_RULES = [
    Excludes(
        "source_lang train toy toy_difficulty xml valid_every max_ratio workers",
        "captions features restval toy_pictures",
        "{option} applies to text in two languages, but here the sources are pictures: leave it "
        "out.",
    ),
    Excludes(
        "captions features restval valid test",
        "toy_pictures",
        "{other} makes its own pictures: leave {option} out.",
    ),
    Requires("toy_seed", "toy_pictures", "{option} belongs to `--toy-pictures N`: leave it out."),
    Needs("captions", "toy_pictures", "{option} is missing: `--features` and `--restval` need it."),
    Needs(
        "features", "toy_pictures", "{option} is missing: name the file of the pictures' features."
    ),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreprocessArguments(CommandArguments):
    out: Path = option("The new dataset directory.", "DATA", default=REQUIRED)
    source_lang: str | None = option("Suffix of the source files, such as `de`.", "LANG")
    target_lang: str | None = option("Suffix of the target files, such as `en`.", "LANG")
    train: list[str] | None = option(
        "Training text: prefix P reads P.de and P.en, also .gz, .xz, .bz2.", "P"
    )
    valid: list[str] | None = option(
        "Validation text (captions: a file or a number of pictures).", "P"
    )
    test: list[str] | None = option(
        "Test text (captions: a file or a number of pictures); texts with the same name are "
        "concatenated. `sacrebleu:wmt15/de-en` is a test set of sacreBLEU, downloaded if "
        "necessary.",
        "[NAME=]P",
    )
    toy: int | None = option("Build the toy corpus with N training pairs.", "N", min=1)
    toy_difficulty: int | None = option("Difficulty: 1, 2 or 3.  [default: 1]", "D")
    toy_seed: int | None = option("Seed of the toy corpus.  [default: 1]", min=0)
    captions: Path | None = option(
        "Captions of pictures instead of text: Karpathy's or MS-COCO's own JSON.", "FILE"
    )
    features: list[Path] | None = option(
        "Features of the pictures (safetensors); may be repeated.", "FILE"
    )
    restval: bool = flag("--restval", "Also train on Karpathy's `restval` pictures.")
    toy_pictures: int | None = option(
        "Build the toy picture corpus with N training pictures.", "N", min=1
    )
    xml: bool = flag("--xml", "Input is IWSLT's XML.")
    tokenize: Literal["moses", "none"] = option(
        "Tokeniser; `none`: the text is tokenised already.", default="moses"
    )
    lowercase: bool | None = option(
        "Lower-case all text.  [default: captions only]", None, "--lowercase/--cased"
    )
    max_words: int = option(
        "Drop training pairs with more words than this on either side.", default=175
    )
    max_ratio: float = option(
        "Drop training pairs whose lengths differ by a larger factor (9 keeps almost all).",
        default=1.5,
    )
    valid_every: int | None = option(
        "Move every N-th kept training pair to the validation split.", "N"
    )
    workers: Workers = 1
    overwrite: bool = flag("--overwrite", "Replace an existing dataset.")
    json: JsonFile = None


@takes(
    PreprocessArguments,
    {
        INPUT_OUTPUT: "source_lang target_lang train valid test out xml overwrite",
        "Tokenisation and filters": "tokenize lowercase max_words max_ratio valid_every",
        "Toy corpus": "toy toy_difficulty toy_seed",
        "Captions of pictures": "captions features restval toy_pictures",
    },
    "nmtgrid preprocess --source-lang de --target-lang en --train corpus/train "
    "--valid corpus/valid --test corpus/test --lowercase --out DATA",
    "nmtgrid preprocess --toy 10000 --out DATA",
)
def command(arguments: PreprocessArguments) -> None:
    """Tokenise and filter parallel text and write a dataset directory.

    The filters apply to training pairs only; every validation and test line is kept, in order.
    Afterwards run `nmtgrid bpe learn DATA`.

    With `--captions` and `--features` the sources are pictures, and the targets their captions;
    words are lower-cased and punctuation is removed, as in the evaluation of MS-COCO.
    """
    # Test sets of text and of pictures are named in the same way; only their values differ.
    files = _files_by_split(arguments)
    faults = []
    sources = arguments.captions, arguments.features or None, arguments.toy_pictures
    if sources != (None, None, None) or arguments.restval:
        for name, values in files.items():
            if name != "train" and len(values) > 1:
                option = f"--{name}" if name in ("valid", "test") else f"--test {name}="
                faults.append(
                    f"`{option}` is given {len(values)} times: give one file, or one number of "
                    "pictures."
                )
        check_rules(arguments, PICTURE_RULES, faults, f"{_HELP}.")
        build, show = _preprocess_pictures, _print_pictures
    else:
        languages = arguments.source_lang or "qa", arguments.target_lang or "qb"
        if arguments.toy is not None and languages != ("qa", "qb"):
            faults.append(
                "The toy corpus has the languages `qa` and `qb`: leave out `--source-lang` and "
                "`--target-lang`."
            )
        check_rules(arguments, TEXT_RULES, faults)
        build, show = _preprocess_text, _print_text
    check_outputs({"--json": arguments.json}, _inputs(arguments, files))
    manifest = build(arguments, files)
    show(manifest, arguments.out)
    facts = {key: value for key, value in manifest.items() if key != "files"}
    write_report(arguments.json, facts)


def _inputs(arguments: PreprocessArguments, files: dict[str, list[str]]) -> dict[str, Path | None]:
    """Return the files that are read, by the options that name them."""
    inputs: dict[str, Path | None] = {"--captions": arguments.captions}
    inputs |= {f"--features {path}": path for path in arguments.features or ()}
    for split, names in files.items():
        option = f"--{split}" if split in ("train", "valid") else "--test"
        for prefix in names:
            inputs[f"{option} {prefix}"] = Path(prefix)
            for language in (arguments.source_lang, arguments.target_lang):
                # Compressed files and XML files have further suffixes.
                paths = glob.glob(f"{glob.escape(prefix)}.{language}*")
                inputs |= {f"{option} {path}": Path(path) for path in paths}
    return inputs


def _files_by_split(arguments: PreprocessArguments) -> dict[str, list[str]]:
    """Return the file prefixes of each split (for captions: files or numbers)."""
    from nmtgrid.data.directory import SPLIT_NAME

    prefixes_of = {"train": arguments.train, "valid": arguments.valid or None}
    files = {name: prefixes for name, prefixes in prefixes_of.items() if prefixes is not None}
    for text in arguments.test or []:
        # A prefix may contain a `=` too, but then the part before it is no name: `./a=b`.
        name, _, prefix = text.partition("=")
        if not (prefix and SPLIT_NAME.fullmatch(name)):
            name, prefix = "test", text
        if name in ("train", "valid"):
            raise ConfigError(f"`--test {text}`: a test set cannot be named `{name}`.")
        files.setdefault(name, []).append(prefix)
    return files


def _preprocess_text(arguments: PreprocessArguments, files: dict[str, list[str]]) -> dict[str, Any]:
    """Build a dataset of text; return its manifest."""
    from nmtgrid.base.io.text import Meter
    from nmtgrid.base.io.workers import count_workers
    from nmtgrid.data.build import TextPlan, preprocess_files, preprocess_toy
    from nmtgrid.text.cleaning import Filters

    # `qa` and `qb` are the languages of the toy corpus; without it both are required.
    plan = TextPlan(
        source_lang="qa" if arguments.source_lang is None else arguments.source_lang,
        target_lang="qb" if arguments.target_lang is None else arguments.target_lang,
        tokenize=arguments.tokenize,
        lowercase=bool(arguments.lowercase),
        valid_every=arguments.valid_every,
        workers=count_workers(arguments.workers),
        filters=Filters(max_words=arguments.max_words, max_ratio=arguments.max_ratio),
    )
    _warn_of_shared_text(files)
    toy = arguments.toy
    with console.progress("MiB read" if toy is None else "pairs") as bar:

        def report(meter: Meter, pairs: int) -> None:
            seconds = bar.seconds or 1.0
            # Of files the size is known, of the toy corpus the number of pairs.
            bar.update(
                completed=pairs if toy else meter.done >> 20,
                total=None if toy else max(meter.total >> 20, 1),
                note=f"{plural(pairs, 'pair')}, {pairs / seconds:,.0f} pairs/s",
            )

        out = arguments.out
        options: dict[str, Any] = {"overwrite": arguments.overwrite, "report": report}
        if toy is None:
            return preprocess_files(plan, files, out, xml=arguments.xml, **options)
        seed = 1 if arguments.toy_seed is None else arguments.toy_seed
        difficulty = 1 if arguments.toy_difficulty is None else arguments.toy_difficulty
        return preprocess_toy(plan, toy, out, seed=seed, difficulty=difficulty, **options)


def _preprocess_pictures(
    arguments: PreprocessArguments, files: dict[str, list[str]]
) -> dict[str, Any]:
    """Build a dataset of captioned pictures; return its manifest."""
    from nmtgrid.data.captioning.build import (
        CaptionPlan,
        CaptionSources,
        build_pictures,
        preprocess_captions,
    )
    from nmtgrid.data.captioning.dataset import PictureSource
    from nmtgrid.data.toy.pictures import SIZE, toy_pictures

    plan = CaptionPlan(
        target_lang=arguments.target_lang or "en",
        tokenize=arguments.tokenize,
        # The evaluation of MS-COCO compares lower-cased captions; text keeps its case.
        lowercase=arguments.lowercase is not False,
        max_words=arguments.max_words,
    )
    with console.progress("pictures") as bar:

        def report(done: int, total: int) -> None:
            bar.update(completed=done, total=total)

        options: dict[str, Any] = {"overwrite": arguments.overwrite, "report": report}
        count = arguments.toy_pictures
        if count is not None:
            seed = 1 if arguments.toy_seed is None else arguments.toy_seed
            toy = {"toy_pictures": {"pictures": count, "seed": seed}}
            source, splits = PictureSource(SIZE, "F16"), toy_pictures(count, seed)
            return build_pictures(plan, source, splits, arguments.out, toy, **options)
        assert arguments.captions is not None
        sources = CaptionSources(
            captions=arguments.captions,
            features=arguments.features or [],
            held_out={name: names[0] for name, names in files.items()},
            restval=arguments.restval,
        )
        return preprocess_captions(plan, sources, arguments.out, **options)


def _warn_of_shared_text(files: dict[str, list[str]]) -> None:
    """Warn of text that is in the training data and in another split."""
    trained = {os.path.realpath(prefix) for prefix in files.get("train", ())}
    for name, prefixes in files.items():
        shared = [prefix for prefix in prefixes if os.path.realpath(prefix) in trained]
        if name != "train" and shared:
            console.warn(
                f"{shared[0]} is both in `train` and in `{name}`: scores on text that a model was "
                "trained on do not show how it translates other text."
            )


def _print_counts(title: str, splits: dict[str, Any], columns: dict[str, str]) -> None:
    """Print a row for each split: the counts named by `columns`, and what each filter dropped."""
    reasons = list(next(iter(splits.values()))["dropped"])
    console.table(
        title,
        ["split", *columns, *(f"dropped: {name.replace('_', ' ')}" for name in reasons)],
        [
            [name, *(split[key] for key in columns.values()), *split["dropped"].values()]
            for name, split in splits.items()
        ],
    )


def _print_text(manifest: dict[str, Any], out: Path) -> None:
    """Print counts, corrections, and warnings about the languages."""
    from nmtgrid.data.build import SEGMENT_FIRST
    from nmtgrid.text.moses import has_rules

    splits = manifest["splits"]
    _print_counts(f"{out}: pairs", splits, {"read": "pairs_read", "kept": "pairs_kept"})
    for split in splits.values():
        if "moved_to_valid" in split:
            console.say(f"{split['moved_to_valid']:,} kept pairs were moved to valid.")
        for file, notes in split.get("notes", {}).items():
            for note, count in notes.items():
                console.say(f"{file}: {NOTES[note].format(lines=plural(count, 'line'))}")
    text = manifest["text"]
    languages = [text["source_lang"], text["target_lang"]]
    if text["tokenize"] == "moses" and "toy" not in manifest:
        for language in languages:
            if not has_rules(language):
                console.warn(
                    f"Moses has no rules for `{language}`: abbreviations and apostrophes are "
                    "treated as in English. If you use another tokeniser, tokenise the text first "
                    "and give `--tokenize none`."
                )
    # Each side once, however many splits it is in.
    sides = {lang for split in splits.values() for lang in split.get("unsegmented", ())}
    if unsegmented := [language for language in languages if language in sides]:
        console.warn(SEGMENT_FIRST.format(languages=" and ".join(unsegmented)))
    if "valid" not in splits:
        console.warn("there is no validation text; give `--valid P` or `--valid-every 23`.")
    console.say(f"`nmtgrid bpe learn {out}` learns its subwords.")


def _print_pictures(manifest: dict[str, Any], out: Path) -> None:
    """Print the counts, and the numbers of pictures that were left out."""
    splits, source = manifest["splits"], manifest["source"]
    _print_counts(
        f"{out}: pictures with {source['size']:,} features ({source['type']}) per region",
        splits,
        {"pictures": "pictures", "captions read": "pairs_read", "kept": "pairs_kept"},
    )
    for name, split in splits.items():
        if count := split["pictures_without_captions"]:
            verbs = "has no caption and was" if count == 1 else "have no caption and were"
            console.warn(f"{plural(count, 'picture')} of `{name}` {verbs} left out.")
    notes = manifest.get("notes", {})
    if count := notes.get("features_without_captions"):
        has, were = ("has", "it was") if count == 1 else ("have", "they were")
        console.say(
            f"{plural(count, 'picture')} {has} features but no captions that are used; {were} left "
            "out."
        )
    if notes.get("restval"):
        console.say(
            f"{notes['restval']:,} pictures of Karpathy's split `restval` were left out; "
            "`--restval` adds them to the training data."
        )
    if "valid" not in splits:
        console.warn("there are no validation pictures; give `--valid FILE` or `--valid N`.")
    console.say(f"`nmtgrid bpe learn {out} --words` makes its vocabulary.")
