"""Configuration files: their content and precedence, and errors with their lines."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nmtgrid
from nmtgrid.base.config import to_json
from nmtgrid.base.config_file import read_config, to_toml
from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.adaptive_tune.arguments import AdaptiveTuneArguments
from nmtgrid.cli.app import main
from nmtgrid.cli.config_options import with_options
from nmtgrid.cli.config_schema import schema
from nmtgrid.cli.decode.arguments import DecodeArguments
from nmtgrid.cli.objectives import objectives
from nmtgrid.cli.online_eval.arguments import OnlineEvalArguments
from nmtgrid.cli.options import CommandArguments, file_options
from nmtgrid.cli.train.arguments import TrainArguments
from nmtgrid.cli.train.plan import config_text
from nmtgrid.models import zoo
from nmtgrid.training.prepare import Request, resolve
from tests.unit.helpers.train_command import SMALL_TRANSFORMER, train

LINES = """\
# a comment

arch = "transformer"
seeds = [
  1,  # a line of its own
  2,
]
max-updates = 5

[model]
size = 8
"heads" = 2
[smoothing.token]
vectors = \"\"\"
[own]
\"\"\"
[search]
beam = 3
"""


def written(folder: Path, text: str, name: str = "a.toml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def taken(kind: type[CommandArguments], path: str, *typed: str) -> tuple[dict[str, Any], Any]:
    """Return the options of a command that a file gives, and the rest of the file."""
    options = file_options(kind)
    return with_options({}, read_config(path), options, typed, (), kind.file_settings)


def test_every_key_has_its_line(tmp_path: Path) -> None:
    file = read_config(written(tmp_path, LINES))
    lines = {
        "arch": 3, "seeds": 4, "max-updates": 8, "model": 10, "model.size": 11, "model.heads": 12,
        "smoothing.token": 13, "smoothing.token.vectors": 14, "search": 17, "search.beam": 18,
    }  # fmt: skip
    faults = [f"`{name}` is bad." for name in lines]
    located = file.located([*faults, "`other` is bad."], {name: name for name in lines})
    places = [f"{file.path}:{line}: " for line in lines.values()]
    assert located == [a + b for a, b in zip(places, faults, strict=True)] + ["`other` is bad."]
    # A message that has its line already gets no second one.
    assert file.located(located, {name: name for name in lines}) == located


def test_what_is_written_is_read_again() -> None:
    values = {
        "text": 'quotes " and \\ and \n and \x7f, ä', "small": 1e-08, "large": 1e16, "yes": True,
        "count": -3, "list": [1, 2], "none": [], "model": {"x": 1, "deep": {"y": "none"}},
        "only": {"inner": {"z": 0.5}}, "empty": {},
    }  # fmt: skip
    assert tomllib.loads(to_toml(values)) == values
    assert tomllib.loads(to_toml({"size": None})) == {"size": "none"}


ALL = [(arch, name) for arch in zoo.architectures() for name in (None, *zoo.presets(arch))]


@pytest.fixture(scope="module")
def is_valid() -> Callable[[Any], bool]:
    """Return whether an editor would accept a configuration of `train`."""
    checker: Any = pytest.importorskip("fastjsonschema")
    check = checker.compile(schema("train"))

    def accepts(values: Any) -> bool:
        try:
            check(values)
        except checker.JsonSchemaException:
            return False
        return True

    return accepts


def test_a_dump_gives_the_same_settings_again(
    tmp_path: Path, is_valid: Callable[[Any], bool]
) -> None:
    """For every architecture with every preset, and for every objective."""
    requests = [Request(arch, preset) for arch, preset in ALL]
    requests += [Request("transformer", objective=name) for name in objectives]
    # A setting of the preset that the run unsets.
    without = ("model.embedding_size=none",)
    requests += [Request("pervasive", "wmt15-de-en", changes=without)]
    for request in requests:
        settings = resolve(request, objectives)
        text = config_text(settings, TrainArguments(data=Path("d"), device="cpu"))
        assert is_valid(tomllib.loads(text)), text
        values, file = taken(TrainArguments, written(tmp_path, text))
        assert values["data"] == Path("d") and values["device"] == "cpu" and not file.faults
        again = Request(values["arch"], values.get("preset"), file=file)
        assert to_json(resolve(again, objectives)) == to_json(settings)


def test_editors_see_what_is_wrong(is_valid: Callable[[Any], bool]) -> None:
    good = [
        {}, {"arch": "bilstm", "model": {"size": 8}}, {"objective": "wait-k"}, {"seed": 3},
        {"objective": {"name": "wait-k", "k": 3}}, {"objective": {"label_smoothing": 0.1}},
        {"seeds": [1, 2]}, {"seeds": "1..2"}, {"model": {"embedding_size": "none"}},
    ]  # fmt: skip
    bad = [
        {"model": {"dept": 1}}, {"arch": "bilstm", "model": {"source_kernel": 3}}, {"modle": {}},
        {"objective": "wait"}, {"objective": {"k": 3}}, {"preset": "zoo"}, {"arch": "rnn"},
        {"training": {"max_updates": "many"}}, {"device": "gpu"}, {"training": {"beta1": []}},
    ]  # fmt: skip
    assert [values for values in good if not is_valid(values)] == []
    assert [values for values in bad if is_valid(values)] == []


@pytest.mark.parametrize("command", ["train", "decode", "online-eval", "adaptive-tune"])
def test_the_schema_is_written(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["config-schema", command]) == 0
    properties = json.loads(capfd.readouterr().out)["properties"]
    assert properties["device"]["enum"] == ["auto", "cpu", "cuda"] and "config" not in properties
    assert all(properties[name].get("description") for name in ("out", "json", "device"))


def dumped(*arguments: object) -> dict[str, Any]:
    """Return the output of `train --dump-config`."""
    out = Path(str(arguments[-1])).with_suffix(".dump")
    assert train(*arguments, "--dump-config", out) == 0
    return tomllib.loads(out.read_text(encoding="utf-8"))


def test_the_command_line_wins_over_the_file_and_the_file_over_the_preset(tmp_path: Path) -> None:
    text = 'preset = "toy"\ndevice = "cpu"\nmax-updates = 7\nseed = 5\n'
    path = written(tmp_path, text + "[model]\ndepth = 2\nsize = 4\n")
    preset = zoo.preset("pervasive", "toy").settings
    values = dumped("--config", path)
    assert values["preset"] == "toy" and values["device"] == "cpu"
    assert values["training"]["learning_rate"] == preset["training.learning_rate"]
    assert (values["training"]["max_updates"], values["training"]["seed"]) == (7, 5)
    assert (values["model"]["depth"], values["model"]["size"]) == (2, 4)
    more = ["--set", "model.depth=3", "--set", "training.seed=6", "--max-updates", 8]
    values = dumped(*more, "--preset", "multi30k", "--device", "auto", "--config", path)
    assert (values["model"]["depth"], values["model"]["size"]) == (3, 4)
    assert (values["training"]["max_updates"], values["training"]["seed"]) == (8, 6)
    learning_rate = zoo.preset("pervasive", "multi30k").settings["training.learning_rate"]
    assert values["training"]["learning_rate"] == learning_rate
    # Given on the command line, although it is the default.
    assert values["preset"] == "multi30k" and "device" not in values


def test_what_the_command_line_replaces_is_not_looked_at(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    path = written(tmp_path, '[search]\nbeam = true\n[training]\nmax_minutes = "x"\n')
    both = ("--set", "search.beam=5", "--max-minutes", 3)
    values = dumped(*both, "--config", path)
    assert (values["search"]["beam"], values["training"]["max_minutes"]) == (5, 3)
    message = refused("train", "--dry-run", "--config", path, *both[:2])
    assert f"{path}:4: `training.max_minutes`" in message
    # Errors on the command line use the names there.
    message = refused("train", "--dry-run", "--max-minutes", "nan")
    assert "`--max-minutes` must be" in message and "--set" not in message
    message = refused("train", "--dry-run", "--seed", "-1", "--max-updates", "-3")
    assert "`--seed` must be" in message and "`--max-updates` must be" in message
    assert "training." not in message


REFUSED = {
    "unknown": (
        'learning_rate = 1\nresumee = true\n[model]\ndept = 3\n[modle]\ndepth = 1\n',
        [":1: `learning_rate`", "`training.learning_rate`?", ":2: `resumee`", "`resume`?",
         ":4: `model.dept`", "`model.depth`?", ":5: `modle`: there is no such table",
         "mean `model`?"],
    ),
    "types and ranges": (
        'seed = "x"\ndevice = "gpu"\n[model]\ndepth = 2.5\nskip = "dens"\nsize = 0\n[training]\n'
        "learning_rate = -1\nshard = 1\n",
        [":1: `training.seed` must be a whole number", ":2: `device` must be one of", "`cpu`?",
         ":4: `model.depth`", ":5: `model.skip`", "`dense`?", ":6: `model.size`",
         ":8: `training.learning_rate` must be a number above 0", ":9: `training.shard`"],
    ),
    "names": (
        'arch = "pervasiv"\nobjective = "likelyhood"\n',
        [":1: There is no architecture", ":2: There is no objective", "`likelihood`?"],
    ),
    "preset": ('\npreset = "toi"\n', [":2: `pervasive` has no preset `toi`", "`toy`?"]),
    "objective": ('[objective]\nname = "wait"\nk = 1\n', [":2: There is no objective `wait`"]),
    "no table": ('model = 3\n[[batches]]\n', [":1: `model` must be a table", ":2: `batches` must"]),
    "said twice": ("seed = 1\n[training]\nseed = 1\n",
                   [":1: `seed` and `training.seed` set the same value"]),
    "not here": ('list = true\nobjective_name = "x"\n', [":1: `list` can", ":2: `objective_name`"]),
    "two spellings": ("max_updates = 5\nmax-updates = 6\n",
                      [":1: `max-updates` and `max_updates` set the same value"]),
    "not in files": ('import = "my.py"\nquiet = true\n',
                     [":1: `import` can only be given", ":2: `quiet` can only be given"]),
    "quoted": ('"training.seed" = 3\n', [":1: `training.seed`", "Leave out the quotation marks"]),
    "given twice": ("seed = 1\nseed = 2\n", [":2: this key is given twice"]),
    "table twice": ("[model]\n[batches]\n[model]\n", [":3: this table is given twice"]),
    "YAML": ("arch: pervasive\n", [":1: this is not TOML"]),
    "unfinished": ("x = 1\nseeds = [1,\n", [":2: this is not TOML"]),
    "deep": ("x = " + "[" * 5000, ["nests"]),
    "long": ("#" * 70_000, ["too long"]),
    "foreign JSON": ('{"model_type": "marian"}', ["not the `config.json` of a model"]),
    "no value": ('[training]\nlearning_rate = "none"\n',
                 [":2: `training.learning_rate` must be a finite number, but",
                  'is `"none"`, which stands for no value']),
    "other JSON": ('{"arch": "bilstm", "model": {"size": 8}, "seed": 3}',
                   ["not the `config.json` of a model"]),
    "broken JSON": ('{"arch": 1,\n x}', [":2: it is neither TOML nor JSON"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_faults_are_named_by_file_and_line(
    name: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    text, words = REFUSED[name]
    path = written(tmp_path, text)
    message = refused("train", "--dump-config", tmp_path / "out", "--config", path)
    for word in words:
        assert (path + word if word.startswith(":") else word) in message
    assert not (tmp_path / "out").exists()


def test_a_list_of_settings_takes_no_file(tmp_path: Path, refused: Callable[..., str]) -> None:
    path = written(tmp_path, 'arch = "transformer"\n')
    message = refused("train", "--list", "--config", path)
    assert "so `--config` would be ignored." in message


def test_what_is_no_text_is_refused(
    tmp_path: Path, refused: Callable[..., str], tiny_model: Path
) -> None:
    (tmp_path / "binary").write_bytes(b"a = 1\nb = '\xff\x00'\n")
    for path, words in (
        (tmp_path / "binary", "binary:2: this is not UTF-8 text"),
        (tmp_path / "nothing", "No such file"),
        (tmp_path, "it is a folder, not a configuration. Name a file in TOML"),
        (tiny_model, f"`{tiny_model}/config.json` holds the settings"),
    ):
        assert words in refused("train", "--dry-run", "--config", path)
    # With the line ends and byte-order mark of Windows.
    text = '\ufeffseed = 1\r\n[model]\r\nwrong = """\r\nx"""\r\n'
    (tmp_path / "windows").write_bytes(text.encode())
    message = refused("train", "--dry-run", "--config", tmp_path / "windows")
    assert "windows:3: `model.wrong`" in message


def test_a_models_configuration_trains_such_a_model(
    tiny_model: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    path = tiny_model / "config.json"
    settings = json.loads(path.read_text())["settings"]
    os.symlink(path, tmp_path / "config.json")
    values = dumped("--config", tmp_path / "config.json")
    assert values["arch"] == "transformer" and values["preset"] == "toy"
    for group in ("model", "training", "batches", "search"):
        expected = {key: "none" if v is None else v for key, v in settings[group].items()}
        assert values[group] == expected
    assert values["objective"] == {"name": "likelihood", **settings["objective"]}
    plan = ["train", "--dry-run", "--config", path]
    message = refused(*plan, "--preset", "iwslt14-de-en")
    assert "`--preset iwslt14-de-en` would change nothing" in message
    message = refused(*plan, "--arch", "bilstm")
    architecture = f"{path} has a model of the architecture `transformer`"
    assert architecture in message and "model.heads" not in message
    assert "only `train` accepts" in refused("decode", tiny_model, "--config", path)


def test_other_commands_take_their_options_from_files(tmp_path: Path) -> None:
    """Keys are long names; lists may be arrays; numbers are checked, and paths are paths."""
    text = 'length-penalty = 1\nensemble = "m2"\nsample = true\nk = 3\nset = {min_length = 2}\n'
    values, _ = taken(DecodeArguments, written(tmp_path, text))
    assert values == {
        "length_penalty": 1.0, "ensemble": [Path("m2")], "sample": True, "k": "3",
        "changes": ["min_length=2"],
    }  # fmt: skip
    text = "[set]\nsearch.min_length = 2\nseed = 3\n"
    values, _ = taken(DecodeArguments, written(tmp_path, text))
    assert values == {"changes": ["search.min_length=2", "seed=3"]}
    text = 'models = ["a", "b=c"]\nk = [1, 3]\nthresholds = "0.1..0.5:0.1"\nline = 4\nbeam = 2\n'
    values, _ = taken(OnlineEvalArguments, written(tmp_path, text), "beam")
    assert values == {
        "models": ["a", "b=c"], "k": "1,3", "thresholds": "0.1..0.5:0.1", "lines": [4],
    }  # fmt: skip
    text = 'budget = 1\nbaselines = "x=y"\nout = "results"\nkeep = false\n'
    values, _ = taken(AdaptiveTuneArguments, written(tmp_path, text))
    out = Path("results")
    assert values == {"budget": 1.0, "baselines": ["x=y"], "out": out, "keep": False}


WRONG_OPTIONS = [
    ("decode MODEL", "bean = 1\n", [":1: `bean`: there is no such option", "`beam`?"]),
    ("decode MODEL", "beam = true\n[set]\nmin_length = 1\n",
     [":1: `beam` must be a whole number, but is `true`"]),
    ("decode MODEL", 'input = "a.txt"\n',
     [":1: `input`: there is no such option. INPUT is called `source` in a file"]),
    ("decode MODEL", "\nbeam = 0\n", [":2: `search.beam` (`--beam`) must be from 1"]),
    ("decode MODEL", 'model = "m"\nbeam = "2"\nsample = 1\n',
     [":1: `model` can only", ":2: `beam` must be a whole", ":3: `sample` must be true"]),
    ("decode MODEL", "[set]\nmin_lenth = 1\n", [":2: `--set min_lenth`", "`min_length`?"]),
    ("decode MODEL", "[set.search]\n\nbean = 1\n", [":3: `--set bean`"]),
    ("decode MODEL", "[set]\nmax_length_b = 1\nmax_length_a = -1\n", [":3: `search.max_length_a`"]),
    ("decode MODEL", "beam = 2\n[set]\nseed = 1\nbeam = 3\n", [":4: `--set beam` and `--beam`"]),
    ("decode MODEL", "[search]\nbeam = 3\n", [":1: `search`", "go into the table `[set]`"]),
    ("decode MODEL", "[set]\nsearch.bean = 1\n", [":2: `--set bean`"]),
    ("decode MODEL", "[set]\nseed = 2000-01-01\n", [":2: `--set seed` must be a whole number"]),
    ("decode MODEL", "k = 3\n", [":1: `--k` belongs to `--stream`"]),
    # All groups of errors at once: in keys, types, combinations, ranges, files and `--set`.
    ("decode MODEL",
     "bean = 1\nsample = 1\nseed = 3\nbeam = 0\nbatch_tokens = 0\nk = 3\njson = 'none/x'\n"
     "set = {min_lenth = 1}\nnbest = 7\n",
     [":1: `bean`", ":2: `sample` must be true", ":4: `search.beam` (`--beam`) must be from 1",
      ":5: `batch_tokens` (`--batch-tokens`) must", ":6: `--k` belongs", ":7: `--json none/x`",
      ":8: `--set min_lenth`"]),
    ("decode MODEL", "stream = true\nk = [1]\nbeam = 4\ntraces = 'none/x'\nmax_source = 0\n",
     [":2: `k` must be", ":1: `--stream` cannot be combined with `--beam`",
      ":4: `--traces none/x`", ":5: `--max-source`"]),
    ("online-eval", "data = 1\nsentences = 0\nk = 'one'\nallow_loss = 'x'\nrisk = 'bleu'\n"
     "json = 'none/x'\nmodel = 1\n",
     [":1: `data` must be a text", ":2: `--sentences` must be", ":3: `--k`",
      ":4: `allow_loss` must be", ":6: `--json none/x`", ":7: `model`: there is no such option"]),
    ("adaptive-tune", "data = 1\nsamples = 0\nallow_loss = 2\nconfidence = 2\njson = 'none/x'\n",
     [":1: `data` must be a text", ":2: `--samples`", ":4: `--confidence`", ":5: `--json none/x`",
      "Name a model directory"]),
    ("online-eval", "bootstrap = -1\nunit = 'words'\n",
     [":1: `bootstrap` must be at least 0", ":2: `unit` must be one of", "`word`?"]),
    ("online-eval", "beam = 0\ndata = 'x'\nk = 'one'\n", [":1: `--beam` must be at least 1"]),
    ("adaptive-tune", "samples = 0\nrisk = 'bleu'\n", [":1: `--samples`", ":2: `--risk` belong"]),
]  # fmt: skip


@pytest.mark.parametrize(("command", "text", "words"), WRONG_OPTIONS)
def test_wrong_options_are_named_by_file_and_line(
    command: str, text: str, words: list[str], tmp_path: Path, tiny_model: Path,
    refused: Callable[..., str],
) -> None:  # fmt: skip
    path = written(tmp_path, text)
    name, *model = command.replace("MODEL", str(tiny_model)).split()
    message = refused(name, *model, "--config", path)
    for word in words:
        assert (path + word if word.startswith(":") else word) in message
    assert "no effect without `--sample`" not in message  # it is given, although invalid
    lines = re.findall(rf"{re.escape(path)}:(\d+):", message)
    assert len(lines) == len(set(lines)) and "`None`" not in message


def test_decode_does_what_a_file_says(toy_dataset: Path, tiny_model: Path, tmp_path: Path) -> None:
    text = f"data = '{toy_dataset}'\nsplit = 'valid'\nbeam = 3\njson = '{tmp_path}/a.json'\n"
    path = written(tmp_path, text + "[set]\nmax_length_b = 0\n")
    assert main(["decode", str(tiny_model), "--config", path, "--beam", "2"]) == 0
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["split"] == "valid"
    assert (report["search"]["beam"], report["search"]["max_length_b"]) == (2, 0.0)


def test_a_resumed_run_knows_its_data(
    toy_dataset: Path, tmp_path: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, moved, out = tmp_path / "data", tmp_path / "moved", tmp_path / "m"
    data.symlink_to(toy_dataset)
    monkeypatch.chdir(tmp_path)
    assert train("data", "--out", out, "--max-updates", 1, *SMALL_TRANSFORMER) == 0
    monkeypatch.chdir("/")
    config = written(tmp_path, f"out = '{out}'\nresume = true\nmax_updates = 2\n")
    assert train("--config", config) == 0 and any("data -> " in line for line in messages)
    data.rename(moved)
    resume = ["--out", out, "--resume", "--max-updates", 3]
    assert train(*resume) == 2
    assert f"were in {data}, which does not exist" in messages[-1] and "DATA" in messages[-1]
    assert train(moved, *resume) == 0 and train(*resume) == 0
    # Settings that must not change in a run are refused, as on the command line.
    assert train(*resume, "--config", written(tmp_path, "[model]\nsize = 4\n")) == 2
    assert f"{config}:2: A resumed run keeps its model" in messages[-1]
    # Directories of earlier versions do not record the location of the data.
    values = json.loads((out / "config.json").read_text())
    for name in ("data", "sha256"):
        del values[name]
    (out / "config.json").write_text(json.dumps(values))
    assert train(*resume) == 2 and "does not record where its data are" in messages[-1]


def test_the_files_of_the_documentation_are_good(project: Path, tmp_path: Path) -> None:
    page = (project / "docs/configuration.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    kinds: list[type[CommandArguments]] = [TrainArguments, TrainArguments, DecodeArguments]
    kinds += [OnlineEvalArguments, AdaptiveTuneArguments]
    for kind, text in zip(kinds, blocks, strict=True):
        values, file = taken(kind, written(tmp_path, text))
        assert values["data" if "data" in text else "arch"] and file.faults == ()
        if kind is TrainArguments:
            request = Request(values["arch"], values.get("preset"), file=file)
            settings = resolve(request, objectives)
            assert settings.objective_name in ("likelihood", "wait-k")
    wrong = "\n\n\nlearning_rate = 1\n\n[model]\ndept = 1\ndropout = 1.5\n"
    _, file = taken(TrainArguments, written(tmp_path, wrong, "small.toml"))
    with pytest.raises(ConfigError) as fault:
        resolve(Request(file=file), objectives)
    shown = "\n       ".join(fault.value.faults).replace(str(tmp_path) + "/", "")
    assert f"error: {shown}\n" in page


def test_settings_of_sampling_need_sampling(
    tiny_model: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    """As their options do, also if given by `--set`, a file or Python."""
    path = written(tmp_path, "[set]\ntop_k = 5\n")
    for words, start in ((["--config", path], f"{path}:2: "), (["--set", "search.top_k=5"], "")):
        message = refused("decode", tiny_model, *words)
        assert f"{start}`--set top_k` has no effect without `--sample`" in message
    with pytest.raises(ConfigError, match="`top_k` has no effect without `sample=True`"):
        nmtgrid.load(tiny_model, top_k=5)
    sampled = nmtgrid.load(tiny_model, sample=True, beam=1, top_k=5, seed=2)
    with pytest.raises(ConfigError, match="`seed` has no effect"):
        sampled.with_search(sample=False, seed=3)
