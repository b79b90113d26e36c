"""JSON and TOML that somebody edited: every complaint names the file and the place in it."""

import json
import os

import pytest

from cfol_fast.errors import InputError
from cfol_fast.runs.json_files import check_shape, made_from, read_json, read_lines, read_object, shape_of
from cfol_fast.runs.run_folder import read_config
from cfol_fast.runs.toml_files import read_toml

SHAPE = {"name!": str, "seed": int, "rates": [float], "shares": {str: (float, None)}, "on": bool}


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, json.dumps([[[0]]]).replace("0", "[" * 40 + "]" * 40)]
)
def test_deep_nesting_is_refused(tmp_path, text):
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(InputError, match=r"a\.json: nested more than 32 levels deep"):
        read_json(file)
    file.write_text(text + "\n")
    with pytest.raises(InputError, match=r"a\.json.* nested more than 32 levels deep"):
        read_lines(file)


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 50_000, "a = " + "{b=" * 50_000, "a = " + "[" * 40 + "]" * 40]
)
def test_deep_nesting_in_toml_is_refused(tmp_path, text):
    file = tmp_path / "a.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=r"a\.toml"):
        read_toml(file)


@pytest.mark.parametrize("text", ["Infinity", "-Infinity", "NaN", "1e400", str(2**63), "9" * 5000])
def test_numbers_that_other_readers_refuse_are_refused(tmp_path, text):
    file = tmp_path / "a.json"
    file.write_text(f'{{"seed": {text}}}')
    with pytest.raises(InputError, match=r"a\.json"):
        read_object(file)


@pytest.mark.parametrize("text", ["inf", "nan", "9" * 5000, "1e400"])
def test_such_numbers_in_toml_are_refused(tmp_path, text):
    file = tmp_path / "a.toml"
    file.write_text(f"seed = {text}")
    with pytest.raises(InputError, match=r"a\.toml"):
        read_toml(file)


@pytest.mark.parametrize("text", ["[]", "null", "3", '"x"', "true"])
def test_what_is_no_object_is_no_configuration(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "f has no 'name'"),
        ({"name": None}, "f has no 'name'"),
        ({"name": 3}, "f: name: expected text, found 3"),
        ({"name": "a", "seed": 1.5}, "f: seed: expected a whole number, found 1.5"),
        ({"name": "a", "seed": True}, "f: seed: expected a whole number, found True"),
        ({"name": "a", "seed": []}, "f: seed: expected a whole number, found list|found \\[\\]"),
        ({"name": "a", "rates": [1, "2"]}, r"f: rates\[1\]: expected a number, found '2'"),
        ({"name": "a", "rates": 1}, "f: rates: expected a list, found 1"),
        ({"name": "a", "shares": {"x": None, "y": []}}, "f: shares: 'y': expected a number"),
        ({"name": "a", "on": 1}, "f: on: expected true or false, found 1"),
        ([], "f: expected an object"),
    ],
)
def test_another_shape_is_refused_with_its_place(value, message):
    with pytest.raises(InputError, match=message):
        check_shape(value, SHAPE, "f")


def test_what_fits_passes_and_other_names_are_not_looked_at():
    check_shape(
        {"name": "a", "seed": None, "rates": [1, 0.5], "shares": {"x": None}, "other": []}, SHAPE, "f"
    )


def test_a_type_hint_is_a_shape():
    assert shape_of(dict[str, list[int] | None]) == {str: ([int], None)}


def test_what_files_make_fail_is_their_fault_and_said_so(tmp_path):
    with (
        pytest.raises(InputError, match=r"t\.json is not as cfol-fast wrote it \(KeyError: 'a'"),
        made_from(tmp_path / "t.json"),
    ):
        {}["a"]
    with pytest.raises(InputError, match=r"^as it is$"), made_from(tmp_path):
        raise InputError("as it is")


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(InputError, match="it is no file"):
        read_json(tmp_path / "config.json")
