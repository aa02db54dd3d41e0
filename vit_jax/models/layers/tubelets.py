"""Tubelets: patches of several neighbouring frames of a clip (Arnab et al. 2021, "ViViT")."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.models.validation import nearest_multiples


def count_steps(where: str, frames: int, tubelet_size: int) -> int:
    """Return the number of time steps of some frames; ValueError if tubelets do not fill them."""
    if frames % tubelet_size or not frames:
        raise ValueError(
            f"{where}: clips of {frames} frames cannot be cut into tubelets of {tubelet_size}; the "
            f"nearest valid numbers of frames are {nearest_multiples(frames, tubelet_size)}."
        )
    return frames // tubelet_size


def join_frames(
    clips: Float[Array, "batch frames height width channels"], tubelet_size: int
) -> Float[Array, "steps height width channels"]:
    """Return one image for each time step, with the channels of its frames side by side.

    A convolution of these images is that of the clips over time too (section 3.2 of the paper). The
    steps of a clip follow each other, `(batch * frames / tubelet_size, ...)`.
    """
    batch, _, height, width, channels = clips.shape
    if tubelet_size > 1:
        clips = clips.reshape(batch, -1, tubelet_size, height, width, channels)
        clips = jnp.moveaxis(clips, 2, 4)
    return clips.reshape(-1, height, width, tubelet_size * channels)
