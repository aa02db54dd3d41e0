"""TimeSformer: what depends on what in a clip, tubelets, and clips that do not fit.

Every block is compared with another library's in `test_weights`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.shapes import VIT, random_images, random_variables, relative_difference, run
from vit_jax.config import default_config
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.timesformer.module import TimeSformer
from vit_jax.models.vit.module import ViT
from vit_jax.runs import ModelRecord
from vit_jax.training.setup.pretrained_init import inherited_fields
from vit_jax.weights.adapt import adapt

CLIPS = (2, 4, 16, 16, 3)


def tiny(**fields):
    return TimeSformer(**{**VIT, "num_frames": 4, "mlp_width": 24, **fields})


@functools.cache
def made(space_time):
    model, clips = tiny(space_time=space_time), random_images(*CLIPS)
    return model, random_variables(model, clips), clips


@pytest.mark.parametrize("space_time", ["divided", "joint", "space"])
def test_only_where_frames_do_not_meet_their_order_has_no_effect(space_time):
    model, variables, clips = made(space_time)
    logits, backwards = (run(model, variables, x) for x in (clips, clips[:, ::-1]))
    moved = relative_difference(logits, backwards)
    assert moved < 1e-5 if space_time == "space" else moved > 1e-2


def test_separate_frames_are_images_of_a_vit_whose_tokens_are_averaged():
    model, variables, clips = made("space")
    vit = ViT(**{**VIT, "mlp_width": 24, "final_norm": False})
    params = {k: v for k, v in variables["params"].items() if k not in ("norm", "head")}
    head = dict.fromkeys(("head",), variables["params"]["head"])
    of_frames = run(vit, {"params": params | head}, clips.reshape(-1, 16, 16, 3), method="features")
    mean = of_frames.tokens.reshape(2, 4, *of_frames.tokens.shape[1:]).mean(axis=1)
    found = run(model, variables, clips, method="features").tokens
    norm = variables["params"]["norm"]
    centred = mean - mean.mean(axis=-1, keepdims=True)
    normed = centred / np.sqrt(centred.var(axis=-1, keepdims=True) + model.norm_eps)
    np.testing.assert_allclose(found, normed * norm["scale"] + norm["bias"], atol=2e-5)


def test_joint_attention_to_one_frame_is_a_vit():
    model, variables, clips = made("joint")
    model = model.clone(num_frames=1)
    params = {**variables["params"], "time_embed": np.zeros((1, 1, 16), np.float32)}
    logits = run(model, {"params": params}, clips[:, :1])
    of_image = {name: tree for name, tree in params.items() if name != "time_embed"}
    expected = run(ViT(**{**VIT, "mlp_width": 24}), {"params": of_image}, clips[:, 0])
    np.testing.assert_allclose(logits, expected, atol=2e-5)


def test_along_time_a_patch_sees_its_own_place_only():
    """Weights along time are those of every place; within frames those of every frame."""
    model, variables, clips = made("divided")
    asked = {"attention_weights": True, "mutable": ["intermediates"]}
    _, sown = run(model, variables, clips, **asked)
    block = sown["intermediates"]["blocks_0"]
    assert block["time"]["attention"]["weights"][0].shape == (2 * 16, 2, 4, 4)
    assert block["attn"]["weights"][0].shape == (2 * 4, 2, 17, 17)


def test_a_tubelet_is_a_convolution_over_time():
    model = tiny(tubelet_size=2)
    clips = random_images(*CLIPS)
    variables = random_variables(model, clips)
    kernel = variables["params"]["patch_embed"]["kernel"]  # (4, 4, 2 * 3, width)
    over_time = jnp.moveaxis(kernel.reshape(4, 4, 2, 3, 16), 2, 0)
    expected = jax.lax.conv_general_dilated(
        clips, over_time, (2, 4, 4), "VALID", dimension_numbers=("NDHWC", "DHWIO", "NDHWC")
    )
    nothing = ("pos_embed", "time_embed", "cls_token")
    params = {k: 0 * v if k in nothing else v for k, v in variables["params"].items()}
    tokens, grid = model.apply({"params": params}, clips, method="embed")
    assert grid == (4, 4)
    expected = expected.reshape(2, 32, 16) + params["patch_embed"]["bias"]
    np.testing.assert_allclose(tokens[:, 1:], expected, atol=2e-5)


@pytest.mark.slow
def test_branches_along_time_add_nothing_at_first_but_the_first():
    model, _, clips = made("divided")
    params = jax.jit(model.init)(jax.random.key(0), clips)["params"]
    dense = [np.abs(params[f"blocks_{i}"]["time"]["dense"]["kernel"]).max() for i in range(2)]
    assert dense[0] > 0 == dense[1]
    assert not params["time_embed"].any()


def test_another_number_of_frames_has_the_nearest_vectors():
    model, variables, clips = made("divided")
    twice = np.repeat(clips, 2, axis=1)
    features = run(model, variables, twice, method="features")
    assert features.frames == 8 and features.tokens.shape == (2, 1 + 8 * 16, 16)
    # Doubled frames have equal vectors and equal keys, so that attention weighs them as before.
    expected = run(model, variables, clips, method="features")
    np.testing.assert_allclose(features.pooled, expected.pooled, atol=2e-5)


@pytest.mark.parametrize("space_time", ["divided", "joint", "space"])
def test_with_weights_of_images_a_clip_of_equal_frames_is_that_image(space_time):
    """Attention along time has the numbers of that within frames, but adds nothing at first; to
    attend to equal tokens is to attend to one of them, but for the class token among them."""
    vit = ViT(**{**VIT, "mlp_width": 24})
    image = random_images(2, 16, 16, 3)
    params = random_variables(vit, image)["params"]
    adapted = adapt(params, vit, tiny(space_time=space_time))
    if space_time == "divided":
        time, own = (adapted.params["blocks_1"][name] for name in ("time", "attn"))
        jax.tree.map(np.testing.assert_array_equal, time["attention"], own)
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(time["dense"]))
    assert ("time_embed" in adapted.fresh) == (space_time != "space")
    frames = 1 if space_time == "joint" else 4
    clip = np.repeat(image[:, None], frames, axis=1)
    logits = run(tiny(space_time=space_time), {"params": adapted.params}, clip)
    np.testing.assert_allclose(logits, run(vit, {"params": params}, image), atol=2e-5)


def test_a_class_without_sizes_inherits_those_of_the_weights():
    fields = {"width": 48, "depth": 2, "heads": 3, "mlp_ratio": 2.0, "patch_size": 4}
    record = ModelRecord("ViT-B/16", {**fields, "mlp_width": None}, Preprocessing((8, 8)), ())
    config = default_config()
    config.model.name = "TimeSformer"
    found = inherited_fields(config, record)
    assert {**fields, "patch_size": 16, "mlp_width": None}.items() <= found.items()
    assert "class_token" not in found
    config.model.name = "TimeSformer-B/16"
    with pytest.raises(UserError, match="has width 768, depth 12, .* have width 48, depth 2"):
        inherited_fields(config, record)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"num_frames": 5, "tubelet_size": 2}, "5 frames .* tubelets of 2; .* are 4 and 6"),
        ({"num_frames": 0}, "num_frames=0"),
        ({"image_size": 18}, "18 x 18 pixels cannot be cut"),
        ({"heads": 3}, "width=16 is not a multiple of heads, 3"),
        ({"space_time": "time"}, "unknown space_time='time'; use one of 'divided', 'joint'"),
    ],
)
def test_fields_that_do_not_fit_are_one_sentence(fields, sentence):
    with pytest.raises(ValueError, match=f"TimeSformer: .*{sentence}") as caught:
        tiny(**fields)
    assert "\n" not in str(caught.value)
