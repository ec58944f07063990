# SPDX-License-Identifier: Apache-2.0
from hosttune.core.lxc import cuda as cuda
from hosttune.core.lxc import fleet as fleet
from hosttune.core.lxc import outlook as outlook
from hosttune.core.lxc import patience as patience
from hosttune.core.lxc import see as see
from hosttune.core.lxc import vms as vms
