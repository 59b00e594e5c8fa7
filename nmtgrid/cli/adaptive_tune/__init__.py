"""`nmtgrid adaptive-tune`: thresholds of early exit, chosen on a split and measured."""

from __future__ import annotations

from nmtgrid.cli.adaptive_tune.arguments import PANELS, RESULTS_RULES, AdaptiveTuneArguments, check
from nmtgrid.cli.options import check_outputs, check_rules, takes


@takes(
    AdaptiveTuneArguments,
    PANELS,
    "nmtgrid adaptive-tune MODEL --data DATA --test-split test --out DIR",
    "nmtgrid adaptive-tune MODEL --data DATA --allow-loss 1 --confidence 0.95",
)
def command(arguments: AdaptiveTuneArguments) -> None:
    """Choose where tokens may leave the decoder; show BLEU against average exit, FLOPs and seconds.

    What each exit would decide and write is recorded once; thousands of vectors of thresholds are
    replayed on that, and only the few best of each budget are decoded. Beside them stand fixed
    exits, exits drawn at random, the full stack and models trained separately.
    """
    if arguments.results:
        check_rules(arguments, RESULTS_RULES)
        from nmtgrid.cli.adaptive_tune.show import draw_results

        draw_results(arguments.results, arguments.out, arguments.json)
        return
    check(arguments)
    check_outputs({"--json": arguments.json})
    from nmtgrid.cli.adaptive_tune.run import tune

    tune(arguments)
