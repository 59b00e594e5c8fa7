"""What `nmtgrid decode` does with a model that captions pictures."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError, DataError
from nmtgrid.cli.decode.run import Outputs, write_translations
from nmtgrid.cli.options import check_same_text
from nmtgrid.data.captioning.dataset import FeatureFiles, as_floats
from nmtgrid.data.dataset import Dataset, PictureSplit
from nmtgrid.search.postprocess import scores_of_captions
from nmtgrid.search.translate import Translator, check_pictures, check_text

_SUFFIX = ".safetensors"
_NAMES = {
    "bleu_1": "BLEU-1 (%)",
    "bleu_2": "BLEU-2 (%)",
    "bleu_3": "BLEU-3 (%)",
    "bleu_4": "BLEU-4 (%)",
    "cider": "CIDEr-D (x 100)",
}


def check_source(
    translator: Translator, source: Path | None, data: Path | None, in_vain: list[str]
) -> None:
    """Raise ConfigError where a model is given what it cannot read, text or pictures.

    `in_vain` are the options given that are about text alone.
    """
    model = translator.models[0]
    if data is not None:
        (check_pictures if Dataset.open(data).pictures is not None else check_text)(model)
    elif source is not None and source.suffix == _SUFFIX:
        check_pictures(model)
    else:
        check_text(model)
    if translator.features and in_vain:
        raise ConfigError(
            [f"`--{name}` is about text; this model captions pictures." for name in in_vain],
            "Leave it out.",
        )


def caption_file(translator: Translator, path: Path, outputs: Outputs) -> dict[str, Any]:
    """Caption the pictures of a file of features in its order; return what was done.

    `pictures` of the report are their names, line by line.
    """
    files = FeatureFiles([path])
    if files.size != translator.features:
        raise DataError(
            f"{path} has {files.size:,} features of a region, but the model knows "
            f"{translator.features:,}.",
            "Extract the features that the model was trained on.",
        )
    # Read it through once: a fault in its last picture is told now, not after hours.
    for name in files.names:
        files.read(name)
    begin = functools.partial(
        translator.caption, (as_floats(files.read(name)) for name in files.names)
    )
    report, _ = write_translations(translator, begin, len(files.names), outputs, keep=False)
    return {**report, "pictures": files.names}


def caption_split(
    translator: Translator, data: Path, name: str, outputs: Outputs
) -> dict[str, Any]:
    """Caption the pictures of a dataset's split; return the scores and what was done."""
    dataset = Dataset.open(data)
    split = dataset.split(name)
    assert isinstance(split, PictureSplit)
    check_same_text(translator, dataset)
    pictures = split.pictures
    begin = functools.partial(
        translator.caption, (pictures.features(place) for place in range(len(pictures)))
    )
    report, translations = write_translations(translator, begin, len(pictures), outputs, keep=True)
    found = scores_of_captions(translations, split)
    _show(found, name, report)
    return {**found, "split": name, **report}


def _show(found: dict[str, Any], name: str, report: dict[str, Any]) -> None:
    console.table(
        f"{name}: {report['sentences']:,} pictures in {report['seconds']:.1f} s, "
        f"{report['tokens_per_second']:,.0f} target tokens/s",
        ["score, all references", "value"],
        [[title, found[key]] for key, title in _NAMES.items()],
    )
    for key in ("bleu_4", "cider"):
        console.say(f"signature of {key}: {found[f'signature_{key}']}")
