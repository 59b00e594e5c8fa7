"""READ/WRITE policies by name, their settings and sweeps, as the command line reads them.

`KINDS` has every named policy; the classes are those of online/policies.py and
online/retranslation.py, imported only when a policy is created. A user-defined policy has the name
of its class (`own_policies`). A `Setting` is one operating point of a sweep: a policy with a value
for each of its fields.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import typing
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from nmtgrid.base.config import meanings
from nmtgrid.base.errors import ConfigError, list_names, merged, nearest
from nmtgrid.base.own_code import (
    ADVICE,
    check_methods,
    check_unique,
    definition_line,
    imported_name,
    own_definitions,
    undecorated,
)
from nmtgrid.base.spans import MOST_NUMBERS, decimals, shortened, whole_numbers

if TYPE_CHECKING:
    from nmtgrid.online.retranslation import PrefixPolicy
    from nmtgrid.search.api import Agent

SourceText = Literal["words", "line"]
"""Whether a source is tokenised raw word by raw word, as it would arrive, or line by line."""
WORDS_PER_MINUTE = 150.0
"""Default speaking rate in words per minute."""


@dataclasses.dataclass(frozen=True)
class PolicyKind:
    """A named policy: its summary, the setting that is swept, and the default sweep.

    `make` is the name of its class, empty for the oracle, which is not a policy. `letter` denotes
    the swept setting in titles, `shown` the policy next to a curve. `is_whole`: the swept setting
    is a whole number, or infinite.
    """

    name: str
    summary: str
    sweep: str
    values: str
    make: str
    letter: str
    shown: str = ""
    translates_prefixes: bool = False
    is_whole: bool = False

    @property
    def label(self) -> str:
        """The policy's label next to its curve."""
        return self.shown or self.name


KINDS: dict[str, PolicyKind] = {
    kind.name: kind
    for kind in (
        PolicyKind(
            "wait-k", "reads k source tokens first, then one after each write",
            "k", "1,3,5,7,9", "WaitK", "k", is_whole=True,
        ),
        PolicyKind(
            "threshold", "reads while the reader trained with the model makes a READ likely",
            "threshold", "0.1..0.9:0.2", "Threshold", "τ", "agent",
        ),
        PolicyKind(
            "oracle", "follows the path of least cost for the reference, given the delay weight",
            "lambda", "0,0.5,1,2", "", "λ",
        ),
        PolicyKind(
            "confidence", "writes once the most likely token is likely enough",
            "threshold", "0.2,0.4,0.6,0.8,0.9", "Confidence", "p",
        ),
        PolicyKind(
            "entropy", "writes once the entropy of the next token is low enough",
            "most", "0.5,1,1.5,2,3", "Entropy", "H",
        ),
        PolicyKind(
            "alignatt", "writes unless the next token attends most to the latest source tokens",
            "last", "1,2,3,4,6", "AlignAtt", "f",
        ),
        PolicyKind(
            "edatt", "writes while the next token attends little to the latest source tokens",
            "mass", "0.05,0.1,0.2,0.4,0.6", "EDAtt", "α",
        ),
        PolicyKind(
            "mma", "writes once every monotonic head has chosen a source position",
            "threshold", "0.3..0.7:0.1", "Monotonic", "p",
        ),
        PolicyKind(
            "itst", "writes once enough information has been transported to the next token",
            "delta", "0.2,0.4,0.6,0.8,0.95", "ITST", "δ",
        ),
        PolicyKind(
            "wait-info", "writes once the source read has k more information than the target",
            "k", "1,2,3,5,7", "WaitInfo", "K",
        ),
        PolicyKind(
            "local-agreement", "writes what the translations of n successive prefixes agree on",
            "n", "1,2,3", "LocalAgreement", "n", translates_prefixes=True, is_whole=True,
        ),
        PolicyKind(
            "hold-n", "writes all but the last n tokens of each prefix's translation",
            "n", "1,2,3,5,8", "HoldN", "n", translates_prefixes=True, is_whole=True,
        ),
        PolicyKind(
            "re-translation", "shows the translation of each prefix, and revises it",
            "mask", "0,2,4", "Retranslation", "mask", translates_prefixes=True, is_whole=True,
        ),
    )
}  # fmt: skip
"""The policies by name, in the order of tables and legends."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """A policy and its settings; `value` is that of the swept one, `parameter` its name.

    For a user-defined policy `policy` is the name of its class. `options` are the other settings.
    """

    policy: str
    value: float
    options: tuple[tuple[str, Any], ...] = ()
    parameter: str = ""

    @property
    def kind(self) -> PolicyKind | None:
        """The named policy; None for a user-defined one."""
        return KINDS.get(self.policy)

    @property
    def key(self) -> str:
        """The name of the swept setting, or nothing."""
        return self.parameter if self.kind is None else self.kind.sweep

    @property
    def label(self) -> str:
        """The policy's label next to its curve."""
        # Results of older versions have FILE.py:Class.
        return self.policy.rpartition(":")[2] if self.kind is None else self.kind.label

    @property
    def curve(self) -> tuple[str, tuple[tuple[str, Any], ...]]:
        """The key of the setting's curve: the policy and its settings that are not swept."""
        return self.policy, self.options

    @property
    def curve_label(self) -> str:
        """The curve's label: `confidence, floor = 2`."""
        return ", ".join([self.label, *(f"{name} = {value}" for name, value in self.options)])

    @property
    def is_offline(self) -> bool:
        """Whether the whole source is read before the first write, as far as is known.

        It is not known what an infinite setting means to a user-defined policy.
        """
        is_infinite = self.kind is not None and math.isinf(self.value)
        return is_infinite and not dict(self.options).get("cap")

    @property
    def translates_prefixes(self) -> bool:
        """Whether the policy translates source prefixes, each with a separate search."""
        return self.kind is not None and self.kind.translates_prefixes

    @property
    def is_short(self) -> bool:
        """Whether the letter is unique to the policy, so that titles omit the policy's name."""
        return self.policy in ("wait-k", "threshold", "oracle")

    @property
    def title(self) -> str:
        """The setting as displayed: `k = 3`, `confidence p = 0.8, floor = 2`."""
        name = "" if self.is_short else f"{self.label} "
        value = f"{name}{self.letter} = {self.number}" if self.key else self.label
        return ", ".join([value, *(f"{name} = {value}" for name, value in self.options)])

    @property
    def full_title(self) -> str:
        """The title that always includes the policy's label: `agent, τ = 0.5`."""
        return f"{self.label}, {self.title}" if self.is_short else self.title

    @property
    def short_title(self) -> str:
        """The setting as written in tables: `k=3`."""
        return self.title.replace(" = ", "=")

    @property
    def letter(self) -> str:
        """The symbol of the swept setting in titles, or nothing."""
        return self.key if self.kind is None else self.kind.letter

    @property
    def number(self) -> str:
        """The value as displayed."""
        return "∞" if math.isinf(self.value) else f"{self.value:.15g}"

    @property
    def text(self) -> str:
        """The setting as `--policy` takes it: `confidence threshold=0.8 floor=2`."""
        settings = [(self.key, self.value), *self.options] if self.key else self.options
        return " ".join([self.policy, *(f"{name}={_written(value)}" for name, value in settings)])

    @property
    def slug(self) -> str:
        """The setting as a part of file names."""
        words = [] if self.is_short else [self.label]
        for name, value in [(self.key, f"{self.value:.15g}"), *self.options]:
            words += [name, str(value)] if name else []
        return re.sub(r"[^\w.+-]+", "-", "-".join(words))

    def values(self) -> dict[str, Any]:
        """Return JSON keys; an infinite k is None."""
        value = None if math.isinf(self.value) else self.value
        named = {self.key: value} if self.key else {}
        options = {"options": dict(self.options)} if self.options else {}
        # The keys of the oldest three policies are fixed; all others also name their parameter.
        known = {} if self.is_short else {"parameter": self.key, "value": value}
        return {"policy": self.policy, **named, **known, **options}

    def make(self, finish_reading: bool = False) -> Agent | PrefixPolicy:
        """Return the policy; the oracle is not one. Raises ConfigError for invalid settings."""
        swept = {self.key: self.value} if self.key else {}
        cls = policy_class(self.policy)
        options = dict(self.options)
        # Policies that translate prefixes always write the end symbol after the source's end.
        if any(field.name == "finish_reading" for field in dataclasses.fields(cls)):
            options["finish_reading"] = finish_reading
        policy: Agent | PrefixPolicy = cls(**swept, **options)
        return policy

    def faults(self, option: str) -> list[str]:
        """Return what is invalid in these settings of the option or policy called `option`."""
        try:
            self.make()
        except ConfigError as error:
            return [f"`{option}`: {fault}" for fault in error.faults]
        return []


def _written(value: Any) -> str:
    """Return a setting's value as `_values` reads it: a number without an exponent."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isfinite(value):
        return f"{Decimal(f'{value:.15g}'):f}"
    return str(value)


def policy_class(name: str) -> Any:
    """Return the class of a policy by its name.

    Raises ConfigError for an unknown name, for a name that two policies share, and for a
    user-defined class that is not a usable policy.
    """
    from nmtgrid.online import policies, retranslation

    own = own_policies()
    if name in KINDS:
        if name in own:
            raise ConfigError(
                f"{definition_line(name)}there are two reading policies `{name}`.", "Rename yours."
            )
        module = retranslation if KINDS[name].translates_prefixes else policies
        return getattr(module, KINDS[name].make)
    if name not in own:
        raise unknown_policy(name)
    base, policy = policies.Policy, own[name]
    if policy.decide is base.decide and policy.next_reads is base.next_reads:
        raise ConfigError(
            f"The reading policy `{name}` has no method `decide`.",
            "Add `decide(self, proposal)`, which returns a tensor [R] of bools: True where a row "
            "writes.",
        )
    changed = [m for m in ("decide", "next_reads") if getattr(policy, m) is not getattr(base, m)]
    check_methods(object.__new__(policy), f"the reading policy `{name}`", base, changed)
    _check_dataclass(policy)
    return policy


def _check_dataclass(policy: type) -> None:
    """Raise ConfigError if a user-defined policy has settings but is not a dataclass."""
    from nmtgrid.online.policies import Policy

    if lost := undecorated(policy, Policy):
        name = lost[0].__name__
        raise ConfigError(
            f"{definition_line(name)}the reading policy `{name}` is not a dataclass: "
            f"{list_names(lost[1])} would be ignored.",
            f"Write `@dataclasses.dataclass(frozen=True)` above `class {name}`.",
        )


def unknown_policy(name: str, stored: Iterable[str] | None = None) -> ConfigError:
    """Return the error for a name that no policy has; `stored` are names in a model directory."""
    own = own_definitions(lambda value: True)
    if name in own:
        return ConfigError(
            f"{definition_line(name)}`{name}` is not a reading policy: it must be a subclass of "
            "`nmtgrid.online.policies.Policy`.",
            f"Write `class {name}(Policy)`.",
        )
    problem = f"There is no reading policy `{shortened(name)}`"
    if stored is not None:
        problem += ", and none is stored under this name"
    # The nearest name is part of the problem: each of several unknown names has its own.
    known = nearest(name, [*KINDS, *(stored or ()), *own_policies()])
    first, _, settings = name.partition(":")
    if first in KINDS and settings:
        known = f"Settings follow the name after a space: `{first} {shortened(settings)}`."
    return ConfigError(f"{problem}. {known}", ADVICE)


def own_policies() -> dict[str, Any]:
    """Return the policy classes of the imported user files, by name."""
    from nmtgrid.online.policies import Policy

    return own_definitions(lambda value: isinstance(value, type) and issubclass(value, Policy))


def read_policy(text: str, *, sweeps: bool = True) -> list[Setting]:
    """Return the settings of `NAME setting=values ...`, all combinations of the values.

    NAME may be FILE.py:Class. Numbers may be lists such as `1..9:2` or `0.5,0.7`. If the swept
    setting has no value, it takes its default sweep, or its default value if not `sweeps`. Raises
    ConfigError, which names every fault, including more combinations than a list may have numbers.
    """
    words = text.split()
    if not words:
        raise ConfigError("A reading policy needs a name.", f"There are {', '.join(KINDS)}.")
    name, changes = imported_name(words[0]), words[1:]
    if name == "oracle":
        raise ConfigError(
            "The oracle cannot translate: it follows the reference.",
            "`nmtgrid online-eval MODEL --oracle LIST` evaluates it.",
        )
    policy = policy_class(name)
    fields, sweep = _settings_of(policy), _swept(name, policy)
    faults: list[str] = []
    lists: dict[str, list[Any]] = {}
    for word in changes:
        key, equals, values = word.partition("=")
        if key not in fields:
            known = nearest(key, fields) or f"It has {', '.join(fields)}."
            faults.append(f"`{name}` has no setting `{shortened(key)}`. {known}".strip())
        elif not equals:
            faults.append(f"`{name} {key}` has no value: write `{key}=...`.")
        elif key in lists:
            advice = f"write its values as `{key}=A,B`" if sweeps else "name one value"
            faults.append(f"`{name} {key}` is given twice: {advice}.")
        else:
            try:
                lists[key] = _values(values, name, key, fields[key], key == sweep)
            except ConfigError as error:
                faults += error.faults
    if faults:
        raise ConfigError(faults)
    if sweep and sweep not in lists:
        usual = KINDS[name].values if sweeps and name in KINDS else _default(policy, sweep)
        if usual is None:
            advice = f"Give it a value, as in `{name} {sweep}=3`."
            raise ConfigError(f"The setting `{sweep}` of `{name}` has no default.", advice)
        lists[sweep] = _values(str(usual), name, sweep, fields[sweep], True)
    count = math.prod(map(len, lists.values()))
    if count > MOST_NUMBERS:
        raise ConfigError(
            f"`{name}` has {count:,} combinations of its settings, more than {MOST_NUMBERS:,}.",
            "Shorten the lists, or evaluate a part of them at a time.",
        )
    settings = []
    others = [key for key in lists if key != sweep]
    for chosen in itertools.product(*(lists[key] for key in others)):
        for value in lists.get(sweep, [0.0]):  # a policy may have no settings
            options = tuple(zip(others, chosen, strict=True))
            setting = Setting(name, value, options, "" if name in KINDS else sweep)
            # Invalid settings are reported before anything is decoded.
            if faults := setting.faults(name):
                raise ConfigError(faults)
            settings.append(setting)
    return settings


ALL = "all"
USUAL_K = 3
"""The k of wait-k if none is named; its class has no default."""
_MAY_BE_INFINITE = ("k", "n", "mask")
"""Names of settings that may be infinite if they are swept, also in user-defined policies."""
_COMMON = ("floor", "cap")
"""Settings that all policies have."""


def names_all(text: str | None) -> bool:
    """Return whether `all` is among the names of a list of policies."""
    return text is not None and ALL in map(str.strip, text.split(","))


def named_policies(text: str | None) -> list[str]:
    """Return the policies of a list of names; `all` stands for all but the oracle."""
    if text is None:
        return []
    if names_all(text):
        return [name for name, kind in KINDS.items() if kind.make]
    return [name.strip() for name in text.split(",")]


@dataclasses.dataclass(frozen=True)
class PolicySetting:
    """A setting of a policy, for user interfaces: its type, default and meaning.

    `default` is None for a setting that must have a value, and "inf" for an infinite default.
    """

    name: str
    kind: Literal["whole", "number", "switch", "text"]
    default: Any
    meaning: str
    may_be_infinite: bool


def policy_settings(name: str) -> list[PolicySetting]:
    """Return the settings of the policy called `name` (or FILE.py:Class), the swept one first.

    Raises ConfigError as `policy_class` does.
    """
    policy = policy_class(name)
    texts, sweep = meanings(policy), _swept(name, policy)
    kinds = {bool: "switch", int: "whole", float: "number"}
    settings = []
    for key, hint in sorted(_settings_of(policy).items(), key=lambda field: field[0] != sweep):
        default = USUAL_K if (name, key) == ("wait-k", "k") else _default(policy, key)
        if default == math.inf:  # which JSON does not have
            default = "inf"
        infinite = key == sweep and key in _MAY_BE_INFINITE
        is_whole = infinite and _sweeps_whole_numbers(name)
        shown: Any = "whole" if is_whole else kinds.get(hint, "text")
        text = texts.get(key, "")
        settings.append(PolicySetting(key, shown, default, text, infinite))
    return settings


def _settings_of(policy: Any) -> dict[str, type]:
    """Return the settings of a policy and their types, except `finish_reading`, an option."""
    hints = typing.get_type_hints(policy)
    names = [field.name for field in dataclasses.fields(policy) if field.name != "finish_reading"]
    # The policy's own settings come before the common ones.
    names.sort(key=lambda name: name in _COMMON)
    return {name: hints[name] for name in names}


def _swept(name: str, policy: Any) -> str:
    """Return the setting of a policy that is swept.

    For a user-defined policy it is the first numeric setting that is not common to all, if any.
    """
    if name in KINDS:
        return KINDS[name].sweep
    fields = _settings_of(policy).items()
    numbers = (key for key, hint in fields if key not in _COMMON and hint in (int, float))
    return next(numbers, "")


def _sweeps_whole_numbers(name: str) -> bool:
    kind = KINDS.get(name)
    return kind is not None and kind.is_whole


def _default(policy: Any, name: str) -> Any:
    """Return the default of a setting, None if there is none."""
    default = {field.name: field.default for field in dataclasses.fields(policy)}[name]
    return None if default is dataclasses.MISSING else default


def _values(text: str, policy: str, key: str, hint: type, is_swept: bool) -> list[Any]:
    """Return the values of a setting of the type `hint`."""
    # Results can store an infinite value of the swept setting only.
    option, is_count = f"{policy} {key}", key in _MAY_BE_INFINITE
    infinite = is_count and is_swept
    # A span such as 1..9 needs no step if its ends are whole.
    is_whole = _sweeps_whole_numbers(policy) or "." not in text.replace("..", "")
    if hint is int or (is_count and is_whole):
        return list(whole_numbers(text, option, infinite=infinite))
    if hint is float:
        return list(decimals(text, option, infinite=infinite))
    if hint is bool:
        if text not in ("true", "false"):
            raise ConfigError(f"`{option}` must be true or false, but is `{shortened(text)}`.")
        return [text == "true"]
    return [text]


def read_setting(text: str) -> Setting:
    """Return the only setting of a text as for `read_policy`, with one value for each setting.

    Settings that the text does not name have their defaults.
    """
    settings = read_policy(text, sweeps=False)
    if len(settings) > 1:
        raise ConfigError(
            f"`{text}` gives {len(settings)} settings: here a reading policy must have one value "
            f"for each setting, as in `{settings[0].text}`."
        )
    return settings[0]


def read_settings(
    k: str | None,
    thresholds: str | None,
    oracle: str | None,
    policies: Sequence[str] = (),
) -> list[Setting]:
    """Return the settings of three lists of numbers and of further policies, wait-k first.

    `policies` are texts of `read_policy`. If nothing is given, the result is wait-k's default
    sweep. Raises ConfigError, which names every fault: a k below 1, a threshold outside (0, 1), a
    negative lambda, what `base.spans` or a policy rejects, and a name that two files define.
    """
    if k is None and thresholds is None and oracle is None and not policies:
        k = KINDS["wait-k"].values
    lists = {"wait-k": k, "threshold": thresholds, "oracle": oracle}
    readers = [partial(_read_list, name, text) for name, text in lists.items() if text is not None]
    readers += [partial(read_policy, text) for text in policies]
    check_unique(policies)
    settings: list[Setting] = []
    # All are read before anything is raised, so that one message names every fault.
    errors: list[ConfigError] = []
    for read in readers:
        try:
            settings += read()
        except ConfigError as error:
            errors.append(error)
    if errors:
        raise merged(errors)
    # The same point may come from two lists, as from `--k` and `--policies all`.
    return list(dict.fromkeys(settings))


def _read_list(policy: str, text: str) -> list[Setting]:
    """Return the settings of a list of numbers, that of `--k`, `--thresholds` or `--oracle`."""
    values: Sequence[float]
    if policy == "wait-k":
        values = whole_numbers(text, "--k", least=1, infinite=True)
    elif policy == "threshold":
        values = decimals(text, "--thresholds")
    else:
        values = decimals(text, "--oracle", 0, such_as="0,1 or 0..2:0.5")
    settings = [Setting(policy, float(value)) for value in values]
    if policy == "threshold":
        faults = [fault for setting in settings for fault in setting.faults("--thresholds")]
        if faults:
            raise ConfigError(faults)
    return settings
