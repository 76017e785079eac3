"""Commands: train the papers' tables, choose rates, plan, measure."""
import json
import sys
from pathlib import Path

import click

from fedlib.cli.options import CPU, DEVICE, JSON, PROFILE, RESULTS, parse_seeds, show_progress, told
from fedlib.core.errors import UserError, pick


@click.command("tables")
@RESULTS
@JSON
def tables_(results, as_json):
    """List the papers' tables and how many records each profile has."""
    from fedlib.experiments import tables
    from fedlib.experiments.results import results_folder
    lines = tables.listing(results_folder(results))
    click.echo(json.dumps(lines, indent=1) if as_json else tables.listing_text(lines))
    told(results)


@click.command()
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
    """Train what a table lacks. Records that exist are not trained again.

    Answers 0 when all are there, 1 where a run failed, 3 where some are left: the same command goes on.
    """
    from fedlib.experiments import batch
    from fedlib.experiments.results import results_folder
    results = results_folder(results, table)
    chosen = batch.chosen(table, profile, parse_seeds(seeds), only, results if halves else None)
    return batch.run_table(table, profile, chosen, results, device=device, jobs=jobs, stack=stack,
                           budget=time_budget, say=click.echo, progress=show_progress())


@click.command()
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
    """Choose each row's rate and main weight, all alike. The table gets tuned rows.

    Chosen on held-out training samples. Where the best rate is the lowest or the highest that was tried, it tries the
    next one beyond, up to five times.
    """
    from fedlib.experiments import batch
    from fedlib.experiments.results import results_folder
    results = results_folder(results, table)
    return batch.tune_table(table, profile, results, blocks, rows, tries, tuple(parse_seeds(seeds)),
                            click.echo, device=device, jobs=jobs, budget=time_budget, progress=show_progress())


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--jobs", type=click.IntRange(min=1), help="Runs at once [default: one for each CPU core or GPU].")
@click.option("--time-budget", help="Stop cleanly in time, like 9m; the next call continues.")
@click.option("--write", type=click.Path(path_type=Path), help="Train nothing; write the runs for fedlib.engine.queue.")
@RESULTS
@DEVICE
def campaign(file, jobs, time_budget, write, results, device):
    """Train the tables that FILE lists, in order, at low priority.

    Of each its rows as given, their tries, what these choose.

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


@click.command()
@click.argument("table")
@PROFILE
@click.option("--seeds", help="Like 0,1,2 [default: the table's].")
@click.option("--memory", is_flag=True, help="Predict what a run of each row takes; up to half a minute a row.")
@RESULTS
@JSON
def plan(table, profile, seeds, memory, results, as_json):
    """List the runs of a table and the files each one makes.

    For an engine that starts `fedlib run --only DIGEST`.
    """
    from fedlib.experiments import batch
    from fedlib.experiments.results import results_folder
    from fedlib.report import shown
    seeds, results = parse_seeds(seeds), results_folder(results, table)
    lines, power = batch.listing(table, profile, seeds, results), shown.power(table, profile, seeds, results)
    needs = shown.memory(table, profile, results, show_progress(sys.stderr)) if memory else []
    content = {"table": table, "profile": profile, "runs": lines, "power": power} | ({"memory": needs} if needs else {})
    click.echo(json.dumps(content, indent=1) if as_json else "\n".join(
        [batch.listing_text(lines), shown.power_text(power), *([shown.memory_text(needs)] if needs else [])]))


@click.command()
@click.argument("table", required=False)
@click.option("--profile", help="mini, lite or paper [default: all].")
@RESULTS
@JSON
def status(table, profile, results, as_json):
    """What is done, running, failed and missing, and what it costs.

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


@click.command()
@click.option("--only", metavar="NAME", help="One workload [default: all].")
@click.option("--whole", is_flag=True, help="Whole runs beside a plain loop, with all that a run has.")
@click.option("--others", metavar="FOLDER", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="With --whole: scripts that run other systems, as in workflow/others.")
@RESULTS
@CPU
def bench(only, whole, others, results, device):
    """Measure what a round costs, and keep it with the records.

    Beside its floor and beside a plain loop.

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
