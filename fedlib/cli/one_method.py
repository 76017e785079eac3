"""Commands: train a method here or across machines, and use what was trained."""
import json
import shlex
import sys
from pathlib import Path

import click

from fedlib.cli.options import CLIENT, DEVICE, JSON, MODEL_OF, show_progress
from fedlib.core.errors import UserError


class Cores(click.IntRange):
    """A number of processes, or "auto"."""

    def convert(self, value, param, ctx):
        return value if value == "auto" else super().convert(value, param, ctx)


@click.command()
@click.argument("method", required=False)
@click.option("--from", "own", metavar="FILE.py:METHOD", help="A method of a file of your own, in METHOD's place.")
@click.option("--data", "dataset", default="mini_digits", show_default=True, help="Dataset, or FILE.py:DATASET.")
@click.option("--rounds", help="Communication rounds [default: 20].")
@click.option("--seed", default="0", show_default=True, help="One, or several like 0,1,2.")
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE",
              help="A setting of the method, protocol, net or data: mu=0.1, lr=0.05, net=resnet10, clients=3,2,1,4.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True,
              help="Folder for the record.")
@click.option("--save", is_flag=True, help="Keep the model beside the record, for `fedlib predict` and `evaluate`.")
@click.option("--threads", type=click.IntRange(1, 1024), default=1, show_default=True,
              help="CPU threads. More can be faster; sums are then rounded differently.")
@click.option("--cores", type=Cores(min=1), default=1, show_default=True,
              help="Processes that clients are dealt out to, or auto: all, if that is faster. The record is the same.")
@DEVICE
@JSON
def train(method, own, dataset, rounds, seed, sets, out, save, threads, cores, device, as_json):
    """Train METHOD and write one record for each seed below --out. Started again after a kill it continues."""
    import torch
    from tqdm import tqdm

    from fedlib.core import machine
    from fedlib.engine import loop, records, stack
    from fedlib.engine.run import run_in_words
    from fedlib.methods import own_code
    from fedlib.probes import kept_models
    from fedlib.remote.cores import among
    if bool(method) == bool(own):
        raise UserError("name one method: METHOD (`fedlib methods` lists them) or --from FILE.py:METHOD")
    method, dataset = own_code.method_name(own) if own else method, own_code.dataset_name(dataset)
    sets = list(map(own_code.net_word, sets))
    sets = with_usual(dataset, sets)
    runs, made = [run_in_words(method, dataset, rounds, one, sets) for one in seed.split(",")], []
    machine.check_device(device)
    if cores != 1 and (save or threads > 1):
        raise UserError(f"--cores goes with one thread each and without --save, which keeps the nets of one process: "
                        f"leave {'--save' if save else '--threads'} out")
    if slow := machine.slow(runs[0].protocol.precision, device):
        click.echo(slow, err=True)
    torch.set_num_threads(threads)
    line = show_progress(sys.stderr, wait=True)
    for run in runs:
        kept_models.check_data(run, out)
        if save and (run.path(out).exists() > run.beside(out, kept_models.KIND).exists()):
            click.echo("the record is there without its net: it is trained again to keep it", err=True)
        elif run.path(out).exists():
            click.echo("the record is there: nothing is trained", err=True)
        with tqdm(total=run.protocol.rounds, unit="round", desc=named(run), disable=None) as bar:
            def say(event, bar=bar, run=run):
                bar.update(event["round"] - bar.n)
                bar.set_postfix_str(event["test"])
                if bar.disable:
                    line(f"{named(run)}, seed {run.seed}: round {event['round']} of {event['rounds']}, {event['test']}")
            how = {"device": device, "say": say, "stack": stack.usual(device)}
            model = {"model": str(kept_models.keep(run, out, **how))} if save else {}
            path = loop.train(run, out, deal=among(cores), **how)
        made.append({"record": str(path), "acc": records.read_record(path)["rounds"][-1]["acc"]} | model)
        if not as_json:
            for domain, value in made[-1]["acc"].items():
                click.echo(f"{domain:<14} {value:6.2f} %")
            click.echo("\n".join(f"{what}: {made[-1][what]}" for what in ("record", *model)))
    if as_json:
        click.echo(json.dumps(made if len(made) > 1 else made[0]))


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("pictures", nargs=-1, required=True, type=click.Path(path_type=Path))
@MODEL_OF
@CLIENT
@click.option("--skip-corrupt", is_flag=True, help="Leave unreadable pictures out, and name them.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the CSV to this file.")
@DEVICE
def predict(model, pictures, own, client, skip_corrupt, out, device):
    """What MODEL says of PICTURES: label and probabilities, as a CSV.

    PICTURES: files or folders, or a CSV of texts or numbers.
    """
    from fedlib.core.files import write_bytes
    from fedlib.probes import kept_models, predictions
    kept, skipped = kept_models.load(model, device, own), [] if skip_corrupt else None
    rows = predictions.predict(kept, pictures, client, skipped)
    for line in skipped or ():
        click.echo(f"left out: {line}", err=True)
    if not rows:
        raise UserError("none of the pictures can be read")
    text = predictions.as_csv(kept, rows)
    if not out:
        return click.echo(text, nl=False)
    write_bytes(out, text.encode())
    click.echo(f"{len(rows)} predictions: {out}")


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--data", "dataset", required=True, help="A prepared dataset, or FILE.py:DATASET.")
@MODEL_OF
@CLIENT
@click.option("--all", "every", is_flag=True, help="Every sample, not the test part only.")
@DEVICE
@JSON
def evaluate(model, dataset, own, client, every, device, as_json):
    """Test MODEL at each site of a dataset.

    Accuracy, balanced accuracy, AUC, F1, calibration and confusion.
    """
    from fedlib.methods import own_code
    from fedlib.probes import kept_models, scores
    kept = kept_models.load(model, device, own)
    found = scores.evaluate(kept, own_code.dataset_name(dataset), client, every)
    click.echo(json.dumps(found, indent=1) if as_json else scores.in_words(found))


@click.command()
@click.argument("method")
@click.option("--data", "dataset", default="mini_digits", show_default=True, help="Dataset; a node may name its own.")
@click.option("--rounds", default=20, show_default=True, type=click.IntRange(min=1), help="Communication rounds.")
@click.option("--seed", default=0, show_default=True)
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="As in `fedlib train`.")
@click.option("--results", default="runs", show_default=True, help="Folder for the record, on the server.")
@click.option("--timeout", default=600.0, show_default=True, help="Seconds a node has for an answer.")
@click.option("--node", "nodes", multiple=True, metavar="DOMAIN=ID", help="Only this node speaks for the domain.")
@click.option("--secure", is_flag=True, help="The server learns the mean of the uploads only (Flower's SecAgg+).")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the app.")
def flower(method, dataset, rounds, seed, sets, results, timeout, nodes, secure, out):
    """Write a Flower app that trains METHOD across machines.

    `flwr run FOLDER` starts it. Needs no data here.
    """
    from fedlib.engine.run import run_in_words
    from fedlib.remote.app import write_app
    sets = with_usual(dataset, list(sets))
    run_in_words(method, dataset, rounds, seed, sets)
    if not 0 < timeout < float("inf"):
        raise UserError(f"the time limit is {timeout:g} s; it has to be above 0")
    bound = dict(pair.rpartition("=")[::2] for pair in nodes)
    if not all(domain and number.isdecimal() for domain, number in bound.items()):
        raise UserError("--node is DOMAIN=ID, as in scans=1234: the number that `flwr supernode register` printed")
    write_app(out, {"method": method, "data": dataset, "rounds": rounds, "seed": seed, "set": shlex.join(sets),
                    "results": results, "timeout": timeout} | ({"secure": True} if secure else {})
                   | ({"nodes": json.dumps(bound)} if bound else {}))
    click.echo(f"app: {out}")


def named(run) -> str:
    """Method, data and the size that is taken where nobody names one."""
    from fedlib.datasets.prepare import with_unit
    from fedlib.datasets.registry import reader_of
    name, size = run.data.name, run.data.size
    return f"{run.method}, {name} at {with_unit(name, size or reader_of(name).SIZES[0])}"


def with_usual(dataset: str, sets: list[str]) -> list[str]:
    """The settings, after those for data that are no images where nobody names a net."""
    from fedlib.engine.run import usual_settings
    if any(word.startswith(("net=", "encoder=")) for word in sets) or not (usual := usual_settings(dataset)):
        return sets
    click.echo(f"{' '.join(usual)}, as {dataset} holds no images (--set net=... for another)", err=True)
    return [*usual, *sets]


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--port", default=9094, show_default=True, type=click.IntRange(1, 65535),
              help="Where its own processes meet, on this machine alone.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def node(port, words):
    """Be a node of a federation.

    `flower-supernode` with its WORDS, torch loaded once for all messages.
    """
    try:
        from fedlib.remote.node import connect
    except ModuleNotFoundError as error:
        raise UserError(f"a node needs Flower ({error}): pip install 'fed-across-domains[flower]'") from None
    connect(list(words), port)
