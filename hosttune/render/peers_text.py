# SPDX-License-Identifier: Apache-2.0
"""Which GPUs reach each other's memory, in words and as a matrix. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..core.gpu.peers import CUDA, OK, SMI, Pair, Peers
from ..core.pci.topology import Topology
from .visible import visible


def p2p_words(peers: Peers | None) -> str:
    """One line: how many pairs can, by the driver and by CUDA. None: nobody was asked."""
    if peers is None:
        return "not asked: the driver tells it to NVML and CUDA alone. hosttune topo --deep asks them"
    if not peers.pairs:
        return "there are no two GPUs that the driver has"
    why, total = dict(peers.unknown), len(peers.pairs)
    driver = [pair.driver == OK for pair in peers.pairs if pair.driver]
    cuda = [pair.cuda == "yes" for pair in peers.pairs if pair.cuda]
    parts = [
        "%s: %s"
        % (who, "%d of %d pairs" % (sum(known), total) if known else "not told (%s)" % visible(why.get(key, "")))
        for who, key, known in (("the driver", SMI, driver), (CUDA, CUDA, cuda))
    ]
    atomics = sum(pair.atomics == "yes" for pair in peers.pairs)
    return ", ".join([*parts, "with atomics: %d" % atomics] if cuda else parts)


def reach(machine: Topology, peers: Peers, style: Callable[..., str]) -> Iterator[str]:
    """The matrix of who reaches whose memory; nothing where all pairs are alike."""
    pairs = {(pair.one, pair.other): pair for pair in peers.pairs}
    if len({_word(pair) for pair in peers.pairs}) < 2:
        return
    gpus = [gpu for gpu in machine.gpus if any(gpu.bdf in pair for pair in pairs)]
    yield "who reaches whose memory, as the driver says (and CUDA, where it says another thing)"
    yield "      " + "".join("%-9s" % gpu.number for gpu in gpus).rstrip()
    colours = {OK: "green", "X": None, "?": "magenta"}
    for one in gpus:
        words = [_word(pairs[one.bdf, other.bdf]) if one is not other else "X" for other in gpus]
        yield "%4s  " % one.number + "".join(style("%-9s" % word, fg=colours.get(word, "yellow")) for word in words)


def _word(pair: Pair) -> str:
    if pair.disputed:
        return "%s/%s" % (pair.driver, pair.cuda)
    return pair.driver or {"yes": OK, "no": "no"}.get(pair.cuda, "?")
