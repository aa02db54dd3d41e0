"""Files of results: their names, and folders that hold images too."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from vit_jax.errors import UserError
from vit_jax.inference.dense.files import write_files


class Inverted:
    """A predictor that writes one text for each image."""

    preprocessing = SimpleNamespace(decode=lambda image, name: np.asarray(Image.open(image)))

    def __call__(self, pixels):
        return [pixels.shape]

    def write(self, folder, stem, result, pixels):
        (folder / f"{stem}.txt").write_text(str(result))
        return [folder / f"{stem}.txt"]


@pytest.fixture
def photos(tmp_path):
    for name in ("a.png", "x/a.png", "x/a-2.png", "x/found/b.png"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (2, 3)).save(path)
    return tmp_path


def test_no_file_takes_the_place_of_another(photos):
    names = [str(photos / name) for name in ("a.png", "x/a.png", "x/a-2.png")]
    written = [paths[0].name for _, paths in write_files(Inverted(), names, photos / "out")]
    assert written == ["a.txt", "a-2.txt", "a-2-2.txt"]


def test_results_inside_a_folder_of_images_are_no_images_but_images_are_not_passed_over(photos):
    found = list(write_files(Inverted(), [str(photos / "x")], photos / "x/found"))
    assert [name.rpartition("/")[2] for name, _ in found] == ["a-2.png", "a.png"]
    for given in ("x", "x/found", "x/a.png"):
        with pytest.raises(UserError, match="--output=.*x is, or contains,.* use another folder"):
            list(write_files(Inverted(), [str(photos / given)], photos / "x"))
