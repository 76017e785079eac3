"""Where the records lie: the one folder that tables, pages and commands read."""
import os
from pathlib import Path

CLONE = "fed-across-domains"      # the folder that a notebook's first cell clones into


def results_folder(given: Path | None = None, table: str = "") -> Path:
    """Where records lie: as given, else FEDLIB_RESULTS, else the nearest results/ upwards, else that of a clone below
    (as notebooks make it in Colab) or of the checkout that this package is part of; else ./results.

    table: what is to be trained; one of one's own, FILE.toml/NAME, leaves nothing in a checkout elsewhere.
    """
    if given or os.environ.get("FEDLIB_RESULTS"):
        return Path(given or os.environ["FEDLIB_RESULTS"])
    here, checkout = Path.cwd(), Path(__file__).parents[2]
    places = [p / "results" for p in [here, *here.parents]]
    if ".toml/" not in table:
        places += [here / CLONE / "results"]
        places += [checkout / "results"] if (checkout / "pyproject.toml").is_file() else []
    return next((p for p in places if p.is_dir()), here / "results")


def absent(results: Path) -> str:
    """What a reader must know where there is no folder of records; "" where there is one."""
    return "" if results.is_dir() else (f"There is no folder of records at {results}: clone the repository here, or "
                                        "name the folder results of a clone by FEDLIB_RESULTS or --results.")
