"""fairseq's LSTM and attn2d's Pervasive Attention in plain torch; see fairseq_reference.py."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.unit.convert.fairseq_reference import Reference, waves


class LSTM(Reference):
    """`lstm`: attention over the last layer, its output fed back into the first."""

    def __init__(self, types: tuple[int, int], **options: Any) -> None:
        super().__init__(**{
            "arch": "lstm", "encoder_embed_dim": 6, "decoder_embed_dim": 6,
            "encoder_hidden_size": 7, "decoder_hidden_size": 7, "decoder_out_embed_dim": 7,
            "encoder_layers": 2, "decoder_layers": 2, "encoder_bidirectional": False,
            "decoder_attention": "1", "share_decoder_input_output_embed": False, "dropout": 0.1,
            "adaptive_softmax_cutoff": "10000,50000,200000", **options,
        })  # fmt: skip
        settings = self.options
        self.hidden, self.decoded = settings.encoder_hidden_size, settings.decoder_hidden_size
        self.ends = ("", "_reverse") if settings.encoder_bidirectional else ("",)
        encoded = self.hidden * len(self.ends)
        for side, count in zip(("encoder", "decoder"), types, strict=True):
            self.draw(f"{side}.embed_tokens.weight", count, 6)
        for layer in range(2):
            for end in self.ends:
                names = [f"encoder.lstm.{gate}_l{layer}{end}" for gate in GATES]
                self.cell(names, encoded if layer else 6, self.hidden)
            names = [f"decoder.layers.{layer}.{gate}" for gate in GATES]
            self.cell(names, self.decoded if layer else 6 + self.decoded, self.decoded)
        if encoded != self.decoded:
            self.linear("decoder.encoder_hidden_proj", encoded, self.decoded)
            self.linear("decoder.encoder_cell_proj", encoded, self.decoded)
        self.linear("decoder.attention.input_proj", self.decoded, encoded, bias=False)
        self.linear("decoder.attention.output_proj", encoded + self.decoded, self.decoded, False)
        out = settings.decoder_out_embed_dim
        if out != self.decoded:
            self.linear("decoder.additional_fc", self.decoded, out)
        if not settings.share_decoder_input_output_embed:
            self.linear("decoder.fc_out", out, types[1])

    def cell(self, names: Sequence[str], inputs: int, size: int) -> None:
        for name, shape in zip(names, ((inputs,), (size,), (), ()), strict=True):
            self.draw(name, 4 * size, *shape)

    def advance(
        self, names: Sequence[str], x: Tensor, h: Tensor, c: Tensor
    ) -> tuple[Tensor, Tensor]:
        first, second, third, fourth = (self.state[name] for name in names)
        gates = first @ x + third + second @ h + fourth
        enter, forget, candidate, leave = gates.chunk(4)
        c = forget.sigmoid() * c + enter.sigmoid() * candidate.tanh()
        return leave.sigmoid() * c.tanh(), c

    def encode(self, source: Sequence[int]) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Return the states [S, D] and each layer's last hidden state and cell."""
        x, lasts = self.embed("encoder", source), []
        for layer in range(2):
            states, hiddens, cells = [], [], []
            for end in self.ends:
                names = [f"encoder.lstm.{gate}_l{layer}{end}" for gate in GATES]
                h = c = torch.zeros(self.hidden)
                outputs = []
                for row in x.flip(0) if end else x:
                    h, c = self.advance(names, row, h, c)
                    outputs.append(h)
                states.append(torch.stack(outputs[::-1] if end else outputs))
                hiddens.append(h)
                cells.append(c)
            x = torch.cat(states, -1)
            lasts.append((torch.cat(hiddens), torch.cat(cells)))
        if "decoder.encoder_hidden_proj.weight" in self.state:
            hidden, cell = "decoder.encoder_hidden_proj", "decoder.encoder_cell_proj"
            lasts = [(self.apply(hidden, h), self.apply(cell, c)) for h, c in lasts]
        return x, lasts

    def logits(self, source: Sequence[int], prefix: Sequence[int]) -> Tensor:
        memory, cells = self.encode(source)
        fed, rows = torch.zeros(self.decoded), []
        for token in self.embed("decoder", prefix):
            x = torch.cat([token, fed])
            for layer in range(2):
                names = [f"decoder.layers.{layer}.{gate}" for gate in GATES]
                cells[layer] = self.advance(names, x, *cells[layer])
                x = cells[layer][0]
            weights = (memory @ self.apply("decoder.attention.input_proj", x)).softmax(0)
            read = torch.cat([weights @ memory, x])
            fed = self.apply("decoder.attention.output_proj", read).tanh()
            rows.append(fed)
        out = torch.stack(rows)
        if "decoder.additional_fc.weight" in self.state:
            out = self.apply("decoder.additional_fc", out)
        if self.options.share_decoder_input_output_embed:
            return out @ self.state["decoder.embed_tokens.weight"].T
        return self.apply("decoder.fc_out", out)


GATES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class Pervasive(Reference):
    """attn2d's `pervasive` with a residual network, cell by cell."""

    def __init__(self, types: tuple[int, int], **options: Any) -> None:
        super().__init__(**{
            "arch": "pervasive", "convnet": "resnet", "aggregator": "attn", "num_layers": 2,
            "kernel_size": 3, "divide_channels": 2, "ffn_dim": 10, "bottleneck": 8,
            "conv_groups": 8, "conv_bias": True, "encoder_embed_dim": 8, "decoder_embed_dim": 8,
            "output_dim": 8, "add_positional_embeddings": True, "unidirectional": False,
            "share_decoder_input_output_embed": True, "skip_output_mapping": False, **options,
        })  # fmt: skip
        settings = self.options
        for side, count in zip(("encoder", "decoder"), types, strict=True):
            self.draw(f"{side}.embed_tokens.weight", count, 8)
            self.state[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
        self.linear("decoder.net.reduce_channels", 16, 8)
        for layer in range(2):
            name = f"decoder.net.residual_blocks.{layer}"
            self.draw(f"{name}.conv1.weight", 8, 8, 1, 1)
            self.draw(f"{name}.conv1.bias", 8)
            self.draw(f"{name}.mconv2.weight", 8, 1, 3, 3)
            if settings.conv_bias:
                self.draw(f"{name}.mconv2.bias", 8)
            mask = torch.ones(8, 1, 3, 3)
            mask[:, :, 2:] = 0
            if settings.unidirectional:
                mask[:, :, :, 2:] = 0
            self.state[f"{name}.mconv2.mask"] = mask
            self.linear(f"{name}.fc1", 8, 10)
            self.linear(f"{name}.fc2", 10, 8)
        if settings.aggregator.endswith("attn"):
            self.linear("decoder.aggregator.w1", 8, 8)
            self.linear("decoder.aggregator.w2", 8, 1)
        elif settings.aggregator.endswith("gated-max"):
            self.linear("decoder.aggregator.linear", 8, 16)
        if not settings.skip_output_mapping:
            self.linear("decoder.projection", 8, settings.output_dim)
        self.linear("decoder.prediction", settings.output_dim, types[1])
        if settings.share_decoder_input_output_embed:
            self.state["decoder.prediction.weight"] = self.state["decoder.embed_tokens.weight"]

    def enter(self, side: str, tokens: Sequence[int]) -> Tensor:
        x = self.embed(side, tokens) * math.sqrt(8)
        return x + waves(len(tokens), 8) if self.options.add_positional_embeddings else x

    def convolve(self, name: str, x: Tensor) -> Tensor:
        """Return each cell's sum over the live taps of the cells above and around it."""
        rows, columns, size = x.shape
        weight = self.state[f"{name}.weight"] * self.state[f"{name}.mask"]
        sums = torch.zeros(rows, columns, size)
        for t in range(rows):
            for j in range(columns):
                for up in range(3):
                    for across in range(3):
                        row, column = t + up - 1, j + across - 1
                        if 0 <= row < rows and 0 <= column < columns:
                            sums[t, j] += weight[:, 0, up, across] * x[row, column]
        return sums + self.state.get(f"{name}.bias", torch.zeros(size))

    def logits(self, source: Sequence[int], prefix: Sequence[int]) -> Tensor:
        columns, rows = self.enter("encoder", source), self.enter("decoder", prefix)
        cells = torch.stack([torch.stack([torch.cat([x, y]) for x in columns]) for y in rows])
        x = self.apply("decoder.net.reduce_channels", cells)
        total = x / 3
        for layer in range(2):
            name = f"decoder.net.residual_blocks.{layer}"
            weight, bias = self.state[f"{name}.conv1.weight"], self.state[f"{name}.conv1.bias"]
            h = self.convolve(f"{name}.mconv2", x @ weight[:, :, 0, 0].T + bias)
            x = (x + h) * math.sqrt(0.5)
            h = self.apply(f"{name}.fc2", self.apply(f"{name}.fc1", x).relu())
            x = (x + h) * math.sqrt(0.5)
            total = total + x / 3
        pooled = self.pool(total)
        if not self.options.skip_output_mapping:
            pooled = self.apply("decoder.projection", pooled)
        return self.apply("decoder.prediction", pooled)

    def pool(self, cells: Tensor) -> Tensor:
        kind = self.options.aggregator
        # Row t (from 0) of a path sees k + t cells.
        k = self.options.waitk if kind.startswith("path-") else cells.shape[1]
        mask = torch.full(cells.shape[:2], -math.inf).triu(k)[..., None]
        if kind.endswith("attn"):
            scores = self.apply("decoder.aggregator.w2", self.apply("decoder.aggregator.w1", cells))
            return ((scores + mask).softmax(1) * cells).sum(1)
        if kind.endswith("gated-max"):
            both = self.apply("decoder.aggregator.linear", cells)
            cells = both[..., :8] * torch.sigmoid(both[..., 8:])
        return (cells + mask).amax(1)
