"""What leaves a command: one line for every error, warning and interruption, never a traceback."""

import ast
import json
import re
import resource
import signal
import subprocess
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import hccs
import hccs.cli
from hccs.cli.app import app
from hccs.cli.boundary import explained, one_line_warnings
from hccs.conversion.runs.record import VERSION
from hccs.conversion.scores import Difference, Measured
from hccs.errors import FileError

pytestmark = pytest.mark.filterwarnings("ignore")

ROOT = Path(hccs.__file__).parent


def outcome(monkeypatch, *arguments):
    """What `hccs ARGUMENTS` ends with: its one line, or its exit code."""
    monkeypatch.setattr(sys, "argv", ["hccs", *map(str, arguments)])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main sets another
    with pytest.raises(SystemExit) as ended:
        hccs.cli.main()
    return ended.value.code


def one_line(found):
    assert isinstance(found, str) and found.startswith("hccs: ") and "\n" not in found, found
    return found


def options_of(command, found=None):
    """Every `--option` of a command and of those under it."""
    found = set() if found is None else found
    for parameter in command.params:
        found.update(name for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("--"))
    for inner in getattr(command, "commands", {}).values():
        options_of(inner, found)
    return found


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0 and result.output == f"hccs {hccs.__version__}\n"


@pytest.mark.parametrize(
    "command",
    [[], ["convert"], ["evaluate"], ["demo"], ["compare"], ["calibrate"], ["info"], ["show"], ["export", "c"],
     ["export", "onnx"], ["reproduce", "run"],
     ["reproduce", "tables"]],
)  # fmt: skip
def test_commands_are_registered(command):
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0, result.output


def texts():
    """(file, text) of every string of the pipeline and the commands, and of every `raise` elsewhere."""
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text())
        everywhere = path.relative_to(ROOT).parts[0] in ("conversion", "cli")
        for node in [tree] if everywhere else [n for n in ast.walk(tree) if isinstance(n, ast.Raise)]:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    yield path, inner.value


def test_every_option_that_an_error_names_exists():
    known = {"--help", *options_of(typer.main.get_command(app))}
    named = {(path.name, o) for path, text in texts() for o in re.findall(r"--[a-z][a-z-]*", text)}
    assert ("models.py", "--labels") in named and ("training.py", "--batch-size") in named
    assert {(file, option) for file, option in named if option not in known} == set()


# --- interruptions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "place", "resumes"),
    [
        (["demo", "--part", "convert"], "hccs_lab.demo.demo", True),
        (["convert", "m", "--task", "movies", "--out", "o"], "hccs.conversion.run.convert", True),
        (["compare", "--out", "o"], "hccs_lab.compare.run.compare", True),
        (
            ["reproduce", "run", "--data", "d", "--out", "o"],
            "hccs_lab.reproduce.run.run",
            True,
        ),
        (["evaluate", "run"], "hccs.conversion.evaluate.evaluate", False),
        (["calibrate", "x.npy"], "hccs.cli.calibrate.collect_files", False),
    ],
)
def test_ctrl_c_says_whether_the_work_is_kept(monkeypatch, capsys, tmp_path, command, place, resumes):
    pytest.importorskip("transformers")

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(place, interrupted)
    assert outcome(monkeypatch, *command) == 130
    wanted = "hccs: stopped; the same command resumes\n" if resumes else "hccs: stopped\n"
    assert capsys.readouterr().err == wanted


def test_ctrl_c_while_the_command_starts(tmp_path):
    """At any moment of `main`: a timer stands for the key, and what it interrupts are mostly imports."""
    program = (
        "import signal, sys, hccs.cli\n"
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        "signal.setitimer(signal.ITIMER_REAL, float(sys.argv.pop(1)))\n"
        "hccs.cli.main()"
    )
    for delay in ("0.01", "0.03", "0.1", "0.2", "0.3"):
        done = subprocess.run(
            [sys.executable, "-c", program, delay, "convert", "model", "--task", "movies", "--out", "o"],
            capture_output=True, text=True, check=False, cwd=tmp_path,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, (delay, done.stderr)
        assert done.returncode == 130 and done.stderr.startswith("hccs: stopped"), (delay, done.stderr)


def test_a_command_can_be_stopped_from_its_first_moments():
    """Until `main` runs nobody meets Ctrl-C: what is imported before it must be next to nothing."""
    program = (
        "import sys; before = {*sys.modules}; import hccs.cli; "
        "print(*sorted({name for name in {*sys.modules} - before if name.startswith('hccs')}), "
        "'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["hccs", "hccs.cli", "hccs.errors", "False"]


def test_ctrl_c_in_a_real_run(tmp_path):
    pytest.importorskip("transformers")
    command = [sys.executable, "-m", "hccs.cli", "demo", "--part", "convert", "--out", str(tmp_path / "run")]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None and running.stdout.readline() == "float_model …\n"
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate()
    assert running.returncode == 130
    assert errors.splitlines()[-1] == "hccs: stopped; the same command resumes"
    assert "Traceback" not in errors and "UserWarning" not in errors


# --- files, disks, packages ---------------------------------------------------------------------------------


def few_examples(folder):
    """The embedded model and a few sentences to convert it on, as arguments."""
    from hccs_lab.demo import MODEL

    (folder / "few.tsv").write_text("sentence\tlabel\n" + "fine\tpositive\nbad\tnegative\n" * 4)
    return str(MODEL), "--train", str(folder / "few.tsv"), "--no-retrain", "--no-refine"


DAMAGED = ['{"stages": ', "[]", '"text"', '{"stages": []}', "\x00\x01"]


@pytest.fixture
def run_folder(tmp_path):
    """As much of a finished run as is looked at before models are loaded."""
    pytest.importorskip("transformers")
    run = tmp_path / "run"
    for name in ("model", "float"):
        (run / name).mkdir(parents=True)
        (run / name / "config.json").write_text('{"id2label": {"0": "a", "1": "b"}}')
    from hccs_lab.demo import settings

    content = {"version": VERSION, "stages": stages_of_a_run(), "seconds": {}}
    (run / "results.json").write_text(json.dumps(content))
    asked = {"version": VERSION, **asdict(settings())}
    (run / "settings.json").write_text(json.dumps(asked))
    return run


def stages_of_a_run():
    """The results of every stage that each run has."""
    from hccs.conversion import results

    score = Measured(0.5, 0.1, 4)
    reached = results.Reached(score, Difference(0.0, 0.0, 4, 0, 0), None)
    fit = results.HeadFit(0, 0, 0.1, 0.1, 1.0)
    found = {
        "float_model": results.FloatModel(
            metric="accuracy", score=score, examples=4, cut={}, fine_tuned=False, labels=("a", "b"),
            fingerprints={},
        ),
        "collect": results.Collected(sentences=4, rows=4, scale="largest"),
        "calibrate": results.Calibrated(
            kl=0.1, lines=1, scores="int16", sum_bits=15, objective="kl_i16", heads=(fit,)
        ),
        "calibrated": results.Scored(reached=reached, modes={"i16_div": 0.5}),
        "attention": results.IntegerForm(reached=reached),
        "save": results.Saved(mode="i16_div", kl=0.1, heads=(fit,)),
    }  # fmt: skip
    return {name: asdict(stage) for name, stage in found.items()}


@pytest.mark.parametrize(
    "altered",
    [
        {"float_model": {"score": {"value": "high"}}},
        {"float_model": {"metric": None}},
        {"calibrated": {"modes": [1, 2]}},
        {"save": {"heads": []}},
        {"save": {"heads": [{"layer": 0}]}},
        {"attention": "fine"},
        {"calibrate": {"lines": 1.5}},
    ],
)
def test_a_report_of_altered_results_is_refused(monkeypatch, run_folder, altered):
    """Each change is one that a hand may have made to results.json; the report names the file."""
    path = run_folder / "results.json"
    content = json.loads(path.read_text())
    for stage, changes in altered.items():
        if isinstance(changes, dict):
            content["stages"][stage].update(changes)
        else:
            content["stages"][stage] = changes
    path.write_text(json.dumps(content))
    table = hccs.ParamTable(B=[[444]], S=[[11]], D=[[40]], scale=[[0.1]], n=64)
    table.save(run_folder / "model.hccs.safetensors")
    assert "results.json" in one_line(outcome(monkeypatch, "report", run_folder))


@pytest.mark.parametrize("content", DAMAGED)
@pytest.mark.parametrize("file", ["results.json", "settings.json", "model/config.json"])
def test_damaged_files_of_a_run(monkeypatch, tmp_path, run_folder, file, content):
    (run_folder / file).write_text(content)
    for command in (
        ["evaluate", run_folder],
        ["export", "onnx", run_folder, "--out", tmp_path / "m.onnx"],
        ["compare", run_folder, "--out", tmp_path / "out"],
        ["export", "c", run_folder, "--out", tmp_path / "c"],
        ["evaluate", run_folder, "--backend", "whole"],
        ["show", run_folder],
    ):
        one_line(outcome(monkeypatch, *command))
    if file != "model/config.json":
        one_line(outcome(monkeypatch, "convert", *few_examples(tmp_path), "--out", run_folder))


def test_a_run_without_an_integer_model_is_not_scored_as_one(monkeypatch, run_folder):
    command = ["evaluate", run_folder, "--backend", "whole"]
    said = one_line(outcome(monkeypatch, *command))
    assert "to hold an integer model, model.hccs; got none. The run's hccs convert command makes it." in said
    assert "leave --mode out" in one_line(outcome(monkeypatch, *command, "--mode", "u8_div"))


def test_folders_that_cannot_be_written(monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "file").write_text("not a folder")
    inside = tmp_path / "file" / "run"
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(1, 2, 20, 16)).astype(np.float32))
    for command in (
        ["convert", *few_examples(tmp_path), "--out", inside],
        ["compare", "--out", inside, "--rows", "8", "--sentences", "2"],
        ["calibrate", tmp_path / "x.npy", "--out", inside],
        ["calibrate", tmp_path / "x.npy", "--out", tmp_path / "t", "--statistics", inside],
        ["calibrate", tmp_path / "x.npy", "--out", tmp_path],
    ):
        one_line(outcome(monkeypatch, *command))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["few.tsv", "file", "x.npy"]


def test_a_full_disk_is_one_line(monkeypatch, tmp_path):
    """A limit on the size of files stands for it: every writer meets it, ours and those of others."""
    pytest.importorskip("transformers")
    convert = ["convert", *few_examples(tmp_path), "--out", tmp_path / "run"]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        said = one_line(outcome(monkeypatch, *convert))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert re.search(r"could not be written|too large|space", said, re.I)


def test_errors_of_other_packages_in_one_line():
    assert explained(FileError("a", "b\nc", "d.")) == "expected a; got b c. d."
    full = OSError(28, "No space left on device", "run/x")
    assert (
        explained(full) == "run/x: No space left on device. Check the path, its permissions and free space."
    )
    for said in ("PytorchStreamWriter failed writing file", "unexpected pos 9728 vs 9620"):
        torchs = RuntimeError(f"[enforce fail at inline_container.cc:672] . {said}")
        assert "Is the disk full?" in explained(torchs)
    assert explained(RuntimeError("a bug")) is None


def test_a_full_disk_under_a_tokenizer_is_one_line():
    """The tokenizer's own writer fails, as it does where the disk is full."""
    tokenizers = pytest.importorskip("tokenizers")
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    with pytest.raises(Exception, match="os error") as full:
        tokenizers.Tokenizer(tokenizers.models.BPE()).save("/dev/full")
    assert "Is the disk full?" in explained(full.value)


BROKEN_METRIC = """
def broken(logits, labels):
    print("a metric that prints")
    return {}["nothing"]

def noisy(logits, labels):
    print("a metric that prints")
    return float((logits.argmax(-1) == labels).mean())
"""


def test_a_metric_that_raises_is_one_line_and_one_that_prints_leaves_json_alone(monkeypatch, capfd, tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "own_metric.py").write_text(BROKEN_METRIC)
    monkeypatch.syspath_prepend(tmp_path)
    convert = ["convert", *few_examples(tmp_path), "--n", "16", "--json"]
    failed = outcome(monkeypatch, *convert, "--metric", "own_metric:broken", "--out", tmp_path / "failed")
    assert re.search(r"^hccs: .*metric broken.*KeyError: 'nothing'", one_line(failed))
    capfd.readouterr()
    for command in (
        [*convert, "--metric", "own_metric:noisy", "--out", tmp_path / "done"],
        ["evaluate", tmp_path / "done", "--json", "--mode", "i16_div"],
    ):
        assert outcome(monkeypatch, *command) == 0
        said = capfd.readouterr()
        found = json.loads(said.out)
        assert (found if "metric" in found else found["stages"]["float_model"])["metric"] == "noisy"
        assert "a metric that prints" in said.err


@pytest.mark.parametrize(
    "command",
    [["compare", "--out", "out"], ["demo", "--part", "convert", "--out", "out"], ["evaluate", "run"]],
)
def test_without_torch_a_command_names_the_extra(tmp_path, command):
    program = "import sys; sys.modules['torch'] = None; import hccs.cli; hccs.cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *command], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    assert done.stderr.startswith("hccs: expected torch; got no module torch. pip install 'hccs[hf]'")
    assert done.stderr.count("\n") == 1


def test_searching_by_meaning_needs_no_torch(tmp_path):
    """The search answers, or names the model that is not installed; conversions are not imported for it."""
    program = "import sys; sys.modules['torch'] = None; import hccs.cli; hccs.cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "demo", "--part", "search"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert "Traceback" not in done.stderr and (done.returncode == 0 or "installed model" in done.stderr)


def test_warnings_are_one_line_without_source(capsys, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    one_line_warnings()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("two\nlines", stacklevel=1)
    assert capsys.readouterr().err == "hccs: two lines\n"


# --- arguments ----------------------------------------------------------------------------------------------


def test_arguments_that_no_conversion_takes(monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    convert = ["convert", "model", "--out", tmp_path / "run"]
    for options, message in (
        (["--task", "movies", "--epochs", "0"], "--epochs"),
        (["--task", "movies", "--epochs", "-1"], "--epochs"),
        (["--task", "movies", "--learning-rate", "0"], "--learning-rate"),
        (["--task", "movies", "--batch-size", "0"], "--batch-size"),
        (["--task", "movies", "--n", "0"], "--n"),
        (["--task", "movies", "--seed", "-1"], "--seed"),
        (["--task", "movies", "--seed", "99999999999999999999"], "--seed"),
        (["--task", "movies", "--fine-tuning-epochs", "0"], "--epochs"),
        (["--task", "movies", "--no-retrain", "--epochs", "1"], "--no-retrain without.*--fine-tuning-epochs"),
        (["--train", tmp_path / "nofile.csv"], r"Check --train\."),
        ([], "either --task, --train or --unlabelled"),
    ):
        assert re.search(message, one_line(outcome(monkeypatch, *convert, *options)))
    assert not (tmp_path / "run").exists()


def test_calibrate_says_what_it_takes():
    with pytest.raises(hccs.HccsError, match=r"HeadStatistics of logits; got ndarray\. Gather them with"):
        hccs.calibrate(np.zeros((1, 2, 3, 4)))
