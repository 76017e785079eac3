"""Methods, one file per kind of change. A method is a dataclass below FedAvg whose fields are its hyper-parameters."""
from importlib.metadata import entry_points

# each import registers its methods
from fedlib.methods import (  # noqa: F401
    adversarial,
    class_texts,
    closed_form,
    drift,
    features,
    label_skew,
    low_rank,
    own_heads,
    personal,
    private,
    prompts,
    prototypes,
    robust,
    server,
    sharing,
    style,
    unseen,
)
from fedlib.methods.base import METHODS, FedAvg, make, method

for point in entry_points(group="fedlib.methods"):      # of other packages: NAME = "module:class", with @method
    point.load()

__all__ = ["METHODS", "FedAvg", "make", "method"]
