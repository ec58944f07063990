# SPDX-License-Identifier: Apache-2.0
from hosttune.core.wanted import profile as profile
