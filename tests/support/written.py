"""Models of timm as files, and the comparison of what is written with what timm reads."""

import json

from vit_jax.weights.convert import write_pretrained


def save_timm(folder, model, config):
    """Write a model of timm as a folder that the library reads; `config` is its `config.json`."""
    from safetensors.torch import save_file

    folder.mkdir()
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def assert_timm_reads_the_same(torch, timm, folder, record, variables, model):
    """Write a model for timm, compare the tensors with those of timm's model, and read it back."""
    from safetensors.torch import load_file

    state = model.state_dict()
    kept = {key: value for key, value in state.items() if "num_batches_tracked" not in key}
    write_pretrained(folder, "timm", record, variables)
    written = load_file(folder / "model.safetensors")
    assert written.keys() == kept.keys()
    assert all(torch.equal(written[key], kept[key]) for key in kept)
    again = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert again.state_dict().keys() == state.keys()
    for key, value in again.state_dict().items():
        assert torch.equal(value, state[key]), key
