"""`nmtgrid analyze align`: word alignments of two files; helpers for others that align words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmtgrid.analysis.alignment.pharaoh import Heuristic as HeuristicName
from nmtgrid.base import console
from nmtgrid.base.config import from_attributes
from nmtgrid.base.spans import plural
from nmtgrid.cli.options import (
    INPUT_OUTPUT,
    CommandArguments,
    JsonFile,
    argument,
    check_outputs,
    option,
    takes,
    write_report,
)

if TYPE_CHECKING:
    from nmtgrid.analysis.alignment.aligner import Advance

Train = Annotated[
    tuple[Path, Path] | None,
    typer.Option("--train", metavar="SOURCE TARGET", help="More text to learn alignments from."),
]
Heuristic = Annotated[
    HeuristicName, typer.Option("--heuristic", help="Symmetrisation of the two directions.")
]
LEAST_PAIRS = 1000
"""With fewer pairs, a warning says that the aligner has too little to learn from."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlignArguments(CommandArguments):
    source: Path = argument("Source, one sentence per line.", "SOURCE")
    target: Path = argument("Its translation.", "TARGET")
    out: Path = option(
        "Output: links `i-j` of source word i and target word j.", "FILE", default=Path("-")
    )
    train: Train = None
    heuristic: Heuristic = "grow-diag-final-and"
    iterations: int = option("Iterations of EM.", "N", default=5, min=1)
    null: float = option(
        "Probability of the null word.", None, "--p0", default=0.08, min=0.0, max=0.99
    )
    tension: float | None = option("Diagonal tension; 0: none.  [default: learned]", min=0.0)
    concentration: float = option("Dirichlet prior; 0: maximum likelihood.", default=0.01, min=0.0)
    gold: Path | None = option(
        "Gold links (possible ones `i?j`): reports the alignment error rate.", "FILE"
    )
    json: JsonFile = None


@takes(
    AlignArguments,
    {
        INPUT_OUTPUT: "out train gold",
        "Aligner": "heuristic iterations null tension concentration",
    },
    "nmtgrid analyze align test.de test.en --train train.de train.en --out links",
)
def align(arguments: AlignArguments) -> None:
    """Align the words of two files, similar to fast-align: `i-j`, from 0 (Pharaoh format).

    Words are separated by spaces: give tokenised text.
    """
    source, target, gold = arguments.source, arguments.target, arguments.gold
    inputs = {"SOURCE": source, "TARGET": target, "--gold": gold}
    check_outputs(
        {"--out": arguments.out, "--json": arguments.json}, {**inputs, **trained(arguments.train)}
    )
    from nmtgrid.analysis.alignment.aligner import AlignerSettings, link_pairs, read_words
    from nmtgrid.analysis.alignment.pharaoh import error_rate, read_gold, write_links

    # A given tension is fixed, whereas the default is the initial value for learning.
    fixed = arguments.tension is not None
    tension = arguments.tension if fixed else AlignerSettings.tension
    settings = from_attributes(AlignerSettings, arguments, tension=tension, fixed=fixed)
    words = read_words(source, target)
    sizes = [(len(x), len(y)) for x, y in zip(*words, strict=True)]
    # Read before minutes are spent on learning.
    truth = None if gold is None else read_gold(gold, sizes)
    with aligning() as advance:
        pairs = link_pairs(words, None, arguments.train, settings, advance)
    write_links(arguments.out, pairs.links)
    console.say(
        f"{plural(sum(map(len, pairs.links)), 'link')} in {plural(len(pairs.links), 'pair')}; "
        f"{100 * pairs.unaligned:.1f} % of the target words have none."
    )
    values: dict[str, Any] = {
        "pairs": len(pairs.links),
        "links": sum(map(len, pairs.links)),
        "unaligned_target_words_percent": 100 * pairs.unaligned,
        "tensions": pairs.tensions,
        "heuristic": arguments.heuristic,
    }
    if gold is not None and truth is not None:
        rate = error_rate(pairs.links, truth)
        console.table(
            f"Against {gold.name} (shares)",
            ["AER", "precision", "recall", "F1"],
            [[f"{v:.4f}" for v in (rate.aer, rate.precision, rate.recall, rate.f1)]],
            [True] * 4,
        )
        values |= dataclasses.asdict(rate)
    write_report(arguments.json, values)


@contextmanager
def aligning() -> Iterator[Advance]:
    """Show the progress of the aligner."""
    with console.progress("Aligning") as bar:

        def advance(what: str, done: int, total: int) -> None:
            bar.update(description=f"Aligning: {what}", completed=done, total=total)

        yield advance


def trained(train: tuple[Path, Path] | None) -> dict[str, Path | None]:
    """Return the files of `--train` as inputs that no output may replace."""
    return {} if train is None else {"--train": train[0], "--train (second)": train[1]}


def warn_of_little(learned_from: int, data: Path | None = None) -> None:
    """Warn if the aligner had few pairs to learn from, or fewer than the dataset has."""
    more, has_more = "`--train SOURCE TARGET`", False
    if data is not None:
        from nmtgrid.data.dataset import Dataset

        texts = [
            data / "text" / f"train.{side}" for side in Dataset.open(data).pipeline.facts.languages
        ]
        if has_more := all(path.is_file() for path in texts):
            more = f"`--train {texts[0]} {texts[1]}`"
    if learned_from < LEAST_PAIRS or has_more:
        console.warn(
            f"alignments were learned from only {plural(learned_from, 'pair')}: give more text "
            f"with {more}, or links with `--alignments FILE`."
        )
