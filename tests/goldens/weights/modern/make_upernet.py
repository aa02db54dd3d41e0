"""Makes the golden files of UPerNet on Swin and on ConvNeXt, as transformers has it.

    python -m tests.goldens.weights.modern.make_upernet

`common.py` says what is in a file. `logits` are those of every pixel, `(1, height, width,
classes)`, enlarged to the images by torch; `auxiliary` are those of the auxiliary head. Windows
fill the maps of Swin, since padding is masked here and not there.
"""

import torch

from tests.goldens.weights.modern.common import (
    NAMES,
    import_torchvision,
    randomise,
    transformers_case,
)
from tests.goldens.weights.modern.make_segmentation import at_full_size, labels, with_statistics

SIZE = (32, 32)
STAGES = ["stage1", "stage2", "stage3", "stage4"]
PROCESSOR = {
    "image_processor_type": "SegformerImageProcessor",
    "do_resize": True,
    "size": {"height": 32, "width": 32},
    "resample": 2,
    "do_rescale": True,
    "do_normalize": True,
    "do_reduce_labels": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def main():
    import_torchvision()
    for number, (name, config, width) in enumerate((swin(), convnext())):
        torch.manual_seed(number)
        case(name, config, width)


def swin():
    from transformers import SwinConfig

    return (
        "swin",
        SwinConfig(
            image_size=SIZE[0],
            patch_size=2,
            embed_dim=4,
            depths=[2, 1, 1, 1],
            num_heads=[1, 1, 2, 2],
            mlp_ratio=2.0,
            window_size=2,
            out_features=STAGES,
        ),
        16,
    )


def convnext():
    from transformers import ConvNextConfig

    return (
        "convnext",
        ConvNextConfig(hidden_sizes=[4, 4, 6, 8], depths=[1, 1, 2, 1], out_features=STAGES),
        6,
    )


def case(name, backbone, width):
    from transformers import UperNetConfig, UperNetForSemanticSegmentation

    config = UperNetConfig(
        backbone_config=backbone,
        hidden_size=4,
        auxiliary_in_channels=width,
        auxiliary_channels=3,
        **labels(),
    )
    assert len(NAMES) == config.num_labels
    model = UperNetForSemanticSegmentation(config).double().eval()
    model = with_statistics(randomise(model))

    def answer(images):
        maps = model.backbone(images).feature_maps
        auxiliary = at_full_size(model.auxiliary_head(maps), images)
        stages = {f"map_{i}": one.permute(0, 2, 3, 1) for i, one in enumerate(maps)}
        logits = model(images).logits.permute(0, 2, 3, 1)
        return {"logits": logits, "auxiliary": auxiliary, **stages}

    transformers_case(
        f"upernet/{name}", model, [], answer, preprocessor=PROCESSOR, size=SIZE, other_size=None
    )


if __name__ == "__main__":
    main()
