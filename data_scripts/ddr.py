"""DDR: photos of the back of the eye, graded for diabetic retinopathy (Li et al., 2019), as FedDEAP's four domains.

FedDEAP: HB is high resolution and bright, LB low and bright, HD high and dark, LD low and dark. It states no
thresholds; its test sets (765, 603, 603, 765 by its printed accuracies) add up to a fifth of all images, so every image
is in one domain, and high and low, bright and dark are equally many, so both cuts are at the median. The rest is ours:

- resolution: width times height of the photo;
- brightness: the mean of the grey image at 128 x 128 where it is above 15 of 255, which leaves out the black border;
- high and bright are the upper half by rank; of equal values, those that the lists name first are the lower ones.
"""
import numpy as np
from PIL import Image

from fedlib.core.errors import UserError
from fedlib.readers.image_folder import (
    check_listed,
    classes_text,
    decode,
    each_image,
    hold_out,
    subset_text,
    transform_text,
)

NAME = "ddr"
TITLE = "DDR"
DOMAINS = ("HB", "LB", "HD", "LD")
CLASSES = ("No_Diabetic_Retinopathy", "Mild_Non-Proliferative_Diabetic_Retinopathy",
           "Moderate_Non-Proliferative_Diabetic_Retinopathy", "Severe_Non-Proliferative_Diabetic_Retinopathy",
           "Proliferative_Diabetic_Retinopathy", "Unreadable_Images_For_Diagnosis")  # FedDEAP's words
SIZES = (64, 32, 96, 128, 224)
PUBLISHED = {}  # the domains are not published, only the whole set:
PER_CLASS = {"ddr": (6266, 630, 4477, 236, 913, 1151)}
FILES = ()
HOW = ("Download all parts of DDR-dataset.zip from the links at https://github.com/nkicsl/DDR-dataset and unpack them "
       "as one zip (7-Zip does); DIR is the folder that holds DR_grading with train.txt, valid.txt, test.txt and their "
       "images.")
ABOUT = {
    "source": "DDR, the part DR_grading, https://github.com/nkicsl/DDR-dataset",
    "split": "the published lists pooled; domains by the medians of resolution and of brightness; per domain and class "
             "ceil(0.2 n) test, drawn with a fixed key (FedDEAP's own draw is not published); no val",
    "licence": "none stated; for research",
    "citation": "Li, Gao, Wang, Guo, Liu, Kang: Diagnostic assessment of deep learning algorithms for diabetic "
                "retinopathy screening. Information Sciences 501, 2019",
}
DARK = 15   # grey level up to which a pixel belongs to the border
SIDE = 128  # px at which brightness is measured, whatever size is prepared

_FOLDERS = ("", "DR_grading", "DDR-dataset/DR_grading", "DDR/DR_grading")
_LISTS = ("train", "valid", "test")


def read(root, size, say=print, skip=None):
    """The four domains as numpy arrays, and what the manifest adds.

    UserError: a list that is not there or garbled, listed images that are absent, a class or a domain without images.
    """
    place = next((root / f for f in _FOLDERS if any((root / f / f"{name}.txt").is_file() for name in _LISTS)), None)
    if place is None:
        raise UserError(f"no {TITLE} in {root}: looked for train.txt, valid.txt, test.txt there and in "
                        f"{', '.join(_FOLDERS[1:])}. {HOW}")
    files, y = listed_images(place)
    pixels, light, good = measure(files, skip)
    files, y = [files[i] for i in np.flatnonzero(good)], y[good]
    high, bright = upper_half(pixels[good]), upper_half(light[good])
    domains, shorter = {}, []
    for d in DOMAINS:
        mine = np.flatnonzero((high == (d[0] == "H")) & (bright == (d[1] == "B")))
        if not len(mine):
            raise UserError(f"domain '{d}' of {TITLE} has no images: too few in {place} to cut at both medians")
        x, sides, good = decode([files[i] for i in mine], size, d, skip)
        domains[d] = x, y[mine][good], hold_out(y[mine], 0.2, NAME, d)[good]
        shorter.append(sides)
        say(f"{d}: {len(x)} images")
    counts = {NAME: sum(np.bincount(k, minlength=len(CLASSES)) for _, k, _ in domains.values()).tolist()}
    notices = [subset_text({d: sum(n) for d, n in counts.items()}, {d: sum(n) for d, n in PER_CLASS.items()}),
               classes_text(counts, PER_CLASS, CLASSES)]
    return domains, {"transform": transform_text(size, np.concatenate(shorter)),
                     "notice": "; ".join(filter(None, notices))}


def listed_images(place) -> tuple[list, np.ndarray]:
    """Files and labels int64 (N,) of train.txt, valid.txt and test.txt: lines like '007-0004-000.jpg 0'."""
    files, y = [], []
    for name in _LISTS:
        path = place / f"{name}.txt"
        if not path.is_file():
            raise UserError(f"{TITLE} in {place} lacks {path.name}")
        for line in filter(str.strip, path.read_text(encoding="utf-8", errors="replace").splitlines()):
            row = line.split()
            if len(row) != 2 or row[1] not in set("012345") or "/" in row[0]:
                raise UserError(f"{path}: '{line[:80]}' is no line like '007-0004-000.jpg 0' with a label in 0..5")
            files.append(place / name / row[0])
            y.append(int(row[1]))
    absent = sorted(set(range(len(CLASSES))) - set(y))
    if absent:
        raise UserError(f"{TITLE} in {place} lacks the class '{CLASSES[absent[0]]}': no line with label {absent[0]}")
    check_listed(files, TITLE)
    return files, np.array(y, dtype=np.int64)


def measure(files, skip) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pixels (N,) and brightness (N,) of the photos, and which of them are readable, bool (N,)."""
    pixels, light = np.zeros(len(files), dtype=np.int64), np.zeros(len(files))

    def look(i, image):
        pixels[i] = image.width * image.height
        light[i] = brightness(image)

    return pixels, light, each_image(files, look, "resolution and brightness", skip)


def brightness(image: Image.Image) -> float:
    """The mean grey level 0..255 of a photo inside its border; 0 when all is dark."""
    image.draft("L", (SIDE, SIDE))  # a large JPEG is decoded small
    grey = np.asarray(image.convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    return float(grey[grey > DARK].mean()) if (grey > DARK).any() else 0.0


def upper_half(values: np.ndarray) -> np.ndarray:
    """bool (N,): the upper floor(N/2) by rank; equal values keep their order."""
    upper = np.zeros(len(values), dtype=bool)
    upper[np.argsort(values, kind="stable")[len(values) - len(values) // 2:]] = True
    return upper


if __name__ == "__main__":
    from fedlib.cli import main
    main("data", NAME)
