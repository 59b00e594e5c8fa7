"""Weights packed for a CPU's matrix products in the layout of its library, in 32, 16 or 8 bits.

Otherwise the library rearranges a weight in each product, although a decoding step multiplies few
rows by it: benchmarks/cpu_decoding.py measures searches with each precision. In fp32 the fastest
layout depends on the processor, the weight and the rows (`_fastest_form`). `with_packed_weights`
copies a model for decoding and attaches packed weights, which `product` (linear.py) then uses.
"""

from __future__ import annotations

import copy
import functools
import warnings
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from nmtgrid.layers.kernels.linear import Projection, packable_library, plain_product

Packing = Literal["fp32", "bf16", "int8"]
Form = Literal["plain", "transposed", "packed"]
_SMALL_WEIGHT, _SMALL_PRODUCT, _ONE_ROW = 1 << 16, 1 << 22, 1 << 19
"""Elements of a weight, multiplications of a product, elements of a weight for one row: below
these, plain products in fp32 are faster (measured on an AMD EPYC with AVX-512)."""
_WIDE_WEIGHT, _FEW_ROWS = 1 << 18, 4
"""Elements of a weight with more outputs than inputs, and rows: from these on oneDNN is faster than
MKL (measured on an AMD EPYC without AVX-512)."""
Model = TypeVar("Model", bound=nn.Module)


class PackedWeight:
    """A weight [N, K] and its bias [N], packed at the first product and again after a change.

    Products take fp32 and return fp32. In bf16 both factors are rounded to 8 bits of mantissa. In
    int8 each row of the weight has its own scale, and the input one scale for all its rows, so that
    results depend on the rows that are computed together.
    """

    def __init__(self, packing: Packing) -> None:
        self.packing = packing
        self._of: tuple[Any, ...] = ()
        self._forms: dict[str, Any] = {}

    def product(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, rectify: bool = False
    ) -> Tensor:
        """Return x weight^T + bias [..., N] for x [..., K] in fp32, without a gradient.

        With `rectify` its ReLU.
        """
        form = _fastest_form(x, weight) if self.packing == "fp32" else "packed"
        if form == "plain":
            return plain_product(x, weight, bias, rectify)
        # Any write into the weight, through any alias, changes its version.
        of = _version(weight), weight.data_ptr(), _version(bias), id(bias)
        if of != self._of:
            self._forms, self._of = {}, of
        packed = self._forms.get(form)
        if packed is None:
            packed = self._forms[form] = _in_form(form, weight.detach(), bias, self.packing)
        if form == "transposed":
            return _transposed_product(x, packed, bias, rectify)
        if self.packing == "int8":
            fn = torch.ops.quantized.linear_dynamic
            if rectify:
                fn = torch.ops.quantized.linear_relu_dynamic
            result: Tensor = fn(x, packed, not _has_vnni())
            return result
        if self.packing == "fp32":
            return _pointwise(x, packed, bias, rectify)
        packed, bias = packed
        return _pointwise(x.bfloat16(), packed, bias, rectify).float()


def _version(tensor: Tensor | None) -> int | None:
    """Return the number of in-place changes of a tensor; None for one of inference mode."""
    return None if tensor is None or tensor.is_inference() else tensor._version


def _fastest_form(x: Tensor, weight: Tensor) -> Form:
    """Return the fastest form of a weight [N, K] for products of rows x [..., K] in fp32.

    oneDNN needs 10 to 15 microseconds to look up how to compute a product, which pays off if the
    weight does not stay in the cache, or for many rows. MKL copies the weight in each product, in
    less time if it is stored in the order in which it is read.
    """
    size, rows = weight.numel(), x.numel() // weight.shape[1]
    if packable_library() == "mkl":
        is_wide = size >= _WIDE_WEIGHT and weight.shape[0] > weight.shape[1]
        return "packed" if is_wide and rows >= _FEW_ROWS else "transposed"
    if size <= _SMALL_WEIGHT:
        return "plain" if size * rows < _SMALL_PRODUCT else "packed"
    return "plain" if rows == 1 and size < _ONE_ROW else "packed"


def _pointwise(x: Tensor, packed: Tensor, bias: Tensor | None, rectify: bool) -> Tensor:
    fn, activation = torch.ops.mkldnn._linear_pointwise, "relu" if rectify else "none"
    result: Tensor = fn(x, packed, bias, activation, [], "")
    return result


def _transposed_product(x: Tensor, weight: Tensor, bias: Tensor | None, rectify: bool) -> Tensor:
    """Return x weight + bias [..., N] for a weight [K, N]."""
    flat = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    result = flat @ weight if bias is None else torch.addmm(bias, flat, weight)
    result = result if x.dim() == 2 else result.view(*x.shape[:-1], -1)
    return result.relu_() if rectify else result


def _in_form(form: Form, weight: Tensor, bias: Tensor | None, packing: Packing) -> Any:
    if form == "transposed":
        return weight.t().contiguous()
    bias = None if bias is None else bias.detach()
    if packing == "fp32":
        return torch.ops.mkldnn._reorder_linear_weight(weight)
    if packing == "bf16":
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16())
        return packed, None if bias is None else bias.bfloat16()
    # The scale of a row of zeros is the machine epsilon, so that nothing is divided by zero.
    scales = (weight.abs().amax(1) / 127).clamp(min=torch.finfo(weight.dtype).eps)
    zeros = torch.zeros(len(weight), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # quantised tensors will move to another package
        rounded = torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)
        return torch.ops.quantized.linear_prepack(rounded, bias)


@functools.cache
def _has_vnni() -> bool:
    """Return whether sums of 8-bit products cannot overflow; else inputs get 7 bits."""
    is_supported = getattr(torch.cpu, "_is_vnni_supported", None)
    return bool(is_supported and is_supported())


@functools.cache
def can_pack(packing: Packing) -> bool:
    """Return whether torch has products with such weights for this processor."""
    if packing == "fp32":
        return packable_library() is not None
    try:
        # These operators are not in torch's public interface: they are tried, not assumed.
        weight, x = torch.eye(32), torch.ones(2, 32)
        result = PackedWeight(packing).product(x, weight, torch.ones(32))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    is_fast = packing == "int8" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return is_fast and bool((result - 2).abs().max() < 0.1)


def with_packed_weights(model: Model, packing: Packing) -> Model:
    """Return a copy of `model` on a CPU for decoding, whose products use packed weights.

    The copy shares the memory of all parameters and buffers. If this processor gains nothing from
    packing, `model` itself is returned. Derivatives are those of the unpacked weights.
    """
    if not can_pack(packing):
        return model
    memo: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for parameter in model.parameters():
        shared = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
        if parameter.dim() == 2 and parameter.dtype is torch.float32:
            shared.packed = PackedWeight(packing)  # type: ignore[attr-defined]
        memo[id(parameter)] = shared
    copied = copy.deepcopy(model, memo)
    for parent in list(copied.modules()):
        for name, child in list(parent.named_children()):
            # Only torch's own class: a subclass may compute something else.
            if type(child) is nn.Linear:
                setattr(parent, name, Projection.of(child))
    return copied
