"""Makes the golden ids of tokenizers of open_clip, transformers and SentencePiece.

    python -m tests.goldens.data.text.make_tokens

It needs open_clip_torch 3.3.0 without what it depends on, ftfy, regex, torch and sentencepiece.

- `merges.txt.gz`: the first merges of CLIP's vocabulary (MIT licence, OpenAI).
- `clip.npz`: ids of `tests.support.hard_texts` by open_clip, with the merges of that file (`few`)
  and with all (`all`): the first rows, and of every row the CRC-32 of its int32 ids.
- `unigram.model`: a tiny model of SentencePiece with the settings of SigLIP's; `unigram.npz`: its
  ids of the same texts after big_vision's cleaning, without start, end and padding.
"""

import gzip
import re
import string
import sys
import types
import zlib
from pathlib import Path

import numpy as np

from tests.support.hard_texts import hard_texts

HERE = Path(__file__).parent
FEW, ROWS = 700, 60


def main():
    clip()
    unigram()


def clip():
    tokenizer = import_open_clip()
    content = (
        gzip.decompress(Path(tokenizer.default_bpe()).read_bytes()).decode("utf-8").split("\n")
    )
    few = HERE / "merges.txt.gz"
    few.write_bytes(gzip.compress("\n".join(content[: FEW + 1]).encode("utf-8"), 9, mtime=0))
    arrays = {}
    for name, path in {"few": str(few), "all": tokenizer.default_bpe()}.items():
        ids = tokenizer.SimpleTokenizer(path)(hard_texts()).numpy().astype("<i4")
        arrays[f"{name}/ids"] = ids[:ROWS].astype(np.uint16)
        arrays[f"{name}/crc"] = np.array([zlib.crc32(row.tobytes()) for row in ids], np.uint32)
        print(name, ids.max(), "cut:", (ids[:, -1] != 0).sum())
    save("clip", arrays)


def unigram():
    import sentencepiece

    texts = [canonical(text) for text in hard_texts()]
    texts = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(text for text in texts[:200] if text and "\0" not in text),
        model_prefix=str(HERE / "unigram"),
        vocab_size=700,
        character_coverage=0.98,
        hard_vocab_limit=False,
        model_type="unigram",
        normalization_rule_name="identity",
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    (HERE / "unigram.vocab").unlink()
    model = sentencepiece.SentencePieceProcessor(model_file=str(HERE / "unigram.model"))
    ids = [model.encode(text) for text in texts]
    crc = np.array([zlib.crc32(np.array(row, "<i4").tobytes()) for row in ids], np.uint32)
    rows = [np.array(row, np.uint16) for row in ids[:ROWS]]
    save("unigram", {"crc": crc, **{f"row_{i}": row for i, row in enumerate(rows)}})


def canonical(text):
    """As `canonicalize_text` of big_vision."""
    text = text.replace("_", " ").translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\s+", " ", text.lower()).strip()


def save(name, arrays):
    path = HERE / f"{name}.npz"
    np.savez_compressed(path, **arrays)
    print(name, f"{path.stat().st_size / 1000:.0f} kB")


def import_open_clip():
    """The module of the tokenizer, without the package, which imports all models."""
    from importlib.util import find_spec, module_from_spec, spec_from_file_location

    folder = Path(find_spec("open_clip").submodule_search_locations[0])
    sys.modules.setdefault("open_clip", types.ModuleType("open_clip"))
    spec = spec_from_file_location("open_clip.tokenizer", folder / "tokenizer.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
