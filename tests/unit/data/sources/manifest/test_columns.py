"""Columns of a table by what they hold, from names and contents, and what is asked of the user."""

import pytest

from vit_jax.data.sources.manifest.columns import TableOptions, choose_columns
from vit_jax.errors import UserError

NOTHING = TableOptions()


def choose(header, *lines, options=NOTHING, files=()):
    names = header.split(",")
    records = [dict(zip(names, line.split(","), strict=True)) for line in lines]
    return choose_columns("labels.csv", names, records, options, set(files).__contains__)


@pytest.mark.parametrize(
    ("header", "path", "label"),
    [
        ("path,label", "path", "label"),
        ("filename,class", "filename", "class"),
        ("id,breed", "id", "breed"),
        ("Image Id,Category Name", "Image Id", "Category Name"),
        ("lesion_id,image_id,dx,dx_type,age,sex,localization", "image_id", "dx"),
        ("file_name,label", "file_name", "label"),
        ("img,target", "img", "target"),
        ("image_id,text_of_my_own", "image_id", "text_of_my_own"),
        (",path,label", "path", "label"),  # pandas numbers the lines
        ("Unnamed: 0,image,kind", "image", "kind"),
        ("path,width,class,label", "path", "label"),
    ],
)
def test_usual_names_are_known(header, path, label):
    chosen = choose(header, ",".join("abcdefghij"[: header.count(",") + 1]))
    assert (chosen.path, chosen.labels, chosen.split) == (path, (label,), None)


def test_files_decide_between_two_names():
    assert choose("id,image,label", "17,a,x", "18,b,y", files=["a", "b"]).path == "image"
    assert choose("id,filename,label", "17,a.png,x", "18,b.png,y").path == "filename"
    assert choose("this,that", "x,a.png", "y,b.png").path == "that"


def test_of_columns_that_say_the_same_the_words_are_taken():
    lines = ("a.jpg,0,LARK,train,alauda", "b.jpg,1,WREN,valid,troglodytes")
    chosen = choose("filepaths,class id,labels,data set,scientific name", *lines)
    assert (chosen.labels, chosen.split) == (("labels",), "data set")


def test_columns_of_zeros_and_ones_are_classes():
    chosen = choose("image_id,healthy,rust,scab", "a,1,0,0", "b,0.0,1.0,1.0", "c,0,0,")
    assert chosen.labels == ("healthy", "rust", "scab") and chosen.has_classes
    assert choose("id,has_cactus", "a,1", "b,0").labels == ("has_cactus",)


def test_a_column_of_another_name_divides_only_if_it_holds_splits():
    assert choose("path,label,set", "a,x,train", "b,y,TEST").split == "set"
    assert choose("path,label,set", "a,x,train", "b,y,blue").split is None
    lists = [{"path": "a", "label": "x", "set": ["train"]}]  # of JSON
    found = choose_columns("t", ["path", "label", "set"], lists, TableOptions(), lambda name: True)
    assert found.split is None


@pytest.mark.parametrize(
    ("header", "line", "sentence"),
    [
        ("id,image,label", "a,b,x", "'id', 'image' may each be the column of the images.*path_col"),
        ("path,colour,shape", "a,red,disc", "'colour', 'shape' may each .* labels.*label_column"),
        ("path,class,species", "a,x,y", None),
        ("path,healthy,rust", "a,0,0.5", "'healthy', 'rust' may each be the column of the labels"),
        ("path", "a", "no column has labels"),
        ("this,that", "a,b", "no column has the names of images"),
    ],
)
def test_what_is_not_clear_is_asked(header, line, sentence):
    if sentence is None:  # two columns that differ in what they tell apart
        with pytest.raises(UserError, match="'class', 'species' may each"):
            choose(header, "a,x,y", "b,x,z")
    else:
        with pytest.raises(UserError, match=sentence):
            choose(header, line)


def test_the_user_decides():
    options = TableOptions(path_column="that", label_column="Red, blue")
    chosen = choose("this,that,red,blue,kind", "a,b,1,0,x", options=options)
    assert (chosen.path, chosen.labels) == ("that", ("red", "blue"))
    with pytest.raises(UserError, match=r"no column 'knd' \(data.label_column\).*'kind'"):
        choose("path,kind", "a,b", options=TableOptions(label_column="knd"))
