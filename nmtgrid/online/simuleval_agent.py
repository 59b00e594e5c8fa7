"""An agent for SimulEval (1.1), text to text; the only module that imports SimulEval.

    simuleval --agent nmtgrid/online/simuleval_agent.py --model MODEL --k 3 \\
        --source test.de --target test.en --output DIR

or, wherever nmtgrid is installed, `--agent-class nmtgrid.online.simuleval_agent.StreamAgent`.
SimulEval must run in an interpreter that has nmtgrid too. Sources are raw lines, predictions raw
words, for raw references: a word is written when the next one begins, because until then a comma or
`'s` that belongs to it may follow. With `--tokenized` predictions are tokenised words, written as
soon as they are final, for tokenised references and `--sacrebleu-tokenizer none`. `policy()` is
called once for each source word: all words that are final by then are written in one action. This
module loads without SimulEval; only the class needs it, and
`python -m nmtgrid.online.simuleval_agent` prints SimulEval's command line, or how to install it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError, NmtgridError
from nmtgrid.base.spans import real_number
from nmtgrid.text.incremental import IncrementalWords

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from nmtgrid.online.stream import LineStream, StreamTranslator


class Session:
    """The sentence being translated: takes all source words so far, returns words to write."""

    def __init__(self, translator: StreamTranslator, tokenized: bool = False) -> None:
        """With `tokenized` words stay as the Moses tokeniser writes them, with its escapes."""
        self._translator = translator
        self._is_raw = not tokenized and translator.pipeline.target.moses.tokenizes
        self.reset()

    def reset(self) -> None:
        """Begin a new sentence."""
        self._stream: LineStream = self._translator.begin()
        self._raw = IncrementalWords(self._translator.pipeline.target.moses)
        self._fed = 0

    def turn(self, source: list[str], source_is_whole: bool) -> tuple[str, bool] | None:
        """Return words to write and whether they are the last; None means READ.

        The translation ends with the source, never before: a line that becomes too long for one
        segment continues with another segment after the first has ended.
        """
        words: list[str] = []
        for segment in source[self._fed :]:
            for word in segment.split():
                words += self._stream.read(word)
        self._fed = len(source)
        if source_is_whole:
            words += self._stream.end()
        if self._is_raw:
            words = [whole for word in words for whole in self._raw.add(word)]
            if source_is_whole or self._stream.is_finished:
                words += self._raw.end()
        if not words and not source_is_whole:
            return None
        return " ".join(words), source_is_whole


def make_translator(arguments: Namespace) -> StreamTranslator:
    """Return the translator of the command line. Raises NmtgridError for errors in it."""
    policies = arguments.k, arguments.threshold, arguments.policy
    if sum(policy is not None for policy in policies) > 1:
        raise ConfigError("Give one of `--k`, `--threshold` and `--policy`.")
    # Imported late, so that `--help`, which only calls `add_arguments`, need not load torch.
    from nmtgrid.online.settings import Setting
    from nmtgrid.online.stream import simultaneous
    from nmtgrid.search.translate import load

    policy: str | None = arguments.policy
    if arguments.k is not None:
        policy = Setting("wait-k", arguments.k).text
    elif arguments.threshold is not None:
        policy = Setting("threshold", arguments.threshold).text
    model = load(
        arguments.model, device=arguments.device, weights=arguments.weights, warn=console.warn,
        imports=arguments.imports,
    )  # fmt: skip
    return simultaneous(model, policy, finish_reading=arguments.finish_reading)


def add_arguments(parser: ArgumentParser) -> None:
    """Add our options to SimulEval's; `--device` is its own."""
    parser.add_argument("--model", required=True, help="A model directory of nmtgrid.")
    parser.add_argument(
        "--k",
        type=real_number,
        help="Stay K source units behind; inf: wait for all. Default: the k of training.",
    )
    parser.add_argument(
        "--threshold", type=real_number,
        help="Read while the reader's probability of READ is at least this.",
    )  # fmt: skip
    parser.add_argument(
        "--policy", help="A reading policy, `confidence threshold=0.8`, or a user-defined class."
    )
    parser.add_argument(
        "--import", dest="imports", action="append", default=[], metavar="FILE",
        help="Run this Python file first, which defines a policy or an architecture.",
    )  # fmt: skip
    parser.add_argument(
        "--finish-reading",
        action="store_true",
        help="Do not end a translation before the whole source is read.",
    )
    parser.add_argument(
        "--tokenized", action="store_true", help="Write tokenised words, for tokenised references."
    )
    parser.add_argument("--weights", default="best", choices=["best", "last", "average"])


def agent_class() -> type[Any]:
    """Return the class that SimulEval drives. Raises ConfigError if SimulEval is missing."""
    try:
        from simuleval.agents import TextToTextAgent
        from simuleval.agents.actions import ReadAction, WriteAction
    except ImportError as fault:
        raise ConfigError(
            f"SimulEval is not installed here ({fault}).",
            "`pip install simuleval`, preferably in a separate environment: it requires old "
            "versions of other packages.",
        ) from fault

    class StreamAgent(TextToTextAgent):  # type: ignore[misc]
        """Drives one `Session`."""

        def __init__(self, arguments: Namespace) -> None:
            try:
                self.session = Session(make_translator(arguments), arguments.tokenized)
            except NmtgridError as fault:
                raise SystemExit(f"error: {fault}") from fault
            super().__init__(arguments)

        @staticmethod
        def add_args(parser: ArgumentParser) -> None:
            add_arguments(parser)

        def reset(self) -> None:
            super().reset()
            self.session.reset()

        def policy(self) -> Any:
            action = self.session.turn(self.states.source, self.states.source_finished)
            return ReadAction() if action is None else WriteAction(action[0], finished=action[1])

    # SimulEval logs the class by name: make it look like one defined at module level.
    StreamAgent.__module__ = __name__
    StreamAgent.__qualname__ = "StreamAgent"
    return StreamAgent


def __getattr__(name: str) -> Any:
    # `--agent-class` looks the name up here; the class is created then, not on import.
    if name == "StreamAgent":
        globals()[name] = agent_class()
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if "simuleval" in sys.modules:
    # SimulEval loads an agent's file and takes the class that it finds registered.
    from simuleval.utils import entrypoint

    StreamAgent = entrypoint(agent_class())


def main() -> int:
    """Print how to call SimulEval with this agent, or how to install it; return the exit code."""
    try:
        agent_class()
    except ConfigError as fault:
        console.error(fault.problem, fault.advice)
        return 2
    console.say(
        "simuleval --agent-class nmtgrid.online.simuleval_agent.StreamAgent "
        "--model MODEL --k 3 --source FILE --target FILE --output DIR"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
