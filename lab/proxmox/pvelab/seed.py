# SPDX-License-Identifier: Apache-2.0
"""Fill a new config.db: `python3 -m pvelab.seed DATABASE NODE FOLDER`; FOLDER holds the guests' files."""

from __future__ import annotations

import sys
from pathlib import Path

from .tree import Control, Tree


def seed(database: Path, node: str, folder: Path) -> None:
    """Make the database with one node, its guests and a storage.cfg; one that exists is left alone."""
    if database.exists():
        return
    tree = Tree(database, node, Control(Path("/nonexistent")))
    tree.open()
    for name in ("nodes", "priv", f"nodes/{node}", f"nodes/{node}/lxc", f"nodes/{node}/qemu-server", f"nodes/{node}/priv"):
        tree.mkdir(name)
    files = {f"nodes/{node}/lxc/{path.name}": path.read_bytes() for path in sorted(folder.glob("*.conf"))}
    files["storage.cfg"] = b"dir: local\n\tpath /var/lib/vz\n\tcontent snippets,rootdir\n"
    for name, data in files.items():
        tree.create(name)
        tree.write(name, data, 0)
    tree.close()


if __name__ == "__main__":
    seed(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
