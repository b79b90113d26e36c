"""Finished runs in one file: what goes in comes out, byte by byte, and a file that is not as it was written
puts nothing anywhere.
"""

import hashlib
import io
import json
import lzma
import tarfile

import pytest

from cfol_fast.commands.main import main
from cfol_fast.errors import InputError
from cfol_fast.recipes import kept_runs
from cfol_fast.recipes.frontier import carrying_out, facts, plan
from cfol_fast.runs.config import TrainConfig, to_dict
from tests.listening import listening
from tests.recipes import fake_frontier, tiny_frontier


@pytest.fixture
def place(tmp_path):
    table = plan.read()
    return plan.Place(table, table.scales["mini"], device="cpu")


@pytest.fixture
def one(place, tmp_path):
    """A finished run in tmp_path/runs, and the file that it is kept in."""
    job = place.run(place.table.row("erm"), {}, 10)
    fake_frontier.write(job, tmp_path, worst=30, others=60)
    folder = job.folder(tmp_path)
    (folder / "config.json").write_text(json.dumps(to_dict(job.config)))
    kept_runs.write(tmp_path / "kept.tar.xz", {job.name: kept_runs.of_folder(folder, ("offsets.json",))})
    return job, tmp_path / "kept.tar.xz"


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_a_run_comes_out_as_it_went_in(one, tmp_path):
    job, file = one
    (tmp_path / "elsewhere").mkdir()
    assert kept_runs.take(file, tmp_path / "elsewhere") == ([job.name], [])
    found, before = contents(tmp_path / "elsewhere" / job.name), contents(job.folder(tmp_path))
    # All but where it was trained, byte by byte.
    held = json.loads(before.pop("config.json"))
    assert json.loads(found["config.json"]) == {**held, "out": None}
    assert {name: held for name, held in found.items() if name != "config.json"} == before
    assert found.keys() == {"config.json", "metrics.jsonl", "result.json", "predictions.json", "offsets.json"}
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == [job.name]


def test_the_same_runs_give_the_same_file(one):
    _, file = one
    before = file.read_bytes()
    kept_runs.write(file, kept_runs.read(file))
    assert file.read_bytes() == before


def test_a_folder_that_is_there_is_left_as_it_is(one, tmp_path):
    job, file = one
    there = tmp_path / "elsewhere" / job.name
    there.mkdir(parents=True)
    (there / "config.json").write_text("under way")
    assert kept_runs.take(file, there.parent) == ([], [])
    assert contents(there) == {"config.json": b"under way"}


def test_a_run_that_is_another_by_its_configuration_is_left_out(one, tmp_path):
    job, file = one
    kept = kept_runs.read(file)
    other = to_dict(TrainConfig(method="erm", seed=11))
    kept[job.name]["config.json"] = json.dumps(other).encode()
    kept_runs.write(file, kept)
    (tmp_path / "elsewhere").mkdir()
    assert kept_runs.take(file, tmp_path / "elsewhere") == ([], [job.name])
    assert not list((tmp_path / "elsewhere").iterdir())


def packed(members, **manifest):
    """A file with these members, and a manifest that has their digests, as somebody with ill intent would
    write it.
    """
    files = {name: hashlib.sha256(held).hexdigest() for name, held in members if isinstance(name, str)}
    said = json.dumps({"format": 1, "kind": "kept runs", "files": files, **manifest}).encode()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, held in [("MANIFEST.json", said), *members]:
            entry = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            entry.size = len(held)
            tar.addfile(entry, io.BytesIO(held))
    return lzma.compress(out.getvalue())


def link():
    entry = tarfile.TarInfo("a/result.json")
    entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return entry


@pytest.mark.parametrize(
    ("held", "complaint"),
    [
        (b"", "not a file of kept runs"),
        (b"no archive", "not a file of kept runs"),
        (lzma.compress(b"no archive"), "not a file of kept runs"),
        (packed([])[:-20], "not a file of kept runs"),
        (packed([], kind="letters"), "not a file of kept runs"),
        (packed([], format=2), "not a file of kept runs of format 1"),
        (packed([], files={"a/result.json": "0" * 64}), "damaged: a/result.json"),
        (packed([("a/result.json", b"{}")], files={"a/result.json": "0" * 64}), "damaged: a/result.json"),
        (packed([("a/result.json", b"{}")], files={}), "damaged: a/result.json"),
        (packed([("../a/result.json", b"{}")]), "no file of a kept run"),
        (packed([("/tmp/result.json", b"{}")]), "no file of a kept run"),
        (packed([("../result.json", b"{}")]), "no file of a kept run"),
        (packed([("a/.bashrc", b"{}")]), "no file of a kept run"),
        (packed([("a/checkpoints/last.pt", b"{}")]), "no file of a kept run"),
        (packed([("a/eval-../../x.json", b"{}")]), "no file of a kept run"),
        (packed([("a/result.json", b"{}")]), "a has no config.json"),
        (
            packed([("a/config.json", b"{}"), ("a/result.json", b"{}"), ("a/result.json", b"{}")]),
            "no plain file",
        ),
        (packed([(link(), b"")]), "no plain file"),
        (packed([("a/config.json", b"[]"), ("a/result.json", b"{}")]), "expected a JSON object"),
        (packed([]) + b"more", "its end is elsewhere"),
        (packed([("a/config.json", b"\xff"), ("a/result.json", b"{}")]), "not as cfol-fast wrote it"),
    ],
)
def test_a_file_that_is_not_as_it_was_written_puts_nothing_anywhere(tmp_path, held, complaint):
    (tmp_path / "x.tar.xz").write_bytes(held)
    (tmp_path / "runs").mkdir()
    with pytest.raises(InputError, match=complaint):
        kept_runs.take(tmp_path / "x.tar.xz", tmp_path / "runs")
    assert {path.name for path in tmp_path.rglob("*")} == {"x.tar.xz", "runs"}


def test_a_file_that_unpacks_to_too_much_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_runs, "MOST_BYTES", 1 << 16)
    (tmp_path / "x.tar.xz").write_bytes(lzma.compress(bytes(1 << 20)))
    with pytest.raises(InputError, match="holds more than"):
        kept_runs.read(tmp_path / "x.tar.xz")


def finished(place, out, jobs, worst=30):
    for job in jobs:
        fake_frontier.write(job, out, worst, others=60)
        (job.folder(out) / "config.json").write_text(json.dumps(to_dict(job.config)))
        (job.folder(out) / "gallery.json").write_text("{}")
        (job.folder(out) / "checkpoints").mkdir(exist_ok=True)
        for name in ("best-average", "last"):
            (job.folder(out) / f"checkpoints/{name}.pt").write_bytes(b"weights")


@pytest.fixture
def unfinished(tmp_path):
    """The search of a table is there, and its first seed of two; AutoAttack is still to come.

    With a run of something else.
    """
    rows = tiny_frontier.write(
        tmp_path / "rows.toml", tiny_frontier.ERM, tiny_frontier.CFOL, tiny_frontier.LCVAR
    )
    rows.write_text(rows.read_text().replace("search_seed = 9", 'search_seed = 9\nautoattack = ["erm"]'))
    table = plan.read(rows)
    place, out = plan.Place(table, table.scales["mini"], device="cpu"), tmp_path / "mini"
    searched = [place.search_run(row, settings) for row in table.rows[1:] for settings in row.grid]
    first = [place.run(row, row.grid[0], 0) for row in table.rows]
    finished(place, out, [*searched, *first, place.run(table.row("erm"), {}, 77)])
    return place, out, rows, searched, first


def test_what_the_table_needs_is_kept_of_its_finished_runs_and_of_no_others(unfinished, tmp_path):
    _, out, rows, searched, first = unfinished
    file = tmp_path / "kept/runs.tar.xz"
    assert carrying_out.keep_finished("mini", file, out, rows=rows) == 6
    kept = kept_runs.read(file)
    assert kept.keys() == {job.name for job in [*searched, *first]}
    records = {"config.json", "metrics.jsonl", "result.json", "predictions.json"}
    assert all(kept[job.name].keys() == records for job in searched)
    # The page shows pictures of ERM, CFOL and the best rival, here all there are; AutoAttack needs the
    # weights of ERM and the rival.
    for job, needs in zip(first, [True, False, True], strict=True):
        more = {"offsets.json", "gallery.json"} | ({"checkpoints/best-average.pt"} if needs else set())
        assert kept[job.name].keys() == records | more


def test_weights_are_not_kept_once_autoattack_has_been_there(unfinished, tmp_path):
    _, out, rows, _, first = unfinished
    attack = first[0].evaluation_file(out, carrying_out.ATTACK, facts.RULE)
    attack.write_text("{}")
    carrying_out.keep_finished("mini", tmp_path / "x.tar.xz", out, rows=rows)
    assert kept_runs.read(tmp_path / "x.tar.xz")[first[0].name].keys() >= {attack.name, "offsets.json"}
    assert "checkpoints/best-average.pt" not in kept_runs.read(tmp_path / "x.tar.xz")[first[0].name]


def test_a_run_without_its_offsets_is_not_finished(unfinished, tmp_path):
    _, out, rows, _, first = unfinished
    (first[1].folder(out) / "offsets.json").unlink()
    assert carrying_out.keep_finished("mini", tmp_path / "x.tar.xz", out, rows=rows) == 5
    assert first[1].name not in kept_runs.read(tmp_path / "x.tar.xz")


def test_keeping_never_loses_what_the_file_has_of_another_machine(unfinished, tmp_path):
    place, out, rows, searched, first = unfinished
    file = tmp_path / "x.tar.xz"
    carrying_out.keep_finished("mini", file, out, rows=rows)
    here = tmp_path / "another machine"
    finished(place, here, searched[:1], worst=20)
    said = []
    with listening(said.append):
        assert carrying_out.keep_finished("mini", file, here, rows=rows) == 6
    assert "6 runs, 0 of them new" in said[0]
    assert kept_runs.read(file).keys() == {job.name for job in [*searched, *first]}


def test_the_command_keeps_and_says_what_does_not_go_together(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "frontier", "--scale", "mini", "--keep", "x.tar.xz"]) == 0
    assert "x.tar.xz: 0 runs" in capsys.readouterr().out
    assert main(["reproduce", "cifar10", "--scale", "mini", "--keep", "x.tar.xz"]) == 2
    assert main(["reproduce", "frontier", "--scale", "mini", "--keep", "x", "--take", "x"]) == 2
    assert main(["reproduce", "frontier", "--keep", "x.tar.xz"]) == 2
    errors = capsys.readouterr().err
    assert "belong to frontier" in errors
    assert "give one of them" in errors
    assert "nothing is trained" in errors
