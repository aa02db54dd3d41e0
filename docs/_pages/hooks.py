"""Hooks of MkDocs: pages that are made while the site is built, and links to the repository.

The committed pages are written to be read in the repository too, so a link to a notebook or to
CONTRIBUTING.md leaves the folder `docs`. In the site both are pages of their own.
"""

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from made_pages import MADE  # noqa: E402

_OUTSIDE = re.compile(r"\]\((?:\.\./)+(notebooks/[^)#]+\.ipynb|CONTRIBUTING\.md|CHANGELOG\.md)")
_IN_SITE = {"CONTRIBUTING.md": "contributing/index.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and the notebooks as they are."""
    for path, make in MADE.items():
        files.append(File.generated(config, path, content=make()))
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        name = f"notebooks/{notebook.name}"
        files.append(File.generated(config, name, abs_src_path=str(notebook)))
    return files


def on_page_markdown(markdown: str, page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave the folder `docs` to where their targets are in the site."""
    up = "../" * page.file.src_uri.count("/")

    def inside(link: re.Match) -> str:
        return f"]({up}{_IN_SITE.get(link[1], link[1])}"

    return _OUTSIDE.sub(inside, markdown)
