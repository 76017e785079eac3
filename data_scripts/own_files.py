"""A user's own pictures in folders, or pictures, texts or numbers in a CSV, of several sites: one prepared set.

    FOLDER/site/class/picture           the test part of each site and class is drawn
    FOLDER/site/split/class/picture     split: train, val or test
    FILE.csv                            columns path or text, label, site, and where there are any split and patient;
                                        without path and text all other columns are numbers, a row is a sample

Another order or number of folders is named by a layout: "class/site", "site/class/patient", "split/class". A class may
be missing at a site. All samples of a patient lie in the same part, at all sites.
"""
import csv
import io
import os
import re
import unicodedata
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from fedlib.core.errors import SHOWN, UserError, nearest
from fedlib.core.seeds import key
from fedlib.datasets import prepare
from fedlib.datasets.prepare import PARTS, TEST, TRAIN, VAL
from fedlib.datasets.registry import DATASETS
from fedlib.readers import own_numbers, own_sets
from fedlib.readers.ag_news import ids, vocabulary
from fedlib.readers.image_folder import SUFFIXES, check_listed, decode
from fedlib.readers.own_sets import RECIPE

SIZES = {"images": 64, "tokens": 100}       # where none is asked for
LIMITS = {"images": (16, 1024), "tokens": (1, 10000), "features": (1, own_numbers.MOST)}
TRANSFORM = {"images": "upright, 8 bits, on white, RGB; resized to {size}x{size}, bilinear with antialiasing",
             "tokens": "words as in AG News, cut or padded to {size} ids: those of the training part, others left out",
             "features": "{size} columns, less their mean and divided by their deviation over all sites' training part"}
MODES = {"L": "grey", "RGB": "colour", "RGBA": "colour with alpha", "LA": "grey with alpha", "P": "palette",
         "1": "black and white", "I": "grey of 16 bits", "I;16": "grey of 16 bits", "I;16B": "grey of 16 bits"}
LEVELS = ("site", "split", "class", "patient")      # what a folder may stand for
SPLITS = {"train": TRAIN, "training": TRAIN, "val": VAL, "valid": VAL, "validation": VAL, "dev": VAL, "test": TEST,
          "testing": TEST}
TEST_SHARE = 0.25
CONTENT = {"path": "images", "text": "tokens"}      # a CSV's first column, and the kind of set it makes
ABOUT = ("label", "site", "split", "patient")       # a CSV's other columns
KINDS = 8       # of what is ignored, at most, in one line
ORIENTATION = 0x0112    # EXIF's tag; 1: upright


class Sample(NamedTuple):
    """A sample: where it is from, what it shows, its file, text or numbers, its given part, its patient."""
    site: str
    label: str
    content: Path | str | tuple
    part: int | None = None
    patient: str = ""


def prepare_own(name: str, root, size: int | None = None, layout: str = "", seed: int = 0, skip_corrupt: bool = False,
                say=print) -> dict:
    """Read a folder or a CSV, write the prepared set `name`, say what is in it; returns the manifest.

    size: pixels a side or tokens of a text, none for numbers; layout: what the levels of folders are; seed: of the
    drawn test part; skip_corrupt: leave unreadable pictures out, and name them in the manifest.
    UserError: a name that another set has, nothing to read, one class only, a CSV without a column, a corrupt picture,
    a cell that is no number, a patient in two parts.
    """
    if root is None:
        raise UserError(f"where are the files of {name}? Say --from FOLDER, or --from FILE.csv")
    root = Path(root).expanduser()
    check_name(name, root)
    ignored = Counter()
    kind, numbers, samples = (in_csv(root, ignored) if root.is_file() else
                              ("images", [], in_folders(root, layout, ignored)))
    if not samples:
        what = "usable rows" if root.is_file() else f"pictures ({', '.join(sorted(SUFFIXES))})"
        raise UserError(f"no {what} in {root}{said(ignored)}{nearest(name, DATASETS)}")
    samples = one_spelling(samples, say)
    classes = sorted({s.label for s in samples}, key=natural)
    if len(classes) < 2:
        raise UserError(f"{root} has one class only, '{classes[0]}': there is nothing to tell apart")
    if numbers and size not in (None, len(numbers)):
        raise UserError(f"{root} has {len(numbers)} columns of numbers: leave out --size")
    size = len(numbers) or (SIZES[kind] if size is None else size)
    if not LIMITS[kind][0] <= size <= LIMITS[kind][1]:
        raise UserError(f"size = {size} is not allowed: from {LIMITS[kind][0]} to {LIMITS[kind][1]}")
    parts, skipped = parts_of(samples, seed), [] if skip_corrupt else None
    trained = [s.content for s, part in zip(samples, parts) if part == TRAIN]
    words = vocabulary(trained) if kind == "tokens" else ""
    columns = own_numbers.scales(numbers, trained or [s.content for s in samples]) if numbers else ""
    arrays, shown = {}, {}
    for site in sorted({s.site for s in samples}, key=natural):
        index = [i for i, s in enumerate(samples) if s.site == site]
        y = np.array([classes.index(samples[i].label) for i in index], dtype=np.int64)
        x, good, shown[site] = as_array([samples[i].content for i in index], size, words, columns, site, skipped)
        arrays[site] = x, y[good], np.array(parts, dtype=np.uint8)[index][good]
    if skipped:
        ignored["pictures that cannot be read"] = len(skipped)
    split = "as given" if all(s.part is not None for s in samples) else (
        f"about {TEST_SHARE:.0%} of each site and class are test, drawn with seed {seed}")
    manifest = prepare.write_set(name, size, classes, arrays, {
        "recipe": RECIPE, "kind": kind, "source": "your own files", "licence": "yours", "words": words,
        "columns": columns, "transform": TRANSFORM[kind].format(size=size), "skipped": skipped or [],
        "split": split + "; no patient is in two parts" * any(s.patient for s in samples)})
    if numbers:     # a table has no sizes to choose from: the one of before, with other columns, is gone
        for other in set(own_sets.prepared()[name].SIZES) - {size}:
            for path in prepare.paths(name, other)[::-1]:
                path.unlink(missing_ok=True)
    doubts = own_numbers.doubtful(columns, [s.content for s in samples]) if numbers else []
    if 2 * len(classes) > len(samples):
        doubts += [f"{len(classes)} classes in {len(samples)} samples: is the label a measurement?"]
    for line in [*contents(manifest, arrays, shown), *doubts, *[said(ignored)[2:]] * bool(ignored)]:
        say(line)
    return manifest


def as_array(content: list, size: int, words, columns, site: str, skipped: list | None):
    """Samples as `prepare` stores them, which of them could be read bool (N,), and how they look in words."""
    if words:
        return ids(content, words, size), np.ones(len(content), dtype=bool), lengths(content)
    if columns:
        x = own_numbers.scaled(content, columns)
        return x, np.ones(len(content), dtype=bool), own_numbers.looks(x, columns)
    looks = {}
    x, _, good = decode(content, size, site, skipped, lambda i, image: looks.update({i: look_of(image)}))
    if not good.any():
        raise UserError(f"no picture of {site} can be read; the first is {content[0]}")
    return x, good, in_words([looks[i] for i in np.flatnonzero(good)])


def check_name(name: str, root: Path):
    """UserError: the name is a set's of fedlib, or no name; there is nothing at `root`."""
    if name in DATASETS:
        raise UserError(f"{name} is a published set, read as it was published: give your own files another name")
    if not root.exists():
        raise UserError(f"no such folder or file: {root}{nearest(name, DATASETS)}")
    if not re.fullmatch(r"\w{1,60}", name, re.ASCII):
        raise UserError(f"'{name[:60]}' is not a dataset's name (letters, digits and _)")


# what there is

def closed(error: OSError):
    """A folder that cannot be read: a site must not go missing unsaid."""
    raise UserError(f"{error.filename} cannot be read ({error.strerror})") from error


def in_folders(root: Path, layout: str, ignored: Counter) -> list[Sample]:
    """The pictures below a folder, sorted by path; what is none, or lies at another depth, is counted in `ignored`.

    UserError: an unknown layout; pictures, but none where they are looked for.
    """
    wanted = layout.split("/") if layout else None
    if wanted and ("class" not in wanted or len(set(wanted)) < len(wanted) or set(wanted) - set(LEVELS)):
        raise UserError(f"layout '{layout}' is not made of {', '.join(LEVELS)}, each once and class among them; like "
                        "class/site")
    samples, elsewhere = [], []
    for path in sorted(Path(folder, name) for folder, _, names in os.walk(root, onerror=closed, followlinks=True)
                       for name in names):
        try:
            str(path).encode()
        except UnicodeEncodeError as error:
            raise UserError(f"the name of a file is not UTF-8: {ascii(str(path))}; give it another") from error
        folders = [unicodedata.normalize("NFC", w) for w in path.relative_to(root).parts]
        if any(w.startswith(".") or w == "__MACOSX" for w in folders):      # hidden; macOS writes some into archives
            continue
        if path.suffix.lower() not in SUFFIXES:
            ignored[f"{path.suffix.lower() or 'files without an ending'}"] += 1
            continue
        levels = wanted or usual(folders[:-1])
        names = dict(zip(levels, folders[:-1]))
        if len(levels) != len(folders) - 1 or names.get("split", "train").lower() not in SPLITS:
            elsewhere.append(path)
            continue
        samples.append(Sample(plain(names.get("site", "all")), names["class"], path,
                              SPLITS[names["split"].lower()] if "split" in names else None, names.get("patient", "")))
    if elsewhere:
        where = layout or "site/class or site/split/class"
        if not samples:
            raise UserError(f"no picture in {root} lies as {where}, but {len(elsewhere)} elsewhere, the first at "
                            f"{elsewhere[0].relative_to(root)}; say what its folders are: --layout site/class/patient")
        ignored[f"pictures that do not lie as {where} (the first is {elsewhere[0].relative_to(root)})"] = len(elsewhere)
    sites = {s.site for s in samples}
    if samples and (wanted or ["site"])[0] == "site" and sites != {"all"}:
        there = {plain(unicodedata.normalize("NFC", p.name)) for p in root.iterdir() if p.is_dir()}
        empty = sorted(site for site in there - sites if not site.startswith(".") and site != "__MACOSX")
        ignored |= {f"folders without a picture that can be read: {', '.join(empty)}": len(empty)} if empty else {}
    if not layout and samples and {s.site.lower() for s in samples} <= set(SPLITS):
        raise UserError(f"the folders in {root} are splits ({', '.join(sorted({s.site for s in samples}))}), not "
                        "sites; say so: --layout split/class, or split/site/class")
    return samples


def usual(folders: list[str]) -> list[str]:
    """What the folders above a picture are taken for where nobody says it; ["?", ...]: for nothing."""
    if len(folders) == 3 and folders[1].lower() in SPLITS:
        return ["site", "split", "class"]
    return ["site", "class"] if len(folders) == 2 else ["?"] * (len(folders) + 1)


def in_csv(path: Path, ignored: Counter) -> tuple[str, list[str], list[Sample]]:
    """The kind of set, its columns of numbers, and the rows of a CSV. Files are named from its folder.

    UserError: not UTF-8, no CSV, a column missing or twice, a split that is none, a picture that is listed twice or
    absent, a cell that is no number.
    """
    rows, columns = table(path)
    content = [c for c in CONTENT if c in columns]
    numbers = [] if content else [c for c in columns if c not in ABOUT]
    absent = [c for c in ("label", "site") if c not in columns]
    absent += ["path (or text, or columns of numbers)"] * (not content and not numbers)
    if absent:
        raise UserError(f"{path} lacks the column {absent[0]} (it has: {', '.join(columns) or 'none'})")
    if len(content) > 1:
        raise UserError(f"{path} has the columns path and text: leave one of them out")
    if len(set(columns)) < len(columns):
        raise UserError(f"{path} has the column {next(c for c in columns if columns.count(c) > 1)} twice")
    if long := next((row for row in rows if None in row), None):
        raise UserError(f"{path}: line {long['line']} has more cells than the header (a comma inside a number?)")
    return CONTENT[content[0]] if content else "features", numbers, list(_rows(path, rows, content, numbers, ignored))


def table(path: Path) -> tuple[list[dict], list[str]]:
    """The rows of a CSV, each with the "line" that it ends in, and its columns in small letters; , ; or tab separates.

    UserError: not UTF-8, no CSV.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        head = text.partition("\n")[0]
        rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=head.count))
        columns = rows.fieldnames = [name.strip().lower() for name in rows.fieldnames or ()]
        return [row | {"line": rows.line_num} for row in rows], [c for c in columns if c]
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); save it as CSV UTF-8") from None
    except (OSError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as CSV ({error})") from None


def _rows(path: Path, rows, content: list[str], numbers: list[str], ignored: Counter):
    lines = {}
    for row in rows:
        line = row["line"]
        row = {k: unicodedata.normalize("NFC", v.strip()) for k, v in row.items() if k and isinstance(v, str)}
        cells = {c: own_numbers.number(row.get(c, ""), c, f"{path}, line {line}") for c in numbers}
        held = row | {c: value is not None for c, value in cells.items()}
        empty = next((c for c in (*content, *numbers, "label", "site") if not held.get(c)), None)
        if empty:
            ignored[f"rows without {empty}"] += 1
            continue
        split = row.get("split", "").lower()
        if split and split not in SPLITS:
            raise UserError(f"{path}, line {line}: the split '{split[:20]}' is not train, val or test")
        what = tuple(cells.values()) if numbers else row[content[0]]
        if content == ["path"]:
            what = path.parent / what.replace("\\", "/")
            if what in lines:
                raise UserError(f"{path}, line {line}: {row['path']} stands in line {lines[what]} too")
            lines[what] = line
        yield Sample(plain(row["site"]), row["label"], what, SPLITS.get(split), row.get("patient", ""))
    check_listed(list(lines), str(path))


def plain(site: str) -> str:
    """A site's name as a domain's: settings list them with commas, files with slashes."""
    return re.sub(r"[,/\x00-\x1f]+", "_", site)


def natural(name: str) -> tuple:
    """Sorts grade 2 before grade 10."""
    return [int(part) if i % 2 else part.casefold() for i, part in enumerate(re.split(r"(\d+)", name))], name


def one_spelling(samples: list[Sample], say) -> list[Sample]:
    """Labels that differ in capitals only are one class, spelled as most often."""
    spelled = defaultdict(Counter)
    for s in samples:
        spelled[s.label.strip().casefold()][s.label.strip()] += 1
    for some in spelled.values():
        if len(some) > 1:
            say(f"taken as one class: {', '.join(sorted(some))}")
    return [s._replace(label=spelled[s.label.strip().casefold()].most_common(1)[0][0]) for s in samples]


def new(places: list, kind: str, size: int, words: list, skip: list | None = None,
        columns: list = ()) -> tuple[list[str], np.ndarray]:
    """Names and arrays of pictures in files and folders, or of texts or numbers in CSVs, as a prepared set holds them.

    words: of the set, in the order of their ids; skip: as in `decode`; columns: as in its manifest.
    UserError: nothing there, a corrupt picture, a column that is absent.
    """
    files = []
    for place in map(Path, places):
        inside = sorted(p for p in place.rglob("*") if not p.name.startswith(".")) if place.is_dir() else [place]
        files += [p for p in inside if p.suffix.lower() in (SUFFIXES if kind == "images" else (".csv",))]
    if not files:
        ends = {"images": ", ".join(sorted(SUFFIXES)), "tokens": ".csv with a column text"}.get(
            kind, f".csv with the columns {', '.join(c[0] for c in columns[:SHOWN])}")
        raise UserError(f"nothing to predict in {', '.join(map(str, places))}: this model takes {ends}")
    check_listed(files, "predict")
    if kind == "images":
        x, _, good = decode(files, size, "pictures", skip)
        return [str(files[i]) for i in np.flatnonzero(good)], x
    if kind == "features":
        found = [numbers_in(path, columns, skip) for path in files]
        return sum((names for names, _ in found), []), own_numbers.scaled(sum((r for _, r in found), []), columns)
    texts = [text for path in files for text in texts_in(path)]
    return texts, ids(texts, words, size)


def numbers_in(path: Path, columns: list, skip: list | None) -> tuple[list[str], list[tuple]]:
    """As `own_numbers.rows_in`. UserError: a column is absent, or there are no rows."""
    rows, there = table(path)
    if absent := [c[0] for c in columns if c[0] not in there]:
        raise UserError(f"{path} lacks the column {absent[0]} (it has: {', '.join(there[:SHOWN]) or 'none'})")
    if not rows:
        raise UserError(f"{path} has no rows")
    return own_numbers.rows_in(rows, columns, path, skip)


def texts_in(path: Path) -> list[str]:
    """The column text of a CSV. UserError: it has none, or no rows."""
    rows, columns = table(path)
    if "text" not in columns:
        raise UserError(f"{path} lacks the column text (it has: {', '.join(columns) or 'none'})")
    found = [row["text"].strip() for row in rows if (row["text"] or "").strip()]
    if not found:
        raise UserError(f"{path} has no texts")
    return found


# parts

def parts_of(samples: list[Sample], seed: int) -> list[int]:
    """A part for each sample: the given one, else about TEST_SHARE of every site and class are test, by patients.

    Patients come in an order drawn with the seed, those with many samples first; one is held out where this brings the
    counts of all its sites and classes nearer to their share. UserError: a patient is given in two parts.
    """
    groups, given = defaultdict(list), {}
    for i, s in enumerate(samples):
        groups[s.patient or i].append(i)
        if s.part is not None and given.setdefault(s.patient or i, s.part) != s.part:
            raise UserError(f"patient {s.patient} is in two parts, {PARTS[given[s.patient]]} and {PARTS[s.part]}: a "
                            "test on people who were trained on flatters")
    cells = [(s.site, s.label) for s in samples]
    wanted = Counter(cells[i] for name, some in groups.items() if name not in given for i in some)
    held, parts, names = Counter(), [TRAIN] * len(samples), [name for name in groups if name not in given]
    order = np.random.default_rng(key("own files", seed)).permutation(len(names))
    for name in sorted((names[i] for i in order), key=lambda name: -len(groups[name])):
        here = Counter(cells[i] for i in groups[name])
        if sum(n * (2 * (held[cell] - TEST_SHARE * wanted[cell]) + n) for cell, n in here.items()) < 0:
            held += here
            given[name] = TEST
    for name, part in given.items():
        for i in groups[name]:
            parts[i] = part
    return parts


# in words

def look_of(image: Image.Image) -> tuple:
    """How a picture is stored: its mode in words, (width, height), whether EXIF turns it."""
    return MODES.get(image.mode, image.mode), image.size, image.getexif().get(ORIENTATION, 1) != 1


def in_words(looks: list) -> str:
    """'64 x 64 to 90 x 80 px; grey 12, colour 3; 2 turned by EXIF'."""
    low, high = (end(size for _, size, _ in looks) for end in (min, max))
    modes = Counter(mode for mode, _, _ in looks)
    text = f"{low[0]} x {low[1]}" + (f" to {high[0]} x {high[1]}" if low != high else "") + " px; "
    text += ", ".join(f"{mode} {n}" for mode, n in modes.most_common())
    turned = sum(turned for *_, turned in looks)
    return text + (f"; {turned} turned by EXIF" if turned else "")


def lengths(texts: list[str]) -> str:
    """'3 to 120 words'."""
    counts = [len(text.split()) for text in texts]
    return f"{min(counts)} to {max(counts)} words"


def contents(manifest: dict, arrays: dict, shown: dict) -> list[str]:
    """The lines of a table: samples of each site and class as train + val + test, and how the site's files look."""
    classes = manifest["classes"]
    some = classes[:SHOWN // 2]
    rows = [["site", *some, "looks"]]
    lines = []
    for site, (_, y, part) in arrays.items():
        codes = [code for code in (TRAIN, VAL, TEST) if code != VAL or (part == VAL).any()]
        counts = [[int(((y == k) & (part == code)).sum()) for code in codes] for k in range(len(classes))]
        rows.append([site, *(" + ".join(map(str, n)) if any(n) else "none" for n in counts[:len(some)]), shown[site]])
        absent = [name for name, n in zip(classes, counts) if not any(n)]
        lines += [f"{site} has no {', '.join(absent[:SHOWN])}"] if absent else []
        lines += [f"{site} has nothing to {what}, so it cannot be a client"
                  for code, what in ((TRAIN, "train on"), (TEST, "test on")) if not (part == code).any()]
    widths = [max(map(len, column)) for column in zip(*rows)]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    more = [f"and {len(classes) - len(some)} more classes, see the manifest"] if len(some) < len(classes) else []
    return ["samples of each class: train + test, or train + val + test", *table, *more, *lines]


def said(ignored: Counter) -> str:
    """'; ignored: 3 .dcm, 2 rows without label', or nothing."""
    lines = [f"{n} {what}" for what, n in ignored.most_common(KINDS)]
    more = [f"{ignored.total() - sum(n for _, n in ignored.most_common(KINDS))} others"] * (len(ignored) > KINDS)
    return f"; ignored: {', '.join(lines + more)}" if ignored else ""
