# SPDX-License-Identifier: Apache-2.0
"""A parameter of a kernel module. It is taken when the module is loaded, so "now" is only told, and "boot" is a file of
hosttune's own in modprobe.d, refused while something that counts later says otherwise."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping

from ..configured import dropins, module_options
from ..door.host import Host, read_or_none
from ..model import OPT_IN, Knob, Reading, Refused, Step

TEXT = (
    "# hosttune: `hosttune revert` takes the file away. If the module is in the initramfs: update-initramfs -u\n"
    "options %s %s=%s\n"
)


def module_knob(
    *,
    id: str,
    name: str,
    module: str,
    parameter: str,
    now: Callable[[Host], str],
    words: Mapping[str, str],
    default: str,
    want: str,
    skip: Callable[[Host], str],
    **more: Any,
) -> Knob:
    """An opt-in knob of one parameter. now(host) -> what the loaded module has. words: {what a person says: the value};
    default: the word for what the module does unless it is told."""
    file = "/etc/modprobe.d/hosttune-%s.conf" % name

    def word(value: str) -> str:
        return next((said for said, each in words.items() if module_options.same(each, value)), value)

    def read(host: Host) -> Dict[str, Reading]:
        option = module_options.deciding(host, module, parameter)
        boot = (
            Reading(word(option.value), where=option.where)
            if option
            else Reading(default, where="the driver's default")
        )
        return {"now": Reading(word(now(host))), "boot": boot}

    def step(host: Host, subject: str, have: str, want: str) -> Step:
        if subject == "now":
            raise Refused(
                "a module takes it when it is loaded", "%s %s" % (module, parameter), "# reboot, once boot is right"
            )
        option = module_options.deciding(host, module, parameter)
        if option and (not option.path.endswith(".conf") or dropins.basename(option.path) > dropins.basename(file)):
            raise Refused(
                "something that counts later sets it", option.where, "# take %s=%s out there" % (parameter, option.value)
            )
        return Step(id, subject, "replace", file, read_or_none(host, file), TEXT % (module, parameter, words[want]))

    def check(want: str) -> str:
        return "" if want in words else "%s is none of %s" % (want or "an empty text", ", ".join(words))

    return Knob(id=id, name=name, want=want, read=read, step=step, check=check, skip=skip, recommend=OPT_IN,
                persists=file, **more)  # fmt: skip
