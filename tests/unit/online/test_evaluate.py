"""Online evaluation: delays by their formulas, the same in any batch; the oracle's paths."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.app import main
from nmtgrid.data.batches import Batch, collate
from nmtgrid.data.dataset import Dataset, Split
from nmtgrid.metrics.quality import bleu
from nmtgrid.models.api import Classifier, PredictionSites, Traits, TranslationModel
from nmtgrid.online.evaluate import (
    Decoded,
    OnlineDecoder,
    Outcome,
    cut_path,
    delays_of_tokens,
    delays_of_words,
    instances,
    measure,
    read_sentences,
    sentence_latencies,
)
from nmtgrid.online.oracle import writing_costs
from nmtgrid.online.policies import Threshold, WaitK
from nmtgrid.online.settings import Setting, SourceText, read_settings
from nmtgrid.online.simuleval import read_log, score, write_log
from nmtgrid.online.stream import StreamTranslator
from nmtgrid.search.long_sources import SourceLimits
from nmtgrid.text.vocabulary import END, UNKNOWN
from tests.unit.helpers.tiny_online import plain_outcome, sentence, sentences, translator

ONLINE: list[tuple[str, dict[str, Any]]] = [
    ("pervasive", {"reader": "shared"}),
    ("transformer", {}),
]


def run(decoder: OnlineDecoder, *settings: Setting) -> list[list[Outcome]]:
    return [decoded.outcomes for decoded in decoder.run(sentences(), settings)]


@pytest.mark.parametrize(("arch", "changes"), ONLINE)
def test_wait_k_delays_are_those_of_the_formula(arch: str, changes: dict[str, Any]) -> None:
    ks = (1, 3, 100, math.inf)
    results = run(OnlineDecoder(translator(arch, **changes)), *(Setting("wait-k", k) for k in ks))
    for k, outcomes in zip(ks, results, strict=True):
        for pair, outcome in zip(sentences(), outcomes, strict=True):
            whole, steps = len(pair.source) + 1, range(len(outcome.units) + 1)
            assert outcome.reads == [min(k + t, whole) for t in steps if pair.source]
            assert pair.source or outcome == plain_outcome()
    assert results[2] == results[3], "a k beyond every source is offline"


@pytest.mark.parametrize(("arch", "changes"), ONLINE)
def test_the_batch_changes_nothing(arch: str, changes: dict[str, Any]) -> None:
    settings = [Setting("wait-k", 2)]
    if changes:
        settings += [Setting("threshold", 0.4), Setting("oracle", 0.0), Setting("oracle", 0.5)]
    together = run(OnlineDecoder(translator(arch, **changes)), *settings)
    alone = run(OnlineDecoder(translator(arch, batch_tokens=1, **changes)), *settings)
    for many, single in zip(together, alone, strict=True):
        assert [(a.units, a.reads) for a in many] == [(b.units, b.reads) for b in single]
    if changes:
        assert len({tuple(map(tuple, (a.reads for a in many))) for many in together}) >= 3


def test_a_beam_follows_paths_too_and_finishes_reading() -> None:
    online = translator("transformer")
    online.plan = dataclasses.replace(online.plan, beam=3)
    outcomes = run(OnlineDecoder(online), Setting("wait-k", 2))[0]
    for pair, outcome in zip(sentences(), outcomes, strict=True):
        whole = len(pair.source) + 1
        assert outcome.reads == [min(2 + t, whole) for t in range(len(outcome.reads))]
    # A model that would end at once has to write until all is read.
    online = translator("pervasive")
    bias = online.models[0].classifier().bias
    assert bias is not None
    bias.data[END] = 1e6
    plain, finished = (
        run(OnlineDecoder(online, finish_reading=finish), Setting("wait-k", 1))[0]
        for finish in (False, True)
    )
    for pair, early, late in zip(sentences(), plain, finished, strict=True):
        if pair.source:
            assert early.reads == [1] and late.reads == list(range(1, len(pair.source) + 2))


def test_without_a_source_end_the_length_is_the_sources() -> None:
    online = translator("transformer", source_marker="none")
    outcomes = run(OnlineDecoder(online), Setting("wait-k", 1))
    assert [len(outcome.units) for outcome in outcomes[0]] == [len(o.source) for o in sentences()]


@pytest.mark.parametrize("min_length", [0, 5])
def test_without_a_source_end_all_ways_write_the_same(min_length: int) -> None:
    """What is translated, evaluated with k = inf, and streamed; the least length does not count."""
    online = translator("transformer", source_marker="none")
    online.plan = dataclasses.replace(online.plan, min_length=min_length)
    pairs = [pair for pair in sentences() if pair.source]
    decoder = OnlineDecoder(online)
    offline, early = (
        decoded.outcomes
        for decoded in decoder.run(pairs, [Setting("wait-k", math.inf), Setting("wait-k", 2)])
    )
    assert [pair.text for pair in offline] == online.translate([" ".join(o.words) for o in pairs])
    assert [len(pair.units) for pair in offline] == [len(pair.source) for pair in pairs]
    for k, outcomes in ((math.inf, offline), (2, early)):
        streams = StreamTranslator(online.models, online.pipeline, WaitK(k), online.plan)
        for pair, outcome in zip(pairs, outcomes, strict=True):
            stream = streams.begin()
            for word in pair.words:
                stream.read(word)
            stream.end()
            assert (stream.target, stream.hypothesis().reads) == (outcome.units, outcome.reads)


def test_what_models_cannot_do() -> None:
    settings = read_settings("1,inf", "0.5", "0")
    blind, fixed = (
        OnlineDecoder(translator("pervasive", source_causal=False)),
        OnlineDecoder(translator("transformer")),
    )
    assert len(blind.faults(settings)) == 1 and "both directions" in blind.faults(settings)[0]
    assert blind.faults([Setting("wait-k", math.inf)]) == [], "offline it may be measured"
    threshold, oracle = fixed.faults(settings)
    assert "depends on the path" in oracle and "no reader" in threshold
    assert OnlineDecoder(translator("pervasive", reader="own")).faults(settings) == []


class Needy(TranslationModel):
    """Knows target token t (from 0) once t + 2 source tokens have been read, else nothing."""

    architecture = "needy"

    def __init__(self, types: int) -> None:
        super().__init__()
        self.traits = Traits(prefix_safe=True, every_cell=True)
        self.weight = nn.Parameter(torch.eye(types))

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        assert sites.reads is not None
        known = sites.reads >= sites.position + 2
        target = batch.target_output[sites.sentence, sites.position]
        return 9.0 * known[:, None] * torch.eye(len(self.weight))[target]

    def classifier(self) -> Classifier:
        return Classifier(self.weight, None)


def test_writing_costs_and_the_oracle_of_a_known_delay() -> None:
    model = Needy(20)
    costs = writing_costs(model, collate([[5, 6, 7, 8], [5]], [[9, 10, 11], [9, 9]]))
    known, unknown = math.log(1 + 19 * math.exp(-9)), math.log(20)
    assert costs.shape == (2, 4, 5)
    assert costs[0, 1].tolist() == pytest.approx([unknown, unknown, known, known, known], abs=1e-5)
    assert costs[1, 0].tolist() == pytest.approx([unknown, known, 0, 0, 0], abs=1e-5)
    assert costs[1, 3].tolist() == [0.0] * 5
    online = translator("pervasive")
    online.models = [model]
    decoder = OnlineDecoder(online)
    pairs = [sentence(1, "c d e f", "c d e"), sentence(2, "", "c"), sentence(3, "c", "c d")]
    # 4 source tokens and the end symbol; the dearest delay writes at once.
    assert decoder.oracle(pairs, [0.0, 1000.0]) == {
        0.0: {1: [2, 3, 4, 5], 3: [2, 2, 2]},
        1000.0: {1: [1, 1, 1, 1], 3: [1, 1, 1]},
    }


class Ignorant(Needy):
    """Knows nothing."""

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        return 0.0 * super().features(batch, sites)


def test_the_oracle_of_an_ensemble_goes_by_mean_probabilities() -> None:
    """Of the first token, of 20 types: 1/20 before the second READ, then about (1 + 1/20) / 2.

    That saves log(10.5) = 2.35 nats, where the mean of both models' costs falls by log(20) / 2 =
    1.50. With 2 source and 2 target tokens and a lambda of 2 the READ costs 2 * 2 / 2 = 2.
    """
    online = translator("pervasive")
    online.models = [Needy(20), Ignorant(20)]
    assert OnlineDecoder(online).oracle([sentence(1, "c", "c")], [2.0]) == {2.0: {1: [2, 2]}}


def test_measures_of_a_known_outcome() -> None:
    """Words `ab c de`: units ab c d@@ e. Written: c@@ d e, with 2, 3 and 5 (all) units read."""
    pair = sentence(1, "ab c de", "c e")
    assert pair.sizes == [1, 1, 2] and len(pair.source) == 4
    known = plain_outcome(["c@@", "d", "e"], "cd e", "cd e", [2, 3, 5, 5])
    empty = sentence(2, "", "c")
    outcomes = [known, plain_outcome()]
    assert delays_of_tokens(pair, known) == [2, 3, 4]
    result = Decoded(Setting("wait-k", 2), outcomes, 2.0)
    measured = measure([pair, empty], result, "@@", lowercase=False)
    tokens, words, log = measured.latencies.values()
    assert (tokens.unit, words.unit, log.convention) == ("token", "word", "simuleval")
    assert tokens.sentences == 2 and tokens.skipped == 1
    assert tokens.ap == pytest.approx((2 + 3 + 4) / 3 / 4)
    assert tokens.length_ratio == pytest.approx(3 / 3), "the empty source has a reference"
    assert words.al == pytest.approx(3.0), "`cd` with its second unit, when `de` has begun"
    unreferenced = dataclasses.replace(pair, reference="")
    _, *counted = sentence_latencies([pair, unreferenced], [known, known], "@@").values()
    # Two words each, of references of two words and of none, which count as one.
    assert [each.mean().length_ratio for each in counted] == pytest.approx([4 / 3, 4 / 3])
    values = measured.values("token", "thesis")
    assert values["policy"] == "wait-k" and values["k"] == 2 and values["al"] == tokens.al
    assert values["tokens_per_second"] == 2.0 and len(values["latencies"]) == 3
    logged = instances([pair, empty], outcomes, "@@")
    assert logged[0].delays == [3, 3] and logged[0].source_length == 3 and logged[1].delays == []
    assert logged[0].source == "ab c de" and logged[0].reference == "c e"


def test_logs_are_without_the_escapes_of_the_tokenizer(tmp_path: Path) -> None:
    target = "it &apos;s &lt; &#91; &amp;apos; |"
    pair = dataclasses.replace(sentence(1, "a b c", "ab"), reference=f"{target} yes")
    known = plain_outcome(target.split(), target, "", [1, 1, 2, 2, 3, 3, 4])
    logged = instances([pair], [known], "@@")
    assert logged[0].prediction == "it 's < [ &apos; |"
    assert logged[0].reference == "it 's < [ &apos; | yes"
    escaped = dataclasses.replace(logged[0], prediction=target, reference=pair.reference)
    scores, same = score(logged), score([escaped])
    assert (scores.thesis, scores.simuleval) == (same.thesis, same.simuleval)
    expected = bleu([target], [pair.reference], "none")
    assert bleu([logged[0].prediction], [logged[0].reference], "none") == expected
    write_log(tmp_path, logged)
    assert read_log(tmp_path) == logged


def test_settings() -> None:
    parsed = read_settings("1..3,inf", "0.1..0.3:0.1", "0,1")
    assert [setting.slug for setting in parsed] == [
        "k-1", "k-2", "k-3", "k-inf", "threshold-0.1", "threshold-0.2", "threshold-0.3",
        "lambda-0", "lambda-1",
    ]  # fmt: skip
    assert [setting.title for setting in parsed][3:5] == ["k = ∞", "τ = 0.1"]
    assert parsed[3].values() == {"policy": "wait-k", "k": None} and parsed[3].is_offline
    assert parsed[-1].values() == {"policy": "oracle", "lambda": 1.0}
    assert [setting.value for setting in read_settings(None, None, None)] == [1, 3, 5, 7, 9]
    assert [setting.policy for setting in read_settings(None, "0.5", None)] == ["threshold"]
    with pytest.raises(ConfigError) as caught:
        read_settings("0,x", "0,1", "-1")
    assert len(caught.value.faults) == 5

    # Unknown words are translated.
    pair = sentence(1, "zz", "c")
    assert UNKNOWN in pair.source
    decoded = OnlineDecoder(translator("pervasive")).run([pair], [Setting("wait-k", 1)])
    assert next(decoded).outcomes[0].reads


def test_a_word_too_long_is_cut_as_in_a_stream() -> None:
    online, raw = translator("pervasive"), ["ab", "abcdefgh" * 9, "e"]
    split = SimpleNamespace(
        raw_source=lambda: [" ".join(raw)], raw_target=lambda: ["a"], tokenized_target=lambda: ["a"]
    )
    limits = SourceLimits(10, 10)
    (pair,) = read_sentences(online.pipeline, cast(Split, split), limits=limits)
    assert max(len(segment.source) for segment in pair.segments()) <= 10
    assert "".join(pair.words) == "".join(raw)
    (decoded,) = OnlineDecoder(online).run([pair], [Setting("wait-k", 2)])
    streams = StreamTranslator(online.models, online.pipeline, WaitK(2), online.plan, limits=limits)
    stream = streams.begin()
    written = [word for source in raw for word in stream.read(source)] + stream.end()
    assert " ".join(written) == decoded.outcomes[0].words
    assert stream.word_delays() == delays_of_words(pair, decoded.outcomes[0], "@@")


def test_words_of_invisible_characters_are_none() -> None:
    """As in streams."""
    split = SimpleNamespace(
        raw_source=lambda: ["ab \u200b e \u200c\u200b"], raw_target=lambda: ["a"],
        tokenized_target=lambda: ["a"],
    )  # fmt: skip
    (pair,) = read_sentences(translator("pervasive").pipeline, cast(Split, split))
    assert pair.words == ["ab", "e"] and pair.sizes == [1, 1]


def test_a_path_is_cut_as_its_line_is() -> None:
    whole = sentence(1, "a b c d e f", "a")
    assert cut_path([1, 3, 7], whole.segments()) == [[1, 3, 7]]
    # The first segment is full, which the third word tells; the second one's last word ends it.
    segments = dataclasses.replace(whole, ends=((2, 3), (4, 4))).segments()
    assert [len(segment.source) for segment in segments] == [2, 2, 2]
    assert [segment.seen for segment in segments] == [3, 4, 7]
    assert cut_path([1, 2, 4, 5, 7], segments) == [[1, 2, 3], [2, 3], [1, 3]]
    # Pieces before, between and behind which nothing is written.
    assert cut_path([7], segments) == [[3], [3], [3]]
    assert cut_path([1, 1, 2], segments) == [[1, 1, 2, 3], [3], [3]]


def test_a_stream_writes_the_same_with_the_same_delays() -> None:
    online = translator("pervasive", reader="shared")
    for setting, agent in (
        (Setting("wait-k", 2), WaitK(2)),
        (Setting("threshold", 0.4), Threshold(0.4)),
    ):
        outcomes = run(OnlineDecoder(online), setting)[0]
        streams = StreamTranslator(online.models, online.pipeline, agent, online.plan)
        for pair, outcome in zip(sentences(), outcomes, strict=True):
            if not pair.source:
                continue
            stream = streams.begin()
            written = [word for source in pair.words for word in stream.read(source)]
            written += stream.end()
            assert " ".join(written) == outcome.words
            assert stream.word_delays() == delays_of_words(pair, outcome, "@@")


def test_a_source_that_is_tokenised_by_line_is_the_datasets(tmp_path: Path) -> None:
    lines = ["Mr. Smith left.", "He left Mr. Smith.", ""]
    for name in ("test.en", "test.de"):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    out, files = tmp_path / "data", str(tmp_path / "test")
    sides = ["--source-lang", "en", "--target-lang", "de"]
    parts = ["--train", files, "--valid", files, "--test", files]
    assert main(["preprocess", *sides, *parts, "--out", str(out)]) == 0
    assert main(["bpe", "learn", str(out), "--words", "--min-count", "1"]) == 0
    data = Dataset.open(out)
    split = data.split("test")
    ways: tuple[SourceText, ...] = ("words", "line")
    by_word, by_line = (read_sentences(data.pipeline, split, source_text=way) for way in ways)
    assert [pair.source for pair in by_line] == [split.source(index) for index in range(3)]
    assert by_line[0].words == ["Mr.", "Smith", "left", "."] and by_line[0].sizes == [1, 1, 1, 1]
    assert by_word[0].words == ["Mr.", "Smith", "left."] and by_word[0].sizes == [2, 1, 2]
    assert [pair.words for pair in by_line + by_word][2::3] == [[], []]
