"""Office-Home, VLCS and TerraIncognita: sets of domain generalisation, as folders <domain>/<class>/<file>.

The layouts are those of DomainBed (arXiv:2007.01434), whose script downloads them. None has a published split.
"""
import sys
from dataclasses import dataclass

import numpy as np

from fedlib.core.errors import UserError
from fedlib.readers.image_folder import class_files, decode, find_domains, hold_out, subset_text, transform_text

_SPLIT = "none published; per class ceil(0.2 n) test, drawn with a fixed key; no val"
_HOW = "DomainBed's script domainbed/scripts/download.py gets it: https://github.com/facebookresearch/DomainBed"


@dataclass(frozen=True, eq=False)
class DomainFolders:
    """A set whose domains and classes are folders."""
    NAME: str
    TITLE: str
    DOMAINS: tuple
    CLASSES: tuple
    SPELLINGS: dict     # {domain: what else its folder is called}
    FOLDERS: tuple      # names of the folder that holds the domains
    PUBLISHED: dict
    ABOUT: dict
    HOW: str = _HOW
    FILES: tuple = ()
    SIZES: tuple = (64, 32, 96, 128, 224)
    OTHER: tuple = ()   # (counts as PUBLISHED, what to say of a set that has them)

    def read(self, root, size, say=print, skip=None):
        """The domains as numpy arrays, and what the manifest adds. A class that a domain lacks is no fault here:
        TerraIncognita's locations do not see all animals.

        UserError: see fedlib.readers.image_folder; also a class that no domain has.
        """
        spelled = {d: (d, *self.SPELLINGS.get(d, ())) for d in self.DOMAINS}
        _, folders = find_domains(root, self.TITLE, self.FOLDERS, spelled)
        domains, names, shorter = {}, {}, []
        for d, folder in folders.items():
            files, y = class_files(d, folder, dict.fromkeys(self.CLASSES, ()), say, complete=False)
            x, sides, good = decode(files, size, d, skip)
            domains[d] = x, y[good], hold_out(y, 0.2, self.NAME, d)[good]
            names[d] = [f"{self.CLASSES[k]}/{f.stem}" for f, k, kept in zip(files, y, good, strict=True) if kept]
            shorter.append(sides)
            say(f"{d}: {len(x)} images")
        seen = np.concatenate([y for _, y, _ in domains.values()])
        absent = sorted(set(range(len(self.CLASSES))) - set(seen.tolist()))
        if absent:
            raise UserError(f"no domain of {self.TITLE} has the class '{self.CLASSES[absent[0]]}'")
        found = {d: len(x) for d, (x, _, _) in domains.items()}
        notice = next((said for counts, said in self.OTHER if counts == found), subset_text(found, self.PUBLISHED))
        return domains, {"names": names, "notice": notice, "transform": transform_text(size, np.concatenate(shorter))}


OFFICE_HOME = DomainFolders(
    "office_home", "Office-Home", ("art", "clipart", "product", "real_world"),
    ("alarm_clock", "backpack", "batteries", "bed", "bike", "bottle", "bucket", "calculator", "calendar", "candles",
     "chair", "clipboards", "computer", "couch", "curtains", "desk_lamp", "drill", "eraser", "exit_sign", "fan",
     "file_cabinet", "flipflops", "flowers", "folder", "fork", "glasses", "hammer", "helmet", "kettle", "keyboard",
     "knives", "lamp_shade", "laptop", "marker", "monitor", "mop", "mouse", "mug", "notebook", "oven", "pan",
     "paper_clip", "pen", "pencil", "postit_notes", "printer", "push_pin", "radio", "refrigerator", "ruler",
     "scissors", "screwdriver", "shelf", "sink", "sneakers", "soda", "speaker", "spoon", "tv", "table", "telephone",
     "toothbrush", "toys", "trash_can", "webcam"),
    {"real_world": ("Real",)}, ("OfficeHome", "office_home", "OfficeHomeDataset_10072016", "Office-Home"),
    {"art": 2427, "clipart": 4365, "product": 4439, "real_world": 4357},
    {"source": "Office-Home, https://www.hemanthdv.org/officeHomeDataset.html", "split": _SPLIT,
     "licence": "for non-commercial research",
     "citation": "Venkateswara, Eusebio, Chakraborty, Panchanathan: Deep hashing network for unsupervised domain "
                 "adaptation. CVPR 2017"})
VLCS = DomainFolders(
    "vlcs", "VLCS", ("voc2007", "labelme", "caltech101", "sun09"), ("bird", "car", "chair", "dog", "person"),
    {"voc2007": ("PASCAL",), "caltech101": ("CALTECH",), "sun09": ("SUN",)}, ("VLCS", "vlcs"),
    {"voc2007": 3376, "labelme": 2656, "caltech101": 1415, "sun09": 3282},
    {"source": "VLCS: classes that PASCAL VOC 2007, LabelMe, Caltech-101 and SUN09 share", "split": _SPLIT,
     "licence": "none stated; for research",
     "citation": "Fang, Xu, Rockmore: Unbiased metric learning. ICCV 2013"})
TERRA = DomainFolders(
    "terra_incognita", "TerraIncognita", ("location_100", "location_38", "location_43", "location_46"),
    ("bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit", "raccoon", "squirrel"), {},
    ("terra_incognita", "TerraIncognita"),
    {"location_100": 4879, "location_38": 9767, "location_43": 4020, "location_46": 6122},
    {"source": "Caltech Camera Traps, four locations as DomainBed takes them, "
               "https://lila.science/datasets/caltech-camera-traps", "split": _SPLIT,
     "licence": "Community Data License Agreement, permissive variant",
     "citation": "Beery, Van Horn, Perona: Recognition in Terra Incognita. ECCV 2018"},
    OTHER=(({"location_100": 4741, "location_38": 9736, "location_43": 3970, "location_46": 5883},
            "the 24,330 images that the source offers now; papers used 24,788"),))
SETS = {s.NAME: s for s in (OFFICE_HOME, VLCS, TERRA)}


if __name__ == "__main__":
    from fedlib.cli import main
    named = len(sys.argv) > 1 and sys.argv[1] in SETS  # python data_scripts/domain_folders.py vlcs --size 32
    main("data", *([] if named else [OFFICE_HOME.NAME]))
