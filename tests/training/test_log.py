"""What a run says: printed unless it is quiet or the user's own logging hears it."""

import logging

import pytest

import cfol_fast as cf
from cfol_fast.commands import main as cli
from tests.listening import listening
from tests.training import tiny

pytestmark = pytest.mark.usefixtures("few_images")


def test_a_run_prints_its_lines_and_a_quiet_one_nothing(tmp_path, capsys):
    cf.train(tiny.tiny_config(tmp_path / "loud", epochs=2))
    said = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in said if line.startswith("epoch")] == ["epoch 1/2", "epoch 2/2"]
    cf.train(tiny.tiny_config(tmp_path / "quiet", epochs=2), quiet=True)
    assert capsys.readouterr() == ("", "")


def test_the_users_own_logging_hears_a_run_with_modules_and_levels(tmp_path, capsys, caplog):
    caplog.set_level(logging.INFO, "cfol_fast")
    cf.train(tiny.tiny_config(tmp_path / "run", eta=1e-6, epochs=1))
    assert capsys.readouterr().out == ""
    records = {record.getMessage().split("  ")[0]: record for record in caplog.records}
    assert records["epoch 1/1"].name == "cfol_fast.progress"
    assert {record.name.split(".")[0] for record in caplog.records} == {"cfol_fast"}
    doubts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any(text.startswith("with eta 1e-06 p hardly moves") for text in doubts)
    assert not [text for text in caplog.messages if text.startswith("warning")]


def test_a_quiet_run_is_heard_by_a_handler_of_the_users_own(tmp_path, capsys):
    heard: list[str] = []
    with listening(heard.append):
        cf.train(tiny.tiny_config(tmp_path / "run", epochs=1), quiet=True)
    assert any(line.startswith("epoch 1/1") for line in heard)
    assert capsys.readouterr() == ("", "")


def test_the_command_line_prints_also_where_a_library_set_up_logging_and_each_line_once(
    tmp_path, capsys, caplog
):
    caplog.set_level(logging.INFO)
    out = ["train", "erm", "--epochs=1", "--set=steps_per_epoch=1", "--model=demo-cnn@0.25", "--device=cpu"]
    out += ["--set=attack.steps=1", "--set=validation.steps=1", "--set=test.steps=1"]
    assert cli.main([*out, f"--out={tmp_path / 'loud'}"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len([line for line in said if line.startswith("epoch 1/1")]) == 1
    folder = tmp_path / "loud"
    assert said[-2:] == [f"run: {folder}", f"next: cfol-fast report {folder}"]
    assert not caplog.records
    assert cli.main([*out, f"--out={tmp_path / 'quiet'}", "--quiet"]) == 0
    assert capsys.readouterr() == (f"run: {tmp_path / 'quiet'}\n", "")
