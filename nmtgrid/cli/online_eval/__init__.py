"""`nmtgrid online-eval`: quality and latency of online translation, or of another tool's log."""

from __future__ import annotations

from nmtgrid.cli.online_eval.arguments import (
    LOG_RULES,
    PANELS,
    OnlineEvalArguments,
    check,
    own_metrics,
)
from nmtgrid.cli.options import check_outputs, check_rules, takes


@takes(
    OnlineEvalArguments,
    PANELS,
    "nmtgrid online-eval MODEL --data DATA --k 1..9 --out DIR",
    "nmtgrid online-eval MODEL --data DATA --policy 'confidence threshold=0.5..0.9:0.1 floor=2'",
    "nmtgrid online-eval MODEL --data DATA --policies confidence --allow-loss 2",
)
def command(arguments: OnlineEvalArguments) -> None:
    """Evaluate simultaneous translation of a split: BLEU against latency.

    One row for each setting: BLEU, average proportion AP, average lagging AL, DAL, the mean and
    maximum consecutive wait (CW, max-CW), LAAL, YAAL, and the length ratio. `--log` scores the log
    of another program: BLEU, and latency in both conventions.

    With `--allow-loss`, the settings are ordered by latency on one half of a split and tested on
    the other half, slowest first: the fastest that passes loses at most this much against offline
    translation, with the given confidence.
    """
    if arguments.log is not None:
        check_rules(arguments, LOG_RULES)
        check_outputs({"--json": arguments.json}, {"--log": arguments.log})
        from nmtgrid.cli.online_eval.run import score_log

        own = own_metrics(arguments)
        score_log(arguments.log, arguments.sacrebleu_tokenizer, arguments.json, own)
        return
    settings, presets = check(arguments)
    from nmtgrid.cli.online_eval.run import evaluate

    evaluate(arguments, settings, presets)
