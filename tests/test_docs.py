"""The README and the pages of docs/ are true: their code runs, their commands run on small data, the messages
they explain exist.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import torch

from cfol_fast import data, methods
from cfol_fast.commands import main as cli
from cfol_fast.errors import InputError
from cfol_fast.sampling import ClassSampler
from tests.data import published_files
from tests.training import tiny
from tools import site_pages

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# Pages whose blocks another test runs: that test names the page. (The README's program:
# tests/test_readme.py.)
ELSEWHERE = {
    "own-loop.md": "tests/sampling/test_own_loop.py",
    "many-gpus.md": "tests/distributed",
    "integrations.md": "tests/integrations",
}
PAGES = ["../README.md", *sorted(path.name for path in DOCS.glob("*.md") if path.name not in ELSEWHERE)]
# What stands above a block that no test runs.
REASONS = ("needs a GPU", "needs a download", "run by hand")
# Wider code scrolls sideways in the site.
CODE_WIDTH = 84
BLOCK = re.compile(r"(?:<!-- ([^\n]*) -->\n)?```(\w*)\n(.*?)```", re.DOTALL)
# Two steps of training, few images and weak attacks: a page is about what a command does, not about how good
# its result is.
SHORT = ["--epochs=1", "--batch-size=8", "--threads=1", "--quiet"]
SHORT += [
    f"--set={field}"
    for field in ("steps_per_epoch=2", "test.steps=1", "validation.steps=1", "attack.steps=1")
]


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of the page's blocks that a test is to run."""
    found = []
    for reason, language, text in BLOCK.findall((DOCS / page).read_text()):
        if reason:
            assert reason.startswith(REASONS), f"{page}: {reason!r} is no reason to leave a block out"
        else:
            found.append((language, text))
    return found


def commands(page: str) -> list[list[str]]:
    """The command lines of the page's shell blocks, without their comments."""
    # A line that ends with a backslash continues on the next one.
    shell = [text.replace("\\\n", " ") for language, text in blocks(page) if language == "bash"]
    lines = [line for text in shell for line in text.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if shlex.split(line, comments=True)]


@pytest.mark.parametrize(
    "page", [page for page in PAGES[1:] if any(language == "python" for language, _ in blocks(page))]
)
def test_the_python_code_of_a_page_runs(page, small_data):
    for language, text in blocks(page):
        if language == "python":
            exec(compile(text, page, "exec"), {})


@pytest.fixture
def small_data(monkeypatch, tmp_path):
    """A few of the embedded images, and a folder DIR of images, where the test now is."""
    whole, few = data.load, tiny.few_images()

    def load(name, *args, **options):
        return few(name) if name == "fashion-mini" else whole(name, *args, **options)

    monkeypatch.setattr(data, "load", load)
    monkeypatch.chdir(tmp_path)
    published_files.folder(tmp_path / "DIR", side=32)
    for language, text in blocks("own-model.md"):
        if language == "python":
            (tmp_path / "my_models.py").write_text(text)


@pytest.mark.slow
@pytest.mark.ffcv
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_the_commands_of_a_page_run_one_after_another(page, small_data, capsys):
    if page not in ("first-steps.md", "../README.md"):
        assert cli.main(["train", "cfol", "--out=runs/cfol", *SHORT]) == 0
    for program, command, *options in commands(page):
        assert program == "cfol-fast", f"{page}: only our own commands are run; say why this one is not"
        short = {"train": SHORT, "eval": ["--limit=10", "--steps=2"]}.get(command, [])
        short = [] if "--resume" in options else short
        short = [*short, "--model=demo-cnn"] if "resnet18" in options else short
        # A network that has seen two steps may miss what a page asks of a trained one.
        allowed = (0, 1) if command == "eval" else (0,)
        assert cli.main([command, *options, *short]) in allowed, capsys.readouterr().err


def test_pages_that_are_tested_elsewhere_are_named_there():
    for page, place in ELSEWHERE.items():
        path = ROOT / place
        tests = [path] if path.is_file() else sorted(path.rglob("*.py"))
        assert not (DOCS / page).exists() or any(page in test.read_text() for test in tests), page


def test_every_message_in_troubleshooting_is_one_of_ours():
    sources = "".join(path.read_text() for path in ROOT.glob("cfol_fast/**/*.py"))
    # As it is printed: the pieces of a string are joined, and what is filled in is three dots.
    printed = re.sub(r"\{[^{}\n]*\}", "...", re.sub(r'"\s*\n\s*f?"', "", sources))
    quoted = re.findall(r"^> (.*)$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    assert len(quoted) > 10
    assert [message for message in quoted if message not in printed] == []


def test_every_method_has_its_words():
    words = tomllib.loads((DOCS / "methods.toml").read_text())
    assert list(words) == list(methods.METHODS)
    for name, entry in words.items():
        assert set(entry) == {"idea", "formula", "cost"}, name
        assert all(text.strip() for text in entry.values())


def test_every_page_is_in_the_site_s_contents():
    listed = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(page for page, _ in site_pages.pages(ROOT / "results")) == sorted(listed)


def test_no_line_of_code_is_wider_than_the_site_s_column():
    wide = {
        f"{page}: {line}"
        for page, markdown in site_pages.pages(ROOT / "results")
        for _, _, text in BLOCK.findall(markdown)
        for line in text.splitlines()
        if len(line) > CODE_WIDTH
    }
    assert wide == set()


@pytest.mark.parametrize(
    ("page", "target", "link"),
    [
        ("a.md", "own-data.md#x", "[t](own-data.md#x)"),
        ("methods/cfol.md", "../own-data.md", "[t](../own-data.md)"),
        ("a.md", "../README.md#speed", "[t](https://r/blob/main/README.md#speed)"),
        ("methods/cfol.md", "../../README.md", "[t](https://r/blob/main/README.md)"),
        ("a.md", "https://x/y", "[t](https://x/y)"),
        ("a.md", "#here", "[t](#here)"),
    ],
)
def test_a_link_out_of_the_docs_leads_to_the_repository(page, target, link):
    assert site_pages.with_outside_links(page, f"[t]({target})", "https://r") == link


def test_without_a_repository_such_a_link_is_the_file_s_name_and_code_is_left_alone():
    text = "[t](../README.md)\n```python\na[0](../x)\n```\n"
    assert site_pages.with_outside_links("a.md", text, "") == text.replace(
        "[t](../README.md)", "t (`README.md`)"
    )


def test_a_link_that_leads_nowhere_is_an_error():
    with pytest.raises(InputError, match="leads nowhere"):
        site_pages.with_outside_links("a.md", "[t](../no-such-file)", "")


def test_the_output_that_first_steps_shows_is_that_of_its_command(capsys):
    """Of the line that follows from the settings alone."""
    assert cli.main(["train", "cfol", "--print-config"]) == 0
    config = json.loads(capsys.readouterr().out)
    # A fifth of the 5,000 training images is held out.
    draws = config["epochs"] * round(4000 / config["batch_size"]) * config["batch_size"]
    sampler = ClassSampler(
        torch.arange(4000) % 10, eta=config["params"]["eta"], gamma=config["params"]["gamma"]
    )
    # The page wraps the line.
    assert sampler.outlook(draws)[0] in " ".join((DOCS / "first-steps.md").read_text().split())
