"""Shared by the tests of exits."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from nmtgrid.adaptive.halting import AnyHalt, FixedExit, Predicted, RandomExit, Thresholds
from nmtgrid.data.batches import Batch
from nmtgrid.models import zoo
from nmtgrid.models.api import ExitModel, PredictionSites, with_exits
from tests.invariants.helpers import SOURCE_TYPES, Case, model_and_batch


def build(case: Case) -> ExitModel:
    return with_exits(case.build())


def exits_and_batch(case: Case, *lengths: Sequence[int]) -> tuple[ExitModel, Batch]:
    """Return the model of a case with exits and sentences of these lengths for it."""
    model, batch = model_and_batch(case, *lengths)
    return with_exits(model), batch


def sites_at(
    batch: Batch, depths: Tensor, *, mixed: bool, path: Tensor | None = None
) -> PredictionSites:
    """Return all sites of the batch, at the exits `depths` [B, T]."""
    sites = PredictionSites.offline(batch) if path is None else PredictionSites.along(batch, path)
    depth = depths[sites.sentence, sites.position]
    return dataclasses.replace(sites, depth=depth, mixed=mixed)


def predicted(model: ExitModel, batch: Batch, sites: PredictionSites) -> Tensor:
    """Return log-probabilities [B, T, V] of sites from the classifiers of their own exits."""
    features = model.features(batch, sites)
    classifiers = [model.classifier(exit) for exit in range(1, model.traits.num_exits + 1)]
    assert sites.depth is not None
    logits = torch.stack(
        [
            feature @ classifiers[exit].weight.t()
            + (0 if (b := classifiers[exit].bias) is None else b)
            for feature, exit in zip(features, (sites.depth - 1).tolist(), strict=True)
        ]
    )
    values = logits.new_zeros(*batch.target_input.shape, logits.shape[-1])
    return values.index_put((sites.sentence, sites.position), logits.log_softmax(-1))


def halts(model: ExitModel) -> list[AnyHalt]:
    """Return one halt of each kind that the model supports, with thresholds in the middle."""
    count = model.traits.num_exits
    choices: list[AnyHalt] = [FixedExit(1), FixedExit(2), FixedExit(count), RandomExit(count, 3)]
    choices.append(Thresholds("confidence", (0.3,) * (count - 1)))
    halting = model.traits.halting
    if halting == "geometric":
        choices.append(Thresholds("geometric", (0.5,) * (count - 1)))
    elif halting != "none":
        choices.append(Predicted(halting))
    return choices


def truncated(model: ExitModel, depth: int) -> ExitModel:
    """Return a model with the first `depth` decoder blocks and the classifier after them."""
    config = dataclasses.replace(
        model.config, decoder_depth=depth, exits="none", halting="none", tie="none"
    )
    types = model.classifier().weight.shape[0]
    source_types = types if model.config.tie == "all" else SOURCE_TYPES
    short = zoo.from_config(model.architecture, config, source_types, types).eval()
    full, classifier = model.state_dict(), model.classifier(depth)
    mine = {}
    for name, tensor in short.state_dict().items():
        own = f"exit_norms.{depth - 1}." + name.rsplit(".", 1)[-1]
        if name == "output_weight":
            mine[name] = classifier.weight
        elif name == "output_bias":
            assert classifier.bias is not None
            mine[name] = classifier.bias
        elif name.startswith("decoder_norm") and own in full:
            mine[name] = full[own]
        else:
            mine[name] = full[name][: len(tensor)]
    short.load_state_dict(mine)
    assert isinstance(short, ExitModel)
    return short
