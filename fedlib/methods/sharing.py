"""What stays at the client: methods that differ from FedAvg in which entries travel."""
from typing import Literal

from fedlib.methods.base import FedAvg, method
from fedlib.params import NORM, names


@method
class Local(FedAvg):
    """min F_k(w_k) for each client alone: everything stays, nothing is learnt from others (FedPall's SingleSet)."""
    limit = "no setting turns it off: it is what sharing methods reduce to when nothing is shared"
    personal = True

    def private(self, net):
        return set(net.state_dict())


@method
class FedBN(FedAvg):
    """FedAvg of everything but the normalisation layers, which stay (Li et al., ICLR 2021, arXiv:2102.07623).

    norms = "name" is as released: entries with "bn" in their name stay. That misses 3 of the 20 batch-norm layers of a
    ResNet-18 (`downsample.1`), which are then shared. The paper weights clients equally; here they count by samples,
    as everywhere.
    """
    norms: Literal["type", "name"] = "type"
    limit = {}, "FedAvg", "cnn4"         # on a net without normalisation layers
    personal = True

    def private(self, net):
        return names(net, NORM) if self.norms == "type" else {k for k in net.state_dict() if "bn" in k}
