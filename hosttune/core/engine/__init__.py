# SPDX-License-Identifier: Apache-2.0
"""See, judge, change: everything that any face may do with knobs and steps.

check, plan  what a setting is, whether that will do, the one step that would mend it (judge.py)
apply        under one lock: finish or drop what a killed run left, then each step: intent, effect, read back, done
recover      what a killed run left open
revert       the journal backwards, each file and value only if it is still what hosttune wrote
tune         check, plan and apply the settings that are wanted
"""

from .apply import apply, recover
from .judge import check, plan
from .revert import revert, revertible
from .tune import Tuned, tune, wants_of

__all__ = ["check", "plan", "apply", "recover", "revert", "revertible", "tune", "Tuned", "wants_of"]
