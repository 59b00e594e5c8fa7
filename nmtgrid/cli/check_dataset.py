"""Whether a dataset is one that a model can be measured on."""

from __future__ import annotations

from nmtgrid.base import console
from nmtgrid.base.errors import DataError
from nmtgrid.data.dataset import Dataset
from nmtgrid.models.directory import LoadedModel
from nmtgrid.search.translate import Translator


def check_same_text(translator: Translator, dataset: Dataset) -> None:
    """Raise DataError unless model and dataset are of one direction.

    Warns where words or cases of their texts are made in different ways.
    """
    ours, theirs = translator.pipeline.facts, dataset.pipeline.facts
    if (ours.source_lang, ours.target_lang) != (theirs.source_lang, theirs.target_lang):
        raise DataError(
            f"The model translates {ours.source_lang}-{ours.target_lang}, but {dataset.path} "
            f"is {theirs.source_lang}-{theirs.target_lang}.",
            "Use a dataset of the model's direction.",
        )
    for name in ("tokenize", "lowercase"):
        made, given = getattr(ours, name), getattr(theirs, name)
        if made != given:
            console.warn(
                f"{dataset.path} has {name}={given}, but the model's text {name}={made}: scores "
                "compare what was prepared in different ways."
            )


def check_vocabularies(model: Translator | LoadedModel, dataset: Dataset) -> None:
    """Raise DataError unless the dataset's ids are the model's."""
    ours, theirs = model.pipeline, dataset.pipeline
    for side in ("source", "target"):
        types = [getattr(one, f"{side}_vocabulary").types for one in (ours, theirs)]
        if types[0] != types[1]:
            raise DataError(
                f"The {side} vocabularies of the model and of {dataset.path} differ "
                f"({len(types[0]):,} and {len(types[1]):,} types).",
                "Use the dataset that the model was trained on.",
            )
