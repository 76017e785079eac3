"""The package open_clip, imported when it is needed, quietly; the one model whose text tower is trained."""
import functools
import logging
import warnings
from contextlib import contextmanager

from fedlib.core.errors import UserError

CLIP = "ViT-B-32"            # the open_clip model whose text tower is used


@functools.cache
def clip(pretrained: str | None):
    """The whole model CLIP, read once; UserError where its weights cannot be had. OpenAI's are for QuickGELU."""
    package = open_clip()
    try:
        with silence():
            return package.create_model(CLIP, pretrained=pretrained, force_quick_gelu=pretrained == "openai")
    except Exception as error:      # a download fails in many ways
        raise UserError(f"the weights of CLIP {CLIP} could not be loaded ({str(error).split('. ')[0]}); they are "
                        "downloaded once, so the first run needs a connection") from error


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
