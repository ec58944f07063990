# SPDX-License-Identifier: Apache-2.0
from hosttune.core.unattended import bound as bound
