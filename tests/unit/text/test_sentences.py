"""Ends of sentences within a line: marks, quotations, abbreviations, scripts without capitals."""

import pytest

from nmtgrid.text.moses import Moses
from nmtgrid.text.sentences import ends_sentence, sentence_ends, sentences_of_word

# Language, and lines whose sentences are separated by " | ".
_LINES = [
    ("de", "Ein Mann geht. | Dr. Müller kam am 3. Mai um 5.30 Uhr zu z. B. Herrn A. Meier. | Gut!"),
    ("de", '"Was?" fragte er. | "Ja." | Sie ging. | „Gut.“ | Dann kam er.'),
    ("de", "Er kam usw. und ging. | Wer? | Ich..."),
    ("en", "(One man.) | Two women... and a child. | It's the U.S. Army vs. them. | Don't! | Why?"),
    ("en", 'He said, "Go!" | Then he went. | "I see." | The end'),
    ("fr", "« Quoi ? » dit-il. | M. Dupont est parti. | Fin."),
    ("zh", "我 喜欢 。 | 他 走 了 ！ | 好"),
    ("hi", "वह गया । | वह आया ।"),
    ("en", "no end at all"),
]


@pytest.mark.parametrize(("lang", "line"), _LINES)
@pytest.mark.parametrize("tokenize", [True, False])
def test_sentences_of_a_line(lang: str, line: str, tokenize: bool) -> None:
    moses = Moses(lang, tokenize)
    sentences = line.split(" | ")
    words = moses.tokenize(" ".join(sentences)).split()
    ends = sentence_ends(words, moses)
    pieces = [words[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    # Tokenised for itself a sentence has no following word, by which its last full stop is split.
    assert pieces == [moses.tokenize(sentence).split() for sentence in sentences]


def test_lower_case_text_has_no_capitals_to_go_by() -> None:
    words = ["ein", "mann", ".", "dr.", "müller", "kam", ".", "er", "ging", "usw.", "und"]
    assert sentence_ends(words, Moses("de", False, lowercase=True)) == [3, 7, 11]
    # With capitals a sentence that would begin in lower case is none.
    assert sentence_ends(["Er", ".", "er", "."], Moses("de")) == [4]


def test_words_of_a_stream() -> None:
    moses = Moses("de")
    for word in ("Mann.", "Mann!", 'Mann."', "Mann.)", "Mann...", ".", "?!", "。"):
        assert ends_sentence(word, moses), word
    for word in ("Mann", "Dr.", "A.", "3.", "z.B.", "(Dr.", '"', ")", "a,"):
        assert not ends_sentence(word, moses), word


@pytest.mark.parametrize(
    "word",
    [
        "我来了。|他走了！|你呢？？|好｡|好",
        "（我来了。）他说：“走。”她走了。|「好。」",
        '"走。"他说。|好。',  # whether such a mark opens or closes is not known
        "www.example.org/?x=1!y",
        "",
    ],
)
def test_sentences_without_spaces(word: str) -> None:
    assert sentences_of_word(word.replace("|", "")) == word.split("|")


def test_no_words() -> None:
    assert sentence_ends([], Moses("de")) == [0]
