"""The `inspect` command and its parts: what is drawn of which model, and what is told instead."""

import dataclasses
import functools
import re

import jax
import numpy as np
import pytest
from PIL import Image

from tests.support.shapes import random_variables
from vit_jax.analysis.weights_view.figures import (
    PARTS,
    NotThere,
    Samples,
    Subject,
    draw,
    parts_of,
    pooled_features,
    read_images,
)
from vit_jax.cli import main
from vit_jax.data import Preprocessing, open_source
from vit_jax.errors import DecodeError, UserError
from vit_jax.inference import Classifier
from vit_jax.models import create_model
from vit_jax.models.inputs import trace_init
from vit_jax.runs import ModelRecord, RunDir

NAMES = ("cat", "dog", "$_$")
PREPROCESSING = Preprocessing((16, 16), 1, (0.5,), (0.5,))
VIT = {
    "image_size": 16,
    "patch_size": 8,
    "width": 8,
    "depth": 1,
    "heads": 2,
    "in_channels": 1,
    "num_classes": 3,
}
RESNET = {
    "image_size": 16,
    "depths": (1,),
    "widths": (4,),
    "stem_width": 4,
    "small_stem": True,
    "block": "basic",
    "in_channels": 1,
    "num_classes": 3,
}


def classifier(name, **fields):
    model = create_model(name, **fields)
    variables = random_variables(model, np.zeros((1, 16, 16, 1), np.float32))
    params = variables.pop("params")
    return Classifier(model, params, NAMES, PREPROCESSING, variables)


@pytest.fixture(scope="module")
def samples():
    images = np.random.default_rng(0).integers(0, 256, (30, 16, 16, 1)).astype(np.uint8)
    return Samples(images, np.arange(30) % 3, NAMES, 30)


def test_a_resnet_has_all_but_positions(samples):
    subject = Subject(classifier("ResNet", **RESNET), "resnet", samples)
    assert parts_of(subject) == ["filters", "features", "neighbours", "receptive_fields"]
    with pytest.raises(NotThere, match="ResNet has no position tables"):
        draw("positions", subject)
    for part in parts_of(subject):
        figures, sentence = draw(part, subject)
        assert list(figures) == [part]
        assert sentence


@pytest.mark.parametrize(
    ("positions", "reason"), [("rotary", "there is no table"), ("none", "has no positions")]
)
def test_a_vit_without_a_table_says_why(positions, reason):
    model = create_model("ViT", **VIT, positions=positions)
    shapes = trace_init(model, np.zeros((1, 16, 16, 1), np.float32))
    params = jax.tree.map(lambda x: np.ones(x.shape, np.float32), shapes["params"])
    subject = Subject(Classifier(model, params, NAMES, PREPROCESSING), "vit", None, "no data")
    assert parts_of(subject) == ["filters"]
    with pytest.raises(NotThere, match=reason):
        draw("positions", subject)
    for part in ("features", "neighbours", "receptive_fields"):
        with pytest.raises(NotThere, match="^no data$"):
            draw(part, subject)


def test_images_with_several_labels_have_receptive_fields_but_no_colours(samples):
    subject = Subject(classifier("ResNet", **RESNET), "resnet", samples._replace(labels=None))
    assert parts_of(subject) == ["filters", "receptive_fields"]
    with pytest.raises(NotThere, match="several labels"):
        draw("features", subject)


def test_features_do_not_hang_on_the_batch_and_are_what_the_model_gives(samples):
    resnet = classifier("ResNet", **RESNET)
    one = pooled_features(resnet, samples.images, batch_size=7)
    images = resnet.preprocessing.normalize(samples.images)
    features = jax.jit(functools.partial(resnet.model.apply, method="features"))
    expected = features(resnet.variables, images).pooled
    np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-6)


def test_a_sample_is_drawn_by_its_seed_and_leaves_out_what_cannot_be_read(data_dir):
    source = open_source("digits", "test", data_dir=data_dir)
    few = read_images(source, PREPROCESSING, 40, seed=1)
    assert (few.images.shape, few.total) == ((40, 16, 16, 1), 360)
    again, other = (read_images(source, PREPROCESSING, 40, seed=seed) for seed in (1, 2))
    np.testing.assert_array_equal(few.images, again.images)
    assert not np.array_equal(few.images, other.images)
    everything = read_images(source, PREPROCESSING, 1000)
    np.testing.assert_array_equal(everything.labels, source.labels)

    class Damaged:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            if index in bad:
                raise DecodeError(f"{index}.png", "it is cut off")
            return source[index]

    damaged, bad = dataclasses.replace(source, examples=Damaged()), {1, 2}
    np.testing.assert_array_equal(
        read_images(damaged, PREPROCESSING, 9).labels, source.labels[[0, 3]]
    )
    bad = {0, 1, 2, 3}
    with pytest.raises(UserError, match="no image of digits test can be read"):
        read_images(damaged, PREPROCESSING, 9)


# -------------------------------------------------------------------------------------- the command


@pytest.fixture
def resnet_folder(tmp_path):
    """Weights that no training here has made: no data belong to them."""
    made, run = classifier("ResNet", **RESNET), RunDir(tmp_path / "resnet")
    run.path.mkdir()
    run.write_model(ModelRecord("ResNet", RESNET, PREPROCESSING, NAMES))
    run.write_variables(made.variables)
    return run.path


def test_the_command_draws_every_part_of_a_run(finished_run, tmp_path, capsys):
    folder = tmp_path / "images"
    arguments = [str(finished_run.path), "--images=40", f"--output={folder}"]
    assert main(["inspect", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == list(PARTS)
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{n}.png" for n in PARTS)
    for path in folder.iterdir():
        assert min(Image.open(path).size) > 200


def test_weights_without_data_have_positions_and_filters_only(resnet_folder, capsys):
    assert main(["inspect", str(resnet_folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "positions: not drawn, ResNet has no position tables"
    assert lines[1].startswith("filters: 4 filters; 4 principal components explain 100.0 %")
    assert all("not drawn" in line and "--dataset=DATASET" in line for line in lines[2:])
    folder = resnet_folder / "figures" / "inspect"
    assert [path.name for path in folder.iterdir()] == ["filters.png"]


def test_two_models_stand_beside_each_other(resnet_folder, finished_run, tmp_path, capsys):
    arguments = [str(finished_run.path), "--only=receptive_fields", f"--with={resnet_folder}"]
    assert main(["inspect", *arguments, f"--output={tmp_path}", "--images=4"]) == 0
    assert "tiny has half" in (out := capsys.readouterr().out)
    assert "; resnet has half of its gradient within" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--only=positions"], "ResNet has no position tables; .*resnet has filters$"),
        (["--only=filters,features"], "features: .*--dataset=DATASET.; .*resnet has filters$"),
        (["--only=position"], "there is no part 'position'; did you mean 'positions'"),
        (["--dataset=folder:nowhere"], "nowhere"),
        (["--with=nowhere"], "there is no run folder nowhere"),
        (["--checkpoint=first"], "use last, best or a step"),
        ([f"--output={__file__}"], "--output=.* cannot be created: File exists"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(arguments, sentence, resnet_folder, capsys):
    assert main(["inspect", str(resnet_folder), *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(sentence, line), line
