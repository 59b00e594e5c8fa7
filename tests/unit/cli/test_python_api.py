"""The Python interface: docs/python.md runs as it stands, wrong arguments, threads, deployment."""

import dataclasses
import http.client
import json
import math
import re
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import nmtgrid
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.own_code import import_files
from nmtgrid.cli.app import main
from nmtgrid.cli.objectives import objectives
from nmtgrid.metrics.latency import latency
from nmtgrid.online.policies import WaitK
from nmtgrid.online.policy_presets import POLICY_FILE, Conditions, PolicyPreset
from nmtgrid.search.translate import TranslationOptions, Translator
from tests.unit.helpers.tiny_online import toy_home
from tests.unit.helpers.train_command import SMALL_TRANSFORMER, TINY_MODEL, train

NOTHING: Any = None
NUMBER: Any = 3
LINES = ["Er roltet volend.", "", "Gol ime, dole.", "Er gol volend ime roltet dole ime ime."]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_home(
        tmp_path_factory.mktemp("api"),
        {
            "model": ("transformer", {}), "grid": ("pervasive", {}),
            "exits": ("transformer", {"exits": "tied", "decoder_depth": 3}),
        },
    )  # fmt: skip


@pytest.fixture(scope="module")
def model(home: Path) -> Translator:
    return nmtgrid.load(home / "model", device="cpu")


def blocks(project: Path) -> list[str]:
    page = (project / "docs" / "python.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def test_the_page_runs(project: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    *examples, service = blocks(project)
    assert len(examples) == 6 and "make_server" in service
    code = "\n".join(examples).replace("runs/toy/model", str(home / "model"))
    code = code.replace("EXITS-MODEL", str(home / "exits"))
    code = code.replace("WAIT-K-MODEL", str(home / "model"))
    names: dict[str, Any] = {}
    exec(compile(code, "docs/python.md", "exec"), names)
    shown = capsys.readouterr().out.splitlines()
    model = names["model"]
    lines = ["Er roltet volend.", "", "Ihr reront volend unin tiwakar."]
    assert shown[0] == str(model.translate(lines))
    assert shown[-3] == model.pipeline.target.moses.detokenize(" ".join(names["words"]))
    # Two tokens are read before the first is written, and one more for each further token.
    delays, size = names["line"].token_delays(), len(names["line"].source)
    assert delays == [min(2 + step, size) for step in range(len(delays))] and len(delays) > 2
    late = sum(delay == size for delay in delays) / len(delays)
    assert shown[-1] == f"{latency([delays], [size]).al} {late}" and math.isfinite(late)


def test_early_exits(home: Path) -> None:
    model = nmtgrid.load(home / "exits", device="cpu", beam=1)
    whole = [*model.translations(LINES)]
    verified = [*nmtgrid.early_exit(model, "verified exit=1").translations(LINES)]
    assert [line.text for line in verified] == [line.text for line in whole] and model.halt is None
    assert verified[0].hypotheses[0].passes and whole[0].hypotheses[0].exits is None
    early = nmtgrid.early_exit(model, 2)
    (hypothesis,) = next(iter(early.translations(LINES))).hypotheses
    assert set(hypothesis.exits or ()) == {2} and hypothesis.blocks_run[0] > 0
    line = nmtgrid.simultaneous(early, "wait-k k=1").begin()
    assert line.read("Er") + line.end() and early.with_search(beam=2).halt is early.halt
    for faulty in (None, True, 2.0):
        with pytest.raises(TypeError, match="exit must be"):
            nmtgrid.early_exit(model, faulty)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"nmtgrid\.load"):
        nmtgrid.early_exit(NOTHING, 2)
    for exit in ("4", "auto", "nosuch"):
        with pytest.raises(ConfigError):
            nmtgrid.early_exit(model, exit)
    with pytest.raises(ConfigError, match="beam"):
        nmtgrid.early_exit(model.with_search(beam=4), "verified")


def test_scores_of_long_and_strange_sources_come_with_a_warning(home: Path) -> None:
    heard: list[str] = []
    model = nmtgrid.load(home / "model", device="cpu", warn=heard.append)
    model.limits = dataclasses.replace(model.limits, trained=12)
    model.score([(LINES[0], "Vol rol.")])
    assert heard == []
    model.score([(LINES[0], "a"), (" ".join(LINES * 3), "Vol rol.")])
    assert len(heard) == 1 and heard[0].startswith("untrained-length: ")
    assert "line (units) 2 (" in heard[0] and heard[0].endswith("one by one.")
    model.score([("これは日本語です", "なに")])
    assert len(heard) == 2 and heard[1].startswith("unknown-text: ")


def test_nbest_scores_alignments_and_prefixes(model: Translator) -> None:
    wide = model.with_search(beam=4, nbest=3)
    assert (model.plan.nbest, wide.plan.nbest) == (1, 3) and wide.models is model.models
    for line, translation in zip(LINES, wide.translations(LINES, align=True), strict=True):
        count = 3 if line else 0
        assert len(translation.texts) == len(translation.hypotheses) == count
        scores = [hypothesis.score for hypothesis in translation.hypotheses]
        assert scores == sorted(scores, reverse=True)
        for hypothesis in translation.hypotheses:
            assert sum(hypothesis.log_probabilities) == pytest.approx(hypothesis.log_probability)
            assert hypothesis.alignment is not None
            rows = len(hypothesis.tokens) + 1, len(translation.source) + 1
            assert hypothesis.alignment.shape == rows
            assert hypothesis.alignment.sum(1).tolist() == pytest.approx([1] * rows[0], abs=1e-4)
    plain, forced = model.translate(LINES), model.translate(LINES, prefixes=["ba", "", "", "ba"])
    assert [text.startswith("ba") for text in forced] == [True, False, False, True]
    assert forced[1:3] == plain[1:3]
    assert (model.translate([]), model.score([])) == ([], [])
    assert model.translate(iter(LINES)) == plain


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda m: m.translate(None), TypeError, "lines must be a list .* but is None"),
        (lambda m: m.translate(5), TypeError, "lines must be a list .* but is 5"),
        (lambda m: m.translate("a b"), TypeError, "lines must be several strings, not one"),
        (lambda m: m.translate(["a", None]), TypeError, "lines .* number 2 is None"),
        (lambda m: m.translate([b"a"]), TypeError, "lines .* number 1 is b'a'"),
        (lambda m: m.translate(["a"], prefixes="a"), TypeError, "prefixes must be several"),
        (lambda m: m.translate(["a"], prefixes=[None]), TypeError, "prefixes .* number 1 is None"),
        (lambda m: m.translate(["a"], prefixes=[]), nmtgrid.NmtgridError, "line 1 has none"),
        (lambda m: m.score(None), TypeError, "pairs must be a list .* but is None"),
        (lambda m: m.score([("a", None)]), TypeError, r"number 1 is \('a', None\)"),
        (lambda m: m.caption(None), TypeError, "pictures must be a list"),
        (lambda m: m.with_search(beem=2), ConfigError, "`beem`: there is no such.*`beam`"),
        (lambda m: m.with_search(beam=None), ConfigError, "^`beam` must be a whole number"),
        (lambda m: m.with_search(nbest=9), ConfigError, "nbest"),
        (lambda m: nmtgrid.simultaneous(NOTHING), TypeError, "what `nmtgrid.load` returns"),
        (lambda m: nmtgrid.simultaneous(m), ConfigError, "not trained with one k"),
        (lambda m: nmtgrid.simultaneous(m, NUMBER), TypeError, "a policy, but is 3"),
        (
            lambda m: nmtgrid.simultaneous(m, WaitK(1), finish_reading=True),
            ConfigError,
            r"no effect on a policy.*`WaitK\(\.\.\., finish_reading=True\)`",
        ),
        (lambda m: m.with_search(beam="5"), ConfigError, '`"5"`, a text: leave out the quot'),
        (lambda m: nmtgrid.simultaneous(m, ""), ConfigError, "needs a name"),
        (lambda m: nmtgrid.simultaneous(m, "wait"), ConfigError, "no reading policy `wait`"),
        (lambda m: nmtgrid.simultaneous(m, "wait-k"), ConfigError, "as in `wait-k k=3`"),
        (lambda m: nmtgrid.simultaneous(m, "wait-k k=1..3"), ConfigError, "gives 3 settings"),
        (lambda m: nmtgrid.simultaneous(m, "threshold threshold=0.5"), ConfigError, "reader"),
        (lambda m: nmtgrid.load(NOTHING), TypeError, "by its path, not by None"),
        (lambda m: nmtgrid.load("no/such"), nmtgrid.NmtgridError, "no model directory no/such"),
    ],
)
def test_wrong_arguments(
    model: Translator, call: Callable[[Any], object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=f"(?s){message}"):
        call(model)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"device": None}, TypeError, "device must be a name"),
        ({"device": "tpu"}, nmtgrid.NmtgridError, "tpu"),
        ({"precision": "fp16"}, ConfigError, "one of 'fp32', 'bf16', 'int8', 'auto', but is"),
        ({"weights": None}, TypeError, "weights must be a name such as 'best', but is None"),
        ({"imports": None}, TypeError, "imports must be a list of files, but is None"),
        ({"weights": "worst"}, nmtgrid.NmtgridError, "no weights named `worst`"),
        ({"options": {"window": 3}}, TypeError, "options must be TranslationOptions"),
        ({"warn": True}, TypeError, "warn must be a function"),
        ({"imports": "my.py"}, ConfigError, r"must be a list of files: `imports=\['my.py'\]`"),
        ({"imports": ["my.txt"]}, ConfigError, "`my.txt` cannot be imported"),
        ({"imports": [None]}, ConfigError, "`None` cannot be imported"),
        ({"imports": ["nowhere/my.py"]}, ConfigError, "no file .*my.py to import"),
        ({"beam": 5, "sample": True}, ConfigError, r"^`search\.sample` draws without a beam: set"),
        ({"beam": "wide"}, ConfigError, "^`beam` must be a whole number, but is `wide`"),
        ({"options": TranslationOptions(long_lines="foo")}, ConfigError, "split or cut, but is"),  # type: ignore[arg-type]
        ({"options": TranslationOptions("5")}, ConfigError, "whole number from 1 on, but is '5'"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_of_load(
    home: Path, arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        nmtgrid.load(home / "model", **arguments)


def test_warnings_are_pythons_unless_a_function_takes_them(home: Path) -> None:
    options, texts = TranslationOptions(max_source=2), list[str]()
    with pytest.warns(UserWarning, match="long-line"):
        nmtgrid.load(home / "model", device="cpu", options=options).translate(LINES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        system = nmtgrid.load(home / "model", device="cpu", options=options, warn=texts.append)
        system.translate(LINES)
    assert len(texts) == 1 and texts[0].startswith("long-line")


@pytest.mark.parametrize("name", ["model", "grid"])
def test_threads_share_a_model(home: Path, name: str) -> None:
    """Each line is translated as if it were alone, also by models that have not been used yet."""
    model = nmtgrid.load(home / name, device="cpu")
    alone = [nmtgrid.load(home / name, device="cpu").translate([line])[0] for line in LINES]
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda line: model.translate([line])[0], LINES * 8))
    assert texts == alone * 8


def test_numbers_of_numpy_and_torch_are_settings(model: Translator) -> None:
    """As obtained in loops over `numpy.arange` and `numpy.linspace`."""
    plan = model.with_search(
        beam=numpy.int64(3), length_penalty=numpy.float64(0.5), max_length_a=torch.tensor(7.0),
        renormalize=numpy.bool_(True),
    ).plan  # fmt: skip
    assert (plan.beam, plan.length_penalty, plan.max_length_a) == (3, 0.5, 7.0)
    assert plan.renormalize is True and type(plan.beam) is int
    assert not TranslationOptions(window=numpy.int64(5)).faults()  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"whole number, but is `3\.0`"):
        model.with_search(beam=numpy.float32(3))


def test_training_in_another_thread(toy_dataset: Path, tmp_path: Path) -> None:
    """As in a server or a notebook; signals are left to the main thread."""
    words = [toy_dataset, "--max-updates", 1, *SMALL_TRANSFORMER, "--out", tmp_path / "model"]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(train, *words).result() == 0
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_simultaneous_policies(model: Translator) -> None:
    """A text and an object give the same policy, and so does the command line."""

    def words(policy: Any) -> list[str]:
        line = nmtgrid.simultaneous(model, policy).begin()
        return [*(word for source in LINES[0].split() for word in line.read(source)), *line.end()]

    assert words("wait-k k=1") == words(WaitK(1)) and words("wait-k k=inf")
    with pytest.raises(ConfigError, match="`k` must be"):
        nmtgrid.simultaneous(model, "wait-k k=0")


def test_a_guarantee_does_not_hold_with_an_early_exit(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "exits"
    shutil.copytree(home / "exits", folder)
    warnings = list[str]()
    model = nmtgrid.load(folder, device="cpu", warn=warnings.append)
    early = nmtgrid.early_exit(model, 2)
    for name, conditions in (("whole", Conditions()), ("early", Conditions(exit="2"))):
        kept = PolicyPreset(
            name, "wait-k k=2", "valid", "bleu", 2.0, 0.95, 0.8, conditions, "best",
            model.loaded.checksum,
        )  # fmt: skip
        POLICY_FILE.save(folder, [kept])
    nmtgrid.simultaneous(model, "whole")
    nmtgrid.simultaneous(early.with_search(length_penalty=0.5), "early")
    assert warnings == []
    nmtgrid.simultaneous(early, "whole")
    nmtgrid.simultaneous(model, "early")
    assert len(warnings) == 2
    assert "`--exit` is 2, not off" in warnings[0] and "`--exit` is off, not 2" in warnings[1]


def test_names_are_completed(project: Path) -> None:
    """Also before any of them has been used, when torch is not yet imported."""
    code = (
        "import sys, nmtgrid; print({*nmtgrid.__all__} - {*dir(nmtgrid)}, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)
    assert shown.stdout == "set() False\n"


def test_the_files_that_are_to_be_deployed(project: Path, home: Path, tmp_path: Path) -> None:
    folder, deployed = tmp_path / "run", tmp_path / "deployed"
    limits = ("--max-updates", 2, "--device", "cpu", "--set", "training.validate_bleu=false")
    assert train(home / "data", "--out", folder, *TINY_MODEL, *limits) == 0
    page = (project / "docs" / "python.md").read_text(encoding="utf-8")
    table = page.partition("## What to deploy")[2].partition("## ")[0]
    deployed.mkdir()
    for pattern in re.findall(r"^\| `([\w.*]+)` \|", table, re.MULTILINE):
        for path in folder.glob(pattern):
            shutil.copy(path, deployed)
    assert len(list(deployed.iterdir())) == 6 < len(list(folder.iterdir()))
    texts = [nmtgrid.load(path, device="cpu").translate(LINES) for path in (folder, deployed)]
    assert texts[0] == texts[1]
    # Each of them is needed.
    for path in sorted(deployed.iterdir()):
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(nmtgrid.NmtgridError, match=re.escape(path.name)):
            nmtgrid.load(deployed)
        path.write_bytes(content)


@pytest.fixture
def port(project: Path, home: Path) -> Iterator[int]:
    names: dict[str, Any] = {"__name__": "service"}
    exec(compile(blocks(project)[-1], "service.py", "exec"), names)
    server = names["make_server"](str(home / "model"), 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_service(port: int, home: Path) -> None:
    def ask(body: str, **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/", body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    expected = nmtgrid.load(home / "model", beam=5).translate(LINES)
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(ask, [json.dumps({"lines": LINES})] * 3))
    assert answers == [(200, {"translations": expected})] * 3
    for body, message in (
        ("{", "JSONDecodeError"),
        ("{}", "KeyError: 'lines'"),
        ("[]", "TypeError"),
        ('{"lines": "a"}', "TypeError: lines must be several strings"),
        ('{"lines": [1]}', "TypeError: lines must be strings, but number 1 is 1"),
    ):
        code, values = ask(body)
        assert code == 400 and message in values["error"]
    # Refused because of its `Content-Length`, before it is read.
    assert ask("{}", **{"Content-Length": str(1 << 21)})[0] == 413


OWN = """
import nmtgrid.online.policies as policies

def late(delays, source_length, target_length):
    return 1.0

class Eager(policies.Policy):
    def decide(self, proposal):
        return proposal.reads > 0
"""


def test_own_code_is_imported_once_and_by_name(
    home: Path, tmp_path: Path, model: Translator, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """With `load`, the option or the environment variable, but not twice."""
    counted, own = tmp_path / "counted.py", tmp_path / "eager.py"
    counted.write_text("import pathlib\nopen(pathlib.Path(__file__).parent / 'n', 'a').write('x')")
    with pytest.raises(ConfigError, match="no reading policy `Eager`"):
        nmtgrid.simultaneous(model, "Eager")
    own.write_text(OWN, encoding="utf-8")
    again = nmtgrid.load(home / "model", device="cpu", imports=[str(counted), own])
    assert nmtgrid.simultaneous(again, "Eager").begin().read("Er") is not None
    monkeypatch.setenv("NMTGRID_IMPORT", f"{counted}:{own}")
    assert main(["decode", "--import", str(counted), str(home / "model"), "-h"]) == 0
    assert (tmp_path / "n").read_text() == "x"
    capsys.readouterr()
    for words, message in (
        (["--import"], "`` cannot be imported"),
        (["--import=mine.txt"], "`mine.txt` cannot be imported: it is not the name of a .py file"),
        (["--import", str(tmp_path / "nowhere" / "no.py")], "no.py to import. Check the path."),
        (["--import", f"{own.with_suffix('')}x.py"], f"to import. Did you mean `{own.name}`?"),
    ):
        assert main(["bpe", "undo", *words]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    broken = tmp_path / "broken.py"
    (tmp_path / "bad_neighbour.py").write_text("\ndef\n", encoding="utf-8")
    for code, message in (
        ("def\n", r"broken\.py:1: this file failed: SyntaxError"),
        ("\n1 / 0", r"broken\.py:2: this file failed: ZeroDivisionError"),
        ("open('nowhere/else')", "this file failed: FileNotFoundError"),
        ("import json\n\njson.loads('')", r"broken\.py:3: this file failed: JSONDecodeError"),
        ("import bad_neighbour", r"bad_neighbour\.py:2: this file failed: SyntaxError"),
        ("raise SystemExit(3)", r"broken\.py:1: this file failed: SystemExit: 3"),
    ):
        broken.write_text(code, encoding="utf-8")
        with pytest.raises(ConfigError, match=message):
            import_files([broken])


OBJECTIVE = """
import dataclasses
from nmtgrid.cli.objectives import objectives
from nmtgrid.training.likelihood import LIKELIHOOD

objectives.add("mine", dataclasses.replace(LIKELIHOOD, name="mine", description="by one's own"))
"""


def test_own_objectives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(objectives, "_entries", {**objectives._entries})
    file, report = tmp_path / "mine.py", tmp_path / "list.json"
    file.write_text(OBJECTIVE, encoding="utf-8")
    assert train("--dry-run", "--objective", "mine") == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "There is no objective `mine`" in message and "`--import FILE`" in message
    assert train("--list", "--import", file, "--objective", "mine", "--json", report) == 0
    listed = json.loads(report.read_text(encoding="utf-8"))["objectives"]
    assert {"name": "mine", "description": "by one's own"} in listed
