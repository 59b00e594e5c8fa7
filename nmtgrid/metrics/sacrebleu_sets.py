"""Test sets that sacreBLEU knows, such as `wmt15`: from its cache, or downloaded by it.

`preprocess --test sacrebleu:wmt15/de-en` calls `fetch_test_set`. The cache is the folder that the
environment variable SACREBLEU names, `~/.sacrebleu` without it.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from sacrebleu.dataset import DATASETS

from nmtgrid.base.errors import ConfigError, InputError, nearest

_TIMEOUT = 60.0
"""Seconds without an answer after which a server is given up."""


def fetch_test_set(name: str, languages: tuple[str, str]) -> tuple[Path, Path]:
    """Return the files of the source and the first reference of the set `name`, `wmt15/de-en`.

    Raises ConfigError for a set that sacreBLEU does not know or that is of other languages,
    InputError if it is not in the cache and cannot be downloaded.
    """
    option = f"`sacrebleu:{name}`"
    test_set, _, pair = name.rpartition("/")
    if test_set not in DATASETS:
        raise ConfigError(
            f"{option}: sacreBLEU has no test set `{test_set}`."
            if test_set
            else f"{option} must name a test set and its languages.",
            nearest(test_set, list(DATASETS)) if test_set else "Such as `sacrebleu:wmt15/de-en`.",
        )
    dataset: Any = DATASETS[test_set]
    if pair not in dataset.langpairs:
        raise ConfigError(
            f"{option}: `{test_set}` has no languages `{pair}`.", nearest(pair, dataset.langpairs)
        )
    if pair != "-".join(languages):
        raise ConfigError(
            f"{option} is from {' to '.join(pair.split('-', 1))}, but this dataset from "
            f"{' to '.join(languages)}.",
            f"Name `sacrebleu:{test_set}/{'-'.join(languages)}`, if there is such a set.",
        )
    fields = dataset.fieldnames(pair)
    names = ["src", next(field for field in fields if field.startswith("ref"))]
    source, target = (Path(dataset._get_txt_file_path(pair, field)) for field in names)
    if not (source.is_file() and target.is_file()):
        _download(dataset, pair, (source, target))
    return source, target


def _download(dataset: Any, pair: str, files: tuple[Path, Path]) -> None:
    """Download a set with sacreBLEU. Raises InputError if that fails."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT)
    reason = "its files are not there afterwards"
    try:
        dataset.get_files(pair)
    # sacreBLEU raises errors of any type, and calls `sys.exit` for some.
    except (Exception, SystemExit) as fault:
        reason = " ".join(str(fault).split())[:200] or type(fault).__name__
    finally:
        socket.setdefaulttimeout(before)
    if not all(path.is_file() for path in files):
        name, folder = dataset.name, files[0].parent
        raise InputError(
            f"`{name}` ({pair}) is not in sacreBLEU's cache and cannot be downloaded: {reason}.",
            f"Without a network put {' and '.join(f'`{path.name}`' for path in files)} into "
            f"{folder}: `sacrebleu --download {name} -l {pair}` creates them elsewhere. "
            "The variable SACREBLEU names another cache.",
        )
