"""Methods, one file per kind of change. A method is a dataclass below FedAvg whose fields are its hyper-parameters."""
# each import registers its methods
from fedlib.methods import adversarial, context, drift, frozen, personal, prompts, prototypes, server, sharing  # noqa: F401
from fedlib.methods.base import METHODS, FedAvg, make, method

__all__ = ["METHODS", "FedAvg", "make", "method"]
