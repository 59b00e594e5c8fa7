"""Online decoding with timing: each sentence as a stream, with seconds of computation.

Translations and reads are those of `OnlineDecoder`, which decodes in batches. Streams take raw
words (online/stream.py), so the time includes text processing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from nmtgrid.base.errors import ConfigError
from nmtgrid.models.api import TranslationModel
from nmtgrid.online.evaluate import Decoded, OnlineDecoder, Outcome, Sentence, outcome_of
from nmtgrid.online.settings import Setting
from nmtgrid.online.stream import StreamTranslator


class ClockedDecoder(OnlineDecoder):
    """Decodes sentence by sentence, as a stream, and measures the time.

    The sentences are those of raw words (`read_sentences`).
    """

    is_timed = True

    def run(
        self,
        sentences: Sequence[Sentence],
        settings: Sequence[Setting],
        advance: Callable[[Setting, int, int], None] = lambda setting, lines, tokens: None,
    ) -> Iterator[Decoded]:
        """Yield the translations as `OnlineDecoder` does.

        The first sentence is translated once before, as a warm-up.
        """
        first = next((sentence for sentence in sentences if sentence.source), None)
        if first is not None and settings:
            self._stream(self._streams(settings[0], self.translator.models), first)
        yield from super().run(sentences, settings, advance)

    def _check(self, model: TranslationModel, setting: Setting) -> None:
        """Raise ConfigError where a model cannot follow a policy in a stream."""
        if setting.policy == "oracle":
            raise ConfigError("The oracle needs the reference, which is unknown in a stream.")
        if self.translator.plan.beam > 1 and not setting.translates_prefixes:
            raise ConfigError(
                f"A stream of `{setting.policy}` is decoded greedily: it has no beam "
                f"(`search.beam` is {self.translator.plan.beam})."
            )
        self._streams(setting, [model]).begin()

    def _decode(
        self,
        sentences: Sequence[Sentence],
        setting: Setting,
        paths: dict[int, list[int]],
        advance: Callable[[Setting, int, int], None],
    ) -> list[Outcome]:
        streams = self._streams(setting, self.translator.models)
        outcomes = []
        for sentence in sentences:
            outcomes.append(self._stream(streams, sentence))
            advance(setting, 1, len(outcomes[-1].reads))
        return outcomes

    def _streams(self, setting: Setting, models: Sequence[TranslationModel]) -> StreamTranslator:
        translator = self.translator
        return StreamTranslator(
            models,
            translator.pipeline,
            setting.make(self.finish_reading),
            dataclasses.replace(translator.plan, coverage_penalty=0.0),
            translator.device,
            translator.bf16,
            translator.halt,
            translator.limits,
        )

    def _stream(self, streams: StreamTranslator, sentence: Sentence) -> Outcome:
        if not sentence.source:
            return Outcome([], "", "", [], [])
        stream = streams.begin()
        for word in sentence.words:
            stream.read(word)
        stream.end()
        pipeline = self.translator.pipeline
        return outcome_of(stream.hypothesis(), pipeline, seconds=stream.seconds)
