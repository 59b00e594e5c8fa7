"""Any objective, smoothed: what it is trained on is spread around the truth (Appendix E)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from nmtgrid.data.batches import Batch
from nmtgrid.data.dataset import Dataset
from nmtgrid.layers.aims import Aims, NeighbourSpread, Spread, VectorSpread
from nmtgrid.models.api import TranslationModel
from nmtgrid.search.api import Agent
from nmtgrid.smoothing.rewards import (
    RewardOf,
    bleu_reward,
    cider_reward,
    importance_weights,
    relative_units,
)
from nmtgrid.smoothing.samplers import Choices, Samples, as_batch, draw_samples
from nmtgrid.smoothing.vectors import type_frequencies, type_vectors
from nmtgrid.training.api import LossParts, Objective, wrappers
from nmtgrid.training.settings import RunSettings
from nmtgrid.training.smoothing_settings import SmoothingSettings


class Smoothed:
    """An objective whose targets are smoothed in training. Eq. (E.12) to (E.14), (E.16).

    The token level turns each target into a mixture; the sequence level adds drawn sentences, as
    batches of their own, whose sources are encoded once together with the true sentences', or,
    lazily, as further targets at the predictions of the true prefix. Both together are (E.14).
    `nll` is the truth's, unless `alpha` is 1 and nothing but drawn sentences is seen; `changed`
    tells which share of tokens a drawn sentence has changed. Validation is not smoothed.

    Departs: the mean over L sentences, which (E.7) lacks; rewards are counted in substitutions
    unless `rescale` is off.
    """

    def __init__(
        self,
        base: Objective,
        settings: SmoothingSettings,
        size: int,
        spread: Spread | None = None,
        reward: RewardOf | None = None,
    ) -> None:
        """`size` is V; `spread` is needed where tokens are compared, `reward` beside Hamming's."""
        self.base, self.settings, self.size = base, settings, size
        self.spread, self.reward = spread, reward

    def check(self, model: TranslationModel) -> None:
        """Raise ConfigError where the objective itself cannot train `model`."""
        self.base.check(model)

    def agent(self) -> Agent | None:
        """Return the objective's own agent."""
        return self.base.agent()

    def loss(self, model: TranslationModel, batch: Batch) -> LossParts:
        """Return the smoothed loss, and out of training the objective's own."""
        if not model.training:
            return self.base.loss(model, batch)
        settings = self.settings.sequence
        if not settings.alpha:
            return self.base.loss(model, self._aimed(batch))
        samples = self.draw(batch)
        weights = settings.alpha * self.weigh(batch, samples)
        changed = samples.distances.double().mean(1).sum()
        if settings.lazy:
            parts = self.base.loss(model, self._lazy(batch, samples.tokens, weights))
        else:
            batch = batch.sharing()
            drawn = self.base.loss(model, self._aimed(as_batch(batch, samples.tokens, weights)))
            parts = drawn
            if settings.alpha < 1:
                parts = self.base.loss(model, self._aimed(batch))
                total = (1 - settings.alpha) * parts.total + drawn.total
                parts = dataclasses.replace(parts, total=total)
        tokens = int(batch.target_lengths.sum())
        return dataclasses.replace(parts, tokens=tokens, extra={**parts.extra, "changed": changed})

    def draw(self, batch: Batch) -> Samples:
        """Return L sentences near each true one."""
        settings = self.settings.sequence
        hamming = settings.reward == "hamming"
        return draw_samples(
            batch,
            Choices.of(settings.vocabulary, batch, self.size),
            settings.samples,
            settings.temperature if hamming else settings.proposal_temperature,
            rescale=settings.rescale,
            spread=self.spread if settings.substitutes == "similar" else None,
        )

    def weigh(self, batch: Batch, samples: Samples) -> Tensor:
        """Return what each sample counts [B, L], one together for each sentence."""
        settings = self.settings.sequence
        if self.reward is None:
            # Drawn from the reward's own distribution.
            return torch.full_like(samples.logs, 1 / samples.logs.shape[1])
        rewards = self.reward(batch, samples.tokens)
        if settings.rescale:
            rewards = relative_units(rewards, batch.target_lengths - 1, samples.others)
        return importance_weights(rewards / settings.temperature, samples.logs)

    def _aims(self, tokens: Tensor, shares: Tensor) -> Aims:
        alpha = self.settings.token.alpha
        return Aims(tokens, shares, self.spread if alpha else None, alpha, self.settings.entropy)

    def _aimed(self, batch: Batch) -> Batch:
        """Return the batch, each of its targets spread."""
        if not (self.settings.token.alpha or self.settings.entropy):
            return batch
        tokens = batch.target_output[..., None]
        aims = self._aims(tokens, torch.ones_like(tokens, dtype=torch.float32))
        return dataclasses.replace(batch, aims=aims)

    def _lazy(self, batch: Batch, drawn: Tensor, weights: Tensor) -> Batch:
        """Return the batch with the truth and the samples [B, L, T] as one mixture. Eq. (E.16)."""
        truth = batch.target_output[..., None]
        tokens = torch.cat([truth, drawn.transpose(1, 2)], 2)
        own = weights.new_full((len(batch), 1), 1 - self.settings.sequence.alpha)
        shares = torch.cat([own, weights], 1)[:, None].expand(tokens.shape)
        return dataclasses.replace(batch, aims=self._aims(tokens, shares))


def smooth(
    objective: Objective,
    settings: RunSettings,
    dataset: Dataset,
    device: torch.device,
) -> Objective:
    """Return `objective` smoothed as `settings.smoothing` says, or itself."""
    smoothing = settings.smoothing
    if not smoothing.is_on:
        return objective
    sequence = smoothing.sequence
    train, size = dataset.split("train"), len(dataset.pipeline.target_vocabulary)
    spread: VectorSpread | NeighbourSpread | None = None
    if smoothing.needs_spread:
        token = smoothing.token
        spread = VectorSpread(
            type_vectors(token.vectors, dataset),
            token.temperature,
            type_frequencies(train, size),
            token.rarity,
        ).to(device)
        if token.neighbours:
            spread = spread.nearest(token.neighbours)
    reward: RewardOf | None = None
    if sequence.alpha and sequence.reward != "hamming":
        reward = bleu_reward if sequence.reward == "bleu" else cider_reward(train)
    return Smoothed(objective, smoothing, size, spread, reward)


wrappers.add("smoothing", smooth)
