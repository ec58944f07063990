# SPDX-License-Identifier: Apache-2.0
"""A source while it is judged (whole.py): its files, the tensors of its weights, what was parsed, and doubts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional

from ..door.host import Host
from .header import Tensor
from .source import AGAIN, Doubt, File, NotWhole, Source

WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
JSON_LIMIT = 60 << 20
"""Bytes. The largest tokenizer.json known is some 35 MB."""


@dataclass
class Candidate:
    """files: by path. tensors: of each safetensors file, by its path."""

    host: Host
    source: Source
    files: Mapping[str, File]
    tensors: Dict[str, Dict[str, Tensor]] = field(default_factory=dict)
    parsed: Dict[str, Dict[str, Any]] = field(default_factory=dict)
    doubts: List[Doubt] = field(default_factory=list)

    @property
    def weights(self) -> List[File]:
        """Files that hold weights."""
        return [file for path, file in self.files.items() if path.endswith(WEIGHTS)]

    def json(self, path: str) -> Optional[Dict[str, Any]]:
        """A JSON object by its path in the model, None if there is no such file. NotWhole when it is none."""
        if path not in self.files:
            return None
        if path not in self.parsed:
            self.parsed[path] = self._object(self.files[path])
        return self.parsed[path]

    def _object(self, file: File) -> Dict[str, Any]:
        try:
            data = json.loads(self.host.read_bytes(file.source, JSON_LIMIT))
        except (ValueError, RecursionError) as e:
            raise NotWhole("JSON", "this is not JSON: %s" % e, file.source, AGAIN)
        if not isinstance(data, dict):
            raise NotWhole("JSON", "a JSON object is wanted", file.source, AGAIN)
        return data

    def doubt(self, code: str, what: str, where: str) -> None:
        """Tell it, and go on."""
        self.doubts.append(Doubt(code, what, where))
