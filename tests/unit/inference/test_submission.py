"""Sample files of competitions, and what becomes of their rows."""

import unicodedata

import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.inference.submission import Submission

DOGS = ("affenpinscher", "beagle", "chow, red")
SURE_BEAGLE = np.array([0.125, 0.625, 0.25], np.float32)


@pytest.fixture
def sample(tmp_path):
    """Makes a submission of the text of a sample file."""

    def make(text, class_names=DOGS, **options):
        (tmp_path / "sample.csv").write_text(text, encoding="utf-8")
        return Submission(str(tmp_path / "sample.csv"), class_names, **options)

    return make


def test_columns_keep_the_order_of_the_sample(sample):
    form = sample('id,"chow, red",affenpinscher,beagle\nx1,0.3,0.3,0.3\nx2,0.3,0.3,0.3\n')
    assert form.header == ["id", "chow, red", "affenpinscher", "beagle"]
    assert form.fill(1, SURE_BEAGLE) == ["x2", "0.25", "0.125", "0.625"]
    assert form.fill(0, None) == ["x1", "0.3", "0.3", "0.3"]  # could not be read


@pytest.mark.parametrize(
    ("text", "class_names", "expected"),
    [
        ("id,label\na,beagle\n", DOGS, "beagle"),
        ("id,label\na,\n", DOGS, "beagle"),
        ("id,label\na,0\nb,2\n", DOGS, "1"),
        ("id,digit\na,0\n", ("7", "0", "3"), "0"),  # numbers that are names are names
    ],
)
def test_one_column_has_the_name_or_the_number_of_the_class(sample, text, class_names, expected):
    assert sample(text, class_names).fill(0, SURE_BEAGLE)[1] == expected


def test_of_two_classes_one_column_may_be_a_probability(sample):
    two = np.array([0.25, 0.75], np.float32)
    assert sample("id,dog\na,0.5\n", ("cat", "dog")).fill(0, two)[1] == "0.75"
    assert sample("id,cat\na,0.5\n", ("cat", "dog")).fill(0, two)[1] == "0.25"
    assert sample("id,label\na,0.5\n", ("cat", "dog")).fill(0, two)[1] == "0.75"


def test_columns_may_be_numbers_of_classes(sample):
    assert sample("id,2,0,1\na,0,0,0\n").fill(0, SURE_BEAGLE)[1:] == ["0.25", "0.125", "0.625"]


def test_names_match_in_any_unicode_form_and_case(sample):
    composed, apart = (unicodedata.normalize(form, "Épagneul") for form in ("NFC", "NFD"))
    form = sample(f"id,{apart},beagle\na,0,0\n", (composed, "Beagle"))
    assert form.fill(0, np.array([0.5, 0.25], np.float32)) == ["a", "0.5", "0.25"]
    # But not where case is what tells two classes apart.
    with pytest.raises(UserError, match="not classes of the model: 'BEAGLE'"):
        sample("id,BEAGLE,chow\na,0,0\n", ("Beagle", "beagle", "chow"))


def test_ids_match_files_with_and_without_suffix_and_folder(sample):
    form = sample("id,label\n1,beagle\nb/2.png,beagle\n./c\\3,beagle\n1,beagle\nx.y,beagle\n")
    files = ["in/a/1.jpg", "in/a/b/2.png", "in/c/3.PNG", "in/spare.png", "in/x.y.png"]
    expected = ["in/a/1.jpg", "in/a/b/2.png", "in/c/3.PNG", "in/a/1.jpg", "in/x.y.png"]
    assert form.match(files, ["in"]) == expected


def test_a_whole_path_comes_before_the_end_of_another(sample):
    form = sample("id,label\n1.png,beagle\n")
    assert form.match(["in/old/1.png", "in/1.png"], ["in"]) == ["in/1.png"]


def test_an_id_of_two_files_is_not_guessed(sample):
    with pytest.raises(UserError, match="'1' may be 'in/a/1.png', 'in/b/1.png'"):
        sample("id,label\n1,beagle\n").match(["in/a/1.png", "in/b/1.png"], ["in"])


def test_rows_without_an_image_are_named(sample):
    form = sample("id,label\n1,beagle\n2,beagle\n3,beagle\n")
    with pytest.raises(UserError, match=r"2 of 3 rows have no image .*: '2', '3'"):
        form.match(["1.png"], [])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "must have a line of column names"),
        ("id,label\n", "must have a line of column names"),
        ("id;label\na;beagle\n", "with commas between"),
        ("id,label\na,beagle,x\n", "row 2: 3 fields instead of 2"),
        ("id,beagle,poodle\na,0,0\n", "not classes of the model: 'poodle'; its classes are"),
        ("id,beagle,Beagle\na,0,0\n", "two columns for one class"),
        ("id,label\na,poodle\n", "'label' has values that are not classes of the model: 'poodle'"),
        (
            "id,label\na,3\n",
            "has values that are not classes of the model: '3'.*their numbers from 0",
        ),
        ("id,label\na,0.33\n", "has values that are not classes"),
    ],
)
def test_a_sample_that_does_not_fit_is_one_sentence(sample, text, sentence):
    with pytest.raises(UserError, match=sentence):
        sample(text)


def test_several_classes_of_an_image_need_a_column_each(sample):
    with pytest.raises(UserError, match="a sample file with a column for each class"):
        sample("id,label\na,beagle\n", activation="sigmoid")


def test_a_sample_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="none.csv cannot be read: No such file"):
        Submission(str(tmp_path / "none.csv"), DOGS)
