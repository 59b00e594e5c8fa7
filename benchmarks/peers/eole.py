"""Eole in the comparison with peers: its trainer, iterator and inference engine."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from eole.config.run import PredictConfig, TrainConfig
from eole.constants import CorpusTask
from eole.inference_engine import InferenceEnginePY
from eole.inputters.dynamic_iterator import build_dynamic_dataset_iter
from eole.models.model import get_model_class
from eole.models.model_saver import build_model_saver
from eole.train_single import TrainingInitializer
from eole.trainer import build_trainer
from eole.utils.optimizers import Optimizer
from safetensors.torch import load_file

from benchmarks.peers.worker import END, Task

_PARTS = {
    "attention.query": "self_attn.linear_query", "attention.key": "self_attn.linear_keys",
    "attention.value": "self_attn.linear_values", "attention.output": "self_attn.final_linear",
    "attention_norm": "input_layernorm", "source_attention_norm": "precontext_layernorm",
    "source_attention.query": "context_attn.linear_query",
    "source_attention.key": "context_attn.linear_keys",
    "source_attention.value": "context_attn.linear_values",
    "source_attention.output": "context_attn.final_linear",
    "forward_norm": "post_attention_layernorm", "forward.inner": "mlp.gate_up_proj",
    "forward.outer": "mlp.down_proj",
}  # fmt: skip


def its_name(name: str) -> str:
    """Return Eole's name of a common weight."""
    if name.endswith("_embedding"):
        return f"{'src' if name.startswith('source') else 'tgt'}_emb.embeddings.weight"
    side, layer, rest = name.split(".", 2)
    if layer == "norm":
        return f"{side}.layer_norm.{rest}"
    part, kind = rest.rsplit(".", 1)
    return f"{side}.transformer_layers.{layer}.{_PARTS[part]}.{kind}"


class System:
    """Trains with `Trainer.train`, translates with `InferenceEnginePY.infer_list`."""

    def __init__(self, task: Task) -> None:
        torch.set_num_threads(1)
        self.version = version("eole")
        folder = Path(task["folder"]) / "eole"
        shutil.rmtree(folder, ignore_errors=True)
        context = TrainingInitializer(_training(task, folder)).initialize()
        config, vocabularies = context.config, context.vocabs

        def make() -> Any:
            return get_model_class(config.model).for_training(
                config.model, vocabularies, config.training, metadata=None, device_id=-1
            )

        model = make()
        optimiser = Optimizer.from_config(model, config, metadata=None)
        self.trainer = build_trainer(config, -1, model, vocabularies, optimiser)
        self.batches = iter(
            build_dynamic_dataset_iter(
                config, context.transforms, vocabularies, task=CorpusTask.TRAIN
            )
        )
        decoding = make()
        weights = {its_name(name): tensor for name, tensor in load_file(task["weights"]).items()}
        missing, left = decoding.load_state_dict(weights, strict=False)
        # The output map is tied to the target embeddings; the others are not parameters.
        fixed = ("generator.weight", ".pe.pe", ".layer_scalar")
        assert not left and all(name.endswith(fixed) for name in missing), missing
        build_model_saver(
            config, decoding, vocabularies, optimiser, -1, context.transforms
        ).save(1)  # fmt: skip
        self.engine = InferenceEnginePY(_decoding(task, folder))
        lines = Path(task["test"]["source"]).read_text(encoding="utf-8").splitlines()
        self.sources = [f"{line} {END}" for line in lines]

    def train(self, seconds: float) -> tuple[int, int]:
        """Run the trainer's loop on batches that stop when the time is over."""
        count = 0

        def timed() -> Iterator[Any]:
            nonlocal count
            end = time.process_time() + seconds
            while time.process_time() < end:
                yield next(self.batches)
                count += 1

        report = self.trainer.train(timed(), 0, save_checkpoint_steps=0, valid_steps=10**9)
        return int(report.n_tokens), count

    def translate(self, beam: int, quantization: str, count: int) -> list[list[str]]:
        """Return the translations of the test sentences."""
        _, _, nbest = self.engine.infer_list(self.sources[:count], settings={"beam_size": beam})
        return [best[0].split() for best in nbest]


def _training(task: Task, folder: Path) -> Any:
    sides = {"path_src": task["train"]["source_with_end"], "path_tgt": task["train"]["target"]}
    size, dropout = task["size"], [task["dropout"]]
    return TrainConfig(
        src_vocab=task["vocabulary"]["source"], tgt_vocab=task["vocabulary"]["target"],
        pad_token="<pad>", vocab_size_multiple=1, data={"corpus": sides}, seed=1,
        report_every=10**9,
        model={
            "architecture": "transformer", "layers": task["depth"], "hidden_size": size,
            "heads": task["heads"], "transformer_ff": task["forward_size"], "word_vec_size": size,
            "add_qkvbias": True, "add_final_linear_bias": True, "add_ffnbias": True,
            "share_decoder_embeddings": True, "generator_bias": False,
            "embeddings": {"position_encoding_type": "SinusoidalInterleaved",
                           "word_vec_size": size},
        },
        training={
            "model_path": str(folder), "compute_dtype": "fp32", "dropout": dropout,
            "attention_dropout": dropout, "num_workers": 0, "bucket_size": 30_000,
            "batch_type": "tokens", "batch_size": task["batch_tokens"], "normalization": "tokens",
            "optim": "adam", "learning_rate": task["learning_rate"], "decay_method": "none",
            "label_smoothing": task["label_smoothing"], "max_grad_norm": task["clip_norm"],
        },
    )  # fmt: skip


def _decoding(task: Task, folder: Path) -> Any:
    return PredictConfig(
        model_path=str(folder / "step_1"), src=task["test"]["source"], compute_dtype="fp32",
        batch_type="sents", batch_size=task["sentences"], beam_size=5,
        length_penalty="avg", alpha=1.0, n_best=1,
    )  # fmt: skip
