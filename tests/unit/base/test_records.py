"""Nonsense in files of JSON: every value of a good file of each kind replaced by what it cannot be.

A reader takes the file or refuses it with an error that names it, and soon.
"""

import functools
import json
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from msgspec import Meta
from torch import Tensor

from nmtgrid.adaptive.exit_presets import EXIT_FILE
from nmtgrid.base.errors import InputError, ModelError, NmtgridError, StorageError
from nmtgrid.base.io.arrays import load_tensors, map_arrays, save_tensors
from nmtgrid.base.io.records import Count, Record, convert, parse_json, read_json, read_record
from nmtgrid.data import directory
from nmtgrid.data.captioning.dataset import FeatureFiles
from nmtgrid.models.directory import load_model
from nmtgrid.search.traces import read_traces
from nmtgrid.text.pipeline import Pipeline
from tests.fuzz import single
from tests.fuzz.folders import make
from tests.unit.helpers.tiny_run import Sentences, trainer

SECONDS = 2.0
NONSENSE = {
    "a googol": "1" + "0" * 400, "negative": "-1", "1e308": "1e308", "NaN": "NaN",
    "script": '"<script>"', "list": "[]", "object": "{}", "deep": "[" * 3000 + "]" * 3000,
    "null": "null", "true": "true", "digits": "7" * 5000, "many": "300000000",
}  # fmt: skip
Read = Callable[[], Any]


def leaves(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value that is not a table or a list, and of those."""
    if path:
        yield path
    if isinstance(values, (dict, list)):
        children: Any = values.items() if isinstance(values, dict) else enumerate(values)
        for key, child in children:
            yield from leaves(child, (*path, key))


def replaced(values: Any, path: tuple[Any, ...], text: str) -> str:
    """Return the JSON text of `values` with `text` at `path`."""
    copy = json.loads(json.dumps(values))
    parent = functools.reduce(lambda parent, key: parent[key], path[:-1], copy)
    parent[path[-1]] = "@@@"
    return json.dumps(copy).replace('"@@@"', text)


def accepted(path: Path, values: Any, read: Read, encode: Callable[[str], bytes]) -> set[str]:
    """Return the changes that were taken, as `path of the key: nonsense`."""
    taken = set()
    before = path.read_bytes() if path.exists() else b""
    for keys in leaves(values):
        for name, text in NONSENSE.items():
            path.write_bytes(encode(replaced(values, keys, text)))
            started = time.perf_counter()
            try:
                read()
                taken.add(f"{'.'.join(map(str, keys))}: {name}")
            except NmtgridError as fault:
                # Of other data is the run, not the file.
                named = str(path.parent), "The run was started on"
                assert any(words in str(fault) for words in named), (keys, name, fault)
            assert time.perf_counter() - started < SECONDS, (keys, name)
    path.write_bytes(before)
    return taken


def as_line(text: str) -> bytes:
    return text.encode() + b"\n"


def values_of(path: Path) -> Any:
    """Return the values of a file of ours without its checksums, which would refuse any change."""
    values = json.loads(path.read_text())
    values.pop("sha256")
    return values | ({"sha256": {}} if path.name == "text.json" else {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    make(folder)
    return folder


TRACE = {**single.TRACE, "num_exits": 2}


@pytest.mark.parametrize(
    ("kind", "values", "ignored"),
    [
        ("traces", TRACE, {"score", "text"}),
        ("simuleval log", single.INSTANCE, {"elapsed", "prediction_length", "reference", "index"}),
        ("captions", single.COCO, {"annotations.0.id", "images.0.file_name"}),
        ("captions", single.KARPATHY, {"images.0.filename", "images.0.split"}),
        ("latency results", single.LATENCY, {"complete"}),
        ("exit results", single.TUNED, {".tuned", ".share"}),
        ("metrics", single.EVENT, {"epoch", "losses", "is_best", "perplexity"}),
    ],
)
def test_nonsense_in_files_of_results(
    tmp_path: Path, kind: str, values: Any, ignored: set[str]
) -> None:
    read = single.single(tmp_path)[kind].read
    path = tmp_path / "case"
    taken = accepted(path, values, lambda: read(path), as_line)
    never = {"a googol", "deep", "digits"}
    wrong = [
        change
        for change in taken
        if change.partition(": ")[2] in never and not any(name in change for name in ignored)
    ]
    assert not wrong


def test_nonsense_in_folders(folder: Path) -> None:
    model, data = folder / "model", folder / "data"
    cases: list[tuple[Path, Read]] = [
        (data / "manifest.json", lambda: directory.read(data)),
        (model / "text.json", lambda: Pipeline.load(model)),
        (model / "config.json", lambda: load_model(model)),
        (model / "exits.json", lambda: EXIT_FILE.load(model)),
    ]
    for path, read in cases:
        values = json.loads(path.read_text())
        values = values_of(path) if "sha256" in values else values
        values.pop("settings", None) if path.name == "config.json" else None
        # Of files and splits that are alike the first is enough.
        for name in ("files", "splits"):
            if name in values:
                values[name] = dict(list(values[name].items())[:1])
        taken = accepted(path, values, read, str.encode)
        assert not [c for c in taken if c.startswith(("settings.", "text.")) and "digits" in c]
        read()


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ({"source": {"p99": 5}}, "`training_lengths.source`, the lengths must not decrease"),
        ({"source": {"p1": -1}}, "`training_lengths.source.p1` must be at least 0"),
        ({"target": 3}, "`training_lengths.target` must be an object"),
        ([], "`training_lengths` must be an object or null"),
    ],
)
def test_lengths_of_training_that_cannot_be(folder: Path, lengths: Any, words: str) -> None:
    path = folder / "model" / "config.json"
    before = path.read_text()
    path.write_text(json.dumps({**values_of(path), "training_lengths": lengths}))
    with pytest.raises(ModelError, match=words):
        load_model(path.parent)
    path.write_text(before)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.index_fill(0, torch.tensor(0), torch.nan), "`{}` holds NaN or infinity"),
        (lambda t: t.index_fill(0, torch.tensor(0), -torch.inf), "`{}` holds NaN or infinity"),
        (lambda t: t.double().fill_(1e300), "`{}` holds NaN or infinity"),
        (lambda t: t.long(), "`{}` has the type int64"),
        (lambda t: t.bool(), "`{}` has the type bool"),
        (lambda t: t.half(), ""),
        (lambda t: t.double(), ""),
    ],
)
def test_weights_are_finite_numbers(
    folder: Path, change: Callable[[Tensor], Tensor], words: str
) -> None:
    path = folder / "model" / "model.safetensors"
    before = path.read_bytes()
    tensors = load_tensors(path)
    name = max(tensors)
    save_tensors(path, tensors | {name: change(tensors[name])})
    if words:
        with pytest.raises(ModelError, match=f"model.safetensors .*{words.format(name)}"):
            load_model(path.parent)
    else:
        load_model(path.parent)
    path.write_bytes(before)


def test_nonsense_in_a_training_state(tmp_path: Path) -> None:
    # With validation pairs, whose checksum is compared too.
    valid = Sentences(9)
    first = trainer(tmp_path, max_updates=3, valid=valid)
    list(first.run())
    (path,) = sorted((tmp_path / "checkpoints").glob("*/training.json"))[-1:]
    values = values_of(path)

    def resume() -> None:
        trainer(tmp_path, max_updates=4, valid=valid).resume()

    taken = accepted(path, values, resume, str.encode)
    shown = {change.partition(": ")[2] for change in taken}
    assert not shown & {"a googol", "1e308", "NaN", "script", "deep", "true", "digits"}, taken
    negative = {change.partition(": ")[0] for change in taken if change.endswith("negative")}
    # Losses may be below zero, counters and sums of seconds may not.
    assert negative <= {
        "progress.least_loss", "meter.loss", "meter.nll", "rate.best", "best.nll", "best.criterion",
    }  # fmt: skip
    path.write_text(json.dumps(values))
    assert trainer(tmp_path, max_updates=4).resume()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"best": {"update": 10**400}}, "`best.update` must be"),
        ({"meter": {"tokens": "<script>"}}, "`meter.tokens` must be a whole number"),
        ({"best": {"update": 4}}, "after the last"),
        ({"progress": {"cursor": {"epoch": 0, "pool": 7, "batch": 0}}}, "no batch of the data"),
        ({"progress": {"cursor": {"epoch": 10**9, "pool": 0, "batch": 0}}}, "no batch of the data"),
        ({"progress": {"cursor": 3}}, "`cursor` must be an object"),
        ({"progress": {"cursor": {}}}, "`cursor.epoch` is missing"),
        ({"progress": {"saved_update": 9}}, "after the last update"),
        ({"meter": {"updates": 2, "tokens": 0}}, "have no tokens"),
    ],
)
def test_a_state_that_cannot_be_is_told(
    tmp_path: Path, changes: dict[str, dict[str, Any]], words: str
) -> None:
    list(trainer(tmp_path, max_updates=3).run())
    (path,) = sorted((tmp_path / "checkpoints").glob("*/training.json"))[-1:]
    values = values_of(path)
    for name, fields in changes.items():
        values[name] |= fields
    path.write_text(json.dumps(values))
    with pytest.raises(StorageError, match=words) as caught:
        trainer(tmp_path, max_updates=4).resume()
    assert str(path.parent) in caught.value.problem and "Restore a copy" in caught.value.advice


def test_a_state_without_its_sums_is_told(tmp_path: Path) -> None:
    list(trainer(tmp_path, max_updates=3).run())
    (path,) = sorted((tmp_path / "checkpoints").glob("*/training.json"))[-1:]
    values = values_of(path)
    for lacking in values["meter"]:
        rest = {name: value for name, value in values["meter"].items() if name != lacking}
        path.write_text(json.dumps(values | {"meter": rest}))
        with pytest.raises(StorageError, match=f"`meter.{lacking}` is missing"):
            trainer(tmp_path, max_updates=4).resume()


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("optimiser|", lambda t: t[:1], "belongs"),
        ("optimiser|", lambda t: t.double(), "float64"),
        ("optimiser|", lambda t: t * float("nan"), "not finite"),
        ("optimiser|", lambda t: None, "is missing"),
        ("state|random.cpu", lambda t: t[:9], "random state"),
        ("state|random.cpu", lambda t: t * 0, "random state"),
        ("state|random.cpu", lambda t: t.float(), "random state"),
    ],
)
def test_tensors_of_a_state_are_those_of_the_run(
    tmp_path: Path, name: str, change: Callable[[Tensor], Tensor | None], words: str
) -> None:
    list(trainer(tmp_path, max_updates=3).run())
    (path,) = sorted((tmp_path / "checkpoints").glob("*/training.safetensors"))[-1:]
    tensors = load_tensors(path)
    key = min(key for key in tensors if key.startswith(name) and tensors[key].dim())
    changed = change(tensors.pop(key))
    save_tensors(path, tensors | ({} if changed is None else {key: changed}))
    with pytest.raises(StorageError, match=words):
        trainer(tmp_path, max_updates=4).resume()


def test_nonsense_in_headers(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    header = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
              "__metadata__": {"nmtgrid": "x"}}  # fmt: skip

    def encode(text: str) -> bytes:
        return struct.pack("<Q", len(text)) + text.encode() + bytes(24)

    def features() -> None:
        FeatureFiles([path]).read("a")

    for read in (lambda: map_arrays(path), features):
        path.write_bytes(encode(json.dumps(header)))
        read()
        # A fact that nobody reads may be any text.
        assert accepted(path, header, read, encode) <= {
            "__metadata__.nmtgrid: script", "__metadata__: object", "__metadata__: null",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"log_probabilities": [-1, 1e6]}, r"`log_probabilities\[1\]` must be at most 0.001"),
        ({"alignment": [[10**400, 0, 0], [0, 0, 1]]}, r"`alignment.*\[0\]\[0\]"),
        ({"num_exits": 300_000_000}, "`num_exits` must be at most"),
        ({"alignment": [[1.5, 0, 0], [0, 0, 1]]}, "shares below 0 or above 1"),
        ({"alignment": [[0, -0.5, 0], [0, 0, 1]]}, "shares below 0 or above 1"),
    ],
)
def test_traces_that_cannot_be(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(TRACE | changes) + "\n")
    with pytest.raises(InputError, match=rf"t\.jsonl:1: .*{words}"):
        list(read_traces(path))


class Nested(Record):
    tables: dict[str, dict[str, list[Count]]]


class Share(Record):
    share: Annotated[float, Meta(ge=0, le=1)]


def test_the_path_of_a_key_is_told(tmp_path: Path) -> None:
    values = {"tables": {"good": {"x": [1]}, "b.c": {"y": [1], "z": [2, -3]}}}
    with pytest.raises(ValueError, match=r"`tables\.b\.c\.z\[1\]` must be at least 0, but is `-3`"):
        convert(values, Nested)
    with pytest.raises(ValueError, match="`share` must be a number, but is `NaN`"):
        convert({"share": float("nan")}, Share)
    with pytest.raises(ValueError, match="`tables` is missing"):
        convert({}, Nested)
    path = tmp_path / "x.json"
    path.write_text(json.dumps({**values, "format": 2}))
    with pytest.raises(StorageError, match=r"x\.json has format 2, but this program reads 1"):
        read_record(path, Nested, 1)
    path.write_text('{"a": 1,\n "b" 2}')
    with pytest.raises(StorageError, match=r"x\.json is damaged: .* at line 2, column 6"):
        read_json(path)


def test_what_python_writes_is_read_where_it_may_be() -> None:
    assert (
        str(parse_json('{"a": NaN, "b": [-Infinity]}', as_python=True)) == "{'a': nan, 'b': [-inf]}"
    )
    for text in ('{"a": NaN}', "[" * 65 + "]" * 65, '"\\ud800"', "7" * 5000, "NaN" + "[" * 5000):
        with pytest.raises(ValueError, match="it is not JSON"):
            parse_json(text)
