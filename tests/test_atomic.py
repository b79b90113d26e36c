"""Files appear whole or not at all."""

import json
import os

import pytest
import torch

from cfol_fast import atomic


def test_a_file_is_replaced_in_one_go(tmp_path):
    path = tmp_path / "a.json"
    atomic.write_json(path, {"a": 1})
    atomic.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "a.bin"
    atomic.write_bytes(path, b"old")

    def break_off():
        with atomic.replacing(path) as file:
            file.write(b"half")
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="the disk is full"):
        break_off()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_nan_is_not_json(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        atomic.write_json(tmp_path / "a.json", {"a": float("nan")})
    assert os.listdir(tmp_path) == []


def test_tensors_come_back_without_pickled_code(tmp_path):
    atomic.save_torch(tmp_path / "a.pt", {"w": torch.arange(3), "step": 7})
    state = torch.load(tmp_path / "a.pt", weights_only=True)
    assert state["step"] == 7
    assert torch.equal(state["w"], torch.arange(3))


def test_a_result_is_as_readable_as_any_file(tmp_path):
    old = os.umask(0o022)
    try:
        atomic.write_text(tmp_path / "a.txt", "hello")
    finally:
        os.umask(old)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o644
