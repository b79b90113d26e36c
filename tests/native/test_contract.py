"""What every op promises: a correct schema, a fake function, the meta device, torch.compile, and the same set
on every side. And what every kernel promises that no result shows: launches that are checked, bounds, one
arithmetic for all compilers."""

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
@pytest.mark.slow
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
@pytest.mark.slow
def test_compiled_without_a_graph_break_it_gives_the_same(name):
    op = getattr(torch.ops.cfol_fast, name).default
    eager, compiled = example_calls()[name], example_calls()[name]
    expected = op(*eager)
    torch._dynamo.reset()
    result = torch.compile(lambda *a: op(*a), fullgraph=True, backend="aot_eager")(*compiled)
    for a, b in zip(tensors(expected) + tensors(eager), tensors(result) + tensors(compiled), strict=True):
        assert torch.equal(a, b)


def launching_calls():
    """The examples, and the branches of them that launch other kernels."""
    calls = [(name, arguments) for name, arguments in example_calls().items()]
    for name, arguments in example_calls().items():
        if name == "pgd_start":
            calls.append((name, (*arguments[:4], True, *arguments[5:])))
        if name == "pgd_step":
            calls.append((name, (*arguments[:-2], True, arguments[-1])))
            images = [torch.rand(3 * 108 + 1)[1:].view(3, 3, 6, 6) for _ in range(3)]
            calls.append((name, (*images, *arguments[3:])))
        if name == "gather_augment":
            calls.append((name, (*arguments[:-3], True, *arguments[-2:])))
            grey = (arguments[0][..., :1].contiguous(), *arguments[1:5], 1, *arguments[6:])
            calls += [(name, grey), (name, (*grey[:-3], True, *grey[-2:]))]
    return calls


@pytest.mark.parametrize("number", range(len(launching_calls())))
def test_a_launch_that_is_refused_is_an_error_and_the_last_one(emulated, number):
    name, arguments = launching_calls()[number]
    emulated.launches()
    emulated.op(name)(*arguments)
    launches = len(emulated.launches())
    assert launches >= 1
    for refused in range(launches):
        with (
            emulated.refusing(refused),
            pytest.raises(RuntimeError, match="CUDA: invalid configuration argument"),
        ):
            emulated.op(name)(*launching_calls()[number][1])
        assert len(emulated.launches()) == refused + 1


def test_an_op_runs_on_the_device_of_its_tensors_and_on_the_stream_that_is_current_there():
    said = building.run([str(building.device_choice())]).stdout
    assert said == "device 3, stream of device 3, afterwards device 0\n"


def sources():
    return sorted(path for path in building.CSRC.rglob("*") if path.suffix in (".h", ".cpp", ".cu"))


def test_every_kernel_is_bounded_by_the_threads_it_is_launched_with():
    for path in sources():
        text = path.read_text()
        assert text.count("__global__ void") == text.count("__global__ void __launch_bounds__(kThreads)"), (
            path
        )


def test_no_source_computes_differently_for_one_architecture():
    # The stand-in runs the code without that macro, so that nothing behind it would ever be tested.
    for path in sources():
        assert "__CUDA_ARCH__" not in path.read_text(), path
