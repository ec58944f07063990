# SPDX-License-Identifier: Apache-2.0
"""Every judgement about the next boot of one host, in the order in which the boot will meet them. Asks only."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence, TypeVar

from ..catalogue import finding
from ..door.host import Host, Unrecorded, errname
from ..machine import container
from ..model import ERROR, WARN, Finding, Hint, Refused, Report
from ..recording.record import RecordingHost
from ..recording.shape import SCHEMA
from ..wanted.profile import Profile
from . import boot_files, guests, kernel, libraries, majors, module, nodes, ownership, promises, upkeep
from .kept import kept
from .kernel import NextKernel

CACHES = ("/root/.cache/huggingface/hub",)
"""Where the boot unit, which is root without an environment, looks for a model of the hub."""
T = TypeVar("T")


def recorded(host: Host, profile: Profile) -> Dict[str, Any]:
    """A recording of this machine's answers: next_boot of its machine "host" says the same anywhere. Refused in a container."""
    recorder = RecordingHost(host, kept)
    next_boot(recorder, profile)
    return {"schema": SCHEMA, "machines": {"host": recorder.view}}


def next_boot(host: Host, profile: Profile, caches: Sequence[str] = CACHES) -> Report:
    """A report on this host's next boot. Refused inside a container: it boots no kernel.

    What could not be asked is one HT903 (or HT902 of a recording) and keeps nothing else from being judged.
    """
    inside = container.inside(host)
    if inside:
        raise Refused(
            "a container boots no kernel (%s)" % inside, "--next-boot", "run it on the host of this container"
        )
    found: List[Finding] = []
    next_one = _ask("next kernel", partial(kernel.next_kernel, host), found)
    if next_one or not found:
        found += _judged("next kernel", lambda: [kernel.judge(host, next_one)])
    seen = _ask("containers", partial(guests.read, host), found) or []
    loads = _of_kernel(host, next_one, found) if next_one else None
    found += _judged("device nodes", partial(nodes.judge, host, seen, profile))
    found += _judged("device numbers", partial(majors.judge, host, seen, profile))
    if loads is not None:
        found += _judged("libraries", partial(libraries.judge, host, loads, seen))
    found += _judged("models", partial(promises.models, host, profile, caches))
    found += _judged("settings", partial(promises.settings, host, profile))
    found += _judged("packages", partial(upkeep.judge, host))
    facts = {"boots next": next_one.release if next_one else "", "runs": host.uname()[1]}
    return Report("doctor --next-boot", host.uname()[0], facts=facts, findings=tuple(found))


def _of_kernel(host: Host, next_one: NextKernel, found: List[Finding]) -> Optional[module.Module]:
    looked = _ask("modules", partial(module.look, host, next_one), found)
    found += looked[1] if looked else []
    found += _judged("initramfs", lambda: [f for f in [boot_files.judge(host, next_one)] if f])
    found += _judged("drivers of GPUs", partial(ownership.judge, host, next_one))
    return looked[0] if looked else None


def _judged(what: str, judge: Callable[[], List[Finding]]) -> List[Finding]:
    found: List[Finding] = []
    return (_ask(what, judge, found) or []) + found


def _ask(what: str, ask: Callable[[], T], found: List[Finding]) -> Optional[T]:
    """The answer, or None and a finding that says why there is none."""
    try:
        return ask()
    except OSError as e:
        why = "%s%s" % (errname(e), ": %s" % e.filename if e.filename else "")
        as_root = Hint("sudo hosttune doctor --next-boot", "host", "", "look")
        found.append(finding("HT903", ERROR, what, "could not be told: " + why, hint=as_root))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as e:
        if isinstance(e, Unrecorded):
            found.append(finding("HT902", WARN, what, str(e)))
        else:  # an answer of another shape
            found.append(finding("HT903", ERROR, what, "not understood: %s" % str(e)[:200]))
    except Refused as e:
        found.append(finding("HT903", ERROR, e.where or what, e.what, hint=Hint(e.way_out, "host")))
    return None
