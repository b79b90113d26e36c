"""Data: the paper's data sets by name, and the sources that turn indices into batches of pixels."""

from cfol_fast.data.ffcv.data_set import BetonSet
from cfol_fast.data.ffcv.source import FFCVSource
from cfol_fast.data.images import ImageData, ImageSet, holdout, imbalance, stratified
from cfol_fast.data.recognition import recognised
from cfol_fast.data.registry import (
    AUGMENTATIONS,
    DataSpec,
    augmentation,
    check_options,
    check_source,
    default_augmentation,
    is_own,
    load,
    names,
    reads_files,
    register,
    spec,
)
from cfol_fast.data.resident import ResidentSource
from cfol_fast.data.source_kinds import source_of
from cfol_fast.data.stream.data_set import StreamSet
from cfol_fast.data.stream.source import StreamSource
from cfol_fast.data.ticket_loader import TicketLoader, loader

__all__ = [
    "AUGMENTATIONS",
    "BetonSet",
    "DataSpec",
    "FFCVSource",
    "ImageData",
    "ImageSet",
    "ResidentSource",
    "StreamSet",
    "StreamSource",
    "TicketLoader",
    "augmentation",
    "check_options",
    "check_source",
    "default_augmentation",
    "holdout",
    "imbalance",
    "is_own",
    "load",
    "loader",
    "names",
    "reads_files",
    "recognised",
    "register",
    "source_of",
    "spec",
    "stratified",
]
