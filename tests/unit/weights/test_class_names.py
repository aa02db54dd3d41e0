"""Names for outputs: the wrong number of them is refused, and nothing shifts unless it is said."""

import pytest

from vit_jax.errors import UserError
from vit_jax.weights.class_names import names_of_outputs, read_class_names


def numbered(count):
    return tuple(f"n{i:08}" for i in range(count))


def test_as_many_names_as_outputs_are_taken_as_they_are():
    assert names_of_outputs(numbered(21843), 21843) == numbered(21843)


@pytest.mark.parametrize(("names", "outputs"), [(21841, 21843), (21843, 21841), (999, 1001)])
def test_another_number_is_refused_with_both_numbers(names, outputs):
    with pytest.raises(UserError, match=f"{outputs} outputs.*{names} class names") as caught:
        names_of_outputs(numbered(names), outputs)
    assert "background" not in str(caught.value)


@pytest.mark.parametrize(("names", "outputs"), [(1000, 1001), (21841, 21842)])
def test_one_output_more_is_a_background_only_where_it_is_said(names, outputs):
    with pytest.raises(UserError, match=f"{outputs} outputs.*{names} class.*--background-first"):
        names_of_outputs(numbered(names), outputs)
    found = names_of_outputs(numbered(names), outputs, background_first=True)
    assert len(found) == outputs
    assert found[0] == "background"
    assert found[1:] == numbered(names)  # output i + 1 is class i


def test_a_background_that_is_said_and_not_there_is_refused():
    with pytest.raises(UserError, match="1000 outputs.*1000 class names and one for background"):
        names_of_outputs(numbered(1000), 1000, background_first=True)


def test_names_are_the_lines_of_a_file(tmp_path):
    path = tmp_path / "names.txt"
    path.write_bytes("tench, Tinca tinca\r\nzebra finch\nBläuling\n".encode())
    assert read_class_names(path) == ("tench, Tinca tinca", "zebra finch", "Bläuling")


def test_an_empty_line_is_refused_by_its_number(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("tench\n\ngoldfish\n")
    with pytest.raises(UserError, match="line 2 of .*names.txt is empty"):
        read_class_names(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UserError, match="cannot read the class names in .*nowhere.txt"):
        read_class_names(tmp_path / "nowhere.txt")
    (tmp_path / "latin1.txt").write_bytes("Bläuling\n".encode("latin-1"))
    with pytest.raises(UserError, match="cannot read the class names in .*latin1.txt"):
        read_class_names(tmp_path / "latin1.txt")
