"""Makes the golden files of detectors: tiny YOLOS and DETR of transformers and what they answer.

    python -m tests.goldens.weights.detection.make_detection

needs torch and transformers. The format is that of `make_golden.py`, with:

- `boxes` beside `logits`, and `block_0`, ... of the ViT of YOLOS, CLS and patches and detection
  tokens in transformers' order;
- names in memory are left out;
- of DETR `block_0`, ... of encoder and then decoder, and `aux_logits`, `aux_boxes` of the first
  layer of the decoder, that is the norm and the heads on its output, as in the authors' `detr.py`
  (with `auxiliary_loss` transformers also feeds the normed output to the next layer);

- `yolos_mid`: with tables of positions behind the blocks, as the small and the base model;
  `yolos_plain`: without, as the tiny one.
- `detr_padded`: images of two sizes in one batch, their `pixel_mask`, and what `detr` answers.
- `detr`: on a small ResNet of timm; `detr_authors`: the same numbers, alone, under the names of the
  authors' repository, facebookresearch/detr.
"""

import functools
import json
import re
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from benchmarks.peers import import_timm, import_torchvision
from tests.goldens.weights.make_golden import coarse, exact_halves, randomise

HERE = Path(__file__).parent
NAMES = ["ant", "bee", "cat"]
OF_IMAGES = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
SIZE, OTHER = (16, 24), (24, 16)


def main():
    import_torchvision()
    for number, make in enumerate((yolos_mid, yolos_plain, detr)):
        torch.manual_seed(300 + number)
        make()


def yolos(name, **settings):
    import transformers

    config = transformers.YolosConfig(
        image_size=list(SIZE),
        patch_size=4,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=24,
        num_detection_tokens=5,
        layer_norm_eps=1e-3,
        hidden_dropout_prob=0.0,
        attn_implementation="eager",
        **labels(),
        **settings,
    )
    model = transformers.YolosForObjectDetection(config).double().eval()
    randomise(model)
    kept = {f"other/{key}": value for key, value in answers(model, model.vit.encoder.layer, OTHER)}
    kept |= dict(answers(model, model.vit.encoder.layer, SIZE))
    processor = {
        "image_processor_type": "YolosImageProcessor",
        "size": {"height": SIZE[0], "width": SIZE[1]},
        **OF_IMAGES,
    }
    save(name, model, kept, processor)


def yolos_mid():
    yolos("yolos_mid", use_mid_position_embeddings=True)


def yolos_plain():
    yolos("yolos_plain", use_mid_position_embeddings=False)


def detr():
    import transformers

    config = transformers.DetrConfig(
        backbone="resnet50",
        num_queries=5,
        d_model=8,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=12,
        decoder_ffn_dim=12,
        auxiliary_loss=False,
        attn_implementation="eager",
        **labels(),
    )
    timm, make = import_timm(), import_timm().create_model
    timm.create_model = functools.partial(make, layers=[1, 1, 1, 1], channels=[2, 2, 4, 4])
    model = transformers.DetrForObjectDetection(config).double().eval()
    timm.create_model = make
    randomise_detr(model)
    layers = [*model.model.encoder.layers, *model.model.decoder.layers]
    kept = dict(answers(model, layers, (48, 64), decoder=model.model.decoder))
    processor = {
        "image_processor_type": "DetrImageProcessor",
        "size": {"shortest_edge": 48, "longest_edge": 64},
        **OF_IMAGES,
    }
    state = save("detr", model, kept, processor)
    theirs = {f"tensors/{name}": floats(value) for name, value in renamed(state).items()}
    texts = {key: json.dumps(value) for key, value in {"asked": {"heads": 2}}.items()}
    np.savez_compressed(HERE / "detr_authors.npz", **texts, **theirs)
    padded(model)


def padded(model):
    """The second image fills a part of the batch's size, the rest is zeros."""
    images = torch.randn(2, 3, 96, 128).round().double()
    mask = torch.ones(2, 96, 128, dtype=torch.long)
    mask[1, 64:], mask[1, :, 80:] = 0, 0
    images[1] *= mask[1]
    with torch.no_grad():
        out = model(images, pixel_mask=mask)
    arrays = {"images": images.permute(0, 2, 3, 1).numpy().astype(np.int8)}
    arrays |= {"pixel_mask": mask.numpy().astype(bool)}
    arrays |= {"logits": single(out.logits), "boxes": single(out.pred_boxes)}
    np.savez_compressed(HERE / "detr_padded.npz", **arrays)


def renamed(state):
    """The authors' names of the same numbers: queries, keys and values in one matrix."""
    names = (
        (r"^model\.backbone\.conv_encoder\.model\.", "backbone.0.body."),
        (r"^model\.(en|de)coder\.", r"transformer.\1coder."),
        (r"^model\.input_projection", "input_proj"),
        (r"^model\.query_position_embeddings", "query_embed"),
        (r"^class_labels_classifier", "class_embed"),
        (r"^bbox_predictor", "bbox_embed"),
        (r"decoder\.layernorm", "decoder.norm"),
        (r"self_attn_layer_norm", "norm1"),
        (r"encoder_attn_layer_norm", "norm2"),
        (r"(decoder\.layers\.\d\.)final_layer_norm", r"\1norm3"),
        (r"final_layer_norm", "norm2"),
        (r"encoder_attn\.", "multihead_attn."),
        (r"\.fc(\d)\.", r".linear\1."),
    )
    theirs = {}
    for name, tensor in state.items():
        for old, new in names:
            name = re.sub(old, new, name)
        theirs[name] = tensor
    for key in [name for name in theirs if ".q_proj." in name]:
        parts = [theirs.pop(key.replace(".q_proj", f".{one}_proj")) for one in "qkv"]
        theirs[key.replace("q_proj.", "in_proj_")] = torch.cat(parts)
    return theirs


def randomise_detr(model):
    randomise(model)
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "running_var", "weight", "bias")):
            drawn = torch.rand(buffer.shape)
            drawn = drawn - 0.5 if name.endswith(("mean", "bias")) else 0.5 + drawn
            buffer.data = coarse(drawn).double()


def labels():
    return {"id2label": dict(enumerate(NAMES)), "label2id": {n: i for i, n in enumerate(NAMES)}}


def answers(model, layers, size, decoder=None):
    outputs = []
    hooks = [
        layer.register_forward_hook(
            lambda _, __, out: outputs.append(out[0] if isinstance(out, tuple) else out)
        )
        for layer in layers
    ]
    images = torch.randn(2, 3, *size).round().double()
    with torch.no_grad():
        out = model(images)
        yield "images", images.permute(0, 2, 3, 1).numpy().astype(np.float16)
        yield "logits", single(out.logits)
        yield "boxes", single(out.pred_boxes)
        for i, block in enumerate(outputs):
            yield f"block_{i}", single(block)
        if decoder is not None:
            first = decoder.layernorm(outputs[len(layers) - len(decoder.layers)])
            yield "aux_logits", single(model.class_labels_classifier(first))
            yield "aux_boxes", single(model.bbox_predictor(first).sigmoid())
    for hook in hooks:
        hook.remove()


def single(tensor):
    return tensor.numpy().astype(np.float32)


def save(name, model, arrays, processor):
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text("utf-8"))
        state = load_file(Path(folder) / "model.safetensors")
    kept = {f"tensors/{key}": floats(value) for key, value in state.items()}
    texts = {"asked": {}, "config": config, "preprocessor": processor}
    texts = {key: json.dumps(value) for key, value in texts.items()}
    np.savez_compressed(HERE / f"{name}.npz", **texts, **kept, **arrays)
    return state


def floats(tensor):
    return exact_halves(tensor) if tensor.is_floating_point() else tensor.numpy()


if __name__ == "__main__":
    main()
