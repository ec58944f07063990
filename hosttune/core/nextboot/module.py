# SPDX-License-Identifier: Apache-2.0
"""The nvidia modules that the next kernel will load: there, of the flavour that the GPUs need, with firmware, with a signature
where the kernel asks for one. `modinfo -k` reads the files and loads nothing."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple, Union

from ..catalogue import finding
from ..configured import modprobe
from ..door.host import Host, Ran, bytes_or_none, list_or_empty, read_or_none
from ..model import ERROR, FAIL, FITS, OK, PROVED, Finding, Hint
from ..pci import bus
from .kernel import NextKernel, headers, releases

MODULES = ("nvidia", "nvidia-uvm")
OPEN, CLOSED = "Dual MIT/GPL", "NVIDIA"
"""What `license` says of the two flavours."""
FIRST_WITH_GSP, FIRST_OPEN_ONLY = 0x1E00, 0x2900
"""PCI device ids: the open modules need Turing or newer; Blackwell takes no other (NVIDIA's list of supported chips)."""
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
SIG_ENFORCE, LOCKDOWN = "/sys/module/module/parameters/sig_enforce", "/sys/kernel/security/lockdown"


@dataclass(frozen=True)
class Module:
    """One module file of one kernel, as modinfo tells it."""

    path: str
    version: str = ""
    license: str = ""
    signer: str = ""


def look(host: Host, kernel: NextKernel) -> Tuple[Optional[Module], List[Finding]]:
    """The nvidia module of that kernel (None when it is not there), and HT702, HT703."""
    told = {name: _modinfo(host, kernel.release, modprobe.behind(host, name)[-1]) for name in MODULES}
    nvidia = told["nvidia"]
    if isinstance(nvidia, Ran):
        return None, [_missing(host, kernel, "nvidia", nvidia)]
    uvm = told["nvidia-uvm"]
    if isinstance(uvm, Ran):
        return nvidia, [_missing(host, kernel, "nvidia-uvm", uvm)]
    bad = _flavour(host, kernel, nvidia) or _firmware(host, nvidia)
    loaded = (read_or_none(host, "/sys/module/nvidia/version") or "").strip()
    now = (
        ""
        if not loaded or not nvidia.version
        else ", as now"
        if loaded == nvidia.version
        else "; %s is loaded now" % loaded
    )
    fine = finding(
        "HT702",
        OK,
        "nvidia for %s" % kernel.release,
        "nvidia %s loads%s" % (nvidia.version or "of a version that modinfo does not tell", now),
        have=nvidia.version,
        proof=PROVED,
        evidence=(nvidia.path,),
    )
    return nvidia, [bad or fine, _signature(host, kernel, nvidia)]


def _modinfo(host: Host, release: str, name: str) -> Union[Module, Ran]:
    ran = host.run(["modinfo", "-k", release, name])
    rows: Dict[str, str] = {}
    for line in ran.out.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            rows.setdefault(key.strip(), value.strip())
    if ran.rc or "filename" not in rows:
        return ran
    return Module(rows["filename"], rows.get("version", ""), rows.get("license", ""), rows.get("signer", ""))


def _missing(host: Host, kernel: NextKernel, name: str, ran: Ran) -> Finding:
    subject = "%s for %s" % (name, kernel.release)
    if ran.rc == 127 or ran.timeout:
        why = "modinfo is not installed" if ran.rc == 127 else "modinfo gave no answer in %g s" % ran.timeout
        return finding("HT702", ERROR, subject, why, hint=Hint("apt install kmod", "host", "nothing is restarted", "apply"))
    real = modprobe.behind(host, name)[-1]
    others = [r for r in releases(host) if r != kernel.release and not isinstance(_modinfo(host, r, real), Ran)]
    evidence = [
        kernel.how,
        "modinfo -k %s %s: %s" % (kernel.release, real, (ran.err.strip().splitlines() or ["no file name"])[0]),
    ]
    if others:
        evidence.append("the kernels that have it: %s" % ", ".join(others[-3:]))
    command = "apt install %s && dkms autoinstall -k %s" % (headers(kernel.release), kernel.release)
    if not [entry for entry in list_or_empty(host, "/var/lib/dkms") if entry.startswith("nvidia")]:
        command = "apt install %s   # then install the driver's modules for %s" % (
            headers(kernel.release),
            kernel.release,
        )
    costs = "nothing is restarted; until then do not reboot, or pin a kernel that has it"
    if others and kernel.release.endswith("-pve"):
        costs += ": proxmox-boot-tool kernel pin %s" % others[-1]
    return finding(
        "HT702",
        FAIL,
        subject,
        "the kernel that boots next has no %s module: CUDA will not start" % name,
        have="absent",
        want="there",
        proof=PROVED,
        evidence=tuple(evidence),
        hint=Hint(command, "host", costs, "apply"),
    )


def _flavour(host: Host, kernel: NextKernel, nvidia: Module) -> Optional[Finding]:
    here = [
        gpu for gpu in bus.gpus(host) if gpu.driver != "vfio-pci"
    ]  # a virtual machine's is no business of these modules
    ids = {gpu.bdf: int(gpu.device, 16) for gpu in here if re.match(r"0x[0-9a-f]{4}\Z", gpu.device)}
    need_open = [bdf for bdf, device in ids.items() if device >= FIRST_OPEN_ONLY]
    need_closed = [bdf for bdf, device in ids.items() if device < FIRST_WITH_GSP]
    if nvidia.license == CLOSED and need_open:
        return _wrong(nvidia, ids, need_open, "open", "it needs the open ones", kernel)
    if nvidia.license == OPEN and need_closed:
        return _wrong(nvidia, ids, need_closed, "closed", "the open ones do not know it", kernel)
    return None


def _wrong(
    nvidia: Module, ids: Dict[str, int], bdfs: Sequence[str], want: str, why: str, kernel: NextKernel
) -> Finding:
    return finding(
        "HT702",
        FAIL,
        "nvidia for %s" % kernel.release,
        "the %s modules will load, and GPU %s will not start: %s"
        % ("closed" if want == "open" else "open", bdfs[0], why),
        have=nvidia.license,
        want=want,
        proof=FITS,
        decide="modinfo -k %s -F license nvidia; lspci -nns %s" % (kernel.release, bdfs[0]),
        evidence=(
            "%s: license %s" % (nvidia.path, nvidia.license),
            "%s/%s/device: 0x%04x" % (bus.DEVICES, bdfs[0], ids[bdfs[0]]),
        ),
        hint=Hint(
            "dkms status   # install the driver's %s kernel modules, version %s" % (want, nvidia.version),
            "host",
            "takes effect with the next boot",
            "look",
        ),
    )


def _firmware(host: Host, nvidia: Module) -> Optional[Finding]:
    """The open modules start no GPU without the GSP firmware of their own version."""
    folder = "/lib/firmware/nvidia/%s" % nvidia.version
    if (
        nvidia.license != OPEN
        or not nvidia.version
        or any(name.startswith("gsp_") for name in list_or_empty(host, folder))
    ):
        return None
    return finding(
        "HT702",
        FAIL,
        "nvidia %s" % nvidia.version,
        "the firmware of this version is not there: no GPU will start",
        have="absent",
        want=folder + "/gsp_*.bin",
        proof=PROVED,
        evidence=("%s: version %s" % (nvidia.path, nvidia.version), folder + ": no gsp_*.bin"),
        hint=Hint(
            "ls /lib/firmware/nvidia   # reinstall the driver's firmware of version %s" % nvidia.version,
            "host",
            "",
            "look",
        ),
    )


def _signature(host: Host, kernel: NextKernel, nvidia: Module) -> Finding:
    asks = _who_asks(host, kernel)
    subject = "nvidia for %s" % kernel.release
    if not asks:
        return finding("HT703", OK, subject, "no signature is asked for", have=nvidia.signer or "unsigned")
    if nvidia.signer:
        return finding(
            "HT703",
            OK,
            subject,
            "signed by %s" % nvidia.signer,
            have=nvidia.signer,
            proof=FITS,
            decide="mokutil --list-enrolled | grep CN=",
            evidence=(asks,),
        )
    return finding(
        "HT703",
        FAIL,
        subject,
        "the module has no signature, and the kernel will refuse it",
        have="unsigned",
        want="signed by an enrolled key",
        proof=PROVED,
        evidence=(asks, nvidia.path + ": no signer"),
        hint=Hint(
            "mokutil --import /var/lib/dkms/mok.pub && dkms install --force -m nvidia -v %s -k %s"
            % (shlex.quote(nvidia.version), kernel.release),
            "host",
            "asks for a password once, and again at the console in the next boot",
        ),
    )


def _who_asks(host: Host, kernel: NextKernel) -> str:
    """What makes the kernel refuse unsigned modules, "" if nothing does."""
    if "module.sig_enforce=1" in (kernel.words or ()) or "module.sig_enforce" in (kernel.words or ()):
        return "the next kernel's command line: module.sig_enforce"
    if (read_or_none(host, SIG_ENFORCE) or "").strip() == "Y":
        return "%s: Y" % SIG_ENFORCE
    if (bytes_or_none(host, SECURE_BOOT) or b"")[4:5] == b"\x01":
        return "%s: on" % SECURE_BOOT
    lockdown = (read_or_none(host, LOCKDOWN) or "").strip()
    return "%s: %s" % (LOCKDOWN, lockdown) if "[" in lockdown and "[none]" not in lockdown else ""
