"""The page in a real browser, wide and on a phone, in light and in dark."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from cfol_fast import reporting
from tests.reporting.browser import Browser, program
from tests.reporting.synthetic_runs import make_run

pytestmark = pytest.mark.browser

CHARTS = """[...document.querySelectorAll('[data-chart]')].map(panel => {
  const shown = [...panel.querySelectorAll('svg')].filter(svg => getComputedStyle(svg).display !== 'none');
  const box = shown.length === 1 ? shown[0].getBoundingClientRect() : {width: 0, height: 0};
  const marks = shown.length === 1 ? shown[0].querySelectorAll('.bar, path.line, .dot, .cell') : [];
  const seen = [...marks].filter(mark => { const b = mark.getBoundingClientRect(); return b.width + b.height > 0; });
  return {name: panel.dataset.chart, drawings: shown.length, width: box.width, height: box.height, marks: seen.length};
})"""

TINY_TEXT = """[...document.querySelectorAll('svg text')].filter(text => {
  const box = text.getBoundingClientRect();
  return box.width > 0 && parseFloat(getComputedStyle(text).fontSize) * Math.hypot(text.getScreenCTM().a, text.getScreenCTM().b) < 7.5;
}).map(text => text.textContent)"""

OUTSIDE = """[...document.querySelectorAll('svg text, h1, p, td, .card')].filter(text => {
  const box = text.getBoundingClientRect();
  return box.width > 0 && (box.left < -1 || box.right > innerWidth + 1) && !text.closest('.scroll');
}).map(text => text.textContent)"""


PANELS = {
    "measures": 1, "classes": 2, "change": 1, "training": 1, "class-training": 2, "distribution": 1, "distribution-training": 1, "confusion": 2,
}  # fmt: skip


def names(panels):
    return {f"{key}-{number}" for key, count in panels.items() for number in range(count)}


EXPECTED = {
    "demo": names(PANELS),
    "seeds": names({**PANELS, "classes": 4, "class-training": 4, "confusion": 4}),
    "many": names({**PANELS, "change": 0, "tail": 1}),
    "unfinished": names({**PANELS, "change": 0, "confusion": 1}),
}


@pytest.fixture(scope="module")
def browser():
    executable = program()
    if executable is None:
        pytest.skip("needs chromium: apt-get install chromium")
    running = Browser(executable)
    yield running
    running.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages of the kinds a reader meets, by name."""
    top = tmp_path_factory.mktemp("pages")
    kinds = {
        "demo": [make_run(top / "erm", "erm"), make_run(top / "cfol", "cfol")],
        "seeds": [
            make_run(top / f"s-{m}-{s}", m, seed=s) for m in ("erm", "cfol", "lcvar", "fol") for s in (0, 1)
        ],
        "many": [make_run(top / f"m-{m}", m, classes=200, epochs=5) for m in ("erm", "cfol")],
        "unfinished": [make_run(top / "u-erm", "erm"), make_run(top / "u-cfol", "cfol", stopped=4)],
    }
    return {
        name: reporting.write_report(runs, top / f"{name}.html", pictures=False)
        for name, runs in kinds.items()
    }


@pytest.mark.parametrize("name", ["demo", "seeds", "many", "unfinished"])
@pytest.mark.parametrize("width", [1200, 400])
def test_the_page_loads_cleanly_and_every_chart_is_there(browser, pages, name, width):
    browser.problems.clear()
    browser.requests.clear()
    browser.load(pages[name], width)
    charts = browser.evaluate(CHARTS)
    assert {chart["name"] for chart in charts} == EXPECTED[name]
    for chart in charts:
        assert chart["drawings"] == 1, chart
        assert chart["width"] > 0.7 * min(width, 480) - 40, chart
        assert chart["height"] > 60, chart
        assert chart["marks"] > 0, chart
    assert browser.problems == []
    assert all(address.startswith(("file:", "data:")) for address in browser.requests)
    broken = browser.evaluate(
        "[...document.images].filter(image => !image.complete || !image.naturalWidth).length"
    )
    assert broken == 0


@pytest.mark.parametrize("name", ["demo", "seeds", "many"])
@pytest.mark.parametrize("width", [1200, 400])
def test_nothing_is_too_small_or_hangs_over_the_edge(browser, pages, name, width):
    browser.load(pages[name], width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(OUTSIDE) == []
    assert browser.evaluate(TINY_TEXT) == []


def brightness(browser):
    answer = browser.call("Page.captureScreenshot", format="png")
    import base64

    return np.asarray(Image.open(io.BytesIO(base64.b64decode(answer["data"]))).convert("L")).mean()


def test_dark_mode_follows_the_system_and_the_buttons(browser, pages):
    browser.load(pages["demo"], dark=False)
    assert brightness(browser) > 200
    browser.evaluate("document.getElementById('theme-dark').click()")
    assert brightness(browser) < 80
    browser.load(pages["demo"], dark=True)
    assert brightness(browser) < 80
    browser.evaluate("document.getElementById('theme-light').click()")
    assert brightness(browser) > 200


def test_text_keeps_its_contrast_in_both_themes(browser, pages):
    """WCAG's ratio of at least 4.5 for text against the page."""
    script = """['--text', '--muted', '--good', '--bad', '--worst'].map(name => {
      const style = getComputedStyle(document.documentElement);
      const light = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16) / 255)
        .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
      const [a, b] = [light(style.getPropertyValue(name).trim()), light(style.getPropertyValue('--card').trim())];
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    })"""
    for dark in (False, True):
        browser.load(pages["demo"], dark=dark)
        assert min(browser.evaluate(script)) >= 4.5


def test_hovering_names_the_value(browser, pages):
    browser.load(pages["demo"])
    title = browser.evaluate(
        "document.querySelector('#classes .item .bar').parentNode.querySelector('title').textContent"
    )
    assert title.startswith("T-shirt/top, robust: ")
