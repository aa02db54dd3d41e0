"""The policies: what they choose from, how often, and how strongly."""

import json
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from tests.folders import GOLDENS
from vit_jax.data.transforms import randaugment
from vit_jax.data.transforms.randaugment import (
    AUTO,
    AUTO_AUGMENT,
    POLICIES,
    RAND,
    RAND_INCREASING,
    Leveled,
    auto_augment,
    rand_augment,
    three_augment,
)

GOLDEN = json.loads((GOLDENS / "data" / "policies.json").read_text())
TABLES = {"RAND": RAND, "RAND_INCREASING": RAND_INCREASING, "AUTO": AUTO}
IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 12, 3), np.uint8))


def rand(image, rng, n=2, m=9.0, std=0.5, increasing=True):
    return rand_augment(image, rng, n=n, m=m, std=std, increasing=increasing)


@pytest.mark.parametrize("table", TABLES)
def test_a_level_means_what_it_means_in_timm(table):
    for name, rows in GOLDEN["levels"][table].items():
        for level, plus, minus in rows:
            for sign, expected in ((1, plus), (-1, minus)):
                found = TABLES[table][name].argument(level / 10, sign)
                assert found == pytest.approx(expected, abs=1e-12), (name, level)
                assert type(found) is type(expected)


def test_a_shift_of_autoaugment_is_up_to_150_of_331_pixels():
    for name in ("TranslateX", "TranslateY"):
        assert AUTO[name].argument(0.9, -1) == pytest.approx(-0.9 * 150 / 331)


def test_levels_of_autoaugment_span_the_ranges_of_the_papers_table_6():
    ranges = {
        "ShearX": (0, 0.3),
        "ShearY": (0, 0.3),
        "TranslateX": (0, 150 / 331),
        "TranslateY": (0, 150 / 331),
        "Rotate": (0, 30),
        "Solarize": (0, 256),
        "Posterize": (4, 8),
        "Contrast": (0.1, 1.9),
        "Color": (0.1, 1.9),
        "Brightness": (0.1, 1.9),
        "Sharpness": (0.1, 1.9),
    }
    for name, ends in ranges.items():
        found = (AUTO[name].argument(0, 1), AUTO[name].argument(1, 1))
        assert found == pytest.approx(ends), name
    without = {name for name, leveled in AUTO.items() if leveled.argument is None}
    assert (
        set(AUTO) == set(ranges) | without == set(ranges) | {"AutoContrast", "Equalize", "Invert"}
    )


def test_randaugment_draws_from_timms_15_operations():
    for name, table in (("RAND", RAND), ("RAND_INCREASING", RAND_INCREASING)):
        assert sorted(table) == GOLDEN["operations"][name]
        assert len(table) == 15


@pytest.mark.parametrize("policy", AUTO_AUGMENT)
def test_autoaugment_is_torchvisions_table(policy):
    expected = [
        [tuple(operation) for operation in sub_policy] for sub_policy in GOLDEN["tables"][policy]
    ]
    assert [list(sub_policy) for sub_policy in AUTO_AUGMENT[policy]] == expected
    assert len(expected) == 25


def recorder(log, name):
    """An operation that notes its name and strength and changes nothing."""

    def argument(strength, sign):
        log.append((name, strength, sign))
        return strength

    return Leveled(lambda image, strength: image, argument)


@pytest.mark.parametrize("increasing", [True, False])
def test_randaugment_applies_half_of_n_operations_evenly(monkeypatch, increasing):
    log = []
    table = {name: recorder(log, name) for name in "abcde"}
    monkeypatch.setattr(randaugment, "RAND_INCREASING" if increasing else "RAND", table)
    rng = np.random.default_rng(0)
    counts = Counter()
    for _ in range(4000):
        before = len(log)
        assert rand(IMAGE, rng, n=3, increasing=increasing) is IMAGE
        counts[len(log) - before] += 1
    # Each of three operations is applied with probability 1/2: 1/8, 3/8, 3/8, 1/8.
    for applied, share in enumerate((1 / 8, 3 / 8, 3 / 8, 1 / 8)):
        assert counts[applied] / 4000 == pytest.approx(share, abs=0.031)  # four deviations
    by_name = Counter(name for name, _, _ in log)
    assert all(by_name[name] / len(log) == pytest.approx(0.2, abs=0.021) for name in "abcde")
    signs = Counter(sign for _, _, sign in log)
    assert signs[1] / len(log) == pytest.approx(0.5, abs=0.026) and signs[1] + signs[-1] == len(log)


def test_randaugments_strength_is_normal_and_clipped_to_the_levels(monkeypatch):
    log = []
    monkeypatch.setattr(randaugment, "RAND_INCREASING", {"a": recorder(log, "a")})
    rng = np.random.default_rng(0)
    for _ in range(4000):
        rand(IMAGE, rng, m=5, std=0.5)
    levels = np.array([10 * strength for _, strength, _ in log])
    assert levels.mean() == pytest.approx(5, abs=0.04)
    assert levels.std() == pytest.approx(0.5, abs=0.03)
    log.clear()
    for _ in range(500):
        rand(IMAGE, rng, m=9, std=4)
        rand(IMAGE, rng, m=1, std=4)
    strengths = [strength for _, strength, _ in log]
    assert min(strengths) == 0 and max(strengths) == 1
    log.clear()
    rand(IMAGE, rng, n=15, m=7, std=0)
    assert {strength for _, strength, _ in log} == {0.7}


def test_autoaugment_draws_sub_policies_evenly_and_keeps_their_order(monkeypatch):
    log = []
    monkeypatch.setattr(randaugment, "AUTO", {name: recorder(log, name) for name in "abcd"})
    policy = ((("a", 1.0, 3), ("b", 1.0, 7)), (("c", 0.25, 9), ("d", 0.0, None)))
    rng = np.random.default_rng(0)
    for _ in range(4000):
        auto_augment(IMAGE, rng, policy)
    counts = Counter(name for name, _, _ in log)
    assert counts["a"] == counts["b"] and counts["d"] == 0
    assert counts["a"] / 4000 == pytest.approx(1 / 2, abs=0.032)
    assert counts["c"] / 4000 == pytest.approx(1 / 8, abs=0.021)
    names = [name for name, _, _ in log if name in "ab"]
    assert names == ["a", "b"] * counts["a"]
    assert {(name, strength) for name, strength, _ in log} == {("a", 0.3), ("b", 0.7), ("c", 0.9)}


def test_three_augment_is_grey_solarized_or_blurred_equally_often():
    colours = np.asarray(IMAGE)
    solarized = np.where(colours < 128, colours, 255 - colours)
    rng = np.random.default_rng(0)
    found = Counter()
    for _ in range(3000):
        changed = np.asarray(three_augment(IMAGE, rng)).astype(int)
        if np.array_equal(changed, solarized):
            found["solarized"] += 1
        elif np.all(changed == changed[:, :, :1]):
            luma = colours @ [0.299, 0.587, 0.114]  # ITU-R BT.601
            assert np.abs(changed[:, :, 0] - luma).max() <= 1
            found["grey"] += 1
        else:
            assert changed.std() <= colours.std() + 0.5
            found["blurred"] += 1
    assert all(found[kind] / 3000 == pytest.approx(1 / 3, abs=0.035) for kind in found)
    assert len(found) == 3


def test_three_augment_blurs_by_more_and_less():
    """A white dot under a Gaussian of deviation s keeps 1 / (2 pi s^2) of its light, s up to 2."""
    dot = np.zeros((31, 31), np.uint8)
    dot[15, 15] = 255
    rng = np.random.default_rng(0)
    peaks = []
    for _ in range(300):
        changed = np.asarray(three_augment(Image.fromarray(dot), rng))
        if 0 < changed[15, 15] < 255:
            peaks.append(changed[15, 15] / 255)
    lowest = 1 / (2 * np.pi * 2**2)
    assert 0.75 * lowest < min(peaks) < 1.5 * lowest and max(peaks) > 0.9


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("size", [(1, 1), (300, 1), (1, 200), (32, 24)])
def test_images_of_any_size_keep_size_and_mode(size, mode):
    image = IMAGE.convert(mode).resize(size)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        for changed in (
            rand(image, rng, n=4, m=10, std=0),  # the highest level keeps 0 bits
            rand(image, rng, n=4, m=0, std=0, increasing=False),
            auto_augment(image, rng, AUTO_AUGMENT["auto-cifar10"]),
            auto_augment(image, rng, AUTO_AUGMENT["auto-imagenet"]),
            three_augment(image, rng),
        ):
            assert (changed.size, changed.mode) == (size, mode)


def test_the_same_generator_gives_the_same_image():
    for change in (
        rand,
        three_augment,
        lambda image, rng: auto_augment(image, rng, AUTO_AUGMENT["auto-cifar10"]),
    ):
        found = [np.asarray(change(IMAGE, np.random.default_rng(s))).tobytes() for s in range(40)]
        again = [np.asarray(change(IMAGE, np.random.default_rng(s))).tobytes() for s in range(40)]
        assert found == again and len(set(found)) > 3


def test_the_names_of_the_policies_are_all_there():
    assert {"none", "rand", "three", *AUTO_AUGMENT} == set(POLICIES)
