import json
import math

import numpy as np
import pytest

from vit_jax.config import (
    default_config,
    differences,
    flatten,
    literal,
    load_config,
    restore_config,
)
from vit_jax.config.augment_presets import PRESET_KEYS, PRESETS
from vit_jax.config.schema import FREE_KEYS, KEYS
from vit_jax.config.values import (
    Choice,
    ClassWeights,
    Evaluations,
    Flag,
    Fold,
    Integer,
    Number,
    Numbers,
    Rates,
    Sizes,
    Span,
)
from vit_jax.errors import UserError

CONFIG = """
from vit_jax.config import default_config

def get_config(argument=None):
    config = default_config()
    config.batch_size = 7 if argument is None else int(argument)
    config.model.name = "ViT-S/16"
    config.model.depth = 3
    return config
"""


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "config.py"
    path.write_text(CONFIG)
    return str(path)


def another_value(key):
    """A valid text that differs from the default."""
    allowed = key.allowed
    if isinstance(allowed, Integer):
        other = (key.default or 1) + 2
        return str(other), other
    if isinstance(allowed, Number):
        value = 0.5 if key.default != 0.5 else 0.25
        return str(value), value
    if isinstance(allowed, Numbers):
        return "(0.1, 0.2, 0.3)", (0.1, 0.2, 0.3)
    if isinstance(allowed, Sizes):
        return "(4, 8)", (4, 8)
    if isinstance(allowed, Flag):
        return ("false", False) if key.default is None else ("true", True)
    if isinstance(allowed, Choice):
        return allowed.options[-1], allowed.options[-1]
    if isinstance(allowed, Span):
        return "7 epochs", "7 epochs"
    if isinstance(allowed, Rates):
        return '(("head/.*", 10), ("pos_embed", 0))', (("head/.*", 10.0), ("pos_embed", 0.0))
    if isinstance(allowed, ClassWeights):
        return "cat=2", (("cat", 2.0),)
    if isinstance(allowed, Fold):
        return "1/5", "1/5"
    if isinstance(allowed, Evaluations):
        return "3 evaluations", "3 evaluations"
    return "other", "other"


@pytest.mark.parametrize("path", KEYS)
def test_every_key_can_be_overridden_and_the_resolved_configuration_shows_it(path, config_file):
    text, value = another_value(KEYS[path])
    resolved = dict(flatten(load_config(config_file, [(path, text)])))
    assert resolved[path] == value
    unchanged = dict(flatten(load_config(config_file)))
    changed = {k for k in resolved if resolved[k] != unchanged[k]}
    assert changed <= ({path} if path != "augment.preset" else {path, *PRESET_KEYS})


@pytest.mark.parametrize("path", KEYS)
def test_the_default_of_every_key_is_valid(path):
    key = KEYS[path]
    default = PRESETS["none"][path] if path in PRESET_KEYS else key.default
    assert (key.optional and default is None) or key.allowed.convert(default) == default


def test_the_keys_that_a_preset_decides_are_those_without_a_default():
    """But for what the weights in `init_from` decide, or another key."""
    of_weights = {"model.name", "data.mean", "data.std", "data.crop"}
    of_weights |= {"data.interpolation", "data.resize", "data.color_management", "data.channels"}
    of_weights |= {"data.max_tokens"}
    of_another_key = {"optimizer.weight_decay_end"}
    of_another_key |= {"objective.negative_gamma"}
    of_another_key |= {"objective.patch_sizes", "evaluate.patch_sizes"}
    optional = {path for path, key in KEYS.items() if key.optional}
    assert optional == set(PRESET_KEYS) | of_weights | of_another_key
    assert all(KEYS[path].default is None for path in optional)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_gives_every_key_a_valid_value(preset):
    for path, value in PRESETS[preset].items():
        assert KEYS[path].allowed.convert(value) == value


def test_a_key_that_somebody_sets_beats_its_preset(tmp_path):
    text = "from vit_jax.config import default_config\n\ndef get_config():\n"
    text += "    config = default_config()\n    config.augment.preset = 'deit'\n"
    text += "    config.augment.erase = 0.0\n    return config\n"
    (tmp_path / "config.py").write_text(text)
    config = load_config(str(tmp_path / "config.py"), [("augment.mixup", "0.3")])
    # Touvron et al. (2021), table 9: repeats 3, erasing 0.25, MixUp 0.8, CutMix 1.
    assert (config.augment.repeats, config.augment.cutmix) == (3, 1.0)
    assert (config.augment.erase, config.augment.mixup) == (0.0, 0.3)
    # What a config's preset decides, another preset on the command line decides anew.
    other = load_config(str(tmp_path / "config.py"), [("augment.preset", "none")])
    assert (other.augment.repeats, other.augment.cutmix) == (1, 0.0)


def test_a_record_without_the_keys_of_a_preset_has_them_off():
    record = default_config().to_dict()
    for path in PRESET_KEYS:
        del record["augment"][path.removeprefix("augment.")]
    assert dict(flatten(restore_config(record)))["augment.flip"] == 0.0


def test_command_line_beats_config_beats_default(config_file):
    assert default_config().batch_size == 64
    assert load_config(config_file).batch_size == 7
    assert load_config(config_file, [("batch_size", "9")]).batch_size == 9


def test_a_config_takes_an_argument_after_a_colon(config_file):
    assert load_config(f"{config_file}:11").batch_size == 11


def test_model_fields_are_free_and_read_as_literals(config_file):
    config = load_config(config_file, [("model.pool", "mean"), ("model.image_size", "(16, 32)")])
    assert (config.model.pool, config.model.image_size, config.model.depth) == ("mean", (16, 32), 3)


def test_a_model_field_may_have_names_of_its_own(config_file):
    overrides = [("model.backbone_fields.width", "64"), ("model.backbone_fields.pool", "mean")]
    config = load_config(config_file, overrides)
    assert config.model.backbone_fields.to_dict() == {"width": 64, "pool": "mean"}
    at_once = load_config(config_file, {"model": {"backbone_fields": {"width": 64}}})
    assert at_once.model.backbone_fields.to_dict() == {"width": 64}
    record = json.loads(json.dumps(config.to_dict()))
    assert restore_config(record).model.backbone_fields.to_dict() == {"width": 64, "pool": "mean"}


@pytest.mark.parametrize(
    ("path", "text", "sentence"),
    [
        (
            "batch_size",
            "many",
            r"batch_size = 'many' is invalid; use a whole number of at least 1",
        ),
        ("batch_size", "0", "at least 1"),
        ("batch_size", "1.5", "whole number"),
        ("objective.label_smoothing", "1.5", "between 0 and 0.99"),
        ("optimizer.learning_rate", "nan", "a number of at least 0"),
        ("schedule.warmup", "soon", "90 epochs"),
        ("duration", "0 steps", "more than 0"),
        ("precision", "half", "one of float32, bfloat16"),
        ("data.test", "", "a text that is not empty"),
        ("seed", "18446744073709551616", "whole number"),
        ("duration", "1e400", "too long for a run"),
        ("learning_rate", "1", r"did you mean 'optimizer.learning_rate'\?"),
        ("optimizer.learnig_rate", "1", r"did you mean 'optimizer.learning_rate'"),
        ("optimizer", "1", "section: optimizer.name, optimizer.learning_rate"),
        ("zzz.qqq", "1", "vit_jax train --keys lists all keys"),
        ("optimizer.lr_multipliers", "head", "pairs of a regular expression"),
        ("optimizer.lr_multipliers", '(("head/.*", -1),)', "a factor of at least 0"),
        (
            "optimizer.lr_multipliers",
            '(("head/(", 1),)',
            r"'head/\(' is not a regular expression: missing \)",
        ),
    ],
)
def test_a_mistake_is_one_sentence_with_the_remedy(config_file, path, text, sentence):
    with pytest.raises(UserError, match=sentence):
        load_config(config_file, [(path, text)])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def get_config(:", "line 1: SyntaxError"),
        ("import vit_jxa", "line 1: ModuleNotFoundError: No module named"),
        ("x = 1", r"no function get_config\(\)"),
        ("def get_config():\n    return 3", "returned int"),
        (CONFIG.replace("batch_size", "batchsize"), "line 6: AttributeError.*batchsize"),
        (CONFIG.replace('"ViT-S/16"', "3"), "model.name = 3 is invalid"),
    ],
)
def test_a_broken_config_is_named_with_its_line(tmp_path, text, sentence):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(UserError, match=sentence):
        load_config(str(path))


def test_a_missing_config_names_the_ones_there_are(config_file, tmp_path):
    with pytest.raises(UserError, match=r"did you mean .*config.py"):
        load_config(str(tmp_path / "recpie.py"))


def test_differences_leave_out_what_may_change(config_file):
    old = load_config(config_file).to_dict()
    changes = [("seed", "5"), ("log.every", "3"), ("mesh.data", "1"), ("resume", "must")]
    new = load_config(config_file, changes).to_dict()
    assert differences(old, new) == ["seed: 0 -> 5"]
    assert {"log", "mesh", "checkpoint", "data.workers"} <= set(FREE_KEYS)


def test_a_configuration_survives_json(config_file):
    import json

    config = load_config(
        config_file, [("data.mean", "(0.1, 0.2, 0.3)"), ("model.image_size", "(8, 8)")]
    )
    restored = restore_config(json.loads(json.dumps(config.to_dict())))
    assert differences(config.to_dict(), restored.to_dict()) == []
    assert restored.data.mean == (0.1, 0.2, 0.3)


def test_rates_may_be_a_single_pair_and_survive_json(config_file):
    import json

    config = load_config(config_file, [("optimizer.lr_multipliers", '("head/.*", 10)')])
    assert config.optimizer.lr_multipliers == (("head/.*", 10.0),)
    restored = restore_config(json.loads(json.dumps(config.to_dict())))
    assert restored.optimizer.lr_multipliers == (("head/.*", 10.0),)
    assert differences(config.to_dict(), restored.to_dict()) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("10_000", 10_000),
        ("None", None),
        ("true", True),
        ("cls", "cls"),
        ("(1, 2)", (1, 2)),
    ],
)
def test_literals(text, value):
    assert literal(text) == value


def test_values_of_a_program_are_taken_as_they_are_and_texts_as_on_the_command_line(config_file):
    config = load_config(
        config_file,
        [
            ("optimizer.learning_rate", 1e-3),
            ("seed", np.int64(3)),
            ("data.color_management", np.bool_(True)),
            ("data.mean", [0.1, np.float32(0.5)]),
            ("duration", 300),
            ("model.image_size", (16, 32)),
            ("optimizer.weight_decay", "0.25"),
        ],
    )
    assert (config.optimizer.learning_rate, config.optimizer.weight_decay) == (1e-3, 0.25)
    assert (config.seed, type(config.seed), config.data.color_management) == (3, int, True)
    assert (config.data.mean, config.duration) == ((0.1, 0.5), "300")
    assert config.model.image_size == (16, 32)


def test_overrides_may_be_a_dictionary_with_sections(config_file):
    config = load_config(config_file, {"optimizer": {"learning_rate": 0.5}, "seed": 4})
    assert (config.optimizer.learning_rate, config.seed, config.batch_size) == (0.5, 4, 7)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ([("seed", None)], "seed = None is invalid; use a whole number"),
        ([("seed", 16**5000)], "seed = a whole number of 20,001 bits is invalid"),
        ([("optimizer.learning_rate", 10**400)], "learning_rate = a whole number of .* is invalid"),
        ([("optimizer.learning_rate", "1e400")], "learning_rate = inf is invalid.*3.4e38"),
        ([("data.mean", -math.inf)], "data.mean = -inf is invalid"),
        ([("data.mean", ())], r"data.mean = \(\) is invalid"),
        ([("data.dir", "a\0b")], "without NUL"),
        ([("data.dir", "a" * 10_000)], "at most 4,096 characters"),
        ([("optimizer.lr_multipliers", "(('a{99999999999}', 1),)")], "not a regular expression"),
        ([("precision", ["float32"])], "precision = .'float32'. is invalid; use one of"),
        ([("data.workers", 10**9)], "at most 1,024"),
        ([("model.", 1)], "a model has no field ''"),
        ([("model.__class__", 1)], "a model has no field '__class__'"),
        ([("model.depth.x", 1)], "no key 'model.depth.x'"),
        ([("model", {"depth": {"x": 1}})], "no key 'model.depth.x'"),
        ([("model.a.b.c.d.e", 1)], "no key 'model.a.b.c.d.e'"),
        ([("model.a.__b__", 1)], "a model has no field '__b__'"),
        ([(3, 4)], "use a string like"),
        ([("seed", 1, 2)], "use a pair of a key and its value"),
        (["seed=1"], "use a pair of a key and its value"),
    ],
)
def test_a_mistake_in_a_program_is_one_short_sentence_too(config_file, overrides, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        load_config(config_file, overrides)
    assert len(str(caught.value)) < 600 and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["(" * 5000, "-" * 5000 + "1", "{[]: 1}", "\0", "9" * 5000, "1" * 20000]
)
def test_a_text_that_python_cannot_read_stays_a_text(text):
    assert literal(text) == text


def test_a_key_that_a_config_leaves_open_is_asked_for(tmp_path):
    text = (
        "from vit_jax.config import default_config\nfrom vit_jax.config.schema import REQUIRED\n\n"
    )
    text += "def get_config():\n    config = default_config()\n    config.init_from = REQUIRED\n"
    path = tmp_path / "open.py"
    path.write_text(text + "    return config\n")
    with pytest.raises(
        UserError, match=r"open.py requires a value for init_from; use --config.init_fr"
    ):
        load_config(path)
    assert load_config(path, [("init_from", "runs/mine")]).init_from == "runs/mine"


def test_a_file_may_ask_whether_there_are_weights_to_begin_with():
    scratch = load_config("configs/images.py")
    tuned = load_config("configs/images.py", [("init_from", "runs/other"), ("batch_size", "8")])
    assert scratch.model.name == "ViTC-1GF" and tuned.model.name is None
    assert tuned.optimizer.learning_rate < scratch.optimizer.learning_rate
    assert (tuned.init_from, tuned.batch_size) == ("runs/other", 8)


@pytest.mark.parametrize(("before", "after"), [(4, 2.5), ("mean", 3), ((1, 2), 5), (1.5, 10**400)])
def test_a_field_of_a_model_may_be_given_a_value_of_another_type(config_file, before, after):
    config = load_config(config_file, [("model.some", before), ("model.some", after)])
    assert config.model.some == after


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("none", "none"),
        ("balanced", "balanced"),
        ("cat=2,red fox=0.5", (("cat", 2.0), ("red fox", 0.5))),
        ("(('a, b', 2), ('c', 0))", (("a, b", 2.0), ("c", 0.0))),
        ("{'a=b': 2}", (("a=b", 2.0),)),
    ],
)
def test_class_weights_are_named_in_text_or_python(text, value):
    config = load_config("digits", {"objective.class_weights": text})
    assert config.objective.class_weights == value
    again = restore_config(json.loads(config.to_json()))
    assert again.objective.class_weights == value


@pytest.mark.parametrize("text", ["cat", "cat=", "cat=two", "cat=-1", "=2", "cat=1,cat=2", "()"])
def test_other_class_weights_are_refused(text):
    with pytest.raises(UserError, match="objective.class_weights"):
        load_config("digits", {"objective.class_weights": text})


def test_evaluations_without_a_better_one_are_counted():
    for text, value in [("5", "5 evaluations"), ("1 evaluation", "1 evaluation"), ("", "")]:
        assert load_config("digits", {"stop_after": text}).stop_after == value
    for text in ("0", "5 epochs", "-1", "five"):
        with pytest.raises(UserError, match="stop_after"):
            load_config("digits", {"stop_after": text})
