# SPDX-License-Identifier: Apache-2.0
"""The setting that brings the boot units, bound to a profile and to this very code."""

from __future__ import annotations

import json
from typing import Dict, Tuple

from ..door.host import digest
from ..knobs import BY_ID, KNOBS, boot_units
from ..model import Knob
from ..wanted.profile import Profile


def with_profile(profile: Profile) -> Tuple[Dict[str, Knob], Dict[str, Knob]]:
    """The knobs by name and by id, the boot units bound to this profile and this code. Without a profile: as they are."""
    from .. import corezip
    from ..stage import source
    from . import main  # noqa: F401  the archive begins with it, so it has to be here: Ansible sends what is imported

    if not profile.plain:
        return KNOBS, BY_ID
    text = json.dumps(profile.plain, indent=1, sort_keys=True) + "\n"
    # hf: is no reason to wait: at boot it means the cache on this machine, and nothing is fetched.
    far = any(source.ssh_of(str(model["source"])) for model in profile.models.values())
    bound = boot_units.bound(text, "sha256:" + digest(corezip.archive()), far)
    return dict(KNOBS, **{bound.name: bound}), dict(BY_ID, **{bound.id: bound})
