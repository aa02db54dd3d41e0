"""Thousands of damaged files: each is read or refused in a sentence, in a bounded time."""

import pytest

from tests.support.mutated_weights import base_folders, mutated, outcomes


@pytest.mark.slow
def test_damaged_files_are_read_or_refused_in_a_sentence(tmp_path):
    folders = base_folders(tmp_path)
    found, longest = outcomes(mutated(folders, tmp_path / "target", 1500, seed=1))
    assert found["refused"] > 300
    assert found["read"] > 50
    assert longest < 2
