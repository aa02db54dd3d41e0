"""AutoFormer agrees with its authors' code, as a supernet and as a subnet of it."""

import numpy as np
import pytest

from tests.support import towers
from tests.support.shapes import assert_bit_equal
from tests.support.stored import loaded, stored
from vit_jax.models import create_model
from vit_jax.models.autoformer.positions import distance_rows
from vit_jax.models.autoformer.variants import PUBLISHED, SUPERNETS
from vit_jax.models.autoformer.weights import FORMAT, ROWS, cut
from vit_jax.models.inputs import trace_init
from vit_jax.models.summary.counts import counts
from vit_jax.models.supernet.cost import subnet_cost
from vit_jax.models.supernet.space import SPACES, Subnet
from vit_jax.weights.formats import Hints
from vit_jax.weights.mapping import joined, read_params, write_tensors

SUPERNET, SUBNET = "modern/autoformer/supernet", "modern/autoformer/subnet"
PART = Subnet(24, (3, 2), (1.5, 1.0))


def test_a_supernet_agrees_with_its_authors_in_every_block():
    towers.assert_same_answers(SUPERNET)


def test_a_subnet_agrees_with_its_authors_in_every_block(monkeypatch):
    """Although biases of queries, keys and values are not those of the supernet's heads."""
    tensors = cut(stored(SUPERNET).tensors, PART)
    fields = FORMAT.describe(tensors, None, Hints()).fields
    assert {name: fields[name] for name in PART.fields()} == PART.fields()
    model = create_model("AutoFormer", **fields)
    images = stored(SUBNET).answers["images"]
    shapes = trace_init(model, images)
    reading = read_params(ROWS, tensors, joined(shapes))
    assert reading.missing == reading.left_over == ()

    class Record:
        create_model = staticmethod(lambda: model)

    monkeypatch.setattr(towers, "loaded", lambda *_: (Record, {"params": reading.params}))
    towers.assert_same_answers(SUBNET)


def test_tensors_go_back_bit_for_bit():
    case, (_, variables) = stored(SUPERNET), loaded(SUPERNET)
    assert_bit_equal(write_tensors(ROWS, joined(variables)), case.tensors)


def test_the_file_of_a_published_supernet_is_read_as_the_published_subnet():
    width, depth, _ = SUPERNETS["T"]
    shapes = {
        "patch_embed_super.proj.weight": (width, 3, 16, 16),
        "cls_token": (1, 1, width),
        "pos_embed": (1, 197, width),
        "head.weight": (1000, width),
    }
    for i in range(depth):
        shapes[f"blocks.{i}.attn.qkv.weight"] = (3 * width, width)
        shapes[f"blocks.{i}.attn.qkv.bias"] = (3 * width,)
        shapes[f"blocks.{i}.fc1.weight"] = (4 * width, width)
        shapes[f"blocks.{i}.attn.rel_pos_embed_k.embeddings_table_v"] = (30, 64)
    tensors = {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}
    fields = FORMAT.describe(FORMAT.normalize_names(tensors), None, Hints()).fields
    model = create_model("AutoFormer", **fields)
    assert model == create_model("AutoFormer-T")


def test_published_subnets_are_counted_without_tracing_them():
    width, depth, heads = SUPERNETS["S"]
    supernet = create_model("AutoFormer", width=width, depth=depth, heads=heads)
    assert subnet_cost(supernet, PUBLISHED["S"]).parameters == 22_891_432
    assert PUBLISHED["S"] in SPACES["AutoFormer-S"] and PUBLISHED["B"] in SPACES["AutoFormer-B"]
    assert counts("AutoFormer-S").parameters == 22_891_432


def test_distances_are_clipped_and_those_of_prefix_tokens_have_a_row_of_their_own():
    rows, columns = distance_rows((1, 4), 1, 2)
    assert np.array_equal(rows[1:, 1:], np.full((4, 4), 3))  # a distance of 0
    # From the first patch to the patches 0 to 3, and back from the last.
    assert columns[1].tolist() == [0, 3, 4, 5, 5] and columns[4].tolist() == [0, 1, 1, 2, 3]
    assert not columns[0].any() and not rows[:, 0].any()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"rotary": "axial"}, "rotary='axial' does not go with relative positions of values"),
        ({"positions": "rotary"}, "positions='rotary' .*use positions='learned'"),
        ({"tome_r": 2}, "tome_r=2 .*merged tokens have no distances; use tome_r=0"),
        ({"attention_impl": "chunked"}, "attention_impl='chunked' .*use attention_impl='auto'"),
        ({"scan_layers": True}, "scan_layers=True .*use scan_layers=False"),
    ],
)
def test_a_field_that_it_cannot_have_is_one_sentence(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        create_model("AutoFormer", **fields)
