"""Search spaces: their counts, valid combinations, and random choices."""

import jax
import numpy as np
import pytest

from vit_jax.models.supernet.space import SPACES, SearchSpace, Subnet

SMALL = SearchSpace((2, 3), (8, 12), (1, 2), (1.0, 1.5), head_dim=4)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        # widths x sum over depths d of (heads x ratios)^d, by hand
        ("AutoFormer-T", 3 * (4**12 + 4**13 + 4**14)),
        ("AutoFormer-T", 1_056_964_608),
        ("AutoFormer-S", 77_103_263_459_313),
        ("AutoFormer-B", 10_108_977_168_384),
        ("uniform", 216),
    ],
)
def test_the_spaces_have_as_many_subnets_as_published(name, count):
    assert SPACES[name].count() == count


def test_the_uniform_space_has_576_combinations_of_which_216_are_valid():
    space = SPACES["uniform"]
    assert space.combinations == 576
    listed = list(space)
    assert len(set(listed)) == len(listed) == space.count() == 216
    assert all(one in space for one in listed)
    assert all(one.width % one.heads[0] == 0 and 224 % one.patch_size == 0 for one in listed)
    # Heads of 64 channels go with any width.
    of_64 = SearchSpace(*(getattr(space, n) for n in ("depths", "widths", "heads", "mlp_ratios")))
    assert of_64.per_block and SearchSpace(**{**vars(space), "head_dim": 64}).count() == 384


def test_a_small_space_is_counted_one_by_one():
    of_one = [(h, r) for h in SMALL.heads for r in SMALL.mlp_ratios]
    assert SMALL.count() == 2 * (len(of_one) ** 2 + len(of_one) ** 3)


def test_random_subnets_are_in_the_space_and_reach_all_of_it():
    rng = np.random.default_rng(0)
    found = {SMALL.random(rng) for _ in range(3000)}
    assert all(one in SMALL for one in found) and len(found) == SMALL.count()
    assert {SMALL.smallest, SMALL.largest} <= found
    uniform = SPACES["uniform"]
    assert all(uniform.random(rng) in uniform for _ in range(50))


def test_sizes_that_are_drawn_in_a_program_are_those_of_subnets():
    keys = jax.random.split(jax.random.key(0), 200)
    drawn = jax.tree.map(np.asarray, jax.jit(jax.vmap(lambda key: SMALL.draw(key, 3)))(keys))
    seen = set()
    for width, depth, heads, hidden in zip(*drawn, strict=True):
        ratios = tuple(float(one) for one in hidden[:depth] / width)
        subnet = Subnet(int(width), tuple(heads[:depth].tolist()), ratios)
        assert subnet in SMALL
        for own, taken in zip(subnet.sizes(3), (width, depth, heads, hidden), strict=True):
            np.testing.assert_array_equal(own, taken)
        seen.add(subnet)
    assert len(seen) > 100
    space = SearchSpace(**{**vars(SMALL), "per_block": False})
    equal = jax.jit(space.draw, static_argnums=1)(keys[0], 3)
    assert len(set(equal.heads[: int(equal.depth)].tolist())) == 1


def test_a_subnet_comes_back_from_json():
    subnet = Subnet(8, (1, 2), (1.0, 1.5))
    assert Subnet.from_json(subnet.to_json()) == subnet
    assert subnet not in SPACES["uniform"] and subnet.mlp_widths == (8, 12)


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"depths": ()}, "depths has no values"),
        ({"widths": (8, 8)}, r"widths=\(8, 8\) has a value twice"),
        ({"heads": (0,)}, "heads=0 must be a whole number"),
        ({"mlp_ratios": (-1.0,)}, "mlp_ratios=-1.0 must be a number above 0"),
        ({"heads": (5,), "head_dim": None}, "no combination is valid"),
    ],
)
def test_a_mistake_is_one_sentence(sizes, sentence):
    with pytest.raises(ValueError, match=sentence):
        SearchSpace(**{**vars(SMALL), **sizes})
    with pytest.raises(ValueError, match="too many to list"):
        next(iter(SMALL))
