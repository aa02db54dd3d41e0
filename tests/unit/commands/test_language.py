"""Commands that compare images with texts, on a tiny model that has learned nothing."""

import json
import os

import numpy as np
import pytest
from PIL import Image

from tests.support.two_towers import NAMES, write_tiny_run
from vit_jax.cli import main
from vit_jax.inference.image_index import ImageIndex
from vit_jax.inference.two_towers import TwoTowers, load_two_towers


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_tiny_run(tmp_path_factory.mktemp("runs") / "clip")


@pytest.fixture(scope="module")
def towers(run):
    return load_two_towers(run.path)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        pixels = np.random.RandomState(number).randint(0, 256, (8, 8, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def call(*arguments):
    return main(list(map(str, arguments)))


def test_zero_shot_prints_the_nearest_classes(run, towers, folder, capsys, tmp_path):
    (tmp_path / "classes.txt").write_text("cat\ndog\n\nred shoe\n")
    (tmp_path / "templates.txt").write_text("the {}\na photo of a {}\n")
    asked = ["zero-shot", run.path, folder, f"--classes=@{tmp_path / 'classes.txt'}", "--json"]
    assert call(*asked, f"--template=@{tmp_path / 'templates.txt'}", "--top=1") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["image"] for line in lines] == [str(folder / f"{i}.png") for i in range(3)]
    vectors = towers.class_vectors(NAMES, ["the {}", "a photo of a {}"])
    nearest = (towers.encode_image([folder]) @ vectors.T).argmax(1)
    assert [line["classes"][0]["label"] for line in lines] == [NAMES[i] for i in nearest]


def test_search_keeps_vectors_and_reads_only_new_images(
    run, towers, folder, capsys, tmp_path, monkeypatch
):
    read = []
    batches = TwoTowers.batches

    def counted(self, images, batch_size):
        read.extend(os.path.basename(name) for name in images)
        return batches(self, images, batch_size)

    monkeypatch.setattr(TwoTowers, "batches", counted)
    sheet = tmp_path / "sheet.png"
    asked = ["search", run.path, folder, "a red shoe", "the dog", "--json", "-o", sheet]
    assert call(*asked, "--top=2") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    cosines = towers.encode_text(["a red shoe", "the dog"]) @ towers.encode_image([folder]).T
    for line, row in zip(lines, cosines, strict=True):
        order = np.argsort(-row)[:2]
        assert [one["image"] for one in line["images"]] == [str(folder / f"{i}.png") for i in order]
        np.testing.assert_allclose([one["cosine"] for one in line["images"]], row[order], atol=1e-6)
    assert Image.open(sheet).size[1] > 2 * 96
    assert read[:3] == ["0.png", "1.png", "2.png"]
    # Again: one image is new, one is changed, one is gone.
    read.clear()
    (folder / "0.png").unlink()
    (folder / "1.png").rename(folder / "3.png")
    os.utime(folder / "2.png", (1, 1))
    assert call(*asked) == 0
    assert read == ["2.png", "3.png"]
    index = ImageIndex.load(tmp_path / "photos.vectors.npz")
    assert [os.path.basename(name) for name in index.names] == ["2.png", "3.png"]
    assert not (tmp_path / "photos.vectors.npz.part").exists()
    # Vectors of another model are not used.
    read.clear()
    other = write_tiny_run(tmp_path / "other", seed=1)
    capsys.readouterr()
    assert call("search", other.path, *asked[2:]) == 0
    assert read == ["2.png", "3.png"]
    assert "is an index of another model, and is made anew" in capsys.readouterr().err


def test_embed_writes_vectors_of_images_and_of_texts(run, towers, folder, tmp_path):
    assert call("embed", run.path, folder, "-o", tmp_path / "v.npy") == 0
    np.testing.assert_allclose(
        np.load(tmp_path / "v.npy"), towers.encode_image([folder]), atol=1e-6
    )
    names = (tmp_path / "v.txt").read_text().splitlines()
    assert names == [str(folder / f"{i}.png") for i in range(3)]
    (tmp_path / "texts.txt").write_text("a cat\nthe dog\n")
    asked = ["embed", run.path, f"--texts={tmp_path / 'texts.txt'}", "-o", tmp_path / "t.npy"]
    assert call(*asked) == 0
    expected = towers.encode_text(["a cat", "the dog"])
    np.testing.assert_allclose(np.load(tmp_path / "t.npy"), expected, atol=1e-6)


def test_images_that_cannot_be_read_are_named_and_counted(run, folder, tmp_path, capsys):
    (folder / "1.png").write_bytes(b"no image")
    assert call("embed", run.path, folder, "-o", tmp_path / "v.npy") == 2
    said = capsys.readouterr().err
    assert "1.png" in said and "1 of 3 images could not be read" in said
    assert np.load(tmp_path / "v.npy").shape == (2, 4)
    assert call("search", run.path, folder, "a cat", "-o", tmp_path / "s.png") == 0
    for number in (0, 2):
        (folder / f"{number}.png").write_bytes(b"no image")
    assert call("search", run.path, folder, "a cat", "-o", tmp_path / "s.png") == 2
    assert "there is no image to search: 3 files of 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["zero-shot", "RUN", "FOLDER"], "there are no classes; give --classes="),
        (["zero-shot", "RUN", "--classes=cat"], "there are no images"),
        (["zero-shot", "RUN", "FOLDER", "--classes=@none.txt"], "none.txt cannot be read"),
        (["zero-shot", "RUN", "FOLDER", "--classes=a", "--template=b"], "must have {} once"),
        (["search", "RUN", "nowhere", "a cat"], "there is no folder nowhere"),
        (["search", "RUN", "FOLDER", " "], "1 of 1 text is empty"),
        (["search", "RUN", "FOLDER", "a", "--cache=/no/folder/x"], "there is no folder /no/folder"),
        (["embed", "RUN", "FOLDER", "--texts=x"], "cannot be embedded into one file"),
        (["search", "RUN", "FOLDER", "a", "--cache=FOLDER/0.png"], "is no index of images"),
    ],
)
def test_wrong_input_is_one_sentence(run, folder, asked, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = (("RUN", str(run.path)), ("FOLDER", str(folder)))
    for short, whole in places:
        asked = [argument.replace(short, whole) for argument in asked]
    assert call(*asked) == 2
    captured = capsys.readouterr()
    assert said in captured.err and "Traceback" not in captured.err


def test_relevance_is_drawn_for_a_text(run, folder, tmp_path):
    image, picture = folder / "0.png", tmp_path / "relevance.png"
    assert call("attention", run.path, image, "--text=a red shoe", "-o", picture) == 0
    assert np.ptp(np.asarray(Image.open(picture))) > 0
