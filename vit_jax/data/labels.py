"""Names of classes in one normal form, and names that a reader cannot tell apart.

`é` is one code point or two, and a name may end in a blank or in a character of no width. Folders,
tables, `classes.txt` and the classes of a trained model are compared in the same normal form.
"""

import collections
import re
import unicodedata
from collections.abc import Iterable

from vit_jax.data.paths import same_form, some_of

# Characters without width: soft hyphen, zero-width space and joiners, marks of direction, the word
# joiner, and the byte-order mark.
_INVISIBLE = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_AT_THE_ENDS = re.compile(rf"^[\s{_INVISIBLE}]+|[\s{_INVISIBLE}]+$")
_ANYWHERE = re.compile(rf"[\s_{_INVISIBLE}]+")


def normal_label(text: str) -> str:
    """A label of a table: composed (NFC), without blanks and invisible characters at its ends."""
    return _AT_THE_ENDS.sub("", same_form(text))


def look_alikes(names: Iterable[str]) -> list[str]:
    """Sentences on classes whose names differ in case, blanks or invisible characters only."""
    groups = collections.defaultdict(list)
    for name in names:
        plain = _ANYWHERE.sub("", unicodedata.normalize("NFKC", name).casefold())
        groups[plain].append(name)
    return [
        "class names that differ in case, blanks or invisible characters only, taken for different"
        f" classes: {some_of(group, 5)}"
        for group in groups.values()
        if len(group) > 1
    ]
