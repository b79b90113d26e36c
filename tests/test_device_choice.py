"""A run on cuda:1 leaves cuda:0 alone: what asks torch.cuda about a device or a stream says which, since the
current device is another one. The source is read, as no machine here has two GPUs."""

import ast
from pathlib import Path

import cfol_fast

PACKAGE = Path(cfol_fast.__file__).parent
# Without an argument these mean the current device.
NEED_A_DEVICE = {
    "current_stream",
    "default_stream",
    "synchronize",
    "get_device_name",
    "get_device_properties",
    "get_device_capability",
    "max_memory_allocated",
    "memory_allocated",
    "mem_get_info",
    "Stream",
}
# Without blocking=True a thread that waits for an event spins.
NEED_AN_ARGUMENT = {"Event"}


def calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    """(name, call) of every torch.cuda.name(...)."""
    return [
        (node.func.attr, node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) == "torch.cuda"
    ]


def careless(text: str) -> list[str]:
    """The calls that leave the device to chance."""
    tree = ast.parse(text)
    found = [
        ast.unparse(call)
        for name, call in calls(tree)
        if (name in NEED_A_DEVICE or name in NEED_AN_ARGUMENT) and not call.args and not call.keywords
    ]
    if "torch.cuda" not in text:
        return found
    # event.record() records on the current device's stream.
    found += [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "record"
        and not node.args
        and not node.keywords
    ]
    return found


def test_what_is_careless_is_seen():
    text = "e = torch.cuda.Event()\ne.record()\ntorch.cuda.synchronize()\ntorch.cuda.current_stream(device)"
    assert careless(text) == ["torch.cuda.Event()", "torch.cuda.synchronize()", "e.record()"]


def test_every_use_of_torch_cuda_says_which_device():
    for path in sorted(PACKAGE.rglob("*.py")):
        assert careless(path.read_text()) == [], path
