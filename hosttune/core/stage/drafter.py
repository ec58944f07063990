# SPDX-License-Identifier: Apache-2.0
"""Rule TOKENIZER between two models. A drafter proposes words to its target by their numbers, and no engine compares more than
how many there are: where one number is two words, what it proposes is thrown away, and the engine is only slow.

A drafter without a tokenizer of its own (EAGLE, MTP) borrows its target's, and is not judged.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Optional, Tuple

from ..catalogue import finding
from ..door.host import Host
from ..model import ERROR, WARN, Finding, Refused
from ..wanted.profile import Profile
from . import manifest
from .candidate import JSON_LIMIT

FILE = "tokenizer.json"
_STAGED = re.compile(r"(/srv|/dev/shm)/models/(?P<name>[^/@]+)")
"""A staged model as an engine names it, in a container or on the host."""


def pairs(profile: Profile) -> List[Tuple[str, str]]:
    """(drafter, target) of each declared engine that drafts with one declared model for another."""
    found = []
    for row in profile.engines.values():
        target, named = str(row.get("model", "")).split("/")[0], _STAGED.match(_drafter(row.get("args") or {}))
        if named and named["name"] in profile.models and target in profile.models and target != named["name"]:
            found.append((named["name"], target))
    return sorted(set(found))


def _drafter(args: Any) -> str:
    """The path that sglang and vLLM (in a JSON of its own) are given, "" for none."""
    for key in ("speculative-draft-model-path", "speculative-draft-model"):
        if key in args:
            return str(args[key])
    try:
        return str(json.loads(args.get("speculative-config", "{}")).get("model", ""))
    except (ValueError, AttributeError):  # the engine says so, in its own words
        return ""


def judge(host: Host, profile: Profile, name: str = "") -> Tuple[Finding, ...]:
    """HT508 for each pair (with this model in it) that is in memory and does not agree. Where digests agree nothing is read."""
    return tuple(said for drafter, target in pairs(profile) if name in ("", drafter, target)
                 for said in _judge(host, drafter, target))  # fmt: skip


def _judge(host: Host, drafter: str, target: str) -> List[Finding]:
    try:
        ours, theirs = _file(host, drafter), _file(host, target)
        if ours is None or theirs is None or _digest(ours) == _digest(theirs) != "":
            return []
        paths = ["%s/%s" % (manifest.folder_of(name), FILE) for name in (drafter, target)]
        words, others = (_words(host.read_bytes(path, JSON_LIMIT)) for path in paths)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, Refused) as e:
        return [finding("HT508", ERROR, drafter, "its tokenizer could not be compared with that of %s: %s" % (target, e))]
    differ = [word for word in {**words, **others} if words.get(word) != others.get(word)]
    if not differ:
        return []
    said = "%s drafts for %s, and %d of their %d words have another number or are words of only one, %s for one" % (
        drafter, target, len(differ), len({**words, **others}), ascii(min(differ)))  # fmt: skip
    return [finding("HT508", WARN, drafter, said, have="TOKENIZER", want="the words of %s" % target, evidence=tuple(paths))]


def _file(host: Host, name: str) -> Optional[manifest.Staged]:
    staged = manifest.load(host, name)
    return next((file for file in staged.files if file.path == FILE), None) if staged else None


def _digest(file: manifest.Staged) -> str:
    """sha256 of all of it: of its one chunk, where the hub's own is not known; "" for neither."""
    return file.sha256 or (file.chunks[0] if len(file.chunks) == 1 else "")


def _words(data: bytes) -> Dict[str, int]:
    """Word -> number, added ones too: as the tokenizers library writes them (a list of [word, score] where it is Unigram)."""
    row = json.loads(data)
    inner, added = row.get("model") or {}, row.get("added_tokens") or []
    vocab = inner.get("vocab") if isinstance(inner, dict) else None
    words = {str(w): int(n) for w, n in vocab.items()} if isinstance(vocab, dict) else {
        str(pair[0]): number for number, pair in enumerate(vocab or [])}  # fmt: skip
    return {**words, **{str(one["content"]): int(one["id"]) for one in added}}
