"""What every op promises: a correct schema, a fake function, the meta device, torch.compile, and the same set on every side."""

import re

import pytest
import torch

from tests.native import building
from tests.native.examples import example_calls, schema_names

NAMES = sorted(example_calls())


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in tensors(v)] if isinstance(value, (tuple, list)) else []


def test_every_op_has_an_example():
    assert set(NAMES) == schema_names()


def test_every_op_has_a_cpu_kernel_and_an_emulated_twin(emulated_library):
    for name in NAMES:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"cfol_fast::{name}", "CPU")
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"cfol_fast_emulated::{name}", "CPU")


def test_the_kernels_have_the_same_names_on_both_sides():
    cpu = {path.stem for path in (building.CSRC / "cpu").glob("*.cpp")}
    cuda = {path.stem for path in (building.CSRC / "cuda").glob("*.cu")}
    assert cpu == cuda
    for header in cpu:
        text = (building.CSRC / f"{header}.h").read_text()
        sides = [
            set(re.findall(r"(\w+)\(", text.split(f"namespace {side} {{")[1].split("namespace")[0]))
            for side in ("cpu", "cuda")
        ]
        assert sides[0] <= sides[1]


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name):
    op = getattr(torch.ops.cfol_fast, name).default
    torch.library.opcheck(op, example_calls()[name])


@pytest.mark.parametrize("name", NAMES)
def test_the_meta_device_gives_the_same_shapes(name):
    op = getattr(torch.ops.cfol_fast, name).default
    real, meta = op(*example_calls()[name]), op(*example_calls("meta")[name])
    for a, b in zip(tensors(real), tensors(meta), strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
        assert b.device.type == "meta"


@pytest.mark.parametrize("name", NAMES)
def test_compiled_without_a_graph_break_it_gives_the_same(name):
    op = getattr(torch.ops.cfol_fast, name).default
    eager, compiled = example_calls()[name], example_calls()[name]
    expected = op(*eager)
    torch._dynamo.reset()
    result = torch.compile(lambda *a: op(*a), fullgraph=True, backend="aot_eager")(*compiled)
    for a, b in zip(tensors(expected) + tensors(eager), tensors(result) + tensors(compiled), strict=True):
        assert torch.equal(a, b)
