# SPDX-License-Identifier: Apache-2.0
"""A Llama of some 600,000 random parameters as a GGUF file (2.5 MB), for real engines on machines without a GPU.

    python tests/bench/tiny_gguf.py OUT [BLOCKS]

Standard library only, so that it runs wherever Python does. GGUF version 3: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import array
import random
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CONTEXT, WIDTH, FEED_FORWARD, HEADS, KV_HEADS = 4096, 64, 128, 4, 2
ALIGNMENT = 32
UINT32, FLOAT32, STRING, ARRAY, INT32 = 4, 6, 8, 9, 5
F32 = 0
NORMAL, CONTROL = 1, 3
CHAT = """\
{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


def write(path: Path, blocks: int = 16, seed: int = 0) -> None:
    """Write the model. 16 blocks make some 1000 tokens/s on one core: with 2 (6000) a busy client cannot time them any more."""
    metadata, tensors = _metadata(blocks), _tensors(blocks, random.Random(seed))
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, kind, value in metadata:
        out += _text(key) + struct.pack("<I", kind) + _value(kind, value)
    offset = 0
    for name, shape, data in tensors:
        out += _text(name) + struct.pack("<I", len(shape)) + struct.pack("<%dQ" % len(shape), *shape)
        out += struct.pack("<IQ", F32, offset)
        offset += _padded(len(data))
    out += bytes(_padded(len(out)) - len(out))
    for _, _, data in tensors:
        out += data + bytes(_padded(len(data)) - len(data))
    path.write_bytes(out)


def _metadata(blocks: int) -> list[tuple[str, int, Any]]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    alphabet = [chr(b) for b in printable] + [chr(256 + n) for n in range(len(rest))]  # GPT-2's letters for 256 bytes
    merges = [("d", "e"), ("de", "f"), ("i", "b")]
    tokens = ["<s>", "</s>", "<pad>", *alphabet, *(a + b for a, b in merges)]
    types = [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3)
    return [
        ("general.architecture", STRING, "llama"),
        ("general.name", STRING, "tiny-random"),
        ("general.alignment", UINT32, ALIGNMENT),
        ("llama.context_length", UINT32, CONTEXT),
        ("llama.embedding_length", UINT32, WIDTH),
        ("llama.block_count", UINT32, blocks),
        ("llama.feed_forward_length", UINT32, FEED_FORWARD),
        ("llama.attention.head_count", UINT32, HEADS),
        ("llama.attention.head_count_kv", UINT32, KV_HEADS),
        ("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
        ("llama.rope.dimension_count", UINT32, WIDTH // HEADS),
        ("llama.vocab_size", UINT32, len(tokens)),
        ("tokenizer.ggml.model", STRING, "gpt2"),
        ("tokenizer.ggml.pre", STRING, "default"),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
        ("tokenizer.ggml.token_type", ARRAY, (INT32, types)),
        ("tokenizer.ggml.merges", ARRAY, (STRING, [" ".join(pair) for pair in merges])),
        ("tokenizer.ggml.bos_token_id", UINT32, 0),
        ("tokenizer.ggml.eos_token_id", UINT32, 1),
        ("tokenizer.ggml.padding_token_id", UINT32, 2),
        ("tokenizer.chat_template", STRING, CHAT),
    ]


def _tensors(blocks: int, draw: random.Random) -> list[tuple[str, tuple[int, ...], bytes]]:
    vocab = 3 + 256 + 3
    kv = WIDTH // HEADS * KV_HEADS

    def matrix(name: str, inputs: int, outputs: int, spread: float = 0.05) -> tuple[str, tuple[int, ...], bytes]:
        return name, (inputs, outputs), _floats([draw.gauss(0, spread) for _ in range(inputs * outputs)])

    def ones(name: str) -> tuple[str, tuple[int, ...], bytes]:
        return name, (WIDTH,), _floats([1.0] * WIDTH)

    # Wide embeddings: the last token decides what comes next, so that texts vary instead of repeating one letter.
    found = [matrix("token_embd.weight", WIDTH, vocab, 1), ones("output_norm.weight")]
    # Only printable ASCII (tokens 3 to 96) can win: the others' logits are all but 0, and the largest of 94 random ones is above.
    # Not 0 itself: where a file system leaves zeros out (mke2fs -d does), the file has holes, as a download that was cut short.
    printable = [draw.gauss(0, 0.05) for _ in range(WIDTH * 94)]
    output = [1e-30] * (3 * WIDTH) + printable + [1e-30] * ((vocab - 97) * WIDTH)
    found.append(("output.weight", (WIDTH, vocab), _floats(output)))
    for n in range(blocks):
        block = "blk.%d." % n
        found += [ones(block + "attn_norm.weight"), ones(block + "ffn_norm.weight")]
        found += [matrix(block + "attn_q.weight", WIDTH, WIDTH), matrix(block + "attn_output.weight", WIDTH, WIDTH)]
        found += [matrix(block + "attn_k.weight", WIDTH, kv), matrix(block + "attn_v.weight", WIDTH, kv)]
        found += [
            matrix(block + "ffn_gate.weight", WIDTH, FEED_FORWARD),
            matrix(block + "ffn_up.weight", WIDTH, FEED_FORWARD),
        ]
        found += [matrix(block + "ffn_down.weight", FEED_FORWARD, WIDTH)]
    return found


def _floats(values: Sequence[float]) -> bytes:
    data = array.array("f", values)
    if sys.byteorder == "big":
        data.byteswap()
    return data.tobytes()


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _text(value)
    if kind == ARRAY:
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(_value(inner, item) for item in items)
    return struct.pack({UINT32: "<I", FLOAT32: "<f", INT32: "<i"}[kind], value)


if __name__ == "__main__":
    write(Path(sys.argv[1]), *(int(n) for n in sys.argv[2:3]))
