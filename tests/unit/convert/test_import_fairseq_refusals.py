"""What is no model of ours is refused by its option's name; dictionaries become vocabularies."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.base.errors import InputError
from nmtgrid.convert.from_fairseq.dictionary import read_codes, read_dictionary, reordered
from nmtgrid.convert.from_fairseq.plan import Options
from nmtgrid.models.directory import load_model
from nmtgrid.text.vocabulary import UNKNOWN
from tests.unit.convert.fairseq_files import TYPES, content, write_checkpoint, write_dictionaries
from tests.unit.convert.fairseq_reference import ConvS2S, Reference, Transformer
from tests.unit.convert.fairseq_reference_recurrent import LSTM, Pervasive
from tests.unit.convert.test_import_fairseq import take_over

REFUSED: list[tuple[Callable[..., Reference], dict[str, Any], str]] = [
    (Transformer, {"activation_fn": "gelu"}, "--activation-fn gelu"),
    (Transformer, {"cross_self_attention": True}, "--cross-self-attention"),
    (Transformer, {"no_cross_attention": True}, "--no-cross-attention"),
    (Transformer, {"layer_wise_attention": True}, "--layer-wise-attention"),
    (Transformer, {"layernorm_embedding": True}, "--layernorm-embedding"),
    (Transformer, {"adaptive_input": True}, "--adaptive-input"),
    (Transformer, {"no_decoder_final_norm": True}, "--no-decoder-final-norm"),
    (Transformer, {"encoder_layers_to_keep": "0,2"}, "--encoder-layers-to-keep 0,2"),
    (Transformer, {"quant_noise_pq": 0.1}, "--quant-noise-pq 0.1"),
    (Transformer, {"base_layers": 2}, "--base-layers 2"),
    (Transformer, {"merge_src_tgt_embed": True}, "--merge-src-tgt-embed"),
    (Transformer, {"char_inputs": True}, "--char-inputs"),
    (Transformer, {"scale_heads": True}, "--scale-heads"),
    (Transformer, {"encoder_langtok": "src"}, "--encoder-langtok src"),
    (Transformer, {"decoder_langtok": True}, "--decoder-langtok"),
    (Transformer, {"source_lang": "a/b"}, "cannot be called `a/b`"),
    (Transformer, {"encoder_attention_heads": 3}, "--encoder-attention-heads"),
    (Transformer, {"encoder_learned_pos": True}, "--encoder-learned-pos"),
    (Transformer, {"decoder_output_dim": 9}, "--decoder-output-dim 9"),
    (Transformer, {"decoder_input_dim": 9}, "--decoder-input-dim 9"),
    (Transformer, {"decoder_attention_heads": None}, "--decoder-attention-heads"),
    (Transformer, {"dropout": 1.5}, "--dropout 1.5"),
    (Transformer, {"arch": "transformer_lm_big"}, "`transformer_lm_big`"),
    (Transformer, {"arch": "wait_transformer"}, "`wait_transformer`"),
    (Transformer, {"arch": "transformer_above_iwslt"}, "`transformer_above_iwslt`"),
    (Transformer, {"simul_type": "waitk"}, "--simul-type waitk"),
    (Transformer, {"expert_lagging": "1,6,11"}, "--expert-lagging 1,6,11"),
    (Transformer, {"arch": "waitk_transformer_base", "gelu": True}, "--gelu"),
    (
        Transformer,
        {"arch": "waitk_transformer", "encoder_decoder_attention_heads": 3},
        "--encoder-decoder-attention-heads 3",
    ),
    (Transformer, {"arch": "waitk_transformer", "waitk": 0}, "`--waitk` is `0`"),
    (Pervasive, {"aggregator": "path-max", "unidirectional": True, "waitk": -1}, "`--waitk` is"),
    (ConvS2S, {"encoder_layers": "[(8, 3)] * 2 + [(16, 3)]"}, "--encoder-layers"),
    (ConvS2S, {"decoder_layers": "[(8, 3, 2)] * 2"}, "--decoder-layers"),
    (ConvS2S, {"decoder_layers": "__import__('os').system('ls')"}, "--decoder-layers"),
    (ConvS2S, {"decoder_layers": "[(8, 3)] * 100000000000"}, "--decoder-layers"),
    (ConvS2S, {"decoder_layers": "[]"}, "--decoder-layers"),
    (ConvS2S, {"decoder_layers": "[8, 3]"}, "--decoder-layers"),
    (ConvS2S, {"decoder_attention": "[True, False]"}, "--decoder-attention"),
    (ConvS2S, {"encoder_embed_dim": 7}, "--encoder-embed-dim"),
    (LSTM, {"decoder_attention": "0"}, "--decoder-attention 0"),
    (LSTM, {"encoder_embed_dim": 5}, "--encoder-embed-dim"),
    (Pervasive, {"convnet": "densenet"}, "--convnet densenet"),
    (Pervasive, {"aggregator": "avg"}, "--aggregator avg"),
    (Pervasive, {"aggregator": "path-max"}, "--aggregator path-max"),
    (Pervasive, {"add_conv_relu": True}, "--add-conv-relu"),
    (Pervasive, {"source_dilation": 2}, "--source-dilation 2"),
    (Pervasive, {"conv_stride": 2, "downsample": True}, "--downsample"),
    (Pervasive, {"bottleneck": 16}, "--bottleneck 16"),
    (Pervasive, {"conv_groups": 4}, "--conv-groups 4"),
    (Pervasive, {"output_dim": 5}, "--output-dim 5"),
    (Pervasive, {"encoder_embed_dim": 6}, "--encoder-embed-dim"),
    (Transformer, {"share_decoder_input_output_embed": True}, "should be shared"),
]


def attempt(folder: Path, reference: Reference) -> int:
    write_dictionaries(folder)
    values = content(reference.options, reference.state)
    return take_over(folder, write_checkpoint(folder / "c.pt", values))


@pytest.mark.parametrize(("make", "changes", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_options_are_refused_by_name(
    make: Callable[..., Reference], changes: dict[str, Any], words: str,
    tmp_path: Path, messages: list[str],
) -> None:  # fmt: skip
    """They are changed behind the reference's back."""
    reference = make(TYPES)
    vars(reference.options).update(changes)
    assert attempt(tmp_path, reference) == 2
    assert words in " ".join(messages)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("unit", "codes", "words"),
    [
        ("{}@@", False, "has subwords, not words: give `--codes`"),
        ("▁{}", False, "has subwords of SentencePiece: such models cannot be imported"),
        ("▁{}", True, "has subwords of SentencePiece: such models cannot be imported"),
    ],
)
def test_dictionaries_of_subwords_need_their_codes(
    unit: str, codes: bool, words: str, tmp_path: Path, messages: list[str]
) -> None:
    reference = Transformer(TYPES)
    dictionary, _ = write_dictionaries(tmp_path)
    lines = dictionary.read_text(encoding="utf-8").splitlines()
    for number in range(len(lines) // 2):
        word, count = lines[number].split()
        lines[number] = f"{unit.format(word)} {count}"
    dictionary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    values = content(reference.options, reference.state)
    (tmp_path / "codes").write_text("#version: 0.2\nd e\n", encoding="utf-8")
    options = ("--codes", str(tmp_path / "codes")) if codes else ()
    assert take_over(tmp_path, write_checkpoint(tmp_path / "c.pt", values), *options) == 2
    assert f"The source dictionary {words}" in " ".join(" ".join(messages).split())


def test_codes_beside_a_dictionary_of_words_are_noted(tmp_path: Path, messages: list[str]) -> None:
    reference = Transformer(TYPES)
    write_dictionaries(tmp_path)
    path = write_checkpoint(tmp_path / "c.pt", content(reference.options, reference.state))
    (tmp_path / "codes").write_text("#version: 0.2\nd e\n", encoding="utf-8")
    note = "dictionary has no unit that ends in `@@`"
    for options, count in ((["--codes", str(tmp_path / "codes")], 2), ([], 0)):
        messages.clear()
        shutil.rmtree(tmp_path / "model", ignore_errors=True)
        assert take_over(tmp_path, path, *options) == 0
        assert sum(note in line for line in messages) == count


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_named(
    value: float, tmp_path: Path, messages: list[str]
) -> None:
    """As what they are in the checkpoint, not as damage to a file that is gone."""
    reference = Transformer(TYPES)
    write_dictionaries(tmp_path)
    state = {name: tensor.clone() for name, tensor in reference.state.items()}
    state["encoder.layers.0.fc1.bias"][1] = value
    path = write_checkpoint(tmp_path / "c.pt", content(reference.options, state))
    assert take_over(tmp_path, path) == 2
    assert "`c.pt`" in messages[-1] and "has NaN or infinity in what becomes `" in messages[-1]
    assert not (tmp_path / "model").exists() and not list(tmp_path.glob(".model*"))


@pytest.mark.parametrize("is_copy", [False, True])
def test_shared_embeddings_need_one_dictionary(
    is_copy: bool, tmp_path: Path, messages: list[str]
) -> None:
    """Averaged checkpoints have a copy of the matrix for each side."""
    reference = Transformer((13, 13), share_all_embeddings=True)
    shared = reference.state["decoder.embed_tokens.weight"]
    for name in ("encoder.embed_tokens.weight", "decoder.output_projection.weight"):
        reference.state[name] = shared.clone() if is_copy else shared
    source, target = write_dictionaries(tmp_path)
    source.write_text(target.read_text("utf-8").replace("en3 ", "de3 "), "utf-8")
    checkpoint = write_checkpoint(tmp_path / "c.pt", content(reference.options, reference.state))
    assert take_over(tmp_path, checkpoint) == 2
    assert "give the same dictionary twice" in " ".join(" ".join(messages).split())
    source.write_bytes(target.read_bytes())
    assert take_over(tmp_path, checkpoint) == 0


def test_languages_may_have_regions(tmp_path: Path) -> None:
    reference = Transformer(TYPES)
    write_dictionaries(tmp_path)
    checkpoint = write_checkpoint(tmp_path / "c.pt", content(reference.options, reference.state))
    languages = ("--source-lang", "zh-CN", "--target-lang", "pt-BR")
    assert take_over(tmp_path, checkpoint, *languages) == 0
    facts = load_model(tmp_path / "model").pipeline.facts
    assert facts.languages == ("zh-CN", "pt-BR")


@pytest.mark.parametrize(
    ("make", "parameter", "value", "words"),
    [
        (Transformer, "encoder.layers.1.fc1.bias", None, "lacks `encoder.layers.1.fc1.bias`"),
        (Transformer, "decoder.new", torch.ones(2), "has `decoder.new`"),
        (Transformer, "encoder.layers.0.fc1.weight", torch.ones(9, 12), "9 units"),
        (Transformer, "encoder.layers.0.fc1.weight", torch.ones(10, 5), "give"),
        (Transformer, "decoder.layers.0.self_attn.q_proj.weight", torch.ones(3),
         "do not fit together"),
        # The option has a value even where nothing came of it.
        (LSTM, "decoder.adaptive_softmax.head.weight", torch.ones(4, 4),
         "--adaptive-softmax-cutoff 10000,50000,200000"),
    ],
)  # fmt: skip
def test_weights_that_the_options_do_not_explain(
    make: Callable[..., Reference], parameter: str, value: torch.Tensor | None, words: str,
    tmp_path: Path, messages: list[str],
) -> None:  # fmt: skip
    reference = make(TYPES)
    if value is None:
        del reference.state[parameter]
    else:
        reference.state[parameter] = value
    assert attempt(tmp_path, reference) == 2
    assert words in " ".join(messages)


def test_all_faults_at_once(tmp_path: Path, messages: list[str]) -> None:
    reference = Transformer(TYPES)
    del reference.options.source_lang
    changes = {"activation_fn": "gelu", "cross_self_attention": True, "encoder_layers": 0}
    write_dictionaries(tmp_path)
    (tmp_path / "dict.en.txt").write_text("a 1\na 2\n", encoding="utf-8")
    vars(reference.options).update(changes)
    path = write_checkpoint(tmp_path / "c.pt", content(reference.options, reference.state))
    assert take_over(tmp_path, path, "--codes-target", str(tmp_path / "none")) == 2
    said = " ".join(messages)
    for words in ("--activation-fn gelu", "--cross-self-attention", "--encoder-layers` is `0`",
                  "--source-lang", "dict.en.txt:2", "none: there is no such file",
                  "`--codes-target` needs"):  # fmt: skip
        assert words in said


def test_dictionaries_of_another_model(tmp_path: Path, messages: list[str]) -> None:
    reference = Transformer((17, 13))
    assert attempt(tmp_path, reference) == 2
    assert "has 16 types" in " ".join(messages) and "vectors of 17" in " ".join(messages)
    messages.clear()
    reference = Transformer((16, 16), share_all_embeddings=True)
    shared = reference.state["decoder.embed_tokens.weight"]
    reference.state["encoder.embed_tokens.weight"] = shared
    values = content(reference.options, reference.state)
    write_dictionaries(tmp_path)
    target = (tmp_path / "dict.en.txt").read_text(encoding="utf-8")
    (tmp_path / "dict.en.txt").write_text(target + "x 1\ny 1\nz 1\n", encoding="utf-8")
    assert take_over(tmp_path, write_checkpoint(tmp_path / "c.pt", values)) == 2
    assert "give the same dictionary twice" in " ".join(messages)


def test_what_stands_at_the_place_stays(tmp_path: Path, messages: list[str]) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine").touch()
    assert attempt(tmp_path, LSTM(TYPES)) == 2
    assert "exists already" in " ".join(messages)
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["mine"]


def test_languages_and_two_codes_may_be_given(tmp_path: Path) -> None:
    reference = LSTM(TYPES)
    write_dictionaries(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{name} x 9\n{name}x y</w> 3\n", encoding="utf-8")
    path = write_checkpoint(tmp_path / "c.pt", content(reference.options, reference.state))
    languages = ["--source-lang", "fr", "--target-lang", "ro", "--lowercase"]
    codes = ["--codes", str(tmp_path / "a"), "--codes-target", str(tmp_path / "b")]
    assert take_over(tmp_path, path, *languages, *codes) == 0
    pipeline = load_model(tmp_path / "model").pipeline
    assert pipeline.facts.languages == ("fr", "ro")
    assert pipeline.source.tokens("AXYAB") == ["ax@@", "y@@", "a@@", "b"]
    assert pipeline.target.tokens("bxy ax") == ["bxy", "a@@", "x"]


def test_tokens_that_are_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "dict.txt"
    path.write_text("the 30\n, 20\nmadeupword0000 0\n\u2581x 5\n", encoding="utf-8")
    vocabulary = read_dictionary(path)
    types = ["<pad>", "<s>", "</s>", "<unk>", "the", ",", "madeupword0000", "\u2581x"]
    assert list(vocabulary.types) == types
    assert vocabulary.counts[4:] == (30, 20, 0, 5)
    theirs = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0]])  # <s>, <pad>, </s>, <unk>, the
    assert reordered(theirs).flatten().tolist() == [1, 0, 2, 3, 4]
    path = tmp_path / "dict.txt"
    path.write_bytes(
        "a 9\nb 8\na 7 #fairseq:overwrite\n<unk> 3 #fairseq:overwrite\n two words 2\n 1\r\n"
        "<line-1> 1\n\u3000x 4\n".encode()
    )
    vocabulary = read_dictionary(path)
    assert vocabulary.encode(["a", "b", "<unk>", "<line-1>"]) == [6, 5, UNKNOWN, 10]
    assert vocabulary.types[4] == "<<line-1>" and vocabulary.types[8:10] == (
        "<<line-5>", "<<line-6>",
    )  # fmt: skip
    saved = tmp_path / "vocab.txt"
    vocabulary.save(saved)
    assert type(vocabulary).load(saved).types == vocabulary.types


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (b"a 1\na 2\n", 2, "is listed twice"),
        (b"<unk> 5\n", 1, "is listed twice"),
        (b"a 1\nb\n", 2, "token count"),
        (b"a 1\nb x\n", 2, "token count"),
        (b"a 1\nb 1 #fairseq:other\n", 2, "token count"),
        (b"a 1\n\nb 1\n", 2, "token count"),
        (b"a 1\n\xff 2\n", 2, "not valid UTF-8"),
        (b"", 0, "no token"),
    ],
)
def test_faulty_dictionaries(tmp_path: Path, content: bytes, line: int, words: str) -> None:
    path = tmp_path / "dict.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        read_dictionary(path)
    assert caught.value.line == line


def test_codes_of_fastbpe(tmp_path: Path) -> None:
    path = tmp_path / "codes"
    path.write_text("t h 90\nth e</w> 50\n", encoding="utf-8")
    assert read_codes(path).segment(["the", "then"]) == ["the", "th@@", "e@@", "n"]
    path.write_text("#version: 0.2\nt h\nth e</w>\n", encoding="utf-8")
    assert read_codes(path).segment(["the"]) == ["the"]
    path.write_text("t h 90\nth e</w>\n", encoding="utf-8")
    with pytest.raises(InputError, match="fastBPE") as caught:
        read_codes(path)
    assert caught.value.line == 2


def test_lists_are_read_without_running_them() -> None:
    def listed(text: Any) -> list[Any]:
        return Options({"layers": text}).listed("layers")

    assert listed("[(512, 3)] * 2 + 2 * [(64, 1)]") == [(512, 3), (512, 3), (64, 1), (64, 1)]
    assert listed([(5, 3)]) == [(5, 3)]
    assert listed("True") == [True] and listed(None) == []
    for text in ("x", "f()", "[1] * 2000", "[[1] * 999] * 999 * 999", "(" * 900, "1" * 2000,
                 "9 ** 9", "'a' * 9", "[1] + 1"):  # fmt: skip
        options = Options({"layers": text})
        assert options.listed("layers") == [] and len(options.faults) == 1


@pytest.mark.parametrize(("value", "is_on"), [
    (True, True), (False, False), ("True", True), ("False", False), ("0", False), ("1", True),
    (None, False), (0.1, True), ("", False),
])  # fmt: skip
def test_switches(value: Any, is_on: bool) -> None:
    assert Options({"a": value}).is_set("a") is is_on
