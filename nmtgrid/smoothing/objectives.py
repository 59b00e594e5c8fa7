"""Loss smoothing of any objective (appendix E): credit for outputs near the reference.

`Smoothed` wraps an objective. The token level (E.2.2) moves probability mass to types similar to
the reference token; the sequence level (E.2.1) trains on sampled sentences near the reference,
weighted by a reward. `smooth` creates it from a run's settings; the trainer finds it in the
registry of wrappers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from nmtgrid.base.io.arrays import load_tensors, save_tensors
from nmtgrid.base.rows import host_values
from nmtgrid.data.batches import Batch
from nmtgrid.data.dataset import Dataset
from nmtgrid.layers.soft_targets import SoftTargets, TargetDistribution, VectorDistribution
from nmtgrid.models.api import TranslationModel
from nmtgrid.search.api import Agent
from nmtgrid.smoothing.rewards import (
    BleuReward,
    CiderReward,
    Reward,
    importance_weights,
    in_substitutions,
)
from nmtgrid.smoothing.samplers import Choices, Samples, as_batch, draw_samples
from nmtgrid.smoothing.vectors import few_vectors, type_frequencies, type_vectors
from nmtgrid.training.api import OBJECTIVE_FILE, LossParts, Objective
from nmtgrid.training.settings import RunSettings, SmoothingSettings


@dataclasses.dataclass(eq=False)
class Smoothed:
    """An objective whose targets are smoothed in training. Eq. (E.12) to (E.14), (E.16).

    The token level turns each target into a mixture. The sequence level adds sampled sentences: as
    batches of their own that share the encoded source, or, if lazy, as further targets of the
    predictions from the reference prefix. Both together are (E.14). `nll` is that of the
    references, unless `alpha` is 1 and only sampled sentences are seen. `changed` is the weighted
    share of tokens replaced in a sampled sentence, and `effective` the effective number of samples
    (the inverse of the sum of squared weights). Validation is not smoothed.

    Departs: Eq. (E.7) sums over the L sampled sentences; here it is their mean, so that alpha is a
    proportion. In Eq. (E.5) each sentence at a given distance has the full weight of that distance,
    which leaves the reference little weight if the vocabulary is large. Unless `rescale` is off,
    they share the weight of a single one: Hamming distance d has the probability `C(n, d) exp(-d /
    temperature)` up to normalisation, and other rewards are measured in units of one substitution.
    """

    base: Objective
    settings: SmoothingSettings
    size: int
    """V, the number of target types."""
    spread: TargetDistribution | None = None
    """Needed if tokens are compared."""
    reward: Reward | None = None
    """Needed unless it is Hamming's."""
    vectors: Tensor | None = None
    """[V, E]: the vectors that the spread was made from, if they have to be saved."""
    notes: Sequence[str] = ()

    def save(self, folder: Path) -> None:
        """See `StatefulObjective`.

        A resumed run reuses the vectors, wherever they came from.
        """
        if self.vectors is not None and not (folder / OBJECTIVE_FILE).exists():
            save_tensors(folder / OBJECTIVE_FILE, {"vectors": self.vectors})

    def check(self, model: TranslationModel) -> None:
        self.base.check(model)

    def agent(self) -> Agent | None:
        return self.base.agent()

    def loss(self, model: TranslationModel, batch: Batch) -> LossParts:
        """Return the smoothed loss, or, outside of training, the objective's own."""
        if not model.training:
            return self.base.loss(model, batch)
        settings = self.settings.sequence
        if not settings.alpha:
            return self.base.loss(model, self._smoothed(batch))
        # The order of the draws (distances, positions, substitutes) is that of `draw_samples`.
        samples = self.draw(batch)
        shares = self.weigh(batch, samples)
        weights = settings.alpha * shares
        statistics = {"changed": (shares * samples.distances).sum()}
        if self.reward is not None:
            statistics["effective"] = (batch.target_lengths / shares.square().sum(1)).sum()
        if settings.lazy:
            parts = self.base.loss(model, self._lazy(batch, samples.tokens, weights))
        else:
            # One encoding for the true sentences and their samples. The samples' pass comes first,
            # which is the order of the dropout draws.
            batch = batch.with_shared_source()
            sampled_batch = self._smoothed(as_batch(batch, samples.tokens, weights))
            parts = sampled = self.base.loss(model, sampled_batch)
            if settings.alpha < 1:
                parts = self.base.loss(model, self._smoothed(batch))
                total = (1 - settings.alpha) * parts.total + sampled.total
                parts = dataclasses.replace(parts, total=total)
        tokens = batch.token_count
        return dataclasses.replace(parts, tokens=tokens, extra={**parts.extra, **statistics})

    def draw(self, batch: Batch) -> Samples:
        """Return L sentences near each reference."""
        settings = self.settings.sequence
        hamming = settings.reward == "hamming"
        return draw_samples(
            batch,
            Choices.of(settings.vocabulary, batch, self.size),
            settings.samples,
            settings.temperature if hamming else settings.proposal_temperature,
            rescale=settings.rescale or not hamming,
            spread=self.spread if settings.substitutes == "similar" else None,
        )

    def weigh(self, batch: Batch, samples: Samples) -> Tensor:
        """Return the weights of the samples [B, L], which sum to 1 for each sentence."""
        settings = self.settings.sequence
        if self.reward is None:
            # Drawn from the reward's own distribution.
            return torch.full_like(samples.logs, 1 / samples.logs.shape[1])
        if not settings.rescale:
            rewards = self.reward(batch, samples.tokens) / settings.temperature
            return importance_weights(rewards, samples.logs)
        # With `rescale` rewards are compared with that of the reference, which is scored as well.
        reference_first = torch.cat([batch.target_output[:, None], samples.tokens], 1)
        own, rewards = self.reward(batch, reference_first).tensor_split([1], 1)
        losses = torch.tensor(
            [self.reward.loss_of_one(n - 1) for n in host_values(batch.target_lengths)],
            dtype=rewards.dtype, device=rewards.device,
        )  # fmt: skip
        lacking = in_substitutions(rewards, own[:, 0], losses)
        # The probability of the substitutes is the same in both distributions.
        proposed = samples.distances / -settings.proposal_temperature
        return importance_weights(lacking / -settings.temperature, proposed)

    def _soft_targets(self, tokens: Tensor, shares: Tensor) -> SoftTargets:
        settings = self.settings
        return SoftTargets(tokens, shares, self.spread, settings.token.alpha, settings.entropy)

    def _smoothed(self, batch: Batch) -> Batch:
        """Return the batch, with soft targets if tokens are smoothed."""
        if not (self.settings.token.alpha or self.settings.entropy):
            return batch
        tokens = batch.target_output[..., None]
        targets = self._soft_targets(tokens, torch.ones_like(tokens, dtype=torch.float32))
        return dataclasses.replace(batch, soft_targets=targets)

    def _lazy(self, batch: Batch, samples: Tensor, weights: Tensor) -> Batch:
        """Return the batch with reference and samples [B, L, T] as one mixture. Eq. (E.16)."""
        reference = batch.target_output[..., None]
        tokens = torch.cat([reference, samples.transpose(1, 2)], 2)
        reference_weight = weights.new_full((len(batch), 1), 1 - self.settings.sequence.alpha)
        shares = torch.cat([reference_weight, weights], 1)[:, None].expand(tokens.shape)
        return dataclasses.replace(batch, soft_targets=self._soft_targets(tokens, shares))


def smooth(
    objective: Objective,
    settings: RunSettings,
    dataset: Dataset,
    device: torch.device,
    run_folder: Path | None = None,
) -> Objective:
    """Return `objective` with the smoothing of `settings`, or itself without; see `Wrapper`."""
    smoothing = settings.smoothing
    if not smoothing.is_on:
        return objective
    sequence = smoothing.sequence
    train, size = dataset.split("train"), len(dataset.pipeline.target_vocabulary)
    spread: TargetDistribution | None = None
    vectors, notes = None, list[str]()
    if smoothing.needs_spread:
        token = smoothing.token
        frequencies = type_frequencies(train, size)
        # A resumed run reads the vectors that it began with; the file they came from may be gone.
        if run_folder is not None and (run_folder / OBJECTIVE_FILE).is_file():
            vectors = load_tensors(run_folder / OBJECTIVE_FILE)["vectors"]
        else:
            vectors = type_vectors(token.vectors, dataset)
            notes += few_vectors(vectors, frequencies)
        similar = VectorDistribution(vectors, token.temperature, frequencies, token.rarity)
        similar = similar.to(device)
        spread = similar.nearest(token.neighbours) if token.neighbours else similar
    reward: Reward | None = None
    if sequence.alpha and sequence.reward != "hamming":
        reward = BleuReward() if sequence.reward == "bleu" else CiderReward(train)
    return Smoothed(objective, smoothing, size, spread, reward, vectors=vectors, notes=notes)
