"""The few of PACS's images that tests of encoders look at."""
import numpy as np
import pytest
import torch
from conftest import RAW
from PIL import Image

needs_images = pytest.mark.skipif(not ((RAW / "weights").is_dir() and (RAW / "PACS").is_dir()),
                                  reason="FEDLIB_RAW has not both PACS and ImageNet weights")


def image(path) -> torch.Tensor:
    with Image.open(path) as opened:
        return torch.from_numpy(np.asarray(opened.convert("RGB")).copy()).permute(2, 0, 1)
