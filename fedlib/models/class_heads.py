"""Frozen heads: what stands for a class before any training, `(C, D)` for each domain.

    texts    mean of the text tower's vectors of a domain's prompts, templates.toml, with the class's name
    plain    the same of one prompt for all domains, "a photo of a {}."
    public   mean feature of the domain's public images, those in no part of its split; where there is no text tower

All are means of vectors of length 1, scaled back to it, and multiplied by CLIP's scale; logits = H z / |z|.
"""
import hashlib
import json
import tomllib
from importlib import resources

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.core.errors import UserError
from fedlib.core.losses import class_means

TEMPLATES = resources.files("fedlib.models") / "templates.toml"
PLAIN = "other"     # the look whose one template serves any domain
SCALE = 100.0       # of public heads; CLIP's largest exp(logit scale), which published weights have


def make_heads(kind: str, whole: dict, parts: dict, classes: list[str], made) -> dict[str, Tensor]:
    """{domain: head} for a federation's domains. whole: {domain: Split}; parts: {domain: Parts}; made: the features.

    UserError: no encoder, one without a text tower, a domain without public images of some class.
    """
    if made is None:
        raise UserError("a frozen head needs features: name an encoder in the data")
    if kind == "public":
        return {d: of_images(d, whole[d], p, classes) for d, p in parts.items()}
    if not made.heads:
        raise UserError(f"{made.about['encoder']} has no text tower, so there are no heads of texts; take head = "
                        "\"public\"")
    return {d: made.heads[d if kind == "texts" else PLAIN] for d in parts}


def shared(made: dict[str, Tensor]) -> Tensor | None:
    """The head that all clients share: the mean of the domains' heads, not scaled again (MPFT's released code)."""
    return torch.stack(list(made.values())).mean(0) if made else None


# of texts

def prompts(domain: str, name: str, known: dict | None = None) -> list[str]:
    """The domain's prompts for a class; "_" in its name is a space."""
    known = known or templates()
    return [t.format(name.replace("_", " ")) for t in known.get(domain, known[PLAIN])]


def templates() -> dict[str, list[str]]:
    """{look of a domain: its templates}."""
    return tomllib.loads(TEMPLATES.read_text())


def text_heads(encoder, manifest: dict) -> dict[str, Tensor]:
    """{domain: `(C, D)`} of a prepared set, and of PLAIN: h_c = s mean_t t_c / |mean_t t_c|, t_c of length 1, s the
    tower's scale.
    """
    known, made = templates(), {}
    for d in [*manifest["domains"], PLAIN]:
        every = [prompts(d, name, known) for name in manifest["classes"]]
        t = encoder.texts([p for some in every for p in some]).view(len(every), len(every[0]), -1)
        made[d] = encoder.scale * F.normalize(t.mean(1))
    return made


def texts_digest(manifest: dict) -> str:
    """12 hex digits over all prompts of a prepared set."""
    known = templates()
    every = {d: [prompts(d, name, known) for name in manifest["classes"]] for d in [*manifest["domains"], PLAIN]}
    return hashlib.sha256(json.dumps(every).encode()).hexdigest()[:12]


# of images

def of_images(domain: str, whole, parts, classes: list[str]) -> Tensor:
    """h_c = s mean_x z_x / |mean_x z_x| over the domain's public images of class c; z = f(x) / |f(x)|."""
    public = torch.ones(len(whole), dtype=torch.bool)
    public[torch.cat(list(parts))] = False
    means, counts = class_means(F.normalize(whole.x[public].float()), whole.y[public], len(classes))
    if not counts.all():
        empty = classes[int((counts == 0).nonzero()[0])]
        raise UserError(f"{domain} has no public images of class {empty}: choose a split that leaves some out")
    return SCALE * F.normalize(means)
