"""`nmtgrid.simultaneous`: a loaded model and a reading policy translate words as they arrive.

docs/python.md shows how to use it.
"""

from __future__ import annotations

from nmtgrid.base.errors import ConfigError
from nmtgrid.online.objectives.wait_k import trained_k
from nmtgrid.online.policy_presets import Conditions, PolicyPreset, expand
from nmtgrid.online.retranslation import PrefixPolicy
from nmtgrid.online.settings import Setting, read_setting
from nmtgrid.online.stream import StreamTranslator, stream_plan
from nmtgrid.search.api import Agent
from nmtgrid.search.precision import check_stream_precision
from nmtgrid.search.translate import Translator


def simultaneous(
    model: Translator,
    policy: str | Agent | PrefixPolicy | None = None,
    *,
    finish_reading: bool = False,
) -> StreamTranslator:
    """Return a translator of lines whose words arrive one by one, greedily: see `begin`.

    `policy` decides when to read: a text such as "wait-k k=3" or "confidence threshold=0.8 floor=2"
    (as `decode --policy` takes it, also a name that the model's directory keeps), or a policy; None
    is the k that the model was trained with. With `finish_reading` no translation ends before its
    source has been read (a policy object has a setting of its own for that).

    Raises ConfigError for faulty policies and where the model cannot follow them, TypeError for
    arguments of another type.
    """
    if not isinstance(model, Translator):
        raise TypeError(f"model must be what `nmtgrid.load` returns, but is {model!r}.")
    if policy is not None and not isinstance(policy, (str, Agent, PrefixPolicy)):
        raise TypeError(f"policy must be a text such as 'wait-k k=3', but is {policy!r}.")
    presets: list[PolicyPreset] = []
    first = model.loaded
    agent: Agent | PrefixPolicy
    if policy is None:
        k = trained_k(first.folder)
        if k is None:
            raise ConfigError(
                "The model was not trained with one k: name a policy, such as 'wait-k k=3'."
            )
        agent = Setting("wait-k", k).make(finish_reading)
    elif isinstance(policy, str):
        (text,), presets = expand([policy], [first.folder])
        agent = read_setting(text).make(finish_reading)
    else:
        agent = policy
    conditions = Conditions(finish_reading=finish_reading, ensemble=len(model.models) > 1)
    for preset in presets:
        preset.check(first, conditions, model.warn)
    check_stream_precision(model.precision)
    plan = stream_plan(model.plan)
    translator = StreamTranslator(
        model.models, model.pipeline, agent, plan, model.device, model.bf16, model.halt,
        model.limits,
    )  # fmt: skip
    translator.begin()  # what the model cannot do is an error now, not at the first line
    return translator
