"""The page in a real browser, wide and on a phone, in light and in dark."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from cfol_fast import reporting
from cfol_fast.methods import METHODS
from cfol_fast.recipes.frontier import plan, writing
from cfol_fast.reporting.chart import Figure, Point, ScatterChart
from tests.recipes import fake_frontier
from tests.reporting.browser import Browser, program
from tests.reporting.synthetic_runs import make_run

pytestmark = pytest.mark.browser

CHARTS = """[...document.querySelectorAll('[data-chart]')].map(panel => {
  const shown = [...panel.querySelectorAll('svg')].filter(svg => getComputedStyle(svg).display !== 'none');
  const box = shown.length === 1 ? shown[0].getBoundingClientRect() : {width: 0, height: 0};
  const marks = shown.length === 1 ? shown[0].querySelectorAll('.bar, path.line, .dot, .cell') : [];
  const size = mark => { const b = mark.getBoundingClientRect(); return b.width + b.height; };
  const seen = [...marks].filter(mark => size(mark) > 0);
  const {width, height} = box;
  return {name: panel.dataset.chart, drawings: shown.length, width, height, marks: seen.length};
})"""

TINY_TEXT = """[...document.querySelectorAll('svg text')].filter(text => {
  const box = text.getBoundingClientRect();
  const scale = Math.hypot(text.getScreenCTM().a, text.getScreenCTM().b);
  return box.width > 0 && parseFloat(getComputedStyle(text).fontSize) * scale < 7.5;
}).map(text => text.textContent)"""

OUTSIDE = """[...document.querySelectorAll('svg text, h1, p, td, .card')].filter(text => {
  const box = text.getBoundingClientRect();
  return box.width > 0 && (box.left < -1 || box.right > innerWidth + 1) && !text.closest('.scroll');
}).map(text => text.textContent)"""


# Text whose contrast with the nearest ground behind it is below 4.5.
PALE = """(() => {
  const rgb = text => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const bright = colour => colour.slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = element => {
    for (; element; element = element.parentElement) {
      const colour = rgb(getComputedStyle(element).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const pale = new Set(), walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
    if (!text || element.tagName === 'title' || element.classList.contains('number')) continue;
    if (!element.getBoundingClientRect().width) continue;
    const style = getComputedStyle(element);
    const ink = element.namespaceURI.includes('svg') ? style.fill : style.color;
    const [a, b] = [bright(rgb(ink)), bright(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) pale.add(ratio.toFixed(2) + ' ' + text.slice(0, 40));
  }
  return [...pale];
})()"""

# Pairs of texts in one drawing whose boxes share more than the empty space above and below the letters.
COVERED = """[...document.querySelectorAll('svg.chart')]
  .filter(svg => getComputedStyle(svg).display !== 'none').flatMap(svg => {
  const texts = [...svg.querySelectorAll('text')].filter(text => text.textContent.trim())
    .map(text => [text.textContent, text.getBoundingClientRect()]).filter(pair => pair[1].width);
  return texts.flatMap(([one, a], i) => texts.slice(i + 1).filter(([other, b]) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1.5 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3.5
  ).map(([other]) => one + ' / ' + other));
})"""


PANELS = {
    "measures": 1,
    "classes": 2,
    "change": 1,
    "training": 1,
    "class-training": 2,
    "distribution": 1,
    "distribution-training": 1,
    "confusion": 2,
}


def names(panels):
    return {f"{key}-{number}" for key, count in panels.items() for number in range(count)}


EXPECTED = {
    "demo": names(PANELS),
    "seeds": names({**PANELS, "classes": 4, "class-training": 4, "confusion": 4, "extra-frontier": 1}),
    "many": names({**PANELS, "change": 0, "tail": 1, "train-test": 2}),
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
    made = {
        name: reporting.write_report(
            runs, top / f"{name}.html", pictures=False, extra_figures=[scatter()] if name == "seeds" else []
        )
        for name, runs in kinds.items()
    }
    return {**made, "fair": fair_table(top / "fair")}


def fair_table(top):
    """The page of the fair table: every row, with two seeds, and some with three."""
    rows = [row.name for row in plan.read().rows]
    worst = {name: [8 + i, 24 - i, 30][: 3 if name in ("erm", "faal") else 2] for i, name in enumerate(rows)}
    facts = fake_frontier.make(top, worst, {name: 70 - i % 5 for i, name in enumerate(rows)}, {"faal": 0.3})
    (top / "page").mkdir()
    writing.write(facts, top / "page", top / "runs")
    return top / "page/report.html"


def scatter():
    """Eighteen methods, some of them at the same place."""
    points = []
    for i, name in enumerate(METHODS):
        x, y = 0.6 + 0.01 * (i % 7), 0.1 + 0.02 * (i % 5)
        points.append(Point(METHODS[name].title, "teal", x, y, (x - 0.01, x + 0.01), (y - 0.05, y + 0.05)))
    return Figure(
        "frontier", "Average against worst", "", [ScatterChart("", points, "average, %", "worst, %")]
    )


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


@pytest.mark.parametrize("name", ["demo", "seeds", "many", "fair"])
@pytest.mark.parametrize("width", [1200, 800, 400])
def test_nothing_is_too_small_or_hangs_over_the_edge(browser, pages, name, width):
    browser.load(pages[name], width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(OUTSIDE) == []
    assert browser.evaluate(TINY_TEXT) == []


def brightness(browser):
    answer = browser.call("Page.captureScreenshot", format="png")
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


@pytest.mark.parametrize("name", ["demo", "seeds", "many", "fair"])
@pytest.mark.parametrize("dark", [False, True])
def test_all_text_keeps_its_contrast_in_both_themes(browser, pages, name, dark):
    """WCAG's ratio of at least 4.5 against what is behind it; numbers on coloured cells are tested in
    test_theme.py.
    """
    for width in (1200, 800, 400):
        browser.load(pages[name], width, dark=dark)
        assert browser.evaluate(PALE) == []


@pytest.mark.parametrize("name", ["demo", "seeds", "many", "fair"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_keeps_its_contrast_on_paper(browser, pages, name, theme):
    """Whatever theme the reader has: paper is white."""
    browser.load(pages[name], 703)
    scheme = {"name": "prefers-color-scheme", "value": theme}
    browser.call("Emulation.setEmulatedMedia", media="print", features=[scheme])
    try:
        assert browser.evaluate(PALE) == []
    finally:
        browser.call("Emulation.setEmulatedMedia", media="", features=[])


@pytest.mark.parametrize("name", ["demo", "seeds", "many", "unfinished", "fair"])
@pytest.mark.parametrize("width", [1200, 800, 400])
def test_no_label_covers_another(browser, pages, name, width):
    browser.load(pages[name], width)
    assert browser.evaluate(COVERED) == []


def test_the_keyboard_reaches_a_table_that_goes_on_beyond_the_edge(browser, pages):
    browser.load(pages["seeds"], 400)
    script = """(() => {
      const boxes = [...document.querySelectorAll('.scroll')];
      const box = boxes.find(box => box.scrollWidth > box.clientWidth + 1);
      box.focus();
      return document.activeElement === box && getComputedStyle(box).overflowX === 'auto';
    })()"""
    assert browser.evaluate(script)


@pytest.mark.parametrize(("name", "most"), [("demo", 7), ("seeds", 10), ("many", 10), ("fair", 12)])
def test_the_printed_page_is_short_light_and_has_the_wide_drawings(browser, pages, name, most):
    browser.load(pages[name], dark=True)
    browser.call(
        "Emulation.setEmulatedMedia",
        media="print",
        features=[{"name": "prefers-color-scheme", "value": "dark"}],
    )
    try:
        shown = browser.evaluate(
            "[...document.querySelectorAll('svg.narrow')].filter(s => getComputedStyle(s).display !=="
            " 'none').length"
        )
        assert shown == 0
        assert (
            browser.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--card').trim()")
            == "#ffffff"
        )
        answer = browser.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
    finally:
        browser.call("Emulation.setEmulatedMedia", media="", features=[])
    assert 2 <= pages_of(base64.b64decode(answer["data"])) <= most


@pytest.mark.parametrize("name", ["demo", "seeds", "many", "fair"])
def test_no_table_is_wider_than_the_paper(browser, pages, name):
    """A4 without its margins has 703 pixels: what is wider is cut off, or makes the browser print the whole
    page smaller.
    """
    browser.load(pages[name], 703)
    browser.call("Emulation.setEmulatedMedia", media="print", features=[])
    try:
        wide = browser.evaluate(
            "[...document.querySelectorAll('table')].filter(t => t.getBoundingClientRect().right > "
            "t.closest('.figure').getBoundingClientRect().right).map(t => t.id)"
        )
    finally:
        browser.call("Emulation.setEmulatedMedia", media="", features=[])
    assert wide == []


def pages_of(pdf):
    """Every page is an object of the type Page; Pages is the list of them."""
    return len(re.findall(rb"/Type /Page\b(?!s)", pdf))


def test_hovering_names_the_value(browser, pages):
    browser.load(pages["demo"])
    title = browser.evaluate(
        "document.querySelector('#classes .item .bar').parentNode.querySelector('title').textContent"
    )
    assert title.startswith("T-shirt/top, robust: ")
