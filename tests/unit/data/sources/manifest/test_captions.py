"""Files of captions: their columns, several captions of an image, splits, and wrong lines."""

import json

import numpy as np
import pytest
from PIL import Image

from vit_jax.data import Augment, Preprocessing, TextOptions, open_source, train_batches
from vit_jax.data.sources.manifest.columns import TableOptions
from vit_jax.errors import UserError

LINES = [
    *(f"pix/{number}.png,the number {number}" for number in range(6)),
    "pix/0.png,nothing at all",
    "pix/1.png,the number 1",
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pix").mkdir()
    for number in range(6):
        Image.new("L", (4, 4), 40 * number).save(tmp_path / f"pix/{number}.png")
    return tmp_path


def written(folder, lines, name="captions.csv", header="path,caption"):
    (folder / name).write_text("\n".join([header, *lines]) + "\n")
    return f"csv:{folder / name}"


def words(source, ids):
    text = source.tokenizer._backend.decode(ids.tolist())
    return " ".join(text.replace(" ", "").replace("Ġ", " ").split())


def test_images_have_captions_and_need_no_labels(folder):
    dataset = written(folder, LINES)
    source, test = (open_source(dataset, split) for split in ("train", "test"))
    assert not source.has_labels and (len(source), len(test)) == (5, 1)
    for part in (source, test):
        for index, file in enumerate(part.files):
            example = part[index]
            number = file.removeprefix("pix/").removesuffix(".png")
            assert words(part, example["text"]) == f"the number {number}"
            assert example["image"][0, 0, 0] == 40 * int(number)
    assert source.tokenizer.difference(test.tokenizer) == ""
    assert source.features["text"].shape == source[0]["text"].shape
    assert source.notes == (
        f"lines of {folder}/captions.csv that repeat an earlier one, skipped: 1, such as that of"
        " 'pix/1.png'",
    )
    # The same captions, found by the folder.
    assert open_source(f"folder:{folder}", "train").files == source.files
    without = open_source(f"folder:{folder}", "train", labels=False, texts=None)
    assert set(without.features) == {"image"}


def test_training_draws_one_of_the_captions_in_every_epoch(folder):
    source = open_source(written(folder, LINES[:2] + LINES[6:]), "train", holdout=0)
    preprocess = Preprocessing((4, 4), crop=1.0)
    seen = set()
    batches = train_batches(
        source, preprocess, Augment(), batch_size=2, seed=0, start_step=0, total_steps=12
    )
    for batch in batches:
        assert batch["text"].dtype == np.int32
        for image, ids in zip(batch["image"], batch["text"], strict=True):
            seen.add((int(image[0, 0, 0]), words(source, ids)))
    assert seen == {(0, "the number 0"), (0, "nothing at all"), (40, "the number 1")}


def test_labels_stand_beside_captions(folder):
    lines = [f"pix/{n}.png,{'even' if n % 2 == 0 else 'odd'},a {n}" for n in range(6)]
    dataset = written(folder, lines, header="path,label,text")
    source = open_source(dataset, "train", holdout=0)
    assert source.class_names == ("even", "odd") and set(source.features) >= {"label", "text"}
    assert set(open_source(dataset, "train", texts=None).features) == {"image", "label"}


def test_json_has_lists_and_other_names(folder):
    rows = [
        {"file_name": "pix/0.png", "text": ["nothing", "zero"]},
        {"file_name": "pix/1.png", "text": "one"},
    ]
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = open_source(f"folder:{folder}", "train", holdout=0)
    found = {
        file: [words(source, x) for x in source.texts.of(i)] for i, file in enumerate(source.files)
    }
    assert found == {"pix/0.png": ["nothing", "zero"], "pix/1.png": ["one"]}
    table = TableOptions(caption_column="text")
    assert len(open_source(f"jsonl:{folder}/metadata.jsonl", "train", table=table, holdout=0)) == 2


@pytest.mark.parametrize(
    ("lines", "header", "said"),
    [
        (["pix/0.png,", "pix/1.png,a", "pix/2.png, "], "path,caption",
         "captions.csv:2: the caption of 'pix/0.png' is empty.* 1 more in line 4"),
        (["pix/0.png,pix/0.png"], "path,caption", "is the name of an image, 'pix/0.png'; select"),
        (["pix/0.png,a,b"], "path,text,sentence", "'text', 'sentence' may each be the column"),
        (["pix/9.png,a", "pix/8.png,b"], "path,caption", "none of the 2 listed images exists"),
        (["pix/0.png,a"], "path,url", "no column of captions; the columns are 'path', 'url'"),
    ],
)  # fmt: skip
def test_wrong_captions_are_one_sentence(folder, lines, header, said):
    dataset = written(folder, lines, header=header)
    with pytest.raises(UserError, match=said):
        open_source(dataset, "train", texts=TextOptions(needed=True))


def test_missing_images_are_counted(folder):
    source = open_source(written(folder, [*LINES, "pix/8.png,a", "pix/9.png,b"]), "train")
    assert any("do not exist, treated like unreadable ones: 2 of 8" in n for n in source.notes)


def test_captions_that_are_no_texts_or_twice_are_one_sentence(folder):
    (folder / "captions.jsonl").write_text('{"path": "pix/0.png", "caption": 7}')
    with pytest.raises(UserError, match="the caption of 'pix/0.png' is '7', which is no text"):
        open_source(f"folder:{folder}", "train")
    written(folder, LINES)
    with pytest.raises(UserError, match=r"captions in captions\.csv and in captions\.jsonl"):
        open_source(f"folder:{folder}", "train")


def test_all_files_of_a_folder_have_captions_or_none(folder):
    written(folder, LINES, "train.csv")
    written(folder, ["pix/5.png,x"], "test.csv", "path,url")
    with pytest.raises(UserError, match=r"test\.csv has no column of captions, but another file"):
        open_source(f"csv:{folder}", "train")
