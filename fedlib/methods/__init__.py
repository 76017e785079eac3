"""Methods, one file per kind of change. A method is a dataclass below FedAvg whose fields are its hyper-parameters."""
# each import registers its methods
from fedlib.methods import (  # noqa: F401
    adversarial,
    class_texts,
    drift,
    features,
    personal,
    prompts,
    prototypes,
    server,
    sharing,
)
from fedlib.methods.base import METHODS, FedAvg, make, method

__all__ = ["METHODS", "FedAvg", "make", "method"]
