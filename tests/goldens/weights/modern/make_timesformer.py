"""Makes the golden files of TimeSformer.

    python -m tests.goldens.weights.modern.make_timesformer

`common.py` says what is in a file; `images` are clips `(1, frames, height, width, 3)`. Tokens of
blocks and of the answer are in the order of transformers: the class token, then place by place, the
frames of each. The other clips have another height and another number of frames; the model's
configuration is told the latter.

- `divided`, `joint`: `TimesformerForVideoClassification`.
- `space`: transformers gives an answer for every frame; its tokens are averaged over frames before
  the last norm, as in the authors' repository, by the model's own layers.
"""

import copy

import torch

from tests.goldens.weights.modern.common import NAMES, import_torchvision, randomise, save

FRAMES, SIZE = 3, 16
OTHER = (5, 24, 16)  # transformers needs the width that is configured
PROCESSOR = {
    "feature_extractor_type": "VideoMAEFeatureExtractor",
    "do_resize": True,
    "size": {"shortest_edge": 16},
    "do_center_crop": True,
    "crop_size": {"height": 16, "width": 16},
    "do_normalize": True,
    "image_mean": [0.45, 0.45, 0.45],
    "image_std": [0.225, 0.225, 0.225],
    "resample": 2,
}


def main():
    import_torchvision()
    for seed, (name, kind) in enumerate(
        (("divided", "divided_space_time"), ("joint", "joint_space_time"), ("space", "space_only"))
    ):
        torch.manual_seed(seed)
        case(name, kind)


def case(name, kind):
    from transformers import TimesformerConfig, TimesformerForVideoClassification

    config = TimesformerConfig(
        image_size=SIZE,
        patch_size=4,
        num_frames=FRAMES,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=40,
        layer_norm_eps=1e-3,
        attention_type=kind,
        id2label=dict(enumerate(NAMES)),
        num_labels=len(NAMES),
    )
    model = randomise(TimesformerForVideoClassification(config).double().eval())
    other = copy.deepcopy(model)
    for module in other.modules():
        if hasattr(module, "config"):
            module.config = copy.deepcopy(config)
            module.config.num_frames = OTHER[0]
    save(
        f"timesformer/{name}",
        model.state_dict(),
        run(model, kind),
        run(other, kind),
        config={**config.to_dict(), "dtype": "float32"},
        preprocessor=PROCESSOR,
        size=(FRAMES, SIZE, SIZE),
        other_size=OTHER,
    )


def run(model, kind):
    def answer(clips):
        out = model.timesformer(clips, output_hidden_states=True)
        tokens = out.last_hidden_state
        if kind == "space_only":
            last = out.hidden_states[-1]
            tokens = model.timesformer.layernorm(
                last.reshape(len(clips), -1, *last.shape[1:]).mean(1)
            )
        pooled = tokens[:, 0]
        return {"tokens": tokens, "pooled": pooled, "logits": model.classifier(pooled)}

    return list(model.timesformer.encoder.layer), answer


if __name__ == "__main__":
    main()
