"""results/SCALE/predictions.json.gz as somebody else may hand it over: what is no such file is refused in one
sentence.
"""

import gzip
import json
import os

import pytest

from cfol_fast.errors import InputError
from cfol_fast.recipes import kept_predictions

WHOLE = gzip.compress(json.dumps({"format": 1, "labels": [], "runs": {}}).encode())
BROKEN = {
    "deep": (gzip.compress(b'{"format": 1, "runs": ' + b"[" * 100_000), "nested more than 32 levels deep"),
    "a list": (gzip.compress(b"[]"), "expected a JSON object, found list"),
    "another format": (gzip.compress(b'{"format": 2}'), "not a file of predictions of format 1"),
    "another shape": (
        gzip.compress(b'{"format": 1, "labels": [], "runs": {"a": 3}}'),
        "runs: 'a': expected a list",
    ),
    "no text": (gzip.compress(b"\xff"), "not a file of predictions"),
    "no end": (WHOLE[:-4], "not a file of predictions"),
    "no gzip": (b"{}", "not a file of predictions"),
    "damaged": (WHOLE[:10] + b"\xff\xff" + WHOLE[12:], "not a file of predictions"),
}


@pytest.mark.parametrize(("held", "message"), BROKEN.values(), ids=BROKEN)
def test_what_is_no_file_of_predictions_is_refused_in_one_sentence(tmp_path, held, message):
    (tmp_path / kept_predictions.FILE).write_bytes(held)
    with pytest.raises(InputError, match=message) as caught:
        kept_predictions.read(tmp_path)
    assert kept_predictions.FILE in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_small_file_does_not_become_a_large_one(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_predictions, "MOST_BYTES", 1 << 20)
    (tmp_path / kept_predictions.FILE).write_bytes(gzip.compress(b" " * (1 << 20) + b"{}"))
    with pytest.raises(InputError, match="holds more than 1 MiB"):
        kept_predictions.read(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / kept_predictions.FILE)
    with pytest.raises(InputError, match="it is no file"):
        kept_predictions.read(tmp_path)
