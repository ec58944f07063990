# SPDX-License-Identifier: Apache-2.0
"""Rules JSON, TOKENIZER and MATCH: what an engine parses can be parsed, and config, tokenizer and weights are of one model.

A mixed snapshot (the config of one revision beside the weights of another) has every file and every length right.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, Optional

from .candidate import Candidate
from .header import Tensor
from .source import AGAIN, NotWhole

PARSED = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", "params.json")
NEEDED = (*PARSED, "tokenizer.model", "tekken.json", "vocab.json", "merges.txt", "preprocessor_config.json")
"""What an engine opens at its start, where the model has it."""
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "vocab.txt", "spiece.model",
              "sentencepiece.bpe.model")  # fmt: skip
_LAYER = re.compile(r"(?P<before>.*?)(\A|\.)layers\.(?P<number>\d+)\.")
_ASIDE = re.compile(r"vision|visual|audio|encoder|mtp|eagle|draft")
"""Layers of another tower, or of a drafter, are not the ones that config counts."""
_PACKED = (".weight_packed", ".qweight", ".weight_scale", ".weight_scale_inv", ".scales", ".weight_scale_2")


def parsed(model: Candidate) -> None:
    """Every file that an engine parses at its start. Raises NotWhole."""
    for path in model.files:
        if path in PARSED or path.endswith(".index.json"):
            model.json(path)
    config = model.json("config.json")
    if config is None:
        return
    file = model.files["config.json"]
    if any(w.path.endswith(".safetensors") for w in model.weights) and not config.get("architectures"):
        raise NotWhole("JSON", "it names no architectures, and no engine knows which model this is", file.source, AGAIN)
    for name, target in (config.get("auto_map") or {}).items() if isinstance(config.get("auto_map"), dict) else ():
        for one in target if isinstance(target, list) else [target]:
            if not isinstance(one, str) or "--" in one:
                continue  # the code of another repository: the engine fetches it, or has it
            script = one.partition(".")[0] + ".py"
            if script not in model.files:
                raise NotWhole("JSON", "%s of auto_map wants %s, which is missing" % (name, script), file.source, AGAIN)


def _text(config: Dict[str, Any]) -> Dict[str, Any]:
    """The part that speaks of the language model: of itself, or below text_config in a model of several kinds."""
    for key in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(key), dict):
            return dict(config, **config[key])
    return config


def _number(config: Dict[str, Any], key: str) -> Optional[int]:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def tokenizer(model: Candidate) -> None:
    """A text model has a tokenizer, which knows no more words than the model. A drafter borrows its target's."""
    config = _text(model.json("config.json") or {})
    words = _number(config, "vocab_size")
    names = " ".join(map(str, config.get("architectures") or ()))
    there = any(name in TOKENIZERS or name.endswith(".tiktoken") or name.startswith("tokenizer.model") for name in model.files)
    gguf = any(f.path.endswith(".gguf") for f in model.weights)
    if words is not None and not there and not gguf and not re.search(r"Eagle|MTP|Medusa|Draft|NextN", names, re.IGNORECASE):
        raise NotWhole("TOKENIZER", "the tokenizer is missing (%s)" % ", ".join(TOKENIZERS[:3]), model.source.folder, AGAIN)
    data = model.json("tokenizer.json")
    if words is None or data is None:
        return
    inner, added = data.get("model"), data.get("added_tokens")
    vocab = inner.get("vocab") if isinstance(inner, dict) else None
    ids = [row.get("id", -1) for row in added if isinstance(row, dict)] if isinstance(added, list) else []
    most = max([len(vocab) if isinstance(vocab, (dict, list)) else 0, *[n + 1 for n in ids if isinstance(n, int)]])
    if most > words:
        model.doubt("TOKENIZER", "the tokenizer has %d words, and config.json %d" % (most, words),
                    model.files["tokenizer.json"].source)


def match(model: Candidate) -> None:
    """Layers, width and quantisation as config.json says. Raises NotWhole for layers that are missing."""
    whole = model.json("config.json")
    tensors = {name: tensor for shard in model.tensors.values() for name, tensor in shard.items()}
    if whole is None or not tensors:
        return
    config, where = _text(whole), model.files["config.json"].source
    layers = _number(config, "num_hidden_layers")
    seen = max(_layers(tensors), default=-1) + 1
    if layers and seen and seen < layers:
        raise NotWhole("MATCH", "config.json has %d layers, and the weights have %d" % (layers, seen), where, AGAIN)
    more = _number(config, "num_nextn_predict_layers") or _number(config, "mtp_num_hidden_layers") or 0
    if layers and seen > layers + more:
        model.doubt("MATCH", "config.json has %d layers, and the weights have %d" % (layers, seen), where)
    _width(model, config, tensors, where)
    told = whole.get("quantization_config") or config.get("quantization_config") or "hf_quant_config.json" in model.files
    packed = next((name for name in tensors if name.endswith(_PACKED)), "")
    if bool(told) != bool(packed) and not (told and any(t.type.startswith("F8") for t in tensors.values())):
        said = "is quantised, and no tensor is" if told else "is not quantised, and %s is" % packed
        model.doubt("MATCH", "by config.json the model %s" % said, where)


def _layers(tensors: Dict[str, Tensor]) -> Iterator[int]:
    for name in tensors:
        part = _LAYER.match(name)
        if part and not _ASIDE.search(part["before"]):
            yield int(part["number"])


def _width(model: Candidate, config: Dict[str, Any], tensors: Dict[str, Tensor], where: str) -> None:
    width = _number(config, "hidden_size")
    for name, tensor in tensors.items():
        if width and ("." + name).endswith(".embed_tokens.weight") and len(tensor.shape) == 2 and tensor.shape[1] != width:
            model.doubt("MATCH", "config.json has a hidden size of %d, and %s is %d wide" % (width, name, tensor.shape[1]), where)
