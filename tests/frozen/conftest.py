import pytest

from tests.attacks.small_models import Trained
from tests.attacks.small_models import trained as make


@pytest.fixture
def trained() -> Trained:
    return make()
