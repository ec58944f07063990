# SPDX-License-Identifier: Apache-2.0
from hosttune.core.lxc import outlook as outlook
from hosttune.core.lxc import sync as sync
