"""Joey NMT in the comparison with peers: its training loop, loaders and `predict`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from joeynmt.config import parse_global_args
from joeynmt.prediction import predict, prepare
from joeynmt.training import TrainManager
from safetensors.torch import load_file

from benchmarks.peers.worker import Task

_PARTS = {
    "attention_norm": "{first}layer_norm", "source_attention_norm": "dec_layer_norm",
    "forward_norm": "feed_forward.layer_norm", "forward.inner": "feed_forward.pwff_layer.0",
    "forward.outer": "feed_forward.pwff_layer.3",
}  # fmt: skip
_SYMBOLS = ("<unk>", "<pad>", "<s>", "</s>")


def its_name(name: str) -> str:
    """Return Joey NMT's name of a common weight."""
    side, layer, rest = name.split(".", 2)
    if layer == "norm":
        return f"{side}.layer_norm.{rest}"
    part, kind = rest.rsplit(".", 1)
    if part in _PARTS:
        part_name = _PARTS[part].format(first="x_" if side == "decoder" else "")
    else:
        attention, which = part.split(".")
        read = "src" if side == "encoder" or attention == "source_attention" else "trg"
        wrote = "src" if side == "encoder" else "trg"
        map_name = "output_layer" if which == "output" else f"{which[0]}_layer"
        part_name = f"{read}_{wrote}_att.{map_name}"
    return f"{side}.layers.{layer}.{part_name}.{kind}"


class Timed:
    """A loader whose epoch ends when the time is over; the next one continues from there."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.batch_sampler = loader, loader.batch_sampler
        self.seconds = 0.0
        self._running: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        end = time.process_time() + self.seconds
        while time.process_time() < end:
            batch = next(self._running, None)
            if batch is None:
                self._running = iter(self.loader)
            else:
                yield batch


class Manager(TrainManager):  # type: ignore[misc]
    """Joey NMT's manager without checkpoints at the end of each round."""

    def _save_checkpoint(self, new_best: bool, score: float) -> None:
        pass


class System:
    """Trains with `TrainManager.train_and_validate`, translates with `predict`."""

    def __init__(self, task: Task) -> None:
        torch.set_num_threads(1)
        self.version = version("joeynmt")
        folder = Path(task["folder"]) / "joeynmt"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        args = parse_global_args(_settings(task, folder), rank=0, mode="train")
        self.model, self.data, _, self.test = prepare(args, rank=0, mode="train")
        self.decoding, *_ = prepare(args, rank=0, mode="train")
        self.decoding.load_state_dict(_weights(task, self.decoding))
        self.args = args
        self.manager = Manager(
            rank=0, model=self.model, model_dir=folder, device=args.device, num_workers=0,
            autocast=args.autocast, seed=1, train_args=args.train, dev_args=args.test,
        )  # fmt: skip
        self.timed: Timed | None = None
        make = self.data.make_iter

        def make_once(**options: Any) -> Timed:
            self.timed = self.timed or Timed(make(**options))
            self.timed.seconds = self.seconds
            return self.timed

        self.data.make_iter = make_once

    def train(self, seconds: float) -> tuple[int, int]:
        """Run the manager's loop for one epoch, which ends when the time is over."""
        self.seconds = seconds
        stats = self.manager.stats
        tokens, updates = stats.total_tokens, stats.steps
        self.manager.train_and_validate(self.data, self.test)
        return stats.total_tokens - tokens, stats.steps - updates

    def translate(self, beam: int, quantization: str, count: int) -> list[list[str]]:
        """Return the translations of the test sentences."""
        self.test.indices = list(range(min(count, len(self.test))))
        args = self.args.test._replace(beam_size=beam, beam_alpha=1.0 if beam > 1 else -1)
        prediction = predict(
            self.decoding, self.test, self.args.device, n_gpu=0, args=args,
            autocast=self.args.autocast,
        )  # fmt: skip
        return [list(line) for line in prediction[3]]


def _weights(task: Task, model: Any) -> dict[str, Any]:
    """Return the common weights under Joey NMT's names and in its order of special symbols."""
    weights = {}
    for name, tensor in load_file(task["weights"]).items():
        if not name.endswith("_embedding"):
            weights[its_name(name)] = tensor
            continue
        ours = Path(task["vocabulary"][name.removesuffix("_embedding")])
        index = {kind: i for i, kind in enumerate(ours.read_text(encoding="utf-8").splitlines())}
        side, vocabulary = (
            ("src", model.src_vocab) if name.startswith("source") else ("trg", model.trg_vocab)
        )
        order = torch.tensor([index[vocabulary._itos[i]] for i in range(len(vocabulary))])
        weights[f"{side}_embed.lut.weight"] = tensor[order]
    weights["decoder.output_layer.weight"] = weights["trg_embed.lut.weight"]
    fixed = {name: tensor for name, tensor in model.state_dict().items() if name.endswith(".pe")}
    return {**fixed, **weights}


def _settings(task: Task, folder: Path) -> dict[str, Any]:
    def side() -> dict[str, Any]:
        rate, size = task["dropout"], task["size"]
        return {
            "type": "transformer", "num_layers": task["depth"], "num_heads": task["heads"],
            "embeddings": {"embedding_dim": size, "scale": True, "dropout": rate},
            "hidden_size": size, "ff_size": task["forward_size"], "dropout": rate,
            "layer_norm": "pre",
        }  # fmt: skip

    def text(name: str) -> dict[str, Any]:
        return {
            "lang": name, "level": "word", "voc_file": task["vocabulary"][name],
            "tokenizer_cfg": {"pretokenizer": "none"},
        }  # fmt: skip

    texts = Path(task["folder"]) / "text"
    return {
        "name": "peer", "model_dir": str(folder), "use_cuda": False, "random_seed": 1,
        "normalization": "tokens",
        "data": {
            "train": str(texts / "train"), "test": str(texts / "test"),
            "dev": str(texts / "test"), "dataset_type": "plain",
            "src": text("source"), "trg": text("target"),
        },
        "model": {"encoder": side(), "decoder": side(), "tied_softmax": True,
                  "initializer": "xavier_uniform", "embed_initializer": "xavier_uniform"},
        "training": {
            "scheduling": "warmupinversesquareroot", "learning_rate_warmup": 4000,
            "optimizer": "adam", "adam_betas": [0.9, 0.98], "batch_type": "token",
            "batch_size": task["batch_tokens"], "normalization": "tokens",
            "learning_rate": task["learning_rate"], "learning_rate_min": 1e-9,
            "label_smoothing": task["label_smoothing"], "clip_grad_norm": task["clip_norm"],
            "epochs": 1, "logging_freq": 10**6, "validation_freq": 10**6, "shuffle": True,
        },
        "testing": {"batch_size": task["sentences"], "batch_type": "sentence", "eval_metrics": []},
    }  # fmt: skip
