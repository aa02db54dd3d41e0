"""The mesh changes where arrays lie, and nothing else."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import unflatten_dict
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from tests.folders import ROOT
from tests.support.processes import on_eight_devices
from vit_jax.config import load_config
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.description import Role, describe, path_text
from vit_jax.runs import RunDir
from vit_jax.training.checkpointing.checkpoints import Checkpoints
from vit_jax.training.distributed.sharding import (
    AXES,
    bytes_on_a_device,
    make_mesh,
    shard_state,
)
from vit_jax.training.setup.build import build

MESHES = [(1, 1, 1), (8, 1, 1), (1, 8, 1), (2, 2, 2)]

SMALL = {  # ViT-S/16
    "model.name": "ViT-S/16", "model.image_size": "224", "model.in_channels": "3",
    "model.patch_size": "16", "model.width": "384", "model.depth": "12", "model.heads": "6",
    "model.scan_layers": "true", "ema_decay": "0",
}  # fmt: skip


def experiment_on(sizes, overrides):
    mesh = [(f"mesh.{axis}", str(size)) for axis, size in zip(AXES, sizes, strict=True)]
    return build(load_config(str(ROOT / "configs/digits.py"), [*overrides, *mesh]))


def twenty_steps(experiment):
    """The losses on a mesh, the parameters after it, where one lies; and the state itself."""
    state, step = experiment.initial_state(), experiment.train_step()
    totals = [0.0]
    for batch in experiment.train_batches(0):
        state = step(state, batch)
        totals.append(float(state.totals["loss"]))
    leaves = jax.tree_util.tree_leaves_with_path((state.params, state.ema_params))
    kernel = state.params["blocks_0"]["attn"]["qkv"]["kernel"]
    return state, {
        "losses": np.diff(totals),
        "parameters": {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves},
        "devices": len(kernel.sharding.device_set),
        "pieces": len({str(shard.index) for shard in kernel.addressable_shards}),
    }


def train_on_all(overrides, folder):
    """A report for each mesh, and the bytes of ViT-S/16; with a folder of compiled programs."""
    keep_programs(Path(folder) / "compiled")
    report, experiments = {}, {}
    for sizes in MESHES:
        experiments[sizes] = experiment_on(sizes, overrides)
        state, report[sizes] = twenty_steps(experiments[sizes])
    # The last of them, cut along all axes, is saved, and read under every mesh.
    with Checkpoints(RunDir(Path(folder) / "run"), keep=3) as checkpoints:
        checkpoints.save(20, state, {"data": {}})
        checkpoints.wait()
        for sizes in MESHES:
            step, restored, _ = checkpoints.restore(experiments[sizes].abstract_state())
            same = jax.tree.map(lambda a, b: np.array_equal(a, b, equal_nan=True), state, restored)
            report[sizes]["restored"] = (step, all(jax.tree.leaves(same)))
    small = [*overrides, *SMALL.items()]
    report["bytes"] = [
        bytes_on_a_device(experiment_on(sizes, small).abstract_state()) for sizes in MESHES[:3]
    ]
    report["kept"] = [file.name for file in Path(folder).glob("compiled/*")]
    return report


def keep_programs(folder):
    """Gives JAX a folder, of which programs for several devices must make no use."""
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def report(data_dir, tmp_path_factory):
    """What training finds: for each mesh, and the bytes of ViT-S/16."""
    changes = {
        "data.dir": data_dir,
        "model.patch_size": "8", "model.width": "16", "model.depth": "2", "model.heads": "4",
        "model.mlp_dropout": "0.1", "model.attention_dropout": "0.1", "model.drop_path": "0.2",
        "augment.mixup": "0.8", "augment.cutmix": "1.0", "augment.preset": "none",
        "batch_size": "32", "duration": "20 steps", "schedule.warmup": "5 steps",
        "ema_decay": "0.9",
        "optimizer.learning_rate": "0.01",
        # The true gradient of the key bias is zero. With Adam's usual epsilon of 1e-8 its rounding
        # noise, another on each mesh, would be blown up to whole steps.
        "optimizer.eps": "1e-4",
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("sharded")
    return on_eight_devices(train_on_all, list(changes.items()), str(folder))


@pytest.mark.parametrize("mesh", MESHES[1:], ids=str)
def test_losses_and_parameters_are_those_of_one_device(report, mesh):
    one, many = report[MESHES[0]], report[mesh]
    assert many["devices"] == np.prod(mesh) and len(many["losses"]) == 20
    np.testing.assert_allclose(many["losses"], one["losses"], rtol=1e-5)
    for name, values in one["parameters"].items():
        np.testing.assert_allclose(many["parameters"][name], values, atol=1e-5, err_msg=name)


def test_no_program_for_several_cpu_devices_is_kept(report):
    # The first mesh is of one device. What a later one kept would be read by the next process.
    assert sum("step" in name for name in report["kept"]) == 1, report["kept"]


def test_parameters_are_cut_where_the_mesh_says_so(report):
    pieces = [report[mesh]["pieces"] for mesh in MESHES]
    assert pieces == [1, 1, 8, 4]  # along fsdp and tensor, never along data


def test_a_checkpoint_of_one_mesh_is_read_under_any_other(report):
    assert [report[mesh]["restored"] for mesh in MESHES] == [(20, True)] * 4


def test_fsdp_divides_the_memory_of_parameters_and_optimizer(report):
    one, eight_copies, eight_parts = report["bytes"]
    # Adam keeps two moments: three arrays of 22.0 million numbers of four bytes.
    assert one == pytest.approx(3 * 4 * 22.0e6, rel=0.03)
    assert eight_copies == one
    assert eight_parts <= one / 7


CUBE = AbstractMesh((2, 2, 2), AXES)


def specs_of(params, roles=None, state=None):
    """The sharding of a state with these parameters by path, of the parameters by default."""
    shardings = shard_state(params if state is None else state, CUBE, describe(params, roles))
    leaves = jax.tree_util.tree_leaves_with_path(shardings)
    return {path_text(path): sharding.spec for path, sharding in leaves}


def spec_of(path, shape):
    """The sharding of one parameter with the role of its name."""
    [spec] = specs_of(unflatten_dict({path: jax.ShapeDtypeStruct(shape, "f4")}, sep="/")).values()
    return spec


def test_every_kernel_of_a_vit_has_a_rule_and_its_moments_the_same():
    model = create_model("ViT-Ti/16", num_classes=10, depth=2, image_size=32)
    make = lambda key: model.init(key, jnp.zeros((1, 32, 32, 3)))["params"]  # noqa: E731
    params = jax.eval_shape(make, jax.random.key(0))
    moments = jax.eval_shape(optax.adamw(1e-3).init, params)
    specs = {}
    for text, spec in specs_of(params, model.roles(), (params, moments)).items():
        name = text.split("mu/")[-1].split("nu/")[-1].removeprefix("0/")
        specs.setdefault(name, []).append(spec)
    kernels = {name: found for name, found in specs.items() if name.endswith("kernel")}
    assert len(kernels) == 2 * 4 + 2  # four in a block, the patches, the head
    for name, found in kernels.items():
        assert len(found) == 3 and len(set(found)) == 1, name
        assert "fsdp" in found[0], name
    assert any(name.endswith("pos_embed") for name in specs)


def test_stacked_blocks_keep_their_leading_axis_whole():
    assert spec_of("blocks/mlp/fc1/kernel", (12, 8, 32)) == P(None, "fsdp", "tensor")
    assert spec_of("blocks/attn/qkv/bias", (12, 3, 4, 2)) == P(None, None, "tensor", None)
    assert spec_of("blocks/norm1/scale", (12, 64)) == P()
    assert spec_of("blocks/conv/kernel", (64, 3, 8)) == P(None, None, "fsdp")
    assert spec_of("pos_embed/rows", (1, 96, 64)) == P(None, None, "fsdp")


def test_an_axis_that_does_not_divide_stays_whole():
    # Three heads on two devices.
    assert spec_of("blocks_0/attn/qkv/kernel", (192, 3, 3, 64)) == P("fsdp", None, None, None)


def test_arrays_without_a_rule_are_cut_along_their_longest_axis_and_vectors_are_not():
    assert spec_of("stem/conv/kernel", (3, 3, 3, 64)) == P(None, None, None, "fsdp")
    assert spec_of("norm/scale", (64,)) == P()
    params = {"head": {"kernel": jax.ShapeDtypeStruct((8, 6), "f4")}}
    state = {"step": jax.ShapeDtypeStruct((), "i4"), "other": jax.ShapeDtypeStruct((8, 6), "f4")}
    assert specs_of(params, state=state) == {"step": P(), "other": P("fsdp", None)}


def test_roles_name_axes_of_the_mesh():
    for role in Role:
        assert set(role.sharding or ()) <= {None, "fsdp", "tensor"}, role


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"data": 3}, "needs 3 devices, but there are 1"),
        ({"data": -1, "fsdp": -1}, "only one axis"),
        ({"data": -1, "fsdp": 2}, "needs 2 devices, but there are 1"),
    ],
)
def test_sizes_that_do_not_fit_are_one_sentence(sizes, said):
    with pytest.raises(UserError, match=said):
        make_mesh(jax.devices()[:1], **sizes)


def test_the_rest_has_to_divide():
    devices = jax.devices() * 8  # only counted here
    with pytest.raises(UserError, match="8 devices do not divide by 3.* 1, 2, 4, 8"):
        make_mesh(devices, data=-1, fsdp=3)
