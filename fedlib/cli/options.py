"""Options that several commands have, and how they speak."""
import os
import sys
import time
from pathlib import Path

import click

from fedlib.core import settings
from fedlib.core.errors import UserError

SECONDS = 10        # between lines of progress where there is no terminal
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for a program.")
RESULTS = click.option("--results", type=click.Path(path_type=Path), help="Folder of records [default: results/].")
SELECT = click.option("--select", "rule",
                      help="last, last5, best-val, best-val-loss or best-test [default: the table's].")
PROFILE = click.option("--profile", default="mini", show_default=True, help="mini, lite or paper.")
CLIENT = click.option("--client", help="Whose net, where each client has its own: a site's name.")
MODEL_OF = click.option("--from", "own", metavar="FILE.py:NAME", help="MODEL's method or net, if it is your own.")
CPU = click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N.")


def forms(command):
    """Options for other programs."""
    for form in ("csv", "latex", "html", "markdown"):
        command = click.option(f"--{form}", "form", flag_value=form, help=f"Print {form}.")(command)
    return command


def alone(form: str, **others):
    """A form of a table goes with no other way to print what was found."""
    if also := [f"--{name}" for name, given in others.items() if given]:
        raise UserError(f"--{form} and {also[0]}: choose one")


def on_device(context, option, word: str) -> str:
    """What --device stands for; a GPU that was found and not asked for is said."""
    from fedlib.core import machine
    device = machine.chosen(word)
    if device != word and device != "cpu":
        click.echo(f"device: {device} ({machine.described(device)['hardware']})", err=True)
    return device


DEVICE = click.option("--device", default="auto", show_default=True, callback=on_device,
                      help="auto (a GPU where there is one), cpu, cuda or cuda:N.")


def told(results):
    """Where there is no folder of records, that is said."""
    from fedlib.experiments.results import absent, results_folder
    if missing := absent(results_folder(results)):
        click.echo(missing, err=True)


def parse_seeds(text: str | None) -> list[int] | None:
    """'0,1,2' -> [0, 1, 2]."""
    return None if text is None else list(dict.fromkeys(settings.convert(int, s, "seed") for s in text.split(",")))


def show_progress(stream=None, wait: bool = False):
    """One line that is renewed on a terminal; elsewhere a line every ten seconds, the first at once or after them."""
    stream = stream or sys.stdout
    if stream.isatty():
        return lambda line: click.echo(f"\r\033[K{line[:os.get_terminal_size().columns - 1]}", stream, nl=False)
    last = [time.monotonic() - (0 if wait else SECONDS)]

    def say(line):
        if time.monotonic() - last[0] >= SECONDS:
            last[0] = time.monotonic()
            click.echo(line, stream)
    return say
