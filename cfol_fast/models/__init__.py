"""Image classifiers for robust training; see `create`."""

from cfol_fast.models.normalize import Normalize
from cfol_fast.models.spec import ModelSpec
from cfol_fast.models.zoo import create, names, register

__all__ = ["ModelSpec", "Normalize", "create", "names", "register"]
