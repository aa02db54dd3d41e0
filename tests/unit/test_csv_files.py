"""Tables with names of any kind are written and come back."""

from vit_jax.csv_files import read_csv, write_csv


def test_names_that_are_no_text_come_back(tmp_path):
    name = 'a "b",\n\udcffä猫'  # a quote, a comma, a new line, a byte that is no text
    write_csv(tmp_path / "table.csv", ("name", "share"), [(name, 0.5), ("c", None)])
    assert read_csv(tmp_path / "table.csv") == [
        {"name": name, "share": "0.5"},
        {"name": "c", "share": ""},
    ]
