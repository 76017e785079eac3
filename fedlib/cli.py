"""The command line: what there is, data, single runs, tables, status, measurements. `fedlib -h` lists the commands."""
import datetime
import json
import os
import sys
import time
from pathlib import Path

import click

from fedlib import __version__
from fedlib.core import settings
from fedlib.core.errors import UserError, nearest, pick

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for a program.")
RESULTS = click.option("--results", type=click.Path(path_type=Path), help="Folder of records [default: results/].")
SELECT = click.option("--select", "rule",
                      help="last, last5, best-val, best-val-loss or best-test [default: the table's].")


def told(results):
    """Where there is no folder of records, that is said."""
    from fedlib.experiments.results import absent, results_folder
    if missing := absent(results_folder(results)):
        click.echo(missing, err=True)


SECONDS = 10        # between lines of progress where there is no terminal
PROFILE = click.option("--profile", default="mini", show_default=True, help="mini, lite or paper.")


def forms(command):
    """Options for other programs."""
    for form in ("csv", "latex", "html", "markdown"):
        command = click.option(f"--{form}", "form", flag_value=form, help=f"Print {form}.")(command)
    return command


def on_device(context, option, word: str) -> str:
    """What --device stands for; a GPU that was found and not asked for is said."""
    from fedlib.core import machine
    device = machine.chosen(word)
    if device != word and device != "cpu":
        click.echo(f"device: {device} ({machine.described(device)['hardware']})", err=True)
    return device


DEVICE = click.option("--device", default="auto", show_default=True, callback=on_device,
                      help="auto (a GPU where there is one), cpu, cuda or cuda:N.")
CLIENT = click.option("--client", help="Whose net, where each client has its own: a site's name.")
MODEL_OF = click.option("--from", "own", metavar="FILE.py:NAME", help="MODEL's method or net, if it is your own.")
CPU = click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N.")


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
    except (KeyboardInterrupt, click.Abort):
        return fail("interrupted; run it again to continue", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def fail(message, code: int = 2) -> int:
    """Say it in one line on stderr."""
    print(f"fedlib: {' '.join(str(message).split())}", file=sys.stderr)
    return code


# what there is

@cli.command()
@click.option("--net", help="Also count bytes and passes per round for this net, in a tiny federation.")
@click.option("--width", default="0", help="The net's width [default: the published one].")
@click.option("--classes", default=10, show_default=True, type=click.IntRange(min=2))
@click.option("--shape", default="3,32,32", show_default=True, help="Of one sample: an image's, or a vector's length.")
@click.option("--clients", default=10, show_default=True, type=click.IntRange(min=1))
@JSON
def methods(net, width, classes, shape, clients, as_json):
    """List the methods: kind of change, settings with defaults, limit. FedAvg's settings hold for all."""
    from fedlib.report import zoo
    lines = zoo.listing()
    if net:
        shape = settings.convert(tuple[int, ...], shape, "--shape", least=1)
        zoo.add_costs(lines, {"net": net, "width": width}, classes, shape, clients)
    click.echo(json.dumps(lines, indent=1) if as_json else zoo.listing_text(lines))


@cli.command()
@JSON
def datasets(as_json):
    """List the datasets: domains, classes, and what is prepared here."""
    from fedlib.datasets import prepare
    lines = prepare.listing()
    click.echo(json.dumps(lines, indent=1) if as_json else prepare.listing_text(lines))


@cli.command()
@click.argument("name")
@click.option("--from", "root", type=click.Path(path_type=Path),
              help="Your raw files [default: FEDLIB_RAW]; of a new NAME your own pictures, or a CSV.")
@click.option("--size", type=int, help="Pixels per side (images), or tokens per text.")
@click.option("--domains", help="Download only what these need, like mnist,usps.")
@click.option("--skip-corrupt", is_flag=True, help="Leave unreadable images out; the manifest names them.")
@click.option("--download", is_flag=True, help="Get the published files even where FEDLIB_RAW is set.")
@click.option("--layout", help="Of your own: what its folders are, like class/site or site/class/patient.")
@click.option("--seed", type=click.IntRange(min=0), help="Of your own: of the test part that is drawn [default: 0].")
def data(name, root, size, domains, skip_corrupt, download, layout, seed):
    """Prepare a dataset: raw files to one tensor file and a manifest.

    Without --from and FEDLIB_RAW the published files are downloaded; a download that was cut continues. With --from, a
    NAME that no set has is that of your own: FOLDER/site/class/pictures, FOLDER/site/split/class/pictures, or a CSV
    with the columns path (or text, or numbers under any names), label, site and, where there are any, split and
    patient.
    """
    from fedlib.datasets import prepare, registry
    if ".py" in name:
        from fedlib.methods import own_code
        name = own_code.dataset_name(name)
    if root and name not in registry.DATASETS or layout or seed is not None:
        own = registry.own_files()
        return click.echo(prepare.summary(own.prepare_own(name, root, size, layout or "", seed or 0, skip_corrupt,
                                                          click.echo)))
    wanted = tuple(filter(None, (domains or "").split(",")))
    click.echo(prepare.summary(prepare.prepare(name, size, root, click.echo, skip_corrupt, download, wanted)))


@cli.command()
@click.option("--encoder", required=True, help="mini_clip, squeezenet1_1, mobilenet_v2@96, open_clip:ViT-B-32/openai.")
@click.option("--data", "name", required=True, help="A prepared dataset of images.")
@click.option("--size", type=int, help="Pixels per side of the prepared images [default: the dataset's first].")
@click.option("--batch", default=64, show_default=True, type=click.IntRange(min=1), help="Images at once.")
@click.option("--from", "source", type=click.Path(path_type=Path), help="A file made on another machine: verify, copy.")
@DEVICE
def features(encoder, name, size, batch, source, device):
    """Compute a frozen encoder's features of a dataset, once for all runs; or take them from a file.

    Started again after a kill it continues. Train on them with --set encoder=NAME --set net=linear.
    """
    from fedlib.core.machine import check_device
    from fedlib.datasets import feature_cache, prepare
    from fedlib.models import encoders
    prepare.load_set(name, size)        # its mistakes are said before weights are downloaded
    if source:
        path = feature_cache.adopt(source, name, size, encoder, click.echo)
    else:
        check_device(device)
        path = feature_cache.make_features(name, size, encoders.load_encoder(encoder).to(device), batch, click.echo)
    click.echo(feature_cache.summary(path))


@cli.command()
@click.argument("name", required=False)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0))
@click.option("--out", type=click.Path(path_type=Path), help="Write every client's indices to this JSON file.")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw who holds what: a .png, .svg or .pdf file.")
@click.option("--store", is_flag=True, help="Draw all (or NAME) and keep counts and digests with the package.")
@JSON
def partition(name, seed, out, picture, store, as_json):
    """List the papers' partitions, or show who holds what in NAME."""
    from fedlib.core.files import write_bytes
    from fedlib.experiments import named_partitions
    if store:
        absent = named_partitions.store([name] if name else list(named_partitions.all_named()), click.echo)
        return int(bool(absent and name))
    if not name:
        lines = named_partitions.listing()
        return click.echo(json.dumps(lines, indent=1) if as_json else named_partitions.listing_text(lines))
    spec = named_partitions.load_named(name).data
    found = named_partitions.drawn(spec, seed)
    if as_json:
        return click.echo(json.dumps(found))
    click.echo(named_partitions.in_words(name, found))
    if out:
        write_bytes(out, json.dumps(named_partitions.indices(spec, seed)).encode())
        click.echo(f"indices: {out}")
    if picture:
        from fedlib.report import plots
        plots.holdings(named_partitions.frame(found), "training samples").savefig(picture)
        click.echo(f"picture: {picture}")


# train one method

@cli.command()
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
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True,
              help="CPU threads. More can be faster; sums are then rounded differently.")
@click.option("--cores", type=click.IntRange(min=1), default=1, show_default=True,
              help="Processes that the clients are dealt out to. The record is the same.")
@DEVICE
@JSON
def train(method, own, dataset, rounds, seed, sets, out, save, threads, cores, device, as_json):
    """Train METHOD and write one record for each seed below --out. Started again after a kill it continues."""
    import torch
    from tqdm import tqdm

    from fedlib.core import machine
    from fedlib.engine import loop, records, stack
    from fedlib.engine.run import run_in_words, usual_settings
    from fedlib.methods import own_code
    from fedlib.probes import kept_models
    from fedlib.remote.cores import among
    if bool(method) == bool(own):
        raise UserError("name one method: METHOD (`fedlib methods` lists them) or --from FILE.py:METHOD")
    method, dataset = own_code.method_name(own) if own else method, own_code.dataset_name(dataset)
    sets = list(map(own_code.net_word, sets))
    if not any(word.startswith(("net=", "encoder=")) for word in sets) and (usual := usual_settings(dataset)):
        click.echo(f"{' '.join(usual)}, as {dataset} holds no images (--set net=... for another)", err=True)
        sets = [*usual, *sets]
    runs, made = [run_in_words(method, dataset, rounds, one, sets) for one in seed.split(",")], []
    machine.check_device(device)
    if cores > 1 and (save or threads > 1):
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
        with tqdm(total=run.protocol.rounds, unit="round", desc=run.method, disable=None) as bar:
            def say(event, bar=bar, run=run):
                bar.update(event["round"] - bar.n)
                bar.set_postfix_str(event["test"])
                if bar.disable:
                    line(f"{run.method}, seed {run.seed}: round {event['round']} of {event['rounds']}, {event['test']}")
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


@cli.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("pictures", nargs=-1, required=True, type=click.Path(path_type=Path))
@MODEL_OF
@CLIENT
@click.option("--skip-corrupt", is_flag=True, help="Leave unreadable pictures out, and name them.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the CSV to this file.")
@DEVICE
def predict(model, pictures, own, client, skip_corrupt, out, device):
    """What MODEL says of PICTURES, files or folders, or of a CSV's texts or numbers: label, probabilities, as a CSV."""
    from fedlib.core.files import write_bytes
    from fedlib.probes import kept_models, predictions
    kept, skipped = kept_models.load(model, device, own), [] if skip_corrupt else None
    rows = predictions.predict(kept, pictures, client, skipped)
    for line in skipped or ():
        click.echo(f"left out: {line}", err=True)
    text = predictions.as_csv(kept, rows)
    if not out:
        return click.echo(text, nl=False)
    write_bytes(out, text.encode())
    click.echo(f"{len(rows)} predictions: {out}")


@cli.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--data", "dataset", required=True, help="A prepared dataset, or FILE.py:DATASET.")
@MODEL_OF
@CLIENT
@click.option("--all", "every", is_flag=True, help="Every sample, not the test part only.")
@DEVICE
@JSON
def evaluate(model, dataset, own, client, every, device, as_json):
    """Accuracy, balanced accuracy, AUC, F1, calibration and confusion of MODEL at each site of a dataset."""
    from fedlib.methods import own_code
    from fedlib.probes import kept_models, scores
    kept = kept_models.load(model, device, own)
    found = scores.evaluate(kept, own_code.dataset_name(dataset), client, every)
    click.echo(json.dumps(found, indent=1) if as_json else scores.in_words(found))


@cli.command()
@click.argument("method")
@click.option("--data", "dataset", default="mini_digits", show_default=True, help="Dataset; a node may name its own.")
@click.option("--rounds", default=20, show_default=True, help="Communication rounds.")
@click.option("--seed", default=0, show_default=True)
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="As in `fedlib train`.")
@click.option("--results", default="runs", show_default=True, help="Folder for the record, on the server.")
@click.option("--timeout", default=600.0, show_default=True, help="Seconds a node has for an answer.")
@click.option("--node", "nodes", multiple=True, metavar="DOMAIN=ID", help="Only this node speaks for the domain.")
@click.option("--secure", is_flag=True, help="The server learns the mean of the uploads only (Flower's SecAgg+).")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the app.")
def flower(method, dataset, rounds, seed, sets, results, timeout, nodes, secure, out):
    """Write a Flower app that trains METHOD across machines: `flwr run FOLDER`. Needs no data here."""
    from fedlib.engine.run import run_in_words
    from fedlib.remote.app import write_app
    run_in_words(method, dataset, rounds, seed, sets)
    bound = dict(pair.rpartition("=")[::2] for pair in nodes)
    if not all(domain and number.isdecimal() for domain, number in bound.items()):
        raise UserError("--node is DOMAIN=ID, as in scans=1234: the number that `flwr supernode register` printed")
    write_app(out, {"method": method, "data": dataset, "rounds": rounds, "seed": seed, "set": " ".join(sets),
                    "results": results, "timeout": timeout} | ({"secure": True} if secure else {})
                   | ({"nodes": json.dumps(bound)} if bound else {}))
    click.echo(f"app: {out}")


@cli.command(context_settings={"ignore_unknown_options": True})
@click.option("--port", default=9094, show_default=True, help="Where its own processes meet, on this machine alone.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def node(port, words):
    """Be a node of a federation: `flower-supernode` with its WORDS, torch loaded once for all messages."""
    try:
        from fedlib.remote.node import connect
    except ModuleNotFoundError as error:
        raise UserError(f"a node needs Flower ({error}): pip install 'fed-across-domains[flower]'") from None
    connect(list(words), port)


# the papers' tables

@cli.command("tables")
@RESULTS
@JSON
def tables_(results, as_json):
    """List the papers' tables and how many records each profile has."""
    from fedlib.experiments import tables
    from fedlib.experiments.results import results_folder
    lines = tables.listing(results_folder(results))
    click.echo(json.dumps(lines, indent=1) if as_json else tables.listing_text(lines))
    told(results)


@cli.command()
@click.argument("table")
@PROFILE
@click.option("--seeds", help="Like 0,1,2 [default: the table's].")
@click.option("--jobs", type=click.IntRange(min=1), help="Runs at once [default: one for each CPU core or GPU].")
@click.option("--time-budget", help="Stop cleanly in time, like 9m; the next call continues.")
@click.option("--only", metavar="KEY", help="Only runs of this method, row or digest.")
@click.option("--halves", is_flag=True, help="Half the rounds of what ended at a rate of nothing: did it settle?")
@click.option("--stack", metavar="K", help="Clients that train at once: auto, 1, 20 [default: 1; auto on a GPU].")
@RESULTS
@DEVICE
def run(table, profile, seeds, jobs, time_budget, only, halves, stack, results, device):
    """Train what a table lacks. Records that exist are not trained again."""
    from fedlib.experiments import batch
    from fedlib.experiments.results import results_folder
    results = results_folder(results)
    chosen = batch.chosen(table, profile, parse_seeds(seeds), only, results if halves else None)
    return batch.run_table(table, profile, chosen, results, device=device, jobs=jobs, stack=stack,
                           budget=time_budget, alone=bool(only), say=click.echo, progress=show_progress())


@cli.command()
@click.argument("table")
@PROFILE
@click.option("--block", "blocks", multiple=True, help="Only this block; may be given again [default: all].")
@click.option("--row", "rows", multiple=True, help="Only this row; may be given again [default: all].")
@click.option("--tries", default=8, show_default=True, help="Tries of each row, of a grid of rates and main weights.")
@click.option("--seeds", default="100,101", show_default=True, help="Of the tries; no table uses them.")
@click.option("--jobs", type=click.IntRange(min=1), help="Runs at once [default: one for each CPU core or GPU].")
@click.option("--time-budget", help="Stop cleanly in time, like 9m; the next call continues.")
@RESULTS
@DEVICE
def tune(table, profile, blocks, rows, tries, seeds, jobs, time_budget, results, device):
    """Choose each row's rate and main weight, all alike, on samples that no test uses: the table gets tuned rows."""
    from fedlib.experiments import batch
    from fedlib.experiments.results import results_folder
    return batch.tune_table(table, profile, results_folder(results), blocks, rows, tries, tuple(parse_seeds(seeds)),
                            click.echo, device=device, jobs=jobs, budget=time_budget, progress=show_progress())


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--jobs", type=click.IntRange(min=1), help="Runs at once [default: one for each CPU core or GPU].")
@click.option("--time-budget", help="Stop cleanly in time, like 9m; the next call continues.")
@click.option("--write", type=click.Path(path_type=Path), help="Train nothing; write the runs for fedlib.engine.queue.")
@RESULTS
@DEVICE
def campaign(file, jobs, time_budget, write, results, device):
    """Train the tables that FILE lists, in order and at low priority: as given, their tries, what these choose.

    `fedlib status FILE` draws what is done and left. With --write another machine can train it that has torch, numpy
    and safetensors only: `python -m fedlib.engine.queue`.
    """
    from fedlib.engine import queue
    from fedlib.experiments import campaign as training
    from fedlib.experiments.results import results_folder
    if write:
        runs = training.left(training.parts(file), results_folder(results))
        queue.write(runs, write)
        return click.echo(f"{len(runs)} runs without a record: {write}")
    return training.run(training.parts(file), results_folder(results), device, jobs, time_budget, click.echo,
                        show_progress())


@cli.command()
@click.argument("table")
@PROFILE
@click.option("--seeds", help="Like 0,1,2 [default: the table's].")
@click.option("--memory", is_flag=True, help="Predict how much a run of each row takes; seconds a row, with its data.")
@RESULTS
@JSON
def plan(table, profile, seeds, memory, results, as_json):
    """List the runs of a table and the files each one makes, for an engine that starts `fedlib run --only DIGEST`."""
    from fedlib.experiments import batch
    from fedlib.experiments.results import results_folder
    from fedlib.report import shown
    seeds, results = parse_seeds(seeds), results_folder(results)
    lines, power = batch.listing(table, profile, seeds, results), shown.power(table, profile, seeds, results)
    needs = shown.memory(table, profile, results) if memory else []
    content = {"table": table, "profile": profile, "runs": lines, "power": power} | ({"memory": needs} if needs else {})
    click.echo(json.dumps(content, indent=1) if as_json else "\n".join(
        [batch.listing_text(lines), shown.power_text(power), *([shown.memory_text(needs)] if needs else [])]))


@cli.command()
@click.argument("table", required=False)
@click.option("--profile", help="mini, lite or paper [default: all].")
@RESULTS
@JSON
def status(table, profile, results, as_json):
    """What is done, running, failed and missing, with its cost so far and an estimate of what is left.

    TABLE may be the file of a campaign.
    """
    from fedlib.experiments import campaign, tables
    from fedlib.experiments import status as standing
    from fedlib.experiments.results import results_folder
    if table and table.endswith(".toml"):
        parts = campaign.standing(campaign.parts(Path(table)), results_folder(results))
        return click.echo(json.dumps(parts, indent=1) if as_json else "\n".join(campaign.lines(parts)))
    found = standing.everything([table] if table else tables.idents(), profile, results_folder(results))
    click.echo(json.dumps(found, indent=1) if as_json else "\n".join(standing.said(found)))
    told(results)


@cli.command()
@click.option("--only", metavar="NAME", help="One workload [default: all].")
@click.option("--whole", is_flag=True, help="Whole runs beside a plain loop, with all that a run has.")
@click.option("--others", metavar="FOLDER", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="With --whole: scripts that run other systems, as in workflow/others.")
@RESULTS
@CPU
def bench(only, whole, others, results, device):
    """Measure what a round costs beside its floor and beside a plain loop, and keep it with the records.

    With --whole: whole runs on the CPU, with tests, messages, checkpoints and the record.
    """
    from fedlib.core.machine import check_device
    from fedlib.experiments.results import results_folder
    from fedlib.probes import bench as measuring
    from fedlib.probes import whole_runs
    if whole and device != "cpu":
        raise UserError("--whole measures on a CPU: leave out --device")
    if others and not whole:
        raise UserError("--others runs other systems beside whole runs: add --whole")
    if whole:
        here = whole_runs.everything(results_folder(results), only or "", click.echo, others)
        click.echo("\n".join([*whole_runs.lines(whole_runs.opened(here)["runs"]), f"kept in {here}"]))
        return
    if only:
        pick("workload", only, [*measuring.WORKLOADS, "growth"])
    check_device(device)
    here = measuring.everything(results_folder(results), device, only or "", click.echo)
    click.echo("\n".join(measuring.lines(json.loads(here.read_text())["workloads"])))
    click.echo(f"kept in {here}")


def parse_seeds(text: str | None) -> list[int] | None:
    """'0,1,2' -> [0, 1, 2]."""
    return None if text is None else [settings.convert(int, s, "seed") for s in text.split(",")]


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


@cli.command()
@click.argument("table", required=False)
@PROFILE
@SELECT
@click.option("--when", type=click.Choice(["before", "after"]),
              help="Tested before or after a round's local training [default: as each row says].")
@click.option("--why", metavar="CLAIM", help="From a claim of `fedlib claims` to the records behind its verdict.")
@forms
@RESULTS
@JSON
def show(table, profile, rule, when, why, form, results, as_json):
    """Show a table: printed number | ours with its 95 % interval; then the verdicts of its claims.

    TABLE: one that `fedlib tables` lists, or FILE.toml/NAME, a table of your own.
    """
    from fedlib.report import shown
    if why:
        found, text = shown.why(why, results), shown.why_text
    elif table:
        found, text = shown.shown(table, profile, results, rule, when or ""), shown.shown_text
    else:
        raise UserError("name a table, or a claim with --why (`fedlib tables` and `fedlib claims` list them)")
    if form and not why:
        return click.echo(shown.as_form(table, profile, found["cells"], form))
    click.echo(json.dumps(found, indent=1) if as_json else text(found))
    told(results)


@cli.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--to", default="", metavar="ROW", help="The row that the others are compared with [default: FedAvg].")
@SELECT
@click.option("--picture", type=click.Path(path_type=Path), help="Draw the curves to this file, .svg, .pdf or .png.")
@forms
@JSON
def compare(runs, to, rule, picture, form, as_json):
    """Set RUNS side by side, records of `fedlib train` or folders of them: rows, intervals, differences by seed."""
    from fedlib.report import shown
    table, found = shown.compared(list(runs), to, rule)
    if picture:
        shown.draw_curves(table, found["results"], picture)
    if form:
        return click.echo(shown.as_form(table, found["profile"], found["cells"], form))
    click.echo(json.dumps(found, indent=1) if as_json else shown.compared_text(table, found))


@cli.command("claims")
@click.argument("paper", required=False)
@RESULTS
@JSON
def claims_(paper, results, as_json):
    """List what the papers claim, with a verdict on each, computed from the records."""
    from fedlib.report import shown
    found = shown.claims_listing(paper, results)
    click.echo(json.dumps(found, indent=1) if as_json else shown.claims_text(found))
    told(results)


@cli.command()
@click.argument("folder", type=click.Path(path_type=Path))
@RESULTS
@click.option("--tolerance", default=10.0, show_default=True,
              help="Largest difference in the mean over domains and the last five rounds, in points.")
@click.option("--table", help="Also show this table: printed beside committed beside fresh.")
@PROFILE
def check(folder, results, tolerance, table, profile):
    """Compare fresh records in FOLDER with the committed ones of the same runs."""
    from fedlib.experiments import batch
    from fedlib.experiments.results import results_folder
    from fedlib.report import shown
    lines = batch.differences(folder, results_folder(results))
    if not lines:
        raise UserError(f"no records in {folder}")
    if table:
        click.echo(shown.reproduced_text(shown.reproduced(table, profile, folder, results)) + "\n")
    click.echo(batch.differences_text(lines))
    far = [(name, gap) for name, _, gap in lines if gap > tolerance]
    for name, gap in far:
        click.echo(f"  {name} differs by {gap:.2f} points", err=True)
    return int(bool(far))


@cli.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--rounds", default=1, show_default=True, type=click.IntRange(min=1), help="So many are trained again.")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Begin after this .partial of the run.")
@click.option("--draw", metavar="N", type=click.IntRange(min=1), help="So many of a folder's, other ones each day.")
@CPU
@JSON
def verify(files, rounds, checkpoint, draw, device, as_json):
    """Check records that others made: is the run planned, are the data the same, does a round come out again?"""
    from fedlib.core.machine import check_device
    from fedlib.experiments import verify as verifying
    check_device(device)
    files = [f for folder in files for f in verifying.drawn(folder, draw, datetime.date.today())] if draw else files
    known = verifying.plans()
    found = [verifying.verify(file, rounds, checkpoint, device, known) for file in files]
    click.echo(json.dumps(found, indent=1) if as_json else "\n".join(map(verifying.in_words, found)))
    return int(not all(f["trusted"] for f in found))
