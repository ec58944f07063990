# SPDX-License-Identifier: Apache-2.0
# For the type checker only: in the collection, plugins/module_utils/core is a link to hosttune/core.
from hosttune.core import afterlife as afterlife
from hosttune.core import engine as engine
from hosttune.core import installed as installed
from hosttune.core import knobs as knobs
from hosttune.core import model as model
from hosttune.core import place as place
from hosttune.core import task as task
