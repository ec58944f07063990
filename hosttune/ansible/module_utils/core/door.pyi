# SPDX-License-Identifier: Apache-2.0
from hosttune.core.door import host as host
from hosttune.core.door import live as live
