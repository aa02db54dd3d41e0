"""Makes the golden files of ViTs with fewer tokens, by the code of the papers' authors.

    git clone https://github.com/facebookresearch/ToMe
    git clone https://github.com/youweiliang/evit
    python -m tests.goldens.models.make_token_reduction ToMe evit

needs torch and timm too, which the tests do not. Files are like those of `make_golden`; the outputs
of blocks have fewer and fewer tokens. Without a class token ToMe takes the mean of all tokens, as
many as each stands for; ours counts them, so that the file has no logits.
"""

import sys
import types
import warnings
from pathlib import Path

import torch

from tests.goldens.models.make_golden import (
    TINY,
    coarse,
    import_timm,
    randomise,
    run_with_blocks,
    timm_params,
    timm_vit,
    write,
)

HERE = Path(__file__).parent / "token_reduction"
FIELDS = {**TINY, "width": 16, "heads": 2, "depth": 3}
MEAN = {"pool": "mean", "class_token": True, "pool_norm": "after"}

# Case: (fields of our ViT, arguments of timm's).
TOME = {
    "tome": ({"tome_r": (4, 0, 3)}, {}),
    "tome_distilled": ({"tome_r": 3, "distilled": True}, {}),
    "tome_no_class_token": (
        {"tome_r": 3, "pool": "mean"},
        {"global_pool": "avg", "class_token": False, "fc_norm": False},
    ),
    "tome_mean": ({"tome_r": 3, "tome_proportional": False, **MEAN}, {"global_pool": "avg"}),
}
EVIT = {
    "evit": {"keep_ratio": (0.7, 1.0, 0.5), "keep_fused": False},
    "evit_fused": {"keep_ratio": (0.7, 1.0, 0.5)},
}


def main(tome: str, evit: str):
    warnings.simplefilter("ignore")
    import_timm()
    sys.path[:0] = [tome, evit]
    # Only for counting, and not installed.
    sys.modules["torchprofile"] = types.SimpleNamespace(profile_macs=None)
    from evit import EViT
    from tome.patch.mae import apply_patch as patch_mae
    from tome.patch.timm import apply_patch

    for seed, (name, (own, arguments)) in enumerate(TOME.items()):
        torch.manual_seed(seed)
        fields = {**FIELDS, **own}
        model = timm_vit(fields, arguments)
        randomise(model)
        params = timm_params(model, fields)
        if name == "tome_mean":
            model.__class__ = type("Mae", (model.__class__,), {"forward": forward_of_mae})
            patch_mae(model, prop_attn=False)
        else:
            apply_patch(model)
        r = fields["tome_r"]
        model.r = list(r) if isinstance(r, tuple) else r
        save(name, fields, params, model, logits=name != "tome_no_class_token")

    for seed, (name, own) in enumerate(EVIT.items(), start=100):
        torch.manual_seed(seed)
        fields = {**FIELDS, **own}
        model = EViT(
            img_size=fields["image_size"],
            patch_size=fields["patch_size"],
            num_classes=fields["num_classes"],
            embed_dim=fields["width"],
            depth=fields["depth"],
            num_heads=fields["heads"],
            keep_rate=fields["keep_ratio"],
            fuse_token=fields.get("keep_fused", True),
        )
        model = model.double().eval()
        randomise(model)
        save(name, fields, timm_params(model, fields), model)


def forward_of_mae(model, images):
    """The forward pass of MAE's models, whose `forward_features` pools."""
    return model.head(model.forward_features(images))


def save(name, fields, params, model, logits=True):
    images = coarse(torch.randn(3, 3, fields["image_size"], fields["image_size"])).double()
    answer, outputs = run_with_blocks(model, model.blocks, images)
    outputs = [out[0] if isinstance(out, tuple) else out for out in outputs]
    print(name, [tuple(out.shape) for out in outputs])
    write(HERE / f"{name}.npz", fields, params, images, answer if logits else None, outputs)


if __name__ == "__main__":
    main(*sys.argv[1:])
