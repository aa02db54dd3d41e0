"""Towers that are trained already: what they ask of the tokenizer and of the configuration."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from PIL import Image

from tests.folders import ROOT
from tests.support.stored import stored, write_files
from vit_jax.config import load_config
from vit_jax.data.text import train_tokenizer
from vit_jax.errors import UserError
from vit_jax.runs import RunDir
from vit_jax.runs.tokenizer import keep_tokenizer
from vit_jax.tasks.contrastive.start import check_start
from vit_jax.training.setup.build import build
from vit_jax.weights.of_tasks.two_towers import read_two_towers

TRAINED = {"vocabulary": 100, "length": 16, "text_pool": "end", "text_width": 8, "kind": "softmax"}


def tokenizer(vocabulary=100, length=16):
    return SimpleNamespace(vocabulary=vocabulary, length=length, facts=SimpleNamespace(end=99))


def test_a_new_text_tower_has_the_sizes_of_the_tokenizer():
    assert check_start({}, {"text_width": 4}, tokenizer(7, 5), "") == {"vocabulary": 7, "length": 5}


def test_a_trained_one_keeps_its_rows_and_may_read_shorter_texts():
    assert check_start(TRAINED, {"text_width": 8, "kind": "sigmoid"}, tokenizer(98, 12), "x") == {
        "vocabulary": 100,
        "length": 12,
    }


@pytest.mark.parametrize(
    ("changes", "fields", "given", "said"),
    [
        ({}, {}, (330,), "'clip': its text tower has a vocabulary of 100, but the tokenizer of the "
         "data has 330, so it does not belong .*data.tokenizer, or use .*start_text=false"),
        ({}, {"text_width": 4}, (), "objective.text_width = 4, but the towers of .*'clip' have 8"),
        ({}, {}, (100, 17), "takes texts of 16 tokens, but those of the data have 17; use .*=16"),
        ({"text_end_token": 7}, {}, (), "looks for the end of a text at the id 7, but .* with 99"),
        ({"text_pool": "last"}, {}, (100, 15), "takes texts of 16 tokens, but .* have 15"),
    ],
)  # fmt: skip
def test_what_does_not_belong_to_the_weights_is_one_sentence(changes, fields, given, said):
    with pytest.raises(UserError, match=said):
        check_start({**TRAINED, **changes}, fields, tokenizer(*given), "clip")


def test_a_run_knows_its_tokenizer(tmp_path):
    """A smaller vocabulary could be that of a table with spare rows, as some files have."""
    run = RunDir(tmp_path)
    run.model_file.touch()
    own, other = (train_tokenizer([text], length=16, units="words") for text in ("a b c", "a b"))
    keep_tokenizer(run, own)
    trained = {**TRAINED, "vocabulary": own.vocabulary}
    assert check_start(trained, {}, own.with_length(9), str(tmp_path))["length"] == 9
    with pytest.raises(UserError, match="is not that of its text tower: a vocabulary of 7, and 6;"):
        check_start(trained, {}, other, str(tmp_path))


def test_a_file_with_both_towers_starts_everything(tmp_path):
    golden = stored("two_towers/hf_clip")
    write_files(tmp_path / "clip", golden.tensors, golden.config)
    words = [f"word{number}" for number in range(20)]
    own = train_tokenizer(words, vocabulary=24, length=8, units="words")
    assert (own.vocabulary, own.facts.end) == (24, 23)
    own.save(tmp_path / "own")
    for number in range(4):
        Image.new("L", (8, 8), 60 * number).save(tmp_path / f"{number}.png")
    rows = ["path,caption", *(f"{number}.png,{words[number]} word9" for number in range(4))]
    (tmp_path / "captions.csv").write_text("\n".join(rows))
    made = build(
        load_config(
            str(ROOT / "configs/finetune.py:vit"),
            [
                ("task", "contrastive"),
                ("dataset", f"csv:{tmp_path}/captions.csv"),
                ("data.tokenizer", str(tmp_path / "own")),
                ("data.text_length", "6"),
                ("init_from", str(tmp_path / "clip")),
                *(("batch_size", "2"), ("duration", "2 steps"), ("schedule.warmup", "0")),
            ],
        )
    )
    expected = read_two_towers(tmp_path / "clip")
    given = dict(expected.variables["params"])
    text = given["text"]
    given["text"] = {**text, "pos_embed": text["pos_embed"][:, :6]}
    params = {name: None for name in given}
    trained = {"params": made.start.params, "modules": made.start.modules}
    begun = made.task.start_from({"params": params}, trained)["params"]
    jax.tree.map(np.testing.assert_array_equal, begun, given)
    assert str(made.start) == "resampled, cut, summed or repeated: text/pos_embed"
    assert made.record.options["length"] == made.task.length == 6
    assert made.record.options["text_activation"] == "quick_gelu"
