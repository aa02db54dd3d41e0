"""ViTs of transformers that are no plain ones, at full width, in both directions.

Weights are random; every block, the last tokens and the answer are compared, and transformers opens
the folder that is written here, with the same tensors and the same answer.
"""

import jax
import numpy as np
import pytest

from tests.parity.test_vit import images_of, randomise
from vit_jax.models.stacking import read_blocks
from vit_jax.weights.convert import read_pretrained, write_pretrained

pytestmark = pytest.mark.parity

TOLERANCE = 2e-5

# Name of the class, arguments of its configuration, image size.
MODELS = {
    "DINOv3-S/16": ("DINOv3ViTModel", {"num_register_tokens": 4, "num_hidden_layers": 4}, 224),
    "DINOv3-S+/16, oblong": (
        "DINOv3ViTModel",
        {
            "num_register_tokens": 4,
            "num_hidden_layers": 3,
            "use_gated_mlp": True,
            "hidden_act": "silu",
        },
        (160, 256),
    ),
    "DINOv3 without registers and biases": (
        "DINOv3ViTModel",
        {"query_bias": False, "value_bias": False, "num_hidden_layers": 3},
        224,
    ),
    "BEiT": (
        "BeitForImageClassification",
        {"use_relative_position_bias": True, "num_hidden_layers": 3},
        224,
    ),
    "BEiT whose class token is the feature": (
        "BeitModel",
        {
            "use_relative_position_bias": True,
            "use_mean_pooling": False,
            "num_hidden_layers": 2,
            "layer_scale_init_value": 0.0,
        },
        224,
    ),
    "I-JEPA": ("IJepaForImageClassification", {"num_hidden_layers": 3}, 224),
    "MSN": ("ViTMSNForImageClassification", {"num_hidden_layers": 3}, 224),
    "DINOv2 with its classifier": (
        "Dinov2ForImageClassification",
        {"num_hidden_layers": 3, "hidden_size": 384, "num_attention_heads": 6, "image_size": 224},
        224,
    ),
    "DINOv2 with registers and its classifier": (
        "Dinov2WithRegistersForImageClassification",
        {"num_hidden_layers": 3, "hidden_size": 384, "num_attention_heads": 6, "image_size": 224},
        224,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_transformers_computes_the_same_and_reads_what_is_written(torch, name, tmp_path):
    import transformers

    kind, settings, size = MODELS[name]
    model_class = getattr(transformers, kind)
    model = randomise(torch, model_class(model_class.config_class(**settings)))
    model.save_pretrained(tmp_path / "theirs")
    record, variables = read_pretrained(tmp_path / "theirs")
    images = images_of(size)
    theirs = answers(torch, model, images)
    assert_alike(our_answers(record, variables, images), theirs)

    folder = write_pretrained(tmp_path / "ours", "huggingface", record, variables)
    opened = transformers.AutoConfig.from_pretrained(folder)
    [name] = opened.architectures
    again, told = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    before = dict(model.named_parameters())
    for key, parameter in again.named_parameters():
        if "mask_token" not in key:  # comes back as zero
            assert torch.equal(parameter, before[key]), key
    for key, array in answers(torch, again.eval(), images).items():
        np.testing.assert_array_equal(array, theirs[key], err_msg=key)
    assert name == kind.replace("ViTMSN", "ViT")  # which computes the same


def answers(torch, model, images):
    """Outputs of the blocks, and the logits or the pooled output, of a model of transformers."""
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    out = model(pixel_values=pixels, output_hidden_states=True)
    last = out.logits if hasattr(out, "logits") else out.pooler_output
    blocks = out.hidden_states[1:]
    return {**{f"block {i}": x.numpy() for i, x in enumerate(blocks)}, "last": last.numpy()}


def our_answers(record, variables, images):
    with jax.default_matmul_precision("highest"):
        out, kept = record.create_model().apply(variables, images, mutable=["intermediates"])
    blocks = read_blocks(kept["intermediates"], "out")
    return {**{f"block {i}": x for i, x in enumerate(blocks)}, "last": out}


def assert_alike(ours, theirs):
    assert ours.keys() == theirs.keys()
    for key, array in ours.items():
        largest = max(1, np.abs(theirs[key]).max())
        np.testing.assert_allclose(array, theirs[key], atol=TOLERANCE * largest, err_msg=key)
