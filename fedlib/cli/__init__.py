"""The command line: what there is, data, single runs, tables, status, measurements. `fedlib -h` lists the commands."""
import os
import sys

import click

from fedlib import __version__
from fedlib.cli import found, one_method, tables, what_there_is
from fedlib.core.errors import UserError, nearest


class Group(click.Group):
    """Unknown commands get the nearest right one; a user's mistake is one line and exit code 2."""

    def resolve_command(self, context, args):
        if args and args[0] not in self.commands:
            raise UserError(f"unknown command '{args[0]}'{nearest(args[0], self.commands)} "
                            f"(commands: {', '.join(self.commands)})")
        return super().resolve_command(context, args)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fedlib", message="%(prog)s %(version)s")
def cli():
    """Federated learning across domains: train methods, run and show the papers' tables."""


for part in (what_there_is, one_method, tables, found):
    for command in [c for c in vars(part).values() if isinstance(c, click.Command)]:
        cli.add_command(command)


def main(*first: str):
    """Entry point; a data script is `fedlib data NAME`: these words come first."""
    sys.exit(call([*first, *sys.argv[1:]] or ["--help"]))


def call(arguments: list) -> int:
    """Run a command and return its exit code; a mistake of the user's is one line on stderr and 2."""
    try:
        return cli(arguments, standalone_mode=False) or 0
    except UserError as error:
        return fail(error)
    except click.ClickException as error:
        return fail(error.format_message())
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):       # torch's words
            raise
        return fail("a client trains on one sample, and batch-norm has no spread of one: take normalisation = group, a "
                    "larger batch or fewer clients")
    except (KeyboardInterrupt, click.Abort):        # Abort is a RuntimeError
        return fail("interrupted; run it again to continue", 130)
    except (MemoryError, RuntimeError) as error:
        from fedlib.experiments import failures  # torch is there by now, and takes two seconds where it is not
        if not failures.lacked_memory(error):
            raise
        return fail("the memory does not hold this net and its batches: take a smaller width, size or batch")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:        # a full disk, say
        return fail(error)


def fail(message, code: int = 2) -> int:
    """Say it in one line on stderr."""
    print(f"fedlib: {' '.join(str(message).split())}", file=sys.stderr)
    return code
