"""Colours that can be read: series on their grounds, and numbers on coloured cells."""

import pytest

from cfol_fast.reporting import theme


@pytest.mark.parametrize("colour", theme.SERIES)
@pytest.mark.parametrize("ground", ["card", "page"])
def test_a_name_in_its_series_colour_can_be_read(colour, ground):
    for pair in zip(theme.SERIES[colour], theme.INK[ground], strict=True):
        assert theme.contrast(*pair) >= 4.5


@pytest.mark.parametrize("colour", [*theme.SERIES, "worst"])
def test_a_number_on_a_cell_can_be_read_at_every_strength(colour):
    inks = {"var(--near)": theme.INK["near"], "var(--far)": theme.INK["far"]}
    for strength in (0.06, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0):
        ink = theme.ink_on(colour, strength)
        for number, text in enumerate(inks.get(ink, (ink, ink))):
            whole, card = theme._COLOURS[colour][number], theme.INK["card"][number]
            assert theme.contrast(text, theme._blend(whole, card, strength)) >= 4.5


def test_the_contrast_of_black_and_white_is_21():
    assert theme.contrast("#000000", "#ffffff") == pytest.approx(21)
