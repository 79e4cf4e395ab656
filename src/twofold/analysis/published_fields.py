"""The fields of a configuration, each checked as it is read: a file may hold anything, a reading sees sound values.

A count is a whole number of at least 1. Where a family writes 0 for none, as for windows, the reading says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
WIDTH = ("hidden_size", "n_embd", "d_model")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads")
HEAD_DIM = ("head_dim", "kv_channels")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
WINDOWS = ("sliding_window", "attention_chunk_size")
REUSING = "num_kv_shared_layers"
LATENT = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")

MOST = 2**63 - 1
"""No count is larger: what is reckoned from such counts can still be printed."""
MOST_LAYERS = 100_000
"""Some hundred times as many layers as any published model has; the reading goes through them one by one."""


class Fields:
    """One part of a configuration: the whole model's, or one layer's. Each method raises ValueError by field name.

    `source` has the fields as attributes, or as items. Of several names the first that has a value is read; None where
    none has. Two of these are equal only where they are the same object.
    """

    def __init__(self, source: object) -> None:
        self._source = SimpleNamespace(**source) if isinstance(source, Mapping) else source

    def count(self, *names: str, most: int = MOST) -> int | None:
        """A whole number from 1 to `most`."""
        return self._whole(names, 1, most)

    def count_or_none(self, *names: str) -> int | None:
        """A whole number of at least 1; 0 is read as none."""
        return self._whole(names, 0, MOST) or None

    def needed(self, *names: str) -> int:
        """A whole number of at least 1 that this kind of model cannot do without."""
        number = self.count(*names)
        if number is None:
            raise ValueError(f"the configuration does not name {names[0]}: write a whole number of at least 1 there")
        return number

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false; `default` where the field has no value."""
        value = self._value(name)
        if value is not None and not isinstance(value, bool):
            raise ValueError(f"{name} is {_shown(value)}: write true or false there")
        return default if value is None else value

    def text(self, name: str) -> str | None:
        """A text."""
        value = self._value(name)
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{name} is {_shown(value)}: write one name in quotes there")
        return value

    def texts(self, name: str) -> list[str] | None:
        """A list of texts."""
        value = self._value(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} is {_shown(value)}: write a list of names in quotes there")
        for place, one in enumerate(value):
            if not isinstance(one, str):
                raise ValueError(f"{name}[{place}] is {_shown(one)}: write a name in quotes there")
        return list(value)

    def part(self, name: str) -> dict[str, Any] | None:
        """An object of names and values; one without any is read as none."""
        value = self._value(name)
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(f"{name} is {_shown(value)}: write an object of names and values there")
        return dict(value) if value else None

    def _whole(self, names: tuple[str, ...], least: int, most: int) -> int | None:
        name, value = next(((n, v) for n in names if (v := self._value(n)) is not None), (names[0], None))
        if value is None:
            return None
        what = f"{self._as_written(name)} is {_shown(value)}"
        wanted = f"write a whole number of at least {least}" + (" there, 0 for none" if least == 0 else " there")
        if isinstance(value, str):
            raise ValueError(f"{what}, and not a number: {wanted}, without quotes")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{what}: {wanted}")
        if value > most:
            raise ValueError(f"{what}, and no more than {most:,} can be planned")
        return value

    def _value(self, name: str) -> Any:
        try:
            return getattr(self._source, name, None)
        except RuntimeError:  # transformers, where the field differs between the layers
            raise ValueError(f"{name} differs from layer to layer, which cannot be planned") from None

    def _as_written(self, name: str) -> str:
        """The family's own name for a field beside the common one, where it has one."""
        own = getattr(type(self._source), "attribute_map", {}).get(name, name)
        return name if own == name else f"{own} ({name})"


def check_counts(written: Mapping[str, Any]) -> None:
    """ValueError for the first count among the fields above that is none, whether or not a reading would use it."""
    fields = Fields(written)
    fields.count(*LAYERS, most=MOST_LAYERS)
    for name in (*HEADS, *WIDTH, *KV_HEADS, *HEAD_DIM, *POSITIONS, *LATENT):
        fields.count(name)
    for name in (*WINDOWS, REUSING):
        fields.count_or_none(name)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f"the text {_short(repr(value))}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return _short(str(value))
    return {list: "a list", tuple: "a list", dict: "an object", type(None): "null"}.get(type(value), "no JSON value")


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:30]}… ({len(text)} characters)"
