"""Rendered digits: a regenerated stand-in for SynthDigits (Ganin and Lempitsky, 2015), for those who cannot get it.

Made by the published recipe: numbers of one to three digits in many fonts, the labelled digit near the centre, with
random position, orientation, colours of stroke and ground, and blur. Fonts, colours and degrees of variation are ours,
so results differ from those on the published images. Nothing is downloaded. The glyphs are those of mini_digits, drawn
by FreeType; another release of Pillow may move some pixels by a grey level or so.
"""
import numpy as np
from PIL import Image, ImageFilter

from fedlib.core.errors import UserError
from fedlib.core.seeds import key
from fedlib.datasets.prepare import TEST, TRAIN
from fedlib.readers import mini_digits
from fedlib.readers.image_folder import room

NAME = "rendered_digits"
TITLE = "Rendered digits (regenerated stand-in for SynthDigits)"
DOMAINS = ("rendered_digits",)
CLASSES = tuple("0123456789")
SIZES = (32, 28)
BUILT_IN = True
COUNTS = {"train": 40000, "test": 10000}  # as many of each class
PUBLISHED = {f"{NAME} {kind}": n for kind, n in COUNTS.items()}
FILES = ()
HOW = ""
NOTICE = "rendered_digits is a regenerated stand-in for synth_digits, not the published images"
ABOUT = {
    "recipe": "1",  # another number when the images change: cached sets are then built again
    "source": "fonts of matplotlib, drawn as the SYN NUMBERS (SynthDigits) of Ganin and Lempitsky are said to be",
    "transform": "numbers of one to three digits, turned, slanted, stretched, shifted, blurred; one colour on another",
    "split": f"{COUNTS['train']} train and {COUNTS['test']} test images, separate random draws, as many of each class",
    "licence": "DejaVu, STIX and Computer Modern (BaKoMa) fonts: their free licences, shipped with matplotlib",
    "citation": "Ganin, Lempitsky: Unsupervised domain adaptation by backpropagation. ICML 2015 (the recipe)",
    "notice": NOTICE,
}
MIN_CONTRAST = 40.0  # least difference in luma (0-255) between stroke and ground
HEIGHT = (0.5, 0.85)  # of a digit before it is turned, in sides of the image
STRETCH = (0.8, 1.15)  # of its width
TURN = 20.0            # degrees at most, to either side
SLANT = 0.2            # at most: px to the side per px of height
SHIFT = 0.09           # of a digit's middle from the image's at most, in sides of the image
GAP = (1.0, 9.0)       # between the digits of a number, where a digit is 40 px high
BLUR = (0.0, 1.3)      # standard deviation, in px of an image of 32

_CHUNK = 2000  # images that are in memory as floats; each chunk has random numbers of its own
_PX, _GLYPH, _STRIP = 64, 40, 256  # px: side of a digit's mask, height of the digit in it, length of a number's mask


def read(root=None, size=SIZES[0], say=print, skip=None):
    """The one domain as numpy arrays; `root` is ignored, no file is read. UserError: a size other than 32 or 28."""
    if size not in SIZES:
        raise UserError(f"{NAME} has no size {size} (sizes: {', '.join(map(str, SIZES))})")
    x, y, part = draw(size)
    say(f"{NAME}: {len(y)} images")
    return {NAME: (x, y, part)}, {}


def draw(size: int, counts: dict | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x uint8 (N,3,size,size), y int64 (N,), part uint8 (N,): all train images, then all test images.

    With fewer `counts` than COUNTS the images are the first ones of the full set. Both sizes show the same digits.
    """
    counts = counts or COUNTS
    x = room((sum(counts.values()), 3, size, size))
    part = np.repeat(np.array([TRAIN, TEST], np.uint8), list(counts.values()))
    y, at, glyphs = np.empty(len(x), np.int64), 0, masks()
    for kind, n in counts.items():
        for start in range(0, n, _CHUNK):
            end = at + min(_CHUNK, n - start)
            x[at:end], y[at:end] = (a[:end - at] for a in chunk(kind, start // _CHUNK, size, *glyphs))
            at = end
    return x, y, part


def masks() -> tuple[np.ndarray, np.ndarray]:
    """The digits in every font of mini_digits: masks uint8 (fonts,10,64,64), 40 px high, and their widths in px."""
    glyphs = np.concatenate([mini_digits._masks(look) for look in mini_digits.FONTS]).reshape(-1, 10, _PX, _PX)
    inked = glyphs.max(2) > 0.5
    return np.rint(255 * glyphs).clip(0, 255).astype(np.uint8), _PX - inked.argmax(-1) - inked[..., ::-1].argmax(-1)


def chunk(kind: str, index: int, size: int, glyphs: np.ndarray, widths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """2,000 images uint8 (2000,3,size,size) and their labels, 200 of each class in random order."""
    rng = np.random.default_rng(key(NAME, kind, index))
    y = rng.permutation(np.arange(_CHUNK) % 10)
    maps = affine_maps(rng, size)
    font, gap, blur = rng.integers(len(glyphs), size=_CHUNK), rng.uniform(*GAP, _CHUNK), rng.uniform(*BLUR, _CHUNK)
    digits, length = rng.integers(10, size=(_CHUNK, 3)), rng.integers(1, 4, size=_CHUNK)
    place = rng.integers(length)  # of the labelled digit in its number
    digits[np.arange(_CHUNK), place] = y
    ink = np.empty((_CHUNK, 1, size, size), np.float32)
    for i in range(_CHUNK):
        strip = number(glyphs[font[i]], widths[font[i]], digits[i, :length[i]], place[i], gap[i])
        image = strip.transform((size, size), Image.Transform.AFFINE, maps[i], Image.Resampling.BILINEAR)
        ink[i, 0] = image.filter(ImageFilter.GaussianBlur(float(blur[i]) * size / 32))
    stroke, ground = colours(rng)
    x = ground + ink / 255 * (stroke - ground)
    return np.rint(x).astype(np.uint8), y


def number(glyphs: np.ndarray, widths: np.ndarray, digits: np.ndarray, place: int, gap: float) -> Image.Image:
    """The mask of a number, 64x256: its digits side by side, `gap` px apart, digits[place] in the middle."""
    strip = np.zeros((_PX, _STRIP), np.uint8)
    middles = np.cumsum(widths[digits] + gap) - widths[digits] / 2
    for digit, left in zip(digits, np.rint(middles - middles[place] + (_STRIP - _PX) / 2).astype(int)):
        here = strip[:, left:left + _PX]
        np.maximum(here, glyphs[digit], out=here)
    return Image.fromarray(strip)


def affine_maps(rng: np.random.Generator, size: int) -> np.ndarray:
    """Where in a number's mask each pixel of an image lies: (2000,6) as PIL's affine transform takes it."""
    turn, slant = np.deg2rad(rng.uniform(-TURN, TURN, _CHUNK)), rng.uniform(-SLANT, SLANT, _CHUNK)
    tall = rng.uniform(*HEIGHT, _CHUNK) * size / _GLYPH  # image px per mask px
    wide = tall * rng.uniform(*STRETCH, _CHUNK)
    right, down = (0.5 + rng.uniform(-SHIFT, SHIFT, (2, _CHUNK))) * size  # where the digit's middle comes
    cos, sin = np.cos(turn), np.sin(turn)
    d, e = -sin / tall, cos / tall
    a, b = cos / wide + slant * d, sin / wide + slant * e
    return np.stack([a, b, _STRIP / 2 - a * right - b * down, d, e, _PX / 2 - d * right - e * down], 1)


def colours(rng: np.random.Generator) -> np.ndarray:
    """RGB of stroke and ground in 0..255, float32 (2,2000,3,1,1), at least MIN_CONTRAST of luma apart."""
    drawn, redraw = np.empty((2, _CHUNK, 3)), np.ones(_CHUNK, bool)
    while redraw.any():
        drawn[:, redraw] = rng.uniform(0, 255, (2, redraw.sum(), 3))
        stroke, ground = drawn @ mini_digits._LUMA
        redraw = np.abs(stroke - ground) < MIN_CONTRAST
    return drawn[..., None, None].astype(np.float32)


if __name__ == "__main__":
    from fedlib.cli import main
    main("data", NAME)
