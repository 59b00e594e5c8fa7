"""The cases on the pretend GPU: architectures x objectives x options, in training and decoding."""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import traceback
from pathlib import Path
from typing import Any

import torch

from benchmarks import first_gpu_steps as steps
from benchmarks.timing import Conditions
from nmtgrid.adaptive.halting import RandomExit
from nmtgrid.cli.objectives import objectives
from nmtgrid.data.batches import Batch, collate
from nmtgrid.layers.soft_targets import VectorDistribution
from nmtgrid.models import zoo
from nmtgrid.models.api import Halt, TranslationModel, Verified
from nmtgrid.online import policies
from nmtgrid.online.retranslation import HoldN, LocalAgreement, PrefixDecoder, Retranslation
from nmtgrid.search.api import Agent, SearchPlan
from nmtgrid.search.cuda_graphs import Graphs, Recorder
from nmtgrid.search.engine import search
from nmtgrid.smoothing.objectives import Smoothed
from nmtgrid.smoothing.rewards import BleuReward
from nmtgrid.training.api import Objective
from nmtgrid.training.optimiser import make_optimiser, optimiser_tensors
from nmtgrid.training.prepare import Request, resolve
from nmtgrid.training.settings import RunSettings
from nmtgrid.training.trained_model import TrainedModel
from nmtgrid.training.update import GradientWatch, NotFiniteError, Updater
from tests.pretend_gpu.device import CUDA, Counts, Device, PretendGPU

TORCH = torch.__version__
TYPES = 40
STEPS = 8
"""Tokens of each translation, the end symbol counted."""
MORE = 8
"""Additional tokens of a longer translation: caches have room, and all checks are counted."""
SMALL: dict[str, Any] = {
    "depth": 2, "layers": 2, "encoder_depth": 2, "decoder_depth": 2, "size": 32,
    "feed_forward_size": 64, "heads": 4, "embedding_size": 16, "growth": 8,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """An architecture trained for an objective; `options` are those of `--set`."""

    arch: str
    objective: str = "likelihood"
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        options = (option.removeprefix("model.") for option in self.options)
        return " ".join([self.arch, self.objective, *options])


ONLINE = "model.source_causal=true"
TOKEN, SEQUENCE = "smoothing.token.alpha=0.2", "smoothing.sequence.alpha=0.3"
CASES = (
    Case("pervasive"),
    Case("pervasive", options=("model.skip=dense", "model.aggregation=max")),
    Case("pervasive", options=("model.skip=residual-gated", "model.aggregation=gated-max")),
    Case("pervasive", options=("model.skip=residual-norm", "model.aggregation=average")),
    Case("pervasive", options=("model.skip=residual", "model.aggregation=max-attention")),
    Case("pervasive", options=("model.checkpoint_activations=true",)),
    Case("pervasive", options=("training.r_drop=1.0",)),
    Case("pervasive", options=("training.optimiser=muon",)),
    Case("pervasive", "wait-k", (ONLINE,)),
    Case("pervasive", "wait-k-area", (ONLINE, "model.online_features=cell")),
    Case("pervasive", "wait-k-sampled", (ONLINE,)),
    Case("pervasive", "dynamic", (ONLINE, "model.reader=shared")),
    Case("pervasive", "dynamic", (ONLINE, "model.reader=own")),
    Case("pervasive", "divergence", (ONLINE, "model.reader=shared")),
    Case("pervasive", "marginal", (ONLINE, "model.reader=shared")),
    Case("pervasive-densenet"),
    Case("transformer"),
    Case("transformer", options=("model.norm=pre", "model.positions=learned")),
    Case("transformer", options=("training.r_drop=1.0",)),
    Case("transformer", options=("training.optimiser=muon",)),
    Case("transformer", options=("training.optimiser=adam",)),
    Case("transformer", options=("training.optimiser=nesterov",)),
    Case("transformer", options=("training.watch_gradients=1",)),
    Case("transformer", options=("batches.accumulation=2",)),
    Case("transformer", options=("objective.label_smoothing=0.0",)),
    Case("transformer", options=("smoothing.entropy=0.1",)),
    Case("transformer", options=(TOKEN, "smoothing.token.rarity=1.0")),
    Case("transformer", options=(TOKEN, "smoothing.token.neighbours=4")),
    Case("transformer", options=(SEQUENCE,)),
    Case("transformer", options=(SEQUENCE, "smoothing.sequence.lazy=true", TOKEN)),
    Case("transformer", options=(SEQUENCE, "smoothing.sequence.substitutes=similar", TOKEN)),
    Case("transformer", options=(SEQUENCE, "smoothing.sequence.vocabulary=batch")),
    Case(
        "transformer",
        options=(SEQUENCE, "smoothing.sequence.reward=bleu", "smoothing.sequence.samples=2"),
    ),
    Case("pervasive", options=(SEQUENCE, TOKEN)),
    Case("transformer", "wait-k"),
    Case("transformer", "wait-k-sampled"),
    Case("transformer", "exits-aligned", ("model.exits=tied",)),
    Case("transformer", "exits-mixed", ("model.exits=tied",)),
    Case("transformer", "exits-halting", ("model.exits=tied", "model.halting=geometric")),
    Case("transformer", "exits-halting", ("model.exits=separate", "model.halting=multinomial")),
    Case("transformer", "exits-halting", ("model.exits=tied", "model.halting=sequence")),
    Case("transformer", "itst", ("model.encoder=unidirectional", "model.reader=transport")),
    Case("transformer", "wait-info", ("model.encoder=unidirectional", "model.reader=information")),
    Case("transformer", "mma", ("model.encoder=unidirectional", "model.reader=monotonic")),
    Case("convs2s"),
    Case("bilstm"),
    Case("convrnn"),
)


def settings_of(case: Case) -> RunSettings:
    """Return the settings of a case, small."""
    config = zoo.architectures().get(case.arch).config
    names = {field.name for field in dataclasses.fields(config)}
    small = [f"model.{name}={value}" for name, value in SMALL.items() if name in names]
    preset = "toy" if case.arch == "convrnn" else None
    small = [] if preset else small
    request = Request(case.arch, preset, case.objective, (*small, *case.options))
    return resolve(request, objectives)


def draw_batch(count: int = 6) -> Batch:
    """Return random pairs of 3 to 9 tokens a side."""
    draw = random.Random(1)
    source, target = (
        [[draw.randrange(4, TYPES) for _ in range(draw.randint(3, 9))] for _ in range(count)]
        for _ in range(2)
    )
    return collate(source, target)


@dataclasses.dataclass(frozen=True)
class Decoding:
    """How to decode with a model: a search with `plan`, with an ensemble of so many `models`."""

    plan: SearchPlan = dataclasses.field(default_factory=SearchPlan)
    models: int = 1
    is_recorded: bool = False
    agent: Agent | None = None
    halt: Halt | Verified | None = None
    align: bool = False


EXITS: dict[str, Decoding] = {
    "early exit": Decoding(halt=RandomExit(2)),
    "verified exit": Decoding(halt=Verified(1, 3)),
}
# Thresholds that are never reached, so that waits do not depend on random predictions.
POLICIES: dict[str, Agent] = {
    "confidence": policies.Confidence(threshold=0.999),
    "entropy": policies.Entropy(most=1e-6),
    "alignatt": policies.AlignAtt(last=20),
    "edatt": policies.EDAtt(mass=1e-6, last=20),
}
READINESS: dict[str, Agent] = {
    "itst": policies.ITST(delta=100.0),
    "wait-info": policies.WaitInfo(k=100.0),
    "mma": policies.Monotonic(threshold=0.999),
}


def decodings(case: Case) -> dict[str, Decoding]:
    """Return the decodings of a case's model, by name."""
    if not all(option.startswith("model.") for option in case.options):
        return {}  # decoding is that of an earlier case
    beam = SearchPlan(beam=4)
    ways = {
        "greedy": Decoding(is_recorded=True),
        "beam 4": Decoding(beam, is_recorded=True),
    }
    if case in (Case("pervasive"), Case("transformer")):
        sample = SearchPlan(sample=True, top_k=5, top_p=0.9, nbest=2)
        ways |= {
            "ensemble": Decoding(beam, models=2, is_recorded=True),
            "sample": Decoding(sample, is_recorded=True),
            "alignment": Decoding(beam, align=True, is_recorded=True),
            "coverage": Decoding(SearchPlan(beam=4, coverage_penalty=0.2), is_recorded=True),
        }
    if "exits" in case.objective:
        ways |= EXITS
    if case.objective.startswith("wait-k"):
        ways["wait-3"] = Decoding(agent=policies.WaitK(3))
    if case.objective == "dynamic":
        ways["reader"] = Decoding(agent=policies.Threshold(0.5))
    if case.objective in READINESS:
        ways[f"{case.objective} policy"] = Decoding(agent=READINESS[case.objective])
    if case == Case("pervasive", "wait-k", (ONLINE,)) or case.objective == "itst":
        ways |= {name: Decoding(agent=agent) for name, agent in POLICIES.items()}
    return ways


def smoothed(objective: Objective, settings: RunSettings) -> Objective:
    """Return the objective, smoothed according to the settings, with random type vectors."""
    smoothing = settings.smoothing
    if not smoothing.is_on:
        return objective
    token = smoothing.token
    vectors = torch.nn.functional.normalize(torch.randn(TYPES, 4))
    spread: Any = VectorDistribution(vectors, token.temperature, torch.rand(TYPES), token.rarity)
    spread = spread.to(CUDA)
    if token.neighbours:
        spread = spread.nearest(token.neighbours)
    reward = BleuReward() if smoothing.sequence.reward == "bleu" else None
    return Smoothed(objective, smoothing, TYPES, spread, reward)


def measure(case: Case) -> dict[str, dict[str, float]]:
    """Return the counts of the second update and of searches.

    Raises AssertionError with the lines of what must not happen: mixed devices, and waits and
    copies while a graph is recorded.
    """
    torch.manual_seed(1)
    settings = settings_of(case)
    model = zoo.from_config(case.arch, settings.model, TYPES, TYPES)
    objective = objectives.get(case.objective).make(settings.objective)
    objective.check(model)
    with PretendGPU():
        model = model.to(CUDA)
        figures: dict[str, dict[str, float]] = {"update": train(model, objective, settings)}
        model.eval()
        for name, decoding in decodings(case).items():
            figures[name] = decode(model, decoding)
        if case == Case("transformer"):
            for policy in (LocalAgreement(n=2), HoldN(n=2), Retranslation(mask=1)):
                figures[type(policy).__name__] = decode_prefixes(model, policy)
    return figures


def train(model: TranslationModel, objective: Objective, settings: RunSettings) -> dict[str, float]:
    """Do two updates; return the counts of the second one."""
    optimiser = make_optimiser(model, settings.training)
    objective = smoothed(objective, settings)
    updater = Updater(TrainedModel(model, objective), optimiser, CUDA, bf16=True, clip_norm=5.0)
    alpha = settings.training.r_drop or None
    batch = dataclasses.replace(draw_batch(), update=1, r_drop=alpha)
    batches = [batch] * settings.batches.accumulation
    watch = GradientWatch(model) if settings.training.watch_gradients else None
    with Device.counting() as first:
        results = updater.launch(batches, 1e-3, watch)
    with Device.counting() as counts:
        results += updater.launch(batches, 1e-3, watch)
    results += updater.finish()
    assert len(results) == 2 and all(math.isfinite(result.loss) for result in results)
    refuse(first)
    return {**_figures(counts)}


def decode(model: TranslationModel, decoding: Decoding) -> dict[str, float]:
    """Return the counts of a step: the mean over `STEPS`, and the increase per step of `MORE`.

    Shapes are known: recordings are made in earlier searches.
    """
    graphs = Graphs(Recorder(CUDA)) if decoding.is_recorded else None
    short = _counted(model, decoding, STEPS, graphs, 2 if decoding.is_recorded else 1)
    figures = {name: round(count / STEPS, 2) for name, count in short.items()}
    if graphs is not None:
        # Its shapes have been seen: the first search records the remaining ones.
        long = _counted(model, decoding, STEPS + MORE, graphs, 1)
        for name in ("launches", "waits"):
            figures[f"{name} of a later step"] = round((long[name] - short[name]) / MORE, 2)
    return figures


def _counted(
    model: TranslationModel, decoding: Decoding, steps: int, graphs: Graphs | None, before: int
) -> dict[str, int]:
    """Return the counts of a search of so many steps, after so many others `before`."""
    length = steps - 1
    plan = dataclasses.replace(
        decoding.plan, min_length=length, max_length_a=float(length), max_length_b=0.0
    )
    batch = draw_batch().to(CUDA)
    run = functools.partial(
        search, [model] * decoding.models, batch.source, batch.source_lengths, plan, graphs=graphs,
        agent=decoding.agent, halt=decoding.halt, align=decoding.align,
    )  # fmt: skip
    with torch.autocast("cuda", torch.bfloat16):
        # Only replays are counted.
        with Device.counting() as first:
            lists = [run() for _ in range(before)]
        refuse(first)
        with Device.counting() as counts:
            lists.append(run())
    tokens = [[hypotheses[0].tokens for hypotheses in every] for every in lists]
    assert all(len(sentence) == length for sentence in tokens[0])
    assert all(later == tokens[0] for later in tokens), "replays compute what steps compute"
    return _figures(counts)


def decode_prefixes(
    model: TranslationModel, policy: LocalAgreement | HoldN | Retranslation
) -> dict[str, float]:
    """Return the counts of three sentences decoded prefix by prefix."""
    plan = SearchPlan(max_length_a=float(STEPS), max_length_b=0.0, min_length=STEPS)
    decoder = PrefixDecoder([model], plan, policy, device=CUDA, bf16=True)
    sources = [[5, 6, 7], [8, 9], [4, 9, 5, 6]]
    with Device.counting() as counts:
        results = decoder.decode(sources)
    assert [len(result.hypothesis.tokens) for result in results] == [STEPS] * len(sources)
    return {**_figures(counts)}


def count_planted_faults() -> dict[str, int]:
    """Return the counts of operations that a GPU refuses or waits for."""
    with PretendGPU(), Device.counting() as counts:
        values = torch.ones(3, device=CUDA)  # on the device from the start
        torch.add(values, torch.ones(3))  # mixed
        float(values[0])  # waits
        values.cpu()  # waits
        torch.ones(3).to(CUDA)  # a copy that blocks
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        values.nonzero()  # waits, in a recording
        torch.ones(3).to(CUDA, non_blocking=True)  # copies, in a recording
        graph.capture_end()
    kinds = ("mixes", "waits", "copies", "forbidden")
    return {kind: sum(getattr(counts, kind).values()) for kind in kinds}


def try_broken_loss(optimiser: str) -> str:
    """Return the errors if the second of three updates has a loss that is not a number."""
    case = Case("transformer", options=(f"training.optimiser={optimiser}",))
    settings = settings_of(case)
    model = zoo.from_config(case.arch, settings.model, TYPES, TYPES)
    objective = objectives.get(case.objective).make(settings.objective)
    with PretendGPU():
        model = model.to(CUDA)
        steps = make_optimiser(model, settings.training)
        updater = Updater(TrainedModel(model, objective), steps, CUDA, bf16=True, clip_norm=5.0)

        def state() -> list[torch.Tensor]:
            kept = [*model.parameters(), *optimiser_tensors(steps, model).values()]
            return [value.detach().cpu().clone() for value in kept]

        updater.launch([draw_batch()], 1e-3)
        before = state()
        scale = objective.loss
        objective.loss = lambda *args: dataclasses.replace(  # type: ignore[method-assign]
            scale(*args), total=scale(*args).total * math.nan
        )
        updater.launch([dataclasses.replace(draw_batch(), update=1)], 1e-3)
        objective.loss = scale  # type: ignore[method-assign]
        try:
            updater.launch([draw_batch()], 1e-3)
        except NotFiniteError as fault:
            has_moved = not all(map(torch.equal, before, state()))
            return "the weights have moved" if has_moved or fault.done != 1 else ""
    return "no error was raised"


def try_first_gpu(folder: Path) -> list[str]:
    """Run the steps of the first-GPU protocol with different code on a GPU; return faults."""
    conditions, faults = Conditions("cuda", "bf16", runs=1, quick=True), []
    for step in (steps.environment, steps.waits, steps.decoding, steps.convolutions, steps.memory):
        try:
            with PretendGPU(), Device.counting() as counts:
                step(conditions, folder)
                refuse(counts)
        except Exception:
            faults.append(f"{step.__name__}: {traceback.format_exc()}")
    return faults


def _figures(counts: Counts) -> dict[str, int]:
    refuse(counts)
    return {
        "launches": counts.launches.total(), "waits": counts.waits.total(),
        "copies": counts.copies.total(), "replayed kernels": counts.replayed,
    }  # fmt: skip


def refuse(counts: Counts) -> None:
    """Raise AssertionError for operations that a GPU would refuse."""
    faults = [*counts.mixes, *(f"while recording: {what}" for what in counts.forbidden)]
    assert not faults, "\n".join(faults)
