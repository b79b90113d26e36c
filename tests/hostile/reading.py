"""Attempts on what is read: options, configurations, JSON and TOML, checkpoints, FFCV files, image folders.

An area is prepared once in a folder and attempted many times. An attempt fails when anything but a sentence
comes out: a traceback, several lines, a wrong result that is taken for a right one.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import io
import json
import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from PIL import Image

import cfol_fast
from cfol_fast import data, methods
from cfol_fast.commands import main as cli
from cfol_fast.data.ffcv import reader, writer
from cfol_fast.data.ffcv.format import MARK
from cfol_fast.errors import InputError, one_line
from cfol_fast.evaluation import autoattack
from cfol_fast.models import ModelSpec
from cfol_fast.runs import checkpoints, run_folder
from cfol_fast.runs.checkpoint_contents import Checkpoint
from cfol_fast.runs.config import TrainConfig, to_dict
from cfol_fast.runs.open_settings import known_keys
from cfol_fast.runs.records import load_run
from cfol_fast.runs.toml_files import read_toml
from cfol_fast.training.trainer import Trainer
from tests.hostile.values import as_text, bad_json, bad_text, damaged, edited
from tests.runs.test_checkpoints import SPEC
from tests.training.tiny import few_images, new_trainer, take_steps

STORED_RUN = Path(__file__).parents[1] / "runs" / "stored_runs" / "finished"


@dataclass(frozen=True)
class Area:
    """prepare: makes what is attacked. attempt: one attempt; it raises when something did not hold."""

    name: str
    prepare: Callable[[Path], Any]
    attempt: Callable[[Any, st.DataObject], None]


def command(*arguments: str) -> int:
    """Runs one command in this process. It must end with status 0, or with 2 and one line."""
    out, err, threads = io.StringIO(), io.StringIO(), torch.get_num_threads()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        status = cli.main([*arguments])
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    said = err.getvalue()
    assert all(c.isprintable() or c == "\n" for c in said), f"steers the terminal: {said[-2000:]!r}"
    assert status in (0, 2), f"status {status}: {said[-2000:]}"
    assert status == 0 or (said.strip() and len(said.strip("\n").split("\n")) == 1), (
        f"not one line: {said[-2000:]!r}"
    )
    return status


def check_sentence(error: InputError) -> None:
    assert one_line(error) != type(error).__name__


# ---------------------------------------------------------------- options


@dataclass(frozen=True)
class Options:
    """Every option of every command, and arguments with which the command does little."""

    folder: Path
    base: dict[str, list[str]]
    options: list[tuple[str, str]]


def prepare_options(folder: Path) -> Options:
    run = shutil.copytree(STORED_RUN, folder / "run")
    base = {
        "train": ["train", "cfol", "--print-config"],
        "eval": ["eval", str(run), "--attack", "none", "--limit", "5", "--quiet", "--device", "cpu"],
        "report": ["report", str(run)],
        "demo": ["demo"],
        "doctor": ["doctor"],
        "reproduce": ["reproduce"],
        "data": ["data", "to-ffcv", "--dataset", "fashion-mini", "--out", "x.beton"],
    }
    found = []
    for name in base:
        parser = argparse.ArgumentParser()
        importlib.import_module(cli.COMMANDS[name][0]).add_arguments(parser)
        for action in _actions(parser):
            if action.option_strings and action.nargs != 0:
                found.append((name, action.option_strings[0]))
    return Options(folder, base, found)


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += [inner for below in action.choices.values() for inner in _actions(below)]
        else:
            found.append(action)
    return found


def attempt_option(subject: Options, draw: st.DataObject) -> None:
    name, option = draw.draw(st.sampled_from(subject.options))
    value = draw.draw(bad_text)
    if option == "--set":
        value = f"{draw.draw(st.sampled_from(known_keys()))}={value}"
    # Four folders deep, so that ../.. stays inside.
    here = subject.folder / "a" / "b" / "c" / "d"
    here.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(here), contextlib.ExitStack() as stack:
        if name in ("demo", "doctor", "reproduce", "data"):
            # What these do takes minutes; their numbers and words are read before.
            module: Any = importlib.import_module(cli.COMMANDS[name][0])
            original, module.run = module.run, lambda args: 0
            stack.callback(setattr, module, "run", original)
        command(*subject.base[name], f"{option}={value}")


# ---------------------------------------------------------------- configurations


def attempt_configuration(_: Any, draw: st.DataObject) -> None:
    """A configuration that is accepted can be stored, read again and built."""
    method = methods.METHODS[draw.draw(st.sampled_from(sorted(methods.METHODS)))]
    given: dict[str, Any] = {"method": method.name}
    keys = known_keys() + [f"params.{name}" for name in method.defaults]
    try:
        for key in draw.draw(st.lists(st.sampled_from(keys), min_size=1, max_size=2)):
            given[key] = draw.draw(st.one_of(bad_text, bad_json))
        done = TrainConfig(given)
        stored = json.dumps(to_dict(done), allow_nan=False)
        assert to_dict(TrainConfig(json.loads(stored))) == json.loads(stored)
        assert TrainConfig.recorded(json.loads(stored)) == done
        chosen = methods.get(done.method)
        chosen.sampler(torch.arange(20) % 4, 4, done.params, seed=done.seed, draws=100)
        chosen.objective(done.params, 4)
    except InputError as error:
        check_sentence(error)


# ---------------------------------------------------------------- files of ours


@dataclass(frozen=True)
class Files:
    folder: Path
    trees: dict[str, Any]


def prepare_files(folder: Path) -> Files:
    run = shutil.copytree(STORED_RUN, folder / "run")
    command(
        "eval", str(run), "--attack", "fgsm", "--limit", "20", "--quiet", "--json", str(run / "eval.json")
    )
    trees = {path.name: json.loads(path.read_text()) for path in run.glob("*.json")}
    trees["metrics.jsonl"] = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return Files(run, trees)


def attempt_file(subject: Files, draw: st.DataObject) -> None:
    """One value of one file is changed; the run is read, and now and then a report is made of it."""
    name = draw.draw(st.sampled_from(sorted(subject.trees)))
    tree = subject.trees[name]
    if name == "metrics.jsonl":
        number = draw.draw(st.integers(0, len(tree) - 1))
        rows = [*tree[:number], draw.draw(edited(tree[number])), *tree[number + 1 :]]
        text = "".join(as_text(row) + "\n" for row in rows)
    else:
        text = as_text(draw.draw(edited(tree)))
    text = draw.draw(
        st.sampled_from([text] * 8 + ["[" * 100_000, text[: len(text) // 2], "\0", "\ufeff" + text])
    )
    path = subject.folder / name
    whole = path.read_bytes()
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        if draw.draw(st.integers(0, 3)) == 0:
            command("report", str(subject.folder), "--out", str(subject.folder.parent / "report.html"))
        else:
            with contextlib.suppress(InputError):
                load_run(subject.folder)
            with contextlib.suppress(InputError):
                run_folder.read_config(subject.folder).replace()
    finally:
        path.write_bytes(whole)


def attempt_toml(folder: Path, draw: st.DataObject) -> None:
    """A configuration file with a value, or a text, that does not belong there."""
    key = draw.draw(st.sampled_from(known_keys()))
    value = draw.draw(
        st.one_of(
            bad_text.map(json.dumps),
            bad_text,
            st.sampled_from(["[" * 50_000, "{a=" * 5000, "1979-05-27", "inf"]),
        )
    )
    path = folder / "c.toml"
    path.write_bytes(f"{key} = {value}\n".encode("utf-8", "surrogatepass"))
    with contextlib.suppress(InputError):
        read_toml(path)
    command("train", "cfol", "--print-config", "--config", str(path))


# ---------------------------------------------------------------- checkpoints


def checkpoint(value: int) -> dict[str, Any]:
    weights = {
        name: torch.full_like(w, value) for name, w in ModelSpec.from_dict(SPEC).create().state_dict().items()
    }
    position = {"epoch": value, "step": value, "best": {"best-average": {"epoch": 1, "value": 0.5}}}
    return {
        "format": 1,
        "spec": SPEC,
        "model": weights,
        "classes": [f"{c}" for c in range(10)],
        "position": position,
    }


def prepare_checkpoints(folder: Path) -> checkpoints.CheckpointStore:
    store = checkpoints.CheckpointStore(folder)
    for value in (1, 2):
        store.save_last(checkpoint(value))
    return store


def attempt_bytes_of_a_checkpoint(store: checkpoints.CheckpointStore, draw: st.DataObject) -> None:
    """Whatever happened to `last`, the run goes on with `previous`, and with its very contents."""
    path = store.path("last")
    whole = path.read_bytes()
    path.write_bytes(draw.draw(damaged(whole)))
    try:
        found = store.newest()
        assert found is not None
        state, name, complaint = found
        assert (name, state["position"]["step"]) == ("previous", 1), "damage was taken for a checkpoint"
        assert complaint
        assert "\n" not in complaint
        assert all(bool((value == 1).all()) for value in state["model"].values())
    finally:
        path.write_bytes(whole)


def attempt_contents_of_a_checkpoint(folder: Path, draw: st.DataObject) -> None:
    """A file with a right digest that somebody made up: a model, or a sentence."""
    state = checkpoint(1)
    plain = {key: value for key, value in state.items() if key != "model"}
    changed = draw.draw(edited(plain))
    if isinstance(changed, dict):
        changed = {**changed, "model": state["model"]}
    path = folder / "made-up.pt"
    try:
        checkpoints.write(path, changed)
        model = cfol_fast.load(path)
    except InputError as error:
        check_sentence(error)
    except (OverflowError, UnicodeEncodeError):
        # torch.save cannot store such a value at all.
        assert not path.exists() or path.stat().st_size
    else:
        assert model(torch.zeros(1, 1, 28, 28)).shape == (1, 10)


@dataclass(frozen=True)
class Resumable:
    """A run's folder, the state of its last checkpoint, and a trainer that has read it."""

    trainer: Trainer
    state: dict[str, Any]


def prepare_resumable(folder: Path) -> Resumable:
    trainer = take_steps(new_trainer(folder / "run"), 1)
    (folder / "run").mkdir(exist_ok=True)
    trainer.state.save()
    return Resumable(trainer, checkpoints.read(trainer.state.store.path("last")))


def attempt_resuming(subject: Resumable, draw: st.DataObject) -> None:
    """A checkpoint with a right digest in which somebody changed a value: it is continued from, or a sentence
    says why not.
    """
    trainer = subject.trainer
    try:
        checkpoints.write(trainer.state.store.path("last"), draw.draw(edited(subject.state)))
    except (OverflowError, UnicodeEncodeError):
        # torch.save cannot store such a value at all.
        return
    try:
        trainer.state.restore()
    except InputError as error:
        check_sentence(error)
    finally:
        place = trainer.state.store.path("last")
        trainer.state.load(Checkpoint.of(copy.deepcopy(subject.state), place))


def prepare_autoattack(folder: Path) -> tuple[Path, Any, torch.Tensor, torch.Tensor]:
    y = torch.arange(24) % 4
    clean = torch.where(torch.arange(24) % 2 == 0, y, (y + 1) % 4)
    state = autoattack._State({"seed": 0}, clean, y)
    # In the second attack: the first one fooled example 0, this one, in its first batch, example 2.
    state.predictions[0] = 3
    state.attacked.fill(state.candidates.nonzero().squeeze(1), y[state.candidates], 0)
    state.next_attack(y, "apgd-ce", 8)
    state.batch, state.predictions[2] = 1, 1
    return folder / "state.json", state.to_json(), clean, y


def attempt_autoattack(subject: tuple[Path, Any, torch.Tensor, torch.Tensor], draw: st.DataObject) -> None:
    """A state of AutoAttack is refused, or is one that an evaluation of these examples could have written."""
    path, stored, clean, y = subject
    path.write_bytes(as_text(draw.draw(edited(stored))).encode("utf-8", "surrogatepass"))
    state = autoattack._State({"seed": 0}, clean, y)
    with contextlib.suppress(InputError):
        state.restore(path, y, 8, 4, 4)
        assert 0 <= state.attack <= 4
        assert 0 <= state.batch <= 2
        assert bool(((state.predictions >= 0) & (state.predictions < 4)).all())


# ---------------------------------------------------------------- images


def prepare_beton(folder: Path) -> tuple[Path, list[bytes]]:
    """A file of ours, and one without class names, as other programs write them."""
    images = torch.randint(
        0, 256, (12, 8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    path = folder / "a.beton"
    writer.write(path, data.ImageSet(images, torch.arange(12) % 3, ["a", "b", "c"]), mode="jpg")
    ours = path.read_bytes()
    foreign = ours.replace(MARK, bytes(len(MARK)))
    path.write_bytes(foreign)
    assert reader.open_beton(path).description["classes"] == ["0", "1", "2"]
    return path, [ours, foreign]


def attempt_beton(subject: tuple[Path, list[bytes]], draw: st.DataObject) -> None:
    """Any byte of an FFCV file: refused, or what it says fits into the file."""
    path, files = subject
    whole = draw.draw(st.sampled_from(files))
    # The pages are mostly empty: half of the attempts go to the header, the fields and the samples.
    head = draw.draw(st.booleans())
    content = draw.draw(damaged(whole[:4096])) + whole[4096:] if head else draw.draw(damaged(whole))
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        found = reader.open_beton(path)
        assert int((found.pointers + found.lengths).max()) <= len(content)
        assert int(found.heights.max()) * int(found.widths.max()) <= 1 << 26
        assert (
            0
            <= int(found.labels.min())
            <= int(found.labels.max())
            < len(found.description["classes"])
            <= len(found)
        )


def attempt_image_folder(folder: Path, draw: st.DataObject) -> None:
    """A folder of images with one thing in it that is none."""
    shutil.rmtree(folder / "images", ignore_errors=True)
    for name in ("a", "b"):
        (folder / "images" / "train" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(
                folder / "images" / "train" / name / f"{number}.png"
            )
    name = draw.draw(st.sampled_from(["x.png", "x.gif", "x.tif", "\udce9.png", "-rf.bmp", "a b\n.png"]))
    path = folder / "images" / "train" / "a" / name
    good = (folder / "images" / "train" / "a" / "0.png").read_bytes()
    kind = draw.draw(st.sampled_from(["damaged", "noise", "pipe", "link", "folder", "wide", "image"]))
    if kind in ("damaged", "noise"):
        path.write_bytes(
            draw.draw(damaged(good)) if kind == "damaged" else draw.draw(st.binary(max_size=200))
        )
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(
            draw.draw(st.sampled_from(["..", ".", "nowhere", "/dev/zero", "../b", "0.png", name]))
        )
    elif kind == "folder":
        path.mkdir()
    else:
        size = (1, draw.draw(st.sampled_from([1, 3, 40, 3000, 60_000, 70_000]))) if kind == "wide" else (8, 8)
        Image.new(draw.draw(st.sampled_from(["1", "L", "P", "RGB"])), size).save(path, "PNG")
    with contextlib.suppress(InputError):
        found = data.registry.load(
            "folder", folder / "images", progress=False, skip_corrupt=draw.draw(st.booleans())
        )
        assert found.train.class_counts().tolist()[1] + found.test.class_counts().tolist()[1] == 3
        assert len(found.train) + len(found.test) <= 7


@contextlib.contextmanager
def few_embedded_images() -> Any:
    """Evaluations of a few images instead of thousands."""
    original, data.load = data.load, few_images()
    try:
        yield
    finally:
        data.load = original


AREAS = [
    Area("options", prepare_options, attempt_option),
    Area("configurations", lambda folder: None, attempt_configuration),
    Area("JSON of a run", prepare_files, attempt_file),
    Area("TOML", lambda folder: folder, attempt_toml),
    Area("bytes of a checkpoint", prepare_checkpoints, attempt_bytes_of_a_checkpoint),
    Area("contents of a checkpoint", lambda folder: folder, attempt_contents_of_a_checkpoint),
    Area("resuming a made-up checkpoint", prepare_resumable, attempt_resuming),
    Area("states of AutoAttack", prepare_autoattack, attempt_autoattack),
    Area("bytes of an FFCV file", prepare_beton, attempt_beton),
    Area("image folders", lambda folder: folder, attempt_image_folder),
]
