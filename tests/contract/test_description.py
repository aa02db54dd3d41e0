"""What every architecture says about itself: a role for each parameter, and its blocks.

Expected values are shapes: a role is that of one kind of array, whatever its path.
"""

import ast
import functools
import re

import jax
import jax.numpy as jnp
import pytest
from flax.traverse_util import flatten_dict
from jax.sharding import AbstractMesh

from tests.folders import ROOT
from tests.support.architectures import DENSE, TINY, has_attention
from tests.support.shapes import CLASSES
from vit_jax.config import default_config
from vit_jax.errors import UserError
from vit_jax.models.description import Role, count_blocks, describe, path_text
from vit_jax.models.inputs import input_shape, trace_init
from vit_jax.models.stacking import read_outputs, stack_blocks, unstack_blocks
from vit_jax.models.validation import pair
from vit_jax.tasks import list_tasks
from vit_jax.tasks.classification import Classification
from vit_jax.tasks.contrastive.task import Contrastive
from vit_jax.tasks.depth.task import Depth
from vit_jax.tasks.detection.task import Detection
from vit_jax.tasks.masked.masked_autoencoding import MaskedAutoencoding
from vit_jax.tasks.masked.simmim import SimMIM
from vit_jax.tasks.multitask import MultiTask
from vit_jax.tasks.registry import get_task
from vit_jax.tasks.segmentation import Segmentation
from vit_jax.tasks.self_distillation import SelfDistillation
from vit_jax.tasks.supernet import Supernet
from vit_jax.training.distributed.sharding import shard_state
from vit_jax.training.optim.param_groups import decay_mask, lr_multipliers, trainable_mask

EVERY_PART = {  # of a ViT
    "distilled": True,
    "registers": 2,
    "embed_norm": True,
    "layer_scale": 0.1,
    "qk_norm": True,
    "lora_rank": 2,
}
VARIANTS = {
    **TINY,
    "ViT with every part": TINY["ViT"].clone(**EVERY_PART),
    "ViT with attention pooling": TINY["ViT"].clone(pool="map", representation_size=8),
    "ViT with tables of axes": TINY["ViT"].clone(positions="learned2d_sum"),
    "ViT with relative positions": TINY["ViT"].clone(positions="relative"),
    "ViT with linformer": TINY["ViT"].clone(attention_type="linformer", linformer_rank=2),
    "ViT with talking heads": TINY["ViT"].clone(attention_type="talking_heads", mlp="swiglu"),
    "Swin with odd maps": TINY["Swin"].clone(image_size=(15, 18)),
    "Swin of version 2": TINY["Swin"].clone(
        norm_order="branch", cosine=True, position_bias="continuous", qkv_bias="qv"
    ),
    "ConvNeXt of version 2": TINY["ConvNeXt"].clone(response_norm=True, layer_scale=None),
    "TimeSformer with joint attention": TINY["TimeSformer"].clone(space_time="joint"),
    "TimeSformer of separate frames": TINY["TimeSformer"].clone(space_time="space"),
    "ResNet with bottlenecks": TINY["ResNet"].clone(block="bottleneck", small_stem=False),
}


@pytest.fixture(params=VARIANTS)
def model(request):
    return VARIANTS[request.param]


@functools.cache
def traced(model):
    """The shapes of parameters, and of outputs and attention weights of the blocks."""
    images = jnp.zeros(input_shape(model))
    variables = trace_init(model, images)
    variables = {name: tree for name, tree in variables.items() if name != "intermediates"}
    asked = {"attention_weights": True} if has_attention(model) else {}

    def forward(variables):
        return model.apply(variables, images, mutable=["intermediates"], **asked)[1]

    sown = unstack_blocks(jax.eval_shape(forward, variables)["intermediates"])
    weights = {
        path.removesuffix("/attn/weights"): leaf[0].shape
        for path, leaf in flatten_dict(sown, sep="/").items()
        if path.endswith("/attn/weights")
    }
    return variables["params"], read_outputs(sown), weights


def described(model):
    params = traced(model)[0]
    shapes = {path: leaf.shape for path, leaf in flatten_dict(params, sep="/").items()}
    return params, shapes, describe(params, model.roles())


# ------------------------------------------------------------------------------------------ roles


def test_every_parameter_has_a_role_and_kernels_are_what_is_decayed(model):
    params, shapes, found = described(model)
    assert set(found) == set(shapes)
    assert not {Role.OTHER, Role.KERNEL} & {one.role for one in found.values()}
    for path, shape in shapes.items():
        role = found[path].role
        assert role.is_decayed == _is_decayed(path), path
        assert (len(shape) == 1) <= (not role.is_decayed), path
        if "bias" in path.split("/")[-1]:
            assert role in {Role.BIAS, Role.QKV_BIAS, Role.MLP_IN_BIAS, Role.NORM, Role.BIAS_TABLE}
    decayed = flatten_dict(decay_mask(params, found), sep="/")
    assert sum(decayed.values()) == sum(map(_is_decayed, shapes))


def _is_decayed(path):
    """As all kernels are but those that compute a bias of logits (Swin V2's repository)."""
    return path.endswith("kernel") and "/relative_mlp/" not in path


SHAPES = {
    Role.QKV: lambda shape: len(shape) == 4 and shape[1] == 3,
    Role.QKV_BIAS: lambda shape: len(shape) == 3 and shape[0] in (2, 3),
    Role.ATTENTION_OUT: lambda shape: len(shape) == 3,
    Role.MLP_IN: lambda shape: len(shape) == 2,
    Role.MLP_OUT: lambda shape: len(shape) == 2,
    Role.MLP_IN_BIAS: lambda shape: len(shape) == 1,
    Role.CONVOLUTION: lambda shape: len(shape) == 4,
    Role.DEPTHWISE: lambda shape: len(shape) == 4 and shape[2] == 1 and shape[3] > 1,
    Role.PATCH_EMBEDDING: lambda shape: len(shape) == 4,
    Role.DOWNSAMPLE: lambda shape: len(shape) in (2, 4),
    Role.LINEAR: lambda shape: len(shape) == 2,
    Role.HEAD: lambda shape: len(shape) == 2 and shape[-1] == CLASSES,
    Role.BIAS: lambda shape: len(shape) == 1,
    Role.NORM: lambda shape: len(shape) == 1,
    Role.LAYER_SCALE: lambda shape: len(shape) == 1,
    Role.TOKEN: lambda shape: len(shape) == 3 and shape[0] == 1,
    Role.POSITION_TABLE: lambda shape: len(shape) == 2 or (len(shape) == 3 and shape[0] == 1),
    Role.BIAS_TABLE: lambda shape: len(shape) == 2,
    Role.ATTENTION_MIXTURE: lambda shape: len(shape) == 2,
    Role.LOW_RANK_DOWN: lambda shape: len(shape) == 2 and shape[1] == 2,
    Role.LOW_RANK_UP: lambda shape: len(shape) > 1 and shape[0] == 2,
}


def test_a_role_is_that_of_arrays_of_its_shape(model):
    _, shapes, found = described(model)
    for path, shape in shapes.items():
        assert SHAPES[found[path].role](shape), (path, shape)
        if matrix := found[path].role.matrix:
            inputs, outputs = matrix.axes(len(shape))
            assert len({*inputs, *outputs}) + matrix.separate == len(shape), path
        if axes := found[path].role.sharding:
            assert len(axes) <= len(shape), path


def test_all_roles_that_are_declared_somewhere_are_checked_here():
    declared = {one.role for model in VARIANTS.values() for one in described(model)[2].values()}
    by_name = {Role.OTHER, Role.KERNEL, Role.QUERY, Role.KEY, Role.VALUE}
    of_texts = {Role.TOKEN_TABLE}  # no image model has it
    assert declared == set(SHAPES) == set(Role) - by_name - of_texts


# ----------------------------------------------------------------------------------------- blocks


def test_the_blocks_are_those_of_the_parameters_and_give_the_outputs(model):
    _, _, found = described(model)
    outputs = traced(model)[1]
    infos = {info.path: info for info in model.block_infos()}
    assert {one.block for one in found.values()} - {None} == set(infos)
    assert set(infos) <= set(outputs)
    for path, info in infos.items():
        places = info.grid[0] * info.grid[1]
        shape = outputs[path].shape
        assert shape[1:-1] in (info.grid, (info.prefix + info.frames * places,)), path
    in_order = [info.path for info in model.block_infos() if info.is_layer]
    layers = {one.block: one.layers[0] for one in found.values() if one.block in in_order}
    assert [layers[path] for path in in_order] == list(range(1, count_blocks(found) + 1))
    assert list(model.receptive_steps()) == list(infos)


def test_the_keys_and_queries_of_a_block_are_those_of_its_weights(model):
    weights = traced(model)[2]
    infos = {info.path: info for info in model.block_infos() if info.kind == "attention"}
    assert set(infos) == set(weights) - {"map_head"}
    for path, info in infos.items():
        frames = 1 if info.within_frames else info.frames
        queries = info.prefix + frames * info.grid[0] * info.grid[1]
        keys = queries
        if info.keys_grid is not None:
            keys = info.keys_prefix + info.keys_grid[0] * info.keys_grid[1]
        if info.windows is not None:
            queries = keys = info.windows.window[0] * info.windows.window[1]
        assert weights[path][2:] == (queries, keys), path


def test_a_place_of_a_map_stands_for_its_pixels(model):
    sides = pair(model.image_size)
    for info in model.block_infos():
        for side, places, pixels in zip(sides, info.grid, info.patch_size, strict=True):
            assert (places - 1) * pixels < side <= places * pixels


# ---------------------------------------------------------------------------------- what follows


def test_every_block_is_decayed_sharded_and_frozen_by_its_layer(model):
    params, shapes, found = described(model)
    config = default_config()
    config.optimizer.layer_decay = 0.5
    factors = flatten_dict(lr_multipliers(config, params, found), sep="/")
    shardings = shard_state(params, AbstractMesh((1, 2, 1), ("data", "fsdp", "tensor")), found)
    specs = {
        path_text(path): one.spec for path, one in jax.tree_util.tree_leaves_with_path(shardings)
    }
    depth = count_blocks(found)
    assert {factors[path] for path in shapes if path.startswith("head/")} == {1.0}
    for info in model.block_infos():
        inside = [path for path, one in found.items() if one.block == info.path]
        assert any(found[path].role.is_decayed for path in inside)
        assert any("fsdp" in specs[path] for path in inside)
        layer = found[inside[0]].layers[0]
        assert {factors[path] for path in inside} == {0.5 ** (depth + 1 - layer)}
        config.optimizer.update({"layer_decay": 1.0, "lr_multipliers": ((f"{info.path}/.*", 0.0),)})
        mask = flatten_dict(trainable_mask(config, params, found), sep="/")
        assert {path for path, trained in mask.items() if not trained} == set(inside)


def test_stacked_blocks_are_described_as_separate_ones(model):
    if not hasattr(model, "scan_layers"):
        return
    params, _, found = described(model)
    together = describe(stack_blocks(params), model.roles())
    apart = {
        name: (one.role, layer)
        for one in together.values()
        for name, layer in zip(one.names, one.layers, strict=True)
    }
    assert apart == {path: (one.role, one.layers[0]) for path, one in found.items()}
    assert {one.block for one in together.values() if one.is_stack} == {"blocks"}


def test_a_parameter_without_a_role_is_one_sentence(model):
    params = traced(model)[0]
    roles = {name: role for name, role in model.roles().items() if name != "head"}
    with pytest.raises(UserError, match=r"'head/\w+' has no role.*roles\(\)") as caught:
        describe(params, roles)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------ tasks

TASKS = {
    "classification": Classification(TINY["PVT"]),
    "depth": Depth(DENSE["DPT"], kind="affine"),
    "detection": Detection(DENSE["DETR"]),
    "multitask": MultiTask(DENSE["UniversalViT"]),
    "segmentation": Segmentation(DENSE["Segmentation mask"], ("ground", "cat", "dog")),
    "masked_autoencoding": MaskedAutoencoding(
        TINY["ViT"], decoder_width=8, decoder_depth=1, decoder_heads=2
    ),
    "simmim": SimMIM(TINY["Swin"], mask_unit=8),
    "self_distillation": SelfDistillation(
        TINY["ViT"], head_width=8, bottleneck=4, prototypes=8, norm_last_layer=False, local_crops=0
    ),
    "contrastive": Contrastive(
        TINY["ViT"], embed_width=8, text_width=8, text_depth=1, text_heads=2, vocabulary=9, length=4
    ),
    "supernet": Supernet(TINY["ViT"]),
}


@pytest.mark.parametrize("name", TASKS)
def test_every_parameter_of_every_module_of_a_task_has_a_role(name):
    task = TASKS[name]
    image = jnp.zeros(input_shape(task.model))
    batch = {"image": image, "global_crops": jnp.stack([image, image], axis=1)}
    batch["text"] = jnp.zeros((1, 4), jnp.int32)
    params = trace_init(task, batch)["params"]
    found = describe(params, task.roles(params))
    assert not {Role.OTHER, Role.KERNEL} & {one.role for one in found.values()}
    assert None not in {layer for one in found.values() for layer in one.layers}
    infos = [info.path for info in task.model.block_infos()]
    inside = f"{task.encoder.rpartition('/')[2]}/" if task.encoder else ""
    blocks = {one.block for one in found.values()} - {None}
    assert {f"{inside}{path}" for path in infos} <= blocks
    others = {"masked_autoencoding": {"decoder/blocks_0"}, "contrastive": {"text/blocks_0"}}
    others["detection"] = {"encoder_0", "decoder_0", "decoder_1"}
    assert blocks - {f"{inside}{path}" for path in infos} == others.get(name, set())
    assert count_blocks(found) == len(blocks)


def test_every_task_of_the_package_is_checked_here():
    own = {name for name in list_tasks() if get_task(name).__module__.startswith("vit_jax.")}
    assert own == set(TASKS)


# ------------------------------------------------------------------------------------- who may ask


OUTSIDE = [
    path
    for path in sorted((ROOT / "vit_jax").rglob("*.py"))
    if path.relative_to(ROOT / "vit_jax").parts[0] not in ("models", "weights")
]


def guesses(source):
    """The classes of architectures that a file imports, and patterns of paths in its texts."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vit_jax.models"):
            classes = {type(model).__name__ for model in TINY.values()}
            yield from (alias.name for alias in node.names if alias.name in classes)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"(?:blocks|stages|units)_\\d", node.value)


def test_outside_of_models_nothing_guesses_what_a_model_is_made_of():
    exported = ROOT / "vit_jax" / "__init__.py"
    found = {str(path): list(guesses(path.read_text("utf-8"))) for path in OUTSIDE}
    assert {path for path, names in found.items() if names} <= {str(exported)}


def test_a_guess_is_seen():
    assert list(guesses("from vit_jax.models.swin.module import Swin")) == ["Swin"]
    assert list(guesses("BLOCK = r'(stages_\\d+/)?blocks'")) == ["stages_\\d"]
