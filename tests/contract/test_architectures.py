"""What every registered architecture keeps, read from one compiled program for each.

What an architecture alone has is in its own tests: windows, reductions, padding, golden files.
"""

import functools
import json
from dataclasses import fields

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from tests.support.architectures import (
    DIFFERENT_BLOCKS,
    TINY,
    gradient_of,
    has_attention,
    images_of,
    rates_of,
    traced,
)
from tests.support.shapes import CLASSES, assert_same_trees, relative_difference
from vit_jax.models import list_models
from vit_jax.models.dense import gives
from vit_jax.models.inputs import abstract_input, trace_init
from vit_jax.models.registry import get_preset
from vit_jax.models.stacking import stack_blocks, unstack_blocks
from vit_jax.models.validation import pair

REFUSES_OTHER_SIZES = {"Mixer"}
NORMS_WHAT_IT_POOLED = {"CaiT", "ConvNeXt"}
MIXES_WEIGHTS = {"CaiT"}  # of heads, so that they are below 0 and do not sum to 1


@pytest.fixture(scope="session", params=TINY)
def one(request):
    """Traced model of each architecture in turn."""
    return traced(request.param)


@pytest.fixture(params=TINY)
def model(request):
    """Small model of each architecture in turn; nothing is compiled."""
    return TINY[request.param]


def abstract(model, size=None, batch=2):
    return abstract_input(model, batch, size)


@functools.cache
def abstract_variables(model):
    variables = trace_init(model, abstract(model))
    return {name: tree for name, tree in variables.items() if name != "intermediates"}


def test_every_registered_architecture_is_here():
    """Those of dense models are in tests/contract/test_dense_models.py."""
    registered = {get_preset(name).architecture for name in list_models()}
    of_classes = {architecture for architecture in registered if gives(architecture) == "classes"}
    assert {type(model) for model in TINY.values()} == of_classes


# ------------------------------------------------------------------------------- what comes out


def test_logits_are_float32_and_finite(one):
    logits = one.answers.logits
    assert (logits.shape, logits.dtype) == ((2, CLASSES), np.float32)
    assert np.isfinite(logits).all() and np.ptp(logits) > 1e-2


def test_features_are_tokens_pooled_grid_and_stages(one):
    features = one.answers.features
    height, width = features.grid
    batch, tokens, channels = features.tokens.shape
    assert (batch, tokens) == (2, features.prefix + features.frames * height * width)
    assert features.pooled.shape == (2, channels)
    depths = getattr(one.model, "depths", None)
    if depths is None:
        assert features.stages is None
        return
    assert len(features.stages) == len(depths)
    sides = np.array([stage.shape[1:3] for stage in features.stages])
    assert (np.diff(sides, axis=0) < 0).all() and tuple(sides[-1]) == features.grid


def test_pooled_is_the_class_token_or_the_mean(one):
    features = one.answers.features
    if type(one.model).__name__ in NORMS_WHAT_IT_POOLED:
        return
    pool = getattr(one.model, "pool", "mean")
    expected = features.tokens[:, 0] if pool == "cls" else features.tokens.mean(axis=1)
    np.testing.assert_allclose(features.pooled, expected, atol=1e-5)
    assert features.prefix == (pool == "cls")


def test_logits_are_the_head_of_what_is_pooled(one):
    head = one.variables["params"]["head"]
    expected = one.answers.features.pooled @ head["kernel"] + head["bias"]
    np.testing.assert_allclose(one.answers.logits, expected, atol=1e-5)


def test_without_classes_what_is_pooled_comes_out(one):
    np.testing.assert_array_equal(one.answers.without_head, one.answers.features.pooled)
    assert "head" not in abstract_variables(one.model.clone(num_classes=0))["params"]


def test_every_block_is_sown_where_its_parameters_are(one):
    outputs, params = one.answers.outputs, one.variables["params"]
    for path in outputs:
        entry = params
        for part in path.split("/"):
            entry = entry[part]
    blocks = [info.path for info in one.model.block_infos() if info.is_layer]
    depths = getattr(one.model, "depths", (getattr(one.model, "depth", 0),))
    assert len(blocks) == sum(depths) + getattr(one.model, "class_depth", 0)
    assert all(np.isfinite(outputs[path]).all() for path in blocks)


def test_what_the_last_block_gives_is_what_the_features_are_made_of(one):
    """Stages are the outputs of their last blocks, past a norm of their own if they have one;
    tokens are those of the last, past the norm."""
    features, outputs = one.answers.features, one.answers.outputs
    for number, stage in enumerate(features.stages or ()):
        last = outputs[f"stages_{number}/blocks_{one.model.depths[number] - 1}"]
        patches = last.reshape(2, -1, last.shape[-1])[:, -stage.shape[1] * stage.shape[2] :]
        if norm := one.variables["params"][f"stages_{number}"].get("norm"):
            patches = normed(patches, norm, one.model.norm_eps)
            np.testing.assert_allclose(stage.reshape(patches.shape), patches, atol=1e-4)
            continue
        np.testing.assert_array_equal(patches, stage.reshape(patches.shape))
    norm = one.variables["params"].get("norm")
    if norm is None or type(one.model).__name__ in NORMS_WHAT_IT_POOLED:
        return
    last = outputs[[path for path in outputs if "blocks_" in path][-1]]
    expected = normed(last.reshape(2, -1, last.shape[-1]), norm, one.model.norm_eps)
    np.testing.assert_allclose(features.tokens, expected, atol=1e-4)


def normed(x, norm, epsilon):
    """Return what a norm makes of an array."""
    centred = x - x.mean(axis=-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)
    return normal * norm["scale"] + norm["bias"]


def test_attention_weights_are_sown_on_request_and_sum_to_1(one):
    run = functools.partial(one.model.apply, mutable=["intermediates"])
    _, silent = jax.eval_shape(run, one.variables, one.images)
    assert not any("weights" in path for path in flatten_dict(silent["intermediates"], sep="/"))
    weights = one.answers.weights
    assert bool(weights) == has_attention(one.model)
    if weights:
        assert set(weights) == {info.path for info in one.model.block_infos() if info.is_layer}
    for of_block in weights.values():
        assert of_block.dtype == np.float32
        if type(one.model).__name__ in MIXES_WEIGHTS:
            continue
        assert (of_block >= 0).all()
        np.testing.assert_allclose(of_block.sum(axis=-1), 1.0, atol=1e-5)


def test_an_image_is_answered_alike_in_any_batch(one):
    """Another second image changes no bit of the first one's answer, but in training with norms
    over the batch."""
    images = one.images.copy()
    images[1] = 2 * images[1, ::-1] + 1
    other = one.program(one.variables, images)
    np.testing.assert_array_equal(other["logits"][0], one.answers.logits[0])
    assert np.abs(other["logits"][1] - one.answers.logits[1]).max() > 1e-3
    moved = np.abs(other["trained"][0] - one.answers.trained[0]).max()
    assert (moved > 1e-3) == ("batch_stats" in one.variables)


# ------------------------------------------------------------------------------------- training


def test_gradients_are_finite_and_reach_every_parameter(one):
    for path, leaf in jax.tree_util.tree_leaves_with_path(one.answers.gradients):
        assert np.isfinite(leaf).all() and np.abs(leaf).max() > 0, jax.tree_util.keystr(path)


def test_statistics_move_in_training_only(one):
    state = {name: tree for name, tree in one.variables.items() if name != "params"}
    assert set(state) <= {"batch_stats"}
    jax.tree.map(np.testing.assert_array_equal, one.answers.kept, state)
    for path, leaf in jax.tree_util.tree_leaves_with_path(one.answers.moved):
        before = dict(jax.tree_util.tree_leaves_with_path(state))[path]
        assert np.isfinite(leaf).all() and np.abs(leaf - before).max() > 1e-4
    if not state:  # and nothing else tells training from evaluation where nothing is dropped
        np.testing.assert_allclose(one.answers.trained, one.answers.logits, atol=1e-5)


def training_program(model):
    """Return the program of a training pass as a function of a key of random numbers."""
    state = [name for name in abstract_variables(model) if name != "params"]

    def answer(key, variables, images):
        rngs = {"dropout": jax.random.wrap_key_data(key)}
        return model.apply(variables, images, train=True, mutable=state, rngs=rngs)[0]

    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    return jax.make_jaxpr(answer)(key, abstract_variables(model), abstract(model)).jaxpr


@pytest.mark.parametrize(
    ("name", "rate"), [(name, rate) for name, model in TINY.items() for rate in rates_of(model)]
)
def test_a_rate_acts_in_training(name, rate):
    rates, drawn = drawn_rates(name)
    if rate == "drop_path":  # from 0 in the first block to the rate in the last
        assert any(0 < one <= rates[rate] for one in drawn)
    else:
        assert rates[rate] in drawn


@functools.cache
def drawn_rates(name):
    """The rates of a model, each another and all at once, and those at which it drops anything."""
    rates = {rate: 0.25 + number / 32 for number, rate in enumerate(rates_of(TINY[name]))}
    rates |= {"drop_path": 0.125} if "drop_path" in rates else {}
    program = training_program(TINY[name].clone(**rates))
    needed, drawn = {x for x in program.outvars if isinstance(x, jax.extend.core.Var)}, set()
    for equation in reversed(program.eqns):
        if needed.isdisjoint(equation.outvars):
            continue
        needed.update(x for x in equation.invars if isinstance(x, jax.extend.core.Var))
        if any(jnp.issubdtype(x.aval.dtype, jax.dtypes.prng_key) for x in equation.invars):
            shares = [x.val for x in equation.invars if isinstance(x, jax.extend.core.Literal)]
            drawn |= {1 - float(share) for share in shares}
    return rates, drawn


def test_training_needs_no_random_numbers_where_nothing_is_dropped(model):
    assert not depends_on_the_first(training_program(model))


def depends_on_the_first(program):
    """Return whether any result of a program is computed from its first argument."""
    reached = {program.invars[0]}
    for equation in program.eqns:
        if any(isinstance(x, jax.extend.core.Var) and x in reached for x in equation.invars):
            reached.update(equation.outvars)
    return any(x in reached for x in program.outvars)


def test_evaluation_needs_no_random_numbers_whatever_the_rates(model):
    rates = dict.fromkeys(rates_of(model), 0.5)
    dropping, variables = model.clone(**rates), abstract_variables(model)
    evaluated = [
        str(jax.make_jaxpr(one.apply)(variables, abstract(model))) for one in (model, dropping)
    ]
    assert evaluated[0] == evaluated[1]


LESS_MEMORY = [
    ("ViT", {"remat": "full", "scan_layers": True}),
    ("Mixer", {"remat": "full", "scan_layers": True}),
    ("Swin", {"remat": "full"}),
    ("PVT", {"remat": "full"}),
    pytest.param("TimeSformer", {"remat": "full"}, marks=pytest.mark.slow),
    pytest.param("VJEPA2", {"remat": "full"}, marks=pytest.mark.slow),
    pytest.param("ViTDet", {"remat": "full"}, marks=pytest.mark.slow),
    pytest.param("AutoFormer", {"remat": "full"}, marks=pytest.mark.slow),  # blocks differ
    pytest.param("PVTv2", {"remat": "full"}, marks=pytest.mark.slow),
    *(
        pytest.param(name, fields, marks=pytest.mark.slow)
        for name, model in TINY.items()
        if name not in ("ViT", *DIFFERENT_BLOCKS) and hasattr(model, "scan_layers")
        for fields in ({"remat": "dots", "scan_layers": True}, {"remat": "full"})
    ),
    *(pytest.param(name, {"remat": "dots"}, marks=pytest.mark.slow) for name in ("Swin", "PVT")),
]


def test_what_saves_memory_is_tried_wherever_there_is_such_a_field():
    tried = {getattr(case, "values", case)[0] for case in LESS_MEMORY}
    assert tried == {name for name, model in TINY.items() if hasattr(model, "remat")}


@pytest.mark.parametrize(("name", "changed"), LESS_MEMORY)
def test_what_saves_memory_changes_no_number(name, changed):
    one = traced(name)
    other = one.model.clone(**changed)
    variables = one.variables
    if "scan_layers" in changed:
        variables = {**variables, "params": stack_blocks(variables["params"])}
    assert jax.tree.map(jnp.shape, abstract_variables(other)) == jax.tree.map(jnp.shape, variables)
    run = jax.jit(gradient_of, static_argnums=0)
    found = run(other, variables, one.images)
    gradients, logits, moved = jax.tree.map(np.asarray, found)  # to be taken apart by NumPy
    assert relative_difference(logits, one.answers.trained) <= 1e-5
    assert_same_trees(unstack_blocks(gradients), one.answers.gradients, 5e-5)
    assert_same_trees(moved, one.answers.moved, 1e-5)


# ------------------------------------------------------------------------------------- numerics


def test_bfloat16_is_near_float32_and_ends_in_it(one):
    exact, rough = one.answers.logits, one.answers.rough
    assert rough.dtype == np.float32 and np.isfinite(rough).all()
    difference = np.abs(rough - exact).max()
    assert 0 < difference < 0.05 * max(1.0, np.abs(exact).max())
    run = functools.partial(one.model.clone(dtype="bfloat16").apply, method="features")
    assert jax.eval_shape(run, one.variables, one.images).tokens.dtype == jnp.bfloat16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_variables_are_float32(model, dtype):
    variables = abstract_variables(model.clone(dtype=dtype))
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}


# ---------------------------------------------------------------------------------------- sizes


def test_an_oblong_image_of_twice_the_height_has_twice_the_rows(model):
    height, width = pair(model.image_size)
    images, variables = abstract(model, (2 * height, width)), abstract_variables(model)

    def features(variables, images):
        return model.apply(variables, images, method="features")

    if type(model).__name__ in REFUSES_OTHER_SIZES:
        with pytest.raises(ValueError, match=f"{height} x {width} pixels .* got {2 * height} x"):
            jax.eval_shape(features, variables, images)
        return
    built = jax.eval_shape(features, variables, abstract(model))
    found = jax.eval_shape(features, variables, images)
    assert found.grid == (2 * built.grid[0], built.grid[1])
    assert found.pooled.shape == built.pooled.shape
    for one, other in zip(found.stages or (), built.stages or (), strict=True):
        assert one.shape == (2, 2 * other.shape[1], *other.shape[2:])


@pytest.mark.parametrize("channels", [1, 5])
def test_images_may_have_any_number_of_channels(model, channels):
    other = model.clone(in_channels=channels)
    logits = jax.eval_shape(
        lambda x: other.init_with_output(jax.random.key(0), x)[0], abstract(other)
    )
    assert logits.shape == (2, CLASSES)


# ------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda x: x[0], r"images\[None\]"),
        (lambda x: x[..., :1], "takes 3 channels in the last axis.*in_channels=1"),
        (lambda x: x.astype(np.uint8), "float32 and already normali[sz]ed, got uint8"),
    ],
)
def test_images_that_are_none_get_one_sentence(model, change, sentence):
    images = change(np.zeros_like(images_of(model)))
    with pytest.raises(ValueError, match=f"{type(model).__name__}: .*{sentence}") as caught:
        trace_init(model, images)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("num_classes", -1, "num_classes=-1"),
        ("image_size", 0, "image_size=0"),
        ("in_channels", 0, "in_channels=0"),
        ("dtype", "float64", "dtype='float64'"),
        ("norm_eps", 0.0, "norm_eps=0.0"),
        ("remat", "some", "remat='some'.*'none', 'dots', 'full'"),
        ("drop_path", 1.5, "drop_path=1.5"),
        ("dropout", -0.1, "dropout=-0.1"),
        ("mlp_dropout", 1.5, "mlp_dropout=1.5"),
        ("attention_dropout", 1.5, "attention_dropout=1.5"),
    ],
)
def test_a_field_that_is_invalid_gets_one_sentence(model, field, value, sentence):
    if not hasattr(model, field):
        return
    with pytest.raises(ValueError, match=f"{type(model).__name__}: .*{sentence}") as caught:
        model.clone(**{field: value})
    assert "\n" not in str(caught.value)


def test_fields_survive_json(model):
    """Lists become tuples again, and the model can be a key."""
    names = [field.name for field in fields(model) if field.name not in ("parent", "name")]
    read = json.loads(json.dumps({name: getattr(model, name) for name in names}))
    again = type(model)(**read)
    assert again == model and hash(again) == hash(model)
