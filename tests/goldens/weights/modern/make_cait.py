"""Makes the golden file of CaiT: a tiny model of timm and what it answers.

    python -m tests.goldens.weights.modern.make_cait

`common.py` says what is in a file. The authors' files have the same names behind `module.`, in an
entry `model`. `block_2` and `block_3` are those of the class token.
"""

import torch

from tests.goldens.weights.modern.common import CLASSES, save, timm_answer, timm_config, timm_model


def main():
    torch.manual_seed(0)
    small = {"num_heads": 4, "mlp_ratio": 2.0, "mlp_ratio_token_only": 2.0}
    model = timm_model("cait_xxs24_224", num_classes=CLASSES, **small)
    for name, parameter in model.blocks_token_only.named_parameters():
        if "norm" not in name:  # no embeddings, though called "token"
            parameter.data *= 2**6
    own = ((*model.blocks, *model.blocks_token_only), timm_answer(model))
    save("cait/timm", model.state_dict(), own, None, config=timm_config(model))


if __name__ == "__main__":
    main()
