"""Malicious fairseq checkpoints, each imported in a separate process.

    python -m tests.fuzz.checkpoints --cases 500 --json counts.json

The first cases are `attacks()`, each of which must be refused; the others are valid checkpoints
with changed bytes, and attacks inserted at random. Prints the exit codes, and the maximum time and
memory of a case in addition to what the program takes anyway; the exit code is 1 if a case ended
with anything but success or a proper error message.
"""

import argparse
import contextlib
import gc
import io
import json
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from nmtgrid.cli.app import main as nmtgrid
from tests.unit.convert.fairseq_files import TYPES, content, write_checkpoint, write_dictionaries
from tests.unit.convert.fairseq_reference import ConvS2S, Transformer
from tests.unit.convert.fairseq_reference_recurrent import LSTM, Pervasive

SECONDS, MEBIBYTES = 10, 1024
"""Limits of a case, in addition to what the program takes anyway."""
_STOP_SECONDS, _STOP_BYTES = 40, 6 << 30
_MERSENNE = 2**61 - 1
_PLACEHOLDER = "placeholder"
_NAMES = (b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch\nFloatStorage\n")


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(value: int) -> bytes:
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def tensor(shape: bytes, strides: bytes, *, offset: bytes = b"K\x00", count: int = 6) -> bytes:
    """Return the instructions for a view of the storage `0`; shape and strides are instructions."""
    storage = b"(" + text("storage") + _NAMES[1] + text("0") + text("cpu") + number(count) + b"tQ"
    return _NAMES[0] + b"(" + storage + offset + shape + strides + b"\x89}tR"


def checkpoint(arch: bytes = text("lstm"), model: bytes = b"}", more: bytes = b"") -> bytes:
    """Return the pickle of a checkpoint; each part is given by its pickle instructions."""
    options = b"cargparse\nNamespace\n)R}(" + text("arch") + arch + b"ub"
    return b"\x80\x02}(" + text("args") + options + text("model") + model + more + b"u."


def archive(
    pickled: bytes,
    storage: bytes = bytes(24),
    more: dict[str, bytes] | None = None,
    method: int = 0,
) -> bytes:
    """Return a torch file with a single storage; `more` are other parts."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as parts:
        for name, raw in {"data.pkl": pickled, "data/0": storage, **(more or {})}.items():
            parts.writestr(f"c/{name}", raw)
    return file.getvalue()


def member_twice() -> bytes:
    raw = archive(checkpoint(), more={"other": b"other", "other2": b"other"})
    return raw.replace(b"c/other2", b"c/other\0")


def saved(value: Any) -> bytes:
    """Return the file that torch saves for a value."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def model_file(make: Any, changes: dict[str, Any] | None = None, **tensors: torch.Tensor) -> bytes:
    """Return a valid checkpoint with changed options and tensors."""
    reference = make(TYPES)
    vars(reference.options).update(changes or {})
    return saved(content(reference.options, reference.state | tensors))


def spliced(value: bytes, option: str = "dropout", make: Any = LSTM) -> bytes:
    """Return a valid checkpoint in which an option's value is given by instructions `value`."""
    with zipfile.ZipFile(io.BytesIO(model_file(make, {option: _PLACEHOLDER}))) as old:
        parts = {name.partition("/")[2]: old.read(name) for name in old.namelist()}
    assert parts["data.pkl"].count(text(_PLACEHOLDER)) == 1
    parts["data.pkl"] = parts["data.pkl"].replace(text(_PLACEHOLDER), value)
    return archive(parts.pop("data.pkl"), parts.pop("data/0"), parts)


def sparse(path: Path, head: bytes, size: int = 1 << 32) -> None:
    path.write_bytes(head)
    os.truncate(path, size)


def sparse_archive(path: Path, name: str, pickled: bytes) -> None:
    """Write an archive whose part `name` is a hole of 4 GB."""
    sizes = struct.pack("<III", 0, 1 << 31, 1 << 31)
    entries, position = b"", 0
    with open(path, "wb") as file:
        for part, raw in ((name, None), ("c/data.pkl", pickled)):
            if part == name and raw is not None:
                continue
            fields = sizes if raw is None else struct.pack("<III", 0, len(raw), len(raw))
            local = struct.pack("<HHHHH", 20, 0, 0, 0, 0) + fields
            lengths = struct.pack("<HH", len(part), 0)
            file.write(b"PK\3\4" + local + lengths + part.encode())
            entries += b"PK\1\2\x14\0" + local + lengths + bytes(10)
            entries += struct.pack("<I", position) + part.encode()
            file.write(raw or b"")
            file.seek((1 << 31) if raw is None else 0, os.SEEK_CUR)
            position = file.tell()
        count = entries.count(b"PK\1\2")
        end = struct.pack("<HHHHIIH", 0, 0, count, count, len(entries), position, 0)
        file.write(entries + b"PK\5\6" + end)


def _tied_layers(count: int) -> bytes:
    """Return a Transformer of `count` layers that are all the same layer."""
    reference = Transformer(TYPES, decoder_ffn_embed_dim=1 << 16, decoder_layers=1)
    state = dict(reference.state)
    for name, value in reference.state.items():
        if name.startswith("decoder.layers.0."):
            state |= {name.replace(".0.", f".{n}.", 1): value for n in range(count)}
    reference.options.decoder_layers = count
    return saved(content(reference.options, state))


def _strided(count: int) -> bytes:
    """Return a model of `count` tensors of two numbers, the first and last of a storage."""
    views = b"".join(
        text(f"a{n}") + tensor(b"K\x02\x85", number(2**28 + n) + b"\x85", count=2**29)
        for n in range(count)
    )
    return checkpoint(model=b"}(" + views + b"u")


def attacks() -> dict[str, tuple[str, bytes | Callable[[Path], object]]]:
    """Return files by name: words of the error that each must raise, and how to create it."""
    deep, doubled = b")" + b"\x85" * 900_000, b"K\x01" + b"2\x86" * 200
    listed = b"](" + b"K\x01" * 6000 + b"e"
    pairs = b"](" + b"K\x01K\x02\x86" * 5000 + b"e"
    ordered, size = b"ccollections\nOrderedDict\n", b"ctorch\nSize\n"
    keys = b"}(" + b"".join(number(n * _MERSENNE) + b"N" for n in range(100_000)) + b"u"
    whole = model_file(LSTM)
    axis, lost = b"K\x01\x85", "does not lie within"
    magic = b"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03."
    stream = magic + b"\x80\x02}(" + text("little_endian") + b"\x88u."
    with_tensor = {
        "zero stride": (lost, b"K\x03\x85", b"K\x00\x85"),
        "more elements than stored": (lost, b"K\x07\x85", axis),
        "terabytes": (lost, number(2**40) + b"\x85", axis),
        "negative size": ("no count", number(-3) + b"\x85", axis),
        "size that is no number": ("no count", b"G\x7f\xf8" + bytes(6) + b"\x85", axis),
        "size of 400 digits": ("whole number of", b"\x8a\xa8" + b"\x11" * 168 + b"\x85", axis),
        "overlapping rows": (lost, b"K\x05K\x05\x86", b"K\x00K\x01\x86"),
        "two to the 120": (lost, number(2**120) + b"K\x00\x86", b"K\x01K\x01\x86"),
        "far stride": (lost, b"K\x02\x85", number(2**62) + b"\x85"),
        "nine axes": ("inconsistent", b"(" + b"K\x01" * 9 + b"t", b"(" + b"K\x01" * 9 + b"t"),
        "shape of a million axes": ("inconsistent", b"(" + b"K\x01" * 900_000 + b"t", axis),
    }
    option: dict[str, tuple[dict[str, Any], str]] = {
        "a billion layers": ({"encoder_layers": 10**9}, "--encoder-layers"),
        "layers of 38 digits": ({"decoder_layers": 10**37}, "--decoder-layers"),
        "a size of 2^40": ({"decoder_embed_dim": 2**40}, "--decoder-embed-dim"),
        "a size of 2^17": ({"encoder_hidden_size": 2**17}, "lacks"),
        "a text of a million": ({"encoder_layers": "x" * 10**6}, "--encoder-layers"),
        "a table as a number": ({"encoder_layers": {"a": [1] * 5000}}, "--encoder-layers"),
        "a long arch": ({"arch": "lstm_" + "x" * 10**6}, "cannot be imported"),
        "escapes in arch": ({"arch": "lstm_\x1b[2J\n"}, "cannot be imported"),
        "a long language": ({"source_lang": "x" * 5000}, "language cannot be called"),
    }
    damaged, steps = "damaged at byte", "more than they hold"
    cases: dict[str, tuple[str, bytes | Callable[[Path], object]]] = {
        "list named many times": (steps, archive(checkpoint(
            more=text("x") + ordered + b"](" + listed + b"2" * 12_000 + b"e\x85R"))),
        "table of pairs made many times": (steps, archive(checkpoint(
            more=text("x") + b"(" + ordered + b"q\0" + pairs + b"q\1"
            + b"h\0h\1\x85R" * 5000 + b"t"))),
        "size made many times": (steps, archive(checkpoint(
            more=text("x") + b"(" + size + b"q\0" + listed + b"q\1" + b"h\0h\1\x85R" * 5000
            + b"t"))),
        "options copied many times": (steps, archive(checkpoint(
            more=text("x") + b"(cargparse\nNamespace\nq\0}("
            + b"".join(text(str(n)) + b"N" for n in range(9999)) + b"uq\1"
            + b"h\0)Rh\1b" * 9999 + b"t"))),
        "doubled tuple as arch": ("cannot be imported", archive(checkpoint(doubled))),
        "deep tuple as arch": ("cannot be imported", archive(checkpoint(deep))),
        "list in itself as arch": ("cannot be imported", archive(checkpoint(b"]2a"))),
        "doubled tuple as a rate": ("--dropout", spliced(doubled)),
        "deep tuple as a count": ("--encoder-layers", spliced(deep, "encoder_layers")),
        "doubled tuples that should agree": (
            "--encoder-embed-dim", spliced(doubled, "encoder_embed_dim")),
        "doubled list of layers": (
            "--encoder-layers", spliced(b"]" + b"2a" * 9, "encoder_layers", ConvS2S)),
        "keys of one hash": ("no `model`", archive(b"\x80\x02" + keys + b".")),
        "numbers as names": ("is missing", archive(checkpoint(model=b"}(" + b"".join(
            b"G" + struct.pack(">d", 2.0 ** (61 * (n % 16)) * (1 + n)) + tensor(axis, axis)
            for n in range(300)) + b"u"))),
        "memo far away": ("counts 4,294,967,295", archive(checkpoint(b"Nr\xff\xff\xff\xff"))),
        "long names joined": ("asks for", archive(checkpoint(
            more=text("x") + b"(" + text("fairseq." + "x" * 500_000) + b"q\0"
            + b"h\0h\0\x93" * 50_000 + b"t"))),
        "three million lists": (steps, archive(checkpoint(
            more=text("x") + b"(" + b"]" * 3_000_000 + b"t"))),
        "three million marks": (steps, archive(checkpoint(more=b"(" * 3_000_000))),
        "text of 40 MiB": ("of more than 32 MiB", archive(checkpoint(
            text("lstm"), more=text("x") + text("x" * (40 << 20))))),
        "length of 2^63": ("damaged at byte", archive(checkpoint(b"\x8d" + b"\xff" * 8))),
        "whole number of four bytes' length": ("0x8b", archive(checkpoint(
            b"\x8b\x00\x10\x00\x00" + b"\x11" * 4096))),
        "whole number of 5,000 digits": ("0x49", archive(checkpoint(b"I" + b"9" * 5000 + b"\n"))),
        "empty stack": (damaged, archive(b"\x80\x02" + b"0" * 99 + b".")),
        "marks that lack": (damaged, archive(b"\x80\x02tttt.")),
        "one storage with two sizes": ("named in two ways", archive(checkpoint(
            model=b"}(" + text("a") + tensor(axis, axis) + text("b") + tensor(axis, axis, count=5)
            + b"u"))),
        "storage that is missing": ("cut or missing", archive(checkpoint(
            model=b"}" + text("a") + tensor(axis, axis, count=2**40) + b"s"))),
        "rows without columns": ("give", model_file(
            Transformer, {"encoder_learned_pos": True, "decoder_learned_pos": True},
            **{f"{side}.embed_positions.weight": torch.empty(2**31, 0)
               for side in ("encoder", "decoder")})),
        "scalar positions": ("do not fit together", model_file(
            Transformer, {"encoder_learned_pos": True, "decoder_learned_pos": True},
            **{f"{side}.embed_positions.weight": torch.ones(())
               for side in ("encoder", "decoder")})),
        "one layer 60 times": ("far more than the weights", _tied_layers(60)),
        "a deep grid": ("--num-layers", model_file(
            Pervasive, {"num_layers": 1000, "decoder_embed_dim": 2**17,
                        "encoder_embed_dim": 2**17, "bottleneck": None, "conv_groups": None})),
        "compressed bomb": ("compressed", archive(
            checkpoint(), bytes(50_000_000), method=zipfile.ZIP_DEFLATED)),
        "part that is there twice": ("there twice", member_twice()),
        "part larger than the file": ("another size", archive(checkpoint()).replace(
            struct.pack("<II", 24, 24), struct.pack("<II", 2**30, 2**30))),
        "200,000 parts": ("with a directory of", lambda path: path.write_bytes(archive(
            checkpoint(), more={f"data/x{n}": b"" for n in range(200_000)}))),
        "cut archive": ("damaged or cut", whole[: len(whole) // 2]),
        "wrong magic": ("neither an archive", b"\x7fELF" + bytes(5000)),
        "another pickle": ("none of torch's", b"\x80\x02K\x05."),
        "cut stream": ("too early", stream + checkpoint()[:-30]),
        "stream that names a storage often": ("cut, or not those", stream + checkpoint(
            model=b"}" + text("0") + tensor(axis, axis) + b"s")
            + b"\x80\x02](" + text("0") * 1000 + b"e." + struct.pack("<q", 6) + bytes(24)),
        "sparse stream": ("instruction 0x00", lambda path: sparse(path, stream)),
        "sparse text": ("32 MiB", lambda path: sparse(
            path, stream + b"\x80\x02\x8d" + struct.pack("<Q", 2**32 - 5000))),
        "sparse pickle": ("asks for", lambda path: sparse(path, stream + b"\x80\x02cos\nsystem\n")),
        "sparse part": ("32 MiB", lambda path: sparse_archive(path, "c/data/1", b"")),
        "sparse storage": ("tensors would fill", lambda path: sparse_archive(
            path, "c/data/0", _strided(8))),
        "sparse file": ("neither an archive", lambda path: sparse(path, b"")),
        "gigantic sparse file": (
            "instruction 0x00", lambda path: sparse(path, b"\x80\x02", 1 << 42)),
    }  # fmt: skip
    cases |= {
        f"tensor: {name}": (words, archive(checkpoint(
            model=b"}" + text("a") + tensor(shape, strides) + b"s")))
        for name, (words, shape, strides) in with_tensor.items()
    }  # fmt: skip
    more = {name: (words, model_file(LSTM, changes)) for name, (changes, words) in option.items()}
    return cases | more


def mutated(draw: random.Random, good: list[bytes], bad: list[bytes]) -> bytes:
    """Return a valid or malicious file with some bytes changed, repeated, cut or moved."""
    raw = bytearray(draw.choice(good if draw.random() < 0.7 else bad))
    pieces = [b"(", b"2\x86" * 40, b"]" * 999, b"\x85" * 999, b"h\0" * 99, b"\xff" * 8, b"R", b"u",
              number(2**100), number(_MERSENNE), text("x" * 999), b"\x93"]  # fmt: skip
    for _ in range(draw.randint(1, 4)):
        # Most bytes are weights; the pickle is at the beginning.
        begin = draw.randrange(min(len(raw), draw.choice((300, 4000, 10**9))) or 1)
        end = begin + draw.choice((1, 2, 9, 99, 4000))
        kind = draw.randrange(6)
        if kind == 0:
            raw[begin : begin + 1] = bytes([draw.randrange(256)])
        elif kind == 1:
            raw[begin:begin] = draw.choice(pieces)
        elif kind == 2:
            raw[begin:begin] = raw[begin:end] * draw.choice((1, 9, 99))
        elif kind == 3:
            piece = draw.choice(pieces)
            raw[begin : begin + len(piece)] = piece
        elif kind == 4:
            del raw[begin:end]
        elif draw.random() < 0.3:
            del raw[begin:]
    return bytes(raw)


def imported(folder: Path, path: Path) -> dict[str, Any]:
    """Import `path` in a separate process; return exit code, seconds, MiB and messages."""
    said = folder / "said"
    begin, child = time.monotonic(), os.fork()
    if child == 0:
        # Whatever happens, the forked process must not continue.
        with contextlib.suppress(BaseException), open(said, "w", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1), os.dup2(file.fileno(), 2)
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            limit = used + _STOP_BYTES + path.stat().st_size
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            signal.alarm(_STOP_SECONDS)
            dictionaries = [f"--dict-{side}={folder}/dict.{name}.txt"
                            for side, name in (("source", "de"), ("target", "en"))]  # fmt: skip
            out = f"--out={folder}/model"
            os._exit(nmtgrid(["import-fairseq", str(path), *dictionaries, out]))
        os._exit(99)
    _, status, usage = os.wait4(child, 0)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "seconds": round(time.monotonic() - begin, 2),
        "cpu": round(usage.ru_utime + usage.ru_stime, 2),
        "mebibytes": usage.ru_maxrss // 1024,
        "said": said.read_text(encoding="utf-8", errors="replace")[:2000],
    }


def run(count: int, seed: int = 1) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the name, the words of the error ("" if success is fine too), and the outcome."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_dictionaries(folder)
        path = folder / "c.pt"
        good = [model_file(kind) for kind in (LSTM, ConvS2S, Transformer, Pervasive)]
        write_checkpoint(path, content(LSTM(TYPES).options, LSTM(TYPES).state), zipped=False)
        good.append(path.read_bytes())
        # Modules that are loaded lazily are loaded here, so that not every case loads them again.
        options = [f"--dict-source={folder}/dict.de.txt", f"--dict-target={folder}/dict.en.txt"]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            for index, harmless in enumerate(good):
                path.write_bytes(harmless)
                out = f"--out={folder}/first{index}"
                assert nmtgrid(["import-fairseq", str(path), *options, out]) == 0
        usual = imported(folder, _written(path, b"x"))["mebibytes"]
        cases = list(attacks().items())
        bad = [raw for _, (_, raw) in cases if isinstance(raw, bytes) and len(raw) < 10**6]
        # Forks must not collect garbage among objects created before, whose pages they would copy.
        gc.freeze()
        for index in range(count):
            label, words = f"mutation {index}", ""
            raw: bytes | Callable[[Path], object] = b""
            if index < len(cases):
                label, (words, raw) = cases[index]
            else:
                raw = mutated(draw, good, bad)
            _written(path, raw)
            result = imported(folder, path)
            result["mebibytes"] -= usual
            yield label, words, result
            path.unlink()
            if (folder / "model").exists():
                for file in (folder / "model").iterdir():
                    file.unlink()
                (folder / "model").rmdir()


def _written(path: Path, raw: bytes | Callable[[Path], object]) -> Path:
    if isinstance(raw, bytes):
        path.write_bytes(raw)
    else:
        raw(path)
    return path


def faults(words: str, result: dict[str, Any]) -> list[str]:
    """Return the faults of a case's result."""
    said = " ".join(result["said"].split())
    checks = {
        f"exit code {result['code']}": result["code"] != 2 and (words or result["code"] != 0),
        f"{result['cpu']} seconds": result["cpu"] > SECONDS,
        f"{result['mebibytes']} MiB": result["mebibytes"] > MEBIBYTES,
        "a traceback": "Traceback" in said,
        f"no `{words}` in: {said[:300]}": words not in said,
    }
    return [fault for fault, is_so in checks.items() if is_so]


def main() -> int:
    """Import all cases and print their outcomes; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results, wrong = {}, 0
    for name, words, result in run(arguments.cases, arguments.seed):
        result["faults"] = faults(words, result)
        results[name] = result
        for fault in result["faults"]:
            wrong += 1
            sys.stdout.write(f"{name}: {fault}\n")
            sys.stdout.flush()
    codes = [result["code"] for result in results.values()]
    summary: dict[str, Any] = {
        "cases": len(results),
        "faults": wrong,
        "codes": {str(code): codes.count(code) for code in sorted(set(codes))},
    }
    for unit in ("seconds", "cpu", "mebibytes"):
        name = max(results, key=lambda name: results[name][unit])
        summary |= {f"max_{unit}": results[name][unit], f"max_{unit}_case": name}
    sys.stdout.write(json.dumps(summary, indent=2) + "\n")
    if arguments.json:
        report = summary | {"results": results}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
