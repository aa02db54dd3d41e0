"""The documentation as a whole: links, navigation, names of files, keys and commands.

`make docs` builds the site and fails on a dead link; this needs nothing beside the package.
"""

import importlib
import re
import sys
from pathlib import Path

import pytest

from tests.folders import ROOT
from vit_jax.commands.app import app
from vit_jax.config.files import find_config, list_configs
from vit_jax.config.schema import KEYS
from vit_jax.models import list_models, model_fields

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
ROOMS = [path.name for path in (ROOT / "vit_jax").iterdir() if path.is_dir()]
COMMANDS = {one.name or one.callback.__name__ for one in app.registered_commands}


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def prose(text):
    """The text without its blocks of code."""
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors(text):
    """The anchors of the headings of a page, as MkDocs and code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    bare = (re.sub(r"[^\w\s-]", "", heading.lower()).strip() for heading in headings)
    return {re.sub(r"\s", "-", heading) for heading in bare}


@pytest.fixture(scope="module")
def made():
    """The pages that are made while the site is built: by path, their text."""
    sys.path.insert(0, str(DOCS / "_pages"))
    try:
        pages = importlib.import_module("made_pages").MADE
        return {path: make() for path, make in pages.items()}
    finally:
        sys.path.remove(str(DOCS / "_pages"))


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_every_link_leads_somewhere(page, made):
    text = prose(page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        in_site = target.relative_to(DOCS).as_posix() if target.is_relative_to(DOCS) else ""
        there = target.exists() or in_site in made
        assert there, f"{name_of(page)} links to {link}"
        if anchor and target.suffix == ".md":
            there = made.get(in_site) or target.read_text(encoding="utf-8")
            assert anchor in anchors(there), f"{name_of(page)} links to {link}"


def test_every_page_is_in_the_navigation_once(made):
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    listed = re.findall(r"[\w/]+\.md", navigation)
    committed = [page.relative_to(DOCS).as_posix() for page in PAGES]
    notebooks = [f"notebooks/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")]
    assert sorted(listed) == sorted([*committed, *made, *notebooks])


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_every_file_that_is_named_is_there(page):
    if page.parent.name == "coming_from":  # files of other projects
        return
    tops = ("configs", "docs", "tests", "benchmarks", "notebooks", "vit_jax", *ROOMS)
    named = rf"`((?:{'|'.join(tops)})/[\w/.-]+\.(?:py|md|ipynb|csv|toml))`"
    for path in re.findall(named, page.read_text(encoding="utf-8")):
        found = (ROOT / path).exists() or (ROOT / "vit_jax" / path).exists()
        assert found, f"{name_of(page)} names {path}"


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_every_config_and_command_that_is_written_is_there(page):
    text = page.read_text(encoding="utf-8")
    for config in re.findall(r"--config=([\w/.]+)", text):
        stem = Path(config).stem
        if not stem.isupper() and stem != "file":  # placeholders
            assert find_config(config), f"{name_of(page)} names the config {config}"
    for command in re.findall(r"(?:^|[`(]|-m )vit_jax ([a-z_][a-z_-]*)", text, re.MULTILINE):
        assert command in COMMANDS, f"{name_of(page)} names the command {command}"


@pytest.mark.parametrize("name", ["timm", "google_vit_jax", "big_vision"])
def test_every_key_that_stands_for_an_option_elsewhere_is_a_key(name):
    text = (DOCS / "coming_from" / f"{name}.md").read_text(encoding="utf-8")
    fields = model_fields("ViT-S/16")
    checked = 0
    for line in text.splitlines():
        cells = re.split(r"(?<!\\)\|", line)[1:-1]
        if len(cells) != 3:
            continue
        for token in re.findall(r"`([a-z_]+(?:\.[a-z_0-9]+)*)`", cells[1]):
            if token == "metrics.jsonl":
                continue
            known = token in KEYS or token.removeprefix("model.") in fields
            assert known, f"{name}: {token} is no key"
            checked += 1
    assert checked > 15


def test_pages_that_are_made_hold_everything(made):
    for key in KEYS:
        assert f"| `{key}` |" in made["reference/config.md"]
    for command in COMMANDS:
        assert f"\n## {command}\n" in made["reference/commands.md"]
    for config in list_configs():
        assert f"| `{config}` |" in made["reference/configs.md"]
    for model in list_models():
        assert f"| `{model}` |" in made["models/names.md"]
    # Dosovitskiy et al. 2021 count 86 million; with the head for 1,000 classes it is this number.
    [base] = [line for line in made["models/names.md"].splitlines() if "| `ViT-B/16` |" in line]
    assert "| 86,567,656 |" in base
    for name in ("create_model", "load", "load_pretrained"):
        assert f"::: vit_jax.{name}\n" in made["reference/api/vit_jax.md"]
    for name in ("swin.Swin", "pvt.PVT", "ViT"):
        assert made["reference/api/models.md"].count(f"::: vit_jax.models.{name}\n") == 1


def test_the_citation_is_of_this_version():
    from vit_jax import __version__

    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
