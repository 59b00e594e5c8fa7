"""The marginal over all READ/WRITE paths: a transducer on the grid (Graves, 2012).

With a probability of reading and of each target token at every cell, the likelihood of a target is
a sum over all monotone paths, which a forward recursion computes exactly. Its gradient trains the
translation model where paths are likely to write, and the reader towards paths that predict the
target well; no single path is chosen. CAAT (Liu et al., 2021), TAED (Tang et al., 2023) and HMT
(Zhang and Feng, 2023) train such sums over some of the states; a grid has all of them.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from nmtgrid.base.config import ABOVE_0, FROM_0, INSIDE_0_1
from nmtgrid.base.rows import is_token
from nmtgrid.data.batches import Batch
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.online.objectives.dynamic import (
    along,
    cell_loss,
    check_grid,
    read_share,
    reader_paths,
)
from nmtgrid.online.oracle import cell_costs, delay_penalty, path_costs
from nmtgrid.online.policies import Threshold
from nmtgrid.search.paths import is_cell
from nmtgrid.training.api import BaseObjective, LossParts, ObjectiveKind
from nmtgrid.training.settings import SmoothedSettings


def log_marginal(
    emission: Tensor, logits: Tensor, source_lengths: Tensor, target_lengths: Tensor
) -> Tensor:
    """Return log sum_z p(z) prod_t exp(emission_{t, z_t}), a sum over all monotone paths z [B].

    emission [B, T, S] is the log-weight of writing at a cell: log p(y_t) minus the cost of delay.
    logits [B, T, S] are those of READ, Eq. (4.9). p(z) is exp(-`dynamic.reader_loss`) on the path,
    Eq. (4.10)-(4.12): paths start with one token read and decide nothing in the last column. If the
    emission is only log p(y_t), a summand is exp of Eq. (4.13). Computed in float64, with gradient;
    O(T S) operations, in T steps of cumulative sums along the source. Padding is ignored.
    """
    size, columns = logits.shape[1:]
    counts = is_cell(source_lengths - 1, target_lengths, size, columns)
    # Padding is filled before any computation, so that it gives no gradient.
    decided = logits.double().masked_fill(~counts, 0.0)
    read, write = (logsigmoid(sign * decided).masked_fill(~counts, 0.0) for sign in (1, -1))
    cells = is_cell(source_lengths, target_lengths, size, columns)
    write = write + emission.double().masked_fill(~cells, 0.0)
    # Log-probability of reading a row from its first column to column j.
    reads = pad(read.cumsum(2)[..., :-1], (1, 0))
    # Row t is entered where row t - 1 was left: reads_{t, j} - reads_{t, i} leads from i to j, so
    # that the sum over all i <= j is a running sum. The first row is entered with one token read.
    log_sums = reads[:, 0] + write[:, 0]
    for t in range(1, size):
        entered = reads[:, t] + (log_sums - reads[:, t]).logcumsumexp(1)
        is_row = (t < target_lengths)[:, None]
        log_sums = torch.where(is_row, entered + write[:, t], log_sums)
    return log_sums.masked_fill(~is_token(source_lengths, columns), -torch.inf).logsumexp(1)


def write_posteriors(
    emission: Tensor, logits: Tensor, source_lengths: Tensor, target_lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Return `log_marginal` [B], with gradient for the logits only, and posteriors [B, T, S].

    A posterior is the share of the marginal whose paths write at a cell; those of a row sum to 1.
    It equals the gradient of the marginal with respect to the emission there, which is why
    emissions need no gradient.
    """
    emission = emission.detach().double().requires_grad_()
    with torch.enable_grad():
        log_sums = log_marginal(emission, logits, source_lengths, target_lengths)
        (posteriors,) = torch.autograd.grad(
            log_sums.sum(), emission, retain_graph=logits.requires_grad
        )
    return log_sums if logits.requires_grad else log_sums.detach(), posteriors


_NO_SHARE = 1e-7


@dataclasses.dataclass(frozen=True)
class MarginalSettings(SmoothedSettings):
    """Settings of training on the marginal likelihood over all paths.

    With label smoothing each cell counts in proportion to its posterior.
    """

    only_with = types.MappingProxyType({"label_smoothing": ("alpha", ABOVE_0)})

    delay_weight: Annotated[float, FROM_0] = 0.0
    """Lambda, the cost of delay, in nats for each token written after the whole source has been
    read; as in `dynamic`."""
    alpha: Annotated[float, FROM_0] = 1.0
    """Weight of the gradient of the translation model; 0: only the reader is trained."""
    offline: Annotated[float, FROM_0] = 0.0
    """Weight of an additional loss: the likelihood given the whole source."""
    area: Annotated[float, FROM_0] = 0.0
    """Weight of an additional loss: the likelihood given each source prefix, the mean over the
    prefixes. The model then stays good off the reader's paths, as with `wait-k-area`."""
    validate_threshold: Annotated[float, INSIDE_0_1] = 0.5
    """Threshold of the reader in validation, for translations and for the loss."""

    def faults(self) -> list[str]:
        faults = super().faults()
        if self.alpha == 0 and (self.offline or self.area):
            faults.append(
                "`objective.offline` and `objective.area` train the translation model, which "
                "`objective.alpha=0` leaves as it is."
            )
        return faults


class Marginal(BaseObjective[MarginalSettings]):
    """-log sum_z p(z) prod_t p(y_t with z_t read) exp(-lambda (z_t - 1) / |x|), over all paths z.

    The cost of delay is that of `oracle_paths`: each write costs lambda times the share of the
    source read so far, with the first token free. `marginal` and `dynamic` are thus comparable at
    the same lambda, and the best weights are chosen by the same criterion, the reader's path and
    its delay.

    Label smoothing does not affect the paths: they are weighted by the likelihood of the reference
    token, and the cross-entropy at each cell, weighted by its posterior, is then smoothed. Inside
    the sum it would favour cells where the model is uncertain, whose distribution is closest to the
    uniform one. Soft targets (`smoothing`) work in the same way.

    Posteriors are constant weights of the fused loss, which gives the exact gradient, so the logits
    [M, V] of a grid are never stored. Cells whose posterior is negligible in float32 are left out:
    most of them, once the reader is confident.
    """

    def check(self, model: TranslationModel) -> None:
        check_grid(model, "marginal", needs_reader=True)

    def agent(self) -> Threshold:
        return Threshold(self.settings.validate_threshold)

    def loss(self, model: TranslationModel, batch: Batch) -> LossParts:
        settings, columns = self.settings, batch.source.shape[1]
        lengths = batch.source_lengths, batch.target_lengths
        sites = PredictionSites.everywhere(batch)
        features, logits = model.features_with_reading(
            batch, sites, learn_features=bool(settings.alpha)
        )
        costs = cell_costs(model, batch, sites, features)
        price = delay_penalty(settings.delay_weight, lengths[0], columns)
        log_sums, posteriors = write_posteriors(-costs - price, logits, *lengths)
        # The value is the marginal plus the effect of smoothing. The expected cost that is
        # subtracted has no gradient; the gradient of the fused loss is that of the marginal.
        marginal = -log_sums.sum()
        extra = {"marginal": marginal.detach()}
        if not settings.alpha:
            total = marginal.to(costs.dtype)
        else:
            weights = posteriors
            if settings.offline:
                is_last = ~is_token(lengths[0] - 1, columns)[:, None]
                weights = weights + settings.offline * is_last
            if settings.area:
                weights = weights + settings.area / lengths[0][:, None, None]
            # Sites at which no path writes need no classifier.
            shares = weights[sites.cells].float()
            counts = shares > _NO_SHARE
            write_loss = cell_loss(
                model, batch, sites, features, counts, settings.label_smoothing, shares
            )
            expected = (posteriors * costs).sum()
            if settings.alpha != 1:
                write_loss, expected = settings.alpha * write_loss, settings.alpha * expected
            total = write_loss + (marginal - expected).to(write_loss.dtype)
            extra["write_cells"] = counts.sum()
        paths = reader_paths(logits, batch.source_lengths, settings.validate_threshold)
        reads = torch.arange(1, columns + 1, device=costs.device) / lengths[0][:, None, None]
        extra["expected_reads"] = (posteriors * reads).sum()
        extra["agent_reads"] = read_share(paths, batch)
        criterion = None
        if settings.delay_weight and not model.training:
            criterion = path_costs(costs, paths, *lengths, settings.delay_weight).sum()
        tokens = batch.token_count
        return LossParts(total, tokens, along(costs, paths, batch), extra, criterion)


MARGINAL = ObjectiveKind(
    "marginal",
    "online: a model and its reader, by the likelihood summed over all READ/WRITE paths",
    MarginalSettings,
    Marginal,
    takes_samples=False,
    takes_two_passes=False,
)
