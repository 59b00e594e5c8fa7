"""A dynamic agent that begins from a model without one, from the command line."""

from __future__ import annotations

from pathlib import Path

import torch

from nmtgrid.base.io.arrays import load_tensors
from nmtgrid.cli.app import main


def test_a_dynamic_agent_begins_from_a_model_without_one(tmp_path: Path) -> None:
    """The pretrained weights are those of the model and of the agent (section 4.5.5)."""
    data, alone, both = (str(tmp_path / name) for name in ("data", "alone", "both"))
    options = [
        "model.depth=1", "model.size=8", "model.feed_forward_size=8", "model.source_causal=true",
        "batches.max_tokens=400", "training.validate_sentences=5",
        "training.initial_learning_rate=0", "training.learning_rate=1e-30",
    ]  # fmt: skip
    small = [part for option in options for part in ("--set", option)]
    small += ["--max-updates", "1", "--precision", "fp32"]
    assert main(["preprocess", "--toy", "60", "--out", data]) == 0
    assert main(["bpe", "learn", data, "--merges", "40"]) == 0
    assert main(["train", data, "--out", alone, *small]) == 0
    agent = ["--objective", "dynamic", "--set", "model.reader=own", "--init", alone]
    assert main(["train", data, "--out", both, *agent, *small]) == 0
    given = load_tensors(Path(alone) / "model.safetensors")
    found = load_tensors(Path(both) / "last.safetensors")
    assert {name.split(".")[1] for name in found if name.startswith("reader.")} > {"network"}
    for name, held in found.items():
        if "decision" not in name:
            torch.testing.assert_close(held, given[name.removeprefix("reader.")])
    assert main(["train", data, "--out", both + "2", *agent[:2], *small]) == 2
