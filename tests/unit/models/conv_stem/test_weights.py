"""torchvision's ViTs with a convolutional stem; the files are those of `make_conv_stem.py`."""

import jax
import numpy as np
import pytest

from tests.support import shapes
from tests.support.stored import stored, write_files
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.conv_stem import weights as conv_stem
from vit_jax.models.stacking import read_blocks, stack_blocks
from vit_jax.weights.convert import read_pretrained
from vit_jax.weights.formats import Hints
from vit_jax.weights.mapping import joined, write_tensors
from vit_jax.weights.recognition import recognise

CASE = stored("conv_stem")
COUNTER = "conv_proj.conv_bn_relu_0.1.num_batches_tracked"


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    folder = write_files(tmp_path_factory.mktemp("stem"), CASE.tensors)
    return read_pretrained(folder, CASE.hints)


def run(record, variables, **changes):
    """Logits, outputs of stem and blocks for the golden images."""
    model = create_model(record.name, **{**record.fields, **changes})
    if changes.get("scan_layers"):
        variables = {**variables, "params": stack_blocks(variables["params"])}
    logits, kept = shapes.run(model, variables, CASE.answers["images"], mutable="intermediates")
    kept = kept["intermediates"]
    blocks = {f"block_{i}": block for i, block in enumerate(read_blocks(kept, "out"))}
    return {"stem": kept["patch_embed"]["out"][0], **blocks, "logits": logits}


def largest_error(ours, theirs):
    return np.abs(ours - theirs).max() / max(1, np.abs(theirs).max())


@pytest.mark.parametrize("changes", [{}, {"scan_layers": True}, {"remat": "full"}])
def test_stem_blocks_and_logits_are_torchvisions(read, changes):
    found = run(*read, **changes)
    assert set(found) == {"stem", "block_0", "block_1", "logits"}
    for name, ours in found.items():
        assert largest_error(ours, CASE.answers[name]) <= 2e-5, name


@pytest.mark.parametrize("changes", [{"stem_eps": 1e-3}, {"stem_eps": 1e-6}])
def test_a_wrong_epsilon_is_noticed(read, changes):
    assert largest_error(run(*read, **changes)["stem"], CASE.answers["stem"]) > 1e-4


def test_training_takes_the_statistics_of_the_batch_and_keeps_a_tenth_of_them(read):
    record, variables = read
    forward = jax.jit(
        lambda v, x: record.create_model().apply(v, x, train=True, mutable=["batch_stats"])
    )
    logits, new = forward(variables, CASE.answers["images"])
    assert largest_error(logits, CASE.others["logits"]) <= 2e-5
    numbers = {0: 3 * 8 * 8, 1: 3 * 8 * 8, 2: 3 * 4 * 4}  # images x places
    for i, n in numbers.items():
        old, found = (tree["batch_stats"]["patch_embed"][f"norm_{i}"] for tree in (variables, new))
        theirs = f"conv_proj.conv_bn_relu_{i}.1.running"
        np.testing.assert_allclose(
            found["mean"], CASE.others[f"{theirs}_mean"], rtol=2e-5, atol=2e-6
        )
        # torch's new part is the variance times n / (n - 1).
        unbiased = 0.9 * old["var"] + (found["var"] - 0.9 * old["var"]) * n / (n - 1)
        np.testing.assert_allclose(unbiased, CASE.others[f"{theirs}_var"], rtol=2e-5)


def test_fields_come_from_shapes(read):
    record, _ = read
    expected = {
        "stem_channels": (6, 6, 8),
        "stem_kernel": 3,
        "image_size": 16,
        "patch_size": 4,
        "width": 16,
        "depth": 2,
        "heads": 2,
        "mlp_width": 40,
        "num_classes": 5,
        "norm_eps": 1e-6,
    }
    assert {name: record.fields[name] for name in expected} == expected
    assert record.create_model().strides == (2, 1, 2)
    assert record.preprocessing.crop == 0.875


def test_a_size_of_the_paper_is_read_under_its_name():
    """Shapes alone: nothing of the blocks is looked at but their MLP."""
    fields = conv_stem.describe(
        {
            **CASE.tensors,
            **{
                f"conv_proj.conv_bn_relu_{i}.0.weight": np.zeros((b, a, 3, 3))
                for i, (a, b) in enumerate(((3, 24), (24, 48), (48, 96), (96, 192)))
            },
            "conv_proj.conv_last.weight": np.zeros((192, 192, 1, 1)),
            "encoder.pos_embedding": np.zeros((1, 197, 192)),
        },
        None,
        Hints(heads=3),
    ).fields
    assert (fields["patch_size"], fields["image_size"]) == (16, 224)
    assert fields["stem_channels"] == create_model("ViTC-1GF").stem_channels


def test_what_is_read_is_written_again_bit_for_bit(read):
    written = write_tensors(conv_stem.ROWS, joined(read[1]))
    assert {*written, COUNTER} == set(CASE.tensors)
    for name, array in written.items():
        np.testing.assert_array_equal(array, CASE.tensors[name], err_msg=name)


def test_the_file_is_no_plain_vit_and_a_plain_vit_is_none_of_these():
    assert recognise(CASE.tensors) is conv_stem.FORMAT
    assert recognise(stored("torchvision_to_24").tensors).architecture == "ViT"


def test_a_file_of_a_part_of_the_stem_is_refused():
    missing = "conv_proj.conv_bn_relu_1.0.weight"
    tensors = {name: array for name, array in CASE.tensors.items() if name != missing}
    with pytest.raises(UserError, match="up to number 2 but not number 1"):
        conv_stem.describe(tensors, None, CASE.hints)


def test_heads_are_asked_for():
    with pytest.raises(UserError, match="--heads=NUMBER"):
        conv_stem.describe(CASE.tensors, None, Hints())
