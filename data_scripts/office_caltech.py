"""Office-Caltech-10: ten object classes seen by Caltech-256, Amazon, a webcam and a DSLR camera (Gong et al., 2012)."""
import numpy as np

from fedlib.datasets.prepare import TEST, TRAIN
from fedlib.datasets.published import File
from fedlib.readers.image_folder import class_files, classes_text, decode, find_domains, subset_text, transform_text

NAME = "office_caltech"
TITLE = "Office-Caltech-10"
DOMAINS = ("caltech", "amazon", "webcam", "dslr")
CLASSES = ("back_pack", "bike", "calculator", "headphones", "keyboard",
           "laptop", "monitor", "mouse", "mug", "projector")
SIZES = (32, 64, 96, 112, 128, 224)
PUBLISHED = {"caltech": 1123, "amazon": 958, "webcam": 295, "dslr": 157}
PER_CLASS = {"caltech": (151, 110, 100, 138, 85, 128, 133, 94, 87, 97),
             "amazon": (92, 82, 94, 99, 100, 100, 99, 100, 94, 98),
             "webcam": (29, 21, 31, 27, 27, 30, 43, 30, 27, 30), "dslr": (12, 21, 12, 13, 10, 24, 22, 12, 8, 23)}
FILES = (File(  # GitHub packs anew, so the counts decide, not a hash
    "Office_Caltech_DA_Dataset.zip",
    ("https://github.com/ChristophRaab/Office_Caltech_DA_Dataset/archive/refs/heads/main.zip",),
    bytes=56_000_000, unpack=""),)
HOW = ("Where that source is gone: unpack amazon.zip, caltech.zip, dslr.zip and webcam.zip of "
       "https://github.com/pykale/data/tree/main/image_data/office into one folder.")
ABOUT = {
    "source": "Office-31 and Caltech-256, the ten classes they share",
    "split": "file index i of a domain, in ImageFolder order: i mod 10 <= 7 train, else test (RethinkFL)",
    "licence": "none stated; for research",
    "citation": "Gong, Shi, Sha, Grauman: Geodesic flow kernel for unsupervised domain adaptation. CVPR 2012",
}

_DOMAIN_FOLDERS = {"caltech": ("caltech", "caltech10", "caltech256"), "amazon": ("amazon",),
                   "webcam": ("webcam",), "dslr": ("dslr",)}
# Office-31 writes laptop_computer; Gong's own release and Caltech-256 write the longer names.
_CLASS_FOLDERS = dict.fromkeys(CLASSES, ()) | {
    "bike": ("touring-bike",), "headphones": ("head-phones",), "keyboard": ("computer-keyboard",),
    "laptop": ("laptop_computer", "laptop-101"), "monitor": ("computer-monitor",), "mouse": ("computer-mouse",),
    "mug": ("coffee-mug",), "projector": ("video-projector",)}
_USUAL = ("office_caltech10", "office_caltech_10", "OfficeCaltech10", "office_caltech", "Office_Caltech_DA_Dataset",
          "Office_Caltech_DA_Dataset-main")


def read(root, size, say=print, skip=None):
    """The four domains as numpy arrays, and what the manifest adds. UserError: see fedlib.readers.image_folder."""
    _, folders = find_domains(root, TITLE, _USUAL, _DOMAIN_FOLDERS)
    listed = {d: class_files(d, folders[d], _CLASS_FOLDERS, say) for d in DOMAINS}  # all folders before the first pixel
    domains, names, shorter = {}, {}, []
    for d, (files, y) in listed.items():
        x, sides, good = decode(files, size, d, skip)
        part = np.where(np.arange(len(y)) % 10 <= 7, TRAIN, TEST).astype(np.uint8)  # by index in the published folder
        domains[d] = x, y[good], part[good]
        names[d] = [f"{CLASSES[y[i]]}/{files[i].stem}" for i in np.flatnonzero(good)]
        shorter.append(sides)
        say(f"{d}: {len(x)} images")
    counts = {d: np.bincount(y, minlength=len(CLASSES)).tolist() for d, (_, y, _) in domains.items()}
    notices = [subset_text({d: sum(n) for d, n in counts.items()}, PUBLISHED),
               classes_text(counts, PER_CLASS, CLASSES)]
    return domains, {"names": names, "transform": transform_text(size, np.concatenate(shorter)),
                     "notice": "; ".join(filter(None, notices))}


if __name__ == "__main__":
    from fedlib.cli import main
    main("data", NAME)
