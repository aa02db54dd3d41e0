"""ResNets of torchvision, timm and transformers: their fields, and the same files again.

That every stage has the library's numbers is in `tests/unit/weights/test_pyramids.py`.
"""

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from safetensors.numpy import load_file

from tests.support.stages import TOLERANCE
from tests.support.stored import loaded, stored
from vit_jax.errors import UserError
from vit_jax.models.resnet import weights as resnet
from vit_jax.weights.convert import make_record, read_pretrained, write_pretrained
from vit_jax.weights.ecosystems import convolutions
from vit_jax.weights.formats import Hints, ModelSpec
from vit_jax.weights.recognition import recognise

CASES = ("resnet_timm", "resnet_basic", "resnet_hf")
TIMM = stored("resnet_timm")


def test_running_statistics_move_as_torch_moves_them():
    """And the logits in training are those of the batch's own statistics."""
    record, variables = loaded("resnet_timm")
    model, expected = record.create_model(), TIMM.others
    step = jax.jit(lambda v, x: model.apply(v, x, train=True, mutable=["batch_stats"]))
    logits, moved = step(variables, expected["images"])
    largest = np.abs(expected["logits"]).max()
    assert np.abs(logits - expected["logits"]).max() <= TOLERANCE * max(1, largest)
    statistics = {
        f"batch_stats/{k}": x for k, x in flatten_dict(moved["batch_stats"], sep="/").items()
    }
    compared = 0
    for path, ours in statistics.items():
        [name] = next(names for row in resnet.ROWS if (names := row.names(path)))
        if name in expected:
            theirs = expected[name]
            assert np.abs(ours - theirs).max() <= TOLERANCE * max(1, np.abs(theirs).max()), name
            assert np.abs(theirs - TIMM.tensors[name]).max() > 1e-3, name
            compared += 1
    assert compared == 2 * 5  # the stem, and the last block with its shortcut


def test_shapes_and_configuration_say_all_fields():
    record, _ = loaded("resnet_timm")
    assert record.name == "ResNet"
    assert record.fields == {
        "num_classes": 5,
        "image_size": (40, 24),
        "in_channels": 3,
        "depths": (1, 2, 1, 1),
        "widths": (4, 4, 8, 8),
        "block": "bottleneck",
        "stem_width": 64,
        "small_stem": False,
        "norm_eps": 1e-5,
    }
    assert record.class_names == ("ant", "bee", "cat", "dog", "eel")
    assert record.preprocessing.mean == (0.1, 0.2, 0.3)
    assert record.preprocessing.crop == 0.75
    basic, _ = loaded("resnet_basic")
    assert (basic.fields["block"], basic.fields["depths"]) == ("basic", (1, 1, 1, 2))
    assert (basic.preprocessing.crop, basic.preprocessing.interpolation) == (0.875, "bilinear")
    theirs, _ = loaded("resnet_hf")
    assert theirs.fields["widths"] == (4, 4, 8, 8)
    assert theirs.class_names == record.class_names


def test_a_model_of_published_sizes_has_its_name():
    fields = {**resnet.describe(TIMM.tensors, TIMM.config, Hints()).fields, "num_classes": 0}
    fields |= {"depths": (3, 4, 23, 3), "widths": (64, 128, 256, 512)}
    description = ModelSpec(fields, {}, "timm")
    assert make_record(description, "ResNet").name == "ResNet-101"


@pytest.mark.parametrize(
    ("name", "to"),
    [("resnet_timm", "timm"), ("resnet_basic", "timm"), ("resnet_hf", "huggingface")],
)
def test_what_is_written_is_the_file_again_bit_for_bit(name, to, tmp_path):
    record, variables = loaded(name)
    written = load_file(write_pretrained(tmp_path, to, record, variables) / "model.safetensors")
    expected = {k: x for k, x in stored(name).tensors.items() if "num_batches" not in k}
    counters = {k: written.pop(k) for k in list(written) if k.endswith(".num_batches_tracked")}
    assert written.keys() == expected.keys()
    assert all(written[key].tobytes() == expected[key].tobytes() for key in expected)
    norms = {k.removesuffix("running_mean") for k in expected if k.endswith("running_mean")}
    assert counters.keys() == {f"{norm}num_batches_tracked" for norm in norms}
    for counter in counters.values():  # as a new layer of torch has it
        assert (counter.dtype, counter.shape, int(counter)) == (np.int64, (), 0)
    again, _ = read_pretrained(tmp_path)
    assert again.fields == record.fields
    assert again.class_names == record.class_names


def test_transformers_stem_is_not_what_timm_can_say(tmp_path):
    with pytest.raises(UserError, match="does not support stem_width = 8"):
        write_pretrained(tmp_path, "timm", *loaded("resnet_hf"))


def test_whose_weights_they_are_is_asked_for():
    with pytest.raises(UserError, match="--origin=timm or --origin=torchvision or"):
        resnet.describe(TIMM.tensors, None, Hints())


@pytest.mark.parametrize(
    "change",
    [{"architecture": "resnetblur50"}, {"model_args": {"act_layer": "silu"}}],
)
def test_a_variant_with_the_same_names_is_refused(change):
    with pytest.raises(UserError, match="may (differ|change)"):
        resnet.describe(TIMM.tensors, {**TIMM.config, **change}, Hints())


@pytest.mark.parametrize(
    "change",
    [{"downsample_in_bottleneck": True}, {"downsample_in_first_stage": True}],
)
def test_a_stride_in_another_place_is_refused(change):
    case = stored("resnet_hf")
    tensors = convolutions.without_prefix(case.tensors, "resnet")
    with pytest.raises(UserError, match=f"{next(iter(change))} = True"):
        resnet.transformers_describe(tensors, {**case.config, **change}, Hints())


@pytest.mark.parametrize("name", CASES)
def test_it_is_recognised_as_a_resnet(name):
    assert recognise(stored(name).tensors).architecture == "ResNet"


@pytest.mark.parametrize(
    ("channels", "of_each", "expected"),
    [(16, 4, r"16 channels and each reads 4.*ResNeXt"), (32, 32, r"32 channels in .* Wide ResNet")],
)
def test_blocks_of_other_widths_are_called_by_their_names(channels, of_each, expected):
    """The shapes of resnext50_32x4d and wide_resnet50_2, of which the names are a ResNet's."""
    tensors = dict(stored("resnet_timm").tensors)
    tensors["layer1.0.conv3.weight"] = np.zeros((64, channels, 1, 1), np.float32)
    tensors["layer1.0.conv2.weight"] = np.zeros((channels, of_each, 3, 3), np.float32)
    with pytest.raises(UserError, match=expected):
        resnet.describe(tensors, None, Hints("timm"))


SAVED_BY_TIMM = {"in_chans": 3, "num_classes": 5, "global_pool": "avg", "output_stride": 32}


def test_arguments_at_their_defaults_change_nothing():
    """timm 1.0.31 writes some of them into every config.json."""
    config = {"architecture": "resnet50", "model_args": {**SAVED_BY_TIMM, "aa_layer": None}}
    plain = resnet.describe(TIMM.tensors, {"architecture": "resnet50"}, Hints())
    told = resnet.describe(TIMM.tensors, config, Hints())
    assert told.fields == plain.fields


@pytest.mark.parametrize(
    "wrong", [{"global_pool": "max"}, {"avg_down": True}, {"aa_layer": "blurpool"}, {"new": 1}]
)
def test_arguments_that_change_what_is_computed_are_refused(wrong):
    config = {"architecture": "resnet50", "model_args": {**SAVED_BY_TIMM, **wrong}}
    with pytest.raises(UserError, match=f"model_args has '{next(iter(wrong))}' = "):
        resnet.describe(TIMM.tensors, config, Hints())
