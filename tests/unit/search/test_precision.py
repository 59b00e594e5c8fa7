"""Packed weights for decoding on CPUs: rounding errors within derived bounds, and refusals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nmtgrid
from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.app import main
from nmtgrid.cli.decode.run import format_precision
from nmtgrid.layers.kernels import packed_weights
from nmtgrid.layers.kernels.linear import linear, product
from nmtgrid.layers.kernels.packed_weights import (
    Form,
    PackedWeight,
    Packing,
    can_pack,
    with_packed_weights,
)
from nmtgrid.models import zoo
from nmtgrid.models.api import Verified
from nmtgrid.search import precision
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.engine import search
from nmtgrid.search.precision import (
    Precision,
    check_precision,
    check_stream_precision,
    choose,
    prepare,
)
from nmtgrid.text.vocabulary import END
from tests.unit.helpers.tiny_transformer import tiny
from tests.unit.helpers.toy_model import toy_model

CPU = torch.device("cpu")
needs_int8 = pytest.mark.skipif(not can_pack("int8"), reason="torch has no 8-bit products here")
needs_bf16 = pytest.mark.skipif(not can_pack("bf16"), reason="the CPU has no bf16 products")
needs_fp32 = pytest.mark.skipif(not can_pack("fp32"), reason="packing gains nothing here")


def factors(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 48, generator=generator)
    weight = torch.randn(40, 48, generator=generator) * torch.rand(40, 1, generator=generator)
    return x, weight, torch.randn(40, generator=generator)


@needs_int8
@pytest.mark.parametrize("rows", [1, 7, 65])
def test_int8_is_within_the_rounding_of_its_factors(rows: int) -> None:
    x, weight, bias = factors(rows)
    exact = (x.double() @ weight.double().t() + bias).float()
    error = (PackedWeight("int8").product(x, weight, bias) - exact).abs()
    # A weight is off by half a step of its row's scale. What is multiplied by it is off by a step
    # at most: half a one by rounding, half a one at the ends, as zero must be a step too. A
    # processor that gives it 7 bits has steps twice as wide.
    of_weight = weight.abs().amax(1) / 127 / 2
    steps = 255 if packed_weights._has_vnni() else 127
    of_x = (x.max().clamp(min=0) - x.min().clamp(max=0)) / steps
    bound = x.abs().sum(1)[:, None] * of_weight + of_x * (weight.abs() + of_weight[:, None]).sum(1)
    assert bool((error <= bound + 1e-5).all())
    assert float(error.mean()) < 0.02 * float(exact.abs().mean()), "it is a product, not noise"


@needs_bf16
def test_bf16_is_within_the_rounding_of_its_factors() -> None:
    x, weight, bias = factors(9)
    exact = (x.double() @ weight.double().t() + bias).float()
    error = (PackedWeight("bf16").product(x, weight, bias) - exact).abs()
    # 8 bits of mantissa: half a step is 2^-9 of a number; two factors, the bias and the result.
    half = 2.0**-9
    bound = (2 * half + half**2) * (x.abs() @ weight.abs().t()) + half * bias.abs()
    assert bool((error <= bound + half * (exact.abs() + bound) + 1e-6).all())


@needs_fp32
@pytest.mark.parametrize("form", ["plain", "transposed", "packed"])
def test_packed_fp32_is_the_plain_product_and_follows_the_weight(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_weights, "_fastest_form", lambda x, weight: form)
    x, weight, bias = factors(5)
    parameter = nn.Parameter(weight.clone())
    parameter.packed = PackedWeight("fp32")  # type: ignore[attr-defined]
    with torch.no_grad():
        torch.testing.assert_close(product(x, parameter, bias), x @ weight.t() + bias)
        torch.testing.assert_close(product(x, parameter), x @ weight.t())
        parameter.mul_(2)
        torch.testing.assert_close(product(x, parameter, bias), x @ (2 * weight).t() + bias)
        torch.testing.assert_close(product(x[0], parameter), (2 * weight) @ x[0])
    # With gradients, in float64 and of no rows, products are those of the weight itself.
    linear(x, parameter, bias).sum().backward()
    torch.testing.assert_close(parameter.grad, x.sum(0).expand(40, 48))
    assert product(x.double(), parameter.double()).dtype is torch.float64
    assert product(x[:0], parameter).shape == (0, 40)


@needs_fp32
@pytest.mark.parametrize(
    ("library", "rows", "inputs", "outputs", "form"),
    [
        ("onednn", 2, 128, 128, "plain"), ("onednn", 200, 128, 128, "plain"),
        ("onednn", 512, 128, 128, "packed"), ("onednn", 1, 512, 512, "plain"),
        ("onednn", 2, 512, 512, "packed"), ("onednn", 1, 1024, 1024, "packed"),
        ("mkl", 2, 128, 128, "transposed"), ("mkl", 512, 256, 512, "transposed"),
        ("mkl", 3, 256, 1024, "transposed"), ("mkl", 4, 256, 1024, "packed"),
        ("mkl", 200, 1024, 256, "transposed"), ("mkl", 1, 1024, 1024, "transposed"),
    ],
)  # fmt: skip
def test_products_in_fp32_take_the_form_of_their_library_and_size(
    library: str, rows: int, inputs: int, outputs: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forms: list[str] = []
    in_form = packed_weights._in_form

    def noted(form: Form, weight: Tensor, bias: Tensor | None, packing: Packing) -> Any:
        forms.append(form)
        return in_form(form, weight, bias, packing)

    monkeypatch.setattr(packed_weights, "packable_library", lambda: library)
    monkeypatch.setattr(packed_weights, "_in_form", noted)
    draw = torch.Generator().manual_seed(2)
    x, weight = (torch.randn(n, inputs, generator=draw) for n in (rows, outputs))
    packed, bias = PackedWeight("fp32"), torch.randn(outputs, generator=draw)
    for rectify in (False, True):
        expected = (x.double() @ weight.double().t() + bias).float()
        expected = expected.relu() if rectify else expected
        result = packed.product(x.view(1, rows, inputs), weight, bias, rectify)
        torch.testing.assert_close(result, expected[None], rtol=1e-4, atol=1e-3)
    assert forms == ([] if form == "plain" else [form]), "made once"
    packed = PackedWeight("int8") if can_pack("int8") else packed
    packed.product(x, weight, bias)
    assert forms[-1:] == ["packed"] or not can_pack("int8"), "only fp32 has other forms"


@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
def test_a_copy_shares_its_memory_and_leaves_the_model_alone(kind: Any) -> None:
    if not can_pack(kind):
        pytest.skip("no such products here")
    model = tiny()
    copied = with_packed_weights(model, kind)
    assert copied is not model and not any(hasattr(p, "packed") for p in model.parameters())
    pairs = zip(model.named_parameters(), copied.named_parameters(), strict=True)
    for (name, before), (same_name, after) in pairs:
        assert name == same_name and before.data_ptr() == after.data_ptr()
    assert copied.classifier().weight is copied.target_embedding.weight, "tied as before"
    # An error of a few percent in every product must not make other translations of these.
    source = torch.tensor([[4, 5, 6, END], [7, 8, 9, END]])
    arguments = source, torch.tensor([4, 4]), SearchPlan(beam=2, max_length_a=6.0)
    ours, theirs = search([copied, copied], *arguments), search([model, model], *arguments)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine[0].score == pytest.approx(other[0].score, abs=0.5)


@needs_bf16
def test_convolutions_are_in_bf16_too() -> None:
    grid = zoo.build("pervasive", "toy", source_vocab_size=12, target_vocab_size=11).eval()
    assert prepare([grid], "bf16") == ([grid], True), "by autocast"
    (packed,), needs_autocast = prepare([tiny()], "bf16")
    assert hasattr(packed.classifier().weight, "packed") and not needs_autocast


def test_without_such_products_the_model_stays_and_bf16_is_by_autocast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (packed_weights, precision):
        monkeypatch.setattr(module, "can_pack", lambda packing: False)
    model = tiny()
    for kind, needs_autocast in (("fp32", False), ("bf16", True)):
        models, autocast = prepare([model], kind)  # type: ignore[arg-type]
        assert models == [model] and autocast is needs_autocast
    with pytest.raises(ConfigError, match="8-bit products"):
        check_precision("int8", CPU, None, print)
    assert precision.measure([model], SearchPlan(), 12) == {"fp32": 1.0}


@pytest.mark.parametrize(
    "ratios, chosen",
    [
        ({"fp32": 1.0}, "fp32"),
        ({"fp32": 1.0, "bf16": 1.05, "int8": 1.09}, "fp32"),
        ({"fp32": 1.0, "bf16": 1.5, "int8": 1.6}, "bf16"),
        ({"fp32": 1.0, "bf16": 1.5, "int8": 1.7}, "int8"),
        ({"fp32": 1.0, "bf16": 0.7, "int8": 1.3}, "int8"),
        ({"fp32": 1.0, "int8": 0.9}, "fp32"),
    ],
)
def test_a_coarser_precision_must_be_clearly_faster(ratios: Any, chosen: str) -> None:
    assert choose(ratios) == chosen


def test_the_line_says_what_was_measured() -> None:
    ratios = {"fp32": 1.0, "bf16": 1.31, "int8": 1.66}
    assert format_precision("int8", ratios) == (
        "precision: int8, 1.7 times faster than fp32 (bf16 1.3 times)."
    )
    assert format_precision("fp32", {"fp32": 1.0, "bf16": 0.81}) == (
        "precision: fp32, as nothing else is clearly faster here (bf16 0.8 times)."
    )


def test_refusals() -> None:
    kind: Precision
    for kind in ("int8", "auto"):
        with pytest.raises(ConfigError, match="is for CPUs"):
            check_precision(kind, torch.device("cuda"), None, print)
        with pytest.raises(ConfigError, match="does not support verified exits"):
            check_precision(kind, CPU, Verified(), print)
        with pytest.raises(ConfigError, match="does not support streams"):
            check_stream_precision(kind)
    for kind in ("fp32", "bf16"):
        check_precision(kind, torch.device("cuda"), None, print)
        check_stream_precision(kind)


def test_from_the_command_line(
    tmp_path: Path, toy_dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, text = tmp_path / "model", tmp_path / "in.txt"
    toy_model(model, toy_dataset, search={"beam": 2, "max_length_a": 5.0, "max_length_b": 0.5})
    text.write_text("ein satz\n", encoding="utf-8")
    common = ["decode", str(model), str(text), "--device", "cpu", "--precision"]
    for kind in ("auto", "int8"):
        assert main([*common, kind, "--ensemble", str(model)]) == 0
        errors = capsys.readouterr().err
        assert ("precision: " in errors) is (kind == "auto"), errors
    assert main([*common, "int8", "--stream", "--k", "1"]) == 2
    assert "does not support streams" in capsys.readouterr().err
    translator = nmtgrid.load(model, precision="auto", device="cpu")
    assert translator.precision in translator.speedups and translator.speedups["fp32"] == 1.0
    assert all(ratio > 0 and math.isfinite(ratio) for ratio in translator.speedups.values())


@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
def test_a_rectified_product_is_the_rectified_one(kind: Any) -> None:
    if not can_pack(kind):
        pytest.skip("this processor has no such products")
    x, weight, bias = factors(5)
    packed = PackedWeight(kind)
    expected = packed.product(x, weight, bias).relu()
    assert torch.equal(packed.product(x, weight, bias, rectify=True), expected)
