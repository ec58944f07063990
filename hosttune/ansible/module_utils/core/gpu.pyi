# SPDX-License-Identifier: Apache-2.0
from hosttune.core.gpu import gpus as gpus
