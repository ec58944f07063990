# SPDX-License-Identifier: Apache-2.0
"""What a weights file says of itself in its first bytes, so that its whole length and every tensor in it are known.

safetensors  8 bytes little-endian N, N bytes of JSON, then the data without holes
GGUF         magic, version, counts; key-value pairs; tensor infos; aligned data (ggml's docs/gguf.md)
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Tuple

HEADER_LIMIT = 100_000_000
"""Bytes: what the safetensors library takes at most."""
BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""Of each type that safetensors 0.8 knows."""


@dataclass(frozen=True)
class Tensor:
    """shape: as written. start, end: bytes after the header."""

    type: str
    shape: Tuple[int, ...]
    start: int
    end: int


def safetensors(data: bytes, size: int) -> Dict[str, Tensor]:
    """Every tensor by name. data: the file's beginning with the whole header. size: of the file, bytes. ValueError: what is
    wrong."""
    if len(data) < 8:
        raise ValueError("this is no safetensors file")
    length = int.from_bytes(data[:8], "little")
    if length > HEADER_LIMIT or data[8:9] != b"{":
        raise ValueError("this is no safetensors file")
    try:
        rows = json.loads(data[8 : 8 + length])
        found = {name: _tensor(row) for name, row in rows.items() if name != "__metadata__"}
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ValueError("its safetensors header cannot be read")
    end = 0
    for name, tensor in sorted(found.items(), key=lambda item: (item[1].start, item[1].end)):
        if tensor.start != end:
            raise ValueError("its tensors leave a hole, or overlap, at byte %d: %s" % (end, name))
        end = tensor.end
        count = 1
        for part in tensor.shape:
            count *= part
        bits = BITS.get(tensor.type)
        if bits and count * bits != (tensor.end - tensor.start) * 8:
            raise ValueError("%s takes %d bytes, and its shape wants %d" % (name, tensor.end - tensor.start, count * bits // 8))
    if size != 8 + length + end:
        raise ValueError("%d bytes long, and its header wants %d" % (size, 8 + length + end))
    return found


def _tensor(row: Any) -> Tensor:
    start, end = row["data_offsets"]
    shape = tuple(int(part) for part in row["shape"])
    if min(0, *shape, start, end - start) < 0:
        raise ValueError("less than nothing")
    return Tensor(str(row["dtype"]), shape, int(start), int(end))


_KINDS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36), 10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74),
    18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2),
    26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip
"""ggml type -> (elements a block, bytes a block), ggml/src/ggml-common.h."""


class Short(Exception):
    """The header is longer than the bytes at hand."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, form: str) -> Any:
        """One value, little-endian."""
        size = struct.calcsize("<" + form)
        if self.at + size > len(self.data):
            raise Short
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += size
        return value

    def text(self) -> bytes:
        """A string with its length before it."""
        length = self.take("Q")
        if self.at + length > len(self.data):
            raise Short
        self.at += length
        return self.data[self.at - length : self.at]

    def value(self, kind: int) -> Any:
        """One value of a GGUF type; an array gives its length."""
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.take(_kind(kind))
        inner, count = self.take("I"), self.take("Q")
        if inner in (_STRING, _ARRAY):
            for _ in range(count):
                self.value(inner)
        else:
            self.at += count * struct.calcsize("<" + _kind(inner))
        return count


def _kind(number: int) -> str:
    if number not in _KINDS:
        raise ValueError("its GGUF header cannot be read (value type %d)" % number)
    return _KINDS[number]


def gguf(data: bytes, size: int) -> Dict[str, Any]:
    """Its key-value pairs (arrays: their lengths), the file long enough for every tensor. data: the file's beginning.

    ValueError says what is wrong; Short: the header goes on after `data`.
    """
    if data[:4] != b"GGUF":
        raise ValueError("this is no GGUF file")
    reader = _Reader(data[4:])
    if reader.take("I") not in (2, 3):
        raise ValueError("a GGUF version that hosttune does not know")
    count, pairs = reader.take("Q"), reader.take("Q")
    found: Dict[str, Any] = {}
    for _ in range(pairs):
        key = reader.text().decode("utf-8", "replace")
        found[key] = reader.value(reader.take("I"))
    ends: List[int] = []
    for _ in range(count):
        reader.text()
        elements = 1
        for _ in range(reader.take("I")):
            elements *= reader.take("Q")
        per, bytes_ = _BLOCKS.get(reader.take("I"), (0, 0))
        ends.append(reader.take("Q") + (elements // per * bytes_ if per else 1))
    align = int(found.get("general.alignment", 32)) or 32
    start = -(-(4 + reader.at) // align) * align
    if ends and size < start + max(ends):
        raise ValueError("%d bytes long, and its header wants %d" % (size, start + max(ends)))
    return found


def whole_header(read: Callable[[int], bytes], size: int, most: int) -> Dict[str, Any]:
    """gguf() of a file whose header length is not known before: read(n) gives its first n bytes. Raises as gguf()."""
    want = 1 << 20
    while True:
        try:
            return gguf(read(min(want, most)), size)
        except Short:
            if want >= min(most, size):
                raise ValueError("its GGUF header ends after the file, or is longer than %d MiB" % (most >> 20)) from None
            want *= 8
