"""What a unit sees of the map below, by hand."""

from vit_jax.models.description.receptive import (
    Convolution,
    Everything,
    WindowStep,
    centred,
    global_steps,
    patches,
)


def test_convolutions_see_their_kernel_from_the_place_of_the_unit():
    assert centred(3).seen(5, 5) == (4, 6)
    assert centred(7, 2) == Convolution(7, 2, 3)
    assert Convolution(7, 2, 3).seen(0, 1) == (-3, 5)
    assert patches(4).seen(2, 3) == (8, 15)


def test_a_window_is_seen_as_a_whole_and_ends_with_the_map():
    assert WindowStep(10, 4).seen(5, 5) == (4, 7)
    assert WindowStep(10, 4).seen(9, 9) == (8, 9)
    assert WindowStep(10, 4, shift=2).seen(0, 0) == (0, 1)
    assert WindowStep(10, 4, shift=2).seen(2, 6) == (2, 9)


def test_global_steps_see_every_place():
    [[stride, everything]] = global_steps([("blocks_0", 16)]).values()
    assert stride.stride == 16
    first, last = everything.seen(3, 3)
    assert isinstance(everything, Everything) and first < 0 and last > 10**6
