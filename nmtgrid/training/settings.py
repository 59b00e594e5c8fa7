"""Settings of a training run: frozen dataclasses, checked before any data is read.

`prepare.py` fills them from presets, options and `--set`; `docs/settings.py` lists them.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from nmtgrid.base.config import (
    ABOVE_0,
    BELOW_1,
    FROM_0,
    FROM_1,
    INSIDE_0_1,
    SEED,
    SHARE,
    CheckedSettings,
    Condition,
    Range,
    holds,
)
from nmtgrid.search.api import SearchPlan

Reward = Literal["hamming", "bleu", "cider"]
Vocabulary = Literal["all", "batch", "references"]


@dataclasses.dataclass(frozen=True)
class SmoothedSettings(CheckedSettings):
    """The settings of an objective whose targets are smoothed."""

    group = "objective"

    label_smoothing: Annotated[float, BELOW_1] = dataclasses.field(default=0.1, kw_only=True)
    """Probability mass of label smoothing, spread evenly over the vocabulary."""


_NEIGHBOURS = Range(
    "0, or at least 2 (a token is its own nearest neighbour)",
    lambda value: value == 0 or value >= 2,
)


@dataclasses.dataclass(frozen=True)
class TokenSmoothing(CheckedSettings):
    """Token-level smoothing: part of a token's target goes to similar tokens."""

    group = "smoothing.token"

    alpha: Annotated[float, SHARE] = 0.0
    """Share of the target distribution that goes to similar tokens; 0: none. Eq. (E.13)."""
    temperature: Annotated[float, ABOVE_0] = 0.2
    """Tau: a higher temperature spreads this share more widely; in units of cosine similarity. Eq.
    (E.10)."""
    rarity: Annotated[float, FROM_0] = 0.0
    """Beta: penalty of candidates as frequent as the reference token, which promotes rare tokens.
    Eq. (E.11)."""
    neighbours: Annotated[int, _NEIGHBOURS] = 0
    """Number of most similar types kept for each token; 0: all, as in Eq. (E.10)."""
    vectors: str = "own"
    """Vectors between which cosine similarity is measured: `own`, learnt from the training targets;
    a model directory, for its target embeddings; or a text file with a type and its numbers on each
    line."""


@dataclasses.dataclass(frozen=True)
class SequenceSmoothing(CheckedSettings):
    """Sequence-level smoothing: the loss includes sampled sentences close to the reference."""

    group = "smoothing.sequence"
    only_with = types.MappingProxyType(
        dict.fromkeys(
            (
                "reward", "temperature", "vocabulary", "substitutes", "samples", "lazy", "rescale",
            ),
            ("alpha", ABOVE_0),
        )
        | {"proposal_temperature": ("reward", ("bleu", "cider"))}
    )  # fmt: skip

    alpha: Annotated[float, SHARE] = 0.0
    """Share of the loss that is computed on sampled sentences; 0: none. Eq. (E.12)."""
    reward: Reward = "hamming"
    """Similarity to the reference: Hamming distance (few replaced tokens), BLEU or CIDEr."""
    temperature: Annotated[float, ABOVE_0] = 0.37
    """Tau of the reward: a lower temperature samples sentences closer to the reference. Eq.
    (E.5)."""
    vocabulary: Vocabulary = "all"
    """Types that may replace a token: all, those of the batch, or those of the sentence's
    references."""
    substitutes: Literal["uniform", "similar"] = "uniform"
    """How replacements are sampled: uniformly, or by the similarity of token-level smoothing."""
    samples: Annotated[int, FROM_1] = 1
    """L, the number of sentences sampled for each reference."""
    lazy: bool = False
    """Predict the sampled sentences from the reference prefix, which needs only one forward pass.
    Eq. (E.16)."""
    rescale: bool = True
    """Measure rewards in substitutions, and divide the weight of one sentence among all sentences
    at the same distance. With the Hamming reward each token is then replaced with odds of exp(-1 /
    temperature), 6 % at 0.37, whatever the size of the vocabulary. For BLEU and CIDEr the unit is
    the reward lost by the first substitution. `false` is the printed form: the exponent is the
    reward over the temperature."""
    proposal_temperature: Annotated[float, ABOVE_0] = 0.37
    """With the rewards `bleu` and `cider`: tau of the Hamming distance from which sentences are
    sampled before they are weighted."""

    def faults(self) -> list[str]:
        faults, group = super().faults(), self.group
        if not self.alpha:
            return faults
        if self.reward != "hamming" and self.samples == 1:
            faults.append(
                f"`{group}.reward={self.reward}` weights several sampled sentences against each "
                f"other: set `{group}.samples` to 2 or more."
            )
        if self.substitutes == "similar" and self.vocabulary != "all":
            faults.append(
                f"`{group}.substitutes=similar` samples from all types: leave `{group}.vocabulary` "
                "at `all`."
            )
        return faults


@dataclasses.dataclass(frozen=True)
class SmoothingSettings(CheckedSettings):
    """Loss smoothing (appendix E); off by default."""

    group = "smoothing"

    token: TokenSmoothing = dataclasses.field(default_factory=TokenSmoothing)
    sequence: SequenceSmoothing = dataclasses.field(default_factory=SequenceSmoothing)
    entropy: Annotated[float, FROM_0] = 0.0
    """Gamma: weight of the entropy of the predictions, in nats, that is subtracted from the loss
    (table E.1)."""

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
        """Return notes on token-level settings without effect, because no types are compared."""
        if self.needs_spread:
            return []
        return [
            f"`smoothing.token.{field.name}` has no effect while `smoothing.token.alpha` is 0."
            for field in dataclasses.fields(self.token)
            if getattr(self.token, field.name) != field.default
        ]


Schedule = Literal["inverse-sqrt", "cosine", "cosine-time", "plateau", "step", "constant"]
Optimiser = Literal["adamw", "adam", "nesterov", "muon"]
Precision = Literal["auto", "fp32", "bf16"]
RunClock = Literal["wall", "processor"]
BestBy = Literal["loss", "bleu", "cider"]
_FRACTION = Range("from 0 to 1 (a fraction of `training.learning_rate`)", SHARE.contains)


@dataclasses.dataclass(frozen=True)
class TrainingSettings(CheckedSettings):
    """Optimisation, validation, checkpoints and the end of a run.

    0 switches off a limit, an interval, gradient clipping, decay or averaging. Minutes are those of
    the whole run, including validation and saving, and continue to count when it is resumed.
    """

    group = "training"
    only_with = types.MappingProxyType(
        dict.fromkeys(("beta1", "beta2", "epsilon"), ("optimiser", ("adamw", "adam", "muon")))
        | {
            "momentum": ("optimiser", ("nesterov",)),
            "muon_momentum": ("optimiser", ("muon",)),
            "warmup_updates": (
                "schedule", ("inverse-sqrt", "cosine", "plateau", "step", "constant"),
            ),
            "warmup_fraction": ("schedule", ("cosine-time",)),
            "final_learning_rate": ("schedule", ("cosine", "cosine-time")),
            "decay_factor": ("schedule", ("plateau", "step")),
            "decay_patience": ("schedule", ("plateau",)),
            "decay_threshold": ("schedule", ("plateau",)),
            "decay_updates": ("schedule", ("step",)),
            "validate_sentences": ("validate_bleu", (True,)),
            "validate_share": ("validate_epochs", ABOVE_0),
            "ema_updates": ("ema_decay", ABOVE_0),
            "r_drop_from": ("r_drop", ABOVE_0),
        }
    )  # fmt: skip

    optimiser: Optimiser = "adamw"
    """`nesterov` is SGD with Nesterov momentum; `muon` updates hidden matrices with Muon and all
    other parameters with AdamW."""
    learning_rate: Annotated[float, ABOVE_0] = 0.002
    """Peak learning rate, at the end of the warm-up."""
    beta1: Annotated[float, BELOW_1] = 0.9
    """Adam: decay rate of the mean of gradients."""
    beta2: Annotated[float, BELOW_1] = 0.98
    """Adam: decay rate of the mean of squared gradients."""
    epsilon: Annotated[float, ABOVE_0] = 1e-8
    """Adam: added to the denominator of an update."""
    momentum: Annotated[float, BELOW_1] = 0.99
    """Momentum of `nesterov`."""
    muon_momentum: Annotated[float, BELOW_1] = 0.95
    """Momentum of Muon."""
    weight_decay: Annotated[float, FROM_0] = 0.0001
    """Weight decay: decoupled for `adamw` and `muon`, an L2 penalty for the others. It applies to
    matrices and larger tensors, not to biases and normalisation parameters."""
    clip_norm: Annotated[float, FROM_0] = 5.0
    """Maximum norm of the gradient of the loss per target token; larger gradients are scaled down.
    0: off."""
    shard: bool = False
    """With several processes: shard weights, gradients and optimiser states over them (FSDP), for
    models that do not fit into the memory of one device."""
    schedule: Schedule = "inverse-sqrt"
    """Learning-rate schedule after the warm-up: the inverse square root of the updates; a cosine
    over `max_updates` (`cosine`) or `max_minutes` (`cosine-time`); a reduction whenever validation
    stops improving (`plateau`) or every `decay_updates` (`step`); or constant."""
    warmup_updates: Annotated[int, FROM_0] = 4000
    """Updates of the warm-up, in which the learning rate rises."""
    warmup_fraction: Annotated[float, BELOW_1] = 0.05
    """With `cosine-time`: share of `max_minutes` for the warm-up."""
    initial_learning_rate: Annotated[float, FROM_0] = 1e-7
    """Learning rate at the start of the warm-up."""
    final_learning_rate: Annotated[float, _FRACTION] = 0.01
    """Learning rate at the end of a cosine schedule, as a fraction of `learning_rate`."""
    decay_factor: Annotated[float, INSIDE_0_1] = 0.8
    """With `plateau` and `step`: factor by which the learning rate is multiplied at each decay."""
    decay_patience: Annotated[int, ABOVE_0] = 3
    """With `plateau`: validations without improvement before a decay."""
    decay_threshold: Annotated[float, FROM_0] = 0.0
    """With `plateau`: minimum decrease of the validation loss, in nats per token, that counts as an
    improvement."""
    decay_updates: Annotated[int, ABOVE_0] = 10000
    """With `step`: updates between decays."""
    seed: Annotated[int, SEED] = 1
    """Random seed of initialisation, dropout and the order of the training pairs."""
    precision: Precision = "auto"
    """`auto`: bf16 where it is faster than fp32."""
    compile: bool = False
    """Whether torch.compile fuses the element-wise operations of a Transformer's blocks.
    Compilation takes about a minute at the start of each run."""
    max_updates: Annotated[int, FROM_0] = 50000
    """Maximum number of updates; 0: no limit."""
    max_minutes: Annotated[float, FROM_0] = 0.0
    """Maximum duration in minutes; the final validation is extra; 0: no limit."""
    clock: RunClock = "wall"
    """Clock of time limits and rates: `wall`, or `processor`, the processor time of all CPU
    threads, so that runs on a shared machine are comparable."""
    max_epochs: Annotated[int, FROM_0] = 0
    """Maximum number of epochs; 0: no limit."""
    patience: Annotated[int, FROM_0] = 0
    """Validations without improvement, by `best_by`, before training stops early. 0: off."""
    best_by: BestBy = "loss"
    """Criterion for the best weights: the validation loss (some objectives have a criterion of
    their own), or BLEU or (captions only) CIDEr-D of greedy translations. When a model overfits,
    its loss rises long before its translations become worse."""
    validate_updates: Annotated[int, FROM_0] = 0
    """Updates between validations. 0: off."""
    validate_minutes: Annotated[float, FROM_0] = 0.0
    """Minutes between validations. 0: off."""
    validate_epochs: Annotated[int, FROM_0] = 1
    """Epochs between validations. 0: off."""
    validate_share: Annotated[float, BELOW_1] = 0.2
    """Share of the run between validations during the first epoch, so that a run shorter than an
    epoch is validated too. It applies if validation is scheduled by epochs only, without `patience`
    and without the schedule `plateau`. 0: such a run is validated only at its end."""
    validate_bleu: bool = True
    """Whether validation also translates and computes BLEU (captions: and CIDEr-D)."""
    validate_sentences: Annotated[int, FROM_0] = 1000
    """Number of validation sentences to translate; 0: all."""
    save_minutes: Annotated[float, FROM_0] = 10.0
    """Maximum minutes between two saved checkpoints. 0: they are saved only at validations."""
    r_drop: Annotated[float, FROM_0] = 0.0
    """R-Drop: weight alpha of the divergence between two predictions of each pair with different
    dropout (published for translation: 5). 0: off."""
    r_drop_from: Annotated[float, BELOW_1] = 0.0
    """Share of the run before R-Drop begins, measured by the first limit of updates, minutes or
    epochs that the run will reach."""
    log_updates: Annotated[int, ABOVE_0] = 50
    """Updates between two lines of the log."""
    watch_gradients: Annotated[int, FROM_0] = 0
    """Updates between two measurements of gradient norms at the output of each layer. The norms,
    and the ratio of the first encoder layer to the last, are written to metrics.jsonl. 0: off."""
    average: Annotated[int, FROM_0] = 0
    """Number of checkpoints whose weights are averaged at the end: those of the last scheduled
    validations, and the final one. 2 or more; 0: off."""
    ema_decay: Annotated[float, BELOW_1] = 0.0
    """Decay rate of an exponential moving average of the weights; in the first steps it is a plain
    mean. 0: off."""
    ema_updates: Annotated[int, ABOVE_0] = 4
    """Updates between two steps of the moving average."""

    def faults(self) -> list[str]:
        faults = super().faults()
        if not (self.max_updates or self.max_minutes or self.max_epochs):
            faults.append(
                "The run has no end: set `training.max_updates`, `training.max_minutes` or "
                "`training.max_epochs`."
            )
        if self.optimiser in ("muon", "nesterov") and self.shard:
            faults.append(
                f"`training.optimiser={self.optimiser}` does not support `training.shard`: use "
                "`adamw` or `adam`, or set `training.shard=false`."
            )
        if self.schedule == "cosine" and not self.max_updates:
            faults.append("`training.schedule` cosine needs `training.max_updates`.")
        if self.schedule == "cosine-time" and not self.max_minutes:
            faults.append(
                "`training.schedule` cosine-time needs `training.max_minutes` (--max-minutes)."
            )
        if self.best_by != "loss" and not self.validate_bleu:
            faults.append(
                f"`training.best_by={self.best_by}` needs translations: set "
                "`training.validate_bleu=true`."
            )
        if not self.validates:
            faults += [
                f"{name} counts validations, but there are none: set `training.validate_epochs`, "
                "`validate_updates` or `validate_minutes`."
                for name in self.counting_validations
            ]
        return faults

    @property
    def validates(self) -> bool:
        """Whether there are validations before the last one."""
        return bool(self.validate_updates or self.validate_minutes or self.validate_epochs)

    @property
    def counting_validations(self) -> list[str]:
        """Names of the settings that have no effect without validations."""
        names = ["`training.patience`"] if self.patience > 0 else []
        return [*names, "`training.schedule` plateau"] if self.schedule == "plateau" else names

    @property
    def suspending_share(self) -> list[str]:
        """Names of the settings with which `validate_share` has no effect."""
        names = [
            f"`training.{name}`"
            for name in ("validate_updates", "validate_minutes")
            if getattr(self, name)
        ]
        return names + self.counting_validations


@dataclasses.dataclass(frozen=True)
class BatchSettings(CheckedSettings):
    """How sentence pairs are grouped into batches; an update takes `accumulation` batches."""

    group = "batches"

    max_tokens: Annotated[int, ABOVE_0] = 4000
    """Maximum target tokens per batch, including padding and end symbols."""
    max_cells: Annotated[int, FROM_0] = 0
    """Maximum grid cells per batch (sentences x target x source positions), including padding."""
    max_length: Annotated[int, FROM_0] = 100
    """Training pairs with more tokens on either side are skipped; their number is reported. 0: no
    limit."""
    accumulation: Annotated[int, ABOVE_0] = 1
    """Batches per update (gradient accumulation)."""
    source_bpe_dropout: Annotated[float, SHARE] = 0.0
    """BPE-dropout of the source (Provilkov et al. 2020): probability that a merge is skipped when a
    word is segmented, sampled anew in each epoch; 0.1 is usual. A sentence that would become longer
    than `max_length` keeps its normal segmentation."""
    target_bpe_dropout: Annotated[float, SHARE] = 0.0
    """BPE-dropout of the target."""
    source_word_dropout: Annotated[float, BELOW_1] = 0.0
    """Probability that a source token is replaced by `<unk>` in training."""
    target_word_dropout: Annotated[float, BELOW_1] = 0.0
    """Probability that a token of the decoder's input is replaced by `<unk>` in training; the
    tokens to predict stay."""

    @property
    def bpe_dropout(self) -> tuple[float, float]:
        """BPE-dropout of both sides."""
        return self.source_bpe_dropout, self.target_bpe_dropout

    @property
    def word_dropout(self) -> tuple[float, float]:
        """Word dropout of both sides."""
        return self.source_word_dropout, self.target_word_dropout


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """All settings of a run; `model` and `objective` are dataclasses of the chosen kinds."""

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
        """Return warnings about settings that are valid, a sentence or two each."""
        notes = self.smoothing.without_effect()
        label_smoothing: float = getattr(self.objective, "label_smoothing", 0.0)
        if self.smoothing.is_on and label_smoothing:
            notes.append(
                "`objective.label_smoothing` also smooths targets, in addition to `smoothing`: set "
                "it to 0 for the losses of appendix E."
            )
        training = self.training
        if training.average == 1:
            notes.append(
                "`training.average=1` has no effect, because the mean of one checkpoint is that "
                "checkpoint: set 2 or more, or 0."
            )
        if training.average > 1 and not training.validates:
            notes.append(
                "`training.average` averages the checkpoints of scheduled validations, but there "
                "are none: set `training.validate_epochs`, `validate_updates` or "
                "`validate_minutes`."
            )
        if training.schedule != "cosine-time" and (
            0 < training.max_updates < training.warmup_updates
        ):
            notes.append(
                f"The warm-up takes {training.warmup_updates:,} updates, but the run has only "
                f"{training.max_updates:,}: the rate never reaches `training.learning_rate`. "
                "Set a smaller `training.warmup_updates`."
            )
        return notes

    def without_effect(self, named: Collection[str]) -> list[str]:
        """Return notes on settings `named` by the user that have no effect because of others.

        Settings of presets are not reported: they take effect with other settings.
        """
        notes = []
        if "training.validate_share" in named and self.training.validate_epochs:
            notes += [
                f"`training.validate_share` has no effect with {other}."
                for other in self.training.suspending_share
            ]
        for group in (
            "model", "objective", "training", "batches", "smoothing.sequence", "search",
        ):  # fmt: skip
            settings = operator.attrgetter(group)(self)
            conditions: Mapping[str, Condition] = getattr(settings, "only_with", {})
            for name, (other, values) in conditions.items():
                path = other if "." in other else f"{group}.{other}"
                value = operator.attrgetter(path)(self)
                if f"{group}.{name}" in named and not holds(value, values):
                    note = f"`{group}.{name}` has no effect with `{path}={_shown(value)}`"
                    notes.append(f"{note}{_only_with(values)}.")
        return notes


def _only_with(values: tuple[Any, ...] | Range) -> str:
    """Return the end of a note: the values that it takes, unless they are many."""
    if isinstance(values, Range):
        return f", only with {values.text}"
    few = len(values) <= 2
    return f", only with {' or '.join(f'`{_shown(each)}`' for each in values)}" if few else ""


def _shown(value: Any) -> str:
    return str(value).lower()  # `true`, as `--set` takes it


def settings_type(model: type[Any], objective: type[Any]) -> type[RunSettings]:
    """Return RunSettings whose groups `model` and `objective` have these types."""
    groups: Any = (model, objective)
    return _settings_type(*groups)


# With a new type for each call, annotations would be evaluated again each time.
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
