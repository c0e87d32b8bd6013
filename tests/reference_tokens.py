#!/usr/bin/env python3
"""Golden token ids from the reference, Hugging Face's tokenizers, for the strings of tests/text.h.

    make build/make_text && build/make_text build/text.bin
    python3 tests/fetch_vocabularies.py
    python tests/reference_tokens.py build/text.bin

Needs tokenizers; testing needs only what this writes, which is committed. For each vocabulary NAME,
tests/golden/tokens-NAME.u32 holds three little-endian numbers a string, each a CRC-32:

  1. of the ids, four bytes each, with BOS and with special tokens recognised
  2. of the ids without BOS, special tokens being plain text (encode_special_tokens)
  3. of the text that those decode to

Tiles differs from the reference in one thing, on purpose, and so do the numbers: where the text itself
begins with the BOS that would be added, none is added.

tests/golden/tokens.json says which versions made them. tests/golden/tokens-small.json holds small
tokenizers made for one feature each, and what the reference does with them.
"""

import argparse
import hashlib
import json
import pathlib
import struct
import sys
import zlib

import tokenizers

ROOT = pathlib.Path(__file__).resolve().parent.parent
VOCABULARIES = {"llama3": 128000, "qwen2.5": None, "smollm2": None, "llama2": 1}  # and their BOS


def read_texts(path):
    data = pathlib.Path(path).read_bytes()
    at = 0
    while at < len(data):
        n, = struct.unpack_from("<I", data, at)
        yield data[at + 4:at + 4 + n].decode()
        at += 4 + n


def crc(ids):
    return zlib.crc32(struct.pack(f"<{len(ids)}I", *ids))


# Small tokenizers, each for one feature.

SMALL_TEXTS = [
    "", " ", "  ", "a", "ab", "abc", " abc", "abc ", "a  b", " a b c ", "ab12c3", "123456", "a\u0301b e\u0301",
    "\u65e5\u672c ab", "ab\nab\t a", "zzz", "azzb", "z a z", "\u2581ab", "a\u2581b", "abab abab", "d'e 'a",
    "<s>ab</s>", "<s> ab", "a<m>b", "a <m> b", "a  <m>  b<m>", "<m><m>", "x<m>1", "a<w>b", "a <w> b", "<w>",
    "\u0301<w>", "<w>_", "<w>,a", "<ab><abc>", "<ab", "AB Ab", " <n> a<n>", "caf\u00e9 cafe\u0301",
    "a\u3000b\u00a0c", "1a2b3c", "bbb", "abbba", "bab", "  1  2", "\U0001f642a", "a\rb\r\nc", "\u0e01\u0e33",
]


def small_model(byte_level=False, byte_tokens=False, **switches):
    if byte_level:
        letters = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        texts = [chr(c) for c in letters] + [chr(256 + i) for i in range(68)]
        merges = [("a", "b"), ("ab", "c"), ("\u0120", "a"), ("\u0120a", "b"), ("b", "b"), ("1", "2"),
                  ("12", "3"), ("\u0120", "\u0120"), ("c", "a"), ("\u00c3", "\u00a9"), ("d", "'")]
        extra = ["<unk>", "d'e", "\u0120abc"]
    else:
        texts = [*"\u2581abcdeAB012345',.!\u00e9\u65e5 \n"]
        merges = [("a", "b"), ("ab", "c"), ("\u2581", "a"), ("\u2581a", "b"), ("b", "b"), ("1", "2"),
                  ("12", "3"), ("\u2581", "\u2581"), ("c", "a"), ("b", "\u2581"), ("<", "s"), (" ", "a")]
        texts += ["<", "s"]
        extra = ["<unk>", "d'e", "\u2581abc"]
        if byte_tokens:
            extra += [f"<0x{b:02X}>" for b in range(256)]
    vocab = {}
    for t in [*extra, *texts, *(a + b for a, b in merges)]:
        vocab.setdefault(t, len(vocab))
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "ignore_merges": False, "vocab": vocab, "merges": [f"{a} {b}" for a, b in merges]}
    if any(" " in a + b for a, b in merges):
        model["merges"] = [[a, b] for a, b in merges]
    return model | switches


def small_added(texts, model, **flags):
    n = len(model["vocab"])
    return [{"id": n + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True} | flags for i, t in enumerate(texts)]


def small_tokenizers():
    """Name and tokenizer.json of each."""
    spaces = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    llama = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}

    def one(name, model=None, added=(), normal=None, pre=None, post=None, decoder=spaces):
        model = model or small_model(unk_token="<unk>")
        return name, {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added),
                      "normalizer": normal, "pre_tokenizer": pre, "post_processor": post,
                      "decoder": decoder, "model": model}

    yield one("llama", small_model(byte_tokens=True, unk_token="<unk>", fuse_unk=True, byte_fallback=True),
              small_added(["<s>", "</s>"], small_model(byte_tokens=True)), llama)
    yield one("unknown", small_model(unk_token="<unk>"), normal=llama)
    yield one("unknown fused", small_model(unk_token="<unk>", fuse_unk=True), normal=llama)
    yield one("unknown dropped", small_model(), normal=llama)
    yield one("fallback without tokens", small_model(unk_token="<unk>", byte_fallback=True), normal=llama)
    yield one("ignore merges", small_model(unk_token="<unk>", ignore_merges=True), normal=llama)
    yield one("replace by pattern", normal={"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": "\u2581"})
    yield one("nfc", normal={"type": "NFC"})
    for scheme in ("always", "first", "never"):
        for split in (True, False):
            meta = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": split}
            yield one(f"metaspace {scheme} {split}", None,
                      small_added(["<s>", "<m>"], small_model()), None, meta)
    yield one("metaspace of old", pre={"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True})
    yield one("removed, then first", pre={"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "[ab1]"}, "behavior": "Removed", "invert": False},
        {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}]})
    for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            for pattern in ({"Regex": "[0-9]+|b"}, {"String": "b"}):
                yield one(f"split {behavior} {invert} {list(pattern)[0]}", pre={
                    "type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert})
    yield one("a pattern's signs as text", pre={
        "type": "Split", "pattern": {"String": "."}, "behavior": "Isolated", "invert": False})
    byte_model = small_model(byte_level=True)
    for individual in (True, False):
        yield one(f"digits {individual}", byte_model, pre={"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": individual}, letters]}, decoder=letters)
    for prefix in (True, False):
        for regex in (True, False):
            yield one(f"bytes {prefix} {regex}", byte_model, small_added(["<s>", "<m>"], byte_model),
                      pre=letters | {"add_prefix_space": prefix, "use_regex": regex}, decoder=letters)
    yield one("bytes, nfc", byte_model, normal={"type": "NFC"}, pre=letters, decoder=letters)
    yield one("bytes, ignore merges", byte_model | {"ignore_merges": True}, pre=letters, decoder=letters)
    for flags in ({}, {"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True},
                  {"single_word": True}, {"special": False}, {"special": False, "single_word": True},
                  {"normalized": True}, {"normalized": True, "special": False},
                  {"normalized": True, "lstrip": True, "rstrip": True}):
        added = small_added(["<m>", "<w>", "<ab>", "<ab><abc>", "<n>", "cafe\u0301"], byte_model, **flags)
        name = " ".join(flags) or "none"
        yield one(f"added {name}", byte_model, added, pre=letters, decoder=letters)
        yield one(f"added {name}, nfc", byte_model, added, {"type": "NFC"}, letters, decoder=letters)
        model = small_model(unk_token="<unk>")
        added = small_added(["<m>", "<w>", "<ab>", "<ab><abc>", "<n>", "<s>"], model, **flags)
        yield one(f"added {name}, llama", model, added, llama)
    bos = {"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [
        {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [len(byte_model["vocab"])], "tokens": ["<s>"]}}}
    yield one("template", byte_model, small_added(["<s>"], byte_model), pre=letters, decoder=letters, post={
        "type": "Sequence", "processors": [letters, bos]})


def small(out):
    made = {"versions": {"tokenizers": tokenizers.__version__}, "tokenizers": []}
    for name, source in small_tokenizers():
        tok = tokenizers.Tokenizer.from_str(json.dumps(source))
        cases = []
        for text in SMALL_TEXTS:
            tok.encode_special_tokens = False
            ids = tok.encode(text, add_special_tokens=True).ids
            if len(ids) > 1 and ids[0] == ids[1] and name == "template":
                ids = ids[1:]
            tok.encode_special_tokens = True
            plain = tok.encode(text, add_special_tokens=False).ids
            # How an added token is printed that is looked for in the normal form changed between
            # versions, and its letters may be taken for bytes: no golden there.
            normed = {a["id"] for a in source["added_tokens"] if a["normalized"]}
            back = None if normed & set(plain) else tok.decode(plain, skip_special_tokens=True)
            cases.append([text, ids, plain, None if back and "\ufffd" in back else back])
        made["tokenizers"].append({"name": name, "json": source, "cases": cases})
    lines = [json.dumps(t, separators=(",", ":")) for t in made["tokenizers"]]
    (out / "tokens-small.json").write_text(
        '{"versions":' + json.dumps(made["versions"]) + ',"tokenizers":[\n' + ",\n".join(lines) + "\n]}\n")
    print(f"small: {len(lines)} tokenizers, {len(SMALL_TEXTS)} strings each", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("texts", help="what build/make_text wrote")
    parser.add_argument("--out", default=str(ROOT / "tests" / "golden"))
    options = parser.parse_args()
    out = pathlib.Path(options.out)
    small(out)
    texts = list(read_texts(options.texts))
    about = {"command": "python tests/reference_tokens.py build/text.bin",
             "versions": {"tokenizers": tokenizers.__version__, "python": sys.version.split()[0]},
             "texts": len(texts), "bytes": sum(len(t.encode()) for t in texts), "vocabularies": {}}
    for name, bos in VOCABULARIES.items():
        path = ROOT / "models" / "vocab" / name / "tokenizer.json"
        tok = tokenizers.Tokenizer.from_file(str(path))
        total = 0
        with open(out / f"tokens-{name}.u32", "wb") as f:
            for text in texts:
                tok.encode_special_tokens = False
                ids = tok.encode(text, add_special_tokens=True).ids
                if len(ids) > 1 and ids[0] == ids[1] == bos:
                    ids = ids[1:]
                tok.encode_special_tokens = True
                plain = tok.encode(text, add_special_tokens=False).ids
                back = tok.decode(plain, skip_special_tokens=True).encode()
                f.write(struct.pack("<III", crc(ids), crc(plain), zlib.crc32(back)))
                total += len(ids) + len(plain)
        about["vocabularies"][name] = {
            "tokenizer.json": hashlib.sha256(path.read_bytes()).hexdigest(), "ids": total}
        print(f"{name}: {len(texts)} strings, {total} ids", file=sys.stderr)
    (out / "tokens.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
