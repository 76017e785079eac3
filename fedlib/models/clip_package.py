"""The package open_clip, imported when it is needed, quietly; the one model whose text tower is trained."""
import functools
import logging
import warnings
from contextlib import contextmanager

from fedlib.core.errors import UserError

CLIP = "ViT-B-32"            # the open_clip model whose text tower is used


@functools.cache
def clip(tag: str | None):
    """The whole model CLIP, read once; else as `created`."""
    return created(CLIP, tag)


def created(model: str, tag: str | None):
    """An open_clip model; tag None: random weights. UserError where its weights cannot be had.

    OpenAI's and some other weights were trained with QuickGELU. open_clip only warns where a model's plain name says
    otherwise, and computes something else; here the tag decides.
    """
    package = open_clip()
    quick = bool(tag) and package.pretrained.get_pretrained_cfg(model, tag).get("quick_gelu", False)
    try:
        with silence():
            return package.create_model(model, pretrained=tag, force_quick_gelu=quick)
    except Exception as error:      # a download fails in many ways
        raise UserError(f"the open_clip weights {model}/{tag} could not be loaded ({str(error).split('. ')[0]}); they "
                        "are downloaded once, so the first run needs a connection") from error


def open_clip():
    """The package; UserError where it is not installed."""
    try:
        with silence():
            import open_clip
    except ImportError as error:
        raise UserError("this encoder needs open_clip: pip install open_clip_torch") from error
    return open_clip


@contextmanager
def silence():
    """Nothing but errors that are raised: open_clip and its downloader say each of their attempts several times."""
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
