"""Where the arguments of an op lie: on one device, and what it writes apart from what it reads."""

from __future__ import annotations

import re

import pytest
import torch

from tests.native import building
from tests.native.examples import example_calls

ON_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def full_calls():
    """The examples with every tensor that an op can be given."""
    calls = example_calls()
    fault, each = torch.zeros(1, dtype=torch.int32), torch.full((3,), 0.1)
    adv, x, grad, *_ = calls["pgd_step"]
    calls["pgd_start"] = (*calls["pgd_start"][:5], fault, *calls["pgd_start"][6:])
    calls["pgd_step"] = (adv, x, grad, 0.02, 0.1, each, each.clone(), False, fault)
    upstream, weight, _, *padding = calls["input_gradient"]
    calls["input_gradient"] = (upstream, weight, torch.rand_like(upstream), *padding)
    calls["class_tally"] = (*calls["class_tally"][:-1], fault)
    calls["sum_tree_update"] = (*calls["sum_tree_update"][:-1], fault)
    images, _, idx, rng, _, channels, *rest = calls["gather_augment"]
    table = torch.tensor([[192 * i, 8, 8] for i in range(40)])
    given = torch.tensor([[0.0, 0, 0, 1, 1, 1, 0, 0]]).repeat(idx.shape[0], 1)
    calls["gather_augment"] = (images.flatten(), table, idx, rng, None, channels, *rest[:-1], fault)
    calls["gather_augment given"] = (images.flatten(), table, idx, None, given, channels, *rest[:-1], fault)
    images, _, idx, rng, channels, *rest = calls["augment_parameters"]
    calls["augment_parameters"] = (images.flatten(), table, idx, rng, channels, *rest[:-1], fault)
    return calls


def run(call, arguments):
    """The CPU's kernel, whatever devices the arguments are on."""
    op = getattr(torch.ops.cfol_fast, call.split()[0]).default
    return op.redispatch(ON_CPU, *arguments)


def schema(call):
    return getattr(torch.ops.cfol_fast, call.split()[0]).default._schema.arguments


def tensor_arguments(call, arguments):
    return [i for i, value in enumerate(arguments) if isinstance(value, torch.Tensor)]


CALLS = full_calls()
PLACES = [(call, i) for call, arguments in CALLS.items() for i in tensor_arguments(call, arguments)]


def test_every_tensor_of_every_op_is_in_a_call():
    given = {(call.split()[0], i) for call, i in PLACES}
    for call in CALLS:
        tensors = {i for i, a in enumerate(schema(call)) if "Tensor" in str(a.type)}
        assert tensors == {i for name, i in given if name == call.split()[0]}, call


@pytest.mark.parametrize("call", CALLS)
def test_the_calls_are_accepted_where_all_is_on_one_device(call):
    run(call, full_calls()[call])


@pytest.mark.parametrize(("call", "i"), PLACES, ids=[f"{c}-{schema(c)[i].name}" for c, i in PLACES])
def test_an_argument_on_another_device_is_refused(call, i):
    arguments = list(full_calls()[call])
    if len(tensor_arguments(call, arguments)) == 1:
        return
    name = schema(call)[i].name.removesuffix("_each")
    arguments[i] = torch.empty_like(arguments[i], device="meta")
    with pytest.raises(RuntimeError, match="must be on the same device") as error:
        run(call, arguments)
    assert re.search(rf"\b{name}\b", str(error.value))
    # The fault word is compared last: with every argument but itself something was wrong before.
    assert name == "fault" or "fault and" not in str(error.value)


def written(call):
    return [i for i, a in enumerate(schema(call)) if a.alias_info is not None and a.alias_info.is_write]


OVERLAPS = [
    (call, i, j)
    for call, arguments in CALLS.items()
    for i in written(call)
    for j in tensor_arguments(call, arguments)
    if i != j and arguments[i] is not None and not (j in written(call) and j < i)
]


@pytest.mark.parametrize(
    ("call", "i", "j"), OVERLAPS, ids=[f"{c}-{schema(c)[i].name}-{schema(c)[j].name}" for c, i, j in OVERLAPS]
)
def test_what_an_op_writes_may_not_lie_in_another_argument(call, i, j):
    """The last byte of the one is the first of the other, as far as their alignment allows."""
    arguments = list(full_calls()[call])
    one, other = arguments[i], arguments[j]
    size, unit = one.untyped_storage().nbytes(), max(one.element_size(), other.element_size())
    start = (size - 1) // unit * unit
    memory = torch.zeros(start + other.untyped_storage().nbytes() + unit, dtype=torch.uint8).untyped_storage()

    def placed(t, at):
        offset = at // t.element_size()
        view = torch.empty(0, dtype=t.dtype).set_(memory, offset, t.shape, t.stride())
        return view.copy_(t)

    # What is read lies there whole.
    arguments[i] = placed(one, 0)
    arguments[j] = placed(other, start)
    names = [schema(call)[k].name.removesuffix("_each") for k in (i, j)]
    with pytest.raises(RuntimeError, match="must not overlap in memory") as error:
        run(call, arguments)
    assert all(re.search(rf"\b{name}\b", str(error.value)) for name in names), str(error.value)
    # Beside each other they are two arguments.
    arguments = list(full_calls()[call])
    memory = torch.zeros(size + 2 * unit + other.untyped_storage().nbytes(), dtype=torch.uint8)
    memory = memory.untyped_storage()
    arguments[i] = placed(one, 0)
    arguments[j] = placed(other, -(-size // unit) * unit)
    run(call, arguments)


def test_the_same_tensor_may_be_read_twice():
    x = torch.rand(3, 3, 6, 6)
    torch.ops.cfol_fast.pgd_step.default(x.clone(), x, x, 0.1, 0.1, None, None, False, None)


# What no array's length decides: a warp, a tile, the levels of a tree, the rounds of a shuffle, the channels
# and the pixels of one image, which augment.h limits to 2^24.
SMALL = r"offset (<|>)|level|rounds|warp|kWarps|pixels|[ij] < (4|9|k\w+)|channel < Channels"


def test_no_loop_over_an_array_counts_in_32_bits():
    heads = []
    for path in building.CSRC.glob("cuda/*"):
        heads += re.findall(
            r"\bfor \(((?:int|int32_t|unsigned|uint32_t) .*?;.*?;.*?)\)[ \n]", path.read_text()
        )
    assert len(heads) > 10
    assert [head for head in heads if not re.search(SMALL, head.split(";")[1])] == []


def test_an_array_is_indexed_by_64_bits_alone():
    for path in building.CSRC.glob("cuda/*.cu"):
        text = path.read_text()
        narrow = re.findall(
            r"\b(?:int|unsigned|int32_t|uint32_t) (\w+) = [^;]*(?:first_element|grid_stride|blockIdx)", text
        )
        assert narrow == [], path
