"""A model that copies its source, so that every translation is known; not a test itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Tensor

from nmtgrid.models.api import Classifier, Step, Traits, TranslationModel
from nmtgrid.models.directory import LoadedModel
from nmtgrid.text.bpe import Codes
from nmtgrid.text.pipeline import Pipeline, TextFacts
from nmtgrid.text.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class CopyState:
    source: Tensor
    lengths: Tensor
    written: Tensor


class CopyModel(TranslationModel):
    """Writes source token t at step t with probability near one, then the end symbol."""

    architecture = "copy"

    def __init__(self, types: int, aligns: bool = True) -> None:
        super().__init__()
        self.traits = Traits(aligns=aligns)
        self.types = types
        self.batches: list[tuple[int, int]] = []

    def classifier(self) -> Classifier:
        return Classifier(torch.zeros(self.types, 1), None)

    def begin(self, source: Tensor, source_lengths: Tensor) -> CopyState:
        self.batches.append((source.shape[0], source.shape[1]))
        return CopyState(source, source_lengths, torch.zeros_like(source_lengths))

    def step(
        self, tokens: Tensor, state: CopyState, *, reads: Tensor | None = None, align: bool = False
    ) -> Step:
        position = torch.minimum(state.written, state.lengths - 1)
        token = state.source.gather(1, position[:, None])[:, 0]
        logits = 20.0 * torch.nn.functional.one_hot(token, self.types).float()
        shares = torch.nn.functional.one_hot(position, state.source.shape[1]).float()
        after = dataclasses.replace(state, written=state.written + 1)
        return Step(logits, after, shares if align else None)


def copier(
    words: str, *, bpe: bool = False, aligns: bool = True, lowercase: bool = False
) -> LoadedModel:
    """Return a copying model over the units in `words`, the same on both sides."""
    facts = TextFacts(
        "qa", "qb", tokenize="none", lowercase=lowercase, subwords="bpe" if bpe else "words"
    )
    codes = Codes(["q z"]) if bpe else None
    pipeline = Pipeline(facts, Vocabulary(words.split()), Vocabulary(words.split()), codes)
    model = CopyModel(len(pipeline.target_vocabulary), aligns)
    return LoadedModel(model, pipeline, {}, Path("copy"))
