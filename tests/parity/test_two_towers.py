"""Models of images and texts at full size: transformers and open_clip, in both directions.

Weights are random; the vectors of both towers and the logits are compared, and the libraries open
what is written here, with the same tensors.
"""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.folders import GOLDENS
from tests.parity.test_vit import images_of, randomise
from tests.support.stored import stored, write_files
from tests.unit.weights.io.test_torch_writing import TENSORS
from vit_jax.tasks.contrastive.losses import normalized
from vit_jax.tasks.contrastive.task import Contrastive
from vit_jax.weights.io.torch_writing import write_torch
from vit_jax.weights.of_tasks.towers_writing import write_two_towers
from vit_jax.weights.of_tasks.two_towers import read_two_towers

pytestmark = pytest.mark.parity

TOLERANCE = 2e-5
SCALE, BIAS = 2.659, -10.0

# Name of the class, arguments of its configuration, sides of images; its own sizes are B/32, B/16.
TRANSFORMERS = {
    "CLIP-B/32": ("CLIPModel", {}, 224),
    "CLIP of a new configuration, exact GELU": (
        "CLIPModel",
        {"text_config": {"eos_token_id": 49407, "hidden_act": "gelu"}},
        224,
    ),
    "SigLIP-B/16": ("SiglipModel", {}, 224),
    "SigLIP2-B/16-NaFlex": ("Siglip2Model", {"text_config": {"vocab_size": 256_000}}, 256),
}
SIGLIP = ("ViT-B-16-SigLIP", "ViT-B-16-SigLIP2")
OPEN_CLIP = ("ViT-B-32", "ViT-B-32-quickgelu", *SIGLIP, "PE-Core-B-16", "convnext_base")


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_computes_the_same_and_reads_what_is_written(torch, name, tmp_path):
    import transformers

    kind, settings, side = TRANSFORMERS[name]
    model_class = getattr(transformers, kind)
    if kind == "CLIPModel" and not settings:  # as OpenAI's files say it
        settings = {"text_config": {"eos_token_id": 2}}
    model = set_numbers(randomise(torch, model_class(model_class.config_class(**settings))))
    model.save_pretrained(tmp_path / "theirs")
    found = read_two_towers(tmp_path / "theirs")
    images, ids = images_of(side), texts(found.fields)
    packed = packed_images(torch, model, images)

    def answers(model):
        tokens = torch.from_numpy(ids)
        out = model(input_ids=tokens, **packed)
        return {
            "image": model.get_image_features(**packed).pooler_output.numpy(),
            "text": model.get_text_features(input_ids=tokens).pooler_output.numpy(),
            "logits": out.logits_per_image.numpy(),
        }

    theirs = answers(model)
    assert_alike(our_answers(found, images, ids), theirs)
    folder = write_two_towers(tmp_path / "ours", "huggingface", found)
    again, told = model_class.from_pretrained(folder, output_loading_info=True)
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    before = dict(model.named_parameters())
    for key, parameter in again.named_parameters():
        assert torch.equal(parameter, before[key]), key
    for key, array in answers(again.eval()).items():
        np.testing.assert_array_equal(array, theirs[key], err_msg=key)


@pytest.mark.parametrize("name", OPEN_CLIP)
def test_open_clip_computes_the_same_and_reads_what_is_written(torch, name, tmp_path):
    open_clip = pytest.importorskip("open_clip", reason="of the optional group parity")
    from safetensors.torch import save_file

    settings = open_clip.get_model_config(name)
    model = set_numbers(randomise(torch, open_clip.create_model(name)))
    folder = tmp_path / "theirs"
    folder.mkdir()
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    content = {"model_cfg": settings, "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    (folder / "open_clip_config.json").write_text(json.dumps(content), "utf-8")
    found = read_two_towers(folder)
    images, ids = images_of(224), texts(found.fields)
    pixels, tokens = torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(ids)

    def answers(model):
        out = (
            model.encode_image(pixels),
            model.encode_text(tokens),
            model.get_logits(pixels, tokens),
        )
        return {"image": out[0].numpy(), "text": out[1].numpy(), "logits": out[2][0].numpy()}

    theirs = answers(model)
    assert_alike(our_answers(found, images, ids), theirs)
    if name != "convnext_base":  # without the configuration of the file
        found = dataclasses.replace(
            found, record=dataclasses.replace(found.record, source_config={})
        )
    folder = write_two_towers(tmp_path / "ours", "openclip", found)
    if name in SIGLIP:
        made = open_clip.get_model_config(f"local-dir:{folder}")
        del made["text_cfg"]["mlp_ratio"]  # open_clip's default
        assert made["text_cfg"].pop("hf_tokenizer_name") == f"timm/{name}"
        del settings["text_cfg"]["hf_tokenizer_name"]
        assert made == settings
    again = open_clip.create_model(f"local-dir:{folder}").eval()
    before = dict(model.named_parameters())
    for key, parameter in again.named_parameters():
        assert torch.equal(parameter, before[key]), key
    for key, array in answers(again).items():
        np.testing.assert_array_equal(array, theirs[key], err_msg=key)


def test_open_clip_reads_big_vision_s_names_as_they_are_written(torch, monkeypatch, tmp_path):
    """Its own reader of these files, into a tiny model, gives the tensors of the same model."""
    pytest.importorskip("open_clip", reason="of the optional group parity")
    from open_clip.convert import load_big_vision_weights
    from open_clip.timm_model import TimmModel

    from tests.goldens.weights.two_towers import make_two_towers

    file = GOLDENS / "weights" / "two_towers" / "openclip_siglip.npz"
    with np.load(file) as golden:
        settings = json.loads(str(golden["openclip"]))["model_cfg"]
    # The script that made the golden file replaces it, and it is restored.
    modules = TimmModel.__init__.__globals__
    monkeypatch.setitem(modules, "timm", modules["timm"])
    model = make_two_towers.open_clip_model(settings, make_two_towers.TINY).float()
    case = stored("two_towers/openclip_siglip")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "open_clip_config.json").write_text(json.dumps({"model_cfg": settings}))
    write_files(tmp_path / "theirs", case.tensors)
    found = read_two_towers(tmp_path / "theirs", case.hints)
    tanh = {"activation": "gelu_tanh"}  # the numbers are the same
    record = found.record.changed({**found.record.fields, **tanh})
    fields = {**found.fields, "text_activation": "gelu_tanh"}
    found = dataclasses.replace(found, record=record, fields=fields)
    folder = write_two_towers(tmp_path / "ours", "big_vision", found)
    load_big_vision_weights(model, str(folder / "model.npz"))
    state = model.state_dict()
    assert state.keys() == case.tensors.keys()
    for key, array in case.tensors.items():
        np.testing.assert_array_equal(state[key].numpy(), array, err_msg=key)


def test_torch_opens_what_is_written_without_it(torch, tmp_path):
    write_torch(tmp_path / "model.pt", TENSORS)
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert list(state) == list(TENSORS)
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(state[name].numpy(), array, strict=True)


def set_numbers(model):
    model.logit_scale.data.fill_(SCALE)
    if getattr(model, "logit_bias", None) is not None:
        model.logit_bias.data.fill_(BIAS)
    if "visual.trunk.head.bias" in model.state_dict():  # PE's projection has none
        model.visual.trunk.head.bias.data.zero_()
    return model


def texts(fields):
    """Random ids with an end somewhere, one text that fills the length, and an empty one."""
    length, vocabulary = fields["length"], fields["vocabulary"]
    ids = np.random.RandomState(1).randint(1, vocabulary - 2, (3, length))
    for row, end in enumerate((length // 3, length - 1, 1)):
        ids[row, 0], ids[row, end], ids[row, end + 1 :] = vocabulary - 2, vocabulary - 1, 0
    return ids


def packed_images(torch, model, images):
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    if type(model).__name__ != "Siglip2Model":
        return {"pixel_values": pixels}
    patch = model.config.vision_config.patch_size
    side = images.shape[1] // patch
    patches = pixels.reshape(-1, 3, side, patch, side, patch).permute(0, 2, 4, 3, 5, 1)
    patches = patches.flatten(1, 2).flatten(2)
    return {
        "pixel_values": patches,
        "pixel_attention_mask": torch.ones(patches.shape[:2], dtype=torch.long),
        "spatial_shapes": torch.tensor([[side, side]] * len(images)),
    }


def our_answers(found, images, ids):
    task, params = Contrastive(found.model, **found.fields), found.variables["params"]
    with jax.default_matmul_precision("highest"):
        image = task.model.apply({"params": params["image"]}, images, method="features").pooled
        if task.image_projection:
            image = task.projection.apply({"params": params["projection"]}, image)
        text = task.text.apply({"params": params["text"]}, ids.astype(np.int32))
        cosines = normalized(image) @ normalized(text).T
    logits = jnp.exp(params["logits"]["scale"]) * cosines + params["logits"].get("bias", 0)
    return {"image": image, "text": text, "logits": logits}


def assert_alike(ours, theirs):
    for key, array in theirs.items():
        largest = max(1, np.abs(array).max())
        difference = np.abs(np.asarray(ours[key]) - array).max() / largest
        print(f"{key}: {difference:.1e} of {largest:.3g}")
        assert difference < TOLERANCE, key
