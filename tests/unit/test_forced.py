"""`decode --forced`: the references of a split, their scores and alignments."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from nmtgrid.cli.app import main
from nmtgrid.data.dataset import Dataset
from nmtgrid.models import zoo
from nmtgrid.models.directory import load_model, save_model
from nmtgrid.search.traces import read_traces


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a toy dataset `data` and a drawn model `model`."""
    folder = tmp_path_factory.mktemp("forced")
    assert main(["preprocess", "--toy", "60", "--out", str(folder / "data")]) == 0
    assert main(["bpe", "learn", str(folder / "data"), "--merges", "40"]) == 0
    pipeline = Dataset.open(folder / "data").pipeline
    torch.manual_seed(1)
    model = zoo.build(
        "pervasive",
        overrides={"depth": 1, "size": 8, "feed_forward_size": 8, "aggregation": "max"},
        source_vocab_size=len(pipeline.source_vocabulary),
        target_vocab_size=len(pipeline.target_vocabulary),
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    save_model(folder / "model", model, pipeline, {})
    return folder


def force(home: Path, *arguments: str) -> int:
    given = ["--data", str(home / "data"), "--split", "valid", "--device", "cpu", "--forced"]
    return main(["decode", str(home / "model"), *given, *arguments])


def test_perplexity_and_scores_of_the_references(home: Path, tmp_path: Path) -> None:
    """Against one sentence after the other through the steps of decoding."""
    traces, report = tmp_path / "t.jsonl", tmp_path / "r.json"
    assert force(home, "--traces", str(traces), "--json", str(report), "--batch-tokens", "70") == 0
    loaded = load_model(home / "model")
    split = Dataset.open(home / "data").split("valid")
    total, tokens = 0.0, 0
    for index, trace in enumerate(read_traces(traces)):
        source = torch.tensor([[*split.source(index), 2]])
        state = loaded.model.begin(source, torch.tensor([source.shape[1]]))
        written, scores, rows = 1, [], []
        for token in [*split.target(index), 2]:
            with torch.no_grad():
                step = loaded.model.step(torch.tensor([written]), state, align=True)
            state, written = step.state, token
            assert step.alignment is not None
            scores.append(float(step.logits.log_softmax(-1)[0, token]))
            rows.append(step.alignment[0].tolist())
        assert trace.alignment is not None
        np.testing.assert_allclose(trace.log_probabilities, scores, atol=1e-4)
        np.testing.assert_allclose(trace.alignment, rows, atol=1e-4)
        assert trace.line == index + 1 and trace.text == split.raw_target()[index]
        total, tokens = total + sum(scores), tokens + len(scores)
    found = json.loads(report.read_text())
    assert found["sentences"] == len(split) and found["target_tokens"] == tokens
    assert found["perplexity"] == pytest.approx(math.exp(-total / tokens), rel=1e-4)


def test_energies_are_drawn_and_measured(home: Path, tmp_path: Path) -> None:
    traces, picture, report = tmp_path / "e.jsonl", tmp_path / "e.png", tmp_path / "r.json"
    assert force(home, "--energies", "--traces", str(traces)) == 0
    records = list(read_traces(traces))
    assert {trace.kind for trace in records} == {"energies"}
    assert any((trace.alignment < 0).any() for trace in records if trace.alignment is not None)
    arguments = ["--out", str(picture), "--json", str(report)]
    assert main(["analyze", "alignments", str(traces), *arguments]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = json.loads(report.read_text())["systems"][0]
    assert found["kind"] == "energies"
    # Of shares over the longest source: from none to even.
    longest = max(len(trace.source) + 1 for trace in records)
    assert 0 <= found["entropy"] <= math.log(longest)


def test_what_makes_no_sense_is_refused(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decode", str(home / "model"), "--forced", "--energies"]) == 2
    assert "name a dataset with `--data`" in capsys.readouterr().err
    assert force(home, "--nbest", "2") == 2
    assert "translates nothing" in capsys.readouterr().err
    in_vain = [
        "--beam 5", "--length-penalty 2", "--coverage-penalty 1", "--replace-unknown",
        "--max-source 3", "--long-lines cut", "--set min_length=2", "--sample", "--out x",
    ]  # fmt: skip
    assert force(home, *" ".join(in_vain).split()) == 2
    told = " ".join(capsys.readouterr().err.split())
    for option in in_vain:
        assert f"`{option.split()[0]}` has no effect with `--forced`" in told
    assert main(["decode", str(home / "model"), "--energies"]) == 2
    assert "add `--forced`" in capsys.readouterr().err
