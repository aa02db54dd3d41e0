"""Files of other libraries read whole: their numbers come out, and they are written back."""

import json

import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from safetensors.numpy import load_file

from tests.support.shapes import assert_bit_equal, run
from tests.support.stored import loaded, stored, write_files
from vit_jax.errors import UserError
from vit_jax.models.registry import model_fields
from vit_jax.weights.convert import model_name, read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints
from vit_jax.weights.recognition import recognise

TIMM = (
    "timm_vit",
    "timm_avg",
    "timm_map",
    "timm_registers",
    "timm_registers_bare",
    "timm_clip",
    "timm_pre_norm",
    "timm_token_fc_norm",
)
ORIGINAL = (
    "deit",
    "deit_distilled",
    "deit3",
    "mae_encoder",
    "mae_with_decoder",
    "mae_fine_tuned",
    "dino",
    "dinov2",
    "dinov2_registers",
    "dinov2_giant",
)
HUGGING_FACE = (
    "hf_vit",
    "hf_vit_headless",
    "hf_deit_distilled",
    "hf_deit",
    "hf_mae",
    "hf_dinov2",
    "hf_dinov2_giant",
    "hf_dinov2_registers",
)
TORCHVISION = ("torchvision_to_24", "torchvision_to_12")
CASES = (*TIMM, *ORIGINAL, *HUGGING_FACE, *TORCHVISION)
TOLERANCE = 2e-5  # of the largest number, in float32


def assert_agrees(record, variables, expected):
    """The logits and the output of every block."""
    logits, kept = run(record.create_model(), variables, expected["images"], mutable=SOWN)
    assert_near({**outputs_of(kept, 2), "logits": logits}, expected)


SOWN = "intermediates"


def outputs_of(kept, blocks):
    return {f"block_{i}": kept[SOWN][f"blocks_{i}"]["out"][0] for i in range(blocks)}


def assert_near(found, expected):
    for name, ours in found.items():
        largest = max(1.0, np.abs(expected[name]).max())
        assert np.abs(ours - expected[name]).max() <= TOLERANCE * largest, name


# ------------------------------------------------------------------------------ the same numbers


@pytest.mark.parametrize("name", CASES)
def test_every_block_and_the_logits_are_the_librarys(name):
    record, variables = loaded(name)
    case = stored(name)
    assert_agrees(record, variables, case.answers)


@pytest.mark.parametrize("name", CASES)
def test_of_another_size_positions_are_resized_as_in_the_library(name):
    """The first block shows them; the rest is the same for any number of tokens."""
    record, variables = loaded(name)
    images = stored(name).others["images"]
    first = record.create_model().clone(depth=1)
    _, kept = run(first, variables, images, mutable=SOWN)
    assert_near(outputs_of(kept, 1), stored(name).others)


@pytest.mark.parametrize("name", ["hf_vit", "hf_dinov2_giant"])
def test_the_names_that_transformers_has_in_memory_are_read_as_well(name, tmp_path):
    case = stored(name)
    assert set(case.memory) != set(case.tensors)
    _, on_disk = loaded(name)
    write_files(tmp_path / "memory", case.memory, case.config)
    _, in_memory = read_pretrained(tmp_path / "memory", case.hints)
    assert_bit_equal(in_memory, on_disk)


def test_blocks_in_chunks_are_read_as_well(tmp_path):
    """DINOv2 numbers its blocks blocks.CHUNK.NUMBER where it was trained in chunks."""
    case = stored("dinov2")
    chunked = {
        name.replace("blocks.0.", "blocks.0.0.").replace("blocks.1.", "blocks.1.1."): array
        for name, array in case.tensors.items()
    }
    record, variables = read_pretrained(write_files(tmp_path, chunked), case.hints)
    assert_agrees(record, variables, case.answers)


@pytest.mark.parametrize("name", ["hf_vit", "hf_dinov2", "hf_dinov2_registers"])
def test_names_with_and_without_the_models_own_in_front_are_one(name, tmp_path):
    case = stored(name)
    bare = {key.removeprefix("vit."): array for key, array in case.tensors.items()}
    kind = case.config["model_type"]
    heads = ("classifier.",)
    full = {k if k.startswith(heads) else f"{kind}.{k}": array for k, array in bare.items()}
    _, first = read_pretrained(write_files(tmp_path / "bare", bare, case.config), case.hints)
    _, second = read_pretrained(write_files(tmp_path / "full", full, case.config), case.hints)
    assert_bit_equal(first, second)


# ------------------------------------------------------------------------------- there and back


def are_bit_equal(ours, theirs):
    ours, theirs = flatten_dict(ours, sep="/"), flatten_dict(theirs, sep="/")
    return ours.keys() == theirs.keys() and all(
        ours[name].tobytes() == np.asarray(theirs[name]).tobytes() for name in ours
    )


def without(fields, names):
    full = {**model_fields("ViT"), **fields}
    return {name: value for name, value in full.items() if name not in names}


@pytest.mark.parametrize("name", [*TIMM, "deit", "deit_distilled", "deit3", "mae_fine_tuned"])
def test_written_for_timm_the_tensors_are_timms_bit_for_bit(name, tmp_path):
    record, variables = loaded(name)
    written = load_file(write_pretrained(tmp_path / "ours", "timm", record, variables) / FILE)
    expected = stored(name).tensors
    if name == "deit3":  # timm has its own names for layer scale
        expected = {
            k.replace(".gamma_", ".ls")
            .replace(".ls1", ".ls1.gamma")
            .replace(".ls2", ".ls2.gamma"): x
            for k, x in expected.items()
        }
    if name == "timm_registers":  # positions of registers are added in
        assert not expected.keys() ^ written.keys()
    else:
        assert_bit_equal(written, expected)


@pytest.mark.parametrize(
    "name", ["hf_vit", "hf_deit_distilled", "hf_dinov2", "hf_dinov2_giant", "hf_dinov2_registers"]
)
def test_written_for_transformers_the_tensors_are_its_own_bit_for_bit(name, tmp_path):
    record, variables = loaded(name)
    written = load_file(
        write_pretrained(tmp_path / "ours", "huggingface", record, variables) / FILE
    )
    expected = dict(stored(name).tensors)
    mask = {n: expected.pop(n) for n in list(expected) if n.endswith("mask_token")}
    for token in mask:  # which no model here keeps
        assert written.pop(token).shape == mask[token].shape
    assert_bit_equal(written, expected)


FILE = "model.safetensors"


@pytest.mark.parametrize("to", ["timm", "huggingface"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_written_reads_as_the_same_model(name, to, tmp_path):
    """Where the other library has such a model at all; else it is refused."""
    record, variables = loaded(name)
    try:
        folder = write_pretrained(tmp_path / "ours", to, record, variables)
    except UserError as error:
        assert (name, to) in REFUSED, error
        return
    assert (name, to) not in REFUSED
    again, same = read_pretrained(folder)
    # Of the same parameters in the same model nothing need be computed; their ways of resizing and
    # what a layer scale began with may differ.
    free = ("pos_resize", "layer_scale")
    if not (
        are_bit_equal(same, variables)
        and without(again.fields, free) == without(record.fields, free)
    ):
        assert_agrees(again, same, stored(name).answers)
    assert again.class_names == record.class_names
    image = np.random.default_rng(0).integers(0, 256, (30, 41, 3), np.uint8)
    ours, theirs = again.preprocessing, record.preprocessing
    np.testing.assert_array_equal(ours(image), theirs(image))
    np.testing.assert_array_equal(ours.normalize(image), theirs.normalize(image))
    sizes = ("num_classes", "image_size", "patch_size", "width", "depth", "heads", "mlp_width")
    assert {n: again.fields[n] for n in sizes} == {n: record.fields[n] for n in sizes}


# timm's config.json cannot say an epsilon, and transformers has the class token only for a pool.
REFUSED = {
    ("hf_vit", "timm"),
    ("hf_deit", "timm"),
    ("hf_deit_distilled", "timm"),
    ("hf_mae", "timm"),
    ("timm_avg", "huggingface"),
    ("timm_map", "huggingface"),
    ("timm_clip", "huggingface"),
    ("timm_pre_norm", "huggingface"),
    ("timm_token_fc_norm", "huggingface"),
    ("mae_fine_tuned", "huggingface"),
}


def test_a_library_that_is_not_written_for_is_named_with_the_valid_ones(tmp_path):
    record, variables = loaded("timm_vit")
    with pytest.raises(UserError, match="--to=timn is invalid.*did you mean.*timm"):
        write_pretrained(tmp_path / "ours", "timn", record, variables)
    with pytest.raises(
        UserError, match="to=torchvision does not support a model such as .*use run or"
    ):
        write_pretrained(tmp_path / "ours", "torchvision", record, variables)


# ---------------------------------------------------------------------- what does not fit is said


def tensors_of(name="timm_vit"):
    return dict(stored(name).tensors)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path):
    tensors = tensors_of("deit")
    tensors["blocks.1.mlp.fc1.weight"] = np.zeros((40, 16), np.float32)
    folder = write_files(tmp_path, tensors)
    expected = r"blocks\.1\.mlp\.fc1\.weight has shape \(40, 16\) and should have \(48, 16\)"
    with pytest.raises(UserError, match=expected):
        read_pretrained(folder, stored("deit").hints)


def test_what_is_missing_is_called_as_in_the_file(tmp_path):
    tensors = tensors_of("deit")
    del tensors["blocks.1.norm2.bias"], tensors["norm.weight"]
    with pytest.raises(UserError, match=r"has no blocks\.1\.norm2\.bias, norm\.weight, which"):
        read_pretrained(write_files(tmp_path, tensors), stored("deit").hints)


def test_what_is_left_over_is_listed(tmp_path):
    tensors = tensors_of("deit") | {
        "blocks.0.attn.rope.freqs": np.zeros(3, np.float32),
        "extra": np.zeros(3, np.float32),
    }
    with pytest.raises(UserError, match=r"no parameter for blocks\.0\.attn\.rope\.freqs, extra"):
        read_pretrained(write_files(tmp_path, tensors), stored("deit").hints)


def test_every_sentence_says_which_file(tmp_path):
    with pytest.raises(UserError, match=f"^{tmp_path}"):
        read_pretrained(write_files(tmp_path, {"a": np.zeros(2, np.float32)}))


def test_names_of_no_library_are_shown_with_the_libraries_that_are_known():
    expected = r"its names \(a, b\) are of no supported library .*google, .*timm, torchvision"
    with pytest.raises(UserError, match=expected):
        recognise({"a": np.zeros(1), "b": np.zeros(1)})


_BIAS = "relative_position_bias"

# One name of each, as the libraries have them.
OTHER_ARCHITECTURES = {
    "stages.0.blocks.0.attn.meta_mlp.fc1.weight": r"timm's own Swin V2 \(swinv2_cr\)",
    "blocks.0.attn.relative_position_bias_table": "BEiT",
    "blocks.0.attn.q_bias": "BEiT",
    f"beit.encoder.{_BIAS}.{_BIAS}_table": "BEiT before fine-tuning",
    "patch_embed.backbone.conv1.0.weight": "hybrid",
    "patch_embed.backbone.0.conv.weight": "hybrid",
    "rope_embed.periods": "DINOv3",
}


@pytest.mark.parametrize(("name", "looks_like"), OTHER_ARCHITECTURES.items())
def test_a_file_of_another_architecture_is_told_what_it_looks_like(name, looks_like):
    with pytest.raises(UserError, match=f"looks like .*{looks_like}"):
        recognise({name: np.zeros(1), **tensors_of()})


@pytest.mark.parametrize("name", CASES)
def test_a_vit_is_not_taken_for_another_architecture(name):
    found = recognise(stored(name).tensors).name
    beginning = name.split("_")[0]
    assert found == {"hf": "huggingface", "torchvision": "torchvision"}.get(beginning, "timm")


@pytest.mark.parametrize("count", [4, 6])
def test_names_that_are_more_or_fewer_than_the_outputs_are_refused(count, tmp_path):
    names = [f"kind {i}" for i in range(count)]
    for name, change in (
        ("hf_vit", {"id2label": dict(enumerate(names))}),
        ("timm_vit", {"label_names": names}),
    ):
        case = stored(name)
        folder = write_files(tmp_path / name, case.tensors, {**case.config, **change})
        with pytest.raises(UserError, match=f"has 5 outputs, but its config.json {count} names"):
            read_pretrained(folder, case.hints)


# ---------------------------------------------------------------------------------- the record


def test_the_record_has_the_nearest_name_and_no_dropout_of_its_own():
    """CIFAR-ViT-S/4 has these sizes too, and dropout."""
    sizes = {"width": 192, "depth": 12, "heads": 3, "mlp_width": 768, "patch_size": 4}
    fields = {**sizes, "registers": 0, "distilled": False, "mlp": "plain"}
    assert model_name(fields) == "ViT"
    assert model_fields("ViT")["attention_dropout"] == 0
    assert model_name({**fields, "patch_size": 16, "layer_scale": None}) == "ViT-Ti/16"


def test_a_file_without_class_names_numbers_its_classes():
    record, _ = loaded("deit")
    assert record.class_names == tuple(f"class {i}" for i in range(5))
    assert record.origin == "weights of deit"


def test_the_processor_stands_beside_what_is_written_for_transformers(tmp_path):
    record, variables = loaded("timm_vit")
    folder = write_pretrained(tmp_path / "ours", "huggingface", record, variables)
    processor = json.loads((folder / "preprocessor_config.json").read_text("utf-8"))
    assert processor["image_mean"] == [0.1, 0.2, 0.3]
    assert not (
        write_pretrained(tmp_path / "t", "timm", record, variables) / "preprocessor_config.json"
    ).exists()


def test_an_oblong_table_is_read_with_the_size_it_was_made_for(tmp_path):
    """7 x 28 patches are 196, as many as 14 x 14."""
    case = stored("deit")
    table = np.random.default_rng(0).normal(size=(1, 197, 16)).astype(np.float32)
    folder = write_files(tmp_path, {**case.tensors, "pos_embed": table})
    square, _ = read_pretrained(folder, case.hints)
    assert square.fields["image_size"] == 56
    oblong, variables = read_pretrained(folder, Hints("deit", 2, (28, 112)))
    assert oblong.fields["image_size"] == (28, 112)
    assert oblong.preprocessing.size == (28, 112)
    np.testing.assert_array_equal(variables["params"]["pos_embed"], table)
    with pytest.raises(UserError, match="28 x 108 pixels has 7 x 27 patches of 4 x 4.*197 rows"):
        read_pretrained(folder, Hints("deit", 2, (28, 108)))


@pytest.mark.parametrize("length", [0x80, 0x0280, 0x4B50])
def test_a_header_as_long_as_the_number_that_other_kinds_begin_with_is_read(length, tmp_path):
    """0x80 begins a pickle and PK a zip file; both are lengths of a header of safetensors too."""
    case = stored("deit")
    folder = write_files(tmp_path, case.tensors)
    file = folder / "model.safetensors"
    content = file.read_bytes()
    header_end = 8 + int.from_bytes(content[:8], "little")
    header = content[8:header_end].rstrip()
    longer = next(n for n in range(length, 2**20, 2**16) if n >= len(header))
    padded = header + b" " * (longer - len(header))
    file.write_bytes(longer.to_bytes(8, "little") + padded + content[header_end:])
    read_pretrained(folder, case.hints)


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float64"])
def test_numbers_of_other_precision_become_float32(kind, tmp_path):
    import ml_dtypes

    dtype = np.dtype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
    case = stored("deit")
    folder = write_files(tmp_path, {name: x.astype(dtype) for name, x in case.tensors.items()})
    _, variables = read_pretrained(folder, case.hints)
    params = variables["params"]
    expected = case.tensors["norm.weight"].astype(dtype).astype(np.float32)
    assert params["norm"]["scale"].dtype == np.float32
    np.testing.assert_array_equal(params["norm"]["scale"], expected)


# ----------------------------------------------------------------------------------- channels


@pytest.mark.parametrize("name", ["timm_vit", "hf_vit"])
@pytest.mark.parametrize("channels", [1, 2, 4])
def test_a_model_of_other_channels_has_the_averages_of_three_colours(name, channels, tmp_path):
    """Nobody gave these three numbers for it: libraries write them beside any model."""
    case = stored(name)
    projection = next(key for key in case.tensors if key.endswith(("proj.weight", "ion.weight")))
    kernel = case.tensors[projection]
    assert kernel.ndim == 4
    tensors = case.tensors | {projection: np.repeat(kernel[:, :1], channels, axis=1)}
    config = {**case.config, "num_channels": channels} if name == "hf_vit" else case.config
    record, variables = read_pretrained(write_files(tmp_path, tensors, config))
    assert record.fields["in_channels"] == record.preprocessing.channels == channels
    # timm_vit's config.json has 0.1, 0.2, 0.3 and 0.4, 0.5, 0.6; transformers' default is 0.5.
    expected = (0.2, 0.5) if name == "timm_vit" else (0.5, 0.5)
    np.testing.assert_allclose([*record.preprocessing.mean, *record.preprocessing.std], expected)
    assert variables["params"]["patch_embed"]["kernel"].shape[2] == channels


def test_averages_that_stand_for_other_numbers_are_said(tmp_path, capsys):
    case = stored("timm_vit")
    grey = case.tensors | {
        "patch_embed.proj.weight": case.tensors["patch_embed.proj.weight"][:, :1]
    }
    read_pretrained(write_files(tmp_path, grey, case.config))
    assert "the model has 1 channel: their averages are used for all, mean 0.2 and std 0.5" in (
        capsys.readouterr().err
    )
    own = {**case.config, "pretrained_cfg": {"mean": [0.3], "std": [0.2]}}
    record, _ = read_pretrained(write_files(tmp_path / "own", grey, own))
    assert (record.preprocessing.mean, record.preprocessing.std) == ((0.3,), (0.2,))
    assert not capsys.readouterr().err
