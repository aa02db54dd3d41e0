"""Layers, blocks and names of parameters in tables written by hand."""

import jax
import pytest
from flax import linen as nn
from flax.traverse_util import unflatten_dict

from vit_jax.errors import UserError
from vit_jax.models import ViT
from vit_jax.models.description import Blocks, Role, count_blocks, describe, model_roles

DENSE = {"kernel": Role.LINEAR}


def tree(*paths, shape=(2, 2)):
    return unflatten_dict({path: jax.ShapeDtypeStruct(shape, "f4") for path in paths}, sep="/")


def layers(roles, *paths, shape=(2, 2)):
    """The layers of each parameter by path, in the order of the description."""
    found = describe(tree(*paths, shape=shape), roles)
    return {path: list(one.layers) for path, one in found.items()}


def test_layers_follow_from_the_order_of_the_table_whatever_the_names():
    roles = {"zoom": DENSE, "unit_*": Blocks(DENSE), "a": DENSE}
    paths = ("a/kernel", "unit_10/kernel", "unit_2/kernel", "zoom/kernel")
    found = layers(roles, *paths)
    expected = {"zoom/kernel": [0], "unit_2/kernel": [1], "unit_10/kernel": [2], "a/kernel": [3]}
    assert found == expected and list(found) == list(expected)


def test_parts_of_a_stage_belong_to_its_first_or_its_last_block():
    roles = {
        "stem": DENSE,
        "levels_*": {"enter": DENSE, "unit_*": Blocks({"a": DENSE}), "leave": DENSE},
        "norm": DENSE,
    }
    units = [f"levels_{i}/unit_{j}/a/kernel" for i, j in ((0, 0), (0, 1), (1, 0))]
    others = [f"levels_{i}/{name}/kernel" for i in (0, 1) for name in ("enter", "leave")]
    found = layers(roles, "stem/kernel", *units, *others, "norm/kernel")
    assert [found[path] for path in units] == [[1], [2], [3]]
    assert [found[path] for path in others] == [[0], [2], [3], [3]]
    assert (found["stem/kernel"], found["norm/kernel"]) == ([0], [4])


def test_layers_are_counted_through_the_modules_of_a_task():
    block = {"unit_*": Blocks(DENSE)}
    roles = {
        "encoder": {"stem": DENSE, **block, "norm": DENSE},
        "decoder": {"embed": DENSE, **block, "out": DENSE},
    }
    paths = [f"encoder/{name}/kernel" for name in ("stem", "unit_0", "unit_1", "norm")]
    paths += [f"decoder/{name}/kernel" for name in ("embed", "unit_0", "out")]
    assert list(layers(roles, *paths).values()) == [[0], [1], [2], [3], [3], [3], [4]]


def test_blocks_of_a_stem_are_blocks_but_no_layers():
    roles = {"stem": {"unit_*": Blocks(DENSE, are_layers=False)}, "blocks_*": Blocks(DENSE)}
    params = tree("stem/unit_0/kernel", "blocks_0/kernel")
    found = describe(params, roles)
    assert [one.block for one in found.values()] == ["stem/unit_0", "blocks_0"]
    assert [one.layers for one in found.values()] == [(0,), (1,)]
    assert [one.parts for one in found.values()] == [("stem",), ("blocks_0",)]
    assert count_blocks(found) == 1


def test_a_stack_has_the_names_layers_and_parts_of_separate_blocks():
    roles = {"tower": {"trunk_*": Blocks({"a": DENSE})}, "head": DENSE}
    found = describe(tree("tower/trunk/a/kernel", "head/kernel", shape=(3, 2, 2)), roles)
    stack, head = found.values()
    assert stack.is_stack and stack.block == "tower/trunk" and stack.layers == (1, 2, 3)
    assert stack.names == tuple(f"tower/trunk_{i}/a/kernel" for i in range(3))
    assert stack.parts == tuple(f"tower/trunk_{i}" for i in range(3))
    assert (head.is_stack, head.layers, head.parts) == (False, (4,), ("head",))


def test_a_module_without_a_table_is_described_by_names():
    roles = {"encoder": {"unit_*": Blocks(DENSE)}, "decoder": None}
    params = tree("encoder/unit_0/kernel", "decoder/blocks_0/fc1/kernel", "decoder/scale")
    found = describe(params, roles)
    assert found["decoder/blocks_0/fc1/kernel"].role is Role.MLP_IN
    assert found["decoder/blocks_0/fc1/kernel"].layers == (2,)
    assert found["decoder/scale"].role is Role.NORM


@pytest.mark.parametrize(
    "path", ["head/bias", "other/kernel", "head", "head/kernel/more", "unit_0/b/kernel"]
)
def test_a_parameter_that_is_not_in_the_table_is_named(path):
    roles = {"unit_*": Blocks({"a": DENSE}), "head": DENSE}
    with pytest.raises(UserError, match=f"'{path}' has no role.*roles\\(\\).*extending.md"):
        describe(tree(path), roles)


@pytest.mark.parametrize("other", [(5,), (), (3,)])
def test_a_part_that_is_called_a_stack_and_is_none_is_refused(other):
    leaves = tree("a", shape=(3, 4)) | tree("b", shape=other)
    roles = {"trunk_*": Blocks({"a": Role.TOKEN, "b": Role.TOKEN})}
    if other == (3,):
        describe({"trunk": leaves}, roles)  # equally many
        return
    with pytest.raises(UserError, match="under 'trunk' are not a stack of blocks.*trunk_0"):
        describe({"trunk": leaves}, roles)


def test_a_model_without_the_method_has_no_table():
    class Own(ViT):
        roles = None

    assert model_roles(nn.Dense(3)) is None
    assert model_roles(Own()) is None and model_roles(ViT()) is not None
