# SPDX-License-Identifier: Apache-2.0
"""Every finding id: never reused, never renumbered. Each has a page docs/findings/HTnnn.md (a test holds it).

1xx kernel, memory, CPU · 2xx PCIe, IOMMU · 300-349 GPU and kernel module · 350-399 libraries, environment, CUDA calls ·
4xx containers and device permission · 5xx storage, models · 6xx systemd, NCCL · 7xx the next boot · 8xx benchmark · 9xx hosttune itself.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple

from .model import Finding


class Entry(NamedTuple):
    """What a person types (`name`), what it costs to be wrong (`severity`), and one line that says what it is."""

    name: str
    severity: str
    title: str


CATALOGUE: Dict[str, Entry] = {
    "HT101": Entry("numa-balancing", "performance", "automatic NUMA balancing is off, now and after the next boot"),
    "HT102": Entry("boot-units", "correctness", "hosttune's boot units are there and enabled"),
    "HT103": Entry("zone-reclaim-mode", "performance", "a full NUMA node takes memory of the other node"),
    "HT104": Entry("transparent-hugepages", "performance", "programs may have huge pages"),
    "HT105": Entry("shmem-hugepages", "performance", "no word of the kernel overrides the huge pages of a tmpfs"),
    "HT106": Entry("swappiness", "performance", "programs stay in memory while models are read"),
    "HT107": Entry("max-map-count", "correctness", "a process may have enough memory mappings"),
    "HT108": Entry("overcommit-memory", "correctness", "the kernel lets address space be reserved that is not used"),
    "HT109": Entry("memlock", "correctness", "services may lock as much memory as they need"),
    "HT110": Entry("reserved-hugepages", "performance", "no huge pages are set aside that nobody uses"),
    "HT111": Entry("zfs-arc", "performance", "the cache of ZFS leaves room for models"),
    "HT112": Entry("remove-ipc", "correctness", "a logout deletes no shared memory of an engine"),
    "HT113": Entry("cpu-governor", "performance", "the CPUs run at full speed, now and after the next boot"),
    "HT114": Entry("cpu-energy-preference", "performance", "the CPUs are told to prefer speed"),
    "HT115": Entry("cpu-boost", "performance", "the CPUs may boost"),
    "HT116": Entry("cpu-idle-latency", "performance", "no CPU sleeps deeper than the wanted time to wake up"),
    "HT117": Entry("irqbalance", "performance", "interrupts stay where the drivers put them"),
    "HT118": Entry("smt", "performance", "SMT is as wanted"),
    "HT201": Entry("pcie-max-read-request", "performance", "each GPU's PCIe MaxReadReq is the wanted one"),
    "HT202": Entry("pcie-max-payload", "correctness", "MaxPayload is one size on the whole way to each GPU"),
    "HT204": Entry("pcie-link-speed", "performance", "each GPU's links run at the speed that both ends can, under load"),
    "HT205": Entry("pcie-errors", "correctness", "no PCIe errors were counted at a GPU or a port above it"),
    "HT206": Entry("pcie-relaxed-ordering", "performance", "each GPU may use relaxed ordering"),
    "HT207": Entry("pcie-extended-tags", "performance", "each GPU uses extended tags"),
    "HT208": Entry("pcie-acs", "performance", "no port above a GPU redirects peer-to-peer traffic"),
    "HT209": Entry("pcie-link-width", "performance", "each GPU's links have all the lanes that both ends can"),
    "HT210": Entry("iommu-mode", "correctness", "the IOMMU passes the GPUs' addresses through"),
    "HT211": Entry("pcie-aspm", "performance", "no link of a GPU saves power"),
    "HT212": Entry("pcie-bar1", "performance", "each GPU's BAR1 is as large as the card can show"),
    "HT213": Entry("pcie-power-control", "performance", "neither GPUs nor the ports above them are put to sleep"),
    "HT301": Entry("gpu-absent", "correctness", "an NVIDIA GPU is on the PCI bus"),
    "HT302": Entry("nvidia-module-not-loaded", "correctness", "the nvidia kernel module is loaded"),
    "HT303": Entry("nvidia-uvm-not-loaded", "correctness", "the nvidia-uvm kernel module is loaded"),
    "HT304": Entry("gpu-not-bound-to-nvidia", "correctness", "each GPU is bound to the nvidia driver"),
    "HT330": Entry("nvidia-persistence", "performance", "nvidia-persistenced keeps the GPUs ready, now and after the next boot"),
    "HT331": Entry("nvidia-module-parameters", "correctness", "the loaded driver has the parameters that are set for it"),
    "HT332": Entry("nvidia-hmm", "performance", "HMM of nvidia-uvm is as wanted, now and after the next boot"),
    "HT333": Entry("nvidia-resizable-bar", "performance", "the driver resizes BAR1, now and after the next boot"),
    "HT334": Entry("nvidia-relaxed-ordering", "performance", "all writes of the GPUs are relaxed, now and after the next boot"),
    "HT335": Entry("nvidia-dynamic-power", "performance", "the driver puts no GPU to sleep, now and after the next boot"),
    "HT340": Entry("nvidia-compute-mode", "correctness", "several programs may use each GPU"),
    "HT341": Entry("nvidia-mig", "correctness", "no GPU is split into instances"),
    "HT342": Entry("nvidia-ecc", "hygiene", "no change of ECC waits for a GPU's next reset"),
    "HT343": Entry("nvidia-power-limit", "performance", "each GPU's power limit is the pinned one"),
    "HT344": Entry("nvidia-clocks", "performance", "each GPU runs at the pinned clock"),
    "HT350": Entry("driver-library-mismatch", "correctness", "driver libraries and loaded module are one version"),
    "HT351": Entry("libcuda-missing", "correctness", "libcuda.so.1 loads"),
    "HT352": Entry("cuda-visible-devices", "correctness", "CUDA_VISIBLE_DEVICES leaves a GPU visible"),
    "HT353": Entry("libnvidia-ml-missing", "correctness", "libnvidia-ml.so.1 loads"),
    "HT360": Entry("cuda-init", "correctness", "cuInit returns 0"),
    "HT361": Entry("nvml-init", "correctness", "nvmlInit returns 0"),
    "HT362": Entry("gpu-count", "correctness", "CUDA sees as many GPUs as are declared"),
    "HT401": Entry("device-cgroup-refuses", "correctness", "the device cgroup lets the container open its GPU nodes"),
    "HT402": Entry(
        "container-restart-pending", "correctness", "the running container has the rules its config file has"
    ),
    "HT403": Entry("device-node-absent", "correctness", "every GPU device node is there"),
    "HT404": Entry("device-node-placeholder", "correctness", "every GPU device node is a device, not an empty file"),
    "HT405": Entry(
        "device-node-stale-number", "correctness", "every GPU device node has the number the driver has now"
    ),
    "HT406": Entry("device-node-replaced", "correctness", "the container holds the node that the host has now"),
    "HT407": Entry("device-node-mode", "correctness", "the file mode lets the caller open every GPU node"),
    "HT408": Entry("device-node-nodev", "correctness", "no GPU node lies on a nodev mount"),
    "HT409": Entry("device-node-refused-by-driver", "correctness", "the driver lets every GPU node be opened"),
    "HT420": Entry(
        "lxc-stale-rule", "security", "no rule names a major that now belongs to another driver or to nobody"
    ),
    "HT421": Entry(
        "lxc-missing-rule", "correctness", "the config gives the container every device it is declared to have"
    ),
    "HT422": Entry("lxc-dropped-line", "hygiene", "Proxmox VE keeps every line of the config"),
    "HT423": Entry("lxc-everything-allowed", "security", "the config does not open every device of the host"),
    "HT424": Entry("lxc-dead-rule", "hygiene", "every device rule has an effect"),
    "HT425": Entry("lxc-snapshot-stale", "hygiene", "no snapshot would bring stale majors back"),
    "HT426": Entry(
        "lxc-target-clash", "correctness", "no two entries make the same node (the container would not start)"
    ),
    "HT428": Entry("lxc-config-refused", "correctness", "the config file may be edited now"),
    "HT429": Entry("lxc-devices-open", "correctness", "every node opens inside the container and the GPUs count right"),
    "HT430": Entry("lxc-not-running", "correctness", "the container runs"),
    "HT431": Entry("lxc-include-unread", "hygiene", "no included file names devices that hosttune does not see"),
    "HT432": Entry("lxc-undeclared-gpu", "security", "the container is given the GPUs that are declared, and no others"),
    "HT433": Entry("lxc-gpu-of-vm", "correctness", "no GPU of the container is given to a virtual machine"),
    "HT434": Entry("lxc-start-needs-nodes", "correctness", "a missing node does not keep the container from starting"),
    "HT435": Entry("lxc-cpus-astray", "performance", "the container's CPUs are on the NUMA node of its GPUs"),
    "HT436": Entry("lxc-docker-inside", "correctness", "Docker inside the container can pass the GPUs on"),
    "HT437": Entry("lxc-cuda-starts", "correctness", "after a change, CUDA starts inside and counts the declared GPUs"),
    "HT438": Entry("lxc-unprivileged-refused", "correctness", "an unprivileged container opens its nodes without a rule"),
    "HT501": Entry("model-not-staged", "performance", "every declared model is in memory"),
    "HT502": Entry("model-not-whole", "correctness", "every staged model is whole, and what its source holds"),
    "HT503": Entry("model-does-not-fit", "correctness", "memory has room for every declared model"),
    "HT504": Entry("tmpfs-not-huge", "performance", "the tmpfs for models has huge pages"),
    "HT505": Entry("models-not-in-container", "correctness", "the container sees the staged models at /srv/models"),
    "HT506": Entry("model-source", "correctness", "the source of every declared model is here and whole"),
    "HT507": Entry("models-not-mounted", "correctness", "hosttune's tmpfs for models is mounted, now and at the next boot"),
    "HT508": Entry("model-odd", "correctness", "config, tokenizer, index and weights of a model agree"),
    "HT509": Entry("model-wiped", "correctness", "no staged model vanishes while the machine is up"),
    "HT510": Entry("model-pages", "performance", "a staged model lies in huge pages, on the nodes that were declared"),
    "HT511": Entry("engine-loader", "performance", "an engine loads a staged model with many threads, and does not copy it again"),
    "HT701": Entry("next-boot-kernel", "correctness", "it is known which kernel boots next"),
    "HT702": Entry("next-boot-module", "correctness", "the next kernel has nvidia modules that fit the GPUs"),
    "HT703": Entry("next-boot-signature", "correctness", "the next kernel takes the nvidia module's signature"),
    "HT704": Entry("next-boot-initramfs", "correctness", "the next kernel's initramfs is there and up to date"),
    "HT705": Entry("next-boot-gpu-owner", "correctness", "no other driver takes the GPUs at the next boot"),
    "HT706": Entry("next-boot-nodes", "correctness", "the device nodes are made before guests start"),
    "HT707": Entry("next-boot-major", "correctness", "no file holds a device number that the next boot may change"),
    "HT708": Entry("next-boot-libraries", "correctness", "driver libraries are those of the module that will load"),
    "HT709": Entry("next-boot-container-start", "correctness", "nothing that a container needs to start will be missing"),
    "HT710": Entry("next-boot-model", "performance", "each declared model comes back after the next boot"),
    "HT711": Entry("next-boot-setting", "performance", "each declared setting holds after the next boot"),
    "HT712": Entry("next-boot-packages", "correctness", "driver and kernel packages are settled"),
    "HT800": Entry("bench-result", "correctness", "each configuration of a benchmark plan has a valid result"),
    "HT801": Entry("bench-request-failed", "correctness", "every request of a benchmark is answered"),
    "HT802": Entry("bench-stream-broken", "correctness", "no stream carries an error or breaks off"),
    "HT803": Entry("bench-tokens-unknown", "correctness", "the server counts tokens, and its counts agree"),
    "HT804": Entry("bench-answer-short", "correctness", "every answer is as long as asked"),
    "HT805": Entry("bench-server-changed", "correctness", "one and the same healthy server answers throughout"),
    "HT806": Entry("bench-rate-impossible", "correctness", "times and rates are possible ones"),
    "HT807": Entry("bench-not-as-planned", "correctness", "prompts are as long and as new as planned, none preempted"),
    "HT808": Entry("bench-arms-not-comparable", "correctness", "arms were measured under the circumstances of the baseline"),
    "HT601": Entry("engine-unit", "correctness", "each engine's unit is as declared"),
    "HT602": Entry("engine-not-launchable", "correctness", "all that an engine's start needs is there"),
    "HT603": Entry("unit-misread", "correctness", "systemd reads each unit as it was meant"),
    "HT604": Entry("nccl-variable", "correctness", "every NCCL variable is one that NCCL reads, with a value it understands"),
    "HT605": Entry("engine-not-healthy", "correctness", "each engine runs and answers"),
    "HT606": Entry("engine-died", "correctness", "no engine died at its last start"),
    "HT607": Entry("port-taken", "correctness", "no other process has an engine's port"),
    "HT608": Entry("gpu-busy", "correctness", "no other process computes on an engine's GPUs"),
    "HT609": Entry("results-no-room", "correctness", "there is room for results"),
    "HT610": Entry("engine-restart-pending", "correctness", "each engine runs from the unit that is declared now"),
    "HT901": Entry("ignore-unused", "hygiene", "every ignore still matches something and has not run out"),
    "HT902": Entry("not-recorded", "hygiene", "the recording holds all that was asked"),
    "HT903": Entry("could-not-tell", "correctness", "hosttune could see what it needs to judge"),
    "HT904": Entry("no-python-inside", "correctness", "the container has Python 3.9 or newer"),
    "HT905": Entry("asked-unprotected", "hygiene", "CUDA was asked without letting it repair nodes"),
    "HT907": Entry("command-missing", "correctness", "the hosttune command is on the machine where its work needs it"),
    "HT910": Entry("gpus-cross-numa-node", "performance", "the GPUs of one engine lie on one NUMA node"),
    "HT906": Entry("interrupted-change", "hygiene", "no change of hosttune was cut short"),
}


def finding(id: str, status: str, subject: str, summary: str, **more: Any) -> Finding:
    """A Finding of a catalogued id, with its name and severity filled in."""
    entry = CATALOGUE[id]
    return Finding(
        id=id,
        name=entry.name,
        status=status,
        severity=more.pop("severity", entry.severity),
        subject=subject,
        summary=summary,
        **more,
    )
