"""Commands: show what was found, compare and check it."""
import datetime
import json
from pathlib import Path

import click

from fedlib.cli.options import CPU, JSON, PROFILE, RESULTS, SELECT, alone, forms, told
from fedlib.core.errors import UserError


@click.command()
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
    """Show a table, printed beside ours, and verdicts on its claims.

    TABLE: one that `fedlib tables` lists, or FILE.toml/NAME, a table of your own.
    """
    from fedlib.report import shown
    if why:
        found, text = shown.why(why, results), shown.why_text
    elif table:
        found, text = shown.shown(table, profile, results, rule, when or ""), shown.shown_text
    else:
        raise UserError("name a table, or a claim with --why (`fedlib tables` and `fedlib claims` list them)")
    told(results)
    if form:
        alone(form, json=as_json, why=why)
        return click.echo(shown.as_form(table, profile, found["cells"], form))
    click.echo(json.dumps(found, indent=1) if as_json else text(found))


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--to", default="", metavar="ROW", help="The row that the others are compared with [default: FedAvg].")
@SELECT
@click.option("--picture", type=click.Path(path_type=Path), help="Draw the curves to this file, .svg, .pdf or .png.")
@click.option("--from", "own", multiple=True, metavar="FILE.py", help="Methods or nets of your own that RUNS have.")
@forms
@JSON
def compare(runs, to, rule, picture, own, form, as_json):
    """Set RUNS side by side: rows, intervals, differences by seed.

    RUNS: records of `fedlib train`, or folders of them.
    """
    from fedlib.methods import own_code
    from fedlib.report import shown
    for file in own:
        own_code.load(Path(file.rpartition(":")[0] or file))
    table, found = shown.compared(list(runs), to, rule)
    if picture:
        shown.draw_curves(table, found["results"], picture)
    if form:
        alone(form, json=as_json)
        return click.echo(shown.as_form(table, found["profile"], found["cells"], form))
    click.echo(json.dumps(found, indent=1) if as_json else shown.compared_text(table, found))


@click.command("claims")
@click.argument("paper", required=False)
@RESULTS
@JSON
def claims_(paper, results, as_json):
    """List what the papers claim, with a verdict from the records."""
    from fedlib.report import shown
    found = shown.claims_listing(paper, results)
    click.echo(json.dumps(found, indent=1) if as_json else shown.claims_text(found))
    told(results)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@RESULTS
@click.option("--tolerance", default=10.0, show_default=True,
              help="Largest difference in the mean over domains and the last five rounds, in points.")
@click.option("--table", help="Also show this table: printed beside committed beside fresh.")
@PROFILE
def check(folder, results, tolerance, table, profile):
    """Compare fresh records in FOLDER with those of the same runs."""
    from fedlib.experiments import batch
    from fedlib.experiments.results import results_folder
    from fedlib.report import shown
    if not tolerance >= 0:
        raise UserError(f"the tolerance is {tolerance:g} points; it has to be 0 or more")
    results = results_folder(results)
    if folder.resolve() == results.resolve():
        raise UserError(f"{folder} is the folder of committed records itself: name one of fresh records")
    lines = batch.differences(folder, results)
    if not lines:
        raise UserError(f"no records in {folder}")
    if all(gap != gap for _, _, gap in lines):
        raise UserError(f"of the {len(lines)} records in {folder} none has a committed one in {results}")
    if table:
        click.echo(shown.reproduced_text(shown.reproduced(table, profile, folder, results)) + "\n")
    click.echo(batch.differences_text(lines))
    far = [(name, gap) for name, _, gap in lines if gap > tolerance]
    for name, gap in far:
        click.echo(f"  {name} differs by {gap:.2f} points", err=True)
    return int(bool(far))


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--rounds", default=1, show_default=True, type=click.IntRange(min=1), help="So many are trained again.")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Begin after this .partial of the run.")
@click.option("--draw", metavar="N", type=click.IntRange(min=1), help="So many of a folder's, other ones each day.")
@CPU
@JSON
def verify(files, rounds, checkpoint, draw, device, as_json):
    """Check records that others made.

    Is the run planned, are the data the same, does a round come out again?
    """
    from fedlib.core.machine import check_device
    from fedlib.experiments import verify as verifying
    check_device(device)
    files = [f for folder in files for f in verifying.drawn(folder, draw, datetime.date.today())] if draw else files
    if folders := [str(f) for f in files if Path(f).is_dir()]:
        raise UserError(f"{', '.join(folders)} is a folder: name its records, or draw some with --draw")
    if checkpoint and len(files) > 1:
        raise UserError("--checkpoint is of one run: name its record alone")
    known, found = verifying.plans(), []
    for file in files:
        try:
            found.append(verifying.verify(file, rounds, checkpoint, device, known))
        except UserError as error:      # what others sent is evidence: none of it is deleted, and the rest is seen too
            why = str(error).partition("; move it away")[0]
            if len(files) == 1:
                raise UserError(why) from error
            found.append({"record": str(file), "trusted": False, "why": why})
        if not as_json:
            click.echo(verifying.in_words(found[-1]))
    if as_json:
        click.echo(json.dumps(found, indent=1))
    return int(not all(f["trusted"] for f in found))
