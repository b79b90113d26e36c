"""`cfol-fast doctor`: what was built, what is installed, what this machine can do, and how to get what is
missing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
from collections import Counter
from typing import Any

from cfol_fast.commands.gpu_launch import driver_version, launch_trouble
from cfol_fast.errors import InputError

NAME = "doctor"
DESCRIPTION = """\
Tells what the native library was built with, which optional parts are installed, and what this machine
can do. For everything that is missing it says how to get it.

example:
  cfol-fast doctor --json > doctor.json
"""

# extra -> (the module that shows that it is there, what it is for, how to get it)
EXTRAS = {
    "stream": (
        "torchcodec",
        "faster decoding of image files while training; the pixels are the same without it",
        "pip install 'torchcodec==0.17.*'",
    ),
    "ffcv": (
        "ffcv",
        "training from FFCV files, for data that does not fit on the device",
        "apt-get install libopencv-dev libturbojpeg0-dev pkg-config; pip install ffcv==1.0.2 pillow",
    ),
    "autoattack": ("pyautoattack", "evaluation with AutoAttack", "pip install pyautoattack"),
    "tensorboard": ("tensorboard", "TensorBoard events while training", "pip install tensorboard"),
    "timm": ("timm", "timm's models: --model timm:NAME", "pip install timm"),
    "safetensors": ("safetensors", "weights as safetensors: export and eval", "pip install safetensors"),
    "onnx": ("onnxscript", "cfol-fast export --to onnx", "pip install onnx onnxscript"),
    "wandb": ("wandb", "logging to Weights & Biases while training", "pip install wandb"),
    "metrics": ("torchmetrics", "WorstClassAccuracy and TailAccuracy", "pip install torchmetrics"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    # Now `make test-gpu`; still parsed, so that the error can name the new command.
    parser.add_argument("--gpu", action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    if args.gpu:
        raise InputError("--gpu is a command of the repository: run make test-gpu in a checkout")
    findings = examine()
    print(json.dumps(findings, indent=2) if args.json else describe(findings))
    return 0 if findings["native"]["works"] else 1


def examine() -> dict[str, Any]:
    """All findings, ready for JSON."""
    import torch

    from cfol_fast.machine import bfloat16_kernels, bfloat16_trouble, versions, why_no_cuda

    native = _native()
    cuda_trouble = why_no_cuda() if native["works"] else "the native library does not load"
    if cuda_trouble is None:
        cuda_trouble = launch_trouble(native["cuda_compiler"], native["cuda_architectures"])
    return {
        "versions": {**versions(), "platform": platform.platform()},
        "native": native,
        "cuda": {
            "works": cuda_trouble is None,
            "trouble": cuda_trouble,
            "torch_cuda": torch.version.cuda,
            "driver_cuda": driver_version(),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        },
        "cpu": {
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "bfloat16_trouble": bfloat16_trouble(torch.device("cpu")),
            "bfloat16_kernels": bfloat16_kernels(torch.device("cpu")),
            "convolutions": _choices() if native["works"] else None,
        },
        "extras": {name: _extra(name) for name in EXTRAS},
        "free_disk_bytes": shutil.disk_usage(os.getcwd()).free,
    }


def _native() -> dict[str, Any]:
    """Whether the compiled ops load and compute, and what they were built with."""
    try:
        from cfol_fast import _host, ops
        from cfol_fast.machine import REBUILD

        x = ops.pgd_start(_image(), 0.1, ops.new_rng(0))
        works = bool((x - _image()).abs().max() <= 0.1 + 1e-6)
    except (ImportError, RuntimeError, OSError) as error:
        return {"works": False, "trouble": f"{error}", "remedy": "pip install --no-build-isolation ."}
    built = {
        "works": works,
        "compiler": _host.compiler,
        "instructions": _host.instruction_set,
        "with_cuda": bool(_host.with_cuda),
    }
    if _host.with_cuda:
        return {**built, "cuda_compiler": _host.cuda_compiler, "cuda_architectures": _host.cuda_architectures}
    return {**built, "remedy": REBUILD}


def _choices() -> dict[str, Any]:
    from cfol_fast.frozen import choices

    return choices().summary()


def _convolutions(chosen: dict[str, Any]) -> str:
    """How the attack's layers are computed here; each layer stands in --json."""
    chosen_ways = Counter(way for layer, way in chosen["layers"].items() if not layer.startswith("layout"))
    ways = ", ".join(f"{count} x {way}" for way, count in sorted(chosen_ways.items()))
    ways += "; layer by layer with --json" if ways else ""
    if chosen["setting"] == "fixed":
        return "the attack's layers: the fixed ways, without autotuning"
    if chosen["setting"] == "race":
        kept = chosen["file"] or "not kept"
        return f"the attack's layers: chosen by autotuning, {ways or 'none yet'} ({kept})"
    return f"the attack's layers: pinned by {chosen['file']}, {ways or 'none'}"


def _image() -> Any:
    import torch

    return torch.full((1, 1, 4, 4), 0.5)


def _extra(name: str) -> dict[str, Any]:
    module, purpose, remedy = EXTRAS[name]
    if importlib.util.find_spec(module) is None:
        return {"installed": False, "for": purpose, "remedy": remedy}
    try:
        version = importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    return {"installed": True, "for": purpose, "version": version}


def describe(findings: dict[str, Any]) -> str:
    """The findings as lines: a mark, what, and what to do about it."""

    def line(good: bool, text: str, remedy: str | None = None) -> str:
        return f"  {'ok' if good else '--':3} {text}" + (f"\n      {remedy}" if remedy and not good else "")

    native, cuda, cpu, versions = (findings[key] for key in ("native", "cuda", "cpu", "versions"))
    lines = [f"cfol_fast {versions['cfol_fast']} on {versions['platform']}"]
    lines += [
        (
            f"python {versions['python']}, torch {versions['torch']}, torchvision"
            f" {versions.get('torchvision', 'missing')}"
        ),
        "",
    ]
    lines.append("native ops")
    if native["works"]:
        lines.append(
            line(
                True, f"load and compute (built with {native['compiler']}, running {native['instructions']})"
            )
        )
        built = f"CUDA kernels: {native.get('cuda_compiler')} for {native.get('cuda_architectures')}"
        lines.append(
            line(
                native["with_cuda"], built if native["with_cuda"] else "no CUDA kernels", native.get("remedy")
            )
        )
    else:
        lines.append(line(False, native["trouble"], native["remedy"]))
    lines += ["", "this machine"]
    gpus = ", ".join(cuda["gpus"])
    idle = f"GPU lies idle: {gpus}" if gpus else "no GPU"
    lines.append(line(cuda["works"], f"GPU: {gpus}" if cuda["works"] else f"{idle}: {cuda['trouble']}"))
    lines.append(
        line(True, f"CPU: {cpu['cores']} cores, {cpu['threads']} threads in use, {cpu['instructions']}")
    )
    trouble = cpu["bfloat16_trouble"]
    lines.append(line(trouble is None, cpu["bfloat16_kernels"] if trouble is None else trouble))
    if cpu["convolutions"] is not None:
        lines.append(line(True, _convolutions(cpu["convolutions"])))
    lines.append(line(True, f"{findings['free_disk_bytes'] / 2**30:.0f} GiB free in {os.getcwd()}"))
    lines += ["", "optional parts"]
    for name, extra in findings["extras"].items():
        text = (
            f"{name} {extra['version']}: {extra['for']}" if extra["installed"] else f"{name}: {extra['for']}"
        )
        lines.append(line(extra["installed"], text, extra.get("remedy")))
    return "\n".join(lines)
