"""Normal form of class names, and names that look alike.

`é` is one code point or two, and a name may end in a space or in a zero-width character. Folders,
tables, `classes.txt` and the classes of a trained model are compared in the same normal form.
"""

import collections
import re
import unicodedata
from collections.abc import Iterable

from vit_jax.data.paths import same_form, some_of

# Zero-width characters: soft hyphen, zero-width space and joiners, direction marks, the word joiner
# and the byte-order mark.
_INVISIBLE = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_AT_THE_ENDS = re.compile(rf"^[\s{_INVISIBLE}]+|[\s{_INVISIBLE}]+$")
_ANYWHERE = re.compile(rf"[\s_{_INVISIBLE}]+")


def normal_label(text: str) -> str:
    """Normalise a label: compose it (NFC) and strip spaces and invisible characters."""
    return _AT_THE_ENDS.sub("", same_form(text))


def look_alikes(names: Iterable[str]) -> list[str]:
    """Return sentences on class names that differ only in case, spaces or invisible characters."""
    groups = collections.defaultdict(list)
    for name in names:
        plain = _ANYWHERE.sub("", unicodedata.normalize("NFKC", name).casefold())
        groups[plain].append(name)
    return [
        "class names that differ only in case, spaces or invisible characters, read as different"
        f" classes: {some_of(group, 5)}"
        for group in groups.values()
        if len(group) > 1
    ]
