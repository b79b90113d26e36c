"""What an attacker, a slip of the finger or a failing disk puts where a value should be: strategies of
hypothesis.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

NUMBERS_AS_TEXT = [
    *("inf", "-inf", "nan", "1e99", "-1e99", "1e-99", "1e400", "0", "-0", "-1", "1", "2", "5", "0.5"),
    *("1/0", "1/2/3", "8/255", "0x10", "１２", str(2**63), str(2**64), str(-(2**63))),
    *("9" * 400, "9" * 5000, f"1/{'3' * 400}", "1e1000000/1e1000000"),
]
WORDS = [
    *("none", "true", "auto", "meta", "cpu:7", "cuda:99999999999999999999", "vit_b_16", "resnet18@1e9"),
    *("wrn-100000-1", "wrn-16-1000000", "../../x", "a/b/c", ".", "..", "%s%n", "=1+1", "[1,", "[[[[", "{}"),
    *("", " ", "\n", "\x1b[2J", "\udce9", "😀", "x" * 5000),
]
bad_text = st.one_of(
    st.sampled_from(NUMBERS_AS_TEXT),
    st.sampled_from(WORDS),
    st.text(max_size=20),
    st.floats().map(str),
    st.integers().map(str),
)
bad_numbers = st.one_of(
    st.sampled_from(
        [0, -1, 1, 2, 7, 10**6, 2**31, 2**40, 2**63, 2**64, 10**400, 0.5, -0.0, 1e99, 1e308, 5e-324]
    ),
    st.integers(),
    st.floats(allow_nan=True, allow_infinity=True),
)


def nested(depth: int) -> Any:
    value: Any = 0
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


bad_json = st.one_of(
    bad_numbers,
    bad_text,
    st.sampled_from([None, True, False, [], {}, [None], [[]], {"": None}, nested(40), nested(400)]),
    st.lists(st.one_of(bad_numbers, st.none(), st.text(max_size=3)), max_size=4),
    st.dictionaries(st.text(max_size=5), st.one_of(bad_numbers, st.none()), max_size=3),
)


def place(draw: st.DrawFn, tree: Any) -> list[Any]:
    """The path of a value of a JSON tree, found from the top, so that a long list draws no more attempts than
    a short text.
    """
    path: list[Any] = []
    while isinstance(tree, dict | list) and tree and (not path or draw(st.integers(0, 3))):
        path.append(
            draw(st.sampled_from(list(tree)) if isinstance(tree, dict) else st.integers(0, len(tree) - 1))
        )
        tree = tree[path[-1]]
    return path


def near(draw: st.DrawFn, value: Any, tree: Any) -> Any:
    """A value that could stand there but does not belong: a little more, one item less, another value of the
    file.
    """
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + draw(st.sampled_from([-2, -1, 1, 2, 10]))
    if isinstance(value, float):
        return value + draw(st.sampled_from([-1.0, -0.25, 0.25, 1.0]))
    if isinstance(value, list) and value:
        return value[:-1] if draw(st.booleans()) else [*value, value[0]]
    if isinstance(value, dict) and value:
        return dict(list(value.items())[1:])
    other = tree
    for key in place(draw, tree):
        other = other[key]
    return other


@st.composite
def edited(draw: st.DrawFn, tree: Any) -> Any:
    """The tree with one value replaced by another, near or far, or taken away; now and then all of it."""
    path = place(draw, tree)
    if not path or draw(st.integers(0, 30)) == 0:
        return draw(bad_json)
    changed = copy.deepcopy(tree)
    owner = changed
    for key in path[:-1]:
        owner = owner[key]
    how = draw(st.sampled_from(["far", "far", "near", "gone"]))
    if how == "gone":
        del owner[path[-1]]
    else:
        owner[path[-1]] = draw(bad_json) if how == "far" else near(draw, owner[path[-1]], tree)
    return changed


def as_text(tree: Any) -> str:
    """JSON as Python writes it by default, with the NaN and Infinity that a careless program leaves."""
    return json.dumps(tree)


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """The bytes with a few changed, a part zeroed, repeated or cut off, or something added; never the
    same.
    """
    how = draw(st.sampled_from(["bytes", "bytes", "bytes", "zeros", "cut", "added", "moved"]))
    place = draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    if how == "bytes":
        for at in [place, *draw(st.lists(st.integers(0, len(content) - 1), max_size=2, unique=True))]:
            if at == place or changed[at] == content[at]:
                changed[at] ^= draw(st.integers(1, 255))
    elif how == "zeros":
        changed[place : place + 512] = bytes(len(changed[place : place + 512]))
    elif how == "cut":
        del changed[place:]
    elif how == "added":
        changed += draw(st.binary(min_size=1, max_size=50))
    else:
        changed[place : place + 64] = changed[place : place + 64][::-1]
    if bytes(changed) == content:
        changed[place] ^= 1
    return bytes(changed)
