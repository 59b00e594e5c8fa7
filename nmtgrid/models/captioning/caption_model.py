"""What the models that caption pictures share: pictures as sources, embeddings and classifier.

A source is a picture [B, S, F]: S regions, zero on padding, of F features each. Where other models
are told the number of source types, these are told 4 + F: the features stand in the place of types,
behind the special symbols.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.masks import is_token
from nmtgrid.data.batches import Batch
from nmtgrid.layers.embedding import Embedding
from nmtgrid.layers.kernels.linear import linear
from nmtgrid.layers.recurrent.lstm import LayerOutput, draw_uniform
from nmtgrid.models.api import Classifier, Sites, TranslationModel
from nmtgrid.models.captioning.config import CaptionConfig
from nmtgrid.text.vocabulary import PAD, SPECIALS


class CaptionModel(TranslationModel):
    """A model of captions given a picture; its constructor ends with `reset_parameters`."""

    config: CaptionConfig

    def __init__(
        self, config: CaptionConfig, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        """Raises ConfigError where there is no feature."""
        super().__init__()
        self.config = config
        self.feature_size = source_vocab_size - len(SPECIALS)
        if self.feature_size < 1:
            raise ConfigError(
                f"A `{self.architecture}` counts the features of a region as source types, after "
                f"{len(SPECIALS)} special symbols: {source_vocab_size} leave none.",
                "For F features give `--source-vocab-size` F + 4.",
            )
        self.target_embedding = Embedding(
            target_vocab_size, config.embedded, positions="none", scale=False,
            dropout_rate=config.embedding_dropout, padding=PAD,
        )  # fmt: skip
        self.decoder_output = LayerOutput(config.output_dropout)
        is_mapped = config.classified != config.size
        self.output_map = nn.Linear(config.size, config.classified, False) if is_mapped else None
        matrix = torch.empty(target_vocab_size, config.classified)
        self.output_weight = nn.Parameter(matrix) if config.tie == "none" else None
        self.output_bias = (
            nn.Parameter(torch.empty(target_vocab_size)) if config.output_bias else None
        )

    def reset_parameters(self) -> None:
        """Draw every parameter uniformly, from +-0.1 at 256 features; `<pad>` and biases zero."""
        draw_uniform(self, self.config.size)
        with torch.no_grad():
            self.target_embedding.weight[PAD].zero_()
            if self.output_bias is not None:
                self.output_bias.zero_()

    def classifier(self) -> Classifier:
        """Return the output map, tied to the embeddings if `tie` is target."""
        weight = self.target_embedding.weight if self.output_weight is None else self.output_weight
        return Classifier(weight, self.output_bias)

    def mean_region(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Return [B, F], the mean over the regions of each picture."""
        is_region = is_token(lengths, source.shape[1])[:, :, None]
        count = lengths[:, None].to(source.dtype)
        return source.masked_fill(~is_region, 0.0).sum(1) / count

    def classified(self, states: Tensor) -> Tensor:
        """Return what the classifier reads [..., C], for states [..., D]."""
        return states if self.output_map is None else linear(states, self.output_map.weight)

    def at_sites(self, states: Tensor, sites: Sites) -> Tensor:
        """Return the features [M, C] of sites, for the states [T, B, D] of all positions."""
        outputs: Tensor = self.decoder_output(self.classified(states))
        places = sites.position * outputs.shape[1] + sites.sentence
        return outputs.flatten(0, 1).index_select(0, places)

    def check_sites(self, sites: Sites) -> None:
        """Raise ConfigError for limited reads and early exits."""
        if sites.reads is not None:
            raise self.refusal()
        if sites.depth is not None:
            raise self.no_exits()

    def embedded(self, batch: Batch) -> Tensor:
        """Return the target's embeddings [T, B, E]."""
        vectors: Tensor = self.target_embedding(batch.target_input)
        return vectors.transpose(0, 1)

    def refusal(self) -> ConfigError:
        """Return the error for limited reads: a picture is there at once."""
        return ConfigError(
            f"A `{self.architecture}` cannot go online: the regions of a picture have no order in "
            "which they could be read one by one.",
            "For online translation train a `transformer` or `pervasive` on text.",
        )
