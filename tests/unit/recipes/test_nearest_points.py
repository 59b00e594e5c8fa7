"""The operating points of figure 4.16."""

import json
from pathlib import Path

import pytest

from recipes.nearest_points import main


def test_the_least_difference_of_lagging(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = [
        {"threshold": 0.2, "al": 3.0, "bleu_tokenized": 30.04},
        {"threshold": 0.5, "al": None, "bleu_tokenized": 0.0},
        {"k": 3, "al": 3.4, "bleu_tokenized": 27.0},  # wait-k of the agent's weights
    ]
    waits = [
        {"k": 1, "al": 1.0, "bleu_tokenized": 20.0},
        {"k": 3, "al": 3.4, "bleu_tokenized": 28.0},
        {"k": None, "al": 3.0, "bleu_tokenized": 31.0},
    ]
    # Offline, k = 3 lags 1.1 less than the agent, k = 5 only 0.9 more.
    offline = [
        {"k": 3, "al": 1.9, "bleu_tokenized": 25.0},
        {"k": 5, "al": 3.9, "bleu_tokenized": 29.0},
    ]
    for name, settings in (("agent", agent), ("waits", waits), ("offline", offline)):
        (tmp_path / name).write_text(json.dumps({"settings": settings}))
    main([f"{tmp_path}/{name}" for name in ("agent", "waits", "offline")])
    threshold, k, offline_k, *words = capsys.readouterr().out.split(maxsplit=3)
    # Reading everything first is no wait-k, and empty translations lag by nothing.
    assert (threshold, k, offline_k) == ("0.2", "3", "5")
    assert words == [
        "The agent at 0.2: AL 3.00, test BLEU 30.0. Wait-7 at k = 3: AL 3.40, test BLEU 28.0. "
        "The offline model at k = 5: AL 3.90, test BLEU 29.0.\n"
    ]
