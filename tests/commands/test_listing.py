"""`methods`, `models` and `datasets`: every name that `train` takes."""

import json

import pytest

from cfol_fast import data, models
from cfol_fast.commands import main as cli
from cfol_fast.methods import METHODS

LISTS = [("methods", METHODS), ("datasets", data.names()), ("models", models.names())]


@pytest.mark.parametrize(("command", "names"), LISTS, ids=[row[0] for row in LISTS])
def test_the_table_and_the_json_have_every_name_in_order(capsys, command, names):
    assert cli.main([command]) == 0
    table = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert cli.main([command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows][: len(names)] == list(names)
    assert table == [row["name"].split()[0] for row in rows]
    assert all(row["title"] for row in rows)


def test_json_says_what_a_choice_brings_with_it(capsys):
    cli.main(["methods", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["cfol"]["parameters"].keys() == METHODS["cfol"].defaults.keys()
    cli.main(["datasets", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["fashion-mini"]["eps"], rows["fashion-mini"]["model"]) == (0.1, "demo-cnn")


def test_a_name_that_a_plugin_registers_is_listed(capsys, monkeypatch):
    monkeypatch.setitem(models.zoo.REGISTERED, "my-net", lambda k, c, size: None)
    cli.main(["models", "--json"])
    assert "my-net" in [row["name"] for row in json.loads(capsys.readouterr().out)]
