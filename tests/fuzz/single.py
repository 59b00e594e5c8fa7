"""The readers of single files, each with valid files to damage."""

import bz2
import dataclasses
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st

from nmtgrid.analysis.alignment.pharaoh import read_gold, read_links
from nmtgrid.analysis.latency import read_online_results
from nmtgrid.analysis.systems import read_system
from nmtgrid.analysis.training_curves import read_run
from nmtgrid.analysis.tuning import read_tuning
from nmtgrid.base.config import override
from nmtgrid.base.io.arrays import load_tensors, map_arrays, save_tensors
from nmtgrid.base.io.text import read_lines
from nmtgrid.base.spans import decimals, whole_numbers
from nmtgrid.convert.from_fairseq.checkpoint import open_checkpoint
from nmtgrid.convert.from_fairseq.dictionary import read_codes, read_dictionary
from nmtgrid.data.captioning.coco import read_captions
from nmtgrid.data.captioning.dataset import FeatureFiles
from nmtgrid.models.transformer.config import TransformerConfig
from nmtgrid.online.simuleval import read_log, score
from nmtgrid.search.traces import read_traces
from nmtgrid.text.bpe import Codes
from nmtgrid.text.iwslt import read_xml
from nmtgrid.text.vocabulary import Vocabulary
from tests.fuzz.harm import as_json, changed_values, damaged

TEXT = "Ein Satz .\nNoch eins\u2028 mehr &amp;\n\nEnde\n".encode()
XML = (b'<?xml version="1.0"?>\n<mteval><srcset>\n<doc docid="1">\n<seg id="1"> Eins </seg>\n'
       b'<seg id="2">Zwei</seg>\n</doc></srcset></mteval>\n')  # fmt: skip
TAGS = b"<url>http://x</url>\n<title>T</title>\nEin Satz\n<keywords>a, b</keywords>\nNoch einer\n"
CODES = b"#version: 0.2\na b\nab c</w>\nd e\n"
FASTBPE = b"a b 9\nab c</w> 8\n"
VOCABULARY = b"<pad> 0\n<s> 0\n</s> 0\n<unk> 0\nder 9\ndie 8\n@@x 7\n"
DICTIONARY = b"der 9\ndie 8\nmadeupword0000 0\nder 3 #fairseq:overwrite\n"
TRACE = {
    "line": 1, "source": ["a", "b"], "target": ["x"], "text": "x", "log_probabilities": [-0.5, -1],
    "log_probability": -1.5, "score": -0.7, "kind": "weights", "reads": [1, 3], "exits": [1, 2],
    "alignment": [[0.5, 0.25, 0.25], [0, 0, 1]], "exit_scores": [[0.5, None], [0.1, 0.9]],
}  # fmt: skip
INSTANCE = {
    "index": 0, "prediction": "a b", "delays": [1, 3], "elapsed": [0, 0], "prediction_length": 2,
    "reference": "a c", "source": "x y z", "source_length": 3,
}  # fmt: skip
LINKS = b"0-0 1-1\n2-1 0-3\n\n"
SIZES = [(3, 3), (3, 4), (1, 1)]
COCO = {"images": [{"id": 3, "file_name": "a.jpg"}], "annotations": [
    {"image_id": 3, "id": 5, "caption": "A cat ."}]}  # fmt: skip
KARPATHY = {"images": [{"cocoid": 3, "filename": "a.jpg", "split": "train", "sentences": [
    {"raw": "A cat.", "tokens": ["a", "cat"]}]}]}  # fmt: skip
METRICS = {name: 1.5 for name in ("ap", "al", "dal", "cw", "max_cw", "laal", "yaal",
                                  "length_ratio")}  # fmt: skip
LATENCY = {"complete": True, "settings": [
    {"system": "a", "policy": "wait-k", "k": 1.0, "bleu_tokenized": 9.0,
     "latencies": [{"unit": "token", "convention": "thesis", **METRICS}]}]}  # fmt: skip
POINT = {"bleu": 9.0, "average_exit": 1.5, "flops_per_token": 10.0, "seconds": 2.0}
ROW = {"tuned": POINT, "test": POINT, "budget": 1.5, "exit": 1, "depth": 1, "share": 0.5, **POINT}
TUNED = {"name": "a", "split": "valid", "test_split": "test", "sentences": 9, "test_sentences": 9,
         "full": ROW, "points": [ROW], "fixed": [ROW], "baselines": [ROW],
         "uniform": ROW}  # fmt: skip
EVENT = {"event": "validated", "update": 7, "epoch": 1, "minutes": 0.5, "nll": 1.5, "bleu": 9.0,
         "losses": {"last": 1.5}, "is_best": True, "perplexity": 4.4}  # fmt: skip


def _spans(path: Path) -> None:
    whole_numbers(path.read_bytes().decode("utf-8", "surrogateescape"), "--k", infinite=True)


def _decimals(path: Path) -> None:
    decimals(path.read_bytes().decode("utf-8", "surrogateescape"), "--thresholds")


def _settings(path: Path) -> None:
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    override(TransformerConfig(), text.split("\n"))


def _arrays(path: Path) -> None:
    map_arrays(path)
    load_tensors(path)


def _features(path: Path) -> None:
    files = FeatureFiles([path])
    for name in list(files.names)[:3]:
        files.read(name)


def _checkpoint(path: Path) -> None:
    with open_checkpoint(path) as checkpoint:
        for name in checkpoint.views:
            checkpoint.load(name)


@dataclasses.dataclass(frozen=True)
class Reader:
    """Valid files, damaged ones, and their reader."""

    good: list[bytes]
    drawn: st.SearchStrategy[bytes]
    read: Callable[[Path], Any]


def _of_bytes(good: list[bytes], read: Callable[[Path], Any]) -> Reader:
    return Reader(good, damaged(good), read)


def _of_json(read: Callable[[Path], Any], *values: Any, lines: bool = False) -> Reader:
    """Damage files of JSON, or of one value per line, in their bytes or in their values."""
    parts = [changed_values(value).map(as_json) for value in values]
    good = [as_json(value) for value in values]
    if lines:
        good = [b"\n".join(good) + b"\n"]
        return Reader(good, st.one_of(damaged(good), st.tuples(*parts).map(b"\n".join)), read)
    return Reader(good, st.one_of(damaged(good), *parts), read)


def single(folder: Path) -> dict[str, Reader]:
    """Return the readers by name; `folder` is for files that are created first."""
    tensors = {"a": torch.ones(2, 3), "b": torch.arange(4)}
    save_tensors(folder / "a.safetensors", tensors)
    save_tensors(folder / "f.safetensors", {"picture": torch.ones(3, 2), "other": torch.ones(1, 2)})
    sealed = (folder / "a.safetensors").read_bytes()
    arrays = [_unsealed(sealed), sealed]  # no checksum keeps changes out of the first
    features = [_unsealed((folder / "f.safetensors").read_bytes())]
    checkpoints = []
    for zipped in (True, False):
        state = {"args": {"arch": "lstm"}, "model": tensors}
        torch.save(state, folder / "c.pt", _use_new_zipfile_serialization=zipped)
        checkpoints.append((folder / "c.pt").read_bytes())
    packed = [gzip.compress(TEXT), bz2.compress(TEXT), lzma.compress(TEXT)]
    words = ["abc", "de", "x" * 2000, "\u00e4"]
    spans = [b"1..9:2", b"1,3,5", b"2..8", b"4,inf"]
    pairs = [b"encoder_depth=3\nsize=64", b"dropout=0.5\nnorm=pre\ntransparent=true"]
    return {
        "text": _of_bytes([TEXT], lambda p: list(read_lines(p))),
        "packed text": _of_bytes(packed, lambda p: list(read_lines(p))),
        "xml": _of_bytes([XML, TAGS], lambda p: list(read_xml(read_lines(p), str(p)))),
        "codes": _of_bytes([CODES], lambda p: Codes.load(p).segment(words)),
        "vocabulary": _of_bytes([VOCABULARY], Vocabulary.load),
        "dictionary": _of_bytes([VOCABULARY, b"der\ndie\n"], Vocabulary.read_foreign),
        "fairseq dictionary": _of_bytes([DICTIONARY], read_dictionary),
        "fairseq codes": _of_bytes([FASTBPE], lambda p: read_codes(p).segment(words)),
        "fairseq checkpoint": _of_bytes(checkpoints, _checkpoint),
        "traces": _of_json(lambda p: list(read_traces(p)), TRACE, TRACE, lines=True),
        "translations": _of_json(lambda path: read_system("a", path), TRACE, lines=True),
        "simuleval log": _of_json(lambda p: score(read_log(p)), INSTANCE, lines=True),
        "links": _of_bytes([LINKS], lambda p: read_links(p, SIZES)),
        "gold links": _of_bytes([LINKS, b"0-0\n2?1 1p1\n\n"], lambda p: read_gold(p, SIZES)),
        "spans": _of_bytes(spans, _spans),
        "spans of decimals": _of_bytes([b"0.1..0.9:0.1", b"0.5,1"], _decimals),
        "settings": _of_bytes(pairs, _settings),
        "safetensors": _of_bytes(arrays, _arrays),
        "features": _of_bytes(features, _features),
        "captions": _of_json(read_captions, COCO, KARPATHY),
        "latency results": _of_json(read_online_results, LATENCY),
        "exit results": _of_json(read_tuning, TUNED),
        "metrics": _of_json(lambda p: read_run(p, "a"), EVENT, EVENT, lines=True),
    }


def _unsealed(content: bytes) -> bytes:
    return content.replace(b"nmtgrid.sha256", b"nmtgrid.SHA256")
