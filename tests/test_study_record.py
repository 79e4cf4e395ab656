"""A record contradicts neither itself nor the file that it came from."""

import pytest
from pydantic import ValidationError

from synthetic_records import synthetic_record
from twofold.study.record import RunRecord, read_record, write_atomically, write_record


def changed(section, **values):
    data = synthetic_record("QKV", 2.0).model_dump()
    data[section] = data[section] | values
    return data


def test_record_survives_its_file(tmp_path):
    record = synthetic_record("K=V GQA-2", 1.9173, seed=3, text="é <&> \u2028")
    write_record(record, tmp_path / "record.json")
    assert read_record(tmp_path / "record.json") == record


def test_bits_per_byte_must_follow_from_the_documents():
    with pytest.raises(ValidationError, match=r"documents give bits_per_byte 2\.0.*, the validation says 1\.9"):
        RunRecord.model_validate(changed("validation", bits_per_byte=1.9))


@pytest.mark.parametrize("measure", ["loss", "perplexity"])
def test_other_measures_must_follow_too(measure):
    with pytest.raises(ValidationError, match=rf"documents give {measure} \d.*, the validation says 1\.0"):
        RunRecord.model_validate(changed("validation", **{measure: 1.0}))


def test_parts_of_the_parameters_must_add_up():
    with pytest.raises(ValidationError, match="the parts have 7 parameters, and the total says 8"):
        synthetic_record("QKV", 2.0, parameters={"total": 8, "attention": 3, "mlp": 4})


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 0, -1])
def test_speeds_are_finite_and_positive(value):
    with pytest.raises(ValidationError):
        RunRecord.model_validate(changed("speed", wall_seconds=value))


def test_bytes_of_the_documents_must_add_up():
    with pytest.raises(ValidationError, match="documents give bytes 23649, the validation says 23650"):
        RunRecord.model_validate(changed("validation", bytes=23_650))


def test_cache_bytes_per_token_must_be_measured():
    with pytest.raises(ValidationError, match=r"bytes_per_token is 511\.0, but 131584 bytes used for 257 tokens"):
        RunRecord.model_validate(changed("cache", bytes_per_token=511))


def test_parameters_name_total_and_attention():
    with pytest.raises(ValidationError, match="parameters lack attention; given: total"):
        synthetic_record("QKV", 2.0, parameters={"total": 7})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_diverged_loss_is_no_result(value):
    with pytest.raises(ValidationError, match="finite"):
        RunRecord.model_validate(changed("validation", loss=value))


def test_unreadable_record_names_file_place_and_remedy(tmp_path):
    path = tmp_path / "record.json"
    path.write_text('{"variant": "QKV"')
    with pytest.raises(ValueError, match=r"record\.json: the whole file: .*; delete the run's folder"):
        read_record(path)
    path.write_bytes(synthetic_record("QKV", 2.0).model_dump_json().replace("total", "sum").encode())
    with pytest.raises(ValueError, match=r"record\.json: parameters: .*parameters lack total"):
        read_record(path)


def test_interrupted_write_leaves_the_previous_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    write_atomically(path, b"before")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"after")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]
