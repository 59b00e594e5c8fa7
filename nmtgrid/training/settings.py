"""Settings of a training run: frozen dataclasses, checked before any data is read.

`resolve.py` fills them from presets, options and `--set`; `docs/settings.py` lists them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

from nmtgrid.search.api import SearchPlan

Reward = Literal["hamming", "bleu", "cider"]
Vocabulary = Literal["all", "batch", "references"]


_RANGES: dict[str, Callable[[float], bool]] = {
    "a number above 0": lambda value: 0 < value < math.inf,
    "a number from 0 on": lambda value: 0 <= value < math.inf,
    "from 0 to 1": lambda value: 0 <= value <= 1,
    "at least 0 and below 1": lambda value: 0 <= value < 1,
    "above 0 and below 1": lambda value: 0 < value < 1,
    "at least 1": lambda value: value >= 1,
}


def outside(settings: Any, group: str, span: str, *names: str) -> list[str]:
    """Return a fault for each of the settings in `group` whose value is not in `span`."""
    faults = []
    for name in names:
        value = getattr(settings, name)
        # Comparisons with NaN are false, so it lies outside of all ranges.
        if not _RANGES[span](value):
            faults.append(f"`{group}.{name}` must be {span}, but is {value}.")
    return faults


@dataclasses.dataclass(frozen=True)
class TokenSmoothing:
    """Settings of the token level: a token's target is spread over those that are like it."""

    alpha: float = 0.0
    """Share of the target that is spread; 0: none. Eq. (E.13)."""
    temperature: float = 0.2
    """Tau: how far it spreads, in units of the cosine. Eq. (E.10)."""
    rarity: float = 0.0
    """Beta: what it costs to be as frequent as the true token. Eq. (E.11)."""
    neighbours: int = 0
    """Types of highest reward that are kept for each token; 0: all, as Eq. (E.10) has it."""
    vectors: str = "own"
    """What cosines are between: `own` vectors, learnt from the training targets; the target
    embeddings of a model directory; or a text file with a type and its numbers on each line."""

    def faults(self) -> list[str]:
        """Return what is wrong with the values."""
        faults = outside(self, "smoothing.token", "from 0 to 1", "alpha")
        faults += outside(self, "smoothing.token", "a number above 0", "temperature")
        faults += outside(self, "smoothing.token", "a number from 0 on", "rarity")
        if self.neighbours < 0 or self.neighbours == 1:
            faults.append(
                "`smoothing.token.neighbours` must be 0, or 2 or more (the nearest to a token is "
                f"itself), but is {self.neighbours}."
            )
        return faults


@dataclasses.dataclass(frozen=True)
class SequenceSmoothing:
    """Settings of the sequence level: sentences near the true one are drawn and count too."""

    alpha: float = 0.0
    """Share of the loss that is taken on drawn sentences; 0: none. Eq. (E.12)."""
    reward: Reward = "hamming"
    """What makes a sentence near: few changed tokens, or a high BLEU or CIDEr."""
    temperature: float = 0.37
    """Tau of the reward; the lower, the nearer. Eq. (E.5)."""
    vocabulary: Vocabulary = "all"
    """Types that take a token's place: all, those of the batch, those of the references."""
    substitutes: Literal["uniform", "similar"] = "uniform"
    """Whether they are drawn evenly, or as the token level spreads."""
    samples: int = 1
    """L, the sentences that are drawn for each one."""
    lazy: bool = False
    """Predict drawn sentences from the true prefix: one pass through the model. Eq. (E.16)."""
    rescale: bool = True
    """Count rewards in substitutions, and let the sentences of a distance share what one would
    have: by the Hamming distance a token then changes with odds of exp(-1 / temperature), a
    chance of 6 % at 0.37, whatever the vocabulary. BLEU and CIDEr count in what the first one
    costs; further ones cost less. Off: the exponent is the reward over the temperature, as
    printed."""
    proposal_temperature: float = 0.37
    """Tau of the Hamming distance by which sentences are drawn whose BLEU or CIDEr counts."""

    def faults(self) -> list[str]:
        """Return what is wrong with the values."""
        group = "smoothing.sequence"
        faults = outside(self, group, "from 0 to 1", "alpha")
        faults += outside(self, group, "a number above 0", "temperature", "proposal_temperature")
        faults += outside(self, group, "at least 1", "samples")
        if not self.alpha:
            return faults
        if self.reward != "hamming" and self.samples == 1:
            faults.append(
                f"`{group}.reward={self.reward}` weighs the sentences that are drawn against each "
                f"other: set `{group}.samples` to 2 or more."
            )
        if self.substitutes == "similar" and self.vocabulary != "all":
            faults.append(
                f"`{group}.substitutes=similar` draws from all types: leave `{group}.vocabulary` "
                "at `all`."
            )
        return faults


@dataclasses.dataclass(frozen=True)
class SmoothingSettings:
    """Settings of loss smoothing; nothing is smoothed unless one of them says so."""

    token: TokenSmoothing = dataclasses.field(default_factory=TokenSmoothing)
    sequence: SequenceSmoothing = dataclasses.field(default_factory=SequenceSmoothing)
    entropy: float = 0.0
    """Gamma: how much less the loss is for a nat of the prediction's entropy (table E.1)."""

    @property
    def is_on(self) -> bool:
        """Whether anything is smoothed."""
        return bool(self.token.alpha or self.sequence.alpha or self.entropy)

    @property
    def needs_spread(self) -> bool:
        """Whether types have to be compared."""
        similar = self.sequence.substitutes == "similar"
        return bool(self.token.alpha or (self.sequence.alpha and similar))

    def without_effect(self) -> list[str]:
        """Return what is set and changes nothing, because something else is not set."""
        groups: list[tuple[str, TokenSmoothing | SequenceSmoothing, bool]] = [
            ("token", self.token, self.needs_spread),
            ("sequence", self.sequence, self.sequence.alpha > 0),
        ]
        notes = [
            f"`smoothing.{group}.{field.name}` has no effect while `smoothing.{group}.alpha` is 0."
            for group, settings, is_used in groups
            if not is_used
            for field in dataclasses.fields(settings)
            if getattr(settings, field.name) != field.default
        ]
        sequence, default = self.sequence, SequenceSmoothing().proposal_temperature
        is_changed = sequence.proposal_temperature != default
        if sequence.alpha and sequence.reward == "hamming" and is_changed:
            notes.append(
                "`smoothing.sequence.proposal_temperature` has no effect with the reward "
                "`hamming`, from which sentences are drawn themselves: its `temperature` counts."
            )
        return notes

    def faults(self) -> list[str]:
        """Return what is wrong with the values."""
        return outside(self, "smoothing", "a number from 0 on", "entropy")


Schedule = Literal["inverse-sqrt", "cosine", "cosine-time", "plateau", "step", "constant"]
Optimiser = Literal["adamw", "adam", "nesterov", "muon"]
Precision = Literal["auto", "fp32", "bf16"]
RunClock = Literal["wall", "processor"]


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """How the weights are moved, when the run is checked and saved, and when it ends.

    A zero switches a limit, an interval, clipping, decay or averaging off. Minutes are those of
    the whole run, validation and saving included, carried over when it is resumed.
    """

    optimiser: Optimiser = "adamw"
    """`nesterov` is SGD with Nesterov's momentum; `muon` moves hidden matrices by Muon and all
    else by adamw."""
    learning_rate: float = 0.002
    """The highest one, at the end of the warm-up."""
    beta1: float = 0.9
    """Of Adam: what the mean of gradients keeps at each update."""
    beta2: float = 0.98
    """Of Adam: what the mean of their squares keeps."""
    epsilon: float = 1e-8
    """Of Adam: added to the root of that mean."""
    momentum: float = 0.99
    """Of Nesterov's SGD."""
    muon_momentum: float = 0.95
    """Of Muon: what the mean of a matrix's gradients keeps."""
    weight_decay: float = 0.0001
    """Decoupled for adamw and muon, an L2 penalty for the others; on all parameters of two
    dimensions or more, never on vectors, such as biases and normalisation."""
    clip_norm: float = 5.0
    """Longest gradient, of the loss per target token; longer ones are scaled down to it."""
    shard: bool = False
    """With several processes: spread weights, gradients and moments over them (for models that do
    not fit otherwise)."""
    schedule: Schedule = "inverse-sqrt"
    """How the rate falls after the warm-up: with the inverse root of the updates; by a cosine over
    the updates, or over `max_minutes`; when validation no longer improves; every `decay_updates`;
    not at all."""
    warmup_updates: int = 4000
    """Updates over which the rate climbs."""
    warmup_fraction: float = 0.05
    """Part of max_minutes that the warm-up takes (cosine-time)."""
    initial_learning_rate: float = 1e-7
    """Where the warm-up starts."""
    final_learning_rate: float = 0.01
    """Where the cosine ends, as a part of learning_rate."""
    decay_factor: float = 0.8
    """What the rate is multiplied with (plateau, step)."""
    decay_patience: int = 3
    """Evaluations without improvement before a decay (plateau)."""
    decay_threshold: float = 0.0
    """By how much, in nats per token, a validation loss must be below the best one to count as an
    improvement there (plateau)."""
    decay_updates: int = 10000
    """Updates between decays (step)."""
    seed: int = 1
    """Of the weights' draw, of dropout and of the order of the pairs."""
    precision: Precision = "auto"
    """`auto`: bf16 where it is faster than fp32."""
    compile: bool = False
    """Whether torch compiles what is between the products of a Transformer's blocks: fewer and
    larger kernels, after a minute of compilation at the start of each run."""
    max_updates: int = 50000
    """Updates after which the run ends."""
    max_minutes: float = 0.0
    """Minutes after which it ends, but for the last validation."""
    clock: RunClock = "wall"
    """What minutes and rates are counted by: `processor` adds up the time of all CPU threads, so
    that runs compare on a machine that other work shares."""
    max_epochs: int = 0
    """Epochs after which it ends."""
    patience: int = 0
    """Evaluations without improvement before the run stops."""
    validate_updates: int = 0
    """Updates between validations."""
    validate_minutes: float = 0.0
    """Minutes between validations."""
    validate_epochs: int = 1
    """Epochs between validations."""
    validate_share: float = 0.2
    """Part of the run, by updates or minutes, between validations in the first epoch, where epochs
    alone say when to validate: a run that is shorter than an epoch is validated too (0: only at its
    end)."""
    validate_bleu: bool = True
    """Whether validation translates, for BLEU and, of captions, CIDEr-D."""
    validate_sentences: int = 1000
    """Sentences of the validation split that are translated for that (0: all)."""
    save_minutes: float = 10.0
    """Longest time between two saved states."""
    r_drop: float = 0.0
    """Alpha of R-Drop: every pair is predicted twice, with different dropout, and the loss grows
    with alpha times the divergence between the two predictions (published: 5 for translation).
    0: one pass."""
    r_drop_from: float = 0.0
    """Share of the run, by whichever limit of updates, minutes or epochs is nearest, before which
    there is no R-Drop."""
    log_updates: int = 50
    """Updates between two lines of the log."""
    watch_gradients: int = 0
    """Updates between two measurements of the loss's gradient at each layer's output; their norms,
    and the ratio of the first to the last encoder layer's, go to metrics.jsonl."""
    average: int = 0
    """Number of last checkpoints whose weights are averaged at the end: the states of the last
    validations that were due, and the last one."""
    ema_decay: float = 0.0
    """Running average of the weights: what is kept of it at each step (early on less: it is a
    plain mean)."""
    ema_updates: int = 4
    """Updates between two steps of the running average."""

    def faults(self) -> list[str]:
        """Return what is wrong with the values."""
        group = "training"
        faults = outside(
            self, group, "a number above 0", "learning_rate", "epsilon", "decay_factor"
        )
        below_one = (
            "beta1", "beta2", "momentum", "muon_momentum", "warmup_fraction", "ema_decay",
        )  # fmt: skip
        faults += outside(self, group, "at least 0 and below 1", *below_one)
        faults += outside(self, group, "a number from 0 on", "r_drop")
        faults += outside(self, group, "at least 0 and below 1", "r_drop_from", "validate_share")
        if not 0 <= self.final_learning_rate <= 1:
            faults.append(
                "`training.final_learning_rate` is a part of learning_rate: it must be from 0 "
                f"to 1, but is {self.final_learning_rate}."
            )
        rates = ("weight_decay", "clip_norm", "warmup_updates", "initial_learning_rate")
        faults += outside(self, group, "a number from 0 on", *rates, "decay_threshold")
        if self.decay_factor >= 1:
            faults.append(f"`training.decay_factor` must be below 1, but is {self.decay_factor}.")
        limits = (
            "seed", "max_updates", "max_minutes", "max_epochs", "patience", "validate_updates",
            "validate_minutes", "validate_epochs", "validate_sentences", "save_minutes", "average",
            "watch_gradients",
        )  # fmt: skip
        faults += outside(self, group, "a number from 0 on", *limits)
        above_zero = ("log_updates", "ema_updates", "decay_patience", "decay_updates")
        faults += outside(self, group, "a number above 0", *above_zero)
        if not (self.max_updates or self.max_minutes or self.max_epochs):
            faults.append(
                "The run has no end: set `training.max_updates`, `training.max_minutes` or "
                "`training.max_epochs`."
            )
        if self.optimiser in ("muon", "nesterov") and self.shard:
            faults.append(
                f"`training.optimiser={self.optimiser}` cannot update the shards of matrices that "
                "`training.shard` makes: set adamw or adam, or `training.shard=false`."
            )
        if self.seed >= 2**63:
            faults.append(f"`training.seed` must be below 2^63, but is {self.seed}.")
        if self.schedule == "cosine" and not self.max_updates:
            faults.append("`training.schedule` cosine needs `training.max_updates`.")
        if self.schedule == "cosine-time" and not self.max_minutes:
            faults.append(
                "`training.schedule` cosine-time needs `training.max_minutes` (--max-minutes)."
            )
        if not (self.validate_updates or self.validate_minutes or self.validate_epochs):
            faults += [
                f"{name} counts validations, but there are none: set `training.validate_epochs`, "
                "`validate_updates` or `validate_minutes`."
                for name in self.counting_validations
            ]
        return faults

    @property
    def counting_validations(self) -> list[str]:
        """The settings that do nothing without validations, as they are called."""
        names = ["`training.patience`"] if self.patience > 0 else []
        return [*names, "`training.schedule` plateau"] if self.schedule == "plateau" else names


@dataclasses.dataclass(frozen=True)
class BatchSettings:
    """What makes a batch; an update takes `accumulation` of them."""

    max_tokens: int = 4000
    """Target tokens of a batch, padding and end symbols included."""
    max_cells: int = 0
    """Grid cells of a batch (sentences x target x source positions), padding included."""
    max_length: int = 100
    """Training pairs with more tokens on either side are skipped, counted and told."""
    accumulation: int = 1
    """Batches of an update."""
    source_bpe_dropout: float = 0.0
    """BPE-dropout (Provilkov et al. 2020): probability that a merge is skipped when source words
    are segmented, anew in each epoch; 0.1 is usual. A training sentence that would exceed
    max_length so keeps its plain segmentation."""
    target_bpe_dropout: float = 0.0
    """The same of target words."""
    source_word_dropout: float = 0.0
    """Probability that training shows `<unk>` to the model in place of a source token."""
    target_word_dropout: float = 0.0
    """The same of the target tokens that it reads; those that it predicts stay."""

    @property
    def bpe_dropout(self) -> tuple[float, float]:
        """BPE-dropout of both sides."""
        return self.source_bpe_dropout, self.target_bpe_dropout

    @property
    def word_dropout(self) -> tuple[float, float]:
        """Word dropout of both sides."""
        return self.source_word_dropout, self.target_word_dropout

    def faults(self) -> list[str]:
        """Return what is wrong with the values."""
        faults = outside(self, "batches", "a number above 0", "max_tokens", "accumulation")
        bpe = ("source_bpe_dropout", "target_bpe_dropout")
        words = ("source_word_dropout", "target_word_dropout")
        faults += outside(self, "batches", "from 0 to 1", *bpe)
        faults += outside(self, "batches", "at least 0 and below 1", *words)
        return faults + outside(self, "batches", "a number from 0 on", "max_cells", "max_length")


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """All settings of a run; `model` and `objective` hold the dataclasses of what was chosen."""

    arch: str
    objective_name: str = "likelihood"
    preset: str | None = None
    model: Any = None
    objective: Any = None
    training: TrainingSettings = dataclasses.field(default_factory=TrainingSettings)
    batches: BatchSettings = dataclasses.field(default_factory=BatchSettings)
    smoothing: SmoothingSettings = dataclasses.field(default_factory=SmoothingSettings)
    search: SearchPlan = dataclasses.field(default_factory=SearchPlan)

    def notes(self) -> list[str]:
        """Return what is worth a warning in settings that are right, a sentence or two each."""
        notes = self.smoothing.without_effect()
        label_smoothing: float = getattr(self.objective, "label_smoothing", 0.0)
        if self.smoothing.is_on and label_smoothing:
            notes.append(
                "`objective.label_smoothing` spreads targets evenly beside what `smoothing` does: "
                "set it to 0 for the losses of appendix E."
            )
        training = self.training
        if training.r_drop_from and not training.r_drop:
            notes.append("`training.r_drop_from` has no effect while `training.r_drop` is 0.")
        if training.schedule != "cosine-time" and (
            0 < training.max_updates < training.warmup_updates
        ):
            notes.append(
                f"The warm-up takes {training.warmup_updates:,} updates, but there are only "
                f"{training.max_updates:,}: the rate never reaches `training.learning_rate`. "
                "Set a smaller `training.warmup_updates`."
            )
        return notes


def settings_type(model: type[Any], objective: type[Any]) -> type[RunSettings]:
    """Return RunSettings whose groups `model` and `objective` have these types."""
    groups: Any = (model, objective)
    return _settings_type(*groups)


# A new type for each call would have its annotations evaluated anew.
@functools.cache
def _settings_type(model: type[Any], objective: type[Any]) -> type[RunSettings]:
    fields = (
        ("model", model, dataclasses.field(default_factory=model)),
        ("objective", objective, dataclasses.field(default_factory=objective)),
    )
    typed: type[RunSettings] = dataclasses.make_dataclass(
        "RunSettings", fields, bases=(RunSettings,), frozen=True
    )
    return typed
