"""The folder of a Flower app: what `flwr run` needs to train over the connected nodes. Made without Flower."""
import json
from pathlib import Path

from fedlib.core.errors import UserError
from fedlib.core.files import write_bytes

APP = {"app.py": "from fedlib.remote.flower import client, server\n\n__all__ = [\"client\", \"server\"]\n",
       "pyproject.toml": """# A Flower app: `flwr run` of this folder trains the run below over the connected nodes.
[project]
name = "fedlib-run"
version = "1.0.0"
description = "A fedlib run across machines"
license = "MIT"
dependencies = []       # of each machine: fed-across-domains[flower]

[tool.flwr.app]
publisher = "fedlib"

[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"

[tool.flwr.app.config]
"""}


def write_app(folder: Path, config: dict):
    """Write the app of a run; config: what `fedlib.remote.flower.planned` reads. UserError: another project's."""
    for name, text in APP.items():
        if (folder / name).is_file() and not (folder / name).read_text(errors="replace").startswith(text[:60]):
            raise UserError(f"{folder / name} is another project's: name an empty folder")
    lines = "".join(f"{k} = {json.dumps(v)}\n" for k, v in config.items())
    for name, text in APP.items():
        write_bytes(folder / name, (text + lines * name.endswith("toml")).encode())
