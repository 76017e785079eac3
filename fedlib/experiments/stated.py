"""What papers state of a method's settings for one data set in particular, beside what the library has."""
from fedlib.core import settings
from fedlib.experiments import tables
from fedlib.methods import METHODS


def of_set(method: str, dataset: str, others) -> dict[str, dict]:
    """{paper: the settings of a method that it chose by the set, as they are for this dataset}.

    By the set: the paper has others of them for one of the datasets `others`, under the protocol that it prints. What
    changes with the profile goes with the budget, not with the data; settings for a frozen encoder are for other nets.
    """
    made = {}
    for content in tables.papers().values():
        blocks = {b: how["paper"]["data"]["name"] for b, how in content["blocks"].items()
                  if "paper" in how and "printed" not in how and "encoder" not in how["paper"]["data"]}
        here = next((b for b, name in blocks.items() if name == dataset), None)
        rows = [row for table in content["tables"].values() for row in table["rows"] if row["name"] == method]
        for given in [content.get("methods", {}).get(method, {}), *rows]:
            at = given.get("at", {})
            chosen = {k for b, name in blocks.items() if name in others for k in at.get(b, {})}
            chosen -= {k for p in tables.PROFILES for k in at.get(p, {})}
            if here and chosen:
                values = defaults(method) | given.get("settings", {}) | at.get(here, {})
                made[content["paper"]["name"]] = {k: values[k] for k in sorted(chosen)}
    return made


def defaults(method: str) -> dict:
    """A method's settings as the library has them."""
    return {k: default for k, (_, default) in settings.fields(METHODS[method]).items()}
