# SPDX-License-Identifier: Apache-2.0
"""Whether GPUs reach each other's memory: the driver's table (nvidia-smi topo -p2p), and beside it what CUDA answers a program.

NCCL goes by the driver's words, an engine's own all-reduce by CUDA's; where they differ one of the two takes another way than is
thought. Both are asked only when somebody asks for it: nvidia-smi and libcuda may load the driver. CUDA is asked in the door's
child process, for every pair in each direction, whatever CUDA_VISIBLE_DEVICES hides from the caller.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ..catalogue import finding
from ..door.host import Host
from ..model import WARN, Finding, Hint
from ..pci.topology import Device, Topology
from .nvidia_smi import bdf_of

DISPUTED = "HT912"
INDEX = ("nvidia-smi", "--query-gpu=index,pci.bus_id", "--format=csv,noheader")
SMI, CUDA = "nvidia-smi", "CUDA"
READ, WRITE = ("nvidia-smi", "topo", "-p2p", "r"), ("nvidia-smi", "topo", "-p2p", "w")
CALL = "cuPeer@%s,%s"
OK, NOT_ASKED = "OK", ""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Pair:
    """One GPU's way into another's memory. cuda: yes, no, or "" where it could not be told. read, write: the driver's words,
    OK or CNS, GNS, TNS, NS, U as nvidia-smi's legend has them; "" not told. atomics: as cuda, for atomic operations there."""

    one: str
    other: str
    read: str = NOT_ASKED
    write: str = NOT_ASKED
    cuda: str = NOT_ASKED
    atomics: str = NOT_ASKED

    @property
    def driver(self) -> str:
        """One word of the driver's two: both must be OK for a program that reads and writes."""
        return self.write if self.write != OK else self.read

    @property
    def disputed(self) -> bool:
        """Whether CUDA says another thing than the driver's table."""
        return bool(self.cuda and self.driver) and (self.cuda == "yes") != (self.driver == OK)


@dataclass(frozen=True)
class Peers:
    """Every ordered pair of GPUs that the driver has. unknown: (who was asked, why he did not tell)."""

    pairs: Tuple[Pair, ...]
    unknown: Tuple[Tuple[str, str], ...] = ()


def ask(host: Host, machine: Topology) -> Peers:
    """Both, about the GPUs of a topology. Raises nothing: what could not be told stands in `unknown`."""
    gpus = [gpu for gpu in machine.gpus if gpu.driver == "nvidia"]
    ordered = list(permutations((gpu.bdf for gpu in gpus), 2))
    if not ordered:
        return Peers(())
    unknown: Dict[str, str] = {}
    read, write = _driver(host, gpus, unknown)
    calls = _cuda(host, ordered, unknown)
    pairs = [
        Pair(
            *pair,
            read=read.get(pair, NOT_ASKED),
            write=write.get(pair, NOT_ASKED),
            cuda=calls[pair].get("access", NOT_ASKED),
            atomics=calls[pair].get("atomics", NOT_ASKED),
        )
        for pair in ordered
    ]
    return Peers(tuple(pairs), tuple(unknown.items()))


Table = Mapping[Tuple[str, str], str]


def _driver(host: Host, gpus: Sequence[Device], unknown: Dict[str, str]) -> Tuple[Table, Table]:
    """The two tables of nvidia-smi, by address. It counts GPUs in its own order, which is asked, too."""
    index = {
        number.strip(): bdf_of(bdf.strip())
        for number, _, bdf in (line.partition(",") for line in _said(host, INDEX, unknown).splitlines())
    }
    read, write = (_table(_said(host, argv, unknown), index) for argv in (READ, WRITE)) if index else ({}, {})
    return read, write


def _table(text: str, index: Mapping[str, str]) -> Table:
    """{(row, column): word} of a matrix whose first line names the columns and each further line its row."""
    lines = [_COLOUR.sub("", line).split() for line in text.splitlines()]
    rows = [words for words in lines if words and re.fullmatch(r"GPU\d+", words[0])]
    columns, found = rows[0] if rows else [], {}
    for name, *words in rows[1:]:
        for other, word in zip(columns, words):
            one, two = index.get(name[3:], ""), index.get(other[3:], "")
            if one != two:
                found[one, two] = word
    return found


def _said(host: Host, argv: Sequence[str], unknown: Dict[str, str]) -> str:
    """What a command printed; "" where it did not work, with the reason in `unknown`."""
    try:
        ran = host.run(argv)
    except LookupError:  # of a recording
        unknown[SMI] = "not recorded"
        return ""
    if ran.rc or ran.timeout:
        words = (ran.err or ran.out).strip().splitlines() or ["exit code %d" % ran.rc]
        unknown[SMI] = "no answer in %g s" % ran.timeout if ran.timeout else words[0]
        return ""
    return ran.out


def _cuda(
    host: Host, pairs: Sequence[Tuple[str, str]], unknown: Dict[str, str]
) -> Dict[Tuple[str, str], Mapping[str, Any]]:
    """{pair: {"access": "yes", "atomics": "no"}}, {} for a pair of which CUDA did not tell."""
    answers: Mapping[str, Any] = {}
    try:
        answers = host.inquire((), [CALL % pair for pair in pairs]).calls
    except OSError as e:
        unknown[CUDA] = e.strerror or str(e)
    found: Dict[Tuple[str, str], Mapping[str, Any]] = {}
    for pair in pairs:
        answer = answers.get(CALL % pair, {"error": "not recorded"})
        told = isinstance(answer, Mapping) and "access" in answer
        found[pair] = answer if told else {}
        if not told:
            unknown.setdefault(CUDA, _why(answer))
    return found


def _why(answer: Any) -> str:
    if not isinstance(answer, Mapping):
        return "answered %.40r" % (answer,)
    return "no answer in %g s" % answer["timeout"] if "timeout" in answer else str(answer.get("error", answer))


def disputes(machine: Topology, peers: Peers) -> List[Finding]:
    """HT912: one finding for all pairs of which CUDA says another thing than the driver's table."""
    number = {gpu.bdf: gpu.number for gpu in machine.gpus}
    pairs = [pair for pair in peers.pairs if pair.disputed]
    if not pairs:
        return []
    named = ", ".join("%s→%s" % (number[pair.one], number[pair.other]) for pair in pairs[:4])
    more = " and %d more" % (len(pairs) - 4) if len(pairs) > 4 else ""
    first = pairs[0]
    summary = "of %s%s the driver's table says %s, and CUDA says %s" % (named, more, first.driver, first.cuda)
    evidence = tuple("%s→%s: read %s, write %s, CUDA %s" % (pair.one, pair.other, pair.read, pair.write, pair.cuda)
                     for pair in pairs[:3])  # fmt: skip
    return [finding(DISPUTED, WARN, "peer-to-peer", summary, have="CUDA: " + first.cuda, want="driver: " + first.driver,
                    hint=Hint("hosttune explain " + DISPUTED, "host", action="look"), evidence=evidence)]  # fmt: skip
