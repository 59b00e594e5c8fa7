"""One update: exact whatever its micro-batches, and whatever does not fit into memory."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from nmtgrid.base.devices import is_out_of_memory
from nmtgrid.base.errors import DeviceError
from nmtgrid.data.batches import Batch
from nmtgrid.models.api import TranslationModel
from nmtgrid.training import update
from nmtgrid.training.api import LossParts
from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings
from nmtgrid.training.optimiser import make_optimiser
from nmtgrid.training.settings import TrainingSettings
from nmtgrid.training.trained_model import TrainedModel
from nmtgrid.training.update import Updater, has_fast_bf16
from tests.unit.helpers.tiny_run import Sentences, TinyConfig, TinyModel

CPU = torch.device("cpu")


def updater(model: TranslationModel, objective: Any = None, **changes: Any) -> Updater:
    settings = TrainingSettings(**changes)
    chosen = objective or Likelihood(LikelihoodSettings())
    optimiser = make_optimiser(model, settings)
    trained = TrainedModel(model, chosen)
    return Updater(trained, optimiser, CPU, bf16=False, clip_norm=settings.clip_norm)


def fresh() -> TinyModel:
    torch.manual_seed(4)
    return TinyModel(TinyConfig(dropout=0.0))


def test_micro_batches_add_up_to_the_large_batch() -> None:
    sentences = Sentences()
    whole, parts = fresh(), fresh()
    joined = updater(whole).apply([sentences.batch(range(12))], 0.1)
    three = [sentences.batch(rows) for rows in ([0, 1], [2, 3, 4, 5, 6, 7, 8], [9, 10, 11])]
    other = updater(parts).apply(three, 0.1)
    assert other.tokens == joined.tokens and other.pairs == joined.pairs == 12
    assert other.loss == pytest.approx(joined.loss, rel=1e-6)
    assert other.gradient_norm == pytest.approx(joined.gradient_norm, rel=1e-5)
    # Adam divides gradients by their size, so gradients are compared and not its steps.
    for first, second in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(first.grad, second.grad, rtol=1e-4, atol=1e-7)


def test_gradients_are_those_of_the_mean_over_target_tokens() -> None:
    sentences, model = Sentences(), fresh()
    batch = sentences.batch([3, 8])
    parts = Likelihood(LikelihoodSettings()).loss(model, batch)
    expected = torch.autograd.grad(parts.total / parts.tokens, list(model.parameters()))
    updater(model, clip_norm=0.0).apply([batch], 0.0)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


class Narrow(Likelihood):
    """A device that holds only so many cells, and says so in the forward or backward pass."""

    def __init__(self, cells: int, fault: Exception, backward: bool = False) -> None:
        super().__init__(LikelihoodSettings())
        self.cells, self.fault, self.backward = cells, fault, backward
        self.refused = 0

    def loss(self, model: TranslationModel, batch: Batch) -> LossParts:
        parts = super().loss(model, batch)
        size = len(batch) * batch.source.shape[1] * batch.target_input.shape[1]
        if size <= self.cells:
            return parts
        self.refused += 1
        if not self.backward:
            raise self.fault

        def refuse(_: Tensor) -> Tensor:
            raise self.fault

        # The hook runs when some gradients have already been written.
        parts.total.register_hook(refuse)
        return parts


IN_PIECES = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 20.00 MiB. Of the allocated memory 5.00 GiB is "
    "allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
)
FAULTS = [
    torch.OutOfMemoryError("CUDA out of memory."),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 12 bytes"),
    RuntimeError("not enough memory: you tried to allocate 12 bytes."),
    MemoryError(),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("r_drop", [None, 5.0])
def test_a_batch_that_does_not_fit_is_halved_and_the_update_stays_exact(
    fault: Exception, backward: bool, r_drop: float | None
) -> None:
    sentences = Sentences()
    batches = [sentences.batch([0, 1]), sentences.batch(range(2, 12))]
    batches = [dataclasses.replace(batch, r_drop=r_drop) for batch in batches]
    roomy, narrow = fresh(), fresh()
    expected = updater(roomy).apply(batches, 0.0)
    objective = Narrow(150, fault, backward)
    small = updater(narrow, objective)
    halved = small.apply(batches, 0.0)
    assert halved.oom_splits > 0 and expected.oom_splits == 0
    assert halved.tokens == expected.tokens
    assert halved.loss == pytest.approx(expected.loss, rel=1e-6)
    for first, second in zip(roomy.parameters(), narrow.parameters(), strict=True):
        torch.testing.assert_close(first.grad, second.grad, rtol=1e-4, atol=1e-7)
    # The size is remembered: the same batches are cut before they are tried.
    refused = objective.refused
    assert small.apply(batches, 0.0).oom_splits == 0
    assert objective.refused == refused


def test_memory_in_pieces_is_told_once(messages: list[str]) -> None:
    narrow = updater(fresh(), Narrow(150, IN_PIECES))
    narrow.apply([Sentences().batch(range(12))], 0.0)
    assert messages == [
        "gpu-memory: 1 GiB are free, but in pieces: set "
        "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` in the environment."
    ]


def test_other_faults_are_not_taken_for_want_of_memory() -> None:
    sentences = Sentences()
    narrow = updater(fresh(), Narrow(0, MemoryError()))
    with pytest.raises(DeviceError, match=r"Training pair 8 .*max_length") as caught:
        narrow.apply([sentences.batch([7])], 0.1)
    # A setting that this model does not have.
    assert "checkpoint_activations" not in str(caught.value)
    assert "expandable_segments" not in str(caught.value)
    with pytest.raises(DeviceError, match="expandable_segments:True"):
        updater(fresh(), Narrow(0, IN_PIECES)).apply([sentences.batch([7])], 0.1)
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))
    broken = updater(fresh(), Narrow(0, RuntimeError("shapes do not fit")))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        broken.apply([Sentences().batch([0, 1])], 0.1)


@pytest.mark.parametrize(
    "words",
    [
        "[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory",
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "GET was unable to find an engine to execute this computation",
        "Triton Error [CUDA]: out of memory",
    ],
)
def test_want_of_memory_has_many_words(words: str) -> None:
    assert is_out_of_memory(RuntimeError(words)) and not is_out_of_memory(ValueError(words))


@pytest.mark.parametrize(
    ("capability", "is_native"), [((7, 0), False), ((7, 5), False), ((8, 0), True), ((9, 0), True)]
)
def test_bfloat16_is_taken_where_the_runs_own_gpu_has_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], is_native: bool
) -> None:
    """Turing's 7.5 imitates it, and another GPU of the machine may be another one."""
    of_each = {torch.device("cuda:0"): (9, 0) if not is_native else (7, 0)}
    of_each[torch.device("cuda:1")] = capability
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: not is_native)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: of_each[device])
    assert has_fast_bf16(torch.device("cuda:1")) == is_native


@pytest.mark.parametrize(
    ("has_amx", "has_avx512_bf16", "intel", "is_fast"),
    [
        (False, False, False, False),
        (False, True, False, True),
        (False, True, True, False),
        (True, True, True, True),
    ],
)
def test_bfloat16_is_taken_on_processors_that_are_faster_with_it(
    monkeypatch: pytest.MonkeyPatch,
    has_amx: bool,
    has_avx512_bf16: bool,
    intel: bool,
    is_fast: bool,
) -> None:
    """Intel's AVX512-BF16 without AMX multiplies at two thirds of the speed of fp32."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_avx512_bf16)
    monkeypatch.setattr(update, "is_intel", lambda: intel)
    assert has_fast_bf16(torch.device("cpu")) is is_fast
