"""What all tests share: no deadline for hypothesis on shared cores, one thread, restored random state."""

import socket

import pytest
import torch
from hypothesis import settings

settings.register_profile("twofold", deadline=None, derandomize=True)
settings.load_profile("twofold")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_terminal_width(monkeypatch):
    """Processes that run tests side by side are given one; what is printed must not depend on it."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """The folder of what a file's tests keep for later: nothing reaches the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("TWOFOLD_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def own_datasets(tmp_path_factory):
    """The library datasets with a cache of its own, and without the hub."""
    import datasets

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        datasets.disable_progress_bars()
        yield


@pytest.fixture
def no_network(monkeypatch):
    """Whoever opens a connection fails."""

    def refuse(*_):
        raise AssertionError("nothing here needs a network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(autouse=True)
def _restored_random_state():
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    yield
    torch.random.set_rng_state(state)


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """A folder of texts. Read only: whoever changes them copies them first."""
    from tiny_study import write_texts

    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="session")
def finished_study(texts, tmp_path_factory):
    """The folder of a finished study of two variants. Read only, as above."""
    from tiny_study import make, spec

    out = tmp_path_factory.mktemp("studies") / "tiny"
    make(spec(texts), out)
    return out
