"""Exact counts, from closed-form formulas, papers' code and torch's FlopCounter; none from here."""

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from tests.support.shapes import VIT, count_parameters
from vit_jax.models import create_model
from vit_jax.models.inputs import trace_init
from vit_jax.models.summary.cost import _walk, cost, shape_walk, trace_cost
from vit_jax.models.summary.counts import counts

SMALL = {**VIT, "width": 24, "heads": 3, "num_classes": 5}

# Variants: name, fields, parameters, MACs (None: no number to compare with).
VARIANTS = [
    ("ViT-B/16", {"image_size": 384}, 86_859_496, 55_484_350_464),
    ("ViT-B/32", {"image_size": 384}, 88_297_192, 13_043_564_544),
    ("ViT-L/16", {"image_size": 384}, 304_715_752, 191_066_300_416),
    ("ViT-L/32", {"image_size": 384}, 306_632_680, 45_275_963_392),
    ("ViT-L/16", {"image_size": 512}, 305_174_504, 361_986_285_568),
    ("ViT-H/14", {"image_size": 518}, 633_470_440, 1_016_716_764_160),
    ("ViT-B/16", {"image_size": 448}, 87_019_240, 78_495_154_176),
    ("ViT-B/16", {"image_size": 512}, None, 107_027_890_176),
    ("ViT-B/16", {"pool": "mean"}, 86_566_120, 17_471_649_792),
    ("ViT-B/16", {"representation_size": 768}, 87_158_248, 17_563_828_224 + 768**2),
    ("ViT-B/16", {"representation_size": 768, "num_classes": 21_843}, 103_186_515, None),
    ("ViT-B/8", {}, 86_576_872, None),
    # two heads and 198 tokens
    ("DeiT-Ti/16-distilled", {}, 5_910_800, 1_261_003_776),
    ("DeiT-S/16-distilled", {}, 22_436_432, 4_624_140_288),
    ("DeiT-B/16-distilled", {}, 87_338_192, 17_656_811_520),
    ("DeiT-B/16-distilled", {"image_size": 384}, 87_630_032, 55_591_342_080),
    # big_vision's S/16 baseline: fixed positions and a representation layer, three ways to pool
    *(
        (
            "ViT-S/16",
            {"positions": "sincos2d", "representation_size": 384, "pool": pool},
            parameters,
            None,
        )
        for pool, parameters in (("mean", 22_122_472), ("cls", 22_122_856), ("map", 23_896_552))
    ),
    ("ViT-g/14", {"pool": "mean"}, 1_012_608_616, None),
    ("ViT-G/14", {"pool": "mean"}, 1_844_437_352, None),
    # further sizes of big_vision, mean pooling: mu/16, M/16, So400m/14
    (
        "ViT-B/16",
        {"width": 32, "depth": 1, "mlp_width": 128, "heads": 2, "pool": "mean"},
        76_648,
        None,
    ),
    (
        "ViT-B/16",
        {"width": 512, "depth": 12, "mlp_width": 2048, "heads": 8, "pool": "mean"},
        38_836_712,
        None,
    ),
    (
        "ViT-B/14",
        {"width": 1152, "depth": 27, "mlp_width": 4304, "heads": 16, "pool": "mean"},
        413_595_352,
        None,
    ),
    ("CIFAR-ViT-S/4", {"num_classes": 100}, 5_380_132, None),
    ("CIFAR-ViT-S/4", {"depth": 6}, 2_693_578, None),
    ("CIFAR-ViT-B/4", {"depth": 6}, 10_695_562, None),
    ("CIFAR-ViT-L/4", {"depth": 12}, 37_893_642, None),
    ("ViT-B/16", {"image_size": 64, "num_classes": 10}, 85_668_106, 1_458_660_864),
    (
        "Minimal-ViT-128/8",
        {"image_size": 224, "patch_size": 16, "width": 512, "depth": 6},
        19_415_562,
        4_033_768_448,
    ),
]


def count(model):
    """Tokens, parameters and MACs by `cost`."""
    counted = cost(model)
    return counted.tokens, counted.parameters, counted.macs


@pytest.mark.parametrize(
    "name",
    [
        "CIFAR-ViT-512/8",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("ViT-Ti/16", "ViT-L/16")),
    ],
)
def test_tracing_every_block_gives_what_tracing_two_gives(name):
    model = create_model(name)
    assert trace_cost(model) == cost(model)


# What XLA counted of Google's own modules at batch 1 and 224 pixels, elementwise work included.
COMPILED_FLOPS = {
    "ViT-Ti/16": 2_539_647_744,
    "ViT-S/16": 9_262_287_872,
    "ViT-B/16": 35_256_733_696,
    "ViT-B/32": 8_846_877_696,
    "ViT-L/16": 123_451_645_952,
    "ViT-H/14": 335_337_095_168,
    "Mixer-B/16": 25_334_294_528,
}


@pytest.mark.parametrize("name", COMPILED_FLOPS)
def test_flops_are_within_two_percent_of_the_compilers(name):
    flops = 2 * counts(name).macs
    assert 0.98 * COMPILED_FLOPS[name] < flops < COMPILED_FLOPS[name]


# Convolutions by padding are counted here, and not by the compiler; EfficientNet's products are few
# beside its elementwise work.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("Swin-T", 1.0, 1.02),
        ("PVT-Small", 1.0, 1.02),
        ("ConvNeXt-T", 1.0, 1.02),
        ("R26+ViT-S/32", 1.0, 1.02),
        ("ResNet-50", 0.97, 1.0),
        ("EfficientNet-B0", 1.0, 1.07),
    ],
)
def test_what_the_compiler_counts_of_other_families(name, least, most):
    model = create_model(name)
    images = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    variables = trace_init(model, images)
    variables.pop("intermediates", None)
    program = jax.jit(lambda v, x: model.apply(v, x)).lower(variables, images)
    assert least <= program.cost_analysis()["flops"] / cost(model).flops <= most


def test_flops_are_twice_the_macs():
    assert cost(create_model("ViT-B/16")).flops == 35_127_656_448  # 2 x 17,563,828,224


def test_parts_of_a_distilled_and_gated_model_are_those_of_the_hand_count():
    """16 patches of 4 x 4 pixels and 2 tokens, 24 wide; 2 blocks with 36 hidden units."""
    model = create_model("DeiT-S/16-distilled", **SMALL, mlp_width=36, mlp="swiglu")
    parts = {part.name: (part.parameters, part.macs) for part in cost(model).parts}
    assert parts == {
        "patch embedding": (48 * 24 + 24, 16 * 48 * 24),
        "class token": (24, 0),
        "distillation token": (24, 0),
        "positions": (18 * 24, 0),
        "attention": (2 * (4 * 24 * 24 + 4 * 24), 2 * (4 * 18 * 24 * 24 + 2 * 18 * 18 * 24)),
        "MLP": (2 * (24 * 72 + 72 + 36 * 24 + 24), 2 * 18 * (24 * 72 + 36 * 24)),
        "norms": (5 * 2 * 24, 0),
        "head": (24 * 5 + 5, 24 * 5),
        "distillation head": (24 * 5 + 5, 24 * 5),
    }


def is_small(name):
    """Return whether a ViT of a name is quick to trace; the larger ones differ in sizes alone."""
    return name.split("/")[0] in ("ViT-B", "CIFAR-ViT-S", "DeiT-Ti", "Minimal-ViT-128")


@pytest.mark.parametrize(
    ("name", "fields", "parameters", "macs"),
    [
        case if is_small(case[0]) else pytest.param(*case, marks=pytest.mark.slow)
        for case in VARIANTS
    ],
)
def test_other_resolutions_heads_and_sizes(name, fields, parameters, macs):
    model = create_model(name, **fields)
    if macs is None:
        assert count_parameters(model) == parameters
    else:
        _, counted_parameters, counted_macs = count(model)
        assert counted_macs == macs
        assert parameters in (None, counted_parameters)


def test_cost_at_a_size_is_the_cost_of_the_model_built_for_it():
    counted = cost(create_model("ViT-B/16"), image_size=384)
    assert (counted.tokens, counted.parameters, counted.macs) == (577, 86_859_496, 55_484_350_464)


def test_parts_are_those_of_the_hand_count():
    """The breakdown of the small CIFAR model, by hand."""
    counted = cost(create_model("CIFAR-ViT-S/4"))
    assert {part.name: part.parameters for part in counted.parts} == {
        "patch embedding": 9_408,
        "class token": 192,
        "positions": 12_480,
        "attention": 1_778_688,
        "MLP": 3_550_464,
        "norms": 9_216 + 384,
        "head": 1_930,
    }
    assert {part.name: part.macs for part in counted.parts if part.macs} == {
        "patch embedding": 589_824,
        "attention": 115_015_680 + 19_468_800,  # q, k, v and output; the two products of attention
        "MLP": 230_031_360,
        "head": 1_920,
    }


def test_parts_sum_to_the_totals_with_every_option_on():
    model = create_model(
        "ViT-B/16",
        **SMALL,
        registers=2,
        pool="map",
        class_token=True,
        layer_scale=0.1,
        embed_norm=True,
        qk_norm=True,
        representation_size=6,
    )
    counted = cost(model)
    assert sum(part.parameters for part in counted.parts) == counted.parameters
    assert sum(part.macs for part in counted.parts) == counted.macs
    assert counted.parameters == count_parameters(model)
    names = [part.name for part in counted.parts]
    assert "other" not in names
    assert names == [
        "patch embedding",
        "class token",
        "registers",
        "positions",
        "attention",
        "MLP",
        "norms",
        "layer scale",
        "attention pooling",
        "representation",
        "head",
    ]


def test_dense_patch_embedding_costs_what_the_convolution_costs():
    by_method = {
        m: cost(create_model("CIFAR-ViT-S/4", depth=1, patch_embed_method=m))
        for m in ("conv", "dense")
    }
    assert by_method["conv"] == by_method["dense"]


def macs_of(function, *shapes):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return sum(count for _, count in _walk(jax.make_jaxpr(function)(*arguments).jaxpr))


def test_a_product_counts_rows_times_columns_times_depth():
    assert macs_of(lambda a, b: a @ b, (3, 5), (5, 7)) == 3 * 5 * 7
    assert macs_of(lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (2, 3, 5), (2, 5, 7)) == 2 * 105


def test_a_scan_counts_as_often_as_it_runs():
    def scan_blocks(x, kernel):
        return jax.lax.scan(lambda x, _: (x @ kernel, None), x, None, length=9)[0]

    assert macs_of(scan_blocks, (4, 4), (4, 4)) == 9 * 64


def test_memory_options_do_not_change_what_is_counted():
    plain = create_model("CIFAR-ViT-S/4", depth=3)
    options = plain.clone(scan_layers=True, remat="full", attention_impl="chunked")
    assert cost(options) == cost(plain) == trace_cost(options)


def test_jit_remat_and_custom_derivatives_are_looked_into():
    @jax.custom_jvp
    def product(a, b):
        return a @ b

    product.defjvp(lambda primals, tangents: (product(*primals), tangents[0]))
    wrapped = jax.jit(jax.checkpoint(lambda a, b: product(a, b) @ b))
    assert macs_of(wrapped, (4, 4), (4, 4)) == 2 * 64


def test_a_condition_counts_its_dearer_branch_once():
    def either(x, kernel):
        return jax.lax.cond(x[0, 0] > 0, lambda: x @ kernel, lambda: x @ kernel @ kernel)

    assert macs_of(either, (4, 4), (4, 4)) == 2 * 64


@pytest.mark.parametrize("groups", [1, 4])
def test_a_convolution_counts_window_times_input_channels_of_the_group(groups):
    module = nn.Conv(8, (3, 3), padding="SAME", feature_group_count=groups)
    params = trace_init(module, jnp.zeros((1, 6, 6, 4)))
    program = jax.make_jaxpr(module.apply)(params, jax.ShapeDtypeStruct((2, 6, 6, 4), jnp.float32))
    counted = sum(count for _, count in _walk(program.jaxpr))
    assert counted == 2 * 6 * 6 * 8 * (3 * 3 * 4 // groups)


def test_shape_walk_goes_from_image_to_logits():
    model = create_model("CIFAR-ViT-S/4", depth=2)
    assert shape_walk(model) == [
        ("image", (1, 32, 32, 3)),
        ("patch_embed", (1, 8, 8, 192)),
        ("tokens", (1, 65, 192)),
        ("blocks_0", (1, 65, 192)),
        ("blocks_1", (1, 65, 192)),
        ("norm", (1, 65, 192)),
        ("pooled", (1, 192)),
        ("logits", (1, 10)),
    ]


def test_shape_walk_of_two_heads_ends_in_one_row_of_logits():
    rows = shape_walk(create_model("DeiT-Ti/16-distilled", depth=1))
    assert rows[-2:] == [("pooled", (1, 192)), ("logits", (1, 1000))]
    assert ("tokens", (1, 198, 192)) in rows


def test_shape_walk_follows_the_image_size():
    rows = dict(shape_walk(create_model("CIFAR-ViT-S/4", depth=1), image_size=(16, 64)))
    assert rows["image"] == (1, 16, 64, 3)
    assert rows["patch_embed"] == (1, 4, 16, 192)
    with pytest.raises(ValueError, match="32 and 36"):
        shape_walk(create_model("CIFAR-ViT-S/4", depth=1), image_size=33)


def test_blocks_with_numbers_of_their_own_are_all_counted():
    """Per block 4 w^2 for qkv and out and 2 w h for the MLP, of 16 patches and a class token."""
    widths = (8, 16, 40)
    model = create_model("ViT", **{**SMALL, "depth": 3, "mlp_width": widths})
    plain = create_model("ViT", **{**SMALL, "depth": 3, "mlp_width": 8})
    more = sum(2 * 24 * (width - 8) for width in widths)
    assert cost(model).macs - cost(plain).macs == 17 * more
    assert cost(model).parameters - cost(plain).parameters == more + sum(widths) - 3 * 8
