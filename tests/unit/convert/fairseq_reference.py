"""Small models of fairseq in plain torch, by their published definitions and parameters' names.

Each class draws a state dictionary with the names that fairseq gives its parameters, and returns
the log-probabilities [T, V] of one sentence pair, without caches, batches or padding. Ids are
fairseq's: `<s>` 0, `<pad>` 1, `</s>` 2; a source ends with `</s>`, a target begins with it.
"""

import math
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

END = 2


class Reference:
    """A model: its options and its parameters."""

    def __init__(self, **options: Any) -> None:
        self.options = Namespace(source_lang="de", target_lang="en", **options)
        self.state: dict[str, Tensor] = {}

    def draw(self, name: str, *shape: int, spread: float = 0.3) -> None:
        self.state[name] = torch.randn(*shape) * spread

    def linear(self, name: str, inputs: int, outputs: int, bias: bool = True) -> None:
        self.draw(f"{name}.weight", outputs, inputs)
        if bias:
            self.draw(f"{name}.bias", outputs)

    def embed(self, side: str, tokens: Sequence[int]) -> Tensor:
        return self.state[f"{side}.embed_tokens.weight"][torch.tensor(tokens)]

    def apply(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.state[f"{name}.weight"], self.state.get(f"{name}.bias"))

    def log_probabilities(self, source: Sequence[int], target: Sequence[int]) -> Tensor:
        """Return [T + 1, V] for words of both sides; end symbols are added here."""
        with torch.no_grad():
            return torch.log_softmax(self.logits([*source, END], [END, *target]), -1)

    def logits(self, source: Sequence[int], prefix: Sequence[int]) -> Tensor:
        raise NotImplementedError


def waves(count: int, size: int) -> Tensor:
    """Return fairseq's sinusoids of the positions 2, 3, ...: row p is [sin(p f), cos(p f)]."""
    half = size // 2
    rows = []
    for position in range(2, 2 + count):
        angles = [position * math.exp(-k * math.log(10000) / (half - 1)) for k in range(half)]
        rows.append([*map(math.sin, angles), *map(math.cos, angles), *[0.0] * (size % 2)])
    return torch.tensor(rows)


class Transformer(Reference):
    """`transformer`: post- or pre-norm, learned or sinusoidal positions.

    `waitk_transformer`, and `uni_encoder`: a source state sees what precedes it; with `waitk`, row
    t of the decoder (from 0) sees k + t source states.
    """

    def __init__(self, types: tuple[int, int], **options: Any) -> None:
        super().__init__(**{
            "arch": "transformer_iwslt_de_en", "encoder_embed_dim": 12, "decoder_embed_dim": 12,
            "encoder_ffn_embed_dim": 10, "decoder_ffn_embed_dim": 14, "encoder_layers": 2,
            "decoder_layers": 3, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
            "encoder_normalize_before": False, "decoder_normalize_before": False, "dropout": 0.3,
            "activation_fn": "relu", **options,
        })  # fmt: skip
        settings, self.size = self.options, 12
        self.pre = settings.encoder_normalize_before
        for side, count in zip(("encoder", "decoder"), types, strict=True):
            self.draw(f"{side}.embed_tokens.weight", count, 12)
            if getattr(settings, f"{side}_learned_pos", False):
                self.draw(f"{side}.embed_positions.weight", 32 if side == "encoder" else 22, 12)
            else:
                self.state[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
            self.state[f"{side}.version"] = torch.tensor([3.0])
            for layer in range(getattr(settings, f"{side}_layers")):
                self._layer(
                    f"{side}.layers.{layer}", getattr(settings, f"{side}_ffn_embed_dim"), side
                )
            if self.pre:
                self._norm(f"{side}.layer_norm")
        self.output = "decoder.output_projection.weight"
        self.draw(self.output, types[1], 12)
        if getattr(settings, "share_decoder_input_output_embed", False):
            self.state[self.output] = self.state["decoder.embed_tokens.weight"]

    def _norm(self, name: str) -> None:
        self.draw(f"{name}.weight", 12)
        self.draw(f"{name}.bias", 12)

    def _layer(self, name: str, inner: int, side: str) -> None:
        for kind in ("self_attn",) if side == "encoder" else ("self_attn", "encoder_attn"):
            for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                self.linear(f"{name}.{kind}.{part}", 12, 12)
            self._norm(f"{name}.{kind}_layer_norm")
        self.linear(f"{name}.fc1", 12, inner)
        self.linear(f"{name}.fc2", inner, 12)
        self._norm(f"{name}.final_layer_norm")

    def normed(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, (12,), self.state[f"{name}.weight"], self.state[f"{name}.bias"])

    def attend(self, name: str, x: Tensor, read: Tensor, seen: int | None) -> Tensor:
        """Attend to what was read: row t to `seen` + t states, or to all."""
        heads = []
        size = self.size // self.options.decoder_attention_heads
        query, keys, values = (
            self.apply(f"{name}.{part}_proj", h) for part, h in (("q", x), ("k", read), ("v", read))
        )
        for at in range(0, self.size, size):
            head = slice(at, at + size)
            scores = query[:, head] @ keys[:, head].T / math.sqrt(size)
            if seen is not None:
                scores = scores + torch.full_like(scores, -math.inf).triu(seen)
            heads.append(scores.softmax(-1) @ values[:, head])
        return self.apply(f"{name}.out_proj", torch.cat(heads, -1))

    def sublayer(self, norm: str, x: Tensor, part: Any) -> Tensor:
        return x + part(self.normed(norm, x)) if self.pre else self.normed(norm, x + part(x))

    def enter(self, side: str, tokens: Sequence[int]) -> Tensor:
        x = self.embed(side, tokens) * math.sqrt(self.size)
        learned = self.state.get(f"{side}.embed_positions.weight")
        return x + (waves(len(tokens), 12) if learned is None else learned[2 : 2 + len(tokens)])

    def run(self, side: str, x: Tensor, memory: Tensor | None) -> Tensor:
        options = self.options
        causal = memory is not None or options.arch.startswith("waitk")
        causal = causal or getattr(options, "uni_encoder", False)
        for layer in range(getattr(options, f"{side}_layers")):
            name = f"{side}.layers.{layer}"

            def own(h: Tensor, name: str = name) -> Tensor:
                return self.attend(f"{name}.self_attn", h, h, 1 if causal else None)

            def other(h: Tensor, name: str = name) -> Tensor:
                assert memory is not None
                waitk = getattr(options, "waitk", None)
                return self.attend(f"{name}.encoder_attn", h, memory, waitk)

            def inner(h: Tensor, name: str = name) -> Tensor:
                return self.apply(f"{name}.fc2", self.apply(f"{name}.fc1", h).relu())

            x = self.sublayer(f"{name}.self_attn_layer_norm", x, own)
            if memory is not None:
                x = self.sublayer(f"{name}.encoder_attn_layer_norm", x, other)
            x = self.sublayer(f"{name}.final_layer_norm", x, inner)
        return self.normed(f"{side}.layer_norm", x) if self.pre else x

    def logits(self, source: Sequence[int], prefix: Sequence[int]) -> Tensor:
        memory = self.run("encoder", self.enter("encoder", source), None)
        return (
            self.run("decoder", self.enter("decoder", prefix), memory) @ self.state[self.output].T
        )


class ConvS2S(Reference):
    """`fconv`: weights in directions and lengths, residual sums over convolution and attention."""

    def __init__(self, types: tuple[int, int], **options: Any) -> None:
        super().__init__(**{
            "arch": "fconv_iwslt_de_en", "encoder_embed_dim": 6, "decoder_embed_dim": 6,
            "encoder_layers": "[(8, 3)] * 2 + [(8, 3)]", "decoder_layers": "[(8, 3)] * 2",
            "decoder_out_embed_dim": 6, "decoder_attention": "True", "dropout": 0.2,
            "share_input_output_embed": False, **options,
        })  # fmt: skip
        self.state["decoder.version"] = torch.tensor([2.0])
        for side, count, depth in (("encoder", types[0], 3), ("decoder", types[1], 2)):
            self.draw(f"{side}.embed_tokens.weight", count, 6)
            self.draw(f"{side}.embed_positions.weight", 30, 6)
            self.normalised(f"{side}.fc1", 6, 8)
            self.normalised(f"{side}.fc2", 8, 6 if side == "encoder" else self.out)
            for layer in range(depth):
                self.convolution(f"{side}.convolutions.{layer}")
                if side == "decoder":
                    self.normalised(f"decoder.attention.{layer}.in_projection", 8, 6)
                    self.normalised(f"decoder.attention.{layer}.out_projection", 6, 8)
        if self.options.share_input_output_embed:
            self.linear("decoder.fc3", 6, types[1])
            self.state["decoder.fc3.weight"] = self.state["decoder.embed_tokens.weight"]
        else:
            self.normalised("decoder.fc3", self.out, types[1])

    @property
    def out(self) -> int:
        return int(self.options.decoder_out_embed_dim)

    def normalised(self, name: str, inputs: int, outputs: int) -> None:
        self.draw(f"{name}.weight_g", outputs, 1)
        self.draw(f"{name}.weight_v", outputs, inputs)
        self.draw(f"{name}.bias", outputs)

    def convolution(self, name: str) -> None:
        self.draw(f"{name}.weight_g", 1, 1, 16)
        self.draw(f"{name}.weight_v", 3, 8, 16)
        self.draw(f"{name}.bias", 16)

    def weight(self, name: str) -> Tensor:
        if f"{name}.weight" in self.state:
            return self.state[f"{name}.weight"]
        gain, direction = self.state[f"{name}.weight_g"], self.state[f"{name}.weight_v"]
        kept = [axis for axis, size in enumerate(gain.shape) if size > 1]
        others = [axis for axis in range(direction.dim()) if axis not in kept]
        return gain * direction / direction.square().sum(others, keepdim=True).sqrt()

    def apply(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weight(name).T + self.state[f"{name}.bias"]

    def convolve(self, name: str, x: Tensor, before: int) -> Tensor:
        """Return the gated channels: tap j of a position reads what stands j - before of it."""
        taps = self.weight(name)
        padded = torch.cat([x.new_zeros(before, 8), x, x.new_zeros(2 - before, 8)])
        rows = [
            sum(
                (padded[position + tap] @ taps[tap] for tap in range(3)), self.state[f"{name}.bias"]
            )
            for position in range(len(x))
        ]
        summed = torch.stack(rows)
        return summed[:, :8] * torch.sigmoid(summed[:, 8:])

    def enter(self, side: str, tokens: Sequence[int]) -> Tensor:
        positions = self.state[f"{side}.embed_positions.weight"][2 : 2 + len(tokens)]
        return self.embed(side, tokens) + positions

    def logits(self, source: Sequence[int], prefix: Sequence[int]) -> Tensor:
        scale = math.sqrt(0.5)
        embedded = self.enter("encoder", source)
        x = self.apply("encoder.fc1", embedded)
        for layer in range(3):
            x = (self.convolve(f"encoder.convolutions.{layer}", x, 1) + x) * scale
        keys = self.apply("encoder.fc2", x)
        values = (keys + embedded) * scale
        embedded = self.enter("decoder", prefix)
        x = self.apply("decoder.fc1", embedded)
        for layer in range(2):
            name = f"decoder.attention.{layer}"
            h = self.convolve(f"decoder.convolutions.{layer}", x, 2)
            query = (self.apply(f"{name}.in_projection", h) + embedded) * scale
            read = (query @ keys.T).softmax(-1) @ values * math.sqrt(len(source))
            h = (self.apply(f"{name}.out_projection", read) + h) * scale
            x = (h + x) * scale
        return self.apply("decoder.fc3", self.apply("decoder.fc2", x))
