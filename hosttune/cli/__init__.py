# SPDX-License-Identifier: Apache-2.0
"""The command line. Each command has a file of its own, imported only when it is called: start-up is felt every time."""

from __future__ import annotations

import errno
import importlib
import os
import re
import sys

import click

from .. import __version__
from ..core.model import Refused
from . import streams

COMMANDS = {
    "status": "after a reboot: what survived, what is gone, what would be done",
    "doctor": "why CUDA does not start, with proof and the exact fix",
    "check": "compare the settings of this host with what is wanted",
    "apply": "make them so, read back, journalled",
    "revert": "take back what hosttune changed, newest first",
    "journal": "what hosttune changed here",
    "watch": "keep the settings when a GPU comes back or its driver is loaded",
    "topo": "sockets, NUMA nodes, PCIe links and GPUs as a picture",
    "lxc": "device access of LXC containers",
    "stage": "models into memory, verified, and seen by containers",
    "bench": "measure a running engine by a plan, and report",
    "unit": "inference engines as systemd units",
    "preflight": "go or no-go before anything is measured",
    "explain": "the page of a finding",
    "list": "every knob and finding",
}
"""Each is `hosttune.cli.NAME:command`. The help text stands here so that --help imports none of them."""


class Lazy(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of a day's work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """None for an unknown name: click then says what is known."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module("." + {"list": "list_all"}.get(cmd_name, cmd_name), __package__)
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A mistyped command is told the nearest: click knows only those that are imported."""
        if args[0] not in COMMANDS:
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            if near:
                ctx.fail("No such command '%s'. Did you mean '%s'?" % (args[0], near[0]))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table above, without importing a command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="hosttune %(version)s")
def hosttune() -> None:
    """See, judge and change a host with many GPUs.

    Exit code: 0 clean, 1 something failed or could not be told, 2 no report could be made.
    """


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = sys.argv[1:] if argv is None else argv
    streams.repair()
    try:
        _no_empty_value(args)
        done = hosttune.main(args=args, prog_name="hosttune", standalone_mode=False)
        return done if isinstance(done, int) else 0
    except click.exceptions.NoArgsIsHelpError as e:
        click.echo(e.ctx.get_help() if e.ctx else "", err=True)
        return 2
    except click.ClickException as e:
        e.show()
        _document(Refused(e.format_message(), "command line", "hosttune --help"), args)
        return 2
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; the next run finishes or drops what was begun", err=True)
        return 130
    except Refused as e:
        _refused(e, args)
        return 2
    except (BrokenPipeError, SystemExit):  # click ends by SystemExit when nobody reads the pipe any more
        return _unread()
    except OSError as e:
        _refused(Refused(e.strerror or str(e), str(e.filename or ""), _WAYS_OUT.get(e.errno or 0, "")), args)
        return 2
    except Exception as e:
        import traceback

        traceback.print_exc()
        what = "this is a defect of hosttune: %s: %s" % (type(e).__name__, e)
        _refused(Refused(what, "hosttune " + " ".join(args), "report it, with what stands above"), args)
        return 2


_WAYS_OUT = {
    errno.EACCES: "run it as root",
    errno.EPERM: "run it as root",
    errno.ENOSPC: "free space on that file system (df -h)",
    errno.EROFS: "that file system is read-only: mount it writable, or use another machine",
}


def _no_empty_value(args: list[str]) -> None:
    """Refused: `--host "$UNSET"` would look at this machine in place of that one, without a word."""
    for word, after in zip(args, [*args, "-"][1:], strict=True):
        if word == "--":
            return
        name, equals, value = word.partition("=")
        if name.startswith("--") and "" == (value if equals else after):
            raise Refused("its value is empty", name, "leave it out, or is a variable of the shell unset?")


def _unread() -> int:
    """Nobody reads what we print (`| head`): no traceback when Python flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 141


def _refused(e: Refused, args: list[str]) -> None:
    from ..render.visible import visible

    _document(e, args)
    click.echo(visible("hosttune: %s%s" % (e.where + ": " if e.where else "", e.what)), err=True)
    if e.way_out:
        click.echo("  way out: %s" % visible(e.way_out, "\n"), err=True)


def _document(e: Refused, args: list[str]) -> None:
    """One document on stdout, also when there is no report, if JSON was asked for."""
    if "json" in [_output(word, after) for word, after in zip(args, [*args, ""][1:], strict=True)]:
        from ..render.as_json import refusal

        click.echo(refusal(" ".join(args), e), nl=False)


def _output(word: str, following: str) -> str:
    """What a word of the command line says of --output, in itself or by the word after it; "" for nothing."""
    if word == "--output" or re.fullmatch(r"-[a-z]*o", word):
        return following
    found = re.fullmatch(r"--output=(.*)|-[a-z]*?o(json|junit|text)", word)
    return found.group(1) or found.group(2) or "" if found else ""
