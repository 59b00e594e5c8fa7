"""`nmtgrid adaptive-tune`: chooses thresholds of early exit on a split and measures them."""

from __future__ import annotations

from nmtgrid.cli.adaptive_tune.arguments import PANELS, RESULTS_RULES, AdaptiveTuneArguments, check
from nmtgrid.cli.options import check_rules, takes


@takes(
    AdaptiveTuneArguments,
    PANELS,
    "nmtgrid adaptive-tune MODEL --data DATA --test-split test --out DIR",
    "nmtgrid adaptive-tune MODEL --data DATA --allow-loss 1 --confidence 0.95",
)
def command(arguments: AdaptiveTuneArguments) -> None:
    """Tune early exits; show BLEU against average exit, FLOPs and seconds.

    The decisions and predictions of each exit are recorded once; thousands of threshold vectors are
    replayed on the record, and only the few best of each budget are evaluated by decoding.
    Baselines are fixed exits, random exits, the full stack and separately trained models.

    `--allow-loss` chooses the fastest thresholds that lose at most this much against the full
    stack, with the given confidence.
    """
    if arguments.results:
        check_rules(arguments, RESULTS_RULES)
        from nmtgrid.cli.adaptive_tune.output import draw_results

        draw_results(arguments.results, arguments.out, arguments.json)
        return
    check(arguments)
    from nmtgrid.cli.adaptive_tune.run import tune

    tune(arguments)
