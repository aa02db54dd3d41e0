"""Files of labels: which images and labels a CSV or JSON Lines file means, line by line."""

import json
import random
import shutil
import unicodedata

import numpy as np
import pytest
from PIL import Image

from vit_jax.data import TableOptions, list_splits, open_source
from vit_jax.errors import DecodeError, UserError


@pytest.fixture
def table(tmp_path):
    """Writes a file beside ten images `0.png`, ..., `9.png`, and returns the dataset's name."""
    for i in range(10):
        Image.new("RGB", (3, 2), (i, 0, 0)).save(tmp_path / f"{i}.png")

    def write(name, content):
        content = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(content)
        return f"{name.rpartition('.')[2]}:{tmp_path / name}"

    return write


def labels(source):
    """The class, or the classes, of every file."""
    names = np.array(source.class_names)
    return {
        file: tuple(names[label == 1]) if source.multi_label else names[label]
        for file, label in sorted(zip(source.files, source.labels, strict=True))
    }


ROWS = "0.png,cat\n1.png,dog\n2.png,cat\n"


@pytest.mark.parametrize(
    "content",
    [
        "path,label\n" + ROWS,
        ROWS,
        "\ufeffpath,label\n" + ROWS,
        ("path,label\n" + ROWS).replace("\n", "\r\n"),
        "Label,Path\ncat,0.png\ndog,1.png\ncat,2.png",
        '"path","label"\n\n"0.png", cat \n"1.png","dog"\n2.png,cat\n\n',
        "path,width,label\n0.png,8,cat\n1.png,9,dog\n2.png,,cat\n",
    ],
)
def test_csv_as_programs_write_it(table, content):
    source = open_source(table("labels.csv", content), "train", holdout=0)
    assert source.class_names == ("cat", "dog") and not source.multi_label
    assert labels(source) == {"0.png": "cat", "1.png": "dog", "2.png": "cat"}
    for index in range(3):
        example = source[index]
        assert f"{example['image'][0, 0, 0]}.png" == source.files[index]
        assert example["label"] == source.labels[index]


def test_json_lines(table):
    content = '{"path": "0.png", "label": "cat"}\n\n{"label": 7, "path": "1.png", "by": "Ann"}'
    source = open_source(table("labels.jsonl", content), "train")
    assert labels(source) == {"0.png": "cat", "1.png": "7"}


def test_a_folder_that_is_a_file_of_labels_is_read_as_one(table):
    name = table("labels.csv", ROWS).replace("csv:", "folder:")
    assert len(open_source(name, "train", holdout=0)) == 3


@pytest.mark.parametrize(
    "name, content",
    [
        ("labels.csv", "path,label\n0.png,sea|sand\n1.png,\n2.png,sand\n"),
        (
            "labels.jsonl",
            '{"path": "0.png", "label": ["sea", "sand"]}\n{"path": "1.png", "label": []}\n'
            '{"path": "2.png", "label": "sand"}\n',
        ),
    ],
)
def test_several_labels_are_ones_in_a_row_of_zeros(table, name, content):
    source = open_source(table(name, content), "train", holdout=0)
    assert source.multi_label and source.class_names == ("sand", "sea")
    assert source.labels.dtype == np.uint8 and source.labels.shape == (3, 2)
    assert labels(source) == {"0.png": ("sand", "sea"), "1.png": (), "2.png": ("sand",)}
    np.testing.assert_array_equal(source[0]["label"], source.labels[0])


def test_images_with_several_labels_are_held_out_by_seed(table):
    name = table("labels.csv", "".join(f"{i}.png,{'a|b' if i % 2 else 'b'}\n" for i in range(10)))
    train, test = (open_source(name, split, holdout=0.3) for split in ("train", "test"))
    assert (len(train), len(test)) == (7, 3)
    assert sorted(train.files + test.files) == [f"{i}.png" for i in range(10)]


def test_labels_of_one_kind_are_held_out_in_proportion(table):
    name = table("labels.csv", "".join(f"{i}.png,{'a' if i < 5 else 'b'}\n" for i in range(10)))
    assert sorted(open_source(name, "test").labels) == [0, 1]


def test_a_column_of_splits_divides_the_file(table):
    name = table(
        "labels.csv", "path,label,split\n0.png,a,train\n1.png,b,train\n2.png,b,val\n3.png,a,test\n"
    )
    assert list_splits(name) == {"train": 2, "validation": 1, "test": 1}
    assert labels(open_source(name, "val")) == {"2.png": "b"}
    assert labels(open_source(name, "test")) == {"3.png": "a"}
    # Without line of names, the third field is the split.
    assert list_splits(table("plain.csv", "0.png,a,train\n1.png,a,Validation\n")) == {
        "train": 1,
        "validation": 1,
    }


def test_a_folder_of_files_has_one_for_every_split(table, tmp_path):
    table("train.csv", "0.png,a\n1.png,b\n")
    table("val.csv", "path,label\n2.png,b\n")
    assert list_splits(f"csv:{tmp_path}") == {"train": 2, "validation": 1}
    val = open_source(f"csv:{tmp_path}", "val")
    assert val.class_names == ("a", "b") and val.labels.tolist() == [1]


def test_classes_txt_gives_names_and_order(table, tmp_path):
    (tmp_path / "classes.txt").write_text("sheep\ncat\n\ndog\n")
    source = open_source(table("labels.csv", ROWS), "train", holdout=0)
    assert source.class_names == ("sheep", "cat", "dog")
    assert labels(source)["1.png"] == "dog"
    with pytest.raises(
        UserError, match=r"labels.csv:2: the label 'cats' is not in classes.txt.*ca"
    ):
        open_source(table("labels.csv", "0.png,dog\n1.png,cats\n"), "train")
    (tmp_path / "classes.txt").write_text("cat\ndog\ncat\n")
    with pytest.raises(UserError, match="classes.txt has 'cat' more than once"):
        open_source(table("labels.csv", ROWS), "train")


def test_numbers_are_texts_in_code_point_order(table):
    source = open_source(table("labels.csv", "0.png,10\n1.png,2\n2.png,1\n"), "train")
    assert source.class_names == ("1", "10", "2")


def test_paths_start_from_the_folder_of_the_file_or_from_the_root(table, tmp_path):
    folder = tmp_path / "été 画像"
    folder.mkdir()
    Image.new("RGB", (3, 2), (77, 0, 0)).save(folder / "a, b.png")
    name = table("labels.csv", f'"été 画像/a, b.png",x\n{tmp_path}/0.png,y\n')
    source = open_source(name, "train")
    assert sorted(source[i]["image"][0, 0, 0] for i in range(2)) == [0, 77]


def test_images_that_are_not_there_are_told_and_fail_when_read(table, tmp_path):
    source = open_source(table("labels.csv", "0.png,a\nnope.png,b\n"), "train")
    assert any("not exist" in note and "1 of 2, 'nope.png'" in note for note in source.notes)
    with pytest.raises(DecodeError, match="nope.png: there is no such file"):
        source[source.files.index("nope.png")]
    with pytest.raises(UserError, match=rf"none of the 2 listed images.*start from {tmp_path}"):
        open_source(table("labels.csv", "x/0.png,a\nx/1.png,b\n"), "train")


def test_the_fingerprint_is_that_of_the_labels_too(table):
    """The same files and classes; of the second table one label is corrected."""
    names = ("labels.csv", "again.csv", "corrected.csv")
    rows = (ROWS, ROWS, ROWS.replace("2.png,cat", "2.png,dog"))
    sources = [
        open_source(table(name, content), "train", holdout=0)
        for name, content in zip(names, rows, strict=True)
    ]
    first, again, corrected = (source.fingerprint for source in sources)
    assert sources[0].class_names == sources[2].class_names == ("cat", "dog")
    assert first == again != corrected


def test_a_line_that_comes_twice_counts_once(table):
    source = open_source(table("labels.csv", ROWS + "1.png,dog\n"), "train", holdout=0)
    assert len(source) == 3
    assert any("repeat an earlier one, skipped: 1" in note for note in source.notes)


@pytest.mark.parametrize(
    "content, sentence",
    [
        ("0.png,a\n1.png\n2.png,b,c\n", "csv:2: 1 field instead of 2 .*; 1 more in line 3"),
        ("path,label\n0.png,a,b\n", r"csv:2: 3 fields instead of 2 \(path,label\)"),
        ("path,label\n0.png,a\n,b\n", "csv:3: '' is not a path: it is empty"),
        ("path,label\n0.png,a\n1.png,\n", "csv:3: the label of '1.png' is empty"),
        ("path,label\n0.png,a||b\n", "csv:2: the label of '0.png' is empty"),
        (b"path,label\n0.png,a\n1.png,caf\xe9\n", "csv:3: byte 0xe9 is not UTF-8"),
        ("path,label\n0.png,a".encode("utf-16"), "csv:1: byte 0xff is not UTF-8"),
        ('path,label\n0.png,a\n"1.png,b\n2.png,c\n', "csv:3: unexpected end"),
        ('path,label\n"0\n.png",a\n1.png\n', "csv:4: 1 field instead of 2"),
        ("this,that\nx,a\n", "no column has the names of images; the columns are 'this'"),
        ("0.png\n", "csv:1: there is 1 field"),
        ("0.png,a,b,c\n", "csv:1: there are 4 fields"),
        ("path,label,split\n0.png,a,trian\n", "csv:2: there is no split 'trian'"),
        ("path,label,split\n0.png,a,train\n1.png,a,\n", "csv:3: there is no split ''"),
        ("0.png,a\n0.png,b\n", r"csv:2: '0.png' has another label in .*csv:1"),
        ("0.png,a,train\n0.png,a,test\n", "csv:2: '0.png' is in test here and in train in"),
        ("0.png,a,test\n", "no line of .* has the split train, only 'test'"),
        ("0.png,a,train\n1.png,b,val\n", "training split lacks, 'b'"),
        ("a\0b.png,a\n", r"csv:1: .*is not a path"),
        ("", "lists no images"),
        ("path,label\n", "lists no images"),
    ],
)
def test_a_bad_line_of_csv_is_refused_with_its_number(table, content, sentence):
    with pytest.raises(UserError, match=sentence):
        open_source(table("labels.csv", content), "train+val" if "val" in str(content) else "train")


@pytest.mark.parametrize(
    "line, cause",
    [
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[1]", 'an object with "path" and "label"'),
        ('{"path": "1.png"}', 'no "label"; it must be an object with "path" and "label"'),
        ('{"path": [1], "label": "a"}', '"path" and "split" must be strings'),
        ('{"path": "1.png", "label": "a", "split": 1}', '"path" and "split" must be strings'),
        ('{"path": "1.png", "label": null}', "the label of '1.png' is missing"),
        ('{"path": "1.png", "label": NaN}', "the label of '1.png' is missing"),
        ('{"path": "1.png", "label": 1.5}', '"label" must be a string'),
        ('{"path": "1.png", "label": true}', '"label" must be a string'),
        ('{"path": "1.png", "label": [["a"]]}', '"label" must be a string'),
        ('{"path": "1.png", "label": ""}', "the label of '1.png' is empty"),
        ('{"path": "\\ud800.png", "label": "a"}', "is not a path"),
    ],
)
def test_a_bad_line_of_json_is_refused_with_its_number(table, line, cause):
    content = json.dumps({"path": "0.png", "label": "a"}) + f"\n{line}\n"
    with pytest.raises(UserError, match=f"jsonl:2: .*{cause}"):
        open_source(table("labels.jsonl", content), "train")


def test_missing_files_are_told_what_there_is(table, tmp_path):
    name = table("labels.csv", ROWS)
    with pytest.raises(UserError, match="no file .*label.csv; did you mean 'labels.csv'"):
        open_source(name.replace("labels", "label"), "train")
    with pytest.raises(UserError, match=r"no train.csv in .*; use one file, as in csv:.*/labels"):
        open_source(f"csv:{tmp_path}", "train")
    with pytest.raises(UserError, match="no validation split: there is no split val in .*labels"):
        open_source(name, "val")


def test_splits_that_contradict_each_other_are_refused(table, tmp_path):
    table("train.csv", "0.png,a\n")
    table("val.csv", "0.png,a\n")
    with pytest.raises(UserError, match=r"val.csv:1: .*in validation here and in train in .*csv:1"):
        open_source(f"csv:{tmp_path}", "train")
    table("val.csv", "1.png,a,train\n")
    with pytest.raises(UserError, match=r"val.csv:1: the whole file is one split"):
        open_source(f"csv:{tmp_path}", "train")
    table("valid.csv", "1.png,a\n")
    with pytest.raises(UserError, match="both val.csv and valid.csv list the validation split"):
        open_source(f"csv:{tmp_path}", "train")


SPELLINGS = ["pix/a.png", "./pix/a.png", "pix//a.png", "other/../pix/a.png", "{root}/pix/a.png"]
SPELLINGS += ["link/a.png", "pix/link.png", "pix\\a.png", "pix/a", "{root}/link/../pix/a.png"]


@pytest.fixture
def spelled(table, tmp_path):
    """Ten images in pix/, a link to it, a link to one of them, and a hard link."""
    for name in ("pix", "other"):
        (tmp_path / name).mkdir()
    for i, name in enumerate("abcdefghij"):
        Image.new("RGB", (3, 2), (i, 9, 9)).save(tmp_path / "pix" / f"{name}.png")
    (tmp_path / "link").symlink_to("pix")
    (tmp_path / "pix" / "link.png").symlink_to("a.png")
    (tmp_path / "pix" / "hard.png").hardlink_to(tmp_path / "pix" / "a.png")
    return table


@pytest.mark.parametrize("spelling", [*SPELLINGS, "pix/hard.png"])
def test_a_file_is_one_however_it_is_spelled(spelled, tmp_path, spelling):
    name = spelling.format(root=tmp_path)
    spelled("train.csv", "path,label\npix/a.png,x\npix/b.png,y\n")
    spelled("test.csv", f"path,label\n{name},x\n")
    with pytest.raises(UserError, match=r"test.csv:2: .*is in test here and in train in .*csv:2"):
        open_source(f"csv:{tmp_path}", "train")
    twice = spelled("twice.csv", f"path,label\npix/a.png,x\n{name},x\npix/b.png,y\n")
    source = open_source(twice, "train", holdout=0)
    assert sorted(source.files) == ["pix/a.png", "pix/b.png"]
    assert any("repeat an earlier one" in note for note in source.notes)
    with pytest.raises(UserError, match="csv:3: .*has another label in .*csv:2"):
        open_source(spelled("two.csv", f"path,label\npix/a.png,x\n{name},y\n"), "train")


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_what_is_held_out_does_not_hang_on_the_spelling(spelled, tmp_path, spelling, monkeypatch):
    def write(name, spelling):
        names = {"pix/a": "pix/{x}", "pix/link.png": "pix/{x}.png"}
        form = names.get(spelling, spelling.replace("a.png", "{x}.png"))
        lines = [form.format(x=x) for x in "abcdefghij"]
        if spelling == "pix/link.png":
            lines[0] = spelling
        return spelled(name, "path,label\n" + "".join(f"{line},x\n" for line in lines))

    plain = open_source(write("plain.csv", "pix/a.png"), "test", holdout=0.5)
    spelling = spelling.format(root=tmp_path)
    for path in (write("other.csv", spelling), "csv:other.csv", "csv:./pix/../other.csv"):
        monkeypatch.chdir(tmp_path)
        other = open_source(path, "test", holdout=0.5)
        assert other.files == plain.files and other.fingerprint[-12:] == plain.fingerprint[-12:]


def test_links_that_lead_outside_keep_their_place_in_the_folder(table, tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    for i in range(3):
        (tmp_path / f"{i}.png").rename(store / f"{i}.png")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "pix").symlink_to(store)
    table("set/labels.csv", f"path,label\npix/0.png,x\n{store}/1.png,x\n../store/2.png,y\n")
    source = open_source(f"csv:{tmp_path}/set/labels.csv", "train", holdout=0)
    assert sorted(source.files) == ["pix/0.png", "pix/1.png", "pix/2.png"]


def test_names_are_found_in_the_other_unicode_form(table, tmp_path):
    composed, apart = (unicodedata.normalize(form, "été") for form in ("NFC", "NFD"))
    (tmp_path / apart).mkdir()
    (tmp_path / "0.png").rename(tmp_path / apart / f"{apart}.png")
    name = table("labels.csv", f"path,label\n{composed}/{composed}.png,x\n{apart}/{apart},x\n")
    source = open_source(name, "train")
    assert len(source) == 1 and source[0]["image"].shape == (2, 3, 3)


def test_labels_are_one_class_in_either_unicode_form(table, tmp_path):
    composed, apart = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    rows = f"0.png,{composed}\n1.png,{apart}\n2.png,\u00a0{apart}\u200b\n3.png,tea\n"
    source = open_source(table("labels.csv", rows), "train", holdout=0)
    assert source.class_names == (composed, "tea")
    assert sorted(source.labels) == [0, 0, 0, 1] and not source.notes
    (tmp_path / "classes.txt").write_text(f"tea\n{apart}\n", encoding="utf-8")
    assert open_source(table("labels.csv", rows), "train").class_names == ("tea", composed)


def test_classes_that_look_alike_are_named(table):
    rows = "0.png,Hot dog\n1.png,hot dog\n2.png,hot\u00a0dog\n3.png,hot\u200bdog\n4.png,cat\n"
    source = open_source(table("labels.csv", rows), "train", holdout=0)
    assert len(source.class_names) == 5
    [note] = [note for note in source.notes if "differ only in case" in note]
    for name in ("'Hot dog'", "'hot dog'", r"'hot\xa0dog'", r"'hot\u200bdog'"):
        assert name in note
    assert "cat" not in note


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_columns_of_other_names_and_separators_and_ids_without_suffix(table, separator):
    content = '\ufeff"id","breed"\n0,boston_bull\n"1",pug\n'.replace(",", separator)
    source = open_source(table("labels.csv", content), "train", holdout=0)
    assert labels(source) == {"0.png": "boston_bull", "1.png": "pug"}


def test_an_id_that_fits_two_images_is_not_guessed(table, tmp_path):
    Image.new("RGB", (3, 2)).save(tmp_path / "0.jpg")
    with pytest.raises(UserError, match=r"csv:2: '0' is not a path: it may be '0.jpg', '0.png'"):
        open_source(table("labels.csv", "id,breed\n0,pug\n"), "train")


def test_images_of_ids_are_found_below_the_table(table, tmp_path):
    for folder, numbers in {"part_1": (0, 1), "part_2/deep": (2,), "other": (3, 1)}.items():
        (tmp_path / "pix" / folder).mkdir(parents=True)
        for i in numbers:
            shutil.copy(tmp_path / f"{i}.png", tmp_path / "pix" / folder / f"ISIC_{i}.jpg")
    name = table("labels.csv", "image_id,dx\nISIC_0,mel\nISIC_2,nv\n")
    source = open_source(name, "train", holdout=0)
    assert labels(source) == {"pix/part_1/ISIC_0.jpg": "mel", "pix/part_2/deep/ISIC_2.jpg": "nv"}
    assert any("found by their names in 'pix/part_1'" in note for note in source.notes)
    name = table("labels.csv", "image_id,dx\nISIC_0,mel\nISIC_1,nv\n")
    with pytest.raises(UserError, match=r"csv:3: 'ISIC_1' is ambiguous.*other.*data.image_dir"):
        open_source(name, "train")
    options = TableOptions(image_dir="pix/part_1")
    source = open_source(name, "train", holdout=0, table=options)
    assert sorted(source.files) == ["pix/part_1/ISIC_0.jpg", "pix/part_1/ISIC_1.jpg"]
    with pytest.raises(UserError, match="data.image_dir = 'nowhere' is not a folder"):
        open_source(name, "train", table=TableOptions(image_dir="nowhere"))


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_columns_of_zeros_and_ones(table, kind):
    def content(rows):
        if kind == "csv":
            return "image_id,healthy,scab,rust\n" + "".join(f"{','.join(row)}\n" for row in rows)
        names = ("image_id", "healthy", "scab", "rust")
        return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)

    one = content([("0", "1", "0", "0"), ("1", "0", "0", "1.0")])
    source = open_source(table(f"one.{kind}", one), "train", holdout=0)
    assert source.class_names == ("healthy", "scab", "rust")  # as the columns stand
    assert not source.multi_label and labels(source) == {"0.png": "healthy", "1.png": "rust"}
    many = content([("0", "1", "0", "0"), ("1", "0", "1", "1"), ("2", "0", "0", "0")])
    source = open_source(table(f"many.{kind}", many), "train", holdout=0)
    assert source.multi_label
    assert labels(source) == {"0.png": ("healthy",), "1.png": ("scab", "rust"), "2.png": ()}


@pytest.mark.parametrize("missing", ["nan", "NaN", "<NA>", "N/A"])
def test_a_missing_label_is_no_class(table, tmp_path, missing):
    rows = f"path,label\n0.png,a\n1.png,{missing}\n2.png,b\n3.png,{missing}\n"
    with pytest.raises(
        UserError, match=r"csv:3: the label of '1.png' is missing.*1 more in line 5"
    ):
        open_source(table("labels.csv", rows), "train")
    (tmp_path / "classes.txt").write_text(f"a\nb\n{missing}\n")
    assert len(open_source(table("labels.csv", rows), "train", holdout=0)) == 4


def test_whole_floats_are_whole_numbers(table):
    for name, rows in {
        "labels.csv": "path,label\n0.png,0.0\n1.png,1.0\n2.png,1\n",
        "labels.jsonl": '{"path": "0.png", "label": 0.0}\n{"path": "1.png", "label": 1.0}\n'
        '{"path": "2.png", "label": 1}\n',
    }.items():
        source = open_source(table(name, rows), "train", holdout=0)
        assert labels(source) == {"0.png": "0", "1.png": "1", "2.png": "1"}
        assert any("read as whole numbers: '0.0' as '0'" in note for note in source.notes)
    versions = open_source(table("labels.csv", "0.png,1.0\n1.png,1.5\n"), "train", holdout=0)
    assert versions.class_names == ("1.0", "1.5") and not versions.notes


def test_missing_files_of_all_splits_are_counted(table):
    rows = "".join(f"{i}.png,{'ab'[i % 2]}\n" for i in range(20))  # ten of them are there
    for split in ("train", "test"):
        notes = " ".join(open_source(table("labels.csv", rows), split).notes)
        assert "not exist, treated like unreadable ones: 10 of 20, '10.png'" in notes


def test_two_columns_of_one_name_are_refused(table):
    with pytest.raises(UserError, match="csv:1: two columns have the name 'label'"):
        open_source(table("labels.csv", "path,label,label\n0.png,a,b\n"), "train")


def test_no_mutation_of_a_table_ends_in_anything_but_a_sentence(table, tmp_path):
    rng = random.Random(0)
    pieces = [b"", b",", b";", b"\t", b'"', b"|", b"\n", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf"]
    pieces += [b"..", b"/", b"\\", b"1.0", b"path", b"label", b"[", b"{", b"}", b"null", b"true"]
    pieces += [b":", b"nan"]
    seeds = {
        "csv": b"path,label,split\n0.png,cat,train\n1.png,dog,train\n./2.png,cat,test\n",
        "jsonl": b'{"path": "0.png", "label": "cat"}\n{"path": "1", "label": ["a", "b"]}\n',
    }
    refused = 0
    for number in range(400):
        kind = ("csv", "jsonl")[number % 2]
        content = bytearray(seeds[kind])
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(content) + 1)
            content[place : place + rng.randint(0, 6)] = rng.choice(pieces)
        try:
            source = open_source(table(f"labels.{kind}", bytes(content)), "train")
            assert len(source.labels) == len(source) and source.notes is not None
        except UserError as error:
            assert "\n" not in str(error) or b"\n" in content
            refused += 1
    assert 50 < refused < 400  # some are read, some are not
