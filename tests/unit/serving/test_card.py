import pytest

from vit_jax.serving.card import without_folders


@pytest.mark.parametrize(
    ("origin", "shown"),
    [
        ("trained on digits (train)", "trained on digits (train)"),
        (
            "trained on folder:/data/me/cats (train), from runs/a",
            "trained on folder:cats (train), from a",
        ),
        ("from C:\\models\\b.npz, from ../x/, ~/y", "from b.npz, from x, y"),
        ("from hf://timm/vit_tiny", "from hf://timm/vit_tiny"),
        ("weights of google", "weights of google"),
        ("", ""),
    ],
)
def test_of_a_path_only_the_name_is_told(origin, shown):
    assert without_folders(origin) == shown
