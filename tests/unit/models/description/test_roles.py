"""Axes of matrices and of the mesh, by hand."""

import pytest

from vit_jax.models.description import Matrix, Role, kernel_and_bias


@pytest.mark.parametrize(
    ("role", "rank", "inputs", "outputs"),
    [
        (Role.QKV, 4, (-4,), (-2, -1)),  # width, q k v, heads, head_dim
        (Role.QUERY, 3, (-3,), (-2, -1)),
        (Role.ATTENTION_OUT, 3, (-3, -2), (-1,)),
        (Role.MLP_IN, 2, (-2,), (-1,)),
        (Role.CONVOLUTION, 4, (-4, -3, -2), (-1,)),
        (Role.DOWNSAMPLE, 2, (-2,), (-1,)),
        (Role.KERNEL, 5, (-5, -4, -3, -2), (-1,)),
    ],
)
def test_the_axes_of_a_matrix_are_counted_from_the_end(role, rank, inputs, outputs):
    assert role.matrix.axes(rank) == (inputs, outputs)


def test_too_few_axes_are_no_matrix():
    assert Matrix(inputs=None).axes(1) is None
    assert Matrix(inputs=2).axes(2) is None
    assert Role.DEPTHWISE.matrix is None and Role.TOKEN.matrix is None


def test_depthwise_kernels_are_decayed_and_low_rank_updates_are_not():
    assert Role.DEPTHWISE.is_decayed and Role.HEAD.is_decayed
    assert not any(role.is_decayed for role in (Role.LOW_RANK_UP, Role.TOKEN, Role.BIAS, Role.NORM))


def test_a_table_of_a_dense_layer_has_its_kernel_and_its_bias():
    assert kernel_and_bias(Role.HEAD) == {"kernel": Role.HEAD, "bias": Role.BIAS}
