"""Each kind of images with the source that feeds it."""

from __future__ import annotations

from typing import Any

from cfol_fast import ops
from cfol_fast.data.ffcv.data_set import BetonSet
from cfol_fast.data.ffcv.source import FFCVSource
from cfol_fast.data.images import Images, ImageSet
from cfol_fast.data.resident import ResidentSource
from cfol_fast.data.stream.data_set import StreamSet
from cfol_fast.data.stream.source import StreamSource


def source_of(
    images: Images, lag: int = 1, augment: ops.Augment | None = None, **options: Any
) -> ResidentSource | FFCVSource | StreamSource:
    """Images in memory go to the device, images in files stay there. lag: see `FedSource`; options: what all
    sources take.
    """
    if isinstance(images, ImageSet):
        return ResidentSource(images, augment=augment, **options)
    if isinstance(images, StreamSet):
        return StreamSource(images, lag, augment=augment, **options)
    assert isinstance(images, BetonSet)
    return FFCVSource(images.file, lag, augment=augment, subset=images.rows, **options)
