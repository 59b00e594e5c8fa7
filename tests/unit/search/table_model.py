"""A translation model made of random tables, small enough to enumerate; not a test itself."""

import dataclasses

import torch
from torch import Tensor

from nmtgrid.models.api import Classifier, Step, Traits, TranslationModel
from nmtgrid.text.vocabulary import END, PAD


@dataclasses.dataclass(frozen=True)
class TableState:
    source: Tensor
    lengths: Tensor
    before: Tensor
    written: Tensor


class TableModel(TranslationModel):
    """p(next | last token, the one before, source sum, position), looked up in random tables."""

    architecture = "table"

    def __init__(
        self, seed: int = 0, types: int = 6, sharp: float = 1.0, aligns: bool = True
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.bigrams = torch.randn(types, types, generator=generator) * sharp
        self.trigrams = torch.randn(types, types, generator=generator) * sharp
        self.sources = torch.randn(97, types, generator=generator) * sharp
        self.places = torch.randn(64, types, generator=generator) * sharp
        self.traits = Traits(aligns=aligns)
        self.rows: list[int] = []

    def classifier(self) -> Classifier:
        return Classifier(self.bigrams, None)

    def begin(self, source: Tensor, source_lengths: Tensor) -> TableState:
        none = torch.zeros(len(source), dtype=torch.long)
        return TableState(source, source_lengths, none, none)

    def step(
        self, tokens: Tensor, state: TableState, *, reads: Tensor | None = None, align: bool = False
    ) -> Step:
        self.rows.append(len(tokens))
        size = state.source.shape[1]
        is_token = torch.arange(size)[None] < state.lengths[:, None]
        mark = (state.source * is_token * torch.arange(1, size + 1)).sum(1) % 97
        logits = (
            self.bigrams[tokens]
            + self.trigrams[state.before]
            + self.sources[mark]
            + self.places[state.written % 64]
        )
        alignment = None
        if align:
            # The t-th prediction looks at source token t, or at the last one.
            position = torch.minimum(state.written, state.lengths - 1)
            alignment = torch.nn.functional.one_hot(position, size).float()
        return Step(
            logits, TableState(state.source, state.lengths, tokens, state.written + 1), alignment
        )


def batch(*sources: list[int]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, sources)) + 1
    rows = [[*s, END] + [PAD] * (longest - len(s) - 1) for s in sources]
    return torch.tensor(rows), torch.tensor([len(s) + 1 for s in sources])
