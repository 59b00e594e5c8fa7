"""What `nmtgrid decode --forced` does: the references of a split, as the model sees them."""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path
from typing import Any

from nmtgrid.analysis.alignment.soft_alignments import pharaoh
from nmtgrid.base import console
from nmtgrid.base.io.text import open_writer
from nmtgrid.cli.check_dataset import check_same_text, check_vocabularies
from nmtgrid.cli.decode.run import Outputs, progress
from nmtgrid.data.dataset import Dataset
from nmtgrid.search.forced import Kind, forced_traces
from nmtgrid.search.translate import Translator


def force_split(
    translator: Translator, data: Path, name: str, outputs: Outputs, kind: Kind
) -> dict[str, Any]:
    """Teacher-force a split; write traces and alignments; return the perplexity and counts."""
    dataset = Dataset.open(data)
    check_same_text(translator, dataset)
    check_vocabularies(translator, dataset)
    split, total, started = dataset.split(name), 0.0, time.perf_counter()
    model = translator.models[0]
    needs = outputs.alignments is not None or kind == "energies"
    with progress(len(split)) as meter, contextlib.ExitStack() as stack:
        traces, alignments = (
            None if path is None else stack.enter_context(open_writer(path))
            for path in (outputs.traces, outputs.alignments)
        )
        for trace in forced_traces(
            model,
            translator.pipeline,
            split,
            kind=kind,
            align=needs or (outputs.traces is not None and model.traits.aligns),
            device=translator.device,
            bf16=translator.bf16,
            batch_tokens=translator.options.batch_tokens,
            advance=meter.advance,
        ):
            total += trace.log_probability
            if traces is not None:
                traces.write(f"{trace.to_line()}\n".encode())
            if alignments is not None:
                alignments.write(f"{pharaoh(trace)}\n".encode())
    tokens = int(split.target_lengths.sum()) + len(split)
    perplexity = math.exp(min(-total / max(tokens, 1), 700.0))
    console.say(
        f"{split.name}: perplexity {perplexity:.3f} over {tokens:,} target units, end symbols "
        "included."
    )
    return {
        "split": name,
        "sentences": len(split),
        "target_tokens": tokens,
        "perplexity": perplexity,
        "nll": -total / max(tokens, 1),
        "seconds": time.perf_counter() - started,
    }
