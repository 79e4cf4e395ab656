"""Named devices: what they can compute, read and hold at best, each with its source. A YAML file adds more."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from twofold.variants.layout import ITEM_BYTES, SCALE_BYTES, item_bytes

FIRST_CHOICE = ("H100 SXM", "RTX 4090", "Apple M2", "Raspberry Pi 5")
"""The devices that are shown where none is named: one of each kind."""

Amount = Annotated[float, Field(ge=1e-3, le=1e9, strict=True, allow_inf_nan=False)]
_GIGA, _TERA = 1e9, 1e12
_UNPRINTABLE = ("Cc", "Cf", "Cs", "Zl", "Zp")  # controls, direction marks, halves of pairs, line ends


class Device(BaseModel):
    """A device's roofs, each number from 0.001 to 10⁹.

    `memory_gb` and `bandwidth_gb_s` in units of 10⁹ bytes, `peak_tflops` in 10¹² operations per second by dtype, dense,
    with a multiply-add as two. `source` and `url` say where the figures are from.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    kind: str = ""
    memory_gb: Amount
    bandwidth_gb_s: Amount
    peak_tflops: dict[str, Amount]
    source: str = Field(min_length=1)
    url: str = ""

    @field_validator("name", "kind", "source", "url")
    @classmethod
    def _can_be_printed(cls, text: str) -> str:
        if any(unicodedata.category(letter) in _UNPRINTABLE for letter in text.strip()):
            raise ValueError("it has a control character or a line end: write it in one line of plain text")
        return text.strip()

    @field_validator("name")
    @classmethod
    def _can_be_asked_for(cls, name: str) -> str:
        if not _key(name):
            raise ValueError("it has no letter and no digit, so that --device cannot find it")
        return name

    @field_validator("peak_tflops")
    @classmethod
    def _has_float32(cls, peaks: dict[str, float]) -> dict[str, float]:
        for dtype in peaks:
            item_bytes(dtype)
        if "float32" not in peaks:
            raise ValueError("float32 is missing, and types that are not listed compute in it")
        return peaks

    @property
    def memory_bytes(self) -> int:
        """Memory in bytes."""
        return round(self.memory_gb * _GIGA)

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return self.bandwidth_gb_s * _GIGA

    def computes_in(self, dtype: str) -> str:
        """The dtype that numbers stored as `dtype` are multiplied in.

        Its own where the device has a peak for it; float32 else; for int8, whose rows are widened when they are read,
        the fastest. Raises ValueError for an unknown dtype and for a float64 that the device has no peak for.
        """
        item_bytes(dtype)
        if dtype in SCALE_BYTES:
            return max((name for name in self.peak_tflops if name not in SCALE_BYTES), key=self.peak_tflops.__getitem__)
        if dtype in self.peak_tflops:
            return dtype
        if ITEM_BYTES[dtype] > ITEM_BYTES["float32"]:
            raise ValueError(f"{self.name} has no peak for {dtype}: choose a smaller dtype, or add it to a device file")
        return "float32"

    def peak(self, dtype: str) -> float:
        """Operations per second at best for numbers stored as `dtype` (see `computes_in`)."""
        return self.peak_tflops[self.computes_in(dtype)] * _TERA


def builtin_devices() -> tuple[Device, ...]:
    """The devices that come with the package."""
    text = resources.files("twofold.analysis").joinpath("devices.yaml").read_text(encoding="utf-8")
    return parse_devices(text, "devices.yaml")


def read_devices(path: Path) -> tuple[Device, ...]:
    """The devices of a YAML file: a list with the fields of `Device`. ValueError names the device and the field."""
    if not path.is_file():
        raise ValueError(f"{path} is not there: give a YAML file of devices")
    try:
        return parse_devices(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8") from error


def parse_devices(text: str, name: str) -> tuple[Device, ...]:
    """The devices in the text of the YAML file `name`; ValueError as `read_devices`."""
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{name} is not YAML: {error}") from error
    except (ValueError, OverflowError) as error:  # a date or a number that cannot be
        raise ValueError(f"{name} has a value that YAML cannot read: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{name} is nested too deeply: write a list of devices") from error
    if not isinstance(content, list) or not content:
        raise ValueError(f"{name}: write a list of devices, each with {', '.join(_fields())}")
    devices = tuple(_device(entry, place, name) for place, entry in enumerate(content, start=1))
    seen: dict[str, int] = {}
    for place, device in enumerate(devices, start=1):
        first = seen.setdefault(_key(device.name), place)
        if first != place:
            raise ValueError(f"{name}: device {place} ({device.name}) has the name of device {first}: rename one")
    return devices


def find_devices(names: Sequence[str], file: Path | None = None) -> tuple[Device, ...]:
    """The devices of these names, from `file` first; case, spaces and dashes make no difference.

    Raises ValueError, with the nearest name and the list, for one that is not known.
    """
    known = {_key(device.name): device for device in (*builtin_devices(), *(read_devices(file) if file else ()))}
    return tuple(_found(name, known) for name in names)


def _found(name: str, known: dict[str, Device]) -> Device:
    if _key(name) in known:
        return known[_key(name)]
    begin = [device for key, device in known.items() if _key(name) and key.startswith(_key(name))]
    if len(begin) == 1:
        return begin[0]
    near = difflib.get_close_matches(_key(name), known, n=1)
    hint = f"did you mean {known[near[0]].name!r}? " if near else ""
    names = ", ".join(device.name for device in known.values())
    raise ValueError(f"unknown device {name!r}: {hint}The devices are {names}; --devices FILE adds others")


def _key(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _fields() -> list[str]:
    return [name for name, field in Device.model_fields.items() if field.is_required()]


def _device(entry: Any, place: int, file: str) -> Device:
    if not isinstance(entry, dict):
        raise ValueError(f"{file}: device {place} is no mapping: write {', '.join(_fields())}")
    where = f"{file}: device {place} ({_shown(entry.get('name', 'without a name'))})"
    unknown = [str(key) for key in entry if key not in Device.model_fields]
    if unknown:
        near = difflib.get_close_matches(unknown[0], Device.model_fields, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"{where}: unknown field {unknown[0]!r}: {hint}The fields are {', '.join(Device.model_fields)}"
        )
    try:
        return Device.model_validate(entry)
    except ValidationError as error:
        fault = error.errors()[0]
        told = fault["msg"].removeprefix("Value error, ")
        raise ValueError(f"{where}: {_shown('.'.join(map(str, fault['loc'])))}: {told}") from error


def _shown(value: Any) -> str:
    """As text that a terminal can take."""
    text = str(value)
    return text if text.isprintable() else repr(text)
