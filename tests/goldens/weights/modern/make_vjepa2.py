"""Makes the golden file of V-JEPA 2's encoder.

    python -m tests.goldens.weights.modern.make_vjepa2

`common.py` says what is in it; `images` are clips `(1, frames, height, width, 3)`, and `pooled` is
the mean of the tokens. Heads have 20 channels, so that an axis has 3 pairs, whose frequencies do
not fall on whole pairs, and 2 channels have no position.

transformers counts positions in the grid of its configuration, 3 x 3 here. The other clips have 3 x
2 patches, whose numbers in that grid its layers are told, as they are for masked clips.
"""

import torch

from tests.goldens.weights.modern.common import import_torchvision, randomise, transformers_case

FRAMES, PATCH, GRID, HEADS, WIDTH = 4, 2, 3, 2, 40
OTHER = (6, 3 * PATCH, 2 * PATCH)


def main():
    import_torchvision()
    from transformers import VJEPA2Config, VJEPA2Model, VJEPA2VideoProcessor

    torch.manual_seed(0)
    size = PATCH * GRID
    config = VJEPA2Config(
        patch_size=PATCH,
        crop_size=size,
        frames_per_clip=FRAMES,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        mlp_ratio=0.5,
        layer_norm_eps=1e-3,
        pred_hidden_size=6,
        pred_num_attention_heads=1,
        pred_num_hidden_layers=1,
        pred_num_mask_tokens=2,
        pred_mlp_ratio=1.0,
    )
    model = randomise(VJEPA2Model(config).double().eval())
    encoder = model.encoder

    def answer(clips):
        steps, rows, columns = (
            length // unit
            for length, unit in zip(
                (clips.shape[1], *clips.shape[3:]), (2, PATCH, PATCH), strict=True
            )
        )
        numbers = torch.arange(GRID * GRID).reshape(GRID, GRID)[:rows, :columns]
        numbers = torch.stack([numbers + i * GRID * GRID for i in range(steps)]).reshape(1, -1)
        tokens = encoder.embeddings(clips)
        for layer in encoder.layer:
            tokens = layer(tokens, numbers)[0]
        return {"tokens": (tokens := encoder.layernorm(tokens)), "pooled": tokens.mean(1)}

    with torch.no_grad():
        clips = torch.randn(1, FRAMES, 3, size, size).double()
        whole = model(clips, skip_predictor=True).last_hidden_state
        torch.testing.assert_close(whole, answer(clips)["tokens"])
    transformers_case(
        "vjepa2/encoder",
        model,
        list(encoder.layer),
        answer,
        preprocessor=VJEPA2VideoProcessor(crop_size=size).to_dict(),
        size=(FRAMES, size, size),
        other_size=OTHER,
    )


if __name__ == "__main__":
    main()
