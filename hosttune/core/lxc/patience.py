# SPDX-License-Identifier: Apache-2.0
"""Wait for the cluster's quorum: without it /etc/pve takes no write. One patience for all containers of one run."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Callable

from ..door.host import Host
from . import store


@dataclass
class Patience:
    """seconds: how long to wait in all. say: told once, when a wait begins."""

    seconds: int
    say: Callable[[str], None] = lambda line: None
    told: bool = field(default=False)

    def wait(self, host: Host) -> bool:
        """Whether /etc/pve takes writes, now or before the patience is at its end."""
        while not store.has_quorum(host):
            if self.seconds <= 0:
                return False
            if not self.told:
                self.say("no quorum: waiting up to %d s" % self.seconds)
                self.told = True
            self.seconds -= 1
            time.sleep(1)
        return True
