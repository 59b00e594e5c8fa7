"""What runs on the pretend GPU: architectures x objectives x options, trained and decoded with."""

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
from nmtgrid.models import zoo
from nmtgrid.models.api import TranslationModel
from nmtgrid.online.policies import WaitK
from nmtgrid.search.api import Agent, Halt, SearchPlan
from nmtgrid.search.cuda_graphs import Graphs, Recorder
from nmtgrid.search.engine import search
from nmtgrid.training.optimiser import make_optimiser, optimiser_tensors
from nmtgrid.training.prepare import Request, resolve
from nmtgrid.training.settings import RunSettings
from nmtgrid.training.update import NotFiniteError, Updater
from tests.pretend_gpu.device import CUDA, Counts, Device, PretendGPU

TORCH = torch.__version__
TYPES = 40
STEPS = 8
"""Tokens of each translation, the end symbol counted."""
MORE = 8
"""Those that a longer translation has beyond them: caches have room, and all looks are counted."""
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


def measure(case: Case) -> dict[str, dict[str, float]]:
    """Return the figures of the second update and of searches, by what is counted.

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
        optimiser = make_optimiser(model, settings.training)
        updater = Updater(model, objective, optimiser, CUDA, bf16=True, clip_norm=5.0)
        alpha = settings.training.r_drop or None
        batch = dataclasses.replace(draw_batch(), update=1, r_drop=alpha)
        with Device.counting() as first:
            updater.launch([batch], 1e-3)
        with Device.counting() as counts:
            (before,) = updater.launch([batch], 1e-3)
        (after,) = updater.finish()
        assert math.isfinite(before.loss) and math.isfinite(after.loss)
        refuse(first)
        figures: dict[str, dict[str, float]] = {"update": {**_figures(counts)}}
        model.eval()
        if any(option.startswith("training.") for option in case.options):
            return figures  # decoding is that of a case before
        for name, beam in (("greedy", 1), ("beam 4", 4)):
            figures[name] = decode(model, beam, Graphs(Recorder(CUDA)))
        if "exits" in case.objective:
            figures["early exit"] = decode(model, 1, halt=RandomExit(2))
        if case.objective.startswith("wait-k"):
            figures["wait-3"] = decode(model, 1, agent=WaitK(3))
    return figures


def decode(
    model: TranslationModel, beam: int, graphs: Graphs | None = None, *,
    agent: Agent | None = None, halt: Halt | None = None,
) -> dict[str, float]:  # fmt: skip
    """Return the figures of a step: the mean over `STEPS`, and what one of `MORE` adds.

    Shapes are known: recordings are made in searches before.
    """
    short = _counted(model, beam, STEPS, graphs, agent, halt)
    figures = {name: round(count / STEPS, 2) for name, count in short.items()}
    if graphs is not None:
        long = _counted(model, beam, STEPS + MORE, graphs, agent, halt)
        for name in ("launches", "waits"):
            figures[f"{name} of a later step"] = round((long[name] - short[name]) / MORE, 2)
    return figures


def _counted(
    model: TranslationModel, beam: int, steps: int, graphs: Graphs | None, agent: Agent | None,
    halt: Halt | None,
) -> dict[str, int]:  # fmt: skip
    """Return the figures of a search of so many steps."""
    length = steps - 1
    plan = SearchPlan(beam=beam, min_length=length, max_length_a=float(length), max_length_b=0.0)
    batch = draw_batch().to(CUDA)
    run = functools.partial(
        search, [model], batch.source, batch.source_lengths, plan, graphs=graphs, agent=agent,
        halt=halt,
    )  # fmt: skip
    with torch.autocast("cuda", torch.bfloat16):
        # Only replays are counted.
        with Device.counting() as first:
            lists = [run() for _ in range(2 if graphs is not None else 1)]
        refuse(first)
        with Device.counting() as counts:
            lists.append(run())
    tokens = [[hypotheses[0].tokens for hypotheses in every] for every in lists]
    assert all(len(sentence) == length for sentence in tokens[0])
    assert all(later == tokens[0] for later in tokens), "replays compute what steps compute"
    return _figures(counts)


def count_planted_faults() -> dict[str, int]:
    """Return what is counted of operations that a GPU refuses or waits for."""
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
    """Return what is wrong when the second of three updates has a loss that is no number."""
    case = Case("transformer", options=(f"training.optimiser={optimiser}",))
    settings = settings_of(case)
    model = zoo.from_config(case.arch, settings.model, TYPES, TYPES)
    objective = objectives.get(case.objective).make(settings.objective)
    with PretendGPU():
        model = model.to(CUDA)
        steps = make_optimiser(model, settings.training)
        updater = Updater(model, objective, steps, CUDA, bf16=True, clip_norm=5.0)

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
    """Run the steps of the first GPU's protocol whose code on a GPU is another; return faults."""
    conditions, faults = Conditions("cuda", "bf16", runs=1, quick=True), []
    for step in (steps.environment, steps.waits, steps.convolutions, steps.decoding, steps.memory):
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
    """Raise AssertionError for what a GPU would refuse."""
    faults = [*counts.mixes, *(f"while recording: {what}" for what in counts.forbidden)]
    assert not faults, "\n".join(faults)
