"""Systems that translate a stream, by the names of a model, a reading policy and an exit.

`Models` loads the model directories that the operator named, describes what each can do, and makes
translators for requests. A request names policies, never files.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from nmtgrid.adaptive.exit_presets import AUTO, EXIT_FILE, halt_of
from nmtgrid.base.errors import ConfigError, NmtgridError, nearest
from nmtgrid.base.own_code import check_unique, imported_name
from nmtgrid.models.directory import LoadedModel, load_model
from nmtgrid.online.objectives.wait_k import trained_k
from nmtgrid.online.policy_presets import POLICY_FILE, Conditions, choose_policy
from nmtgrid.online.settings import KINDS, USUAL_K, Setting, own_policies, policy_settings
from nmtgrid.online.stream import StreamTranslator
from nmtgrid.search.translate import TranslationOptions, Translator, check_text, default_plan

_ORDER = (f"wait-k k={USUAL_K}", "local-agreement n=2")
"""Default policies, unless the model or the operator sets one: the first that it can follow."""


@dataclasses.dataclass(frozen=True)
class SystemRequest:
    """The requested system: a model's name, a policy as for `--policy`, an exit as for `--exit`.

    The default model is the first one, the default policy the model's usual one; without an exit
    all blocks run.
    """

    model: str = ""
    policy: str = ""
    exit: str = ""
    finish_reading: bool = False


@dataclasses.dataclass(frozen=True)
class System:
    """A translator of streams, and its title."""

    request: SystemRequest
    """With all names filled in."""
    title: str
    translator: StreamTranslator


class Models:
    """The loaded models by name, and the systems built from them on request."""

    def __init__(
        self,
        folders: Mapping[str, Path],
        *,
        device: torch.device | str = "cpu",
        precision: Literal["fp32", "bf16"] = "fp32",
        weights: str = "best",
        max_source: int | None = None,
        policies: Sequence[str] = (),
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Load the model directories; the operator's `policies` may be FILE.py:Class.

        Raises ModelError for a folder that is not a model directory, ConfigError for an unknown
        policy and for models of pictures.
        """
        self._device, self._precision, self._max_source = device, precision, max_source
        self._warn = warn
        self.loaded = {name: load_model(path, device, weights) for name, path in folders.items()}
        self._translators: dict[Path, Translator] = {}
        for loaded in self.loaded.values():
            check_text(loaded.model)
        # Only the names of policies, after their files have been run.
        check_unique(policies)
        words = [text.split() or [""] for text in policies]
        self._policies = [" ".join([imported_name(name), *rest]) for name, *rest in words]
        by_name = {text.partition(" ")[0]: text for text in self._policies}
        self._own = {name: text for name, text in by_name.items() if name in own_policies()}
        for text in self._policies:
            # The operator's errors are reported before anything is served.
            if not any(self._can_follow(text, loaded) for loaded in self.loaded.values()):
                self._begin(text, next(iter(self.loaded.values())))

    @functools.cached_property
    def descriptions(self) -> list[dict[str, Any]]:
        """Descriptions of the models, and what can be requested of them, as JSON."""
        return [self._describe(name, loaded) for name, loaded in self.loaded.items()]

    def system(self, request: SystemRequest) -> System:
        """Return the requested system. Raises ConfigError if it is not possible."""
        name = request.model or next(iter(self.loaded))
        loaded = self._model(name)
        policy = request.policy or self.usual_policy(name)
        self._check_policy(policy, loaded)
        setting, translator = self._stream(policy, loaded, request, self._warn)
        complete = dataclasses.replace(request, model=name, policy=policy)
        return System(complete, setting.full_title, translator)

    def translator(self, name: str) -> tuple[Translator, bool]:
        """Return the translator of whole sentences, and whether it aligns. Raises ConfigError."""
        return self._lines(self._model(name or next(iter(self.loaded))))

    def _lines(self, loaded: LoadedModel) -> tuple[Translator, bool]:
        # Created once, because its first search packs its weights.
        if loaded.folder not in self._translators:
            self._translators[loaded.folder] = Translator(
                [loaded],
                default_plan(loaded),
                TranslationOptions(max_source=self._max_source),
                device=self._device,
                precision=self._precision,
                warn=self._warn,
            )
        return self._translators[loaded.folder], loaded.model.traits.aligns

    def usual_policy(self, name: str) -> str:
        """Return the policy of a model for requests that name none."""
        loaded = self.loaded[name]
        k = trained_k(loaded.folder)
        texts = [*self._policies, *([] if k is None else [f"wait-k k={k}"]), *_ORDER]
        for text in texts:
            if self._can_follow(text, loaded):
                return text
        return texts[-1]

    def _model(self, name: str) -> LoadedModel:
        if name not in self.loaded:
            raise ConfigError(f"There is no model `{name}`.", nearest(name, self.loaded))
        return self.loaded[name]

    def _check_policy(self, text: str, loaded: LoadedModel) -> None:
        """Raise ConfigError for a policy without a name: a request must not name a file."""
        name = (text.split() or [""])[0]
        stored = POLICY_FILE.load(loaded.folder)
        if name not in KINDS and name not in stored and name not in self._own:
            raise ConfigError(
                f"There is no reading policy `{name}`.", nearest(name, [*KINDS, *stored])
            )

    def _begin(self, text: str, loaded: LoadedModel) -> None:
        """Begin a stream and drop it. Raises NmtgridError if the model cannot follow the policy."""
        _, translator = self._stream(text, loaded, SystemRequest(), lambda text: None)
        translator.begin()

    def _stream(
        self, policy: str, loaded: LoadedModel, request: SystemRequest, warn: Callable[[str], None]
    ) -> tuple[Setting, StreamTranslator]:
        """Return a policy's setting, and its translator with the exit of the request.

        Raises ConfigError, also for a stored policy that belongs to other weights.
        """
        # A bare name is a sweep for `online-eval`; here it is the policy with its default values,
        # which only the class of wait-k lacks.
        text = f"wait-k k={USUAL_K}" if policy.split() == ["wait-k"] else policy
        chosen = choose_policy(text, loaded.folder)
        lines, aligns = self._lines(loaded)
        translator = dataclasses.replace(
            StreamTranslator.of(lines, chosen.setting.make(request.finish_reading), align=aligns),
            halt=halt_of(request.exit, loaded, warn) if request.exit else None,
        )
        conditions = Conditions(finish_reading=request.finish_reading, exit=request.exit or None)
        chosen.check(loaded, conditions, warn)
        return chosen.setting, translator

    def _can_follow(self, text: str, loaded: LoadedModel) -> bool:
        try:
            self._begin(text, loaded)
        except NmtgridError:
            return False
        return True

    def _describe(self, name: str, loaded: LoadedModel) -> dict[str, Any]:
        traits, facts = loaded.model.traits, loaded.pipeline.facts
        exits: list[str] = []
        if traits.num_exits > 1:
            exits = [str(number) for number in range(1, traits.num_exits)]
            exits += [] if traits.halting == "none" else [AUTO]
            exits += list(EXIT_FILE.load(loaded.folder))
        policies = [
            {
                "name": policy,
                "summary": KINDS[policy].summary if policy in KINDS else "a user-defined policy",
                "settings": [dataclasses.asdict(each) for each in policy_settings(policy)],
            }
            for policy in (*KINDS, *self._own)
            if policy != "oracle" and self._can_follow(self._own.get(policy, policy), loaded)
        ]
        policies += [
            {"name": preset.name, "summary": f"stored with this model: {preset.policy}"}
            for preset in POLICY_FILE.load(loaded.folder).values()
            if self._can_follow(preset.name, loaded)
        ]
        return {
            "name": name,
            "architecture": loaded.model.architecture,
            "source_lang": facts.source_lang,
            "target_lang": facts.target_lang,
            "parameters": loaded.model.count_parameters(),
            "joiner": loaded.pipeline.target_joiner,
            "aligns": traits.aligns,
            "num_exits": traits.num_exits,
            "exits": exits,
            "policies": policies,
            "policy": self.usual_policy(name),
        }
