"""Text to text, with a model that copies: order, segments, batches, unknown words."""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import nmtgrid
from nmtgrid.adaptive.halting import Predicted
from nmtgrid.base.errors import ConfigError, ModelError
from nmtgrid.models import zoo
from nmtgrid.models.directory import LengthPercentiles, LoadedModel, TrainingLengths, save_model
from nmtgrid.search import engine
from nmtgrid.search.api import Hypothesis, SearchPlan, Translation, VerifiedPass
from nmtgrid.search.long_sources import (
    OnlineSplitter,
    SourceLimits,
    cut,
    join,
    join_ranked,
    long_line_warning,
    split,
)
from nmtgrid.search.translate import TranslationOptions, Translator, whole_word
from nmtgrid.text.moses import Moses
from nmtgrid.text.pipeline import Pipeline, TextFacts
from nmtgrid.text.vocabulary import Vocabulary
from tests.unit.helpers import tiny_online
from tests.unit.helpers.copy_model import CopyModel, copier

WORDS = "a b c d . ,"


def translator(loaded: LoadedModel, **options: object) -> Translator:
    return Translator([loaded], SearchPlan(), TranslationOptions(**options))  # type: ignore[arg-type]


def test_lines_come_back_in_order_and_empty_ones_stay_empty() -> None:
    lines = ["a b c", "", "d", "   ", "c c c c a", "b"] * 7
    expected = [" ".join(line.split()) for line in lines]
    for window in (1, 4, 100):
        for batch_tokens in (1, 12, 4000):
            system = translator(copier(WORDS), window=window, batch_tokens=batch_tokens)
            assert system.translate(lines) == expected
            assert system.graphs is None, "on a CPU nothing is recorded"


@pytest.mark.parametrize("has_products", [True, False])
def test_slow_bf16_is_told(has_products: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr("nmtgrid.search.precision.can_pack", lambda kind: has_products)
    for precision in ("fp32", "bf16"):
        Translator([copier(WORDS)], SearchPlan(), precision=precision, warn=messages.append)
    assert ["slow-precision" in text for text in messages] == [True] * (not has_products)


def test_batches_hold_at_most_the_tokens_asked_for() -> None:
    system = translator(copier(WORDS), batch_tokens=20)
    system.translate(["a " * n for n in (1, 9, 3, 3, 2, 30, 4)])
    (model,) = system.models
    assert isinstance(model, CopyModel)
    for rows, width in model.batches:
        assert rows * width <= 20 or rows == 1
    assert sum(rows for rows, _ in model.batches) == 7
    assert len(model.batches) < 7


def test_exits_of_whole_sentences_are_searched_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four batches at a time; not where translations begin as they were told to."""
    settings = {"exits": "tied", "halting": "sequence", "decoder_depth": 3}
    system, alone = (tiny_online.translator("transformer", n, **settings) for n in (8, 1))
    parts: list[int] = []
    search = engine.search

    def noted(*arguments: Any, **options: Any) -> list[list[Hypothesis]]:
        parts.append(options["parts"])
        return search(*arguments, **options)

    monkeypatch.setattr(engine, "search", noted)
    system.halt = alone.halt = Predicted("sequence")
    # A predictor that tells the sentences apart.
    weight = torch.randn(3, 16, generator=torch.Generator().manual_seed(1)) * 9
    for model in (*system.models, *alone.models):
        model.state_dict()["halting_map.weight"].copy_(weight)
        model.state_dict()["halting_map.bias"].zero_()
    lines = ["ab c", "", "d e", "h", "a b c d e f", "g g g", "c"] * 3
    expected = alone.translate(lines)
    parts.clear()
    translations = [*system.translations(lines)]
    assert [translation.text for translation in translations] == expected
    assert max(parts) == 4
    exits = [best.exits for translation in translations for best in translation.hypotheses]
    assert len({max(each or ()) for each in exits}) > 1
    parts.clear()
    prefixes = ["ab", *[""] * (len(lines) - 1)]
    results = system.translate(lines, prefixes=prefixes)
    assert results[1:] == expected[1:] and results[0].startswith("ab")
    assert set(parts) == {1}


def test_windows_are_read_only_when_needed() -> None:
    read = []

    def lines() -> Iterator[str]:
        for number in range(10):
            read.append(number)
            yield "a"

    stream = translator(copier(WORDS), window=3).translations(lines())
    assert next(stream).text == "a"
    assert read == [0, 1, 2]


def test_long_lines() -> None:
    warnings: list[str] = []
    options = TranslationOptions(max_source=4)
    system = Translator([copier(WORDS)], SearchPlan(beam=2), options, warn=warnings.append)
    line = "a b . c d , a b c d a"
    translations = list(system.translations(["a", line, "b"], align=True))
    assert [translation.text for translation in translations] == ["a", line, "b"]
    assert len(warnings) == 1
    assert warnings[0].startswith(
        "long-line: longer than 4 source units and translated in segments"
    )
    assert "2 (11)" in warnings[0]
    one_unit = long_line_warning({2: 3}, SourceLimits(1, 1), "cut")
    assert one_unit == "long-line: longer than 1 source unit and cut: line (units) 2 (3)."
    best = translations[1].hypotheses[0]
    assert best.alignment is not None
    assert best.alignment.shape == (12, 12)
    assert best.alignment.argmax(1).tolist() == list(range(12))
    assert sum(best.log_probabilities) == pytest.approx(best.log_probability)
    assert len(best.log_probabilities) == 12
    warnings.clear()
    options = TranslationOptions(max_source=4, long_lines="cut")
    system = Translator([copier(WORDS)], SearchPlan(), options, warn=warnings.append)
    assert system.translate(["a b c d a b", "a b c d"]) == ["a b c d", "a b c d"]
    assert len(warnings) == 1 and "cut" in warnings[0] and "1 (6)" in warnings[0]
    # Its table would have more cells than memory has bytes.
    line = " ".join("abcd"[index % 4] for index in range(3000))
    (translation,) = translator(copier(WORDS), max_source=100).translations([line], align=True)
    assert translation.text == line
    assert translation.hypotheses[0].alignment is None


def test_cut_prefers_clauses_then_words() -> None:
    assert cut(["a", "b", "c", "d"], 4) == [4]
    assert cut(["a", ",", "b", ",", "c", "d", "e"], 5) == [4, 7]
    assert cut(["a", "b", ",", "c", "d", "e", "f"], 5) == [3, 7]
    assert cut(["a", "b", "c", "d@@", "e@@", "f", "g"], 5) == [3, 7]
    assert cut(["x@@"] * 9, 4) == [4, 8, 9]
    assert cut(list(", a b c d e f"), 4)[0] > 1


def test_a_long_line_is_split_at_every_sentence() -> None:
    moses, limits = Moses("de"), SourceLimits(whole=6, segment=5)
    units = ["Ein@@", "s", ".", "Dr.", "Zw@@", "ei", "!", "Drei", "."]
    assert split(units, limits, moses) == [3, 7, 9]
    # Nothing is split that is short enough, or is one sentence.
    assert split(units[:6], limits, moses) == [6]
    assert split(units, SourceLimits(9, 9), moses) == [9]
    assert split(["a", "b", ",", "c@@", "d", "e", "."], SourceLimits(6, 9), moses) == [7]
    # A sentence that is too long by itself is cut.
    assert split([*units[:3], *"ABCDEFG"], limits, moses) == [3, 8, 10]


def test_limits_are_those_of_training() -> None:
    lengths = LengthPercentiles.of(numpy.arange(1, 201))
    assert (lengths.p1, lengths.p50, lengths.p99, lengths.longest) == (2, 100, 198, 200)
    shorter = TrainingLengths(LengthPercentiles(5, 5, 5, 5, 5, 5, 7))
    known = TrainingLengths(lengths)
    assert SourceLimits.of([known], None) == SourceLimits(198, 200, 200)
    assert SourceLimits.of([known, shorter, None], None) == SourceLimits(5, 7, 7)
    assert SourceLimits.of([known, shorter], 50) == SourceLimits(50, 50, 7)
    assert SourceLimits.of([None], None).trained is None


def test_segments_of_a_line_whose_end_is_not_known() -> None:
    splitter = OnlineSplitter(SourceLimits(whole=4, segment=6), Moses("de"))
    words = ["Eins.", "Zwei", "drei.", "Vier", "fünf.", "Sechs.", "Sieben", "acht", "neun"]
    sizes = [1, 2, 1, 1, 1, 1, 4, 2, 1]
    marks = []
    for word, size in zip(words, sizes, strict=True):
        before = splitter.begins_segment(size)
        marks.append((before, splitter.add(word, size)))
    # Up to four units the line is one segment; then each sentence is, and six units at most.
    ended = [False, False, False, False, True, True, False, False, False]
    assert [end for _, end in marks] == ended
    assert [before for before, _ in marks] == [False] * 8 + [True]


def test_joined_pieces_add_up() -> None:
    segments = [
        Hypothesis([], [-0.5], -0.5, 0.0, torch.tensor([[0.25, 0.75]])),
        Hypothesis([7, 8], [-1.0, -2.0, -0.25], -3.25, 0.0, torch.eye(3)),
        Hypothesis([], [-0.125], -0.125, 0.0, torch.tensor([[1.0]])),
        Hypothesis([9], [-4.0, -0.0625], -4.0625, 0.0, torch.eye(2)),
    ]
    whole = join(segments, SearchPlan(length_penalty=1.0))
    assert whole.tokens == [7, 8, 9]
    # The end of the first goes to token 7, those of the second and third to token 8.
    assert whole.log_probabilities == [-1.5, -2.375, -4.0, -0.0625]
    assert whole.log_probability == -7.9375
    assert whole.score == pytest.approx(-7.9375 / 4)
    assert whole.alignment is not None
    expected = torch.zeros(4, 5)
    for row, column in ((0, 1), (1, 2), (2, 3), (3, 4)):
        expected[row, column] = 1.0
    assert torch.equal(whole.alignment, expected)
    only_empty = join(segments[:1] * 3, SearchPlan())
    assert only_empty.tokens == [] and only_empty.log_probabilities == [-1.5]


def test_joined_pieces_keep_their_coverage_penalties() -> None:
    plan = SearchPlan(length_penalty=1.0, coverage_penalty=0.2)
    # Norms are 3 and 2: penalties of 0.5 and 0.75.
    segments = [
        Hypothesis([7, 8], [-1.0] * 3, -3.0, -1.5),
        Hypothesis([9], [-2.0] * 2, -4.0, -2.75),
    ]
    whole = join(segments, plan)
    assert whole.log_probability == -7
    assert whole.score == pytest.approx(-7 / 4 - 0.5 - 0.75)


@pytest.mark.parametrize("coverage", [0.0, 0.2])
def test_the_best_of_all_pieces_stays_first(coverage: float) -> None:
    plan = SearchPlan(beam=3, nbest=3, length_penalty=1.0, coverage_penalty=coverage)

    def segment(token: int, count: int, score: float) -> Hypothesis:
        """Return a hypothesis whose score is eq. (2.28), and the penalty -1 if there is one."""
        total = score * (count + 1)
        penalty = 1.0 if coverage else 0.0
        return Hypothesis([token] * count, [score] * (count + 1), total, score - penalty)

    # Either segment scores best as its first; of the whole line the second has the higher mean.
    ranked = [
        [segment(7, 9, -1.0), segment(8, 1, -1.1), segment(9, 9, -1.2)],
        [segment(7, 1, -0.1), segment(8, 9, -0.2), segment(9, 1, -0.3)],
    ]
    joined = [hypothesis for hypothesis, _ in join_ranked(ranked, plan)]
    alone, *_ = join_ranked([hypotheses[:1] for hypotheses in ranked], plan)
    assert joined[0] == alone[0] and joined[0].tokens == [7] * 10
    assert [hypothesis.tokens[0] for hypothesis in joined] == [7, 8, 9]
    assert joined[1].score > joined[0].score > joined[2].score


def test_verifications_of_joined_pieces_are_those_of_all() -> None:
    first, second = VerifiedPass(3, 2, 3, 2, 9), VerifiedPass(1, 1, 1, 1, 3)
    segments = [
        Hypothesis([7], [-1.0] * 2, -2.0, -1.0, exits=[1, 3], num_exits=3, passes=[first]),
        Hypothesis([], [-1.0], -1.0, -1.0, exits=[3], num_exits=3, passes=[second]),
    ]
    assert join(segments, SearchPlan()).passes == [first, second]
    untold = dataclasses.replace(segments[1], passes=None)
    assert join([segments[0], untold], SearchPlan()).passes is None


def test_what_is_written_late_counts_as_late() -> None:
    """The first segment was full, as its next word of two units showed; the second ended by itself.

    Nothing of the second is written before the end of the first.
    """
    segments = [
        Hypothesis([7, 8, 9], [-1.0] * 4, -4.0, 0.0, reads=[1, 2, 3, 3]),
        Hypothesis([7, 8], [-1.0] * 3, -3.0, 0.0, reads=[1, 4, 4]),
        Hypothesis([7], [-1.0] * 2, -2.0, 0.0, reads=[1, 2]),
    ]
    whole = join(segments, SearchPlan(), sizes=[2, 3, 1], seen=[4, 5, 7])
    assert whole.reads == [1, 2, 4, 4, 5, 6, 7]


def test_progress_is_shown_while_a_long_line_is_translated() -> None:
    done: list[float] = []
    system = translator(copier("x@@ x", bpe=True), max_source=10, batch_tokens=500)
    raw = "x" * 3000
    stream = system.translations(
        ["x", raw, ""], on_progress=lambda lines, tokens: done.append(lines)
    )
    _, text, _ = (translation.text for translation in stream)
    assert len(done) > 5 and max(done) < 1.5 and sum(done) == pytest.approx(3)
    assert text.replace(" ", "") == raw, "nothing is lost"


def test_long_text_without_spaces_is_translated_sentence_by_sentence() -> None:
    sentences = [
        "红色的狗看见那只狗在花园里。",
        "那只狗在看见红色的花园吗？",
        "狗看见那红色的花园里的狗！",
    ]
    raw, warnings = "".join(sentences), list[str]()
    letters = sorted({*raw})
    loaded = copier(" ".join([*letters, *(f"{letter}@@" for letter in letters)]), bpe=True)
    options = TranslationOptions(max_source=20)
    system = Translator([loaded], SearchPlan(), options, warn=warnings.append)
    (translation,) = system.translations([raw])
    expected = [f"{letter}@@" if letter not in "。？！" else letter for letter in raw]
    assert translation.source == translation.target == expected
    assert translation.text == translation.tokenized == raw, "no space between sentences"
    assert len(warnings) == 1 and "long-line" in warnings[0] and "1 (40)" in warnings[0]


def test_unknown_words_can_be_copied_and_units_become_words() -> None:
    loaded = copier(WORDS)
    assert translator(loaded).translate(["a Zebra b"]) == ["a <unk> b"]
    assert translator(loaded, replace_unknown=True).translate(["a Zebra b"]) == ["a Zebra b"]
    with pytest.raises(ConfigError, match="alignments"):
        translator(copier(WORDS, aligns=False), replace_unknown=True)
    (translation,) = translator(copier("h@@ e@@ l@@ o", bpe=True)).translations(["hello hello"])
    assert translation.source == translation.target == ["h@@", "e@@", "l@@", "l@@", "o"] * 2
    assert translation.text == translation.tokenized == "hello hello"
    assert whole_word(translation.source, 7) == "hello"


def test_faulty_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="alignments"):
        translator(copier(WORDS, aligns=False)).translations(["a"], align=True)
    with pytest.raises(ConfigError, match="batch_tokens"):
        translator(copier(WORDS), batch_tokens=0)
    with pytest.raises(ConfigError, match="Did you mean `beam`"):
        nmtgrid.load(saved(tmp_path / "model"), device="cpu", beem=3)


def test_models_of_other_vocabularies_are_refused() -> None:
    with pytest.raises(ModelError, match="different source vocabularies"):
        Translator([copier("a b"), copier("a c")])
    with pytest.raises(ModelError, match="differently"):
        Translator([copier("a b"), copier("a b", lowercase=True)])
    assert Translator([copier(WORDS), copier(WORDS)]).translate(["a b"]) == ["a b"]


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (("a", "b"), "but number 1 is 'a'"),
        (("ab", "cd"), "but number 1 is 'ab'"),
        ("ab", "its letters would be taken"),
        ([("a", "b"), ("a", "b", "c")], r"but number 2 is \('a', 'b', 'c'\)\. Pass a list"),
        ([("a", None)], r"but number 1 is \('a', None\)"),
    ],
)
def test_what_is_no_pair_is_refused(pairs: Any, words: str) -> None:
    system = translator(copier(WORDS))
    with pytest.raises(TypeError, match=words):
        system.score(pairs)
    with pytest.raises(TypeError, match=r"not one: its letters .* Pass a list.*: \['a b c'\]"):
        system.translate("a b c")
    with pytest.raises(TypeError, match="not one"):
        system.translations("a b c")


def saved(folder: Path, seed: int = 0) -> Path:
    """Write a small model with drawn weights."""
    torch.manual_seed(seed)
    vocabulary = Vocabulary(["a", "b", "c", "d", "e", "f"])
    facts = TextFacts("qa", "qb", tokenize="none", subwords="words")
    pipeline = Pipeline(facts, vocabulary, vocabulary)
    model = zoo.build(
        "pervasive",
        overrides={"depth": 2, "size": 8, "feed_forward_size": 16},
        source_vocab_size=len(vocabulary),
        target_vocab_size=len(vocabulary),
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    save_model(folder, model, pipeline, {"search": {"beam": 3, "length_penalty": 0.5}})
    return folder


def check_scores(system: Translator, lines: list[str], translations: list[Translation]) -> None:
    """Check that what was found has the log-probability that scoring its text gives."""
    pairs, values = [], []
    for line, translation in zip(lines, translations, strict=True):
        if line:
            pairs.append((line, translation.text))
            values.append(translation.hypotheses[0].log_probability)
    # Words in, words out, so the raw text holds exactly the tokens that were found.
    assert system.score(pairs) == pytest.approx(values, abs=1e-4)


def test_load_gives_a_translator_whose_scores_agree(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    system = nmtgrid.load(folder, device="cpu", max_length_b=1.0)
    assert (
        system.plan.beam,
        system.plan.length_penalty,
        system.plan.max_length_b,
    ) == (3, 0.5, 1.0)
    lines = ["a b c", "", "f", "d e d e d"]
    translations = list(system.translations(lines))
    assert system.translate(lines) == [translation.text for translation in translations]
    check_scores(system, lines, translations)
    assert system.score([]) == []
    system = nmtgrid.load(saved(tmp_path / "model"), device="cpu", precision="bf16")
    assert len(system.translate(["a b c", "", "d"])) == 3


@pytest.mark.parametrize(
    ("search", "message"),
    [(3, "settings.search must be a group"), ({"beam": "wide"}, "settings.search.beam")],
)
def test_damaged_settings_name_their_file(search: object, message: str) -> None:
    loaded = dataclasses.replace(copier(WORDS), settings={"search": search})
    with pytest.raises(ModelError, match=rf"copy.config\.json: .*{message}"):
        Translator([loaded])


def test_ensembles_average_probabilities(tmp_path: Path) -> None:
    first, second = saved(tmp_path / "1", 1), saved(tmp_path / "2", 2)
    both = nmtgrid.load(first, second, device="cpu")
    pairs = [("a b", "c"), ("d", "")]
    values = both.score(pairs)
    single = [
        nmtgrid.load(translation, device="cpu").score([("d", "")])[0]
        for translation in (first, second)
    ]
    # One token, the end symbol: its probability is the mean of the two.
    assert math.exp(values[1]) == pytest.approx(sum(map(math.exp, single)) / 2, rel=1e-4)
    translations = next(both.translations(["a b"])).hypotheses[0]
    text = both.pipeline.restore(translations.tokens)
    assert both.score([("a b", text)])[0] == pytest.approx(translations.log_probability, abs=1e-4)


def test_samples_do_not_depend_on_window_or_batch(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    lines = ["a b c", "f", "f", "d e d e d", "a"]
    texts = []
    for options in (TranslationOptions(), TranslationOptions(window=2, batch_tokens=4)):
        system = nmtgrid.load(
            folder, device="cpu", options=options, sample=True, beam=1, nbest=2, seed=3
        )
        texts.append([translation.texts for translation in system.translations(lines)])
    assert texts[0] == texts[1]
    assert texts[0][1] != texts[0][2], "equal lines must be drawn apart"


@pytest.mark.parametrize(
    ("lines", "bpe", "share"),
    [
        (["x y", "z x", "y"], True, "100 %"),
        (["a b c d a b c d a b c d a b c d", "x y z x y"], True, "24 %"),  # 5 of 21
        (["a b c d a b c d a b c d a b c d a b c d", "x y z x y"], True, ""),  # 5 of 25: a fifth
        (["x y z x"], True, ""),  # too few to tell
        (["a b c d", "x y z x y z"], False, ""),  # 6 of 10 words
        (["a b c d", "x y z x y z x"], False, "64 %"),  # 7 of 11
        (["a b c d " * 9, ""], False, ""),
    ],
)
@pytest.mark.parametrize("window", [1, 4096])
def test_text_that_the_model_does_not_know(
    lines: list[str], bpe: bool, share: str, window: int
) -> None:
    warnings: list[str] = []
    system = Translator(
        [copier("a b c d", bpe=bpe)],
        options=TranslationOptions(window=window),
        warn=warnings.append,
    )
    system.translate(lines)
    assert len(warnings) == bool(share)
    if share:
        assert f" {share} of " in warnings[0] and "from `qa`" in warnings[0]
