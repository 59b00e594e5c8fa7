"""What `nmtgrid preprocess` does with pictures: captions and features, or the toy pictures."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class PictureOrder:
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


def check(order: PictureOrder, in_vain: dict[str, Any]) -> None:
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


def build(order: PictureOrder, out: Path, overwrite: bool) -> dict[str, Any]:
    """Build the dataset; return its manifest."""
    from nmtgrid.data.captioning.build import CaptionPlan
    from nmtgrid.data.captioning.captions_splits import CaptionSources, preprocess_captions
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


def show(manifest: dict[str, Any], out: Path) -> None:
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
