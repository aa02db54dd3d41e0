"""The base of dense models: its backbone, roles and blocks."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.support.shapes import random_images, random_variables, run
from vit_jax.models import create_model
from vit_jax.models.dense import DenseModel, gives
from vit_jax.models.description import describe
from vit_jax.models.description.roles import Role, kernel_and_bias

TINY = {"width": 8, "depth": 2, "heads": 2, "patch_size": 4}


class Mean(DenseModel):
    """The mean of the tokens of each patch, times a number."""

    gives: ClassVar[str] = "depth"

    def setup(self):
        super().setup()
        self.head = nn.Dense(1)

    def __call__(self, images, *, train=False):
        features = self.features(images, train=train)
        tokens = features.tokens[:, features.prefix :].astype(jnp.float32)
        return self.head(tokens).reshape(len(images), *features.grid)

    def head_roles(self):
        return {"head": kernel_and_bias(Role.HEAD)}


@pytest.fixture(scope="module")
def model():
    return Mean(image_size=8, backbone_name="ViT-Ti/16", backbone_fields=TINY)


@pytest.fixture(scope="module")
def variables(model):
    return random_variables(model, random_images(1, 8, 8, 3))


def test_the_backbone_is_the_named_model_without_a_head(model, variables):
    images = random_images(2, 8, 8, 3)
    alone = create_model("ViT-Ti/16", image_size=8, num_classes=0, **TINY)
    of_backbone = {"params": variables["params"]["backbone"]}
    expected = run(alone, of_backbone, images, method="features")
    found = run(model, variables, images, method="features")
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert jax.eval_shape(model.apply, variables, images).shape == (2, 2, 2)
    assert model.patch_size == 4


def test_roles_and_blocks_are_those_of_the_backbone_under_its_name(model, variables):
    described = describe(variables["params"], model.roles())
    assert described["backbone/blocks_1/attn/qkv/kernel"].role is Role.QKV
    assert described["backbone/blocks_1/attn/qkv/kernel"].layers == (2,)
    assert described["head/kernel"].role is Role.HEAD
    assert described["head/kernel"].layers == (3,)
    assert [block.path for block in model.block_infos()] == [
        "backbone/blocks_0",
        "backbone/blocks_1",
    ]
    assert set(model.receptive_steps()) == {"backbone/blocks_0", "backbone/blocks_1"}


def test_fields_from_json_are_equal(model):
    lists = {**TINY, "patch_size": [4, 4]}
    assert hash(Mean(backbone_fields=lists)) == hash(
        Mean(backbone_fields={**TINY, "patch_size": (4, 4)})
    )
    assert (gives(model), gives(create_model("ViT-Ti/16"))) == ("depth", "classes")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"backbone_name": "ViT-B/61"}, "there is no model 'ViT-B/61'; did you mean"),
        ({"backbone_fields": {"widht": 8}}, "has no field 'widht'; did you mean 'width'"),
        ({"backbone_fields": {"num_classes": 8}}, "is a field of the model itself"),
        ({"backbone_fields": 3}, "backbone_fields=3 must be names with values"),
        ({"backbone_name": "Mixer-B/16", "backbone_fields": {"width": -1}}, "width=-1 must be"),
    ],
)
def test_wrong_backbones_are_one_sentence(fields, said):
    with pytest.raises(ValueError, match=said):
        Mean(**fields)
