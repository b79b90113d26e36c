"""A run says that images of its hold-out look like training images."""

import numpy as np
import pytest

from cfol_fast.runs.config import TrainConfig
from cfol_fast.training.images import load_images
from tests.data.test_checking import natural, save


@pytest.mark.parametrize("near", [0, 3])
def test_near_copies_across_the_split_are_said(tmp_path, near):
    images = natural(80, 7)
    for part, first in (("train", 0), ("test", 40), ("val", 60)):
        for i in range(first, {0: 40, 40: 60, 60: 80}[first]):
            save(tmp_path / part / ("ant", "bee")[i % 2] / f"{i}.png", images[i, 2:34, 2:34])
    for i in range(near):
        # Moved by two pixels, one grey level brighter.
        moved = np.minimum(images[i, 4:36, 2:34], 254) + 1
        save(tmp_path / f"val/{('ant', 'bee')[i % 2]}/{60 + i}.png", moved)
    given = {"data.root": str(tmp_path), "model.name": "demo-cnn@0.25", "device": "cpu"}
    warned = [note for note in load_images(TrainConfig(given)).notes if "near copies" in note]
    assert [note.split(" images")[0] for note in warned] == ([f"warning: {near} of 20"] if near else [])
