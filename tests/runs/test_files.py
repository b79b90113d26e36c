"""What a run leaves on the disk: checkpoints that recognise damage, metrics that are cut back, folders that are guarded."""

import os

import pytest
import torch

from cfol_fast.errors import InputError
from cfol_fast.runs import run_folder
from cfol_fast.runs.checkpoints import CheckpointStore, DamagedCheckpoint, read
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.metrics_log import MetricsLog, read_rows


def saved(store: CheckpointStore, value: int):
    return store.save_last({"value": value, "weights": torch.full((1000,), float(value))})


def test_the_previous_checkpoint_is_kept(tmp_path):
    store = CheckpointStore(tmp_path)
    saved(store, 1)
    saved(store, 2)
    assert read(store.path("last"))["value"] == 2
    assert read(store.path("previous"))["value"] == 1
    assert sorted(p.name for p in store.folder.iterdir()) == ["last.pt", "previous.pt"]


@pytest.mark.parametrize("damage", ["truncated", "emptied", "one bit", "middle zeroed", "foreign", "missing"])
def test_a_damaged_checkpoint_is_recognised_and_the_previous_used(tmp_path, damage):
    store = CheckpointStore(tmp_path)
    saved(store, 1)
    path = saved(store, 2)
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "emptied":
        path.write_bytes(b"")
    elif damage == "one bit":
        start = content.index(torch.full((1000,), 2.0).numpy().tobytes())  # within the tensor's record
        content[start + 1777] ^= 0x10
        path.write_bytes(content)
    elif damage == "middle zeroed":
        middle = len(content) // 2
        content[middle : middle + 512] = bytes(512)
        path.write_bytes(content)
    elif damage == "foreign":
        path.write_bytes(b"this is not a checkpoint")
    else:
        path.unlink()
    state, name, complaint = store.newest()
    assert (state["value"], name) == (1, "previous")
    assert (complaint is None) == (damage == "missing")


def test_no_checkpoint_is_not_an_error_but_only_damaged_ones_are(tmp_path):
    store = CheckpointStore(tmp_path)
    assert store.newest() is None
    saved(store, 1).write_bytes(b"x")
    with pytest.raises(InputError, match="no whole checkpoint before it"):
        store.newest()


def test_a_checkpoint_that_is_no_dict_is_refused(tmp_path):
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(DamagedCheckpoint, match="holds list"):
        read(tmp_path / "list.pt")


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path):
    log = MetricsLog(tmp_path)
    log.append({"kind": "train", "epoch": 1})
    size = log.size
    log.append({"kind": "train", "epoch": 2})
    log.cut(size)
    assert [row["epoch"] for row in read_rows(tmp_path)] == [1]
    with pytest.raises(InputError, match="rows have been removed"):
        log.cut(size + 1)


def test_a_half_written_row_is_left_out(tmp_path):
    log = MetricsLog(tmp_path)
    log.append({"epoch": 1})
    with open(log.path, "ab") as file:
        file.write(b'{"epoch": 2, "lo')
    assert [row["epoch"] for row in read_rows(tmp_path)] == [1]


def test_listeners_hear_every_row_and_json_has_no_nan(tmp_path):
    heard = []
    MetricsLog(tmp_path, (heard.append,)).append({"class_error": [0.5, float("nan")]})
    assert len(heard) == 1
    assert list(read_rows(tmp_path)) == [{"class_error": [0.5, None]}]


def test_a_new_folder_gets_the_configuration(tmp_path):
    config = TrainConfig(method="erm", epochs=3)
    run_folder.prepare(tmp_path / "a" / "run", config, resume=False, overwrite=False)
    assert run_folder.read_config(tmp_path / "a" / "run") == config


def test_an_existing_run_is_neither_continued_nor_overwritten_unasked(tmp_path):
    run_folder.prepare(tmp_path / "run", TrainConfig(), resume=False, overwrite=False)
    MetricsLog(tmp_path / "run").append({})
    with pytest.raises(InputError, match="exists: --resume continues it, --overwrite starts it afresh"):
        run_folder.prepare(tmp_path / "run", TrainConfig(), resume=False, overwrite=False)


def test_a_run_that_ended_before_its_first_step_does_not_block_its_folder(tmp_path):
    for epochs in (3, 4):
        run_folder.prepare(tmp_path / "run", TrainConfig(epochs=epochs), resume=False, overwrite=False)
    assert run_folder.read_config(tmp_path / "run").epochs == 4


def test_resuming_names_the_keys_that_changed(tmp_path):
    run_folder.prepare(
        tmp_path / "run", TrainConfig(epochs=3, params={"eta": 1.0}), resume=True, overwrite=False
    )
    changed = TrainConfig(epochs=4, params={"eta": 2.0})
    with pytest.raises(InputError, match=r"epochs \(was 3, now 4\), params.eta \(was 1.0, now 2.0\)"):
        run_folder.prepare(tmp_path / "run", changed, resume=True, overwrite=False)


def test_a_run_may_move_with_its_data(tmp_path):
    config = TrainConfig(out="here")
    run_folder.prepare(tmp_path / "run", config, resume=False, overwrite=False)
    moved = TrainConfig(out="there")
    moved.data.root = "/elsewhere"
    run_folder.prepare(tmp_path / "run", moved, resume=True, overwrite=False)


def test_overwriting_removes_the_runs_files_and_nothing_else(tmp_path):
    run = tmp_path / "run"
    run_folder.prepare(run, TrainConfig(), resume=False, overwrite=False)
    MetricsLog(run).append({})
    saved(CheckpointStore(run), 1)
    (run / "notes.txt").write_text("mine")
    run_folder.prepare(run, TrainConfig(), resume=False, overwrite=True)
    assert sorted(p.name for p in run.iterdir()) == ["config.json", "notes.txt"]


def test_a_folder_that_is_no_run_is_never_overwritten(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="is not a run folder"):
        run_folder.prepare(tmp_path, TrainConfig(), resume=False, overwrite=True)


def test_a_folder_of_other_things_is_not_trained_in(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="exists"):
        run_folder.prepare(tmp_path, TrainConfig(), resume=True, overwrite=False)


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(InputError, match="is a file, not a folder"):
        run_folder.prepare(tmp_path / "run", TrainConfig(), resume=False, overwrite=False)
    with pytest.raises(InputError, match="cannot create"):
        run_folder.prepare(tmp_path / "run" / "below", TrainConfig(), resume=False, overwrite=False)


def test_two_processes_cannot_train_in_one_folder(tmp_path):
    read_end, write_end = os.pipe()
    with run_folder.RunLock(tmp_path):
        child = os.fork()
        if child == 0:
            try:
                with run_folder.RunLock(tmp_path):
                    os.write(write_end, b"entered")
            except InputError:
                os.write(write_end, b"refused")
            os._exit(0)
        os.waitpid(child, 0)
    assert os.read(read_end, 100) == b"refused"
    with run_folder.RunLock(tmp_path):
        pass
