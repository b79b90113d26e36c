"""A tiny recipe from end to end: carried out, killed, continued, in parallel; and every mistake told before
anything is trained.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from cfol_fast import models
from cfol_fast.commands import main as cli
from cfol_fast.errors import InputError, Stopped, TrainingFailed
from cfol_fast.recipes import list_recipes, load_recipe, plan, reproduce
from cfol_fast.recipes.reproduction import Loader
from cfol_fast.recipes.runner import workers
from cfol_fast.runs.config import TrainConfig
from tests.listening import listening

SHORT = (
    '"model.name" = "demo-cnn@0.25", epochs = 3, steps_per_epoch = 2, batch_size = 16, "attack.steps" = 1, '
    '"validation.steps" = 1, "test.steps" = 1, "data.holdout" = "0.25"'
)
BARS = '{ name = "robust", kind = "bars", title = "Bars", panels = [["erm", "robust"], ["cfol", "robust"]] }'
TINY = f"""\
title = "Tiny: two methods, two steps an epoch"
seeds = {{ paper = [0], mini = [0] }}
numbers = ["cifar10"]
mini = {{ {SHORT} }}
blocks = [{{ name = "cifar10", title = "CIFAR-10", run = {{ "data.name" = "cifar10" }} }}]
entries = [
  {{ name = "erm", title = "ERM-AT", run = {{ method = "erm" }} }},
  {{ name = "cfol", title = "CFOL-AT", run = {{ method = "cfol" }} }},
]
claims = [{{ better = "cfol", than = "erm", metric = "robust.worst" }}]
figures = [{BARS}]
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images: 4 classes, 12 images each for training and 4 for the test, 12 x 12 pixels."""
    from PIL import Image

    root = tmp_path_factory.mktemp("images")
    generator = torch.Generator().manual_seed(0)
    for part, count in (("train", 12), ("test", 4)):
        for c in range(4):
            place = root / part / f"class{c}"
            place.mkdir(parents=True)
            for i in range(count):
                pixels = (torch.rand(12, 12, 3, generator=generator) * 120 + 30 * c).byte().numpy()
                Image.fromarray(pixels).save(place / f"{i}.png")
    return root


def table_of(folder: Path) -> dict[str, Any]:
    """A table without its times and where it was made."""
    table: dict[str, Any] = json.loads((folder / "table.json").read_text(encoding="utf-8"))
    return {key: value for key, value in table.items() if key not in ("seconds", "command")}


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "cfol_fast", "reproduce", *map(str, words)]


@pytest.mark.slow
def test_a_recipe_that_was_killed_continues_to_the_same_table(
    tiny: Path, images: Path, tmp_path: Path
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    (expected,) = reproduce(tiny, "mini", whole, images, quiet=True)

    process = subprocess.Popen(
        command(tiny, "--scale", "mini", "--out", broken, "--data", images),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    runs = broken / "runs"
    while process.poll() is None and not list(runs.glob("*/metrics.jsonl")):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (broken / "tiny").exists()
    assert not all(job.finished(broken) for job in plan(load_recipe(tiny), "mini", images).jobs())

    (found,) = reproduce(tiny, "mini", broken, images, quiet=True)
    assert table_of(found) == table_of(expected)
    assert (found / "robust.svg").exists()
    erm = table_of(found)["blocks"][0]["entries"][0]
    assert erm["values"]["clean.worst"]["paper"] == 0.6330


@pytest.mark.slow
def test_what_is_there_is_not_trained_again(
    tiny: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    with listening(lines.append):
        (folder,) = reproduce(tiny, "mini", tmp_path / "out", images, quiet=True)
    assert lines[0].startswith("2 runs, 0 of them finished already")
    (folder / "table.json").unlink()
    monkeypatch.setattr("cfol_fast.recipes.runner.carry_out", lambda *_: pytest.fail("trained again"))
    with listening(lines.append):
        (folder,) = reproduce(tiny, "mini", tmp_path / "out", images)
    assert any(line.startswith("2 runs, 2 of them finished already") for line in lines)
    assert (folder / "table.json").exists()


@pytest.mark.slow
def test_runs_can_go_in_parallel_and_a_failed_one_is_named(
    tiny: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    (folder,) = reproduce(tiny, "mini", out, images, parallel=2, device="cpu")
    single = reproduce(tiny, "mini", tmp_path / "single", images, quiet=True)[0]
    assert table_of(folder) == table_of(single)
    assert not any("Warning" in log.read_text(encoding="utf-8") for log in (out / "runs").glob("*.log"))

    job = plan(load_recipe(tiny), "mini", images).jobs()[0]
    (job.folder(out) / "result.json").unlink()
    (job.folder(out) / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(TrainingFailed, match=job.name):
        reproduce(tiny, "mini", out, images, parallel=1, device="cpu")
    assert "broken JSON" in (out / "runs" / f"{job.name}.log").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_stopped_parallel_reproduction_stops_its_runs_and_continues(
    tiny: Path, images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def stop_at_the_first_start(text: str) -> None:
        if text.startswith("started"):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped) as stopped, listening(stop_at_the_first_start):
        reproduce(tiny, "mini", out, images, parallel=1, device="cpu")
    assert stopped.value.signal_number == signal.SIGTERM
    (folder,) = reproduce(tiny, "mini", out, images, quiet=True)
    assert table_of(folder)["runs"]


@pytest.mark.slow
def test_another_attack_is_tested_once_and_kept(
    tiny: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.write_text(
        TINY.replace("\nclaims", '\nattack = { kind = "pgd", eps = "1/255", steps = 2 }\nclaims'),
        encoding="utf-8",
    )
    (folder,) = reproduce(tiny, "mini", tmp_path / "out", images, quiet=True)
    files = sorted((tmp_path / "out" / "runs").glob("*/eval-pgd-*.json"))
    assert len(files) == 2
    saved = json.loads(files[0].read_text(encoding="utf-8"))
    assert saved["attack"]["eps"] == pytest.approx(1 / 255)
    before = table_of(folder)
    monkeypatch.setattr("cfol_fast.evaluation.evaluate", lambda *_, **__: pytest.fail("tested again"))
    assert table_of(reproduce(tiny, "mini", tmp_path / "out", images)[0]) == before

    # A run that was stored without its checkpoints cannot be tested again.
    files[0].unlink()
    (files[0].parent / "checkpoints" / "best-average.pt").unlink()
    with pytest.raises(InputError, match=r"best-average\.pt"):
        reproduce(tiny, "mini", tmp_path / "out", images)


PRETRAINED = TINY.replace(
    '{ name = "erm", title = "ERM-AT", run = { method = "erm" } }',
    '{ name = "erm", title = "ERM-AT", run = { method = "erm" }, pretrained = { model = "resnet50", required'
    ' = true, hint = "from elsewhere" } }',
)


@pytest.mark.slow
def test_a_checkpoint_given_by_path_takes_a_columns_place(
    tiny: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write_text(PRETRAINED, encoding="utf-8")
    checkpoint = tmp_path / "given.pt"
    torch.save(models.create("demo-cnn@0.25", 4, 12, 3).state_dict(), checkpoint)
    (folder,) = reproduce(tiny, "mini", tmp_path / "out", images, checkpoints={"erm": checkpoint}, quiet=True)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("1 runs, 0 of them finished already")
    assert said[-1].startswith("tiny: ")
    assert not any(line.startswith("epoch") for line in said)
    table = table_of(folder)
    assert len(table["runs"]) == 1
    column = table["blocks"][0]["entries"][0]
    assert column["checkpoint"] == str(checkpoint)
    assert column["values"]["clean.average"]["mean"] is not None


def bad(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line on stderr of a command that is refused."""
    status = cli.main(["reproduce", *map(str, words)])
    captured = capsys.readouterr()
    assert status == 2
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    return captured.err


def test_an_unknown_recipe_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'cifar10'?" in bad(capsys, "cifr10")
    assert "name a recipe" in bad(capsys)


def test_missing_data_is_named_with_the_way_to_get_it_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, dataset, source in (
        ("cifar10", "cifar10", "cs.toronto.edu"),
        ("tiny-imagenet", "tiny-imagenet", "tiny-imagenet-200"),
        ("imagenette", "imagenette", "imagenette2-160"),
    ):
        message = bad(capsys, name, "--data", tmp_path, "--out", tmp_path / "out")
        assert f"recipe {name} needs the data set {dataset}" in message
        assert source in message
    assert "--data DIR says where it is" in bad(capsys, "cifar10", "--out", tmp_path / "out")
    assert not list(tmp_path.glob("out/runs/*"))


@pytest.mark.slow
def test_a_checkpoint_that_does_not_fit_is_refused_before_anything_is_trained(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write_text(PRETRAINED, encoding="utf-8")
    out, given = tmp_path / "out", tmp_path / "given.pt"
    base = (tiny, "--scale", "mini", "--out", out, "--checkpoint")
    assert "there is no checkpoint" in bad(capsys, *base, f"erm={given}")
    torch.save(models.create("demo-cnn", 7, 28, 1).state_dict(), given)
    assert "is not a demo-cnn@0.25 with 10 classes" in bad(capsys, *base, f"erm={given}")
    assert "no column 'cfol' that takes a checkpoint" in bad(capsys, *base, f"cfol={given}")
    assert "--checkpoint takes COLUMN=FILE, got 'erm'" in bad(capsys, *base, "erm")
    assert "none of the recipes has a column 'best'" in bad(capsys, "seeds", *base, f"best={given}")
    assert not list(tmp_path.glob("out/runs/*"))


def test_a_model_or_setting_that_does_not_fit_is_refused_before_anything_is_trained(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write_text(TINY.replace("demo-cnn@0.25", "resnet19"), encoding="utf-8")
    assert "no model is called 'resnet19'" in bad(capsys, tiny, "--scale", "mini", "--out", tmp_path / "out")
    tiny.write_text(TINY.replace('method = "cfol"', 'method = "cfl"'), encoding="utf-8")
    assert "did you mean 'cfol'" in bad(capsys, tiny, "--scale", "mini", "--out", tmp_path / "out")
    tiny.write_text(TINY.replace("batch_size", "batchsize"), encoding="utf-8")
    assert "did you mean 'batch_size'" in bad(capsys, tiny, "--scale", "mini", "--out", tmp_path / "out")
    assert not list(tmp_path.glob("out/runs/*"))


def test_autoattack_is_asked_for_before_anything_is_trained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install pyautoattack"):
        reproduce("autoattack", "mini", tmp_path)


def test_parallel_takes_the_gpus_or_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert workers(None) == []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert workers(0) == [{"OMP_NUM_THREADS": "1"}] * 4
    assert workers(2) == [{"OMP_NUM_THREADS": "2"}] * 2
    with pytest.raises(InputError, match="got -1"):
        workers(-1)
    monkeypatch.setattr("cfol_fast.recipes.runner.why_no_cuda", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert workers(0) == [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert workers(1) == [{"CUDA_VISIBLE_DEVICES": "4"}]
    with pytest.raises(InputError, match="2 GPU"):
        workers(3)


@pytest.mark.slow
def test_the_list_names_recipes_runs_and_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reproduce", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*list_recipes(), "frontier"]
    assert "4 runs" in lines[0]
    assert "GPU hours" in lines[0]
    assert "Table 1" in lines[0]


def test_a_dry_run_shows_what_is_missing_and_trains_nothing(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        cli.main(["reproduce", str(tiny), "--scale", "mini", "--out", str(tmp_path / "out"), "--dry-run"])
        == 0
    )
    out = capsys.readouterr().out
    assert out.count("missing  fashion-mini-") == 2
    assert "2 runs, 2 missing" in out
    assert not (tmp_path / "out").exists()


def test_a_column_that_needs_a_checkpoint_says_so_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["reproduce", "larger-models", "--out", str(tmp_path), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "without   ERM-AT of larger-models, which needs the robust ResNet-50" in out
    assert out.index("without") < out.index("missing")
    assert "not ready recipe larger-models needs the data set cifar10" in out
    path = tmp_path / "no.pt"
    command = ["reproduce", "larger-models", "--scale", "mini", "--out", str(tmp_path), "--dry-run"]
    assert cli.main([*command, "--checkpoint", f"erm={path}"]) == 0
    assert f"not ready there is no checkpoint {path}" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def test_a_name_in_capitals_is_understood_well_enough_to_help() -> None:
    with pytest.raises(InputError, match="did you mean 'all'"):
        load_recipe("ALL")


@pytest.mark.slow
def test_the_assumed_arithmetic_of_the_cost_estimate_is_that_of_the_models() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from cfol_fast.recipes.planning import scales

    for name, giga in scales()["cost"]["giga_macs"].items():
        model = models.create(name, 10, 32, 3).to("meta").eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.empty(1, 3, 32, 32, device="meta"))
        assert counter.get_total_flops() / 2e9 == pytest.approx(giga, rel=0.05), name


def workers_of(marker: str) -> list[int]:
    """The live processes whose environment holds the marker."""
    found = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if (
                marker.encode() in place.read_bytes()
                and place.with_name("stat").read_text().split()[2] != "Z"
            ):
                found.append(int(place.parent.name))
    return found


@pytest.mark.slow
def test_a_parallel_reproduction_that_is_killed_takes_its_workers_with_it(
    tiny: Path, images: Path, tmp_path: Path
) -> None:
    tiny.write_text(TINY.replace("steps_per_epoch = 2", "steps_per_epoch = 100000"), encoding="utf-8")
    marker = f"CFOL_TEST_MARKER={tmp_path}"
    process = subprocess.Popen(
        command(
            tiny,
            "--scale",
            "mini",
            "--out",
            tmp_path / "out",
            "--data",
            images,
            "--parallel",
            2,
            "--device",
            "cpu",
        ),
        env={**os.environ, **dict([marker.split("=", 1)])},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and len(list(tmp_path.glob("out/runs/*/config.json"))) < 2:
        time.sleep(0.02)
    assert len(workers_of(marker)) == 3
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while workers_of(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = workers_of(marker)
    for worker in left:
        os.kill(worker, signal.SIGKILL)
    assert not left
    # They left as SIGTERM makes them leave: saved.
    assert len(list(tmp_path.glob("out/runs/*/checkpoints/last.pt"))) == 2


def test_a_recipe_reads_its_images_as_its_runs_do(images):
    """One folder asked for in two sizes is two data sets: an attack on images of another size would test
    another task.
    """
    config, load = TrainConfig(data={"name": "folder", "root": str(images)}), Loader()
    smaller = config.replace(data={"size": 8})
    assert (load(config).size, load(smaller).size) == ((12, 12), (8, 8))
