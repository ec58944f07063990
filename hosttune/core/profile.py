# SPDX-License-Identifier: Apache-2.0
"""What is wanted: the one variable `hosttune:` of an inventory, /etc/hosttune/profile.json on a target.

`validate` takes the plain dict and gives a Profile, or refuses with the place, what stands there and what may stand there.
`schema` is the same table as a JSON schema (docs/profile.schema.json; a test holds the two together).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Tuple

from .model import Knob, Refused
from .places import line_of
from .shipped_profiles import LEAVE, SHIPPED, resolve

PATH = "/etc/hosttune/profile.json"

@dataclass(frozen=True)
class Text:
    """A string. `pattern` is an anchored regular expression, `says` describes it to a person."""

    doc: str
    default: Optional[str] = None
    choices: Tuple[str, ...] = ()
    pattern: str = ""
    says: str = ""


@dataclass(frozen=True)
class Flag:
    """true or false."""

    doc: str
    default: bool = False


@dataclass(frozen=True)
class Number:
    """A whole number in a range."""

    doc: str
    low: int = 0
    high: int = 65535
    default: Optional[int] = None


@dataclass(frozen=True)
class Texts:
    """A map of free names to strings (environment, engine arguments)."""

    doc: str


@dataclass(frozen=True)
class Record:
    """A map with known keys. Required: those whose default is None and which are named in `required`."""

    doc: str
    keys: Mapping[str, Any]
    required: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Named:
    """A map from free names to records. `pattern` says which names are possible."""

    doc: str
    each: Record
    pattern: str = r".+"
    says: str = "a name"


@dataclass(frozen=True)
class Listed:
    """A list of records."""

    doc: str
    each: Record


_GPUS = r"all|numa:\d+|\d+(,\d+)*"
_GPU = r"(\d+|GPU-[0-9a-f-]+|([0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
_CONTAINER_GPUS = r"all|numa:\d+|%s(,%s)*" % (_GPU, _GPU)
_ENGINE_GPUS = _GPUS + r"|none|GPU-[0-9a-f-]+(,GPU-[0-9a-f-]+)*"
_MACHINE = r"host|ct:[A-Za-z0-9][A-Za-z0-9._-]*"

SPEC = Record(
    "what hosttune keeps on this machine",
    {
        "mode": Text(
            "plan shows what would be done and changes nothing; apply is the owner's word", "plan", ("plan", "apply")
        ),
        "knobs": Texts(
            "`profile` names a set of wants that this one inherits (%s); each other key is a knob and what it shall be, or `%s`"
            % (", ".join(sorted(SHIPPED)), LEAVE)
        ),
        "containers": Named(
            "LXC containers of this host, by vmid or name",
            Record(
                "one container",
                {
                    "gpus": Text(
                        "which GPUs it gets, and no others", "all", pattern=_CONTAINER_GPUS,
                        says='all, "numa:0", or minors ("0,1"), PCI addresses or GPU-UUIDs',
                    ),  # fmt: skip
                    "gpu": Text("required: it shall not start without its GPU", "required", ("required", "optional")),
                    "form": Text(
                        "how the config passes devices in; keep heals what is there",
                        "keep",
                        ("keep", "dev", "path", "number"),
                    ),
                    "restart": Text(
                        "never says what a restart would destroy; idle restarts when nothing would be lost",
                        "never",
                        ("never", "idle", "always"),
                    ),
                    "caps": Flag("pass /dev/nvidia-caps in (MIG, some monitoring)"),
                    "dri": Flag("pass the /dev/dri nodes of its GPUs in (Vulkan, video; CUDA needs none)"),
                    "cpus": Text(
                        "numa pins it to the CPUs of its GPUs' NUMA node; any leaves them to Proxmox VE",
                        "any", pattern=r"any|numa|\d+(-\d+)?(,\d+(-\d+)?)*", says='any, numa, or CPUs such as "0-15,64-79"',
                    ),  # fmt: skip
                },
            ),
            r"[A-Za-z0-9][A-Za-z0-9._-]*",
            "a vmid such as 200, or a container name",
        ),
        "models": Named(
            "models to stage into memory",
            Record(
                "one model",
                {
                    "source": Text(
                        "hf:REPO@REVISION, a directory, or ssh:HOST:DIRECTORY",
                        pattern=r"hf:[^@\s]+@\S+|/\S.*|ssh:[^-\s:][^\s:]*:/.+",
                        says="hf:REPO@REVISION, /a/directory or ssh:HOST:/a/directory",
                    ),
                    "inside": Text(
                        "where containers see it; /dev/shm/models for an engine that has that path built in",
                        "/srv/models", ("/srv/models", "/dev/shm/models"),
                    ),  # fmt: skip
                    "token-file": Text(
                        "file of mode 0600 with the token that the hub wants for this model",
                        "", pattern=r"(/[^\x00-\x1f]+)?", says="an absolute path",
                    ),  # fmt: skip
                    "engine-memory": Text(
                        "what its engine needs of the host's memory beside it: pinned buffers, KV cache on the host",
                        "0", pattern=r"\d+[KMGT]?", says="bytes (24G)",
                    ),  # fmt: skip
                    "placement": Text(
                        "how its pages lie over the NUMA nodes",
                        "interleave",
                        pattern=r"interleave|node:\d+|per-node",
                        says="interleave, node:N or per-node",
                    ),
                },
                ("source",),
            ),
        ),
        "engines": Named(
            "inference engines, each a systemd unit",
            Record(
                "one engine",
                {
                    "in": Text("where it runs", "host", pattern=_MACHINE, says="host or ct:200"),
                    "engine": Text("which one", choices=("sglang", "vllm", "llama.cpp", "xllamacpp")),
                    "venv": Text(
                        "its virtual environment (llama.cpp: the folder above bin/llama-server)",
                        "", pattern=r"(/[^\x00-\x1f]+)?", says="an absolute path",
                    ),  # fmt: skip
                    "model": Text(
                        "a name from models, a file of one (NAME/FILE.gguf), or an absolute path",
                        pattern=r"[^\x00-\x1f]+", says="a name from models, NAME/FILE or an absolute path",
                    ),  # fmt: skip
                    "tp": Number("tensor parallel size", 1, 64, 1),
                    "gpus": Text(
                        "which GPUs it uses", "all", pattern=_ENGINE_GPUS,
                        says='all, "0,1" (minors), "numa:0", GPU-UUIDs, or none',
                    ),  # fmt: skip
                    "listen": Text("the address it serves on", "127.0.0.1", pattern=r"[0-9a-f.:]+", says="an IP address"),
                    "port": Number("the port it serves on", 1, 65535),
                    "user": Text("the user it runs as", "root", pattern=r"[a-z_][a-z0-9_-]*", says="a user's name"),
                    "nccl": Text("a named set of NCCL variables; those in env are laid over it", ""),
                    "args": Texts('more arguments of the engine; "" is a switch, "secret:NAME" the path of a secret'),
                    "env": Texts('more variables; "secret:NAME" is the path of a secret'),
                    "packages": Texts("versions that its virtual environment must have, by package; nothing is installed"),
                    "secrets": Texts("files of mode 0600 where it runs, given to the engine by LoadCredential, by name"),
                    "memlock": Text(
                        "how much memory it may lock", "infinity", pattern=r"infinity|\d+[KMGT]?", says="infinity or bytes (8G)"
                    ),
                    "affinity": Text(
                        "auto: if its GPUs are of one NUMA node, its CPUs and memory are of that node too",
                        "auto", ("auto", "none"),
                    ),  # fmt: skip
                    "restart": Text(
                        "whether systemd starts it again when it dies; a benchmark wants never",
                        "never", ("never", "on-failure"),
                    ),  # fmt: skip
                    "wait": Number("seconds until it must answer after a start", 1, 86400, 1800),
                },
                ("engine", "model", "port"),
            ),
        ),
        "bench": Record(
            "the benchmark that site.yml ends with",
            {
                "plan": Text("a plan's name or file", "smoke"),
                "engine": Text("the engine that a plan attaches to, where several are declared", ""),
                "when": Text("site: after site.yml; never: only by --tags benchmark", "never", ("site", "never")),
            },
        ),
        "ignore": Listed(
            "findings that are known and accepted",
            Record(
                "one",
                {
                    "id": Text("the finding", pattern=r"HT\d{3}", says="an id such as HT201"),
                    "subject": Text("only for this subject", ""),
                    "reason": Text("why it is accepted"),
                    "until": Text(
                        "the day it runs out", "", pattern=r"(\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01]))?",
                        says="a date such as 2027-03-01",
                    ),  # fmt: skip
                },
                ("id", "reason"),
            ),
        ),
    },
)


@dataclass(frozen=True)
class Container:
    """How one container is wanted."""

    gpus: str = "all"
    gpu: str = "required"
    form: str = "keep"
    restart: str = "never"
    caps: bool = False
    dri: bool = False
    cpus: str = "any"


@dataclass(frozen=True)
class Ignore:
    """A finding that is known: counted, shown, without effect on the exit code."""

    id: str
    reason: str
    subject: str = ""
    until: str = ""


@dataclass(frozen=True)
class Profile:
    """A validated profile. knobs: None when it says nothing of them, {} when it wants none (report-only).

    sources: for each knob where its want stands: "site.yml:7", or "site.yml:6 (conservative)" for an inherited one.
    models, engines and bench stay plain: their rooms read them. plain: the whole of it as it was given.
    """

    mode: str = "plan"
    knobs: Optional[Mapping[str, str]] = None
    sources: Mapping[str, str] = field(default_factory=dict)
    containers: Mapping[str, Container] = field(default_factory=dict)
    models: Mapping[str, Any] = field(default_factory=dict)
    engines: Mapping[str, Any] = field(default_factory=dict)
    bench: Mapping[str, Any] = field(default_factory=dict)
    ignore: Tuple[Ignore, ...] = ()
    plain: Mapping[str, Any] = field(default_factory=dict)


def validate(
    data: Any, where: str = "hosttune", knobs: Mapping[str, Knob] = {}, lines: Mapping[str, int] = {}
) -> Profile:
    """A Profile of plain data. `where` begins every place in an error (a file, or the variable's name).

    knobs: those that exist; without them names and wants of knobs are not judged. lines: the line of each place
    (places.json_lines), where the data is a file's: an error then names "site.yml:7", and the key. Refused for an unknown key, a wrong type or an impossible value.
    """
    try:
        return _validate(data, where, knobs, lines)
    except Refused as e:
        key = e.where[len(where) :].lstrip(".")
        line = line_of(lines, key)
        if not line:
            raise
        raise Refused("%s: %s" % (key, e.what), "%s:%d" % (where, line), e.way_out) from None


def _validate(data: Any, where: str, known: Mapping[str, Knob], lines: Mapping[str, int]) -> Profile:
    plain = _record(SPEC, data, where)
    wants, sources = _wants(plain.get("knobs", {}), where, known, lines)
    return Profile(
        mode=plain["mode"],
        knobs=wants if "knobs" in plain else None,
        sources=sources,
        containers={name: Container(**c) for name, c in plain.get("containers", {}).items()},
        models=plain.get("models", {}),
        engines=plain.get("engines", {}),
        bench=plain.get("bench", {}),
        ignore=tuple(Ignore(**i) for i in plain.get("ignore", ())),
        plain=dict(data or {}),
    )


def _wants(
    given: Mapping[str, str], where: str, known: Mapping[str, Knob], lines: Mapping[str, int]
) -> Tuple[Dict[str, str], Dict[str, str]]:
    """What each knob shall be, and where that stands: the profile's own keys over those of the shipped one it inherits."""
    named = given.get("profile")
    if named is not None and named not in SHIPPED:
        what = "no such profile: %s (known: %s)" % (named, ", ".join(sorted(SHIPPED)))
        raise Refused(what, where + ".knobs.profile", _near(named, SHIPPED))
    for name in given:
        if known and name not in known and name != "profile":
            near = _near(name, known) or "hosttune list names all of them"
            raise Refused("no such knob: %s" % name, "%s.knobs.%s" % (where, name), near)
        if not given[name]:
            raise Refused("an empty text stands here", "%s.knobs.%s" % (where, name), "`%s` takes a setting out" % LEAVE)
    inherited = resolve(named) if named else {}
    wants = {name: want for name, (want, _) in inherited.items()}
    sources = {name: "%s (%s)" % (_place(where, "knobs.profile", lines), by) for name, (_, by) in inherited.items()}
    for name, want in given.items():
        if name != "profile":
            wants[name], sources[name] = want, _place(where, "knobs." + name, lines)
    left = [name for name, want in wants.items() if want == LEAVE]
    for name in left:
        del wants[name], sources[name]
    for name, knob in known.items():
        problem = knob.check(wants[name]) if name in wants else ""
        if problem:
            raise Refused(problem, "%s.knobs.%s" % (where, name))
    return wants, sources


def _place(where: str, key: str, lines: Mapping[str, int]) -> str:
    line = line_of(lines, key)
    return "%s:%d" % (where, line) if line else "%s.%s" % (where, key)


def _near(word: str, known: Any) -> str:
    close = difflib.get_close_matches(str(word), [str(k) for k in known], 1)
    return "did you mean %s?" % close[0] if close else ""


def _map(data: Any, where: str) -> Dict[str, Any]:
    if not isinstance(data, Mapping):
        raise Refused("%s stands here, a map of keys is wanted" % _seen(data), where)
    return {str(k): v for k, v in data.items()}  # YAML reads the key 200 as a number


def _seen(data: Any) -> str:
    words = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
        type(None): "nothing",
    }
    return "%s (%.40s)" % (next((w for t, w in words.items() if isinstance(data, t)), "a map"), data)


def _record(spec: Record, data: Any, where: str) -> Dict[str, Any]:
    given = _map({} if data is None else data, where)
    for key in given:
        if key not in spec.keys:
            raise Refused(
                "no such key (known: %s)" % ", ".join(sorted(spec.keys)), "%s.%s" % (where, key), _near(key, spec.keys)
            )
    for key in spec.required:
        if given.get(key) is None:
            raise Refused("the key is missing: %s" % spec.keys[key].doc, "%s.%s" % (where, key))
    out = {key: _value(spec.keys[key], value, "%s.%s" % (where, key)) for key, value in given.items()}
    for key, kind in spec.keys.items():
        if key not in out and getattr(kind, "default", None) is not None:
            out[key] = kind.default
    return out


def _value(spec: Any, data: Any, where: str) -> Any:
    if isinstance(spec, Record):
        return _record(spec, data, where)
    if isinstance(spec, Named):
        rows = _map({} if data is None else data, where)
        for name in rows:
            if not re.fullmatch(spec.pattern, name):
                raise Refused("%s is not %s" % (name, spec.says), where)
        return {name: _record(spec.each, row, "%s.%s" % (where, name)) for name, row in rows.items()}
    if isinstance(spec, Listed):
        if not isinstance(data, (list, tuple)):
            raise Refused("%s stands here, a list is wanted" % _seen(data), where)
        return [_record(spec.each, row, "%s[%d]" % (where, n)) for n, row in enumerate(data)]
    if isinstance(spec, Texts):
        return {
            name: _text(Text(spec.doc), value, "%s.%s" % (where, name))
            for name, value in _map(data or {}, where).items()
        }
    if isinstance(spec, Flag):
        if not isinstance(data, bool):
            raise Refused("%s stands here, true or false is wanted" % _seen(data), where)
        return data
    if isinstance(spec, Number):
        if isinstance(data, bool) or not isinstance(data, int) or not spec.low <= data <= spec.high:
            raise Refused(
                "%s stands here, a whole number from %d to %d is wanted" % (_seen(data), spec.low, spec.high), where
            )
        return data
    return _text(spec, data, where)


def _text(spec: Text, data: Any, where: str) -> str:
    if not isinstance(data, str):
        raise Refused("%s stands here, a text is wanted%s" % (_seen(data), _in_quotes(data)), where)
    if spec.choices and data not in spec.choices:
        raise Refused(
            "%s is none of %s" % (data or "an empty text", ", ".join(spec.choices)), where, _near(data, spec.choices)
        )
    if spec.pattern and not re.fullmatch(spec.pattern, data):
        raise Refused("%s is not %s" % (data or "an empty text", spec.says), where)
    return data


def _in_quotes(data: Any) -> str:
    """YAML makes a truth value of on, off, yes and no, and a number of digits."""
    if isinstance(data, bool):
        return '; write the word in quotes: "%s"' % ("on" if data else "off")
    return '; write it in quotes: "%s"' % data if isinstance(data, (int, float)) else ""


def schema(spec: Any = SPEC) -> Dict[str, Any]:
    """The table as a JSON schema (draft 2020-12)."""
    out: Dict[str, Any] = {"description": spec.doc}
    if isinstance(spec, Record):
        out.update(type="object", additionalProperties=False, properties={k: schema(v) for k, v in spec.keys.items()})
        if spec.required:
            out["required"] = list(spec.required)
    elif isinstance(spec, Named):
        out.update(
            type="object", additionalProperties=schema(spec.each), propertyNames={"pattern": "^(%s)$" % spec.pattern}
        )
    elif isinstance(spec, Listed):
        out.update(type="array", items=schema(spec.each))
    elif isinstance(spec, Texts):
        out.update(type="object", additionalProperties={"type": "string"})
    elif isinstance(spec, Flag):
        out.update(type="boolean")
    elif isinstance(spec, Number):
        out.update(type="integer", minimum=spec.low, maximum=spec.high)
    else:
        out.update(type="string")
        if spec.choices:
            out["enum"] = list(spec.choices)
        if spec.pattern:
            out["pattern"] = "^(%s)$" % spec.pattern
    if spec is SPEC:
        out["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    default = getattr(spec, "default", None)
    if default is not None:
        out["default"] = default
    return out
