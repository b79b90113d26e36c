"""Each kind of images with the source that feeds it."""

from __future__ import annotations

from typing import Any

from cfol_fast import ops
from cfol_fast.data.ffcv.data_set import BetonSet
from cfol_fast.data.ffcv.source import FFCVSource
from cfol_fast.data.images import Images, ImageSet
from cfol_fast.data.resident import ResidentSource


def source_of(
    images: Images, lag: int = 1, augment: ops.Augment | None = None, **options: Any
) -> ResidentSource | FFCVSource:
    """Images in memory go to the device, images in a file stay there. lag: see `FFCVSource`; options: what
    both sources take.
    """
    if isinstance(images, ImageSet):
        return ResidentSource(images, augment=augment, **options)
    assert isinstance(images, BetonSet)
    return FFCVSource(images.file, lag, augment=augment, subset=images.rows, **options)
