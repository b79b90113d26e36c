"""Image classifiers for robust training; see `create`."""

from cfol_fast.models.factories import check_named
from cfol_fast.models.libraries import Published
from cfol_fast.models.normalize import Normalize
from cfol_fast.models.spec import ModelSpec
from cfol_fast.models.zoo import (
    check_name,
    create,
    create_without_numbers,
    library_name,
    names,
    namesake,
    published,
    published_weights,
    register,
    registered_names,
)

__all__ = [
    "ModelSpec",
    "Normalize",
    "Published",
    "check_name",
    "check_named",
    "create",
    "create_without_numbers",
    "library_name",
    "names",
    "namesake",
    "published",
    "published_weights",
    "register",
    "registered_names",
]
