"""Weights for use without this package: as a torch file, as safetensors, or as ONNX, with the Python code
that loads them.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cfol_fast import atomic
from cfol_fast.errors import InputError, one_line
from cfol_fast.models.standalone import python_code
from cfol_fast.runs import checkpoints, safetensors_files
from cfol_fast.runs.loading import load, read_checkpoint

SUFFIXES = {".pt": "torch", ".pth": "torch", ".safetensors": "safetensors", ".onnx": "onnx"}
FORMATS = ("torch", "safetensors", "onnx")

LOADING = {
    "torch": (
        """
stored = torch.load({file!r}, map_location="cpu", weights_only=True)
model.load_state_dict(stored["model"])
classes = stored["classes"]
model.eval()  # takes pixels from 0 to 1, {shape}, and gives logits
"""
    ),
    "safetensors": (
        """
import json

from safetensors import safe_open

with safe_open({file!r}, "pt") as file:
    model.load_state_dict({{name: file.get_tensor(name) for name in file.keys()}})
    classes = json.loads(file.metadata()["cfol_fast"])["classes"]
model.eval()  # takes pixels from 0 to 1, {shape}, and gives logits
"""
    ),
    "onnx": (
        """\
import json

import onnxruntime

session = onnxruntime.InferenceSession({file!r})
classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])


def model(pixels):
    \"\"\"Logits; pixels: float32 from 0 to 1, {shape}.\"\"\"
    return session.run(None, {{"pixels": pixels}})[0]
"""
    ),
}


@dataclass(frozen=True)
class Exported:
    """What was written. code: the file with the Python code that loads it; None where the weights went to a
    device.
    """

    file: Path
    code: Path | None


def format_of(file: Path, to: str | None = None) -> str:
    """The format that was asked for, or that the file's name says."""
    found = to or SUFFIXES.get(file.suffix)
    if found not in FORMATS:
        raise InputError(
            f"{file} does not say its format: end it with {', '.join(SUFFIXES)}, or add --to"
            f" {'|'.join(FORMATS)}"
        )
    return found


def check_target(file: Path, to: str, run: Path) -> None:
    """Refuses, before a run begins, a file that could not be written at its end. run: its folder, which may
    be yet to come.
    """
    place = file.resolve()
    if place.is_dir():
        raise InputError(f"{file} is a folder: give the name of a file, such as {file / 'weights.pt'}")
    if not place.parent.is_dir() and run.resolve() not in (place.parent, *place.parent.parents):
        raise InputError(f"{file}: there is no folder {place.parent}")
    if to == "onnx":
        _check_onnx()
    elif to == "safetensors":
        safetensors_files.check_can_write()


def export(
    run_or_checkpoint: str | Path, file: str | Path, to: str = "torch", model: str | None = None
) -> Exported:
    """Writes a run's tested checkpoint, or a checkpoint, and beside it the code that loads it (FILE.load.py).

    The normalisation is the model's first layer, in every format. model: see `load`.
    """
    file = Path(file).expanduser()
    if to not in FORMATS:
        raise InputError(f"an export is one of {', '.join(FORMATS)}, got {to!r}")
    found = read_checkpoint(run_or_checkpoint, model=model)
    weights = {key: value.contiguous() for key, value in found.model.items()}
    # A run that started from weights of others took over their normalisation.
    mean, std = (tuple(weights[f"normalize.{name}"].flatten().tolist()) for name in ("mean", "std"))
    spec = dataclasses.replace(found.spec, mean=mean, std=std)
    description = dataclasses.replace(found, spec=spec).description()
    shape = f"(batch, {spec.in_channels}, {spec.image_size}, {spec.image_size})"
    special = atomic.is_special(file)
    try:
        if to == "onnx":
            atomic.write_bytes(file, _onnx(run_or_checkpoint, model, description))
        elif to == "safetensors":
            atomic.write_bytes(file, safetensors_files.serialized(weights, description))
        else:
            checkpoints.write(file, {**description, "model": weights})
        if special:
            return Exported(file, None)
        beside = file.with_name(f"{file.name}.load.py")
        code = "" if to == "onnx" else python_code(spec)
        atomic.write_text(beside, code + LOADING[to].format(file=file.name, shape=shape))
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror or error}") from None
    return Exported(file, beside)


def _onnx(run_or_checkpoint: str | Path, model: str | None, description: dict[str, Any]) -> bytes:
    """The model with its normalisation, for any number of images; what a checkpoint says stands in the
    metadata.
    """
    _check_onnx()
    network, spec = load(run_or_checkpoint, model=model), description["spec"]
    images = torch.rand(2, spec["in_channels"], spec["image_size"], spec["image_size"])
    try:
        program = torch.onnx.export(
            network,
            (images,),
            dynamo=True,
            verbose=False,
            input_names=["pixels"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
    # The exporter may fail anywhere in a network of others.
    except Exception as error:
        raise InputError(f"{spec['name']} cannot be written as ONNX: {one_line(error)[:200]}") from error
    assert program is not None
    proto = program.model_proto
    for key, value in {**spec, **description}.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value if isinstance(value, str) else json.dumps(value)
    return proto.SerializeToString()


def _check_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"writing ONNX needs the packages onnx and onnxscript ({one_line(error)}): pip install onnx"
            " onnxscript"
        ) from None
