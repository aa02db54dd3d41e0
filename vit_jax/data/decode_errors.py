"""Record of the images that cannot be read: each is reported once, all are counted."""

from collections.abc import Callable, Iterable

from vit_jax.errors import DecodeError
from vit_jax.text import tell


def _to_stderr(sentence: str) -> None:
    tell(sentence, error=True)


class DecodeErrors:
    """Collects the unreadable images that training and evaluation come across.

    One collector serves a whole run, so that an image is named once however often it comes.

    Args:
      strict: whether the first such image ends the run, as a DecodeError error.
      say: takes a sentence to show; default: prints to the standard error.

    Attributes:
      say: as given; may be set anew.
      found: name of every image found -> what is wrong with it, in the order they came.
    """

    def __init__(self, strict: bool = False, say: Callable[[str], None] = _to_stderr):
        self.strict = strict
        self.found: dict[str, str] = {}
        self.say = say

    def add(self, images: Iterable[DecodeError]) -> None:
        """Take note of images and name those that are new."""
        for image in images:
            if image.name not in self.found:
                self.found[image.name] = image.cause
                self.say(f"warning: {image}")

    def summary(self) -> str | None:
        """A sentence for the end of the run, or None where every image could be read."""
        if not self.found:
            return None
        first = next(iter(self.found))
        if len(self.found) == 1:
            return (
                f"1 image could not be read ({first}): in training another took its place, and"
                " evaluation did not count it"
            )
        return (
            f"{len(self.found):,} images could not be read (the first: {first}): in training"
            " others took their places, and evaluation did not count them"
        )
