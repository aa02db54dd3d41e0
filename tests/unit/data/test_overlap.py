"""Images of a source that a model was trained on: by place, by content, or by number."""

import shutil

import numpy as np
import pytest
from PIL import Image

from tests.support.shards import png, write_shard
from vit_jax.analysis.representations.features import sample
from vit_jax.data import open_source
from vit_jax.data.overlap import seen_images, training_record
from vit_jax.data.sources.subset import stratified


@pytest.fixture
def photos(tmp_path):
    """Two classes of five images of noise each, larger than what is read whole of a file."""
    rng = np.random.default_rng(0)
    for number in range(10):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (160, 160, 3), dtype=np.uint8)).save(path)
    return tmp_path / "photos"


def test_images_of_another_division_of_the_same_files_are_seen(photos):
    train = open_source(f"folder:{photos}", "train", holdout=0.4)
    other = open_source(f"folder:{photos}/./", "test", holdout=0.4, split_seed=1)
    own = open_source(f"folder:{photos}", "test", holdout=0.4)
    record = training_record(train)
    seen = {other.files[number] for number in seen_images(other, [record])}
    assert seen == set(other.files) & set(train.files) and seen
    assert seen_images(own, [record]) == []
    assert len(seen_images(train, [record])) == len(train)


def test_copies_are_seen_and_other_images_of_that_name_and_size_are_not(photos, tmp_path):
    record = training_record(open_source(f"folder:{photos}", "train", holdout=0))
    (tmp_path / "new" / "c").mkdir(parents=True)
    shutil.copy(photos / "a/0.png", tmp_path / "new/c/renamed.png")
    content = bytearray((photos / "b/1.png").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "new/c/1.png").write_bytes(content)
    shutil.rmtree(photos)  # the record is enough
    new = open_source(f"folder:{tmp_path}/new", "train", holdout=0)
    assert [new.files[number] for number in seen_images(new, [record])] == ["c/renamed.png"]
    assert seen_images(new, []) == []


def test_images_in_shards_are_seen_by_their_names(tmp_path):
    write_shard(tmp_path / "0.tar", {f"{number}.png": png(number) for number in range(10)})
    train = open_source(f"wds:{tmp_path}", "train", holdout=0.4)
    other = open_source(f"wds:{tmp_path}/*.tar", "test", holdout=0.4, split_seed=1)
    record = training_record(train)
    assert "digests" not in record
    seen = {other.files[number] for number in seen_images(other, [record])}
    assert seen == set(other.files) & set(train.files) and seen


def test_examples_are_seen_by_their_numbers(data_dir):
    def part(split):
        return open_source("digits", split, data_dir=data_dir)

    record = training_record(part("train[:100]"))
    assert seen_images(part("train[90:120]"), [record]) == list(range(10))
    # The second part begins with number 5 of the source; 98 and 99 were trained on.
    assert seen_images(part("train[200:205]+train[98:103]"), [record]) == [5, 6]
    assert seen_images(part("test"), [record]) == []


def test_a_sample_of_files_is_told_apart_like_the_files(photos):
    source = open_source(f"folder:{photos}", "train", holdout=0.4)
    part = sample(source, 3)
    assert part.identities.shape == (3, 2)
    assert [mine for mine, _ in part.shared_files(source)] == sorted(part.files)
    assert not part.overlaps(open_source(f"folder:{photos}", "test", holdout=0.4))


def test_a_part_records_its_own_images_only(photos, data_dir):
    files = open_source(f"folder:{photos}", "train", holdout=0)
    numbered = open_source("digits", "train", data_dir=data_dir)
    for source, count in ((files, 3), (numbered, 50)):
        part = stratified(source, count, seed=0)
        seen = seen_images(source, [training_record(part)])
        assert [source.where(number) for number in seen] == [part.where(i) for i in range(count)]
        assert seen_images(part, [training_record(source)]) == list(range(count))
