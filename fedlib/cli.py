"""The command line: what there is, data, single runs, tables, status, measurements. `fedlib -h` lists the commands."""
import json
import os
import sys
import time
from pathlib import Path

import click

from fedlib import records, settings
from fedlib.errors import UserError, nearest, pick

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for a program.")
RESULTS = click.option("--results", type=click.Path(path_type=Path), help="Folder of records [default: results/].")
PROFILE = click.option("--profile", default="mini", show_default=True, help="mini, lite or paper.")
DEVICE = click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N.")


class Group(click.Group):
    """Unknown commands get the nearest right one; a user's mistake is one line and exit code 2."""

    def resolve_command(self, context, args):
        if args and args[0] not in self.commands:
            raise UserError(f"unknown command '{args[0]}'{nearest(args[0], self.commands)} "
                            f"(commands: {', '.join(self.commands)})")
        return super().resolve_command(context, args)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
def cli():
    """Federated learning across domains: train methods, run and show the papers' tables."""


def main():
    """Entry point."""
    sys.exit(call(sys.argv[1:] or ["--help"]))


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
    from tqdm import tqdm

    from fedlib import describe
    from fedlib.cost import cost
    from fedlib.methods import METHODS, FedAvg
    from fedlib.nets import Arch, build
    shared = settings.fields(FedAvg)
    lines = [{"name": name, "kind": describe.kind(name),
              "settings": {k: v[1] for k, v in settings.fields(cls).items() if cls is FedAvg or v != shared.get(k)},
              "limit": _limit(cls.limit), "summary": cls.__doc__.strip().splitlines()[0]}
             for name, cls in METHODS.items()]
    if net:
        arch = settings.make(Arch, {"net": net, "width": width}, "the net")
        shape = settings.convert(tuple[int, ...], shape, "--shape", least=1)
        build(arch, classes, shape, 0)      # a mistake in the net is said once
        for line in tqdm(lines, desc="Counting", disable=None, leave=False):
            try:
                line |= cost(line["name"], arch, classes, shape, clients)
            except UserError as error:      # a method for other data
                line["no_cost"] = str(error)
    if as_json:
        return click.echo(json.dumps(lines, indent=1))
    for line in lines:
        click.echo(f"{line['name']:<10} {line['kind']:<11} {_words(line['settings']) or '-'}\n"
                   f"{'':<10} {line['summary']}\n{'':<10} limit: {line['limit']}")
        if "no_cost" in line:
            click.echo(f"{'':<10} not counted: {line['no_cost']}")
        elif net:
            click.echo(f"{'':<10} a round of a client: {line['bytes_down'] / 1e6:.3g} MB down, "
                       f"{line['bytes_up'] / 1e6:.3g} MB up, {line['forward']:.3g} forward and {line['backward']:.3g} "
                       f"backward passes per sample and epoch")
        click.echo()


def _limit(limit) -> str:
    if isinstance(limit, str):
        return limit
    values, other, *net = limit
    return f"{_words(values) or 'as it is'} equals {other}" + "".join(f" on {n}" for n in net)


def _words(values: dict) -> str:
    return " ".join(f"{k}={v}" for k, v in values.items())


@cli.command()
@JSON
def datasets(as_json):
    """List the datasets: domains, classes, and what is prepared here."""
    from fedlib import prepare
    lines = []
    for name in prepare.DATASETS:
        module = prepare.module(name)
        ready = [s for s in module.SIZES if all(p.exists() for p in prepare.paths(name, s))]
        lines.append({"name": name, "title": module.TITLE, "domains": list(module.DOMAINS),
                      "classes": len(module.CLASSES), "sizes": list(module.SIZES), "prepared": ready,
                      "licence": module.ABOUT.get("licence", "")})
    if as_json:
        return click.echo(json.dumps(lines, indent=1))
    for line in lines:
        ready = ", ".join(prepare.with_unit(line["name"], s) for s in line["prepared"]) or "not yet"
        click.echo(f"{line['name']:<15} {line['title']}\n{'':<15} {line['classes']} classes; domains "
                   f"{', '.join(line['domains'])}\n{'':<15} prepared: {ready}\n")


@cli.command()
@click.argument("name")
@click.option("--from", "root", type=click.Path(path_type=Path), help="Your raw files [default: FEDLIB_RAW].")
@click.option("--size", type=int, help="Pixels per side (images), or tokens per text.")
@click.option("--domains", help="Download only what these need, like mnist,usps.")
@click.option("--skip-corrupt", is_flag=True, help="Leave unreadable images out; the manifest names them.")
@click.option("--download", is_flag=True, help="Get the published files even where FEDLIB_RAW is set.")
def data(name, root, size, domains, skip_corrupt, download):
    """Prepare a dataset: raw files to one tensor file and a manifest.

    Without --from and FEDLIB_RAW the published files are downloaded; a download that was cut continues.
    """
    from fedlib import prepare
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
    from fedlib import encoders, feature_cache, prepare
    prepare.load(name, size)        # its mistakes are said before weights are downloaded
    if source:
        path = feature_cache.adopt(source, name, size, encoder, click.echo)
    else:
        check_device(device)
        path = feature_cache.make(name, size, encoders.load(encoder).to(device), batch, click.echo)
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
    from fedlib import partitions
    if store:
        absent = partitions.store([name] if name else list(partitions.every()), click.echo)
        return int(bool(absent and name))
    if not name:
        kept = partitions.stored()
        lines = [{"name": p.name, "set": p.data.name, "says": p.says, "source": p.source, "status": p.status,
                  "digest": kept.get(p.name, {}).get("digest")} for p in partitions.every().values()]
        if as_json:
            return click.echo(json.dumps(lines, indent=1))
        for line in lines:
            click.echo(f"{line['name']:<32} {line['set']:<15} {line['digest'] or '-':<13} {line['status']}\n"
                       f"{'':<32} {line['says']} ({line['source']})\n")
        return 0
    spec = partitions.load(name).data
    found = partitions.drawn(spec, seed)
    if as_json:
        return click.echo(json.dumps(found))
    click.echo(f"{name} of {found['set']}, seed {found['seed']}, digest {found['digest']}")
    for i, c in enumerate(found["clients"]):
        held = [found["classes"][k] for k, n in enumerate(c["per_class"]) if n]
        some = "all classes" if len(held) == len(found["classes"]) else f"{len(held)} classes: {', '.join(held[:6])}"
        click.echo(f"  {i:>3} {c['domain']:<14} train {c['train']:6d}  val {c['val']:5d}  test {c['test']:6d}  {some}")
    for d, n in found["unseen"].items():
        click.echo(f"      {d:<14} unseen, test {n:6d}")
    click.echo(f"  notice: {found['notice']}\n" * bool(found["notice"]), nl=False)
    if out:
        records.write_bytes(out, json.dumps(partitions.indices(spec, seed)).encode())
        click.echo(f"indices: {out}")
    if picture:
        from fedlib import plots
        plots.holdings(partitions.frame(found), "training samples").savefig(picture)
        click.echo(f"picture: {picture}")


# train one method

@cli.command()
@click.argument("method")
@click.option("--data", "dataset", default="mini_digits", show_default=True, help="Dataset.")
@click.option("--rounds", help="Communication rounds [default: 20].")
@click.option("--seed", default="0", show_default=True)
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE",
              help="A setting of the method, protocol, net or data: mu=0.1, lr=0.05, net=resnet10, clients=3,2,1,4.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True,
              help="Folder for the record.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True,
              help="CPU threads. More can be faster; sums are then rounded differently.")
@DEVICE
@JSON
def train(method, dataset, rounds, seed, sets, out, threads, device, as_json):
    """Train METHOD and write one record below --out. Started again after a kill it continues."""
    import torch
    from tqdm import tqdm

    from fedlib import train as loop
    run = planned(method, dataset, rounds, seed, sets)
    check_device(device)
    torch.set_num_threads(threads)
    with tqdm(total=run.protocol.rounds, unit="round", desc=method, disable=None) as bar:
        def say(event):
            bar.update(event["round"] - bar.n)
            bar.set_postfix_str(f"{event['acc']:.1f} %")
        path = loop.train(run, out, device, say)
    record = records.read(path)
    if as_json:
        return click.echo(json.dumps({"record": str(path), "acc": record["rounds"][-1]["acc"]}))
    for domain, value in record["rounds"][-1]["acc"].items():
        click.echo(f"{domain:<14} {value:6.2f} %")
    click.echo(f"record: {path}")


def planned(method: str, dataset: str, rounds, seed, sets) -> records.Run:
    """The run of a method with settings in words, NAME=VALUE; UserError on anything unknown or impossible."""
    parts = {"method": {}, "protocol": {"rounds": rounds} if rounds else {}, "net": {}, "data": {"name": dataset}}
    for word in sets:
        part, name, value = place(method, word)
        parts[part][name] = value
    return records.plan(method, parts["method"], parts["data"], parts["net"], parts["protocol"], seed)


def place(method: str, word: str) -> tuple[str, str, str]:
    """'mu=0.1' -> ("method", "mu", "0.1"): which part of a run has a setting of this name."""
    from fedlib.methods import METHODS
    from fedlib.methods.base import Protocol
    from fedlib.nets import Arch
    from fedlib.partition import Data
    cls = METHODS[pick("method", method, METHODS)]
    name, sign, value = word.partition("=")
    if not sign or not value:
        raise UserError(f"--set takes NAME=VALUE, not '{word}'")
    known = {"method": [*settings.fields(cls), *(["preset"] if cls.presets else [])],
             "protocol": settings.fields(Protocol), "net": settings.fields(Arch), "data": settings.fields(Data)}
    for part, names in known.items():
        if name in names:
            return part, name, value
    every = [n for names in known.values() for n in names]
    raise UserError(f"no setting '{name}' of {method}, the protocol, the net or the data{nearest(name, every)} "
                    f"(there are: {', '.join(every)})")


def check_device(device: str):
    """UserError unless torch can use the device."""
    import torch
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device '{device}' cannot be used here (try cpu): {str(error).splitlines()[0]}") from error


APP = {"app.py": "from fedlib.flower import client, server\n\n__all__ = [\"client\", \"server\"]\n",
       "pyproject.toml": """# A Flower app: `flwr run` of this folder trains the run below over the connected nodes.
[project]
name = "fedlib-run"
version = "1.0.0"
description = "A fedlib run across machines"
license = "MIT"
dependencies = []       # of each machine: fedlib[flower]

[tool.flwr.app]
publisher = "fedlib"

[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"

[tool.flwr.app.config]
"""}


@cli.command()
@click.argument("method")
@click.option("--data", "dataset", default="mini_digits", show_default=True, help="Dataset; a node may name its own.")
@click.option("--rounds", default=20, show_default=True, help="Communication rounds.")
@click.option("--seed", default=0, show_default=True)
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="As in `fedlib train`.")
@click.option("--results", default="runs", show_default=True, help="Folder for the record, on the server.")
@click.option("--timeout", default=600.0, show_default=True, help="Seconds a node has for an answer.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the app.")
def flower(method, dataset, rounds, seed, sets, results, timeout, out):
    """Write a Flower app that trains METHOD across machines: `flwr run FOLDER`. Needs no data here."""
    planned(method, dataset, rounds, seed, sets)
    config = {"method": method, "data": dataset, "rounds": rounds, "seed": seed, "set": " ".join(sets),
              "results": results, "timeout": timeout}
    lines = "".join(f"{k} = {json.dumps(v)}\n" for k, v in config.items())
    for name, text in APP.items():
        records.write_bytes(out / name, (text + lines * name.endswith("toml")).encode())
    click.echo(f"app: {out}")


@cli.command(context_settings={"ignore_unknown_options": True})
@click.option("--port", default=9094, show_default=True, help="Where its own processes meet, on this machine alone.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def node(port, words):
    """Be a node of a federation: `flower-supernode` with its WORDS, torch loaded once for all messages."""
    try:
        from fedlib.node import connect
    except ModuleNotFoundError as error:
        raise UserError(f"a node needs Flower ({error}): pip install 'fedlib[flower]'") from None
    connect(list(words), port)


# the papers' tables

@cli.command("tables")
@RESULTS
@JSON
def tables_(results, as_json):
    """List the papers' tables and how many records each profile has."""
    from fedlib import tables
    results, lines = records.folder(results), []
    for ident in tables.idents():
        table = tables.load(ident)
        planned = {p: [x.done(results) for x in table.runs(p)] for p in tables.PROFILES}
        lines.append({"table": ident, "title": table.title,
                      "records": {p: f"{sum(there)}/{len(there)}" for p, there in planned.items()}})
    if as_json:
        return click.echo(json.dumps(lines, indent=1))
    for line in lines:
        click.echo(f"{line['table']:<16} {line['title']:<40} {_words(line['records'])}")


@cli.command()
@click.argument("table")
@PROFILE
@click.option("--seeds", help="Like 0,1,2 [default: the table's].")
@click.option("--jobs", type=click.IntRange(min=1), help="Runs at once [default: one per CPU core; 1 on a GPU].")
@click.option("--time-budget", help="Stop cleanly in time, like 9m; the next call continues.")
@click.option("--only", metavar="KEY", help="Only runs of this method, row or digest.")
@click.option("--stack", metavar="K", help="Clients that train at once: auto, 1, 20 [default: 1; auto on a GPU].")
@RESULTS
@DEVICE
def run(table, profile, seeds, jobs, time_budget, only, stack, results, device):
    """Train what a table lacks. Records that exist are not trained again."""
    from fedlib import batch, tables
    from fedlib import stack as stacked
    from fedlib import train as loop
    results, stack = records.folder(results), stacked.asked(stack or ("1" if device == "cpu" else "auto"))
    planned = tables.load(table).runs(profile, parse_seeds(seeds))
    if only:
        names = list(dict.fromkeys(k for p in planned for k in (p.row, p.run.method)))
        planned = [p for p in planned if only in (p.row, p.run.method, p.run.digest)]
        if not planned:
            pick(f"row, method or digest of {table}", only, names)
    if not planned:
        raise UserError(f"{table} has no runs in profile '{profile}'")
    for p in planned:
        if p.run.path(results).exists():
            records.read(p.run.path(results))
    todo = [p for p in planned if not p.done(results)]
    budget = batch.seconds(time_budget) if time_budget else None
    click.echo(f"{table}, {profile}: {len(planned) - len(todo)} of {len(planned)} records are there, "
               f"{len(todo)} to train")
    if not todo:
        return 0
    check_device(device)
    for name, size, encoder in sorted({(p.run.data.name, p.run.data.size, p.run.data.encoder) for p in todo}):
        from fedlib import feature_cache, prepare
        prepare.load(name, size or None)        # once, before many processes ask for it
        if encoder:
            feature_cache.ensure(name, size or None, encoder, device, click.echo)
    if len(todo) == 1:
        try:
            click.echo(f"record: {batch.one(todo[0], results, device, budget, click.echo, stack)}")
            return 0
        except loop.OutOfTime as stop:
            click.echo(str(stop))
            return batch.STOPPED if only else 0
    jobs = jobs or (os.cpu_count() if device == "cpu" else 1)
    outcome = batch.execute(table, profile, todo, results, jobs, device, budget, show_progress(), stack)
    stopped = f", {outcome['stopped']} stopped in time: run the same command to continue" if outcome["stopped"] else ""
    click.echo(f"\n{outcome['done']} trained, {outcome['left']} left{stopped}")
    for problem in outcome["failed"]:
        click.echo(f"failed: {problem}", err=True)
    return 1 if outcome["failed"] else 0


@cli.command()
@click.argument("table")
@PROFILE
@click.option("--seeds", help="Like 0,1,2 [default: the table's].")
@RESULTS
@JSON
def plan(table, profile, seeds, results, as_json):
    """List the runs of a table and the files each one makes, for an engine that starts `fedlib run --only DIGEST`."""
    from fedlib import failures, tables
    results, lines = records.folder(results), []
    for p in tables.load(table).runs(profile, parse_seeds(seeds)):
        files = p.files(results)
        lines.append({"row": p.row, "block": p.block, "unseen": p.unseen, "seed": p.seed, "digest": p.run.digest,
                      "files": list(map(str, files)), "missing": [str(f) for f in files if not f.exists()],
                      "failure": str(failures.path(p.run, results))})
    if as_json:
        return click.echo(json.dumps({"table": table, "profile": profile, "runs": lines}, indent=1))
    for line in lines:
        click.echo(f"{'missing' if line['missing'] else 'done':<8} {line['digest']} {line['row']}, {line['block']}, "
                   f"seed {line['seed']}" + f", without {line['unseen']}" * bool(line["unseen"]))


@cli.command()
@click.argument("table", required=False)
@click.option("--profile", help="mini, lite or paper [default: all].")
@RESULTS
@JSON
def status(table, profile, results, as_json):
    """What is done, running, failed and missing, with its cost so far and an estimate of what is left."""
    from fedlib import status as standing
    from fedlib import tables
    found = standing.everything([table] if table else tables.idents(), profile, records.folder(results))
    click.echo(json.dumps(found, indent=1) if as_json else "\n".join(standing.said(found)))


@cli.command()
@click.option("--only", metavar="NAME", help="One workload [default: all].")
@RESULTS
@DEVICE
def bench(only, results, device):
    """Measure what a round costs beside its floor and beside a plain loop, and keep it with the records."""
    from fedlib import bench as measuring
    if only:
        pick("workload", only, [*measuring.WORKLOADS, "growth"])
    check_device(device)
    here = measuring.everything(records.folder(results), device, only or "", click.echo)
    click.echo("\n".join(measuring.lines(json.loads(here.read_text())["workloads"])))
    click.echo(f"kept in {here}")


def parse_seeds(text: str | None) -> list[int] | None:
    """'0,1,2' -> [0, 1, 2]."""
    return None if text is None else [settings.convert(int, s, "seed") for s in text.split(",")]


def show_progress():
    """One line that is renewed on a terminal; elsewhere a line now and then."""
    if sys.stdout.isatty():
        return lambda line: click.echo(f"\r\033[K{line[:os.get_terminal_size().columns - 1]}", nl=False)
    last = [0.0]

    def say(line):
        if time.monotonic() - last[0] >= 10:
            last[0] = time.monotonic()
            click.echo(line)
    return say


@cli.command()
@click.argument("table")
@PROFILE
@click.option("--select", "rule", help="last, last5, best-val, best-val-loss or best-test [default: the table's].")
@click.option("--when", type=click.Choice(["before", "after"]),
              help="Tested before or after a round's local training [default: as each row says].")
@RESULTS
@JSON
def show(table, profile, rule, when, results, as_json):
    """Show a table: printed number | ours with its 95 % interval; then the verdicts of its claims."""
    from fedlib import tables
    results, loaded = records.folder(results), tables.load(table)
    pick("profile", profile, tables.PROFILES)
    cells = tables.compare(loaded, profile, results, rule, when=when or "")
    judged = tables.verdicts(loaded, profile, results, rule, when or "")
    if as_json:
        plain = json.loads(cells.to_json(orient="records"))
        return click.echo(json.dumps({"table": table, "profile": profile, "select": rule or loaded.select,
                                      "cells": plain, "claims": judged.to_dict("records")}, indent=1))
    click.echo(f"{loaded.title} ({table}), profile {profile}: {tables.PROFILES[profile]}\n"
               f"printed | ours ± half of the 95 % interval, n seeds; accuracy in %, {rule or loaded.select}; "
               f"– is not run")
    for block in tables.shown_blocks(loaded, profile):
        click.echo(f"\n{loaded.blocks[block]['title']}\n{tables.wide(loaded, cells, block).to_string()}")
    counts = judged.verdict.value_counts()
    click.echo("\nclaims: " + (", ".join(f"{n} {v}" for v, n in counts.items()) or "none"))
    for _, line in judged[judged.verdict != "not run"].iterrows():
        click.echo(f"  {line.verdict}: {line.says} [{line.evidence}]")


@cli.command()
@click.argument("folder", type=click.Path(path_type=Path))
@RESULTS
@click.option("--tolerance", default=10.0, show_default=True,
              help="Largest difference in the mean over domains and the last five rounds, in points.")
def check(folder, results, tolerance):
    """Compare fresh records in FOLDER with the committed ones of the same runs."""
    from fedlib import batch
    lines = batch.differences(folder, records.folder(results))
    if not lines:
        raise UserError(f"no records in {folder}")
    known = [gap for _, _, gap in lines if gap == gap]
    equal, most = sum(same for _, same, _ in lines), max(known, default=0)
    click.echo(f"{len(lines)} fresh records: {equal} equal to the committed ones in every accuracy, "
               f"{len(known) - equal} differ by at most {most:.2f} points, {len(lines) - len(known)} are new")
    for name, _, gap in lines:
        if gap > tolerance:
            click.echo(f"  {name} differs by {gap:.2f} points", err=True)
    return int(most > tolerance)

