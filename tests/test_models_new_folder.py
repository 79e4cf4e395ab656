"""A folder that appears whole or not at all."""

import pytest
from safetensors import SafetensorError

from twofold.models.new_folder import new_folder, require_new


@pytest.mark.parametrize("made_before", [False, True])
def test_it_appears_when_all_went_well(tmp_path, made_before):
    place = tmp_path / "above" / "new"
    if made_before:
        place.mkdir(parents=True)
    with new_folder(place) as unfinished:
        (unfinished / "file").write_text("all")
        assert not (place / "file").exists()
    assert [path.name for path in place.parent.iterdir()] == ["new"]
    assert (place / "file").read_text() == "all"


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (ValueError("of its own"), ValueError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (SafetensorError("No space left on device"), OSError),
    ],
    ids=["fault", "interrupt", "full disk"],
)
def test_nothing_is_left_of_what_failed(tmp_path, fault, told):
    def write():
        with new_folder(tmp_path / "new") as unfinished:
            (unfinished / "half").write_text("half")
            raise fault

    with pytest.raises(told):
        write()
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_written_over(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "full")
    for name in ("full", "full/file", "link"):
        with pytest.raises(ValueError, match=r"name (a new|another)"):
            require_new(tmp_path / name)
        with pytest.raises(ValueError, match=r"name (a new|another)"), new_folder(tmp_path / name):
            pytest.fail("it began")
    assert (tmp_path / "full" / "file").read_text() == "mine"
