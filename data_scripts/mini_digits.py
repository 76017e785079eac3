"""mini_digits: four looks of the ten digits, made in seconds from what scikit-learn and matplotlib ship.

    scans    grey hand-written digits: the UCI scans in scikit-learn, upsampled from 8x8 to 28x28
    blended  other scans blended with patches of photographs by absolute difference (the MNIST-M recipe)
    printed  small glyphs of matplotlib's serif fonts under a random affine map, one colour on another
    street   large sans glyphs with cut neighbours on a gradient, blurred and noisy (the look of SVHN)

Nothing is downloaded. Every random draw comes from a generator keyed by (purpose, domain), so a domain does not depend
on which others were built before it. The pixels of `printed` and `street` are drawn by FreeType; another release of
Pillow may move some of them by a grey level or so, and with them the digest of the prepared set.
"""
from pathlib import Path

import numpy as np

from fedlib.core.errors import UserError
from fedlib.core.seeds import key

NAME = "mini_digits"
TITLE = "Mini digits: scans, blended, printed, street"
CLASSES = tuple("0123456789")
DOMAINS = ("scans", "blended", "printed", "street")
SIZES = (28,)
BUILT_IN = True
# Images per class in (train, val, test, public), part codes 0 to 3. The rarest class has 174 scans: 87 for each domain.
PER_CLASS = {"scans": (50, 10, 18, 9), "blended": (50, 10, 18, 9),
             "printed": (200, 20, 50, 200), "street": (200, 20, 50, 200)}
MIN_CONTRAST = {"printed": 90.0, "street": 50.0}  # least difference in luma (0-255) between a glyph and its ground
HEIGHT = {"printed": (12, 18), "street": (19, 27)}  # px, least and greatest height of a glyph before it is turned
# matplotlib's text fonts with lining digits: serif ones in print, sans ones in the street. Its other fonts have symbols
# only, or old-style digits (cmmi10).
FONTS = {
    "printed": ("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic", "STIXGeneral",
                "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta", "cmr10", "cmb10", "cmti10", "cmtt10"),
    "street": ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique", "DejaVuSansMono",
               "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique", "cmss10"),
}
OWN = Path(__file__).with_name("fonts")      # cmti10, which matplotlib has from 3.11 on only
ABOUT = {
    "recipe": "1",  # another number when the images change: cached sets are then built again
    "source": "digit scans and sample photographs of scikit-learn; fonts of matplotlib",
    "transform": "scans: cubic 8x8 to 28x28, grey as RGB; blended: |photo patch - scan|; printed: serif glyphs, "
                 "affine, colours; street: sans glyphs, affine, neighbours, gradient, blur, noise",
    "split": "fixed counts per domain, class and part (PER_CLASS); scans and blended share no scan, each scan "
             "gives one image; printed and street are separate random draws; public images never enter a federation",
    "licence": "UCI digits: CC BY 4.0; photographs china.jpg and flower.jpg: CC BY 2.0; "
               "DejaVu, STIX and Computer Modern (BaKoMa) fonts: their free licences, shipped with matplotlib",
    "citation": "E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning "
                "Repository, 1998, doi:10.24432/C50P49; blending: Y. Ganin et al., JMLR 17(59), 2016",
}

_SIZE, _CANVAS, _GLYPH = SIZES[0], 64, 40  # px: side of an image, side of a glyph's mask, height of the glyph in it
_LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601


def read(root=None, size=_SIZE, say=print, skip=None):
    """The four domains as numpy arrays, and what the manifest should add (nothing). `root` and `skip` are ignored: no
    file is read.

    Returns ({domain: (x uint8 (N,3,28,28), y int64 (N,), part uint8 (N,))}, {}), ordered by part, then class.
    Raises UserError for a size other than 28.
    """
    if size not in SIZES:
        raise UserError(f"{NAME} has no size {size} (allowed: {', '.join(map(str, SIZES))})")
    domains = {}
    for domain in DOMAINS:
        y, part = labels(domain)
        domains[domain] = (_MAKERS[domain](y), y, part)
        say(f"{NAME}: {domain}, {len(y)} images")
    return domains, {}


def labels(domain: str) -> tuple[np.ndarray, np.ndarray]:
    """Class int64 (N,) and part code uint8 (N,) of every image of a domain, in the order of `read`."""
    per_part = [(np.repeat(np.arange(10), n), np.full(10 * n, code)) for code, n in enumerate(PER_CLASS[domain])]
    y, part = (np.concatenate(column) for column in zip(*per_part))
    return y.astype(np.int64), part.astype(np.uint8)


def sources(domain: str) -> np.ndarray:
    """Which of scikit-learn's 1,797 scans each image of `scans` or `blended` comes from, int64 (N,), as in `read`."""
    from sklearn.datasets import load_digits
    target, rng = load_digits().target, _generator("scans of each class", "uci")
    half = sum(PER_CLASS["scans"])
    first = {"scans": 0, "blended": half}[domain]
    chosen = [rng.permutation(np.flatnonzero(target == c))[first:first + half] for c in range(10)]
    cuts = np.cumsum(PER_CLASS[domain])[:-1]
    return np.concatenate([piece for pieces in zip(*(np.split(c, cuts) for c in chosen)) for piece in pieces])


def _generator(purpose: str, domain: str) -> np.random.Generator:
    return np.random.default_rng(key(NAME, purpose, domain))


def _scans(domain: str) -> np.ndarray:
    """Upsampled scans, float64 (N,28,28) in 0..255."""
    from scipy.ndimage import zoom
    from sklearn.datasets import load_digits
    small = load_digits().images[sources(domain)] * (255 / 16)
    factor = _SIZE / small.shape[-1]
    return zoom(small, (1, factor, factor), order=3, mode="nearest", grid_mode=True).clip(0, 255)


def _make_scans(y: np.ndarray) -> np.ndarray:
    return _pixels(np.repeat(_scans("scans")[:, None], 3, axis=1))


def _make_blended(y: np.ndarray) -> np.ndarray:
    """|patch - scan| for a random 28x28 patch of scikit-learn's two photographs (Ganin et al. 2016, MNIST-M)."""
    from sklearn.datasets import load_sample_images
    photos = np.stack(load_sample_images().images).astype(float)  # (2, height, width, 3)
    rng, n = _generator("patches", "blended"), len(y)
    which = rng.integers(len(photos), size=n)
    top, left = (rng.integers(side - _SIZE + 1, size=n) for side in photos.shape[1:3])
    patches = np.stack([photos[p, t:t + _SIZE, l:l + _SIZE] for p, t, l in zip(which, top, left)])
    return _pixels(np.abs(patches.transpose(0, 3, 1, 2) - _scans("blended")[:, None]))


def _make_printed(y: np.ndarray) -> np.ndarray:
    glyph, ground, _ = _colours("printed", len(y))
    ink = _ink("printed", y)[:, None]
    return _pixels(ink * glyph[..., None, None] + (1 - ink) * ground[..., None, None])


def _make_street(y: np.ndarray) -> np.ndarray:
    from scipy.ndimage import gaussian_filter
    rng, n = _generator("ground, blur and noise", "street"), len(y)
    glyph, start, end = _colours("street", n, gradient=True)
    ink = _ink("street", y, neighbours=True)[:, None]
    angle = rng.uniform(0, 2 * np.pi, (n, 1, 1))
    down, right = np.mgrid[-1:1:_SIZE * 1j, -1:1:_SIZE * 1j]
    slope = ((np.cos(angle) * right + np.sin(angle) * down) / np.sqrt(8) + 0.5)[:, None]  # 0 at `start`, 1 at `end`
    ground = (1 - slope) * start[..., None, None] + slope * end[..., None, None]
    x = ink * glyph[..., None, None] + (1 - ink) * ground
    width = rng.uniform(0.4, 1.4, n)
    x = np.stack([gaussian_filter(image, (0, w, w)) for image, w in zip(x, width)])
    return _pixels(x + rng.uniform(4, 20, (n, 1, 1, 1)) * rng.standard_normal(x.shape))


_MAKERS = {"scans": _make_scans, "blended": _make_blended, "printed": _make_printed, "street": _make_street}


def _masks(domain: str) -> np.ndarray:
    """Every digit in every font of a domain, centred, of one height: float32 (fonts * 10, 64, 64), 1 on the glyph."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont
    from scipy.ndimage import gaussian_filter
    masks = []
    for name in FONTS[domain]:
        places = OWN, Path(matplotlib.get_data_path(), "fonts", "ttf")
        path = next(p for place in places if (p := place / f"{name}.ttf").exists() or place != OWN)
        for digit in CLASSES:
            _, top, _, bottom = ImageFont.truetype(path, 200).getbbox(digit)
            font = ImageFont.truetype(path, 200 * _GLYPH / (bottom - top))
            left, top, right, bottom = font.getbbox(digit)
            canvas = Image.new("L", (_CANVAS, _CANVAS))
            corner = ((_CANVAS - left - right) / 2, (_CANVAS - top - bottom) / 2)
            ImageDraw.Draw(canvas).text(corner, digit, font=font, fill=255)
            masks.append(gaussian_filter(np.asarray(canvas, np.float32) / 255, 0.7))  # warping halves the resolution
    return np.stack(masks)


def _ink(domain: str, y: np.ndarray, neighbours: bool = False) -> np.ndarray:
    """How much of each pixel the glyph of digit y, in a random font and affine map, covers: (N,28,28) in 0..1.

    The map turns, slants, stretches and shifts; `neighbours` adds a random digit to the left, the right, or both.
    """
    from scipy.ndimage import map_coordinates
    masks, rng, n = _masks(domain), _generator("glyphs", domain), len(y)
    font = rng.integers(len(FONTS[domain]), size=n)
    turn, slant = np.deg2rad(rng.uniform(-15, 15, n)), rng.uniform(-0.15, 0.15, n)
    tall = rng.uniform(*HEIGHT[domain], n) / _GLYPH  # image px per mask px
    wide = tall * rng.uniform(0.85, 1.15, n)
    shift = rng.uniform(-2, 2, (2, n, 1, 1))
    down, right = np.mgrid[:_SIZE, :_SIZE] - (_SIZE - 1) / 2
    down, right = down - shift[0], right - shift[1]
    cos, sin, slant, tall, wide = (v[:, None, None] for v in (np.cos(turn), np.sin(turn), slant, tall, wide))
    row = (cos * down - sin * right) / tall
    column = (cos * right + sin * down) / wide + slant * row
    middle = (_CANVAS - 1) / 2

    def sample(digit, offset=0.0):
        mask = np.broadcast_to((font * 10 + digit)[:, None, None], row.shape)
        return map_coordinates(masks, [mask, row + middle, column + middle - offset], order=1)

    ink = sample(y)
    for side in (-1, 1) if neighbours else ():
        advance = side * rng.uniform(31, 37, (n, 1, 1))
        present = rng.random((n, 1, 1)) < 0.7
        ink = np.maximum(ink, present * sample(rng.integers(10, size=n), advance))
    return ink


def _colours(domain: str, n: int, gradient: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random RGB colours in 0..255 of n glyphs and of the two ends of their grounds (equal without `gradient`), (n,3).

    |luma(glyph) - luma(ground)| >= MIN_CONTRAST[domain] at both ends and on one side, hence everywhere between them.
    """
    rng = _generator("colours", domain)
    colours, redraw = np.empty((3, n, 3)), np.ones(n, bool)
    while redraw.any():
        colours[:, redraw] = rng.uniform(0, 255, (3, redraw.sum(), 3))
        if not gradient:
            colours[2] = colours[1]
        glyph, start, end = colours @ _LUMA
        darker, lighter = np.minimum(start, end) - glyph, glyph - np.maximum(start, end)
        redraw = np.maximum(darker, lighter) < MIN_CONTRAST[domain]
    return tuple(colours)


def _pixels(x: np.ndarray) -> np.ndarray:
    return np.rint(x).clip(0, 255).astype(np.uint8)


if __name__ == "__main__":
    from fedlib.cli import main
    main("data", NAME)
