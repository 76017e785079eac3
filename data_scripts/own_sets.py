"""A user's own files once they are prepared: found again by the manifests that lie beside the prepared sets."""
from fedlib.core import schema
from fedlib.core.errors import UserError
from fedlib.datasets import prepare

RECIPE = "own files"        # what such a manifest says under "recipe"
FORM = {"name": str, "size": int, "kind": str, "classes": [str], "domains": {str: object}, "recipe": str}


class OwnSet:
    """Stands where a reader stands; what it would read was read by `fedlib.readers.own_files`.

    manifests: of one name, one for each size, the default first.
    """
    FILES, HOW = (), "It is made of files of your own."

    def __init__(self, manifests: list[dict]):
        last = manifests[0]
        self.NAME, self.TITLE, self.KIND = last["name"], "your own files", last["kind"]
        self.CLASSES, self.DOMAINS = tuple(last["classes"]), tuple(last["domains"])
        self.SIZES = tuple(m["size"] for m in manifests)
        self.ABOUT = {k: last.get(k, "") for k in ("source", "split", "licence", "recipe")}

    def read(self, root, size, say=print, skip=None):
        raise UserError(f"{self.NAME} is made of your own files; run: fedlib data {self.NAME} --from FOLDER")


def prepared() -> dict[str, OwnSet]:
    """{name: reader} of the own sets in the folder of prepared sets, by name; smaller sizes come first."""
    found = {}
    for path in sorted(prepare.folder().glob("*-*.json")):
        try:
            manifest = schema.check(schema.parsed(path.read_text(encoding="utf-8")), FORM)
        except (OSError, ValueError):       # another set's, or damaged: that is said where it is loaded
            continue
        if manifest["recipe"].startswith(RECIPE) and path.stem == f"{manifest['name']}-{manifest['size']}":
            found.setdefault(manifest["name"], []).append(manifest)
    return {name: OwnSet(sorted(some, key=lambda m: m["size"])) for name, some in found.items()}
