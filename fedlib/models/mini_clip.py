"""mini_clip: an image-text model of open_clip's own class, 32 px, small enough for a CPU.

`fedlib.datasets.mini_clip_training` trains it again, in a few minutes on two cores. It saw the public images of
mini_digits only, which no federation holds, with captions that name class and style. The file holds half-precision
weights and, of the 49,408 rows of the token table, those of the captions' words. The other rows are drawn with a fixed
seed when the model is built, so that the text tower takes any text.
"""
from pathlib import Path

import torch
from torch import Tensor, nn

from fedlib.core.errors import UserError, first_line
from fedlib.core.seeds import drawing, generator, key
from fedlib.models.clip_package import open_clip

FILE = Path(__file__).with_suffix(".safetensors")
SIDE, DIM, CONTEXT, WORDS = 32, 128, 24, 49_408
MEAN, STD, MODE = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bilinear"
VISION = {"image_size": SIDE, "layers": (1, 1, 1, 1), "width": 16, "head_width": 32}
TEXT = {"context_length": CONTEXT, "width": 128, "heads": 4, "layers": 2}
TABLE = "token_embedding.weight"
SEED = 0


def trained() -> nn.Module:
    """The trained model in single precision. UserError: open_clip is not installed, the file is damaged."""
    from safetensors.torch import load_file
    model = untrained(WORDS)
    try:
        kept = {k: v.float() if v.is_floating_point() else v for k, v in load_file(FILE).items()}
        table = drawn_rows()
        table[kept.pop("tokens")] = kept[TABLE]
        model.load_state_dict(kept | {TABLE: table})
    except Exception as error:      # safetensors and torch have errors of their own
        raise UserError(f"{FILE} does not hold the weights of mini_clip ({first_line(error)})") from None
    return model


def untrained(words: int, seed: int = SEED) -> nn.Module:
    """open_clip's CLIP of this size with a table of so many token rows."""
    package = open_clip()
    with drawing(key(seed, "mini_clip")):
        return package.CLIP(DIM, VISION, TEXT | {"vocab_size": words})


def drawn_rows() -> Tensor:
    """All token rows `(49408, 128)` before training: N(0, 0.02^2), as open_clip draws them."""
    return 0.02 * torch.randn(WORDS, TEXT["width"], generator=generator("mini_clip", "token rows"))


def tokenizer():
    """CLIP's, for texts of up to 24 tokens."""
    return open_clip().SimpleTokenizer(context_length=CONTEXT)
