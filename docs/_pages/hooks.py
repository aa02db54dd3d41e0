"""Hooks of MkDocs: generated pages, notebooks, links to the repository.

The committed pages can be read in the repository too, so a link to a notebook or to CONTRIBUTING.md
leaves the folder `docs`. In the site both are separate pages; a notebook is shown as it is stored,
with its outputs, and never executed.
"""

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from made_pages import MADE  # noqa: E402

# Links from `docs` to the rest of the repository, and links of notebooks into `docs`.
_OUTSIDE = re.compile(r"\]\((?:\.\./)+(notebooks/[^)#]+\.ipynb|CONTRIBUTING\.md|CHANGELOG\.md)")
_TO_DOCS = re.compile(r"\]\(\.\./docs/")
_IN_SITE = {"CONTRIBUTING.md": "contributing/index.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and the notebooks."""
    for path, make in MADE.items():
        files.append(File.generated(config, path, content=make()))
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for path, content in _notebook(notebook).items():
            files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links between `docs` and the rest of the repository for the site."""
    up = "../" * page.file.src_uri.count("/")

    def inside(link: re.Match) -> str:
        target = _IN_SITE.get(link[1], link[1].replace(".ipynb", ".md"))
        return f"]({up}{target}"

    return _TO_DOCS.sub("](../", _OUTSIDE.sub(inside, markdown))


def _notebook(path: Path) -> dict[str, str | bytes]:
    """Return the page of a notebook and its images, keyed by their paths in the site."""
    names = {"output_files_dir": f"{path.stem}_files", "unique_key": path.stem}
    page, resources = MarkdownExporter().from_filename(str(path), resources=names)
    images = {f"notebooks/{name}": image for name, image in resources["outputs"].items()}
    return {f"notebooks/{path.stem}.md": page, **images}
