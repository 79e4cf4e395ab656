"""What all tests share: no deadline for hypothesis on shared cores, one thread, restored random state."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("twofold", deadline=None, derandomize=True)
settings.load_profile("twofold")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _restored_random_state():
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    yield
    torch.random.set_rng_state(state)
