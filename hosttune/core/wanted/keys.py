# SPDX-License-Identifier: Apache-2.0
"""Every key of a profile: what it means, what may stand there, and what it is if nothing does."""

from __future__ import annotations

from .kinds import Flag, Listed, Named, Number, Record, Text, Texts
from .shipped import LEAVE, SHIPPED

_GPUS = r"all|numa:\d+|\d+(,\d+)*"
_GPU = r"(\d+|GPU-[0-9a-f-]+|([0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
_CONTAINER_GPUS = r"all|numa:\d+|%s(,%s)*" % (_GPU, _GPU)
_ENGINE_GPUS = _GPUS + r"|none|GPU-[0-9a-f-]+(,GPU-[0-9a-f-]+)*"
_MACHINE = r"host|ct:[A-Za-z0-9][A-Za-z0-9._-]*"

CONTAINER = Record(
    "one container",
    {
        "gpus": Text(
            "which GPUs it gets, and no others",
            "all",
            pattern=_CONTAINER_GPUS,
            says='all, "numa:0", or minors ("0,1"), PCI addresses or GPU-UUIDs',
        ),
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
            "any",
            pattern=r"any|numa|\d+(-\d+)?(,\d+(-\d+)?)*",
            says='any, numa, or CPUs such as "0-15,64-79"',
        ),
    },
)

MODEL = Record(
    "one model",
    {
        "source": Text(
            "hf:REPO@REVISION, a directory, or ssh:HOST:DIRECTORY",
            pattern=r"hf:[^@\s]+@\S+|/\S.*|ssh:[^-\s:][^\s:]*:/.+",
            says="hf:REPO@REVISION, /a/directory or ssh:HOST:/a/directory",
        ),
        "inside": Text(
            "where containers see it; /dev/shm/models for an engine that has that path built in",
            "/srv/models",
            ("/srv/models", "/dev/shm/models"),
        ),
        "cache": Text(
            "the Hugging Face cache that hf: means (HF_HUB_CACHE), if it is not root's own: a boot knows no environment",
            "",
            pattern=r"(/[^\x00-\x1f]+)?",
            says="an absolute path",
        ),
        "token-file": Text(
            "file of mode 0600 with the token that the hub wants for this model",
            "",
            pattern=r"(/[^\x00-\x1f]+)?",
            says="an absolute path",
        ),
        "engine-memory": Text(
            "what its engine needs of the host's memory beside it: pinned buffers, KV cache on the host",
            "0",
            pattern=r"\d+[KMGT]?",
            says="bytes (24G)",
        ),
        "placement": Text(
            "how its pages lie over the NUMA nodes",
            "interleave",
            pattern=r"interleave|node:\d+|per-node",
            says="interleave, node:N or per-node",
        ),
        "hash": Text(
            "now: each byte is hashed on its way; later: the copy runs at memory speed, and `stage verify` compares",
            "now",
            ("now", "later"),
        ),
        "limit": Text(
            "how much a second its copy may move, for a host that is serving; nothing: as fast as it goes",
            "",
            pattern=r"((?=.*[1-9])\d+(\.\d+)? ?[kMGT]B?(/s)?)?",
            says="a rate such as 2GB/s",
        ),
        "nice": Text(
            "how far its copy stands behind others, at CPUs and disk",
            "0",
            pattern=r"1?\d",
            says="0 to 19",
        ),
    },
    ("source",),
)

ENGINE = Record(
    "one engine",
    {
        "in": Text("where it runs", "host", pattern=_MACHINE, says="host or ct:200"),
        "engine": Text("which one", choices=("sglang", "vllm", "llama.cpp", "xllamacpp")),
        "venv": Text(
            "its virtual environment (llama.cpp: the folder above bin/llama-server)",
            "",
            pattern=r"(/[^\x00-\x1f]+)?",
            says="an absolute path",
        ),
        "model": Text(
            "a name from models, a file of one (NAME/FILE.gguf), or an absolute path",
            pattern=r"[^\x00-\x1f]+",
            says="a name from models, NAME/FILE or an absolute path",
        ),
        "tp": Number("tensor parallel size", 1, 64, 1),
        "gpus": Text(
            "which GPUs it uses",
            "all",
            pattern=_ENGINE_GPUS,
            says='all, "0,1" (minors), "numa:0", GPU-UUIDs, or none',
        ),
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
            "auto",
            ("auto", "none"),
        ),
        "restart": Text(
            "whether systemd starts it again when it dies; a benchmark wants never",
            "never",
            ("never", "on-failure"),
        ),
        "wait": Number("seconds until it must answer after a start", 1, 86400, 1800),
    },
    ("engine", "model", "port"),
)

BENCH = Record(
    "the benchmark that site.yml ends with",
    {
        "plan": Text("a plan's name or file", "smoke"),
        "engine": Text("the engine that a plan attaches to, where several are declared", ""),
        "when": Text("site: after site.yml; never: only by --tags benchmark", "never", ("site", "never")),
    },
)

IGNORE = Record(
    "one",
    {
        "id": Text("the finding", pattern=r"HT\d{3}", says="an id such as HT201"),
        "subject": Text("only for this subject", ""),
        "reason": Text("why it is accepted"),
        "until": Text(
            "the day it runs out",
            "",
            pattern=r"(\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01]))?",
            says="a date such as 2027-03-01",
        ),
    },
    ("id", "reason"),
)

PROFILE = Record(
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
            CONTAINER,
            r"[A-Za-z0-9][A-Za-z0-9._-]*",
            "a vmid such as 200, or a container name",
        ),
        "models": Named(
            "models to stage into memory",
            MODEL,
        ),
        "engines": Named(
            "inference engines, each a systemd unit",
            ENGINE,
        ),
        "bench": BENCH,
        "ignore": Listed(
            "findings that are known and accepted",
            IGNORE,
        ),
    },
)
