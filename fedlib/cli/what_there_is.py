"""Commands: methods, datasets, features, partitions."""
import json
from pathlib import Path

import click

from fedlib.cli.options import DEVICE, JSON
from fedlib.core import settings
from fedlib.core.errors import UserError


@click.command()
@click.option("--net", help="Also count bytes and passes per round for this net, in a tiny federation.")
@click.option("--width", default="0", help="The net's width [default: the published one].")
@click.option("--classes", default=10, show_default=True, type=click.IntRange(min=2))
@click.option("--shape", default="3,32,32", show_default=True, help="Of one sample: an image's, or a vector's length.")
@click.option("--clients", default=10, show_default=True, type=click.IntRange(min=1))
@JSON
def methods(net, width, classes, shape, clients, as_json):
    """List the methods: their kind, settings with defaults, limits. FedAvg's settings hold for all."""
    from fedlib.report import zoo
    lines = zoo.listing()
    if net:
        shape = settings.convert(tuple[int, ...], shape, "--shape", least=1)
        zoo.add_costs(lines, {"net": net, "width": width}, classes, shape, clients)
    click.echo(json.dumps(lines, indent=1) if as_json else zoo.listing_text(lines))


@click.command()
@JSON
def datasets(as_json):
    """List the datasets: domains, classes, and what is prepared here."""
    from fedlib.datasets import prepare
    lines = prepare.listing()
    click.echo(json.dumps(lines, indent=1) if as_json else prepare.listing_text(lines))


@click.command()
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
        if domains or download:
            raise UserError("--domains and --download are of published sets; your own files are prepared whole")
        own = registry.own_files()
        return click.echo(prepare.summary(own.prepare_own(name, root, size, layout or "", seed or 0, skip_corrupt,
                                                          click.echo)))
    wanted = tuple(filter(None, (domains or "").split(",")))
    try:
        registry.reader_of(name)
    except UserError as error:
        raise UserError(f"{error}; your own: fedlib data {name} --from FOLDER or FILE.csv") from error
    if root and registry.built_in(name):
        raise UserError(f"{name} is built in and reads no files: give your own another name")
    click.echo(prepare.summary(prepare.prepare(name, size, root, click.echo, skip_corrupt, download, wanted)))


@click.command()
@click.option("--encoder", required=True, help="mini_clip, squeezenet1_1, mobilenet_v2@96, open_clip:ViT-B-32/openai.")
@click.option("--data", "name", required=True, help="A prepared dataset of images.")
@click.option("--size", type=int, help="Pixels per side of the prepared images [default: the dataset's first].")
@click.option("--batch", default=64, show_default=True, type=click.IntRange(min=1), help="Images at once.")
@click.option("--from", "source", type=click.Path(path_type=Path), help="A file made on another machine: verify, copy.")
@DEVICE
def features(encoder, name, size, batch, source, device):
    """Compute a frozen encoder's features of a dataset, once for all. Or take them from a file.

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


@click.command()
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
    if not name and (out or picture):
        raise UserError("name the partition whose clients are to be written")
    if not name:
        lines = named_partitions.listing()
        return click.echo(json.dumps(lines, indent=1) if as_json else named_partitions.listing_text(lines))
    spec = named_partitions.load_named(name).data
    found = named_partitions.drawn(spec, seed)
    click.echo(json.dumps(found) if as_json else named_partitions.in_words(name, found))
    if out:
        write_bytes(out, json.dumps(named_partitions.indices(spec, seed)).encode())
        click.echo(f"indices: {out}", err=as_json)
    if picture:
        from fedlib.report import plots, shown
        shown.save(plots.holdings(named_partitions.frame(found), "training samples"), picture)
        click.echo(f"picture: {picture}", err=as_json)
