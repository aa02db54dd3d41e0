"""A thousand texts that are hard for a tokenizer, the same in every process."""

import random
import unicodedata

WORDS = [
    *("a photo of the cat", "Zwei Füße", "naïve café", "CAFE\u0301", "ﬁne ﬂavour", "İstanbul"),
    *(
        "ΑΣΦΑΛΗΣ",
        "Привет, мир",
        "日本語のテキスト",
        "한국어",
        "עברית",
        "العربية",
        "हिन्दी",
        "ไทย",
        "ελληνικά",
    ),
    *("don't", "I'm", "WE'LL", "they've", "rock'n'roll", "it’s", "‘quoted’", "“double”", "l'été"),
    *("1234567890", "3.14159", "1,000", "v2.0", "½ ¼ ²", "Ⅷ", "٣٤٥", "#hashtag", "@user", "C++"),
    *("&amp;", "&lt;b&gt;", "&amp;amp;", "&eacute;", "&#39;", "&#x1F600;", "&nbsp;", "&unknown;"),
    *("😀", "👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "❤️", "☃", "©", "™", "…", "—", "→", "∑", "𝔘𝔫𝔦", "ǅ"),
    *(
        "https://example.org/a?b=c&d=e",
        "name@example.org",
        "snake_case_name",
        "camelCase",
        "a/b\\c",
    ),
    *("schÃ¶n", "â€œmojibakeâ€\x9d", "Ã©tÃ©", "ＦＵＬＬ", "ｶﾅ", "\x1b[31mred\x1b[0m"),
    *("\x00", "\x07bell", "\x7f", "\x85", "\ufeff", "\u200b", "\u200d", "\u202e", "\u2028", "\xad"),
    *("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "!!!???...", "<|endoftext|>", "'s", "''", '"', "``", "$5"),
    *("<b>bold</b>", "{}", "[]", "(x)", "~", "^_^", ":-)", "z̵̢a̷l̶g̸o̴", "e\u0301\u0302", "ß", "ẞ", "ﬃ"),
]
SEPARATORS = [" ", " ", " ", "  ", "", ", ", ". ", "\n", "\t", "\u3000", "\xa0", "-", "\r\n"]
SINGLE = ["", " ", "\n\t ", "\x00", "a", "!", "'", "\ufffd", "&", "&amp;", "0", "\ud83d", "ſ", "'ſ"]


def hard_texts(count: int = 1000) -> list[str]:
    """Empty ones, single characters, mixtures of 1 to 30 words, and some of 200 words."""
    draw = random.Random(0)
    texts = [*SINGLE, *WORDS]
    while len(texts) < count:
        words = 200 if len(texts) % 50 == 0 else draw.randint(1, 30)
        parts = []
        for _ in range(words):
            word = draw.choice(WORDS) if draw.random() < 0.8 else _characters(draw)
            parts += [word.upper() if draw.random() < 0.1 else word, draw.choice(SEPARATORS)]
        texts.append("".join(parts))
    return texts[:count]


def _characters(draw: random.Random) -> str:
    """A few characters of anywhere below U+3000, or emoji; none that Unicode 3.2 has not.

    Libraries differ in what they know of newer ones.
    """
    known = unicodedata.ucd_3_2_0
    ranges = [(0x20, 0x7F), (0xA0, 0x250), (0x250, 0x600), (0x1E00, 0x3000)]
    letters = [chr(draw.randrange(*draw.choice(ranges))) for _ in range(draw.randint(1, 6))]
    letters += [chr(draw.randrange(0x1F600, 0x1F640))] * draw.randint(0, 1)
    return "".join(x for x in letters if x >= "\U0001f600" or known.category(x) != "Cn")
