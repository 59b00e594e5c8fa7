"""The forms that other programs' models have: positions in halves, `</s>` first, one way, sizes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.base.config import to_json
from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import collate
from nmtgrid.layers.embedding import LARGEST_TABLE, Embedding, halved_sinusoids
from nmtgrid.layers.static_cache import StaticPosition
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.models.config_checks import first_alias
from nmtgrid.models.directory import load_model
from nmtgrid.search.translate import default_plan
from nmtgrid.text.vocabulary import BEGIN, END
from tests.unit.convert.fairseq_files import TYPES
from tests.unit.convert.fairseq_reference import Transformer
from tests.unit.convert.test_import_fairseq import taken

SMALL: dict[str, dict[str, Any]] = {
    "transformer": {"size": 8, "feed_forward_size": 8, "heads": 2, "encoder_depth": 1,
                    "decoder_depth": 1},
    "convs2s": {"size": 8, "embedding_size": 6, "encoder_depth": 1, "decoder_depth": 1},
    "bilstm": {"size": 4, "encoder_depth": 1, "decoder_depth": 1},
    "pervasive": {"size": 8, "depth": 1, "feed_forward_size": 8},
}  # fmt: skip


def small(arch: str, **changes: Any) -> TranslationModel:
    settings = {**SMALL[arch], **changes}
    return zoo.build(arch, None, settings, source_vocab_size=11, target_vocab_size=12).eval()


@pytest.mark.parametrize("size", [4, 5, 8])
def test_positions_in_halves(size: int) -> None:
    """The k-th of n waves has the length 2 pi 10000^(k / (n - 1)); the first place is 2."""
    half = size // 2
    waves = halved_sinusoids(3, 2, torch.zeros(size))
    for row, position in enumerate((5, 6)):
        for k in range(half):
            angle = position / 10000 ** (k / (half - 1))
            assert waves[row, k].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert waves[row, half + k].item() == pytest.approx(math.cos(angle), abs=1e-6)
    assert waves.shape == (2, size) and (size % 2 == 0 or not waves[:, -1].any())


def test_positions_come_from_the_table_or_beyond_it_alike() -> None:
    embedding = Embedding(
        5, 6, positions="sinusoidal-halves", scale=False, dropout_rate=0.0, padding=0
    )
    with torch.no_grad():
        embedding.weight.zero_()
    moving = StaticPosition(torch.device("cpu"))
    for first in (0, 7, LARGEST_TABLE - 1, LARGEST_TABLE + 3):
        moving.move(first)
        expected = halved_sinusoids(first, 2, embedding.weight)
        assert torch.equal(embedding(torch.zeros(2, dtype=torch.long), first), expected)
        assert torch.equal(embedding(torch.zeros(2, dtype=torch.long), moving), expected)


@pytest.mark.parametrize("arch", SMALL)
def test_the_first_symbol_has_the_vector_of_the_end(arch: str) -> None:
    model = small(arch, first_symbol="end")
    batch = collate([[5, 6]], [[7]])
    sites = PredictionSites.offline(batch)
    with torch.no_grad():
        before = model.features(batch, sites)
        model.get_parameter("target_embedding.weight")[BEGIN] += 1.0
        assert torch.equal(model.features(batch, sites), before)
        model.get_parameter("target_embedding.weight")[END] += 1.0
        assert not torch.equal(model.features(batch, sites), before)
    assert first_alias("begin") is None and first_alias("end") == (BEGIN, END)


def test_an_encoder_of_one_way() -> None:
    """Without the way back there are half the weights and states; earlier states see no later."""
    both, forward = small("bilstm"), small("bilstm", encoder="unidirectional")
    count = sum(p.numel() for p in forward.get_submodule("encoder").parameters())
    assert 2 * count == sum(p.numel() for p in both.get_submodule("encoder").parameters())
    states = []
    forward.get_submodule("encoder_outputs.0").register_forward_hook(lambda *a: states.append(a[2]))
    for last in (5, 6):
        batch = collate([[7, 8, last]], [[]])
        forward.features(batch, PredictionSites.offline(batch))
    assert torch.equal(states[0][:2], states[1][:2]) and states[0].shape == (4, 1, 4)
    assert not torch.equal(states[0][2], states[1][2])


def test_a_classifier_of_its_own_size() -> None:
    model = small("convs2s", output_size=5, tie="none")
    assert model.get_parameter("output_weight").shape == (12, 5)
    cost = model.report(10, 10).flops_per_pair
    wider = small("convs2s", output_size=6, tie="none").report(10, 10).flops_per_pair
    # One more feature: 8 channels are mapped to it, and 12 types read it, at each of 10 positions.
    assert wider - cost == 3 * 10 * (2 * 8 + 2 * 12)
    with pytest.raises(
        ConfigError, match=r"`model.output_size` must be none or .* \(6\), but is 5"
    ):
        small("convs2s", output_size=5)


def test_an_imported_model_can_be_exported(tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    from nmtgrid.convert.to_ctranslate2 import export

    loaded = taken(tmp_path, Transformer(TYPES))
    export(loaded, tmp_path / "out", to_json(default_plan(loaded)))
    translator = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    source, target = ["de1", "de5", "de3"], ["en4", "en2", "en0", "en5"]
    scores = translator.score_batch([[*source]], [target])[0].log_probs
    encode = loaded.pipeline.source_vocabulary.encode, loaded.pipeline.target_vocabulary.encode
    batch = collate([encode[0](source)], [encode[1](target)])
    with torch.no_grad():
        logits = loaded.model.classify(loaded.model.features(batch, PredictionSites.offline(batch)))
    # `<pad>` and `<s>` are never written there: what they had goes to the others.
    logits[:, :2] = -1e9
    expected = torch.log_softmax(logits, -1).gather(1, batch.target_output.T)[:, 0]
    torch.testing.assert_close(torch.tensor(scores), expected, atol=1e-4, rtol=0)
    assert len(load_model(tmp_path / "model").pipeline.target_vocabulary) == TYPES[1]
