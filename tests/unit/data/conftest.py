"""Fixtures of the tests of the data: the two splits of the digits."""

import pytest

from vit_jax.data import open_source


@pytest.fixture(scope="session")
def train(data_dir):
    return open_source("digits", "train", data_dir=data_dir)


@pytest.fixture(scope="session")
def test(data_dir):
    return open_source("digits", "test", data_dir=data_dir)
