"""Which folders a run may begin in, continue in, and set aside: only its own."""

import json
import os
from pathlib import Path

import pytest

from cfol_fast.errors import InputError
from cfol_fast.runs import run_folder
from cfol_fast.runs.config import TrainConfig, to_dict
from cfol_fast.runs.metrics_log import MetricsLog
from cfol_fast.runs.run_folder import Start
from tests.training import tiny


@pytest.fixture
def run(tmp_path) -> Path:
    """A run that has trained."""
    folder = tmp_path / "run"
    run_folder.begin(folder, TrainConfig())
    MetricsLog(folder).append({})
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(folder: Path, message: str, **how) -> None:
    before = tree(folder)
    with pytest.raises(InputError, match=message):
        run_folder.check(folder, TrainConfig(), **how)
    assert tree(folder) == before


def test_a_new_folder_gets_the_configuration(tmp_path):
    config = TrainConfig(method="erm", epochs=3)
    assert run_folder.check(tmp_path / "run", config) is Start.NEW
    run_folder.begin(tmp_path / "run", config)
    assert run_folder.read_config(tmp_path / "run") == config


def test_an_existing_run_is_neither_continued_nor_overwritten_unasked(run):
    refused(run, "exists: --resume continues it, --overwrite renames it and starts afresh")


def test_a_run_that_ended_before_its_first_step_does_not_block_its_folder(tmp_path):
    run_folder.begin(tmp_path, TrainConfig(epochs=3))
    (tmp_path / "checkpoints").mkdir()
    assert run_folder.check(tmp_path, TrainConfig(epochs=4)) is Start.NEW


def test_resuming_names_the_keys_that_changed(tmp_path):
    run_folder.begin(tmp_path / "run", TrainConfig(epochs=3, params={"eta": 1.0}))
    changed = TrainConfig(epochs=4, params={"eta": 2.0})
    with pytest.raises(InputError, match=r"epochs \(was 3, now 4\), params.eta \(was 1.0, now 2.0\)"):
        run_folder.check(tmp_path / "run", changed, resume=True)


def test_a_run_may_move_with_its_data(run):
    moved = {"out": "there", "data.root": "/elsewhere"}
    assert run_folder.check(run, TrainConfig().with_settled(moved), resume=True) is Start.CONTINUE


def test_resume_asks_for_a_run_and_auto_does_not(tmp_path, run):
    refused(tmp_path / "typo", "typo is not a run folder: it has no config.json", resume=True)
    assert run_folder.check(tmp_path / "typo", TrainConfig(), resume="auto") is Start.NEW
    for resume in (True, "auto"):
        assert run_folder.check(run, TrainConfig(), resume) is Start.CONTINUE


def test_resume_tolerates_other_files(run):
    (run / "notes.txt").write_text("mine")
    (run / ".git").mkdir()
    assert run_folder.check(run, TrainConfig(), resume=True) is Start.CONTINUE


def test_resume_and_overwrite_contradict_each_other(run):
    refused(run, "contradict", resume="auto", overwrite=True)


FOREIGN = [
    {"model_type": "bert", "hidden_size": 768},
    {"method": "cfol"},
    {},
    {**{key: {} for key in run_folder.ALWAYS_CONFIGURED}, "method": "cfol", "hidden": 3},
]


@pytest.mark.parametrize("how", [{}, {"overwrite": True}, {"resume": True}, {"resume": "auto"}])
@pytest.mark.parametrize("config", FOREIGN, ids=["keys of others", "one key", "empty", "a key too many"])
def test_a_configuration_of_others_makes_no_run_folder(tmp_path, config, how):
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/mine.pt").write_text("weeks of training")
    refused(tmp_path, r"config\.json is not the configuration of a run", **how)


@pytest.mark.parametrize("how", [{}, {"overwrite": True}, {"resume": "auto"}])
@pytest.mark.parametrize("name", ["thesis.tex", ".git/HEAD", ".bashrc", "checkpoints/mine.pt", "stage-1/x"])
def test_a_new_run_does_not_begin_among_other_things(tmp_path, name, how):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("years of work")
    refused(tmp_path, f"holds {Path(name).parts[0]}", **how)


@pytest.mark.parametrize("how", [{}, {"overwrite": True}, {"resume": "auto"}])
def test_a_run_without_its_configuration_is_left_alone(run, how):
    (run / "config.json").unlink()
    refused(run, "holds metrics.jsonl and no config.json", **how)


@pytest.mark.parametrize("how", [{}, {"overwrite": True}, {"resume": "auto"}])
def test_the_home_folder_and_the_root_are_no_place_for_a_run(tmp_path, monkeypatch, how):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "link").symlink_to(tmp_path)
    for place in (tmp_path, tmp_path / "link", tmp_path / "a/..", Path("/")):
        with pytest.raises(InputError, match="is no place for a run"):
            run_folder.check(place, TrainConfig(), **how)


def test_a_user_without_a_home_folder_may_train(tmp_path, monkeypatch):
    """A container may run as any number, which no password file knows."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    assert run_folder.check(tmp_path / "run", TrainConfig()) is Start.NEW


def test_a_run_may_be_overwritten_and_a_folder_without_one_is_new(run, tmp_path):
    assert run_folder.check(run, TrainConfig(), overwrite=True) is Start.OVERWRITE
    assert run_folder.check(tmp_path / "other", TrainConfig(), overwrite=True) is Start.NEW


def test_a_link_is_refused_with_the_command_that_does_the_same(run, tmp_path):
    link = tmp_path.parent / f"{tmp_path.name}-link"
    link.symlink_to(run)
    with pytest.raises(InputError, match="is a link, which --overwrite does not rename") as refusal:
        run_folder.check(link, TrainConfig(), overwrite=True)
    before = tree(run)
    command = str(refusal.value).split("Type: ")[1]
    assert os.system(command) == 0
    assert run_folder.check(link, TrainConfig()) is Start.NEW
    assert tree(run.with_name(f"{run.name}.old-1")) == before


def test_a_mount_point_is_refused_with_the_command_that_does_the_same(run, monkeypatch):
    ismount = os.path.ismount
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == run or ismount(path))
    with pytest.raises(InputError, match="is a mount point, which --overwrite does not rename") as refusal:
        run_folder.check(run, TrainConfig(), overwrite=True)
    before = tree(run)
    assert os.system(str(refusal.value).split("Type: ")[1]) == 0
    assert run_folder.check(run, TrainConfig()) is Start.NEW
    assert tree(run.with_name(f"{run.name}.old-1")) == before


@pytest.mark.parametrize("out", [".", "checkpoints/.."])
def test_the_folder_that_the_shell_is_in_is_not_renamed(run, monkeypatch, out):
    (run / "checkpoints").mkdir()
    monkeypatch.chdir(run)
    with pytest.raises(InputError, match="is a current folder"):
        run_folder.check(Path(out), TrainConfig(), overwrite=True)


def test_names_of_old_runs_are_counted_on(run):
    assert run_folder.free_old_name(run).name == f"{run.name}.old-1"
    run.with_name(f"{run.name}.old-1").symlink_to("nowhere")
    assert run_folder.free_old_name(run).name == f"{run.name}.old-2"
    names = {"run.old-1": True, "run.old-12": True, "run.old-": False, "run.old-1b": False, ".old-1": False}
    assert {name: run_folder.is_old(Path(name)) for name in names} == names


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(InputError, match="is a file, not a folder"):
        run_folder.check(tmp_path / "run", TrainConfig())


def test_a_row_that_cannot_be_written_takes_no_other_row_with_it(run, monkeypatch):
    """Appending in place could tear rows that a checkpoint counts on."""
    before = (run / "metrics.jsonl").read_bytes()

    def torn(source, target):
        Path(source).write_bytes(Path(source).read_bytes()[:1])
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", torn)
        with pytest.raises(OSError, match="killed"):
            MetricsLog(run).append({})
    assert (run / "metrics.jsonl").read_bytes() == before
    MetricsLog(run).append({})
    assert (run / "metrics.jsonl").read_bytes() == before * 2


def test_a_run_of_version_0_2_is_read_unless_it_used_a_setting_that_is_gone(tmp_path):
    def with_data(**settings):
        tree = to_dict(tiny.tiny_config(tmp_path))
        tree["data"] |= settings
        # It came after 0.2.
        del tree["data"]["decode"]
        (tmp_path / "config.json").write_text(json.dumps(tree))
        return run_folder.read_config(tmp_path)

    assert with_data(source="resident", beton=None).data.name == "fashion-mini"
    with pytest.raises(InputError, match=r"data\.source='ffcv', a setting of version 0\.2 that is gone"):
        with_data(source="ffcv", beton="images")
