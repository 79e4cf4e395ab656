"""Streams: what was given and what a resumed stream gives are all documents, once, in order."""

import json

import datasets
import pytest

from local_datasets import COLUMN, json_lines, parquet, saved, stories, texts_of
from twofold.data.dataset import DatasetSource
from twofold.data.streams import DatasetStream


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        datasets.disable_progress_bars()
        yield


@pytest.fixture(scope="module", params=[parquet, json_lines, saved])
def source(request, tmp_path_factory):
    folder = request.param(tmp_path_factory.mktemp("stream") / "data")
    return DatasetSource(str(folder), column=COLUMN)


def through_json(state):
    return json.loads(json.dumps(state))


def test_going_on_from_any_place_gives_exactly_the_rest(source):
    whole = list(DatasetStream(source))
    assert whole == texts_of(stories(len(stories())))[: len(whole)]
    stream = DatasetStream(source)
    states = [through_json(stream.state())]
    for _ in stream:
        states.append(through_json(stream.state()))
    assert len(states) == len(whole) + 1
    for given, state in enumerate(states):
        resumed = DatasetStream(source)
        resumed.resume(state)
        assert list(resumed) == whole[given:]
        assert list(resumed) == whole, "the next iteration is another epoch"


def test_going_on_twice_and_states_of_a_resumed_stream(source):
    whole = list(DatasetStream(source))
    stream = DatasetStream(source)
    for stop in (3, 5):
        running = iter(stream)
        read = [next(running) for _ in range(stop)]
        state = through_json(stream.state())
        stream.resume(state)
    assert read == whole[3:8]
    assert stream.state() == state
    assert list(stream) == whole[8:]


def test_an_iteration_that_was_left_does_not_disturb_the_next(source):
    stream = DatasetStream(source)
    whole = list(stream)
    left = iter(stream)
    next(left)
    running = iter(stream)
    assert stream.state()["row"] == 0, "before the first document it stands at the beginning"
    assert [next(running) for _ in range(4)] == whole[:4]
    assert list(running) == whole[4:]


@pytest.mark.parametrize("count", [1, 6, 100])
def test_what_is_held_out_never_comes(source, count):
    whole = list(DatasetStream(source))
    stream = DatasetStream(source)
    taken = stream.take(count)
    assert [document.content for document in taken] == whole[:count]
    names = [f"train#{row:08}" for row, text in enumerate(stories()) if text]
    assert [document.name for document in taken] == names[: len(taken)]
    for _ in range(2):
        assert list(stream) == whole[count:]
    if count < len(whole):
        running = iter(stream)
        next(running)
        resumed = DatasetStream(source)
        resumed.take(count)
        resumed.resume(through_json(stream.state()))
        assert list(resumed) == whole[count + 1 :]


def test_the_identity_tells_sources_apart(tmp_path):
    one, other = parquet(tmp_path / "a"), parquet(tmp_path / "b", shards=2)
    sources = [DatasetSource(str(one), column=COLUMN), DatasetSource(str(one), column="n")]
    sources += [DatasetSource(str(other), column=COLUMN)]
    identities = [DatasetStream(source).identity for source in sources]
    assert len(set(identities)) == 3
    assert DatasetStream(sources[0]).identity == identities[0]
    assert json.loads(identities[0])["split"] == "train"
