"""Office-Caltech-10: ten object classes seen by Caltech-256, Amazon, a webcam and a DSLR camera (Gong et al., 2012)."""
import numpy as np

from data_scripts.image_folder import class_files, decode, find_domains, subset_text, transform_text
from fedlib.prepare import TEST, TRAIN, main

NAME = "office_caltech"
TITLE = "Office-Caltech-10"
DOMAINS = ("caltech", "amazon", "webcam", "dslr")
CLASSES = ("back_pack", "bike", "calculator", "headphones", "keyboard",
           "laptop", "monitor", "mouse", "mug", "projector")
SIZES = (32, 64, 96, 112, 128, 224)
PUBLISHED = {"caltech": 1123, "amazon": 958, "webcam": 295, "dslr": 157}
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
_USUAL = ("office_caltech10", "office_caltech_10", "OfficeCaltech10", "office_caltech", "Office_Caltech_DA_Dataset")


def read(root, size, say=print):
    """The four domains as numpy arrays, and what the manifest adds. UserError: see data_scripts.image_folder."""
    _, folders = find_domains(root, TITLE, _USUAL, _DOMAIN_FOLDERS)
    listed = {d: class_files(d, folders[d], _CLASS_FOLDERS) for d in DOMAINS}  # all folders before the first pixel
    domains, shorter = {}, []
    for d, (files, y) in listed.items():
        x, sides = decode(files, size, d)
        domains[d] = x, y, np.where(np.arange(len(y)) % 10 <= 7, TRAIN, TEST).astype(np.uint8)
        shorter.append(sides)
        say(f"{d}: {len(y)} images")
    notice = subset_text({d: len(y) for d, (_, y, _) in domains.items()}, PUBLISHED)
    return domains, {"transform": transform_text(size, np.concatenate(shorter)), "notice": notice}


if __name__ == "__main__":
    raise SystemExit(main(NAME))
