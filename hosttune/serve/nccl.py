# SPDX-License-Identifier: Apache-2.0
"""Named sets of NCCL variables, and what is wrong with a set.

NCCL asks for names one by one and never lists the environment: a typo is invisible. A number is read up to its first other
character: 16M is 16. Table and rules were read from NCCL's source (data/nccl-env.csv says which versions).
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..core.model import Refused
from ..data import table

ERROR, WARNING, INFO = "error", "warning", "info"

PRESETS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "auto": (),
    "pcie-ll-ring": (
        ("NCCL_P2P_LEVEL", "SYS", "peer to peer across the sockets; by default it ends at the PCIe switch (PXB)"),
        ("NCCL_MIN_NCHANNELS", "8", ""),
        ("NCCL_MAX_NCHANNELS", "16", ""),
        (
            "NCCL_PROTO",
            "LL",
            "lower latency for small messages (decode), about half the bandwidth for large ones (prefill)",
        ),
        ("NCCL_ALGO", "Ring", ""),
        ("NCCL_IB_DISABLE", "1", "inert on one host: only skips a probe"),
        ("NCCL_BUFFSIZE", "16777216", "inert: for the Simple protocol only, and costs 192 MiB a GPU and communicator"),
        ("NCCL_NTHREADS", "512", "inert: it is the default of LL"),
    ),
    "dram-routing": (
        ("NCCL_P2P_DISABLE", "1", "through host memory; reported faster at 100 requests at once, on one machine"),
        ("NCCL_MIN_NCHANNELS", "32", ""),
        ("NCCL_MAX_NCHANNELS", "64", ""),
        ("NCCL_BUFFSIZE", "67108864", ""),
    ),
}
"""{name: ((variable, value, what it does here), ...)}. pcie-ll-ring: what the founding machine ran with, P2P_LEVEL written as
the word that its 5 meant. All of these are in the manual's debugging class: measure them again when NCCL changes."""

LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
_LEGACY_LEVEL = {"0": "LOC", "1": "PIX", "2": "PXB", "3": "PHB"}
_ALGOS = ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
_PROTOS = ("ll", "ll128", "simple")


@dataclass(frozen=True)
class Advice:
    """One thing about one variable: level (error: NCCL will misread it or fail), what is seen, and what to write."""

    level: str
    name: str
    text: str
    fix: str = ""


def preset(name: str, where: str) -> tuple[tuple[str, str, str], ...]:
    """The variables of a named set. Refused for an unknown name."""
    if name and name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, 1)
        raise Refused(
            "no such set of NCCL variables: %s (known: %s)" % (name, ", ".join(sorted(PRESETS))),
            where,
            "did you mean %s?" % near[0] if near else "",
        )
    return PRESETS[name] if name else ()


@functools.cache
def known() -> dict[str, dict[str, str]]:
    """The table by name."""
    return {row["name"]: row for row in table("nccl-env.csv")}


def lint(variables: Mapping[str, str], engine: str = "") -> list[Advice]:
    """What is wrong with these variables, worst first. Names that have nothing to do with NCCL are passed over."""
    found = [advice for name, value in variables.items() for advice in _one(name, value)]
    found += _together({k: v for k, v in variables.items() if k.startswith("NCCL_")})
    if engine == "sglang" and "CUDA_DEVICE_MAX_CONNECTIONS" in variables:
        found.append(
            Advice(WARNING, "CUDA_DEVICE_MAX_CONNECTIONS", "SGLang always overwrites it with 8", "leave it out")
        )
    return sorted(found, key=lambda a: (ERROR, WARNING, INFO).index(a.level))


def _one(name: str, value: str) -> Iterable[Advice]:
    row = known().get(name)
    if row is None:
        yield from _stranger(name)
        return
    if row["owner"] == "pytorch":
        yield Advice(WARNING, name, "NCCL does not read it; it is PyTorch's old name", "TORCH_" + name)
    elif row["owner"] == "nobody":
        yield Advice(WARNING, name, "nobody reads it", row["notes"].rpartition("; ")[2])
    elif row["owner"] != "core":
        yield Advice(INFO, name, "NCCL does not read it: %s" % row["owner"])
    if row["last_seen"] not in ("current", ""):
        why = (
            "only the manual has it"
            if row["last_seen"] == "doc only"
            else "NCCL reads it no more since %s" % row["last_seen"]
        )
        yield Advice(WARNING, name, why, row["replaced_by"])
    elif row["replaced_by"]:
        yield Advice(INFO, name, "deprecated", row["replaced_by"])
    if value:
        yield from _value(name, value, row)


def _stranger(name: str) -> Iterable[Advice]:
    upper = name.upper()
    if upper in known():
        yield Advice(WARNING, name, "NCCL reads upper case only", upper)
    elif "N" + upper in known():
        yield Advice(WARNING, name, "the first letter is missing", "N" + upper)
    elif upper.startswith("NCCL_"):
        near = difflib.get_close_matches(upper, known(), 1, 0.8)
        yield Advice(
            WARNING, name, "no NCCL up to 2.30.7 reads this name, and NCCL never says so", near[0] if near else ""
        )


def _value(name: str, value: str, row: Mapping[str, str]) -> Iterable[Advice]:
    kind = row["type"]
    if kind in ("int", "size", "bool"):
        yield from _number(name, value, kind)
    elif kind == "pathlevel":
        yield from _level(name, value)
    elif kind == "enum":
        words = row["allowed"].split(" ")[0].split("|")
        if re.fullmatch(r"-?\d+", words[0]):
            yield from _number(name, value, "int")
        elif value not in words:
            close = [w for w in words if w == value.upper()]
            yield Advice(WARNING if close else ERROR, name, "%s is none of %s" % (value, ", ".join(words)), *close)
    if name in ("NCCL_ALGO", "NCCL_PROTO"):
        tokens, right = _tokens(value), _ALGOS if name == "NCCL_ALGO" else _PROTOS
        for token in (t for t in tokens if t not in right):
            yield Advice(
                ERROR, name, "%s is none of %s: from 2.24 on no communicator is made" % (token, ", ".join(right))
            )
        if name == "NCCL_ALGO" and not value.startswith("^") and ":" not in value and "ring" not in tokens:
            yield Advice(
                ERROR, name, "without Ring some collectives have no algorithm: they fail from 2.24 on", "Ring," + value
            )
        if value and all(":" in part for part in value.split(";")) and name == "NCCL_ALGO":
            yield Advice(
                WARNING, name, "only parts for one function: 2.31 leaves the others without", "ring,tree;" + value
            )
    if name == "NCCL_BUFFSIZE" and value.isdigit():
        size = int(value)
        if size & (size - 1) or size > 2**31 - 1:
            yield Advice(ERROR, name, "%s is no power of two below 2^31" % value, str(1 << min(size.bit_length(), 30)))
    if name == "NCCL_NTHREADS" and value.isdigit() and (int(value) % 32 or not 64 <= int(value) <= 512):
        yield Advice(ERROR, name, "%s is not 64, 128, 256 or 512: NCCL takes another number instead" % value, "512")
    if name.endswith(("_NCHANNELS", "_CTAS")) and value.isdigit() and not 1 <= int(value) <= 64:
        yield Advice(ERROR, name, "%s is not from 1 to 64" % value)
    if name == "NCCL_P2P_DISABLE" and value not in ("0", "1"):
        yield Advice(WARNING, name, "only 1 has an effect", "1")


def _number(name: str, value: str, kind: str) -> Iterable[Advice]:
    if re.fullmatch(r"0[0-7]+", value):
        yield Advice(WARNING, name, "%s is octal: %d" % (value, int(value, 8)), value.lstrip("0") or "0")
    elif not re.fullmatch(r"[-+]?(\d+|0[xX][0-9a-fA-F]+)", value):
        digits = re.match(r"\d+", value)
        read = digits.group(0) if digits else "0"
        factor = (
            {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(value[len(read) : len(read) + 1].upper()) if digits else None
        )
        fix = str(int(read) * factor) if factor else {"true": "1", "yes": "1", "on": "1"}.get(value.lower(), "")
        yield Advice(ERROR, name, "%s is no whole number: NCCL reads %s, in silence" % (value, read), fix)
    elif kind == "size" and int(value, 0) < 0:
        yield Advice(ERROR, name, "%s bytes" % value)


def _level(name: str, value: str) -> Iterable[Advice]:
    if value in LEVELS:
        return
    if value.isdigit():
        yield Advice(WARNING, name, "numbers moved their meaning between versions", _LEGACY_LEVEL.get(value, "SYS"))
    else:
        fix = value.upper() if value.upper() in LEVELS else ""
        yield Advice(
            ERROR, name, "%s is none of %s, in upper case: it is ignored, in silence" % (value, ", ".join(LEVELS)), fix
        )


def _together(v: Mapping[str, str]) -> Iterable[Advice]:
    protos = _tokens(v.get("NCCL_PROTO", ""))
    if protos == ["ll"]:
        yield Advice(
            WARNING, "NCCL_PROTO", "LL alone: large messages (prefill) get about half the bandwidth; measure both"
        )
        if v.get("NCCL_NTHREADS") == "512":
            yield Advice(INFO, "NCCL_NTHREADS", "512 is the default of LL: no effect", "leave it out")
    if "ll128" in protos and not v["NCCL_PROTO"].startswith("^"):
        yield Advice(
            WARNING, "NCCL_PROTO", "LL128 may corrupt data on platforms that lack it (manual); PCIe alone is one"
        )
    if protos and "NCCL_BUFFSIZE" in v and ("simple" in protos) == v["NCCL_PROTO"].startswith("^"):
        yield Advice(
            WARNING,
            "NCCL_BUFFSIZE",
            "without Simple it carries no data, and its memory is taken all the same",
            "leave it out",
        )
    for low, high in (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS")):
        if v.get(low, "").isdigit() and v.get(high, "").isdigit() and int(v[low]) > int(v[high]):
            yield Advice(ERROR, low, "%s is above %s=%s" % (v[low], high, v[high]), v[high])
    for old, new in (("NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS"), ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS")):
        if old in v and new in v and v[old] != v[new]:
            yield Advice(WARNING, old, "%s says %s: the tighter one wins" % (new, v[new]), "keep one of the two")
    if v.get("NCCL_P2P_DISABLE") == "1":
        if "NCCL_P2P_LEVEL" in v:
            yield Advice(WARNING, "NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE=1 wins over it", "leave one out")
        if v.get("NCCL_SHM_DISABLE") == "1":
            yield Advice(ERROR, "NCCL_SHM_DISABLE", "with NCCL_P2P_DISABLE=1 only sockets are left", "leave it out")
    if v.get("NCCL_IB_DISABLE") == "1":
        for name in v:
            if name.startswith(("NCCL_IB_", "NCCL_NET_GDR_")) and name != "NCCL_IB_DISABLE":
                yield Advice(INFO, name, "NCCL_IB_DISABLE=1 makes it idle")
    threads, each = v.get("NCCL_SOCKET_NTHREADS", ""), v.get("NCCL_NSOCKS_PERTHREAD", "")
    if threads.isdigit() and each.isdigit() and int(threads) * int(each) > 64:
        yield Advice(ERROR, "NCCL_NSOCKS_PERTHREAD", "%s x %s sockets are more than 64" % (threads, each))


def _tokens(value: str) -> list[str]:
    """The names in an algorithm or protocol list, lower case, without functions and the leading ^."""
    return [
        t.strip().lower()
        for part in value.split(";")
        for t in part.rpartition(":")[2].lstrip("^").split(",")
        if t.strip()
    ]
