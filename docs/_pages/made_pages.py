"""Pages of the site that are generated from the code, and the functions that generate them.

None is committed; `mkdocs.yml` lists them in its navigation, and hooks.py adds them to the site.
"""

import re
from collections.abc import Callable
from pathlib import Path

import made_api
import made_models
import made_reference

ROOT = Path(__file__).parents[2]


def _contributing() -> str:
    """Return CONTRIBUTING.md with its links rewritten for the site."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    text = text.replace("](docs/contributing/", "](").replace("](docs/", "](../")
    return re.sub(r"\[([^]]+)\]\(LICENSE\)", r"\1", text)


def _changelog() -> str:
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


MADE: dict[str, Callable[[], str]] = {
    "reference/config.md": made_reference.config_keys,
    "reference/configs.md": made_reference.configs,
    "reference/commands.md": made_reference.commands,
    "models/names.md": made_models.names,
    "models/checkpoints.md": made_models.checkpoints,
    "contributing/index.md": _contributing,
    "changelog.md": _changelog,
    **{f"reference/api/{page}.md": make for page, make in made_api.PAGES.items()},
}
