"""Named devices: every figure has a source, users add theirs, and mistakes are told with what to do."""

import pytest
from pydantic import ValidationError

from twofold.analysis.devices import FIRST_CHOICE, Device, builtin_devices, find_devices, parse_devices, read_devices

MINE = """
- name: My Board
  memory_gb: 3
  bandwidth_gb_s: 11
  peak_tflops: {float32: 0.7, float16: 1.3}
  source: measured on my desk
"""


def test_every_device_has_its_source_and_rates_that_rise_as_numbers_shrink():
    names = [device.name for device in builtin_devices()]
    assert len(set(names)) == len(names) >= 9
    for device in builtin_devices():
        assert device.source
        assert device.url.startswith("https://")
        assert device.peak("bfloat16") >= device.peak("float32")
        assert device.memory_bytes >= 8e9


@pytest.mark.parametrize(
    ("name", "tflops", "gb_s", "gb"),
    [
        ("H100 SXM", 1979 / 2, 3350, 80),
        ("H200", 1979 / 2, 4800, 141),
        ("A100 80GB", 312, 2039, 80),
        ("L4", 121, 300, 24),
    ],
)
def test_data_sheets_are_met_dense(name, tflops, gb_s, gb):
    device = find_devices([name])[0]
    assert device.peak("bfloat16") == pytest.approx(tflops * 1e12, rel=1e-3)
    assert (device.bandwidth, device.memory_bytes) == (gb_s * 1e9, gb * 10**9)


def test_derived_figures_follow_from_clocks_and_lanes():
    pi, epyc, jetson = find_devices(["Raspberry Pi 5", "EPYC 9654", "Jetson Orin Nano Super"])
    assert pi.bandwidth == pytest.approx(32 / 8 * 4.267e9, rel=5e-3)
    assert pi.peak("float32") == pytest.approx(4 * 2.4e9 * 2 * 4 * 2, rel=5e-3)
    assert pi.peak("float16") == pytest.approx(2 * pi.peak("float32"), rel=5e-3)
    assert epyc.bandwidth == pytest.approx(12 * 8 * 4.8e9)
    assert epyc.peak("float32") == pytest.approx(96 * 2.4e9 * 32, rel=5e-3)
    assert jetson.peak("float32") == pytest.approx(1024 * 2 * 1.02e9, rel=5e-3)
    assert jetson.peak("bfloat16") == pytest.approx(67e12 / 4, rel=5e-3)


def test_types_without_a_peak_compute_in_float32_and_int8_in_the_fastest(tmp_path):
    board = parse_devices(MINE, "mine")[0]
    computed = {dtype: board.computes_in(dtype) for dtype in ("float16", "bfloat16", "float32", "int8")}
    assert computed == {"float16": "float16", "bfloat16": "float32", "float32": "float32", "int8": "float16"}
    assert board.peak("int8") == 1.3e12
    with pytest.raises(ValueError, match="My Board has no peak for float64"):
        board.peak("float64")
    with pytest.raises(ValueError, match="unknown dtype 'fp7'"):
        board.peak("fp7")


@pytest.mark.parametrize("name", ["h100", "H100-SXM", "h100sxm", " H100 sxm "])
def test_names_are_found_however_they_are_written(name):
    assert find_devices([name])[0].name == "H100 SXM"


def test_the_usual_choice_exists_and_the_nearest_name_is_told():
    assert [device.name for device in find_devices(FIRST_CHOICE)] == list(FIRST_CHOICE)
    with pytest.raises(ValueError, match=r"unknown device 'RTX 4091': did you mean 'RTX 4090'\? The devices are H100"):
        find_devices(["RTX 4091"])
    for name in ("", "h"):  # of several that begin so, none is meant
        with pytest.raises(ValueError, match="unknown device"):
            find_devices([name])


def test_a_file_adds_devices_and_goes_before_those_that_are_there(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(MINE + MINE.replace("My Board", "H200"))
    mine, h200, l4 = find_devices(["myboard", "h200", "L4"], file)
    assert (mine.bandwidth, h200.bandwidth, l4.bandwidth) == (11e9, 11e9, 300e9)
    assert read_devices(file) == (mine, h200)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "mine is not YAML"),
        ("a: 1", "mine: write a list of devices, each with name, memory_gb, bandwidth_gb_s, peak_tflops, source"),
        ("[]", "write a list"),
        ("- 7", "device 1 is no mapping"),
        (MINE.replace("memory_gb", "memory_gib"), r"device 1 \(My Board\): unknown field 'memory_gib': did you mean"),
        (MINE.replace("11", "-1"), r"bandwidth_gb_s: Input should be greater than or equal to 0.001"),
        (MINE.replace("11", ".inf"), r"bandwidth_gb_s: Input should be a finite number"),
        (
            MINE.replace("11", "1.0e+308"),
            r"My Board\): bandwidth_gb_s: Input should be less than or equal to 1000000000",
        ),
        (MINE.replace("11", "1.0e-320"), r"My Board\): bandwidth_gb_s: Input should be greater than"),
        (MINE.replace("memory_gb: 3", "memory_gb: true"), r"My Board\): memory_gb: Input should be a valid number"),
        ("[" * 20_000, "mine is nested too deeply"),
        (MINE.replace("My Board", "2020-13-41"), "mine has a value that YAML cannot read: month"),
        (MINE.replace("My Board", "🚀"), r"mine: device 1 \(🚀\): name: it has no letter and no digit"),
        (MINE + MINE.replace("My Board", "my-board"), r"mine: device 2 \(my-board\) has the name of device 1"),
        (MINE.replace("My Board", r'"A\e[31m"'), r"mine: device 1 \('A\\x1b\[31m'\): name: it has a control character"),
        (MINE.replace("measured on my desk", r'"desk \e[2J"'), r"My Board\): source: it has a control character"),
        (MINE.replace("float32", "bfloat16"), "float32 is missing"),
        (MINE.replace("float16", "fp16"), "unknown dtype 'fp16'"),
        (MINE.replace("  source: measured on my desk", ""), "source: Field required"),
    ],
)
def test_mistakes_in_a_file_name_the_place(text, message):
    with pytest.raises(ValueError, match=message):
        parse_devices(text, "mine")


def test_a_file_that_is_not_there_or_no_text_is_told(tmp_path):
    with pytest.raises(ValueError, match="is not there"):
        read_devices(tmp_path / "none.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not text in UTF-8"):
        read_devices(tmp_path / "binary")


def test_a_device_cannot_change():
    with pytest.raises(ValidationError):
        builtin_devices()[0].name = "other"
    assert isinstance(builtin_devices()[0], Device)
