"""Attention drawn over a picture, by the command."""

import numpy as np
import pytest
from PIL import Image

from vit_jax.cli import main


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "digit.png"
    Image.fromarray(np.eye(8, dtype=np.uint8) * 255).save(path)
    return str(path)


@pytest.mark.parametrize("head", ["mean", "all", "1", "rollout", "relevance"])
def test_an_overlay_is_drawn(head, finished_run, picture, tmp_path):
    output = tmp_path / "out.png"
    options = [f"--head={head}", "-o", str(output)]
    assert main(["attention", str(finished_run.path), picture, *options]) == 0
    pixels = np.asarray(Image.open(output).convert("RGB"))
    columns = 4 if head == "all" else 3  # the tiny run has two heads
    assert pixels.shape[1] == int(3.2 * 120 * columns)
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 100


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--layer=5", "layer 5: the model has 1 layers, 0 to 0"),
        ("--layer=first", "--layer=first is not legal; write last or the number"),
        ("--head=7", "head 7: layer -1 has 2 heads, 0 to 1"),
        ("--head=men", "did you mean 'mean'.*or the number of a head, 0 to 1"),
        ("--output=x.mp3", "x.mp3 cannot be written"),
    ],
)
def test_what_is_not_there_is_one_sentence(option, told, finished_run, picture, capsys):
    import re

    assert main(["attention", str(finished_run.path), picture, option]) == 2
    assert re.search(told, capsys.readouterr().err)
