"""Files with an image and a text tower: the answers of their origin, and writing them again."""

import dataclasses
import functools
import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.folders import GOLDENS
from tests.support.stored import stored, write_files
from vit_jax.errors import UserError
from vit_jax.models.stacking import read_blocks
from vit_jax.tasks.contrastive.losses import normalized
from vit_jax.tasks.contrastive.task import Contrastive
from vit_jax.weights.convert import read_pretrained
from vit_jax.weights.formats import Hints
from vit_jax.weights.io.files import read_config, read_tensors
from vit_jax.weights.of_tasks.towers_writing import write_two_towers
from vit_jax.weights.of_tasks.two_towers import read_two_towers

FOLDER = GOLDENS / "weights" / "two_towers"
TRANSFORMERS = ("hf_clip", "hf_clip_old", "hf_siglip", "hf_siglip2")
OPENAI = ("openai", "openclip", "openclip_siglip", "openclip_pe", "pe")
NAMES = (*TRANSFORMERS, *OPENAI, "big_vision")


def case(name):
    return stored(f"two_towers/{name}")


def settings(name):
    """The `open_clip_config.json`, if the library writes one."""
    with np.load(FOLDER / f"{name}.npz") as file:
        return json.loads(str(file["openclip"])) if "openclip" in file else None


def write(folder, name, tensors=None, config=None, **entries):
    """A folder as the origin publishes it; entries: of the `open_clip_config.json`."""
    golden = case(name)
    tensors = golden.tensors if tensors is None else tensors
    if name == "big_vision":
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "weights.npz", **tensors)
        return folder
    write_files(folder, tensors, config or golden.config)
    if (content := settings(name)) is not None:
        content["model_cfg"] |= entries
        (folder / "open_clip_config.json").write_text(json.dumps(content), "utf-8")
    return folder


@functools.cache
def found(name):
    with tempfile.TemporaryDirectory() as folder:
        return read_two_towers(write(Path(folder), name), case(name).hints)


def answers(read, images, ids):
    """Blocks and vectors of both towers, and logits."""
    task, params = Contrastive(read.model, **read.fields), read.variables["params"]

    @jax.jit
    def forward(params):
        image, kept = task.model.apply(
            {"params": params["image"]}, images, method="features", mutable=["intermediates"]
        )
        vectors = image.pooled
        if task.image_projection:
            vectors = task.projection.apply({"params": params["projection"]}, vectors)
        text, texts = task.text.apply({"params": params["text"]}, ids, mutable=["intermediates"])
        cosines = normalized(vectors) @ normalized(text).T
        logits = jnp.exp(params["logits"]["scale"]) * cosines + params["logits"].get("bias", 0)
        return vectors, text, logits, kept["intermediates"], texts["intermediates"]

    vectors, text, logits, kept, texts = forward(params)
    made = {"image": vectors, "text": text, "logits": logits}
    for kind, blocks in (("image", kept), ("text", texts)):
        made |= {f"{kind}_block_{i}": x for i, x in enumerate(read_blocks(blocks, "out"))}
    return made


FAST = ("hf_clip", "hf_siglip2", "openclip_siglip", "openclip_pe")


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x in FAST else pytest.mark.slow) for x in NAMES]
)
def test_every_block_and_the_logits_are_those_of_the_origin(name):
    expected = case(name).answers
    made = answers(found(name), expected["images"], expected["ids"].astype(np.int32))
    assert made.keys() == expected.keys() - {"images", "ids"}
    for key, array in made.items():
        largest = max(1.0, np.abs(expected[key]).max())
        np.testing.assert_allclose(array, expected[key], atol=2e-5 * largest, err_msg=key)


def test_the_task_gives_the_same_vectors():
    read, expected = found("hf_clip"), case("hf_clip").answers
    task = Contrastive(read.model, **read.fields)
    vectors = jax.jit(task.text_vectors)(read.variables, expected["ids"].astype(np.int32))
    lengths = np.linalg.norm(expected["text"], axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, expected["text"] / lengths, atol=2e-5)
    vectors = jax.jit(task.image_vectors)(read.variables, expected["images"])[0]
    lengths = np.linalg.norm(expected["image"], axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, expected["image"] / lengths, atol=2e-5)


# ----------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_files_of_transformers_go_back_bit_for_bit(name, tmp_path):
    golden = case(name)
    write_two_towers(tmp_path, "huggingface", found(name))
    same_tensors(read_tensors(tmp_path), golden.tensors)
    config = read_config(tmp_path)
    for key in ("model_type", "architectures", "projection_dim"):
        assert config.get(key) == golden.config.get(key), key
    for section in ("text_config", "vision_config"):
        kept = dict(golden.config[section])
        assert {key: config[section].get(key) for key in kept} == kept
    again = read_two_towers(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, again.variables, found(name).variables)
    assert again.fields == found(name).fields


def same_tensors(written, expected):
    assert written.keys() == expected.keys()
    for key, array in expected.items():
        assert written[key].shape == array.shape, key
        np.testing.assert_array_equal(written[key], array, err_msg=key)


@pytest.mark.parametrize("name", ["openai", "openclip", "openclip_siglip", "openclip_pe"])
def test_files_of_open_clip_and_openai_go_back_bit_for_bit(name, tmp_path):
    """With the configuration that was beside them, to the letter."""
    write_two_towers(tmp_path, "openclip", found(name))
    same_tensors(read_tensors(tmp_path), case(name).tensors)
    content = settings(name)
    assert content is None or read_config(tmp_path, "open_clip_config.json") == content
    same_model(read_two_towers(tmp_path, case(name).hints), found(name))


@pytest.mark.parametrize("name", ["big_vision", "hf_siglip"])
@pytest.mark.parametrize("to", ["big_vision", "huggingface"])
def test_siglip_goes_from_and_to_big_vision_and_transformers(name, to, tmp_path):
    """Both golden files are of one model."""
    write_two_towers(tmp_path, to, found(name))
    expected = case("big_vision" if to == "big_vision" else "hf_siglip").tensors
    same_tensors(read_tensors(tmp_path), expected)
    assert read_two_towers(tmp_path).fields == found(name).fields


def test_the_perception_encoder_goes_back_to_its_authors_bit_for_bit(tmp_path):
    write_two_towers(tmp_path, "pe", found("pe"))
    same_tensors(read_tensors(tmp_path / "model.pt"), case("pe").tensors)
    same_model(read_two_towers(tmp_path, case("pe").hints), found("pe"))


def test_the_perception_encoder_goes_from_open_clip_to_its_authors(tmp_path):
    read = found("openclip_pe")
    record = read.record.changed(
        {**read.record.fields, "rotary_grid": 4}
    )  # of a model of this size
    write_two_towers(tmp_path, "pe", dataclasses.replace(read, record=record))
    again = read_two_towers(tmp_path, case("pe").hints)
    jax.tree.map(np.testing.assert_array_equal, again.variables, read.variables)
    assert again.fields == read.fields


def test_texts_pooled_by_attention_go_back_to_big_vision(tmp_path):
    """As the image tower's pooling, of the sizes of the text tower."""
    tensors, sizes = case("big_vision").tensors, {16: 24, 40: 36, 8: 12}
    draw = np.random.default_rng(0).standard_normal
    for name, array in list(tensors.items()):
        if "img/MAPHead_0" in name:
            shape = [sizes.get(side, side) for side in array.shape]
            tensors |= {name.replace("img/", "txt/"): draw(shape, np.float32)}
    read = read_two_towers(write(tmp_path / "theirs", "big_vision", tensors))
    assert read.fields["text_pool"] == "map"
    write_two_towers(tmp_path / "ours", "big_vision", read)
    same_tensors(read_tensors(tmp_path / "ours"), tensors)


def test_a_clip_of_openai_s_sizes_is_written_for_openai(tmp_path):
    """The widths of heads and MLPs, which no tensor and no configuration tells, are its own."""
    fields = {"width": 64, "depth": 1, "heads": 1, "image_size": 16, "patch_size": 8}
    fields |= found("openai").record.fields | fields | {"mlp_width": 256}
    options = {**found("openai").fields, "embed_width": 16, "vocabulary": 30, "length": 8}
    options |= {"text_width": 64, "text_depth": 1, "text_heads": 1, "text_mlp_width": 256}
    record = found("openai").record.changed(fields)
    task = Contrastive(record.create_model(), **options)
    batch = {"image": np.zeros((2, 16, 16, 3), np.float32), "text": np.zeros((2, 8), np.int32)}
    shapes = jax.eval_shape(task.init, jax.random.key(0), batch)["params"]
    draw = np.random.default_rng(0).standard_normal
    params = jax.tree.map(lambda leaf: draw(leaf.shape, np.float32), dict(shapes))
    read = dataclasses.replace(
        found("openai"), record=record, variables={"params": params}, fields=options
    )
    write_two_towers(tmp_path, "openai", read)
    names = {key for key in case("openai").tensors if "resblocks.1." not in key}
    assert read_tensors(tmp_path / "model.pt").keys() == names - {"attn_mask"}
    again = read_two_towers(tmp_path, Hints("clip", 1))
    jax.tree.map(np.testing.assert_array_equal, again.variables, {"params": params})


def same_model(one, other):
    jax.tree.map(np.testing.assert_array_equal, one.variables, other.variables)
    assert one.fields == other.fields
    assert one.record.fields == other.record.fields
    assert one.record.preprocessing == other.record.preprocessing


def test_a_clip_of_transformers_is_written_for_open_clip(tmp_path):
    write_two_towers(tmp_path, "openclip", found("hf_clip_old"))
    again = read_two_towers(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, again.variables, found("hf_clip_old").variables)
    assert again.fields == found("hf_clip_old").fields
    fields = ("activation", "norm_eps", "heads", "image_size")
    one, other = (x.record.fields for x in (again, found("hf_clip_old")))
    assert [one[key] for key in fields] == [other[key] for key in fields]


def test_a_configuration_of_another_model_is_not_written_again(tmp_path):
    """The user's hint has contradicted the GELU in it."""
    hints = dataclasses.replace(case("openclip").hints, origin="clip")
    read = read_two_towers(write(tmp_path / "theirs", "openclip"), hints)
    write_two_towers(tmp_path / "ours", "openclip", read)
    assert read_config(tmp_path / "ours", "open_clip_config.json")["model_cfg"]["quick_gelu"]
    again = read_two_towers(tmp_path / "ours")
    assert again.fields == read.fields and again.model.activation == "quick_gelu"


def test_a_hidden_width_by_its_ratio_is_written_for_open_clip(tmp_path):
    read = found("openclip")
    by_ratio = {"mlp_width": None, "mlp_ratio": read.model.mlp_width / read.model.width}
    record = read.record.changed({**read.record.fields, **by_ratio})
    write_two_towers(tmp_path, "openclip", dataclasses.replace(read, record=record))
    assert read_two_towers(tmp_path).record.fields == read.record.fields


def changed(name, **options):
    read = found(name)
    return dataclasses.replace(read, fields={**read.fields, **options})


@pytest.mark.parametrize(
    ("to", "name", "options", "message"),
    [
        ("timm", "hf_clip", {}, "--to=timm has no model of images and texts; use one of hugging"),
        ("huggingface", "hf_clip", {"text_pool": "last"}, "has no text_pool = 'last', only 'end'"),
        ("openclip", "hf_siglip", {}, "has published sizes only, and none with width = 16, depth"),
        ("openclip", "hf_siglip2", {}, "--to=openclip does not support images of NaFlexViT"),
        ("openclip", "hf_clip", {"text_pool": "map"}, "no text_pool = 'map', only 'end' and"),
        (
            "openclip",
            "hf_clip_old",
            {"text_activation": "relu"},
            "open_clip has no activation = 'relu'",
        ),
        ("openclip", "hf_clip", {"text_activation": "gelu"}, "has one activation for both towers"),
        ("openclip", "hf_clip", {"image_projection": False}, "no image_projection = False"),
        ("openai", "openclip", {}, "CLIP does not support activation = 'gelu', only 'quick_gelu'"),
        ("openai", "hf_siglip", {}, "OpenAI's CLIP does not support patch_bias = True, only False"),
        ("openai", "openai", {}, "heads of 64, of which none makes a width of 16 for images"),
        ("openai", "hf_clip", {}, "OpenAI's CLIP has no text_end_token = 23, only None"),
        ("pe", "openai", {}, "the Perception Encoder does not support rotary = 'none', only 'pe'"),
        ("pe", "openclip_pe", {}, "on its own grid of 4, and the model on one of 14"),
        ("pe", "hf_siglip2", {}, "the Perception Encoder has no image tower such as NaFlexViT"),
        ("pe", "pe", {"kind": "sigmoid"}, "the Perception Encoder has no kind = 'sigmoid', only"),
        ("big_vision", "hf_clip", {}, "SigLIP does not support patch_bias = False, only True"),
        ("big_vision", "hf_siglip2", {}, "no image tower such as NaFlexViT, only a ViT"),
        ("big_vision", "openclip_siglip", {}, "does not support activation = 'gelu', only"),
        ("big_vision", "hf_siglip", {"text_pool": "end"}, "no text_pool = 'end', only 'last' and"),
    ],
)
def test_what_a_library_has_not_is_not_written(to, name, options, message, tmp_path):
    with pytest.raises(UserError, match=message):
        write_two_towers(tmp_path / "files", to, changed(name, **options))
    assert not (tmp_path / "files").exists()


# ----------------------------------------------------------------------------------------- reading


def test_the_record_is_that_of_a_run():
    read = found("openclip")
    assert (read.record.task, read.record.encoder) == ("contrastive", "image")
    assert read.record.options == read.fields
    assert read.fields == {
        "kind": "softmax",
        "vocabulary": 24,
        "length": 8,
        "embed_width": 20,
        "image_projection": True,
        "text_width": 24,
        "text_depth": 2,
        "text_heads": 2,
        "text_mlp_width": 36,
        "text_pool": "end",
        "text_activation": "gelu",
        "text_norm_eps": 1e-5,
        "text_end_token": 23,
    }
    preprocessing = read.record.preprocessing
    assert preprocessing.mean == (0.1, 0.2, 0.3) and preprocessing.resize == "squash"
    assert found("hf_clip_old").fields["text_end_token"] is None
    assert found("openclip_siglip").record.preprocessing.mean == (0.1, 0.2, 0.3)


@pytest.mark.parametrize("name", ["hf_clip", "openclip", "big_vision"])
def test_the_image_tower_alone_is_the_same(name, tmp_path):
    record, variables = read_pretrained(write(tmp_path, name), case(name).hints)
    assert record.fields == found(name).record.fields
    assert record.preprocessing == found(name).record.preprocessing
    expected = found(name).variables["params"]["image"]
    jax.tree.map(np.testing.assert_array_equal, variables["params"], expected)


def test_which_gelu_a_bare_file_is_for_is_asked_for(tmp_path):
    folder = write(tmp_path, "openai")
    with pytest.raises(UserError, match="--origin=clip or --origin=openclip"):
        read_two_towers(folder, Hints(heads=2, text_heads=2))
    for origin, expected in (("clip", "quick_gelu"), ("openclip", "gelu")):
        read = read_two_towers(folder, Hints(origin, 2, text_heads=2))
        assert read.model.activation == read.fields["text_activation"] == expected
    with pytest.raises(UserError, match="of the text tower, whose width is 24; use --text-heads"):
        read_two_towers(folder, Hints("clip", 2))


def test_a_tower_of_timm_needs_the_configuration_of_open_clip(tmp_path):
    folder = write(tmp_path, "openclip_pe")
    (folder / "open_clip_config.json").unlink()
    with pytest.raises(UserError, match="nothing tells the GELU of the text tower; put it there"):
        read_two_towers(folder, Hints(heads=2, text_heads=2))
    folder = write(tmp_path, "openclip_siglip")
    (folder / "open_clip_config.json").unlink()
    with pytest.raises(UserError, match="the tensors fit several origins"):
        read_two_towers(folder, Hints(heads=2, text_heads=2))
    for origin, activation in (("timm", "gelu"), ("siglip", "gelu_tanh")):
        read = read_two_towers(folder, Hints(origin, 2, text_heads=2))
        assert read.model.activation == read.fields["text_activation"] == activation


def test_a_program_of_torchscript_is_read_without_its_code():
    """With one block in each tower, in half precision."""
    read = read_two_towers(FOLDER / "openai.pt", case("openai").hints)
    assert read.fields == {**found("openai").fields, "text_depth": 1}
    params, expected = read.variables["params"], found("openai").variables["params"]
    for tower in ("image", "text"):
        one = {key: x for key, x in expected[tower].items() if key != "blocks_1"}
        jax.tree.map(np.testing.assert_array_equal, params[tower], one)
    jax.tree.map(np.testing.assert_array_equal, params["projection"], expected["projection"])
    assert params["logits"]["scale"] == 2.5


def old_big_vision():
    """Blocks stacked, positions in two tables that are added, and no prefix."""
    tensors = {key.removeprefix("params/"): x for key, x in case("big_vision").tensors.items()}
    for tower in ("img/Transformer", "txt/Encoder_0"):
        block = f"{tower}/encoderblock_0/"
        for name in [key for key in tensors if key.startswith(block)]:
            both = [tensors.pop(name.replace("block_0/", f"block_{i}/")) for i in range(2)]
            tensors[name.replace("block_0/", "block/")] = np.stack(both)
    half = np.float32(0.25)
    tables = {"txt/Encoder_0/pos_embedding": np.full_like(tensors["txt/pos_embedding"], half)}
    tables["txt/pos_embedding"] = tensors["txt/pos_embedding"] - half
    return tensors, {**tensors, **tables}


def test_old_files_of_big_vision(tmp_path):
    tensors, in_file = old_big_vision()
    read = read_two_towers(write(tmp_path / "theirs", "big_vision", in_file))
    jax.tree.map(np.testing.assert_array_equal, read.variables, found("big_vision").variables)
    write_two_towers(tmp_path / "ours", "big_vision", read)  # with one table of positions
    same_tensors(read_tensors(tmp_path / "ours"), tensors)


def test_what_transformers_leaves_out_of_a_configuration_has_its_default(tmp_path):
    sections = {f"{name}_config": {"num_attention_heads": 2} for name in ("text", "vision")}
    config = {"model_type": "siglip", "architectures": ["SiglipModel"], **sections}
    read = read_two_towers(write(tmp_path, "hf_siglip", config=config))
    assert read.fields == found("hf_siglip").fields
    # Old files have a second section, which wins with its own defaults.
    config["text_config_dict"] = {"hidden_act": "relu"}
    read = read_two_towers(write(tmp_path, "hf_siglip", config=config))
    assert (read.fields["text_activation"], read.fields["text_heads"]) == ("relu", 12)


def without(name, *parts):
    tensors = case(name).tensors
    return {key: x for key, x in tensors.items() if not any(part in key for part in parts)}


@pytest.mark.parametrize(
    ("name", "tensors", "entries", "message"),
    [
        ("hf_clip", without("hf_clip", "text_"), {}, "the file has no text tower"),
        ("hf_clip", without("hf_clip", "visual_projection"), {}, "no projection joins them"),
        (
            "hf_clip",
            without("hf_clip", "text_model.final_layer_norm"),
            {},
            "has no text_model.final_layer_norm.bias, text",
        ),
        (
            "hf_clip",
            {**case("hf_clip").tensors, "text_model.more": np.ones(3, np.float32)},
            {},
            "the model has no parameter for text_model.more",
        ),
        ("openclip", None, {"text_cfg": {"heads": 5}}, "5 heads do not divide the width 24"),
        (
            "openclip",
            None,
            {"text_cfg": {"heads": 2, "pool_type": "last", "no_causal_mask": True}},
            "text_projection has no bias",
        ),
        (
            "openclip",
            None,
            {"text_cfg": {"heads": 2, "no_causal_mask": True}},
            "pool_type = 'argmax' with attention in both directions is not supported",
        ),
        ("openclip", None, {"vision_cfg": {"pool_type": "avg"}}, "pool_type = 'avg' of images"),
        (
            "openclip",
            None,
            {"text_cfg": {"heads": 2, "pool_type": "eos", "eos_id": 24}},
            "the text tower cannot be built: TextTower: end_token=24 is no token",
        ),
        (
            "openclip_pe",
            {**case("openclip_pe").tensors, "visual.trunk.head.bias": np.ones(20, np.float32)},
            {},
            "adds a bias to the vectors of images, as in EVA-CLIP",
        ),
        (
            "openclip",
            None,
            {"vision_cfg": {"no_ln_pre": True}},
            "no_ln_pre = True is not supported",
        ),
    ],
)
def test_files_that_are_no_such_model_are_refused(name, tensors, entries, message, tmp_path):
    folder = write(tmp_path, name, tensors, **entries)
    with pytest.raises(UserError, match=message):
        read_two_towers(folder, case(name).hints)
