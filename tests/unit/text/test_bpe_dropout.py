"""BPE-dropout: outcomes and their chances are subword-nmt's; words stay what they are."""

import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy
import pytest
from subword_nmt.apply_bpe import BPE, check_vocab_and_split, encode

from nmtgrid.text import bpe_dropout
from nmtgrid.text.bpe import LONGEST_WORD, Codes, remove_bpe
from nmtgrid.text.bpe_dropout import BpeDropout, mixed
from nmtgrid.text.vocabulary import UNKNOWN, Vocabulary

MERGES = ["l o", "lo w</w>", "e r</w>", "lo w", "a a", "aa aa", "low er</w>", "n e", "aa a</w>"]
WORDS = ["low", "lower", "newer", "aaaa", "aaaaa", "l", "oo"]
DRAWS = 50_000


def codes_of(version: str = "0.2") -> Codes:
    # In version 0.1 the end of a word is a symbol of its own.
    merges = MERGES if version == "0.2" else ["l o", "w </w>", "lo w</w>", "e r", "a a", "er </w>"]
    return Codes(merges, f"#version: {version}")


def outcomes(word: str, codes: Codes, p: float) -> dict[tuple[str, ...], float]:
    """Return the chance of each segmentation, by running subword-nmt on all possible draws.

    Its `random.random` is answered by a script; each run adds what it asked beyond it.
    """
    bpe: BPE = codes._bpe
    chances: dict[tuple[str, ...], float] = defaultdict(float)
    open_: list[tuple[bool, ...]] = [()]
    while open_:
        script = open_.pop()
        asked: list[bool] = []

        def answer(script: tuple[bool, ...] = script, asked: list[bool] = asked) -> float:
            keep = script[len(asked)] if len(asked) < len(script) else True
            asked.append(keep)
            return 1.0 if keep else 0.0

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(random, "random", answer)
            segments = encode(
                word, bpe.bpe_codes, bpe.bpe_codes_reverse, None, "@@", bpe.version, {}, None, p
            )
        kept = sum(asked)
        units = (*(f"{segment}@@" for segment in segments[:-1]), segments[-1])
        chances[units] += (1 - p) ** kept * p ** (len(asked) - kept)
        # Each question that the script did not answer could have been answered by no.
        for index in range(len(script), len(asked)):
            open_.append((*asked[:index], False))
    assert math.isclose(sum(chances.values()), 1.0)
    return chances


def full_vocabulary(codes: Codes, words: Iterable[str], lacks: Sequence[str] = ()) -> Vocabulary:
    units = {u for word in words for u in codes.segment([word])}
    for word in words:
        parts = {word[i:j] for i, j in itertools.combinations(range(len(word) + 1), 2)}
        units |= parts | {f"{part}@@" for part in parts}
    return Vocabulary(sorted(units - {*lacks, "<unk>"}))


def segment(
    dropout: BpeDropout, vocabulary: Vocabulary, sentences: Sequence[Sequence[str]], seed: int = 7
) -> list[list[str]]:
    """Return the new units of `sentences` of plain units."""
    ids = [vocabulary.encode(units) for units in sentences]
    keys = mixed(numpy.array([seed], numpy.uint64), numpy.arange(len(ids)))
    tokens, lengths = dropout.segment(
        numpy.array([i for row in ids for i in row], numpy.uint16),
        numpy.array(list(map(len, ids))), keys,
    )  # fmt: skip
    assert lengths.sum() == len(tokens)
    return [vocabulary.decode(row) for row in numpy.split(tokens, lengths.cumsum()[:-1])]


def bound(outcomes: int, draws: int) -> float:
    """A distance in total variation that is exceeded once in 10^9 experiments, at most.

    By Hoeffding's inequality for each of the 2^K events of K outcomes.
    """
    return math.sqrt((outcomes * math.log(2) + math.log(1e9)) / (2 * draws))


@pytest.mark.parametrize("version", ["0.1", "0.2"])
@pytest.mark.parametrize("word", WORDS)
def test_outcomes_have_the_chances_of_subword_nmt(word: str, version: str) -> None:
    codes, p = codes_of(version), 0.3
    expected = outcomes(word, codes, p)
    vocabulary = full_vocabulary(codes, WORDS)
    drawn = segment(BpeDropout(codes, vocabulary, p), vocabulary, [codes.segment([word])] * DRAWS)
    counts = Counter(map(tuple, drawn))
    assert counts.keys() <= expected.keys()
    distance = sum(abs(counts[units] / DRAWS - c) for units, c in expected.items()) / 2
    assert distance < bound(len(expected), DRAWS)


def test_the_oracle_itself_by_hand() -> None:
    """`low` has two merges; each draw skips one, and a skipped one is drawn again at each step."""
    p = 0.25
    assert outcomes("low", codes_of(), p) == pytest.approx(
        {("l@@", "o@@", "w"): p, ("lo@@", "w"): (1 - p) * p, ("low",): (1 - p) ** 2}
    )


@pytest.mark.parametrize("version", ["0.1", "0.2"])
def test_probability_zero_is_plain_and_one_is_characters(version: str) -> None:
    codes = codes_of(version)
    vocabulary = full_vocabulary(codes, WORDS)
    sentences = [codes.segment(WORDS), codes.segment(WORDS[::-1]), codes.segment(["low"])]
    assert segment(BpeDropout(codes, vocabulary, 0.0), vocabulary, sentences) == sentences
    characters = segment(BpeDropout(codes, vocabulary, 1.0), vocabulary, sentences)
    expected = [f"{c}@@" for word in WORDS for c in word]
    ends = itertools.accumulate(map(len, WORDS))
    for end in ends:
        expected[end - 1] = expected[end - 1].removesuffix("@@")
    assert characters[0] == expected and characters[2] == ["l@@", "o@@", "w"]


def test_words_come_back_whatever_is_drawn() -> None:
    codes = codes_of()
    vocabulary = full_vocabulary(codes, WORDS)
    draw = random.Random(5)
    sentences = [draw.choices(WORDS, k=draw.randint(1, 9)) for _ in range(500)]
    plain = [codes.segment(words) for words in sentences]
    for p in (0.1, 0.6):
        drawn = segment(BpeDropout(codes, vocabulary, p), vocabulary, plain)
        assert [remove_bpe(" ".join(units)).split() for units in drawn] == sentences
        assert drawn != plain


def test_a_sentence_depends_on_its_key_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on its neighbours, on what was segmented before, or on when the trees are grown anew."""
    codes = codes_of()
    vocabulary = full_vocabulary(codes, WORDS)
    plain = [codes.segment([a, b, c]) for a in WORDS for b in WORDS for c in WORDS]
    together = segment(BpeDropout(codes, vocabulary, 0.5), vocabulary, plain)
    monkeypatch.setattr(bpe_dropout, "_LARGEST_SIZE", 100)
    dropout = BpeDropout(codes, vocabulary, 0.5)
    keys = mixed(numpy.array([7], numpy.uint64), numpy.arange(len(plain)))
    for index in reversed(range(len(plain))):
        ids = numpy.array(vocabulary.encode(plain[index]))
        tokens, lengths = dropout.segment(ids, numpy.array([len(ids)]), keys[index : index + 1])
        assert vocabulary.decode(tokens) == together[index] and lengths == [len(tokens)]
    # The same word in two sentences, or twice in one, is drawn twice.
    assert len(set(map(tuple, segment(dropout, vocabulary, [["low"]] * 50)))) == 3
    assert len(set(segment(dropout, vocabulary, [["l"] * 3 + ["low"] * 50])[0])) > 2
    assert segment(dropout, vocabulary, plain, seed=8) != together


@pytest.mark.parametrize("word", ["low", "lower", "aaaaa", "newer"])
def test_units_that_the_vocabulary_lacks_are_split_or_the_word_stays(word: str) -> None:
    """As by subword-nmt's filter, and never `<unk>` where the plain segmentation has none."""
    codes, p = codes_of(), 0.5
    vocabulary = full_vocabulary(codes, WORDS, lacks=["lo@@", "aa@@", "n@@"])
    plain = tuple(codes.segment([word]))
    expected: dict[tuple[str, ...], float] = defaultdict(float)
    for units, chance in outcomes(word, codes, p).items():
        symbols = [unit.removesuffix("@@") for unit in units]
        parts = check_vocab_and_split(symbols, codes._bpe.bpe_codes_reverse, vocabulary, "@@")
        split = (*(f"{part}@@" for part in parts[:-1]), parts[-1])
        expected[split if all(unit in vocabulary for unit in split) else plain] += chance
    drawn = segment(BpeDropout(codes, vocabulary, p), vocabulary, [plain] * DRAWS)
    counts = Counter(map(tuple, drawn))
    assert counts.keys() <= expected.keys() and "<unk>" not in set().union(*counts)
    distance = sum(abs(counts[units] / DRAWS - c) for units, c in expected.items()) / 2
    assert distance < bound(len(expected), DRAWS)


@pytest.mark.parametrize(
    "units",
    [
        pytest.param(["<unk>", "low", "lower"], id="unknown word: whether it ends is not known"),
        pytest.param(["l@@", "<unk>", "low"], id="unknown unit"),
        pytest.param(["lo@@", "w"], id="not what the codes make"),
        pytest.param(["low@@"], id="ends with the joiner"),
        pytest.param(["a@@"] * LONGEST_WORD + ["a"], id="too long"),
    ],
)
def test_words_that_are_left_alone(units: list[str]) -> None:
    codes = codes_of()
    vocabulary = full_vocabulary(codes, WORDS)
    shown, *rest = segment(BpeDropout(codes, vocabulary, 1.0), vocabulary, [units, ["low"]])
    kept = units[:2] if units[-1] == "lower" else units
    assert shown[: len(kept)] == kept
    assert rest == [["l@@", "o@@", "w"]]


def test_no_sentences_and_empty_ones() -> None:
    codes = codes_of()
    vocabulary = full_vocabulary(codes, WORDS)
    dropout = BpeDropout(codes, vocabulary, 1.0)
    for lengths in ([], [0, 0], [0, 1, 0]):
        ids = vocabulary.encode(["low"] * sum(lengths))
        keys = numpy.arange(len(lengths)).astype(numpy.uint64)
        tokens, counts = dropout.segment(numpy.array(ids, int), numpy.array(lengths, int), keys)
        assert counts.tolist() == [3 * length for length in lengths]
        assert UNKNOWN not in tokens


def test_an_unknown_word_is_not_the_word_that_its_symbol_spells() -> None:
    """Though these codes would join the characters of `<unk>`."""
    codes = Codes(["< u", "<u n", "<un k", "<unk ></w>"])
    assert codes.segment(["<unk>"]) == ["<unk>"]
    vocabulary = full_vocabulary(codes, ["<unk>", "low"])
    dropout = BpeDropout(codes, vocabulary, 1.0)
    assert segment(dropout, vocabulary, [["<unk>"]]) == [["<unk>"]]
