"""The plain loop of `fedlib bench --whole` with fedlib's own layers: what of a ratio is the loop, what the faster pool.

    python workflow/others/plain_with_fedlibs_pool.py users
"""
import json
import sys
from functools import partial

import fedlib
from fedlib.models.nets import Halved
from fedlib.probes.whole_runs import WAYS, asked, once, own_net, plain


def main(name: str) -> dict | None:
    """None: the net has no pool, so that it would be the plain loop again."""
    if not any(isinstance(layer, Halved) for layer in own_net(*asked(name)).modules()):
        return None
    WAYS["pooled"] = partial(plain, net_of=own_net)
    return once(name, "pooled") | {"version": fedlib.__version__}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
