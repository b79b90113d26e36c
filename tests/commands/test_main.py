"""The command line: helps worth reading, mistakes in one line, exit statuses."""

import argparse
import errno
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from cfol_fast.commands import main as cli
from cfol_fast.commands import train as command
from cfol_fast.methods import METHODS
from cfol_fast.runs.config import settings

TINY = ["--set=steps_per_epoch=2", "--set=batch_size=16", "--model=demo-cnn@0.25", "--set=attack.steps=1"]
TINY += ["--set=validation.steps=1", "--set=test.steps=1", "--epochs=1", "--holdout=none", "--device=cpu"]


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    try:
        status = cli.main(arguments)
    except SystemExit as leave:  # argparse's own
        status = leave.code
    out, err = capsys.readouterr()
    return status, out, err


def test_the_help_lists_every_command(capsys):
    status, out, _ = call(capsys, "--help")
    assert status == 0
    for name, (_, text) in cli.COMMANDS.items():
        assert re.search(rf"^\s+{name}\s+{re.escape(text.split()[0])}", out, re.MULTILINE)
    assert call(capsys)[1] == out


@pytest.mark.slow
def test_the_help_imports_no_torch():
    code = (
        "import sys; from cfol_fast.commands import main as cli\ntry: cli.main(sys.argv[1:])\nexcept"
        " SystemExit: pass\n"
    )
    code += "assert 'torch' not in sys.modules"
    for words in (["--help"], *([name, "--help"] for name in cli.COMMANDS)):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), words


@pytest.mark.parametrize("words", [["--out", "~nobody-here/run"], ["--set=data.root=~nobody-here"]])
def test_a_home_folder_that_is_not_there_is_named(capsys, words):
    status, _, err = call(capsys, "train", "erm", *words)
    assert (status, err.count("\n")) == (2, 1)
    assert "~nobody-here" in err


def test_a_home_folder_that_is_not_there_is_named_in_a_file_of_settings_too(capsys, tmp_path):
    (tmp_path / "settings.toml").write_text('[data]\nname = "cifar10"\nroot = "~nobody-here/images"\n')
    words = ["--config", str(tmp_path / "settings.toml"), "--out", str(tmp_path / "run")]
    status, _, err = call(capsys, "train", "erm", *words)
    assert (status, err.count("\n")) == (2, 1)
    assert "'~nobody-here/images': there is no home folder of that name" in err


@pytest.mark.slow
def test_the_package_can_be_run_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "cfol_fast", "train", "cfoll"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("cfol-fast: error: ")


@pytest.mark.slow
def test_the_help_imports_nothing_that_takes_longer_than_python_itself():
    # logging, which the package's logger needs, brings traceback: 5 ms together.
    slow = {
        "numpy",
        "importlib.metadata",
        "email",
        "urllib.error",
        "ctypes",
        "dataclasses",
        "hashlib",
    }
    # What the environment's own site module brings is not ours.
    code = (
        "import sys; before = set(sys.modules)\nfrom cfol_fast.commands import main as"
        " cli\ncli.main(['--help'])\n"
    )
    code += f"assert not {slow!r} & (set(sys.modules) - before), set(sys.modules) - before"
    # As on a CPU that announces nothing that would have to be tried.
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_a_help_with_an_example(capsys, name):
    module_name, text = cli.COMMANDS[name]
    module = importlib.import_module(module_name)
    assert name == module.NAME
    assert text
    status, out, _ = call(capsys, name, "--help")
    assert status == 0
    assert "example" in out
    assert f"cfol-fast {name}" in out


def test_the_version_is_told(capsys):
    status, out, _ = call(capsys, "--version")
    assert (status, out.split()[0]) == (0, "cfol-fast")


def test_methods_are_listed_with_their_parameters(capsys):
    status, out, _ = call(capsys, "train", "--list-methods")
    assert status == 0
    table, others = out.split("\n\n")
    rows = [line.split()[0] for line in table.splitlines() if not line.startswith(" ")]
    assert rows == list(METHODS)
    assert "data sets: fashion-mini, " in others
    assert "models: resnet18, " in others
    assert "gamma=0.5" in out


def test_the_complete_configuration_can_be_shown(capsys):
    status, out, _ = call(
        capsys, "train", "cfol", "--dataset", "cifar10", "--eps", "12/255", "--print-config"
    )
    assert status == 0
    assert json.loads(out)["attack"]["eps"] == pytest.approx(12 / 255)


def test_options_come_before_set_and_both_before_the_file(capsys, tmp_path):
    (tmp_path / "run.toml").write_text('method = "erm"\nepochs = 3\nbatch_size = 7\nseed = 5\n')
    file = ["--config", str(tmp_path / "run.toml")]
    tree = json.loads(
        call(capsys, "train", *file, "--epochs", "4", "--set", "batch_size=8", "--print-config")[1]
    )
    assert (tree["method"], tree["epochs"], tree["batch_size"], tree["seed"]) == ("erm", 4, 8, 5)
    assert json.loads(call(capsys, "train", "cfol", *file, "--print-config")[1])["method"] == "cfol"


BAD = [
    (["tarin"], "unknown command 'tarin'; did you mean 'train'?"),
    (["train"], "which METHOD?"),
    (["train", "cfoll"], "did you mean 'cfol'"),
    (["train", "cfol", "--dataset", "cifar11"], "did you mean 'cifar10'"),
    (["train", "cfol", "--set", "atack.eps=1"], "did you mean 'attack.eps'"),
    (["train", "cfol", "--eps", "eight"], "--eps: attack.eps takes a number"),
    (["train", "cfol", "--epochs", "0"], "epochs must be at least 1, got 0"),
    (["train", "cfol", "--resume", "--overwrite"], "contradict"),
    (["train", "--resume", "--out", "nowhere"], "nowhere is not a run folder"),
    (["train", "--resume"], "--resume needs --out"),
    (["train", "cfol", "--config", "none.toml"], "no file none.toml"),
    (["train", "cfol", "--threads", "0"], "--threads must be at least 1"),
    (["train", "erm", "--model", "alexnet"], "takes 3 channels, the data set has 1"),
    (["train", "erm", "--model", "resnet19"], "did you mean 'resnet18'"),
    (["train", "cfol", "--set", "gamma=1.5"], "gamma must be in (0, 1], got 1.5"),
    (["train", "cfol", "--set", "gamma=high"], "gamma must be in (0, 1], got 'high'"),
    (["train", "cfol", "--set", "eta=-1"], "eta must be a positive number"),
    (["train", "cfol", "--set", "eta=theory", "--set", "C=x"], "C must be a positive number"),
    (["train", "cfol", "--set", "prior=even"], "prior must be 'uniform', 'empirical'"),
    (["train", "cfol", "--set", "prior=[0.5,0.5]"], "prior must have 10 entries"),
    (["train", "cfol", "--set", "prior=[a,b]"], "prior must be 'uniform', 'empirical'"),
    (["train", "lcvar", "--set", "alpha=2"], "alpha must be in (0, 1], got 2"),
    (["train", "cvar", "--set", "alpha=x"], "alpha must be in (0, 1], got 'x'"),
    (["train", "trades", "--set", "beta=-1"], "beta must be at least 0, got -1"),
    (["train", "erm", "--seed", "-1"], "seed must be at least 0"),
    (
        ["train", "erm", "--eps", "inf"],
        "--eps: attack.eps takes a number such as 0.1, 1e-4 or 8/255, got 'inf'",
    ),
    (["train", "erm", "--set", "attack.kind=n-fgsm", "--set", "attack.norm=l2"], "N-FGSM"),
    (["train", "erm", "--imbalance", "0.5"], "imbalance"),
    (["train", "erm", "--config", "broken.toml"], "broken.toml is not TOML"),
    (["train", "--resume", "--out", "broken"], "config.json"),
    (["train", "erm", "--dataset", "folder", "--data", "broken"], "broken"),
    (["eval", "broken.toml", "--dataset", "fashion-mini"], "broken.toml"),
    (["report", "broken"], "broken"),
    (["report", "nowhere"], "nowhere"),
    (["report", "broken.toml"], "broken.toml"),
    (["demo", "--epochs", "0"], "epochs must be at least 1"),
    (["demo", "--device", "abacus"], "abacus"),
    (["data", "to-ffcv", "--dataset", "fashion-mini", "--out", "x.beton", "--imbalance", "0.5"], "imbalance"),
    (["data", "to-ffcv", "--dataset", "fashion-mini", "--out", "nowhere/x.beton"], "nowhere"),
    (
        ["data", "to-ffcv", "--dataset", "fashion-mini", "--out", "x.beton", "--seed=-1"],
        "--seed must be at least 0",
    ),
    (["reproduce", "broken.toml"], "broken.toml is not TOML"),
    (["reproduce", "--index", "results"], "tools.index"),
    (["doctor", "--gpu"], "make test-gpu"),
    (["train", "cfol", "--dataset", "cifar10", "--data", "nowhere"], "nowhere"),
    (["train", "cfol", "--out", "file/run"], "cannot create"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_is_one_clear_line_and_status_2(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "broken.toml").write_bytes(b"\xff")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text("{")
    status, _, err = call(capsys, *arguments)
    assert status == 2
    assert message in err
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("value", ["inf", "nan", "1e99", "-1"])
@pytest.mark.parametrize(
    "option",
    ["--epochs", "--batch-size", "--lr", "--eps", "--imbalance", "--seed", "--ensemble", "--threads"],
)
def test_a_number_that_makes_no_sense_is_refused_by_the_name_of_its_option(capsys, option, value):
    status, _, err = call(capsys, "train", "cfol", f"{option}={value}", "--print-config")
    assert status == 2
    assert option in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("mistake", [ValueError, TypeError, KeyError, RuntimeError, io.UnsupportedOperation])
def test_a_bug_of_ours_shows_its_traceback_and_is_status_1(capsys, monkeypatch, mistake):
    def broken(args):
        raise mistake("a planted mistake")

    monkeypatch.setattr(command, "run", broken)
    status, _, err = call(capsys, "train", "cfol")
    assert status == 1
    assert "Traceback" in err
    assert "a planted mistake" in err
    assert "bug in cfol-fast" in err.splitlines()[-1]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.ENOENT])
def test_what_the_operating_system_refuses_is_one_line_that_names_the_file(capsys, monkeypatch, number):
    def refused(args):
        raise OSError(number, os.strerror(number), "some/file")

    monkeypatch.setattr(command, "run", refused)
    status, _, err = call(capsys, "train", "cfol")
    assert status == 2
    assert err == f"cfol-fast: error: {os.strerror(number)}: some/file\n"


def test_a_gpu_that_is_not_there_is_said_so_with_the_doctors_words(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status, _, err = call(capsys, "train", "cfol", "--device", "cuda", "--out", str(tmp_path / "run"))
    assert status == 2
    assert re.search(
        r"device cuda is not available: (torch|cfol_fast) .* \(cfol-fast doctor tells more\)", err
    )


def test_a_folder_without_write_permission_is_named(capsys, tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise PermissionError(13, "Permission denied", str(tmp_path / "run"))

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)  # root may write everywhere, so permissions are no test
    status, _, err = call(capsys, "train", "erm", *TINY, "--out", str(tmp_path / "run"))
    assert status == 2
    assert f"cannot write to {tmp_path / 'run'}: no permission" in err


@pytest.mark.slow
def test_a_run_from_the_command_line_is_guarded_resumed_and_overwritten(capsys, tmp_path):
    out = ["--out", str(tmp_path / "run")]
    status, shown, _ = call(capsys, "train", "erm", *TINY, *out)
    assert status == 0
    assert "epoch 1/1" in shown
    assert "worst class" in shown

    status, _, err = call(capsys, "train", "erm", *TINY, *out)
    assert status == 2
    assert "--resume continues it" in err
    assert "--overwrite" in err

    status, _, err = call(capsys, "train", "erm", *TINY, *out, "--resume", "--seed", "1")
    assert status == 2
    assert "seed (was 0, now 1)" in err

    status, _, err = call(capsys, "train", "cfol", *out, "--resume")
    assert status == 2
    assert "method (was 'erm', now 'cfol')" in err

    status, shown, _ = call(capsys, "train", "--resume", *out, "--export", str(tmp_path / "weights.pt"))
    assert status == 0
    assert "finished already" in shown
    assert torch.load(tmp_path / "weights.pt", weights_only=True)

    assert call(capsys, "train", "cfol", *TINY, *out, "--overwrite", "--quiet")[0] == 0
    assert json.loads((tmp_path / "run/result.json").read_text())["method"] == "cfol"


def test_a_loss_that_is_not_finite_is_status_1_without_a_traceback(capsys, tmp_path):
    diverging = ["--lr", "1e20", "--set", "optimizer.schedule=constant", "--epochs", "3"]
    status, _, err = call(
        capsys, "train", "clean", *TINY, *diverging, "--out", str(tmp_path / "run"), "--set=steps_per_epoch=5"
    )
    assert status == 1
    assert err.startswith("cfol-fast: failed: the loss is not finite since step")
    assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_sigterm_saves_and_the_status_names_the_signal(tmp_path):
    """The real program, stopped from outside."""
    command_line = [sys.executable, "-m", "cfol_fast", "train", "erm", *TINY, "--set=steps_per_epoch=100000"]
    command_line += ["--set=checkpoint.steps=1", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command_line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while process.poll() is None and not (tmp_path / "run/checkpoints/last.pt").exists():
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert re.fullmatch(r"cfol-fast: stopped at step \d+, saved .*last\.pt; --resume continues\n", err)


@pytest.mark.slow
def test_the_doctor_tells_what_was_built_and_what_is_missing(capsys):
    status, out, _ = call(capsys, "doctor")
    assert status == 0
    for part in ("native ops", "this machine", "the attack's layers", "optional parts", "torch"):
        assert part in out
    status, out, _ = call(capsys, "doctor", "--json")
    findings = json.loads(out)
    assert findings["native"]["works"] is True
    assert findings["cpu"]["threads"] == torch.get_num_threads()
    assert findings["cpu"]["convolutions"]["setting"] == "fixed"
    for extra in findings["extras"].values():
        assert extra["installed"] or extra["remedy"]


@pytest.mark.slow
def test_the_doctor_prints_the_way_of_each_layer(capsys):
    from cfol_fast.frozen.autotune import Choices, using

    chosen = Choices()
    chosen.settle("layout of 4x8x8", "channels_last")
    chosen.settle("forward, 16 x 3x8x8 -> 4", "channels_last plain")
    with using(chosen):
        assert (
            "chosen by autotuning, 1 x channels_last plain; layer by layer with --json"
            in call(capsys, "doctor")[1]
        )
        found = json.loads(call(capsys, "doctor", "--json")[1])
    assert found["cpu"]["convolutions"]["layers"] == chosen.chosen


@pytest.mark.slow
def test_the_doctor_says_how_to_mend_a_missing_library(capsys, monkeypatch):
    from cfol_fast.commands import doctor

    monkeypatch.setattr(
        doctor, "_native", lambda: {"works": False, "trouble": "no library", "remedy": "build it"}
    )
    status, out, _ = call(capsys, "doctor")
    assert status == 1
    assert "build it" in out


def test_every_option_of_a_setting_sets_it():
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    found = {key: chosen for key, chosen in settings().items() if chosen.flag}
    assert len(found) > 20
    for key, chosen in found.items():
        flag, metavar = chosen.flag
        assert metavar or chosen.kind is bool, f"{key}: an option without a value means true"
        text = {bool: "on", int: "3", float: "1/4", str: "word"}[chosen.kind]
        text = chosen.words[-1] if chosen.words else text
        text = "3" if chosen.kind is float and chosen.limits.least == 1 else text
        given = command.open_settings(parser.parse_args(["erm", flag, *([text] if metavar else [])]))
        expected = {bool: True, int: 3, float: 3.0 if text == "3" else 0.25, str: text}[chosen.kind]
        assert given == {"method": "erm", key: expected}, key


@pytest.mark.slow
def test_a_closed_pipe_is_no_traceback(tmp_path):
    code = f"{sys.executable} -m cfol_fast train --list-methods | head -c 1 > /dev/null"
    process = subprocess.run(code, shell=True, capture_output=True, text=True, check=False, env=os.environ)
    assert "Traceback" not in process.stderr


def test_names_that_are_not_utf_8_and_texts_that_steer_a_terminal_are_shown_with_escapes(
    monkeypatch, capsys, tmp_path
):
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", out)
    page = tmp_path / os.fsdecode(b"caf\xe9.html")
    run = Path(__file__).parents[1] / "runs" / "stored_runs" / "finished"
    assert cli.main(["report", str(run), "--out", str(page)]) == 0
    out.flush()
    assert b"caf\\udce9.html" in out.buffer.getvalue()
    monkeypatch.undo()
    assert cli.main(["report", "\x1b[2Jnowhere\x07"]) == 2
    assert "\\x1b[2Jnowhere\\x07: no such run folder" in capsys.readouterr().err
