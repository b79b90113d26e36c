"""What a run leaves on the disk: checkpoints that recognise damage, metrics that are cut back."""

import pytest
import torch

from cfol_fast.errors import InputError
from cfol_fast.runs.checkpoints import CheckpointStore, DamagedCheckpoint, read, write
from cfol_fast.runs.metrics_log import MetricsLog, read_rows


def saved(store: CheckpointStore, value: int):
    return store.save_last({"format": 1, "value": value, "weights": torch.full((1000,), float(value))})


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
    with pytest.raises(InputError, match="no whole checkpoint that fits before it"):
        store.newest()


def test_a_checkpoint_that_is_no_dict_is_refused(tmp_path):
    write(tmp_path / "list.pt", [1, 2])
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


def test_json_has_no_nan(tmp_path):
    MetricsLog(tmp_path).append({"class_error": [0.5, float("nan")]})
    assert list(read_rows(tmp_path)) == [{"class_error": [0.5, None]}]
