"""The random numbers: published known answers, and streams that never share a number."""

import itertools

import numpy as np

from tests.reference import philox as reference


def test_the_reference_gives_the_published_answers():
    # Random123, kat_vectors, philox4x32-10: all zero, all ones, digits of pi
    assert [hex(v) for v in reference.philox4x32(0, 0, [0])[0]] == [
        "0x6627e8d5",
        "0xe169c58d",
        "0xbc57ac4c",
        "0x9b00dbd8",
    ]
    ones = 2**64 - 1
    assert [hex(v) for v in reference.philox4x32(ones, ones, [ones])[0]] == [
        "0x408f276d",
        "0x41c83b0e",
        "0xa20bc7c6",
        "0x6d5451fd",
    ]
    key = 0x299F31D0A4093822
    low, high = 0x85A308D3243F6A88, 0x0370734413198A2E
    assert [hex(v) for v in reference.philox4x32(key, low, [high])[0]] == [
        "0xd16cfe09",
        "0x94fdcceb",
        "0x5001e420",
        "0x24126ea1",
    ]


def test_streams_never_share_a_number():
    # The counter holds (stream, step, slot) in separate bits, so equal counters mean equal uses; and the
    # numbers differ too.
    drawn = {name: reference.random4(9, 3, name, np.arange(4096)) for name in reference.STREAMS}
    for a, b in itertools.combinations(reference.STREAMS, 2):
        rows_a, rows_b = ({tuple(row) for row in drawn[name]} for name in (a, b))
        assert not rows_a & rows_b


def test_neighbouring_steps_and_streams_do_not_collide():
    counters = {(step << 8) | stream for step in range(300) for stream in reference.STREAMS.values()}
    assert len(counters) == 300 * len(reference.STREAMS)
    assert max(reference.STREAMS.values()) < 256
