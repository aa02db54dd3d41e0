"""Attention drawn over images, by the command and from weights of other libraries."""

import re

import jax
import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests.support.stored import stored, write_files
from vit_jax.analysis.attention.compute import compute_attention
from vit_jax.analysis.attention.overlays import draw_attention
from vit_jax.cli import main
from vit_jax.errors import UserError
from vit_jax.inference import Classifier
from vit_jax.models import create_model
from vit_jax.models.inputs import trace_init

# A pyramid of two stages that compiles fast, of either kind.
SMALL = {
    "Swin": {"patch_size": 2, "width": 8, "depths": (2, 2), "heads": (2, 2), "window": 4},
    "PVT": {
        "patch_sizes": (2, 2),
        "widths": (8, 8),
        "depths": (1, 1),
        "heads": (1, 2),
        "mlp_ratios": (1, 1),
        "reductions": (2, 1),
    },
}


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "digit.png"
    Image.fromarray(np.eye(8, dtype=np.uint8) * 255).save(path)
    return str(path)


@pytest.fixture
def pyramid():
    """Makes a classifier of random parameters with long class names, for colour images."""

    def make(name, size=16, **fields):
        fields = {**SMALL[name], **fields}
        model = create_model(name, num_classes=3, image_size=size, **fields)
        images = np.zeros((1, *np.broadcast_to(size, 2), 3), np.float32)
        shapes = trace_init(model, images)["params"]
        rng = np.random.default_rng(0)
        params = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes)
        preprocessing = vit_jax.Preprocessing(size=tuple(np.broadcast_to(size, 2).tolist()))
        names = [f"a class whose name is $ {n} and goes on for very long" for n in range(3)]
        return Classifier(model, params, names, preprocessing)

    return make


def texts(figure):
    figure.draw_without_rendering()
    return " | ".join(
        text for panel in figure.axes for text in (panel.get_title(), panel.get_xlabel()) if text
    )


@pytest.mark.parametrize("head", ["mean", "all", "1", "rollout", "relevance"])
def test_an_overlay_is_drawn(head, finished_run, image, tmp_path):
    output = tmp_path / "out.png"
    options = [f"--head={head}", "-o", str(output)]
    assert main(["attention", str(finished_run.path), image, *options]) == 0
    pixels = np.asarray(Image.open(output).convert("RGB"))
    columns = 4 if head == "all" else 3  # the tiny run has two heads
    assert pixels.shape[1] == int(3.2 * 120 * columns)
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 100


def test_several_images_have_a_row_each_whatever_their_size(finished_run, image, tmp_path):
    oblong = tmp_path / "oblong.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (30, 77, 3), np.uint8)).save(oblong)
    classifier = vit_jax.load(finished_run.path)
    both = draw_attention(classifier, [image, str(oblong)], query=(1, 0))
    alone = draw_attention(classifier, str(oblong), query=(1, 0))
    assert len(both.axes) == 2 * len(alone.axes) == 8
    # The map of the second row is that of the image alone: the model's patches of a crop.
    shown = [panel.images[0].get_array() for panel in both.axes if panel.images]
    expected = [panel.images[0].get_array() for panel in alone.axes if panel.images]
    np.testing.assert_allclose(shown[4], expected[1], atol=1e-5)
    assert expected[1].shape == (2, 2)


def test_the_patch_that_asks_is_outlined_and_its_row_is_shown(finished_run, image):
    classifier = vit_jax.load(finished_run.path)
    figure = draw_attention(classifier, image, query=(1, 0))
    seen_by_model = classifier.preprocessing(np.asarray(Image.open(image))[..., None])
    images = classifier.preprocessing.normalize(seen_by_model[None])
    weights = compute_attention(classifier.model, classifier.variables, images).weights[0][0]
    prefix = classifier.model.prefix
    row = 4 * weights[:, prefix + 2, prefix:].mean(0)  # the third of 2 x 2 patches, in raster order
    np.testing.assert_allclose(figure.axes[1].images[0].get_array().ravel(), row, rtol=1e-5)
    for panel in (figure.axes[0], figure.axes[2]):  # patches of 8 pixels
        [square] = panel.patches
        assert (square.get_xy(), square.get_width()) == ((-0.5, 7.5), 8)
    assert "query: patch 1,0" in texts(figure)


def test_a_pyramid_says_which_layers_and_keys_it_shows(pyramid, image):
    swin, pvt = pyramid("Swin"), pyramid("PVT")
    assert "rollout, layer 2 to layer 3" in texts(draw_attention(swin, image, head="rollout"))
    figure = draw_attention(swin, image, layer=0, head="0", query=(0, 0))
    cells = figure.axes[1].images[0].get_array()
    assert cells.shape == (8, 8) and (cells[:4, :4] > 0).all() and cells[4:].max() == 0
    first = texts(draw_attention(pvt, image, layer=0, query=(5, 6)))
    assert "layer 0, mean of 1 heads\nquery: patch 5,6; 4 x 4 keys" in first
    assert "query: class token" in texts(draw_attention(pvt, image))
    assert "a class whose name is $ 0 and g… " in first  # cut, and not read as a formula


def test_many_heads_go_on_below(pyramid, image):
    """Eight heads: six in a line, two below them, and nothing where there is no head."""
    classifier = pyramid("PVT", widths=(8, 8), heads=(8, 2))
    figure = draw_attention(classifier, [image] * 2, layer=0, head="all")
    titles = [panel.get_title().split("\n")[0] for panel in figure.axes if panel.get_visible()]
    assert [f"layer 0, head {n}" for n in range(8)] * 2 == [
        x for x in titles if x.startswith("layer")
    ]
    assert figure.get_size_inches()[0] == pytest.approx(3.2 * 8)
    grid = [panel.get_subplotspec() for panel in figure.axes if "head 7" in panel.get_title()]
    assert [(spec.rowspan.start, spec.colspan.start) for spec in grid] == [(1, 3), (3, 3)]


def test_a_map_that_goes_beyond_the_image_is_cut_off(pyramid, image):
    """18 x 10 pixels in patches of 4: 5 x 3 of them, 20 x 12 pixels."""
    figure = draw_attention(pyramid("Swin", size=(18, 10)), image, layer=-1)
    assert figure.axes[1].images[0].get_array().shape == (5, 3)
    assert figure.axes[2].images[1].get_array().shape == (18, 10)


# --------------------------------------------------------------------------------- other libraries


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("timm_vit", {}, "query: class token"),
        ("timm_map", {"layer": "pool"}, "query: probe token"),
        ("timm_map", {}, "mean over all patches"),
        ("dino", {"head": "all"}, "layer 1, head 1"),
        ("hf_dinov2_registers", {"query": 1}, "query: register 0"),
        ("deit_distilled", {"query": 1}, "query: distillation token"),
        ("swin_oblong", {"layer": 1, "query": (7, 3)}, "query: patch 7,3"),
        ("pvt_original", {"layer": 1}, "mean over all patches; 2 x 2 keys"),
        ("hybrid_timm_root", {"head": "rollout"}, "rollout"),
    ],
)
def test_weights_of_other_libraries_are_looked_at(name, options, told, tmp_path):
    case = stored(name)
    write_files(tmp_path, case.tensors, case.config, case.preprocessor)
    asked = {key: value for key, value in vars(case.hints).items() if value is not None}
    classifier = vit_jax.load_pretrained(tmp_path, **asked)
    image = np.random.default_rng(0).integers(0, 255, (40, 30, 3), np.uint8)
    assert told in texts(draw_attention(classifier, image, **options))
    # What is looked at is the call that gives the library's own numbers.
    images = case.answers["images"]
    seen = compute_attention(classifier.model, classifier.variables, images)
    if "logits" in case.answers and classifier.model.num_classes:
        theirs = case.answers["logits"]
        np.testing.assert_allclose(
            seen.logits, theirs, atol=2e-5 * max(1, np.abs(theirs).max()), rtol=0
        )


def test_a_converted_folder_is_a_run_to_look_at(image, tmp_path):
    case = stored("timm_vit")
    write_files(tmp_path / "theirs", case.tensors, case.config, case.preprocessor)
    ours = str(tmp_path / "ours")
    assert main(["convert", str(tmp_path / "theirs"), ours]) == 0
    output = tmp_path / "out.png"
    assert main(["attention", ours, image, "--layer=0", "-o", str(output)]) == 0
    assert Image.open(output).size[0] == int(3.2 * 120 * 3)


# ------------------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--layer=5", "layer 5: the model has 1 layers, 0 to 0"),
        ("--layer=first", "--layer=first is invalid; use last or the number"),
        ("--layer=pool", "layer 'pool' needs a model with attention pooling"),
        ("--head=7", "head 7: layer 0 has 2 heads, 0 to 1"),
        ("--head=men", "did you mean 'mean'.*or the number of a head, 0 to 1"),
        ("--query=2,0", "query 2,0: .* 2 x 2 patches, rows 0 to 1 and columns 0 to 1"),
        ("--query=2", "--query=2 is invalid; use ROW,COLUMN of a patch"),
        ("--query=a,b", "--query=a,b is invalid"),
        ("--output=x.mp3", "x.mp3 cannot be written"),
        ("--distances=x.mp3", "--distances=x.mp3 cannot be written"),
    ],
)
def test_what_is_not_there_is_one_sentence(option, told, finished_run, image, capsys):
    assert main(["attention", str(finished_run.path), image, option]) == 2
    assert re.search(told, capsys.readouterr().err)


def test_a_file_that_is_no_image_is_named(finished_run, tmp_path, capsys):
    (tmp_path / "letter.txt").write_text("no image")
    assert main(["attention", str(finished_run.path), str(tmp_path / "letter.txt")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: cannot read the image") and "letter.txt" in error
    assert main(["attention", str(finished_run.path), str(tmp_path / "absent.png")]) == 2
    assert "absent.png" in capsys.readouterr().err


def test_more_images_than_a_person_can_see_are_too_many(finished_run, image, capsys):
    assert main(["attention", str(finished_run.path), *[image] * 17]) == 2
    assert "17 images are too many for one overlay" in capsys.readouterr().err


def test_grad_cam_is_drawn_for_a_pyramid(pyramid):
    images = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), np.uint8)
    shown = texts(draw_attention(pyramid("Swin"), images, head="grad-cam"))
    assert "Grad-CAM, stages 1, blocks 1" in shown and "most probable class" in shown
    with pytest.raises(UserError, match="'grad-cam' shows the output of a block for a class"):
        draw_attention(pyramid("Swin"), images, head="grad-cam", query=(0, 0))
