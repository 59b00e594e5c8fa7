"""Exits of a Transformer: their parameters, gradients, refusals, and what a step leaves undone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.adaptive.halting import FixedExit, GivenExits, Predicted, RandomExit, Thresholds
from nmtgrid.adaptive.objectives import Mixed, MixedSettings
from nmtgrid.base.errors import ConfigError, ModelError
from nmtgrid.base.io.arrays import save_tensors
from nmtgrid.data.batches import Batch, collate
from nmtgrid.layers.transformer.early_exit import LazySourceCache
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites
from nmtgrid.models.directory import load_weights
from nmtgrid.models.transformer.config import TransformerConfig
from nmtgrid.models.transformer.model import Transformer
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.engine import search
from nmtgrid.search.select import stable_max
from tests.unit.helpers.tiny_transformer import tiny

PLAN = SearchPlan(max_length_a=6, max_length_b=0)


def pair() -> Batch:
    return collate([[4, 5, 6, 7]], [[5, 6, 7]])


def count(**changes: Any) -> int:
    return tiny(**changes).count_parameters()


def test_mixed_encodes_a_source_once() -> None:
    model, rows = tiny(exits="tied").train(), []
    model.stages()["encoder.1"].register_forward_hook(lambda *call: rows.append(len(call[2])))
    Mixed(MixedSettings(4)).loss(model, pair())
    assert rows == [1]


def test_what_exits_and_halting_add() -> None:
    """Eight features, three blocks, eleven target types; a norm has 2 x 8."""
    plain = count()
    assert count(exits="tied") == plain
    assert count(exits="separate") == plain + 2 * 11 * 8
    assert count(exits="separate", norm="pre") == count(norm="pre") + 2 * (11 * 8 + 16)
    assert count(exits="separate", output_bias=True) == count(output_bias=True) + 2 * (11 * 8 + 11)
    tied = count(exits="tied")
    assert count(exits="tied", halting="geometric") == tied + 8 + 1
    assert count(exits="tied", halting="multinomial") == tied + 3 * 8 + 3
    encoder = {"exits": "tied", "encoder_size": 12}
    assert count(**encoder, halting="sequence") == count(**encoder) + 3 * 12 + 3


def test_an_encoder_of_its_own_size() -> None:
    """Two blocks of 12 features, d_FF 10, and keys and values for three blocks of 8."""
    model = tiny(encoder_size=12, tie="none")
    block = 4 * 12 * 12 + 4 * 12 + 2 * 12 * 10 + 12 + 10 + 4 * 12
    source = sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if name.startswith(("encoder", "source_embedding"))
    )
    assert source == 2 * block + 12 * 12
    assert model.source_projection.weight.shape == (2 * 3 * 8, 12)


def test_the_published_set_up() -> None:
    """Section 5.4.1: counted by hand from d = 256, d' = 512, d_FF = 1024, six classifiers."""
    model = zoo.build(
        "transformer", "iwslt14-de-en-exits", source_vocab_size=8800, target_vocab_size=6600
    )

    def maps(size: int, count: int) -> int:
        return count * (size * size + size)

    def fed(size: int) -> int:
        return 2 * size * 1024 + size + 1024

    encoder = 6 * (maps(512, 4) + fed(512) + 2 * 2 * 512)
    decoder = 6 * (maps(256, 6) + fed(256) + 3 * 2 * 256 + 2 * (512 * 256 + 256))
    types = 8800 * 512 + 6600 * 256 + 6 * 6600 * 256
    assert model.count_parameters() == encoder + decoder + types


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"halting": "geometric"}, "has a single exit"),
        ({"exits": "tied", "decoder_depth": 1}, "at least 2"),
        ({"encoder_size": -1}, "must be a whole number from 0 on, but is -1"),
        ({"encoder_size": 9}, "multiple"),
        ({"encoder_size": 16, "tie": "all"}, "must be 0 or"),
    ],
)
def test_faults(changes: dict[str, Any], message: str) -> None:
    faults = TransformerConfig(**{"size": 8, "heads": 2, **changes}).faults()
    assert len(faults) == 1
    assert message in faults[0]


def test_printed_scales_multiply_gradients() -> None:
    """Algorithm 2: gamma_n before block n, undone before block n - 1, so block n alone has it."""
    model, batch = tiny(exits="tied").double(), pair()
    sites = PredictionSites.offline(batch)
    scales = [3.0, 0.5, 1.0]

    def gradients(scales: list[float] | None) -> list[torch.Tensor]:
        model.zero_grad()
        states = model.exit_features(batch, sites, scales=scales)
        torch.stack(states).pow(2).sum().backward()
        narrow = [model.get_parameter(f"decoder.{n}.feed_forward.narrow.weight") for n in range(3)]
        computed = [parameter.grad for parameter in narrow]
        return [gradient.clone() for gradient in computed if gradient is not None]

    for plain, scaled, factor in zip(gradients(None), gradients(scales), scales, strict=True):
        assert torch.allclose(scaled, plain * factor, atol=1e-10)


def test_halting_logits_read_what_they_name() -> None:
    batch = pair()
    sites = PredictionSites.offline(batch)
    for halting, shape in (("sequence", (1, 3)), ("multinomial", (4, 3)), ("geometric", (4, 2))):
        model = tiny(exits="tied", halting=halting, norm="pre")
        states = model.exit_features(batch, sites)
        result = model.halting_logits(batch, states)
        assert result.shape == shape
        assert model.halting_map is not None
        if halting == "multinomial":
            assert torch.equal(result, model.halting_map(states[0]))
        elif halting == "geometric":
            assert torch.equal(result[:, 1:], model.halting_map(states[1]))
    with pytest.raises(ConfigError, match="no halting network"):
        model = tiny(exits="tied")
        model.halting_logits(batch, model.exit_features(batch, sites))


def test_sites_that_make_no_sense() -> None:
    model, batch = tiny(exits="tied"), pair()
    twice = torch.tensor([0, 0]), torch.tensor([1, 1])
    with pytest.raises(ValueError, match="from 1 to 3"):
        model.features(batch, PredictionSites(*twice, depth=torch.tensor([1, 4])))
    with pytest.raises(ValueError, match="two exits"):
        model.features(batch, PredictionSites(*twice, depth=torch.tensor([1, 2]), mixed=True))
    assert model.features(batch, PredictionSites(*twice, depth=torch.tensor([1, 2]))).shape == (
        2,
        8,
    )
    with pytest.raises(ConfigError, match="one exit"):
        tiny().features(batch, PredictionSites(*twice, depth=torch.tensor([1, 2])))


@pytest.mark.parametrize(
    ("models", "halting", "halt", "message"),
    [
        (1, "none", Thresholds("geometric", (0.5, 0.5)), "no halting network"),
        (1, "geometric", Predicted("multinomial"), "by `geometric`"),
        (2, "none", FixedExit(1), "one model at a time"),
    ],
)
def test_halts_that_the_model_cannot_serve(
    models: int, halting: str, halt: Any, message: str
) -> None:
    model, batch = tiny(exits="tied", halting=halting), pair()
    with pytest.raises(ConfigError, match=message):
        search([model] * models, batch.source, batch.source_lengths, PLAN, halt=halt)


def test_scores_are_there_where_they_were_computed() -> None:
    model, batch = tiny(exits="tied", halting="geometric"), pair()
    halt = Thresholds("geometric", (0.5, 0.5))
    (result,) = search([model], batch.source, batch.source_lengths, PLAN, halt=halt)[0]
    assert result.exits is not None and result.exit_scores is not None
    assert result.exit_scores.shape == (len(result.tokens) + 1, 3)
    for exit, scores in zip(result.exits, result.exit_scores, strict=True):
        asked = min(exit, 2)
        assert not scores[:asked].isnan().any() and scores[asked:].isnan().all()
        assert (scores[: exit - 1] <= 0.5).all()
        assert exit == 3 or scores[exit - 1] > 0.5
    exits = GivenExits(torch.tensor([result.exits]))
    (again,) = search([model], batch.source, batch.source_lengths, PLAN, halt=exits)[0]
    assert (again.tokens, again.exits) == (result.tokens, result.exits)
    assert again.exit_scores is None


def test_blocks_that_nobody_needs_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """At exit 2 of 3, block 3 neither runs nor gets keys and values of the source."""
    model, batch = tiny(exits="tied"), pair()
    state = model.begin(batch.source, batch.source_lengths)
    ran: list[int] = []
    for number, block in enumerate(model.decoder):
        step = block.step

        def counted(*inputs: Any, number: int = number, step: Any = step) -> Any:
            ran.append(number)
            return step(*inputs)

        monkeypatch.setattr(block, "step", counted)
    with torch.no_grad():
        model.step(batch.target_input[:, 0], state, halt=FixedExit(2))
    assert ran == [0, 1]
    assert isinstance(state.memory, LazySourceCache)
    assert set(state.memory.computed) == {0, 1}


def test_training_begins_from_weights_without_exits(tmp_path: Path) -> None:
    plain = tiny(norm="pre", output_bias=True)
    save_tensors(tmp_path / "plain", plain.state_dict())
    separate = tiny(norm="pre", output_bias=True, exits="separate")
    with pytest.raises(ModelError, match="missing"):
        load_weights(separate, tmp_path / "plain")
    load_weights(separate, tmp_path / "plain", begin=True)
    for exit in (1, 2, 3):
        classifier = separate.classifier(exit)
        assert torch.equal(classifier.weight, plain.target_embedding.weight)
        bias = plain.classifier().bias
        assert (
            classifier.bias is not None and bias is not None and torch.equal(classifier.bias, bias)
        )
    save_tensors(tmp_path / "separate", separate.state_dict())
    halting = tiny(norm="pre", output_bias=True, exits="separate", halting="geometric")
    load_weights(halting, tmp_path / "separate", begin=True)
    assert torch.equal(halting.exit_weights[0], separate.exit_weights[0])
    assert isinstance(halting, Transformer)


def test_steps_leave_early_in_bfloat16_too() -> None:
    model, batch = tiny(exits="separate", norm="pre"), pair()
    with torch.autocast("cpu", torch.bfloat16):
        (result,) = search([model], batch.source, batch.source_lengths, PLAN, halt=RandomExit(3))[0]
    assert result.exits is not None and set(result.exits) <= {1, 2, 3}


def test_the_largest_value_has_the_lowest_place_among_equals() -> None:
    values = torch.zeros(5, 1037).round()
    values[1, 700], values[2, [3, 900]], values[3, 1036] = 2.0, 3.0, 1.0
    values[4] = -torch.inf
    value, index = stable_max(values)
    assert value.tolist() == [0.0, 2.0, 3.0, 1.0, -torch.inf]
    assert index.tolist() == [0, 700, 3, 1036, 0]
