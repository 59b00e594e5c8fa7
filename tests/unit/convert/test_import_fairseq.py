"""Models of fairseq give the same log-probabilities here, and translate from a folder of ours."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nmtgrid.cli.app import main
from nmtgrid.data.batches import collate
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.models.directory import LoadedModel, load_model
from nmtgrid.online.objectives.wait_k import trained_k
from nmtgrid.search.paths import wait_k
from nmtgrid.text.vocabulary import BEGIN
from tests.unit.convert.fairseq_files import TYPES, content, write_checkpoint, write_dictionaries
from tests.unit.convert.fairseq_reference import ConvS2S, Reference, Transformer
from tests.unit.convert.fairseq_reference_recurrent import LSTM, Pervasive

PAIRS: tuple[tuple[list[int], list[int]], ...] = (
    ([5, 4, 9, 15, 7], [4, 12, 6]),
    ([11], [8, 8, 5, 9, 10, 4]),
    ([6, 7, 8], []),
)
PRE = {"encoder_normalize_before": True, "decoder_normalize_before": True}
LEARNED = {"encoder_learned_pos": True, "decoder_learned_pos": True}
TIED = {"share_decoder_input_output_embed": True}
UNTIED = {"share_decoder_input_output_embed": False}

CASES: dict[str, tuple[Callable[..., Reference], dict[str, Any]]] = {
    "transformer": (Transformer, {}),
    "transformer-pre": (Transformer, PRE | TIED),
    "transformer-learned": (Transformer, LEARNED),
    "transformer-unidirectional": (Transformer, {"uni_encoder": True}),
    "transformer-multi-path": (Transformer, {"arch": "waitk_transformer_small", "waitk": None,
                                             "multi_waitk": True}),
    "convs2s": (ConvS2S, {}),
    "convs2s-shared": (ConvS2S, {"share_input_output_embed": True}),
    "convs2s-output": (ConvS2S, {"decoder_out_embed_dim": 5}),
    "lstm": (LSTM, {}),
    "lstm-both-ways": (LSTM, {"encoder_bidirectional": True}),
    "lstm-same-size": (LSTM, {"encoder_bidirectional": True, "decoder_hidden_size": 14,
                              "decoder_out_embed_dim": 14}),
    "lstm-further-map": (LSTM, {"decoder_out_embed_dim": 5}),
    "lstm-shared": (LSTM, TIED | {"encoder_hidden_size": 6, "decoder_hidden_size": 6,
                                  "decoder_out_embed_dim": 6}),
    "lstm-shared-further-map": (LSTM, TIED | {"decoder_out_embed_dim": 6}),
    "pervasive": (Pervasive, {}),
    "pervasive-no-bias": (Pervasive, {"conv_bias": False, "add_positional_embeddings": False}),
    "pervasive-max": (Pervasive, {"aggregator": "max", "skip_output_mapping": True}),
    "pervasive-gated": (Pervasive, {"aggregator": "gated-max"} | UNTIED),
    "pervasive-output": (Pervasive, {"output_dim": 5} | UNTIED),
    "pervasive-online": (Pervasive, {"unidirectional": True, "aggregator": "grid-max"}),
}  # fmt: skip


def take_over(folder: Path, checkpoint: Path, *options: str) -> int:
    return main([
        "import-fairseq", str(checkpoint), "--dict-source", str(folder / "dict.de.txt"),
        "--dict-target", str(folder / "dict.en.txt"), "--out", str(folder / "model"), *options,
    ])  # fmt: skip


def taken(
    folder: Path, reference: Reference, *, state: dict[str, Tensor] | None = None,
    form: str = "args", zipped: bool = True,
) -> LoadedModel:  # fmt: skip
    """Take over a model, by default with the reference's own parameters."""
    write_dictionaries(folder)
    values = content(reference.options, state or reference.state, form)
    assert take_over(folder, write_checkpoint(folder / "c.pt", values, zipped=zipped)) == 0
    return load_model(folder / "model")


def stepwise(model: TranslationModel, source: list[int], target: list[int]) -> Tensor:
    """Return log-probabilities [T + 1, V] of one step after another."""
    batch = collate([source], [target])
    state, rows = model.begin(batch.source, batch.source_lengths), []
    for token in [BEGIN, *target]:
        step = model.step(torch.tensor([token]), state)
        state = step.state
        rows.append(torch.log_softmax(step.logits, -1)[0])
    return torch.stack(rows)


@torch.no_grad()
def check_same(model: TranslationModel, reference: Reference) -> None:
    """Compare teacher forcing and steps; the ids of `<s>` and `<pad>` change places."""
    order = [1, 0, *range(2, TYPES[1])]
    for source, target in PAIRS:
        expected = reference.log_probabilities(source, target)[:, order]
        batch = collate([source], [target])
        forced = model.classify(model.features(batch, PredictionSites.offline(batch)))
        torch.testing.assert_close(torch.log_softmax(forced, -1), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(stepwise(model, source, target), expected, atol=1e-5, rtol=0)
        assert expected.std() > 0.1


WAIT_K: dict[str, tuple[Callable[..., Reference], dict[str, Any]]] = {
    "transformer": (Transformer, {"arch": "waitk_transformer_small", "waitk": 2}),
    "pervasive-max": (Pervasive, {"unidirectional": True, "aggregator": "path-max", "waitk": 3}),
    "pervasive-gated": (Pervasive, {"unidirectional": True, "aggregator": "path-gated-max",
                                    "waitk": 1} | UNTIED),
    "pervasive-attention": (Pervasive, {"unidirectional": True, "aggregator": "path-attn",
                                        "waitk": 2}),
}  # fmt: skip


@pytest.mark.parametrize("name", WAIT_K)
def test_a_wait_k_model_keeps_its_k(name: str, tmp_path: Path, messages: list[str]) -> None:
    """Along the wait-k path its log-probabilities are fairseq's, whose k is kept and noted."""
    make, options = WAIT_K[name]
    reference, k = make(TYPES, **options), options["waitk"]
    loaded = taken(tmp_path, reference)
    assert any(f"trained with wait-{k}," in line for line in messages)
    assert trained_k(tmp_path / "model") == k
    assert loaded.model.traits.prefix_safe
    order = [1, 0, *range(2, TYPES[1])]
    for source, target in PAIRS:
        batch = collate([source], [target])
        paths = wait_k(k, batch.source_lengths, batch.target_input.shape[1])
        with torch.no_grad():
            features = loaded.model.features(batch, PredictionSites.along(batch, paths))
            logits = loaded.model.classify(features)
        expected = reference.log_probabilities(source, target)[:, order]
        torch.testing.assert_close(torch.log_softmax(logits, -1), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("make", "options", "objective"),
    [
        (Transformer, {"arch": "waitk_transformer", "multi_waitk": True, "waitk": 1024},
         ("wait-k-sampled", {})),
        (Transformer, {"arch": "waitk_transformer", "waitk": 1024}, None),
        (Transformer, {}, None),
        (Pervasive, {"unidirectional": True, "aggregator": "grid-max", "waitk": 3},
         ("wait-k-area", {"k": 1})),
        (Pervasive, {"unidirectional": True, "aggregator": "grid-gated-max", "lower_diag": 2},
         ("wait-k-area", {"k": 3})),
        (Pervasive, {"unidirectional": True, "aggregator": "max", "waitk": 3}, None),
    ],
)  # fmt: skip
def test_models_for_many_k_or_for_none_have_no_k_of_their_own(
    make: Callable[..., Reference], options: dict[str, Any],
    objective: tuple[str, dict[str, int]] | None, tmp_path: Path, messages: list[str],
) -> None:  # fmt: skip
    settings = taken(tmp_path, make(TYPES, **options)).settings
    assert trained_k(tmp_path / "model") is None
    assert any("trained with wait-k for many k" in line for line in messages) == bool(objective)
    kept = {name: settings[name] for name in ("objective_name", "objective") if name in settings}
    assert kept == ({} if objective is None else dict(objective_name=objective[0],
                                                      objective=objective[1]))  # fmt: skip


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "stream"])
@pytest.mark.parametrize("name", CASES)
def test_log_probabilities_are_the_same(name: str, zipped: bool, tmp_path: Path) -> None:
    make, options = CASES[name]
    reference = make(TYPES, **options)
    check_same(taken(tmp_path, reference, zipped=zipped).model, reference)


@pytest.mark.parametrize(
    "arch", ["transformer_unidirectional", "transformer_unidirectional_iwslt_de_en"]
)
def test_causal_encoders_may_be_told_by_the_name_alone(arch: str, tmp_path: Path) -> None:
    """As in fairseq's examples of simultaneous translation, which have no option for it."""
    reference = Transformer(TYPES, uni_encoder=True)
    del reference.options.uni_encoder
    reference.options.arch = arch
    model = taken(tmp_path, reference).model
    assert model.config.encoder == "unidirectional"
    reference.options.uni_encoder = True
    check_same(model, reference)


@pytest.mark.parametrize("mark", ["@-@", "##AT##-##AT##"])
def test_hyphens_that_moses_splits_are_noted(
    mark: str, tmp_path: Path, messages: list[str]
) -> None:
    dictionary, _ = write_dictionaries(tmp_path)
    reference = Transformer(TYPES)
    checkpoint = write_checkpoint(tmp_path / "c.pt", content(reference.options, reference.state))
    assert take_over(tmp_path, checkpoint) == 0
    assert not [line for line in messages if "at hyphens" in line]
    text = dictionary.read_text(encoding="utf-8")
    dictionary.write_text(text.replace("de3 ", f"{mark} "), encoding="utf-8")
    for name, options, count in (("moses", (), 1), ("none", ("--tokenize", "none"), 0)):
        messages.clear()
        (tmp_path / "model").rename(tmp_path / f"before-{name}")
        assert take_over(tmp_path, checkpoint, *options) == 0
        notes = [line for line in messages if "at hyphens" in line]
        assert len(notes) == count and all(f"`{mark}`" in note for note in notes)


TABLES = [(make, form) for make in (Transformer, LSTM, ConvS2S, Pervasive)
          for form in ("cfg", "plain")] + [(Transformer, "nested")]  # fmt: skip


@pytest.mark.parametrize(("make", "form"), TABLES)
def test_options_may_be_kept_in_a_table(
    make: Callable[..., Reference], form: str, tmp_path: Path
) -> None:
    reference = make(TYPES)
    check_same(taken(tmp_path, reference, form=form).model, reference)


def test_one_matrix_for_all(tmp_path: Path) -> None:
    write_dictionaries(tmp_path)
    (tmp_path / "dict.de.txt").write_bytes((tmp_path / "dict.en.txt").read_bytes())
    reference = Transformer((13, 13), share_all_embeddings=True)
    shared = reference.state["decoder.embed_tokens.weight"]
    reference.state["encoder.embed_tokens.weight"] = shared
    reference.state["decoder.output_projection.weight"] = shared
    values = content(reference.options, reference.state)
    assert take_over(tmp_path, write_checkpoint(tmp_path / "c.pt", values)) == 0
    loaded = load_model(tmp_path / "model")
    assert loaded.model.config.tie == "all"
    forced = stepwise(loaded.model, [5, 6], [7])
    expected = reference.log_probabilities([5, 6], [7])[:, [1, 0, *range(2, 13)]]
    torch.testing.assert_close(forced, expected, atol=1e-5, rtol=0)


def old_transformer(reference: Reference) -> dict[str, Tensor]:
    """Return the state under the names of 2018: maps in one, norms by number, its own output."""
    state: dict[str, Tensor] = {}
    numbers = {"encoder": ("self_attn", "final"), "decoder": ("self_attn", "encoder_attn", "final")}
    for name, tensor in reference.state.items():
        side = name.partition(".")[0]
        for number, kind in enumerate(numbers[side]):
            name = name.replace(f"{kind}_layer_norm", f"layer_norms.{number}")
        for kind in ("weight", "bias"):
            if name.endswith(f"attn.q_proj.{kind}"):
                head = name.removesuffix(f"q_proj.{kind}")
                parts = [reference.state[f"{head}{part}_proj.{kind}"] for part in "qkv"]
                state[f"{head}in_proj_{kind}"] = torch.cat(parts)
        if not any(f"attn.{part}_proj." in name for part in "qkv"):
            state[name.replace("output_projection.weight", "embed_out")] = tensor
    assert "encoder.layers.0.self_attn.in_proj_weight" in state
    return state


def test_old_forms_of_weights(tmp_path: Path) -> None:
    reference = Transformer(TYPES, relu_dropout=0.25)
    model = taken(tmp_path, reference, state=old_transformer(reference), zipped=False).model
    check_same(model, reference)
    assert model.config.activation_dropout == 0.25


@pytest.mark.parametrize(
    ("make", "options", "expected"),
    [
        (
            Transformer, {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3,
                          "relu_dropout": 0.4},
            {"dropout": 0.1, "embedding_dropout": 0.1, "attention_dropout": 0.2,
             "activation_dropout": 0.3},
        ),
        (
            ConvS2S, {"dropout": 0.4},
            {"dropout": 0.4, "embedding_dropout": 0.4, "output_dropout": 0.4},
        ),
        (
            Pervasive, {"convolution_dropout": 0.1, "embeddings_dropout": 0.3,
                        "prediction_dropout": 0.4},
            {"dropout": 0.1, "embedding_dropout": 0.3, "output_dropout": 0.4},
        ),
    ],
)  # fmt: skip
def test_rates_of_dropout_keep_their_positions(
    make: Callable[..., Reference], options: dict[str, float], expected: dict[str, float],
    tmp_path: Path,
) -> None:  # fmt: skip
    config = taken(tmp_path, make(TYPES, **options)).model.config
    assert {name: getattr(config, name) for name in expected} == expected


def test_lengths_of_taps_in_old_convolutions(tmp_path: Path) -> None:
    reference = ConvS2S(TYPES)
    for layer in range(2):
        reference.draw(f"decoder.convolutions.{layer}.weight_g", 3, 1, 1)
    check_same(taken(tmp_path, reference).model, reference)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_fp32(kind: torch.dtype, tmp_path: Path) -> None:
    reference = Transformer(TYPES)
    reference.state = {name: tensor.to(kind) for name, tensor in reference.state.items()}
    model = taken(tmp_path, reference).model
    reference.state = {name: tensor.float() for name, tensor in reference.state.items()}
    check_same(model, reference)


def test_views_of_one_storage_and_parameters(tmp_path: Path) -> None:
    """Tensors may be transposed parts of larger ones, and may have been saved as parameters."""
    reference = LSTM(TYPES)
    saved: dict[str, Tensor] = {}
    for name, tensor in reference.state.items():
        wide = torch.cat([torch.zeros_like(tensor), tensor]).flatten()
        part = wide[tensor.numel() :].view(tensor.shape)
        saved[name] = torch.nn.Parameter(part.t().contiguous().t() if part.dim() == 2 else part)
    check_same(taken(tmp_path, reference, state=saved).model, reference)


def test_the_folder_translates_raw_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_dictionaries(tmp_path)
    reference = LSTM(TYPES)
    path = write_checkpoint(tmp_path / "c.pt", content(reference.options, reference.state))
    (tmp_path / "codes").write_text("#version: 0.2\nd e\nde 1</w>\n", encoding="utf-8")
    report = tmp_path / "r.json"
    assert take_over(tmp_path, path, "--codes", str(tmp_path / "codes"), "--tokenize", "none",
                     "--json", str(report)) == 0  # fmt: skip
    facts = json.loads(report.read_text(encoding="utf-8"))
    assert (facts["theirs"], facts["arch"]) == ("lstm", "bilstm")
    assert (facts["source_types"], facts["target_types"]) == TYPES
    assert facts["model"]["encoder"] == "unidirectional"
    loaded = load_model(tmp_path / "model")
    assert loaded.settings["search"] == {"beam": 5, "length_penalty": 1.0}
    assert loaded.pipeline.source.tokens("de1 de2") == ["de1", "de@@", "2"]
    (tmp_path / "in.txt").write_text("de1 de4\n\nde3\n", encoding="utf-8")
    capsys.readouterr()
    assert main(["decode", str(tmp_path / "model"), str(tmp_path / "in.txt"), "--out",
                 str(tmp_path / "out.txt"), "--set", "search.max_length_a=3"]) == 0  # fmt: skip
    assert len((tmp_path / "out.txt").read_text(encoding="utf-8").splitlines()) == 3


def test_rates_that_only_training_needs_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = LSTM(TYPES, encoder_dropout_in=0.4, decoder_dropout_in=0.1, decoder_dropout_out=0.3)
    config = taken(tmp_path, reference).model.config
    assert (config.embedding_dropout, config.dropout, config.output_dropout) == (0.1, 0.3, 0.3)
    assert "are used for both sides" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("transformer", "padded to 14 with zeros"),
        ("lstm-shared-further-map", "no longer the matrix of the embeddings"),
        ("pervasive", "biases of convolutions were folded"),
        ("pervasive-output", "multiplied into it"),
    ],
)
def test_what_was_done_to_weights_is_told(
    name: str, words: str, tmp_path: Path, messages: list[str]
) -> None:
    make, options = CASES[name]
    taken(tmp_path, make(TYPES, **options))
    assert any(words in line for line in messages)
