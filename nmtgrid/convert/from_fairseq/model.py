"""Imports a checkpoint of fairseq: its options, weights, dictionaries and codes.

`nmtgrid import-fairseq` calls it.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from nmtgrid.base.config import check, to_json
from nmtgrid.base.errors import ConfigError, InputError, ModelError
from nmtgrid.base.spans import shortened
from nmtgrid.base.subword_marks import JOINER, SPACE
from nmtgrid.convert.from_fairseq import convs2s, lstm, pervasive, transformer
from nmtgrid.convert.from_fairseq.checkpoint import Checkpoint, open_checkpoint
from nmtgrid.convert.from_fairseq.dictionary import read_codes, read_dictionary
from nmtgrid.convert.from_fairseq.plan import (
    CheckpointTensors,
    Options,
    Plan,
    mismatched_shapes,
    read_options,
    unmatched_tensors,
)
from nmtgrid.data.directory import check_replaceable, new_folder
from nmtgrid.models import zoo
from nmtgrid.models.api import TranslationModel
from nmtgrid.models.card import update_card
from nmtgrid.models.directory import load_model, meta_model, save_model
from nmtgrid.text.bpe import Codes
from nmtgrid.text.pipeline import Pipeline, TextFacts
from nmtgrid.text.vocabulary import SPECIALS, Vocabulary

# The architectures that can be imported, by the beginning of their names.
FAMILIES: Mapping[str, Callable[[Options, Checkpoint], Plan]] = {
    "transformer": transformer.plan,
    # From fairseq's examples of simultaneous translation; its encoder is causal without an option.
    "transformer_unidirectional": functools.partial(transformer.plan, unidirectional=True),
    "waitk_transformer": transformer.wait_k_plan,
    "fconv": convs2s.plan,
    "lstm": lstm.plan,
    "pervasive": pervasive.plan,
}
# Architectures named like a family, but with different layers.
_OTHERS = (
    "transformer_lm", "transformer_from_pretrained_xlm", "transformer_modular", "transformer_tiny_",
    "transformer_above", "fconv_lm", "fconv_self_att", "lstm_lm",
)  # fmt: skip
_LANGUAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_SUBWORDS = 0.1
"""If more than this share of a dictionary's types has subword marks, its types are not words."""
_HYPHENS = ("@-@", "##AT##-##AT##")
"""Hyphens as written by Moses with `-a`, and by Tensor2Tensor."""
# The defaults of fairseq's own `generate`.
_SEARCH = {"beam": 5, "length_penalty": 1.0}


@dataclasses.dataclass(frozen=True)
class TextFiles:
    """The files of the text pipeline and its settings (None: those of the checkpoint)."""

    dict_source: Path
    dict_target: Path
    codes: Path | None = None
    codes_target: Path | None = None
    source_lang: str | None = None
    target_lang: str | None = None
    tokenize: Literal["moses", "none"] = "moses"
    lowercase: bool = False


def import_checkpoint(path: Path, text: TextFiles, out: Path) -> dict[str, Any]:
    """Write the checkpoint at `path` as a model directory `out`, which must not exist yet.

    Returns the facts of the model as JSON keys. Raises ModelError or InputError for files that
    cannot be read, and ConfigError listing everything that our architectures do not support.
    """
    # Before gigabytes are read: an existing folder should stop the import immediately.
    check_replaceable(out, overwrite=None)
    with open_checkpoint(path) as checkpoint:
        options = read_options(checkpoint)
        fairseq_arch, family = _family(path, options)
        plan = family(options, checkpoint)
        pipeline = _pipeline(options, text)
        faults = options.faults + (
            _vocabulary_faults(checkpoint, text, pipeline, transformer.tying(options))
            if pipeline
            else []
        )
        if faults or pipeline is None:
            raise ConfigError([f"{path}:", *faults], "Only equivalent models can be imported.")
        model = build_model(plan, checkpoint, pipeline)
    plan.notes.extend([*_hyphen_notes(pipeline), *_codes_notes(pipeline)])
    settings = {
        **plan.objective,
        "search": dict(_SEARCH),
        "imported": {"program": "fairseq", "arch": fairseq_arch},
    }
    origin = f"`{path.name}`, a `{fairseq_arch}` of fairseq"
    return write_imported(out, plan, model, pipeline, settings, origin)


def write_imported(
    out: Path,
    plan: Plan,
    model: TranslationModel,
    pipeline: Pipeline,
    settings: dict[str, Any],
    origin: str,
) -> dict[str, Any]:
    """Write a converted model as the model directory `out`; return its facts as JSON keys."""
    source, parameters = settings["imported"], model.count_parameters()
    for name, tensor in model.state_dict().items():
        if not tensor.isfinite().all():
            raise ModelError(
                f"{origin} has NaN or infinity in what becomes `{name}`.",
                "Take an earlier checkpoint, or restore a copy if this one is damaged.",
            )
    with new_folder(out, task=f"nmtgrid import-{source['program']}") as folder:
        save_model(folder, model, pipeline, settings)
        update_card(
            folder,
            origin=f"Imported by nmtgrid from {origin}, whose licence and training data apply.",
            training={"parameters": f"{parameters:,}"},
        )
        # Reading it back checks the files before the folder gets its name.
        load_model(folder)
    return {
        "theirs": source["arch"],
        "arch": plan.arch,
        "search": settings["search"],
        "model": to_json(plan.config),
        "parameters": parameters,
        "source_types": len(pipeline.source_vocabulary),
        "target_types": len(pipeline.target_vocabulary),
        "notes": plan.notes,
        "out": str(out),
    }


def _family(path: Path, options: Options) -> tuple[str, Callable[[Options, Checkpoint], Plan]]:
    name = str(options.get("arch", options.get("_name", "")))
    known = [family for family in FAMILIES if name == family or name.startswith(f"{family}_")]
    # The name is printed and stored, so it must be a reasonable one.
    if not known or name.startswith(_OTHERS) or not name.isprintable() or len(name) > 100:
        names = ", ".join(f"`{family}`" for family in FAMILIES)
        raise ConfigError(
            f"{path}: a model of the architecture `{name[:80] or 'unknown'}` cannot be imported.",
            f"Those whose names begin with {names} can.",
        )
    return name, FAMILIES[max(known, key=len)]


def _pipeline(options: Options, text: TextFiles) -> Pipeline | None:
    """Return the text pipeline; None if it is invalid: faults are added to those of `options`."""
    # All faults are collected: users see every missing file and option at once.
    before = len(options.faults)
    languages = []
    for side, explicit in (("source", text.source_lang), ("target", text.target_lang)):
        language = explicit or options.get(f"{side}_lang")
        if not isinstance(language, str) or not language:
            options.faults.append(
                f"The {side} language is not known: give `--{side}-lang`, such as `en`."
            )
        elif not _LANGUAGE.fullmatch(language):
            options.faults.append(
                f"The {side} language cannot be called `{shortened(language)}`: give "
                f"`--{side}-lang`, such as `en` or `pt-BR`."
            )
        languages.append(str(language))
    vocabularies: list[Vocabulary] = []
    codes: list[Codes] = []
    readers: list[tuple[list[Any], Callable[[Path], Any], Path | None]] = [
        (vocabularies, read_dictionary, text.dict_source),
        (vocabularies, read_dictionary, text.dict_target),
        (codes, read_codes, text.codes),
        (codes, read_codes, text.codes_target),
    ]
    for results, read, path in readers:
        try:
            if path is not None:
                results.append(read(path))
        except InputError as fault:
            options.faults.append(f"{fault.problem} {fault.advice}".strip())
    if text.codes_target is not None and text.codes is None:
        options.faults.append("`--codes-target` needs `--codes`, the codes of the source.")
    for vocabulary, side in zip(vocabularies, ("source", "target"), strict=False):
        options.faults += _subword_faults(vocabulary, side, has_codes=bool(codes))
    if len(options.faults) > before:
        return None
    facts = TextFacts(
        source_lang=languages[0],
        target_lang=languages[1],
        tokenize=text.tokenize,
        lowercase=text.lowercase,
        subwords="bpe" if codes else "words",
        joint=len(codes) < 2,
    )
    return Pipeline(facts, vocabularies[0], vocabularies[1], *codes)


def _subword_faults(vocabulary: Vocabulary, side: str, *, has_codes: bool) -> list[str]:
    """Return a fault if a dictionary has subwords that the codes do not produce."""
    types = vocabulary.types[len(SPECIALS) :]
    least = _SUBWORDS * len(types)
    if sum(unit.startswith(SPACE) for unit in types) > least:
        return [
            f"The {side} dictionary has subwords of SentencePiece: such models cannot be imported."
        ]
    if not has_codes and sum(unit.endswith(JOINER) for unit in types) > least:
        return [
            f"The {side} dictionary has subwords, not words: give `--codes`, the codes of "
            "subword-nmt."
        ]
    return []


def _hyphen_notes(pipeline: Pipeline) -> list[str]:
    """Return a note if the text seems to have been tokenised with Moses' `-a`."""
    marks = [mark for mark in _HYPHENS if mark in pipeline.source_vocabulary]
    if not marks or pipeline.facts.tokenize == "none":
        return []
    return [
        f"the source dictionary has `{marks[0]}`: if its text was tokenised by Moses with `-a`, "
        "which splits words at hyphens, import with `--tokenize none` and tokenise INPUT in the "
        "same way before `decode`"
    ]


def _codes_notes(pipeline: Pipeline) -> list[str]:
    """Return a note for each side that has codes, but a dictionary without subwords."""
    sides = ("source", pipeline.source_vocabulary), ("target", pipeline.target_vocabulary)
    return [
        f"the {side} dictionary has no unit that ends in `{JOINER}`, so that words which the codes "
        "split become `<unk>`: if it contains whole words, import without `--codes`"
        for side, vocabulary in sides
        if pipeline.facts.subwords == "bpe"
        and not any(unit.endswith(JOINER) for unit in vocabulary.types)
    ]


def _vocabulary_faults(
    checkpoint: Checkpoint, text: TextFiles, pipeline: Pipeline, tied: str
) -> list[str]:
    """Return a fault for each dictionary that is not that of the embeddings.

    `tied` is what the options share ("all": one matrix for both sides).
    """
    faults = []
    for side, path, vocabulary in (
        ("encoder", text.dict_source, pipeline.source_vocabulary),
        ("decoder", text.dict_target, pipeline.target_vocabulary),
    ):
        view = checkpoint.views.get(f"{side}.embed_tokens.weight")
        if view is not None and view.shape[:1] != (len(vocabulary),):
            faults.append(
                f"{path} has {len(vocabulary):,} types with the four special symbols, but the "
                f"{side} has vectors of {view.shape[0] if view.shape else 0:,}: give the "
                "dictionary that it was trained with."
            )
    # Equal views are one matrix, but averaged checkpoints have copies of it: an id must then mean
    # the same type on both sides.
    source, target = (
        checkpoint.views.get(f"{side}.embed_tokens.weight") for side in ("encoder", "decoder")
    )
    if (
        tied == "all" or (source is not None and source == target)
    ) and pipeline.source_vocabulary.types != pipeline.target_vocabulary.types:
        faults.append(
            f"{text.dict_source} and {text.dict_target} differ, but both sides of the "
            "model share their embeddings: give the same dictionary twice."
        )
    return faults


def build_model(plan: Plan, checkpoint: CheckpointTensors, pipeline: Pipeline) -> TranslationModel:
    """Return the model with the checkpoint's weights. Raises ConfigError for all mismatches."""
    path = checkpoint.path
    check(plan.config)
    faults = unmatched_tensors(plan, checkpoint)
    if faults:
        raise ConfigError([f"{path}:", *faults], "Its options and its weights do not agree.")
    sizes = len(pipeline.source_vocabulary), len(pipeline.target_vocabulary)
    # First as shapes without values: a file of a few bytes may claim any size.
    outline = meta_model(lambda: zoo.from_config(plan.arch, plan.config, *sizes))
    shapes = outline.state_dict()
    # A fault of our plan, which users cannot fix: it should not look like theirs.
    if set(plan.recipes) != set(shapes):
        raise ModelError(f"{path}: its tensors are not those of `{plan.arch}`.")
    faults = mismatched_shapes(plan, checkpoint, shapes)
    if faults:
        raise ConfigError([f"{path}:", *faults[:10]], "Its options and its weights do not agree.")
    size = 4 * sum(tensor.numel() for tensor in chain(outline.parameters(), outline.buffers()))
    if size > checkpoint.max_bytes:
        raise ModelError(
            f"{path}: its model would take {size:,} bytes, far more than the weights stored there.",
            "Download or create it again: one tensor may be stored under many names.",
        )
    model = zoo.from_config(plan.arch, plan.config, *sizes)
    model.load_state_dict({
        name: recipe.fn(*map(checkpoint.load, recipe.names))
        for name, recipe in plan.recipes.items()
    })  # fmt: skip
    return model
