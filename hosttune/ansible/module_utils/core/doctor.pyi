# SPDX-License-Identifier: Apache-2.0
from hosttune.core.doctor import examine as examine
