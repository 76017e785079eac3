"""fedlib: federated learning across domains. One loop, one complete base method, small differences."""
import importlib

__version__ = "0.1.0"

# The public names, imported when they are first asked for: `import fedlib` loads no torch.
PUBLIC = {"FedAvg": "methods", "METHODS": "methods", "method": "methods", "Protocol": "methods.base",
          "Data": "datasets.partition", "dataset": "datasets.registry", "Arch": "models.nets", "Net": "models.nets",
          "net": "models.nets", "plan": "engine.run", "Simulation": "engine.loop", "train": "engine.loop",
          "table": "experiments.tables:load_table", "Page": "report.page"}

__all__ = list(PUBLIC)


def __getattr__(name: str):
    if name not in PUBLIC:
        raise AttributeError(f"module 'fedlib' has no attribute '{name}'")
    place, _, other = PUBLIC[name].partition(":")
    return getattr(importlib.import_module(f"fedlib.{place}"), other or name)


def __dir__():
    return [*globals(), *PUBLIC]
