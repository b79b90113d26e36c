"""Writes the pages that mkdocs builds the site from: docs/*.md and the generated pages.

`python -m tools.site_pages` writes them to build/site-pages, mkdocs.yml's `docs_dir`. `make docs` calls it
before mkdocs, so that the site needs no hook.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from cfol_fast.errors import InputError
from tools.collection import read_frontiers
from tools.command_page import command_page
from tools.leaderboard_page import leaderboard_page, picture
from tools.method_pages import method_pages
from tools.which_method_page import which_method_page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = ROOT / "build" / "site-pages"
# A link whose target is a relative path: no address, no anchor of the same page.
LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:|#|/)([^)\s]+)\)")
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def generated(results: Path) -> dict[str, str]:
    """The generated pages, by their path below docs/."""
    frontiers = read_frontiers(results)
    return {
        "commands.md": command_page(),
        "leaderboard.md": leaderboard_page(frontiers),
        "which-method.md": which_method_page(frontiers),
        **{f"methods/{name}.md": text for name, text in method_pages(results).items()},
    }


def with_outside_links(page: str, markdown: str, repository: str) -> str:
    """The page with its links to files outside docs/ leading to the repository.

    page: its path below docs/. repository: its address; without one such a link becomes the file's name.
    """

    def link(found: re.Match[str]) -> str:
        text, target = found.groups()
        name, _, anchor = target.partition("#")
        path = Path(os.path.normpath(DOCS / Path(page).parent / name))
        if path.is_relative_to(DOCS):
            return found.group(0)
        if not path.exists():
            raise InputError(f"{page}: the link {target} leads nowhere. Write the path of an existing file.")
        inside = path.relative_to(ROOT).as_posix()
        whole = f"{inside}#{anchor}" if anchor else inside
        if repository:
            return f"[{text}]({repository}/blob/main/{whole})"
        return f"`{inside}`" if text == inside else f"{text} (`{inside}`)"

    # Code is left as it is: a[i](x) in it is no link.
    parts = FENCED.split(markdown)
    return "".join(part if i % 2 else LINK.sub(link, part) for i, part in enumerate(parts))


def pages(results: Path) -> Iterator[tuple[str, str]]:
    """(path, markdown) of every page of the site, before its links are rewritten."""
    for path in sorted(DOCS.glob("*.md")):
        yield path.name, path.read_text()
    yield from generated(results).items()


def write(folder: Path, repository: str = "") -> None:
    """Replaces `folder` with the site's pages, pictures and assets."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder, ignore=shutil.ignore_patterns("*.md", "*.toml"))
    for page, markdown in pages(ROOT / "results"):
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / page).write_text(with_outside_links(page, markdown, repository))
    for facts in read_frontiers(ROOT / "results"):
        target = folder / picture(facts)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / "results" / facts["scale"] / "frontier.svg", target)


if __name__ == "__main__":
    write(PAGES, os.environ.get("CFOL_REPOSITORY", ""))
