# SPDX-License-Identifier: Apache-2.0
"""`hosttune` and `python -m hosttune`. The version is answered before anything heavy is imported: scripts ask often."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; returns the exit code (0 clean, 1 findings, 2 no report, 130 interrupted)."""
    if sys.argv[1:] == ["--version"]:
        from . import __version__

        sys.stdout.write("hosttune %s\n" % __version__)
        return 0
    from .cli import main as cli

    return cli()


if __name__ == "__main__":
    sys.exit(main())
