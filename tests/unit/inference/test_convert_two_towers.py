"""Conversion of files with an image and a text tower, with their tokenizer."""

import jax
import numpy as np
import pytest

import vit_jax
from tests.folders import GOLDENS
from tests.support.stored import stored, write_files
from vit_jax.cli import main
from vit_jax.data.text import train_tokenizer
from vit_jax.errors import UserError
from vit_jax.inference import convert
from vit_jax.inference.encoder import Encoder
from vit_jax.inference.two_towers import TwoTowers, load_two_towers
from vit_jax.runs import RunDir
from vit_jax.weights.io.files import read_tensors
from vit_jax.weights.of_tasks.two_towers import read_two_towers

CASE = stored("two_towers/hf_clip_old")
WORDS = [
    "a red shoe",
    "a blue hat and one green bag",
    "two dogs near the old house of my very small friend",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(WORDS, vocabulary=24, length=20, units="words")


@pytest.fixture(scope="module")
def source(tmp_path_factory, tokenizer):
    folder = write_files(tmp_path_factory.mktemp("clip"), CASE.tensors, CASE.config)
    tokenizer.save(folder)
    return folder


@pytest.fixture(scope="module")
def run(source):
    folder = source.parent / f"{source.name}_run"
    convert(source, folder)
    return RunDir(folder)


def test_a_run_has_both_towers_and_the_tokenizer(run, source):
    record = run.read_model()
    assert (record.task, record.encoder, record.class_names) == ("contrastive", "image", ())
    assert record.options == read_two_towers(source).fields
    loaded = vit_jax.load(run.path)
    assert isinstance(loaded, TwoTowers) and loaded.tokenizer.length == 8
    expected = CASE.answers
    vectors = loaded.task.text_vectors(loaded.variables, expected["ids"].astype(np.int32))
    lengths = np.linalg.norm(expected["text"], axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, expected["text"] / lengths, atol=2e-5)
    of_file = load_two_towers(source)
    ids = [one.tokenizer.encode(["a red shoe"]) for one in (loaded, of_file)]
    np.testing.assert_array_equal(*ids)
    params = [one.variables["params"] for one in (loaded, of_file)]
    jax.tree.map(np.testing.assert_array_equal, *params)


def test_a_run_goes_back_bit_for_bit(run, tmp_path):
    convert(run.path, tmp_path / "files", "huggingface")
    written = read_tensors(tmp_path / "files")
    assert written.keys() == CASE.tensors.keys()
    for name, array in written.items():
        np.testing.assert_array_equal(array, CASE.tensors[name], err_msg=name)
    convert(run.path, tmp_path / "again")
    assert RunDir(tmp_path / "again").read_model().options == run.read_model().options
    assert (tmp_path / "again" / "tokenizer" / "text.json").is_file()


def test_the_image_tower_alone_is_asked_for(run, source, tmp_path):
    for number, where in enumerate((source, run.path)):
        folder = tmp_path / str(number)
        record = convert(where, folder, image_tower=True)
        assert (record.task, record.encoder, record.options) == ("classification", "", {})
        assert isinstance(vit_jax.load(folder), Encoder)
        assert not (folder / "tokenizer").exists()
    convert(source, tmp_path / "timm", "timm", image_tower=True)
    assert "blocks.0.attn.qkv.weight" in read_tensors(tmp_path / "timm")
    with pytest.raises(UserError, match="--to=timm has no model of images and texts"):
        convert(source, tmp_path / "other", "timm")


def test_whoever_wants_an_image_model_gets_the_image_tower(run, source):
    images = CASE.answers["images"]
    features = [
        vit_jax.load_pretrained(where, num_classes=0).variables["params"]
        for where in (source, run.path)
    ]
    jax.tree.map(np.testing.assert_array_equal, *features)
    assert "text" not in features[0] and len(images) == 3


def test_images_of_another_size(source, tmp_path):
    record = convert(source, tmp_path / "run", image_size=(24, 24))
    assert record.fields["image_size"] == (24, 24) and record.options["text_width"] == 24
    table = vit_jax.load(tmp_path / "run").variables["params"]["image"]["pos_embed"]
    assert table.shape == (1, 37, 16)


def test_a_tokenizer_of_other_weights_is_refused(source, tmp_path):
    folder = write_files(tmp_path / "clip", CASE.tensors, CASE.config)
    other = " ".join(f"w{number}" for number in range(40))
    train_tokenizer([other], vocabulary=60, length=8, units="words").save(folder)
    with pytest.raises(UserError, match="it does not belong to these weights"):
        convert(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_names_of_classes_need_the_image_tower(source, tmp_path):
    with pytest.raises(UserError, match="--class-names are those of a classifier"):
        convert(source, tmp_path / "run", class_names="names.txt")


def test_an_archive_of_openai_is_converted(tmp_path):
    hints = stored("two_towers/openai").hints
    record = convert(
        GOLDENS / "weights" / "two_towers" / "openai.pt", tmp_path / "run", "run", hints
    )
    assert record.options["text_activation"] == "quick_gelu"
    assert not RunDir(tmp_path / "run").tokenizer.exists()


def test_the_command_says_what_there_is_and_what_lacks(tmp_path, capsys):
    archive = str(GOLDENS / "weights" / "two_towers" / "openai.pt")
    asked = ["--origin=clip", "--heads=2", "--text-heads=2"]
    assert main(["convert", archive, str(tmp_path / "run"), *asked]) == 0
    said = capsys.readouterr().out
    assert "ViT and a text tower" in said and "--tokenizer=PATH" in said
    assert main(["convert", archive, str(tmp_path / "image"), *asked, "--image-tower"]) == 0
    assert "a text tower" not in capsys.readouterr().out
    assert main(["convert", archive, str(tmp_path / "other"), *asked[:2]]) != 0
    assert "--text-heads=NUMBER" in capsys.readouterr().err
