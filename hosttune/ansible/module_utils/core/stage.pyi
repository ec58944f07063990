# SPDX-License-Identifier: Apache-2.0
from hosttune.core.stage import add as add
from hosttune.core.stage import declared as declared
from hosttune.core.stage import plan as plan
from hosttune.core.stage import source as source
