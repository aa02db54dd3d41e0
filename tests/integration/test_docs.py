"""Python of the guides: each block has all the names it uses, and imports what is there."""

import ast
import importlib
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.folders import ROOT
from vit_jax.data import Augment, Preprocessing, open_source, train_batches
from vit_jax.data.sources import custom
from vit_jax.data.transforms import registry

DOCS = ROOT / "docs"
PAGES = (
    *("index.md", "looking_inside.md", "robustness.md", "evaluation.md"),
    *("augmentation.md", "contributing/one_batch.md", "contributing/data_source.md"),
    "contributing/roles.md",
)
BLOCKS = [
    pytest.param(block, id=f"{page}-{number}")
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    )
]


def test_every_block_defines_what_it_uses():
    for parameters in BLOCKS:
        [block] = parameters.values
        checked = subprocess.run(
            [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F821,E9", "-"],
            input=block,
            capture_output=True,
            text=True,
        )
        assert checked.returncode == 0, f"{parameters.id}:\n{checked.stdout}"


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_every_import_of_a_page_is_there(page):
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        check_imports(block)


def check_imports(script: str) -> None:
    for node in ast.walk(ast.parse(script)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vit_jax"):
            exec(ast.unparse(node), {})  # raises ImportError, with both names


def test_the_script_that_draws_the_image_of_the_readme_imports_what_is_there():
    check_imports((DOCS / "images" / "attention_digits.py").read_text(encoding="utf-8"))


def test_the_evaluator_of_the_page_is_the_one_that_is_tested():
    page = (DOCS / "evaluation.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```python\n# contrast.py\n(.*?)```", page, re.DOTALL)
    assert block == (ROOT / "tests/support/example_evaluators.py").read_text(encoding="utf-8")


def test_the_data_source_of_the_page_is_read(tmp_path, monkeypatch):
    page = (DOCS / "contributing" / "data_source.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```python\n# stripes.py\n(.*?)```", page, re.DOTALL)
    (tmp_path / "stripes_of_the_page.py").write_text(block)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("stripes_of_the_page")  # which registers its builder
    source = open_source("tfds:stripes", "test", data_dir=tmp_path / "data")
    assert (len(source), source.class_names) == (128, ("flat", "upright"))
    for index in range(4):
        example = source[index]
        image = example["image"][..., 0].astype(int)
        along, across = np.abs(np.diff(image, axis=0)).sum(), np.abs(np.diff(image, axis=1)).sum()
        assert (along == 0) == (example["label"] == 1) and (across == 0) == (example["label"] == 0)


def test_the_registered_source_and_transform_of_the_page_make_batches(tmp_path, monkeypatch):
    page = (DOCS / "contributing" / "data_source.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```python\n# discs.py\n(.*?)```", page, re.DOTALL)
    (tmp_path / "discs_of_the_page.py").write_text(block)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(custom, "_OPENERS", {})
    monkeypatch.setattr(registry, "_FACTORIES", {})
    importlib.import_module("discs_of_the_page")
    source = open_source("discs", "train")
    assert len(source) == 512 and source.class_names == ("small", "large")
    augment = Augment(flip=0.5, flip_vertical=0.5, transforms=("darken",))
    options = {"batch_size": 64, "seed": 0, "start_step": 0, "total_steps": 1}
    [batch] = train_batches(source, Preprocessing((16, 16), channels=1), augment, **options)
    bright = batch["image"][..., 0] >= 100  # discs are 150 to 249, at least 75 when darkened
    assert np.all(batch["disc"][bright] == 1) and 0.5 < bright.sum() / batch["disc"].sum() < 1
    area = batch["disc"].sum((1, 2))  # of radius 4: about 50 pixels
    assert np.all(batch["label"][area > 60] == 1) and np.all(batch["label"][area < 40] == 0)
