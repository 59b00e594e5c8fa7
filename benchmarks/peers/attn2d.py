"""The authors' code of Pervasive Attention, loaded unmodified from a folder.

The folder is a checkout of elbayadm/attn2d. Nothing of it is changed, copied or installed: its
package of models is imported by path, without the tasks and criteria that its `__init__` would
load, and aliases that NumPy has removed since are restored in this process.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import types
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from nmtgrid.data.batches import Batch
from nmtgrid.models.pervasive.config import PervasiveConfig
from nmtgrid.text.vocabulary import BEGIN

_MODEL = "examples.pervasive.models.pervasive_attention"
_SPECIAL = 4
"""Number of special symbols at the start of a fairseq dictionary."""
_PAD = 1


def load(folder: Path) -> Any:
    """Return the module of the authors' model. Raises ImportError if it cannot be loaded."""
    for name in ("float", "int", "bool", "object"):
        if name not in vars(numpy):
            setattr(numpy, name, {"float": float, "int": int, "bool": bool, "object": object}[name])
    for name in ("examples", "examples.pervasive"):
        package = types.ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = package
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    try:
        return importlib.import_module(_MODEL)
    except Exception as fault:
        raise ImportError(f"{folder} has no model that loads: {fault}") from fault


def arguments(module: Any, config: PervasiveConfig) -> argparse.Namespace:
    """Return the options for a model like `config`, with the authors' values for the others."""
    parser = argparse.ArgumentParser()
    module.PervasiveModel.add_args(parser)
    networks = importlib.import_module("examples.pervasive.modules").CONVNET_REGISTRY
    networks["resnet"].add_args(parser)
    options = parser.parse_args([])
    for name in [name for name, value in vars(options).items() if value is None]:
        delattr(options, name)
    aggregator = "attn" if config.aggregation == "attention" else config.aggregation
    values = dict(
        convnet="resnet", aggregator=aggregator, num_layers=config.depth,
        kernel_size=config.target_kernel, conv_bias=True, divide_channels=2,
        ffn_dim=config.feed_forward_size, bottleneck=config.size,
        encoder_embed_dim=config.size, decoder_embed_dim=config.size, output_dim=config.size,
        convolution_dropout=config.dropout, embeddings_dropout=config.embedding_dropout,
        prediction_dropout=config.output_dropout, add_positional_embeddings=True,
        share_decoder_input_output_embed=True, left_pad_source=False, left_pad_target=False,
        encoder_embed_path=None, decoder_embed_path=None, memory_efficient=False,
    )  # fmt: skip
    vars(options).update(values)
    return options


def build(folder: Path, config: PervasiveConfig, types_of: tuple[int, int]) -> nn.Module:
    """Return the authors' model for `config` and these numbers of (source, target) types."""
    module = load(folder)
    dictionary = importlib.import_module("fairseq.data").Dictionary
    dictionaries = []
    for count in types_of:
        symbols = dictionary()
        for index in range(count - len(symbols)):
            symbols.add_symbol(str(index))
        dictionaries.append(symbols)
    source, target = dictionaries
    task = types.SimpleNamespace(source_dictionary=source, target_dictionary=target)
    model: nn.Module = module.PervasiveModel.build_model(arguments(module, config), task)
    return model


def loss(model: nn.Module, batch: Batch, smoothing: float) -> Tensor:
    """Return the authors' label-smoothed loss, summed over the tokens of `batch`."""
    criterion: Any = importlib.import_module("fairseq.criterions.label_smoothed_cross_entropy")
    logits = model(_known(batch.source), batch.source_lengths, _known(batch.target_input))[0]
    values = torch.log_softmax(logits.float(), -1)
    total: Tensor = criterion.label_smoothed_nll_loss(
        values.flatten(0, 1), _known(batch.target_output).flatten(), smoothing, ignore_index=_PAD
    )[0]
    return total


class Steps:
    """Decodes step by step with the authors' caches; every row gets the same token."""

    def __init__(self, model: Any, source: Tensor) -> None:
        self.model, self.state = model.eval(), {}  # type: ignore[var-annotated]
        self.encoded = model.encoder(_known(source))
        self.prefix = torch.full((len(source), 1), BEGIN + _SPECIAL, device=source.device)

    @torch.no_grad()
    def __call__(self) -> None:
        """Do one step."""
        self.model.decoder(self.prefix, self.encoded, incremental_state=self.state)
        self.prefix = torch.cat([self.prefix, self.prefix[:, :1]], 1)


def _known(tokens: Tensor) -> Tensor:
    """Convert our tokens to fairseq's padding index; other tokens only need to be in range."""
    return torch.where(tokens == 0, _PAD, tokens.clamp(min=2))
