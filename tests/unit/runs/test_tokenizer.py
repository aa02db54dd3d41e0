"""The tokenizer of a run: kept once, and compared after that."""

import pytest

from vit_jax.data.text import train_tokenizer
from vit_jax.errors import UserError
from vit_jax.runs import RunDir
from vit_jax.runs.tokenizer import keep_tokenizer, read_tokenizer

CAPTIONS = ["a small red bird", "a large green bird"]


def trained(captions=CAPTIONS, **options):
    return train_tokenizer(captions, **{"length": 8, "units": "words", **options})


def test_the_tokenizer_of_a_run_is_kept_and_read(tmp_path):
    run = RunDir(tmp_path)
    assert read_tokenizer(run) is None
    keep_tokenizer(run, trained())
    keep_tokenizer(run, trained())
    assert sorted(path.name for path in run.tokenizer.iterdir()) == ["text.json", "tokenizer.json"]
    expected = trained().encode(CAPTIONS).tolist()
    assert read_tokenizer(run).encode(CAPTIONS).tolist() == expected
    assert run.leftover_files() == ["tokenizer"]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (trained([*CAPTIONS, "a blue one"]), "a vocabulary of 10, and 12"),
        (trained(length=9), "length = 8, and 9"),
        (trained([text.replace("red", "new") for text in CAPTIONS]), "equally many tokens, but"),
    ],
)
def test_another_tokenizer_is_refused(tmp_path, other, said):
    run = RunDir(tmp_path)
    keep_tokenizer(run, trained())
    with pytest.raises(UserError, match=f"is not that of the data: {said}.*another --workdir"):
        keep_tokenizer(run, other)


def test_a_tokenizer_that_was_half_written_is_written_again(tmp_path):
    run = RunDir(tmp_path)
    run.tokenizer.mkdir()
    (run.tokenizer / "tokenizer.json").write_text("{")
    keep_tokenizer(run, trained())
    assert read_tokenizer(run).vocabulary == trained().vocabulary
