"""Record of the images that cannot be read: each is reported once, all are counted."""

from collections.abc import Callable, Iterable

from vit_jax.errors import DecodeError
from vit_jax.text import tell


def _to_stderr(sentence: str) -> None:
    tell(sentence, error=True)


class DecodeErrors:
    """Collector of the unreadable images in training and evaluation.

    One collector serves a whole run, so that an image is reported once however often it is read.

    Args:
      strict: whether the first unreadable image ends the run with a DecodeError.
      say: shows a sentence; default: prints to standard error.

    Attributes:
      say: as given; may be replaced.
      found: name of every unreadable image -> cause, in the order of their first read.
    """

    def __init__(self, strict: bool = False, say: Callable[[str], None] = _to_stderr):
        self.strict = strict
        self.found: dict[str, str] = {}
        self.say = say

    def add(self, images: Iterable[DecodeError]) -> None:
        """Record images and report those that are new."""
        for image in images:
            if image.name not in self.found:
                self.found[image.name] = image.cause
                self.say(f"warning: {image}")

    def summary(self) -> str | None:
        """Return a sentence for the end of the run, or None if every image was readable."""
        if not self.found:
            return None
        first = next(iter(self.found))
        if len(self.found) == 1:
            return (
                f"1 image could not be read ({first}): training replaced it by another image, and"
                " evaluation skipped it"
            )
        return (
            f"{len(self.found):,} images could not be read (the first: {first}): training replaced"
            " them by other images, and evaluation skipped them"
        )
