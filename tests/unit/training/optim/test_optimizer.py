import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.support.optimizers import (
    after,
    assert_close,
    named,
    normal_like,
    optimizer_of,
    small_params,
)
from vit_jax.config import default_config
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.inputs import trace_init
from vit_jax.training.optim.optimizer import (
    count_branches,
    format_branches,
    optimizer_notes,
)

RULES = ("adamw", "lion", "lamb", "sgd", "adafactor", "muon")

EVERY_OPTION = {
    "image_size": 16,
    "patch_size": 8,
    "width": 16,
    "depth": 1,
    "heads": 2,
    "num_classes": 3,
    "class_token": True,
    "registers": 2,
    "layer_scale": 0.1,
    "qk_norm": True,
    "embed_norm": True,
    "representation_size": 8,
}


def ones_of(**fields):
    """Parameters of a model with everything that a ViT may have, all 1."""
    model = create_model("ViT-Ti/16", **{**EVERY_OPTION, **fields})
    images = jax.ShapeDtypeStruct((1, 16, 16, 3), jnp.float32)
    shapes = trace_init(model, images)["params"]
    return jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), shapes)


# ----------------------------------------------------------------------------------- weight decay


@pytest.mark.parametrize(("rule", "pool"), [("adamw", "cls"), *((rule, "map") for rule in RULES)])
def test_decay_shrinks_kernels_and_nothing_else(rule, pool):
    params = ones_of(pool=pool)
    zeros = jax.tree.map(np.zeros_like, params)
    optimizer = optimizer_of(params, name=rule, weight_decay=0.1)
    # LAMB stretches an update to the length of what it changes, so a learning rate of 1 is all.
    shrunk = 0.0 if rule == "lamb" else 0.9
    leaves = named(after(optimizer, params, [zeros], compiled=True))
    for name, leaf in leaves.items():
        expected = shrunk if name.endswith("/kernel") else 1.0
        np.testing.assert_allclose(leaf, expected, rtol=1e-5, atol=1e-4, err_msg=name)
    undecayed = {name.split("/")[-1] for name, leaf in leaves.items() if leaf.max() == 1}
    wanted = {"bias", "scale", "gamma", "cls_token", "reg_tokens", "pos_embed"}
    assert wanted | ({"probe"} if pool == "map" else set()) == undecayed
    decayed = {name for name, leaf in leaves.items() if leaf.max() < 1}
    assert {"patch_embed/kernel", "pre_logits/kernel", "blocks_0/attn/qkv/kernel"} <= decayed


def test_decay_on_a_schedule_is_that_of_the_update():
    """Without gradients a kernel of 1 shrinks by 0.1, then by 0.2 of the rest."""
    params = {"a": {"kernel": jnp.ones(2)}}
    zeros = jax.tree.map(jnp.zeros_like, params)
    optimizer = optimizer_of(params, decay=lambda count: 0.1 * (count + 1))
    np.testing.assert_allclose(after(optimizer, params, [zeros] * 2)["a"]["kernel"], 0.9 * 0.8)


# ------------------------------------------------------------------ parameters that learn later


def late_and_early():
    params = {"late": {"kernel": jnp.ones(1)}, "early": {"kernel": jnp.ones(1)}}
    return params, jax.tree.map(lambda leaf: 3 * leaf, params)


def test_late_parameters_wait_and_then_begin_as_others_did():
    """Three updates of AdamW: the third is the first of the late parameter, and as large."""
    params, gradient = late_and_early()
    optimizer = optimizer_of(params, 0.1, frozen_until={"late/.*": 2})
    path = [after(optimizer, params, [gradient] * count) for count in (1, 2, 3)]
    late = [float(found["late"]["kernel"][0]) for found in path]
    # With equal gradients every update of Adam is the learning rate.
    np.testing.assert_allclose(late, [1, 1, 0.9], rtol=1e-5)
    early = [float(found["early"]["kernel"][0]) for found in path]
    np.testing.assert_allclose(early, [0.9, 0.8, 0.7], rtol=1e-5)


def test_late_parameters_are_decayed_by_the_schedule_of_the_run():
    params, gradient = late_and_early()
    zeros = jax.tree.map(jnp.zeros_like, gradient)
    schedule = {"decay": lambda count: 0.1 * (count + 1), "frozen_until": {"late/kernel": 1}}
    found = after(optimizer_of(params, **schedule), params, [zeros] * 2)
    np.testing.assert_allclose(found["late"]["kernel"], 0.8)
    np.testing.assert_allclose(found["early"]["kernel"], 0.9 * 0.8)


def test_late_parameters_do_not_count_in_the_norm_before_they_learn():
    """Two gradients of 3: the first is clipped from 3 to 1 alone, then both from 3 sqrt(2)."""
    params, gradient = late_and_early()
    sgd = {"name": "sgd", "momentum": 0.0, "clip": 1.0, "frozen_until": {"late/.*": 1}}
    found = after(optimizer_of(params, **sgd), params, [gradient] * 2)
    np.testing.assert_allclose(found["early"]["kernel"], 1 - 1 - 0.5**0.5, rtol=1e-6)
    np.testing.assert_allclose(found["late"]["kernel"], 1 - 0.5**0.5, rtol=1e-6)


def test_late_parameters_go_with_frozen_ones():
    params, gradient = late_and_early()
    frozen = {"lr_multipliers": (("early/.*", 0.0),), "frozen_until": {"late/.*": 1}}
    found = after(optimizer_of(params, 0.1, clip=1.0, **frozen), params, [gradient] * 2)
    np.testing.assert_allclose(found["late"]["kernel"], 0.9, rtol=1e-5)
    np.testing.assert_array_equal(found["early"]["kernel"], 1.0)


def test_a_pattern_of_late_parameters_that_matches_nothing_is_an_error():
    params, _ = late_and_early()
    with pytest.raises(ValueError, match=r"the pattern 'last/\.\*' matches no parameter"):
        optimizer_of(params, frozen_until={"last/.*": 1})


# ---------------------------------------------------------------------------------- clipping


def test_the_gradient_is_clipped_by_its_global_norm():
    """3, 4 has norm 5 and becomes 0.6, 0.8; plain gradient descent shows it."""
    params = {"a": {"kernel": jnp.zeros(1)}, "b": {"kernel": jnp.zeros(1)}}
    gradient = {"a": {"kernel": jnp.array([3.0])}, "b": {"kernel": jnp.array([4.0])}}
    for clip, expected in ((1.0, (0.6, 0.8)), (10.0, (3.0, 4.0)), (0.0, (3.0, 4.0))):
        optimizer = optimizer_of(params, name="sgd", momentum=0.0, clip=clip)
        got = after(optimizer, params, [gradient])
        assert -got["a"]["kernel"][0] == pytest.approx(expected[0])
        assert -got["b"]["kernel"][0] == pytest.approx(expected[1])


def test_frozen_parameters_do_not_count_in_the_norm_that_is_clipped():
    params = {"a": {"kernel": jnp.zeros(2)}, "b": {"kernel": jnp.zeros(1)}}
    gradient = {"a": {"kernel": jnp.array([3.0, 4.0])}, "b": {"kernel": jnp.array([100.0])}}
    optimizer = optimizer_of(params, name="sgd", clip=1.0, lr_multipliers=(("b/.*", 0.0),))
    got = after(optimizer, params, [gradient])
    np.testing.assert_allclose(got["a"]["kernel"], [-0.6, -0.8], rtol=1e-6)
    assert got["b"]["kernel"][0] == 0


# ---------------------------------------------------------------- each rule against its definition

ELEMENTWISE = {
    "adamw": ({}, lambda **decay: optax.adamw(0.01, 0.9, 0.999, 1e-8, **decay)),
    "lion": (
        {"b1": 0.95, "b2": 0.98},
        lambda **decay: optax.lion(0.01, 0.95, 0.98, **decay),
    ),
}


@pytest.mark.parametrize("rule", ELEMENTWISE)
@pytest.mark.parametrize("moment_dtype", ["float32", "bfloat16"])
def test_adamw_and_lion_are_optax_s_own(rule, moment_dtype):
    settings, reference = ELEMENTWISE[rule]
    params = small_params()
    gradients = [normal_like(params, seed) for seed in (2, 3, 4)]
    optimizer = optimizer_of(
        params, 0.01, name=rule, weight_decay=0.1, moment_dtype=moment_dtype, **settings
    )
    kernels = jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)
    own = reference(weight_decay=0.1, mask=kernels, mu_dtype=moment_dtype)
    assert_close(after(optimizer, params, gradients), after(own, params, gradients), rtol=1e-6)


def test_sgd_is_momentum_by_hand():
    """Momentum 0.5, gradients 1 and 2: the sum is 1, then 2.5; Nesterov's 1.5, then 3.25. Each is
    taken off 0.1 times, and a kernel loses 0.1 * 0.2 of itself besides."""
    params = {"a": {"bias": jnp.zeros(1)}, "b": {"kernel": jnp.ones(1)}}
    ones = jax.tree.map(jnp.ones_like, params)
    gradients = [ones, jax.tree.map(lambda x: 2 * x, ones)]
    for settings, (first, second) in (
        ({"momentum": 0.5}, (1, 2.5)),
        ({"momentum": 0.5, "nesterov": True}, (1.5, 3.25)),
        ({"momentum": 0.0}, (1, 2)),
    ):
        optimizer = optimizer_of(params, 0.1, name="sgd", weight_decay=0.2, **settings)
        got = after(optimizer, params, gradients)
        assert got["a"]["bias"][0] == pytest.approx(-0.1 * (first + second))
        decayed = 1 - 0.1 * (first + 0.2)
        decayed -= 0.1 * (second + 0.2 * decayed)
        assert got["b"]["kernel"][0] == pytest.approx(decayed)


def test_lamb_takes_a_step_as_long_as_the_kernel_and_adam_s_for_the_rest():
    """The first step of Adam is the sign of the gradient. With decay 0.5 a kernel of 3, 4 moves
    along (1 + 1.5, -1 + 2) = (2.5, 1), stretched to the kernel's length of 5."""
    params = {"a": {"kernel": jnp.array([3.0, 4.0]), "bias": jnp.array([0.5])}}
    gradient = {"a": {"kernel": jnp.array([0.1, -7.0]), "bias": jnp.array([-2.0])}}
    optimizer = optimizer_of(params, 0.1, name="lamb", weight_decay=0.5, eps=0.0)
    step = 0.1 * 5 / np.hypot(2.5, 1) * np.array([2.5, 1])
    got = after(optimizer, params, [gradient])["a"]
    np.testing.assert_allclose(got["kernel"], [3, 4] - step, rtol=1e-5)
    np.testing.assert_allclose(got["bias"], [0.6], rtol=1e-5)


@pytest.mark.parametrize("shape", [(64, 80), (3, 5), (64, 3, 2, 64)])
def test_adafactor_is_that_of_scaling_vision_transformers(shape):
    """Shazeer & Stern 2018, algorithm 4, without clipping and relative steps; decays of the second
    moment 0 and then 1 - 2 ** -0.8, at most b2; first moment without correction."""
    params = {"a": {"kernel": jnp.zeros(shape)}}
    gradients = [np.random.RandomState(seed).randn(*shape) for seed in (0, 1)]
    rows, columns = 0.0, 0.0
    second, first, total = 0.0, 0.0, 0.0
    for gradient, decay in zip(gradients, (0.0, min(0.4, 1 - 2**-0.8)), strict=True):
        square = gradient**2
        if shape[0] >= 64:  # the means over the last and over the first axis
            rows = decay * rows + (1 - decay) * square.mean(-1, keepdims=True)
            columns = decay * columns + (1 - decay) * square.mean(0, keepdims=True)
            second = rows * columns / rows.mean(0, keepdims=True)
        else:
            second = decay * second + (1 - decay) * square
        first = 0.9 * first + 0.1 * gradient / np.sqrt(second)
        total = total - 0.01 * first
    optimizer = optimizer_of(params, 0.01, name="adafactor", b2=0.4)
    trees = [{"a": {"kernel": jnp.asarray(gradient, jnp.float32)}} for gradient in gradients]
    got = after(optimizer, params, trees)["a"]["kernel"]
    np.testing.assert_allclose(got, total, rtol=1e-4, atol=1e-6)


def test_the_branches_are_said_in_words_and_frozen_parameters_are_in_none():
    """Two blocks of width 16: qkv 768, out 256 and fc1 512 each, besides 280 + 80 + 51 + 192."""
    params = small_params()
    config = default_config()
    config.optimizer.update({"name": "muon", "lr_multipliers": (("blocks_0/.*|head/bias", 0.0),)})
    counts = count_branches(config, params)
    total = sum(leaf.size for leaf in jax.tree.leaves(params))
    frozen = 1536 + 3 * 16 + 16 + 3
    assert counts == {"muon": 1536, "adam": total - 1536 - frozen, "frozen": frozen}
    said = f"muon 1,536 parameters, adam {total - 1536 - frozen}, frozen 1,603"
    assert format_branches(counts) == said
    stacked_counts = count_branches(config, stack(params))
    assert stacked_counts == counts
    config.optimizer.name = "adamw"
    assert count_branches(config, params) == {"adamw": total - frozen, "frozen": frozen}


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        (
            {"name": "muon", "lr_multipliers": (("blocks_.*", 0.0),)},
            "optimizer.name = 'muon' has no effect",
        ),
        (
            {"name": "lamb", "lr_multipliers": ((".*kernel", 0.0),)},
            "optimizer.name = 'lamb' has no effect",
        ),
        (
            {"weight_decay": 0.1, "lr_multipliers": ((".*kernel", 0.0),)},
            "weight_decay = 0.1 has no effect",
        ),
        (
            {"layer_decay": 0.5, "lr_multipliers": (("(?!head/).*", 0.0),)},
            "layer_decay = 0.5 has no effect",
        ),
    ],
)
def test_settings_without_effect_are_noted(settings, note):
    config = default_config()
    config.optimizer.update({"weight_decay": 0.0} | settings)
    notes = optimizer_notes(config, small_params())
    assert len(notes) == 1 and note in notes[0]
    config.optimizer.lr_multipliers = ()
    assert optimizer_notes(config, small_params()) == []


@pytest.mark.parametrize("rule", RULES)
def test_the_first_moment_is_kept_in_the_type_that_is_asked_for(rule):
    params = small_params()

    def types(moment_dtype):
        state = optimizer_of(params, name=rule, moment_dtype=moment_dtype).init(params)
        shapes = {leaf.shape for leaf in jax.tree.leaves(params)}
        moments = [leaf for leaf in jax.tree.leaves(state) if leaf.shape in shapes]
        return [str(leaf.dtype) for leaf in moments]

    half, full = types("bfloat16"), types("float32")
    assert set(full) == {"float32"}
    assert half.count("bfloat16") == len(jax.tree.leaves(params))  # the first moment of each


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"name": "sgd", "b2": 0.95}, r"optimizer.b2 = 0.95 is read only by adamw and lion.*'sgd'"),
        ({"nesterov": True}, r"optimizer.nesterov = True is read only by sgd, .*'adamw'"),
        (
            {"name": "adafactor", "eps": 1e-3},
            "optimizer.eps = 0.001 is read only by adamw and lamb",
        ),
        ({"name": "lion", "momentum": 0.5}, "momentum = 0.5 is read only by sgd and muon"),
    ],
)
def test_a_key_that_the_optimizer_does_not_read_is_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        optimizer_of({"a": {"kernel": jnp.zeros(1)}}, **settings)


# ------------------------------------------------------------------------------ groups at work

RATES = (("head/kernel", 10.0), ("patch_embed/.*|pos_embed|blocks_0/.*", 0.0))


@pytest.mark.parametrize("rule", RULES)
def test_a_factor_multiplies_the_whole_update_and_0_freezes(rule):
    params = small_params()
    gradients = [normal_like(params, 2)]
    settings = {"name": rule, "weight_decay": 0.1}
    plain = named(after(optimizer_of(params, 1e-3, **settings), params, gradients))
    got = named(
        after(optimizer_of(params, 1e-3, lr_multipliers=RATES, **settings), params, gradients)
    )
    for name, before in named(params).items():
        if name.split("/")[0] in ("patch_embed", "pos_embed", "blocks_0"):
            assert np.array_equal(got[name], before), name
        else:
            step = (plain[name] - before) * (10 if name == "head/kernel" else 1)
            np.testing.assert_allclose(got[name] - before, step, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("rule", RULES)
def test_frozen_parameters_keep_their_bits_and_have_no_moments(rule):
    params = small_params()
    gradients = [normal_like(params, seed, 100.0) for seed in range(3)]
    freeze = ((r"(?!head).*", 0.0),)
    optimizer = optimizer_of(
        params, 0.1, name=rule, weight_decay=0.1, clip=1.0, lr_multipliers=freeze
    )
    got, before = named(after(optimizer, params, gradients)), named(params)
    changed = {name for name in got if not np.array_equal(got[name], before[name])}
    assert changed == {"head/kernel", "head/bias"}
    held = sum(leaf.size for leaf in jax.tree.leaves(optimizer.init(params)))
    head = sum(leaf.size for leaf in jax.tree.leaves(params["head"]))
    assert held <= 2 * head + 16  # two moments, and a few counters


def test_layer_decay_scales_the_update_of_each_layer():
    """Gradient 1 and plain descent: depth 2 and decay 0.5 give 1/8, 1/4, 1/2, 1."""
    params = jax.tree.map(jnp.zeros_like, small_params())
    ones = jax.tree.map(jnp.ones_like, params)
    optimizer = optimizer_of(params, name="sgd", momentum=0.0, layer_decay=0.5)
    factors = {"blocks_0": 0.25, "blocks_1": 0.5, "head": 1}
    for name, leaf in named(after(optimizer, params, [ones])).items():
        np.testing.assert_allclose(leaf, -factors.get(name.split("/")[0], 0.125), err_msg=name)


# ---------------------------------------------------------------------------- stacked blocks


def stack(params):
    blocks = [params[name] for name in ("blocks_0", "blocks_1")]
    others = {name: tree for name, tree in params.items() if not name.startswith("blocks_")}
    return {**others, "blocks": jax.tree.map(lambda *leaves: np.stack(leaves), *blocks)}


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, marks=[] if rule in ("adamw", "adafactor") else pytest.mark.slow)
        for rule in RULES
    ],
)
def test_stacked_blocks_learn_as_they_would_apart(rule):
    # 64 wide, or there would be nothing for Adafactor to factor.
    params = small_params(width=64, heads=1)
    gradients = [normal_like(params, seed, scale=seed) for seed in (1, 2)]
    frozen_part = (("blocks_0/attn/.*", 0.0), ("blocks_1/.*/kernel", 3.0))
    groups = {"layer_decay": 0.5, "lr_multipliers": frozen_part}
    settings = {"name": rule, "weight_decay": 0.1, "clip": 1.0, **groups}
    optimizers = (
        optimizer_of(params, 0.01, **settings),
        optimizer_of(stack(params), 0.01, **settings),
    )
    apart = after(optimizers[0], params, gradients, compiled=True)
    together = after(optimizers[1], stack(params), map(stack, gradients), compiled=True)
    assert_close(together, stack(apart), rtol=2e-5, atol=2e-6)
    first = jax.tree.map(lambda leaf: np.asarray(leaf)[0], together["blocks"]["attn"])
    jax.tree.map(np.testing.assert_array_equal, first, params["blocks_0"]["attn"])


# ------------------------------------------------------------------------------ compiled and placed


@pytest.mark.parametrize("rule", RULES)
def test_the_state_has_one_structure_and_keeps_its_place(rule):
    """Every update gives shapes, types and structure of the first state, which jit and donation ask
    for; a moment stands under the path of its parameter, so that a rule of sharding finds it."""
    params = small_params()
    optimizer = optimizer_of(params, name=rule, lr_multipliers=RATES, layer_decay=0.9, clip=1.0)
    place = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec())
    state = jax.jit(optimizer.init, out_shardings=place)(params)
    _, new = jax.jit(optimizer.update, out_shardings=place)(params, state, params)

    def described(tree):
        return jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype), leaf.sharding), tree)

    assert described(new) == described(state)
    paths = [path for path in named(state) if path.endswith("blocks_1/attn/qkv/kernel")]
    assert paths and not any("blocks_0/" in path for path in named(state))
