"""Rows on disk: the cache of a prefix, saved once and continued from as often as wanted.

A safetensors file with the rows in use and nothing else: `layers.I.heads` [B, G, S, head_width] and, where rows have
that part, `layers.I.shared` [B, S, shared_width] of each layer; for int8 rows their scales, `layers.I.scales`
[B, G, S] and `layers.I.shared_scales` [B, S]; and `token_ids` [B, tokens] if they were given. S counts the rows that a
layer keeps, fewer than the tokens where it has a window. The metadata says what made the rows, how they lie, and the
hash of it all.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers.cache_utils import Cache

from twofold.cache.kept import DTYPES_BY_NAME, KeptRows
from twofold.cache.row_cache import RowCache, is_row_cache
from twofold.cache.state_cache import StateCache
from twofold.variants.layout import RowLayout, Span

FORMAT = "twofold rows 1"
_TOKEN_IDS = "token_ids"
_SPANS = ("key", "value", "shared_key")
_PARTS = dict(zip(KeptRows._fields, ("heads", "shared", "scales", "shared_scales"), strict=True))
"""What the parts of kept rows are called in a file."""
_SAFETENSORS_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "int8": "I8",
    "int32": "I32",
}


def save(cache: Cache, path: Path | str, fingerprint: Mapping[str, str], token_ids: Tensor | None = None) -> None:
    """Write the rows in use to `path`, replacing what is there at once and whole.

    `fingerprint` says which model made them (`models.fingerprint`). With `token_ids` [B, S], the prefix that they are
    rows of, `load` can hold a prompt to it. Raises ValueError for a cache without rows, and for other shapes.
    """
    path = Path(path)
    if isinstance(cache, StateCache):
        raise ValueError(
            "only rows can be saved, and linear attention caches states: run the model on the prefix anew, or keep the "
            "cache in memory (`copy.deepcopy`)"
        )
    if not is_row_cache(cache) or not cache.get_seq_length():
        raise ValueError(f"there are no rows to save in this {type(cache).__name__}: run the model on the prefix first")
    if cache.offloading:
        torch.accelerator.synchronize()  # rows may still be on their way to the CPU
    header = _Header.of(cache, fingerprint, token_ids is not None)
    tensors = dict(_rows(cache))
    if token_ids is not None:
        expected = (header.sequences, header.length)
        if tuple(token_ids.shape) != expected:
            raise ValueError(
                f"token_ids are {list(token_ids.shape)} and the cache holds rows of {list(expected)} tokens"
            )
        tensors[_TOKEN_IDS] = token_ids.to("cpu", torch.int32).contiguous()
    hashed = hashlib.sha256()
    for name, tensor in tensors.items():
        hash_tensor(hashed, name, tensor)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file(tensors, temporary, metadata=header.metadata(hashed.hexdigest()))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load(
    path: Path | str,
    fingerprint: Mapping[str, str],
    *,
    prompt: Tensor | None = None,
    capacity: int | None = None,
    device: torch.device | str = "cpu",
) -> RowCache:
    """The cache that was saved, on `device`, to be continued by the model of that `fingerprint`.

    It keeps rows in the dtype they were saved in, and converts only if the saved cache did. `capacity` as in
    `RowCache`. `prompt` [B, T]: the token ids that will be continued; they must begin with the prefix, and B may be
    anything if one sequence was saved (repeat it with `batch_repeat_interleave`). Raises ValueError that says what
    differs for rows of another model, a prompt that begins otherwise, and a file that is damaged or something else.
    """
    path = Path(path)
    with _opened(path) as file:
        header = _Header.read(path, file.metadata() or {})
        header.check_model(path, fingerprint)
        _check_shapes(path, file, header)
        if prompt is not None:
            _check_prompt(path, file, header, prompt)
        dtype = header.dtype if header.converts else None
        windows = header.windows
        layouts, kv_heads = header.layouts or header.layout, header.layer_kv_heads or header.kv_heads
        cache = RowCache(header.layers, layouts, kv_heads, capacity, dtype=dtype, windows=windows)
        hashed = hashlib.sha256()
        for index, layer in enumerate(cache.layers):
            parts = {}
            for field, (name, _, _) in header.parts(index).items():
                parts[field] = file.get_tensor(name)
                hash_tensor(hashed, name, parts[field])
            layer.restore(KeptRows(**{field: part.to(device) for field, part in parts.items()}), header.length)
        if header.has_token_ids:
            hash_tensor(hashed, _TOKEN_IDS, file.get_tensor(_TOKEN_IDS))
        if file.metadata() != header.metadata(hashed.hexdigest()):
            raise _damaged(path, "its contents do not have the hash that was noted")
    return cache


def saved_token_ids(path: Path | str) -> Tensor | None:
    """The token ids [B, S] that were saved with the rows, or None. Only `load` reads all of the file and its hash.

    Raises ValueError for a file that is something else, or whose shapes are not those that it states.
    """
    path = Path(path)
    with _opened(path) as file:
        header = _Header.read(path, file.metadata() or {})
        _check_shapes(path, file, header)
        return file.get_tensor(_TOKEN_IDS).long() if header.has_token_ids else None


def hash_tensor(hashed: Any, name: str, tensor: Tensor) -> None:
    """Feed a tensor's name, dtype, shape and bytes to a hash; equal on every device."""
    hashed.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
    hashed.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


@dataclass(frozen=True)
class _Header:
    """What the metadata says, but for the hash."""

    layers: int
    sequences: int
    length: int
    kv_heads: int
    dtype: str
    converts: bool
    has_token_ids: bool
    layout: RowLayout
    fingerprint: Mapping[str, str]
    # These two only where a layer has a window: the files of other caches stay as they were.
    windows: list[int | None] | None = None
    kept: list[int] | None = None
    # And these two only where layers have different rows.
    layouts: list[RowLayout] | None = None
    layer_kv_heads: list[int] | None = None

    @classmethod
    def of(cls, cache: Cache, fingerprint: Mapping[str, str], has_token_ids: bool) -> _Header:
        first = cache.layers[0]
        heads_BGSW = first.kept().heads_BGSW
        windows = [layer.window for layer in cache.layers]
        kept = [layer.kept().heads_BGSW.shape[2] for layer in cache.layers]
        slides = any(window is not None for window in windows)
        layouts, heads = [layer.layout for layer in cache.layers], [layer.kv_heads for layer in cache.layers]
        differ = len(set(zip(layouts, heads, strict=True))) > 1
        return cls(
            layers=len(cache.layers),
            sequences=heads_BGSW.shape[0],
            length=first.length,
            kv_heads=first.kv_heads,
            dtype=str(heads_BGSW.dtype).removeprefix("torch."),
            converts=first.dtype is not None,
            has_token_ids=has_token_ids,
            layout=first.layout,
            fingerprint=fingerprint,
            windows=windows if slides else None,
            kept=kept if slides else None,
            layouts=layouts if differ else None,
            layer_kv_heads=heads if differ else None,
        )

    def metadata(self, contents: str) -> dict[str, str]:
        """As safetensors stores it; `contents` is the hash of the tensors."""
        stated = {name: value for name, value in asdict(self).items() if value is not None}
        values = {name: json.dumps(value, sort_keys=True) for name, value in stated.items()}
        everything = json.dumps([FORMAT, values, contents], sort_keys=True)
        return {"format": FORMAT, **values, "sha256": hashlib.sha256(everything.encode()).hexdigest()}

    @classmethod
    def read(cls, path: Path, metadata: Mapping[str, str]) -> _Header:
        if metadata.get("format") != FORMAT:
            raise ValueError(f"{path} is not a saved row cache of this version ({FORMAT!r})")
        try:
            optional = dict.fromkeys(("windows", "kept", "layouts", "layer_kv_heads"), "null")
            values = {name: json.loads({**optional, **metadata}[name]) for name in cls.__dataclass_fields__}
            values["layout"] = _layout(values["layout"])
            values["layouts"] = None if values["layouts"] is None else [_layout(one) for one in values["layouts"]]
            return cls(**values)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise _damaged(path, f"its metadata: {error}") from error

    def __post_init__(self) -> None:
        counts = (self.layers, self.sequences, self.length, self.kv_heads)
        if any(type(count) is not int or count < 1 for count in counts) or self.dtype not in DTYPES_BY_NAME:
            raise ValueError(f"{self.dtype} rows, counts {counts}")
        if self.dtype == "int8" and not self.converts:
            raise ValueError("int8 rows that were not converted")
        self._check_windows()
        rows = (self.layouts, self.layer_kv_heads)
        if rows != (None, None) and not all(one and len(one) == self.layers for one in rows):
            raise ValueError(f"{self.layers} layers, and layouts or heads of another number")
        if not isinstance(self.fingerprint, Mapping):
            raise TypeError("the fingerprint has no names")

    def _check_windows(self) -> None:
        if self.windows is None and self.kept is None:
            return
        windows, kept = self.windows or [], self.kept or []
        if not len(windows) == len(kept) == self.layers:
            raise ValueError(f"{self.layers} layers, windows {windows}, rows kept {kept}")
        for window, rows in zip(windows, kept, strict=True):
            least = self.length if window is None else min(self.length, window - 1)
            if not least <= rows <= self.length:
                raise ValueError(f"{rows} rows kept of {self.length} tokens with a window of {window}")

    def parts(self, layer: int) -> dict[str, tuple[str, str, list[int]]]:
        """For each field of a layer's `KeptRows`: its name in the file, and the dtype and shape that it must have."""
        batch, tokens = self.sequences, self.length if self.kept is None else self.kept[layer]
        layout = self.layouts[layer] if self.layouts else self.layout
        kv_heads = self.layer_kv_heads[layer] if self.layer_kv_heads else self.kv_heads
        made = {"heads_BGSW": (self.dtype, [batch, kv_heads, tokens, layout.head_width])}
        scaled = self.dtype == "int8"
        if layout.shared_width:
            made["shared_BSW"] = (self.dtype, [batch, tokens, layout.shared_width])
        if scaled:
            made["scales_BGS"] = ("float32", [batch, kv_heads, tokens])
        if scaled and layout.shared_width:
            made["shared_scales_BS"] = ("float32", [batch, tokens])
        return {field: (f"layers.{layer}.{_PARTS[field]}", *of) for field, of in made.items()}

    def shapes(self) -> dict[str, tuple[str, list[int]]]:
        """The dtype and shape that each tensor of the file must have."""
        made = {name: (dtype, shape) for i in range(self.layers) for name, dtype, shape in self.parts(i).values()}
        return {**made, _TOKEN_IDS: ("int32", [self.sequences, self.length])} if self.has_token_ids else made

    def check_model(self, path: Path, fingerprint: Mapping[str, str]) -> None:
        names = [*fingerprint, *(name for name in self.fingerprint if name not in fingerprint)]
        differences = [
            f"{name} is {self.fingerprint.get(name, 'missing')} there and {fingerprint.get(name, 'missing')} here"
            for name in names
            if self.fingerprint.get(name) != fingerprint.get(name)
        ]
        if differences:
            raise ValueError(f"{path} holds rows of another model: {'; '.join(differences)}. Save its prefix anew")


def _layout(stated: Mapping[str, Any]) -> RowLayout:
    """A layout as JSON gives it back."""
    spans = {name: Span(*span) for name, span in stated.items() if name in _SPANS and span}
    order = stated["value_order"]
    return RowLayout(**{**stated, **spans, "value_order": None if order is None else tuple(order)})


def _rows(cache: Cache) -> Iterator[tuple[str, Tensor]]:
    for index, layer in enumerate(cache.layers):
        for name, part in zip(_PARTS.values(), layer.kept(), strict=True):
            if part is not None:
                yield f"layers.{index}.{name}", part.detach().cpu().contiguous()


def _opened(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"there is no saved cache at {path}")
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise _damaged(path, str(error)) from error


def _check_shapes(path: Path, file: Any, header: _Header) -> None:
    expected, names = header.shapes(), set(file.keys())
    if names != set(expected):
        raise _damaged(path, f"it should hold {len(expected)} tensors and {sorted(names ^ set(expected))[0]} is amiss")
    for name, (dtype, shape) in expected.items():
        found = file.get_slice(name)
        if found.get_shape() != shape or found.get_dtype() != _SAFETENSORS_NAMES[dtype]:
            raise _damaged(path, f"{name} should be {dtype} {shape} and is {found.get_dtype()} {found.get_shape()}")


def _check_prompt(path: Path, file: Any, header: _Header, prompt: Tensor) -> None:
    if not header.has_token_ids:
        raise ValueError(f"{path} was saved without token_ids: there is nothing to hold the prompt to")
    if prompt.shape[1] <= header.length or header.sequences not in (1, len(prompt)):
        raise ValueError(
            f"{path} holds {header.sequences} sequences of {header.length} tokens and the prompt is "
            f"{list(prompt.shape)}: it needs as many sequences (any number, if one was saved) and more tokens"
        )
    equal = file.get_tensor(_TOKEN_IDS) == prompt[:, : header.length].cpu()
    if not bool(equal.all()):
        row, position = (~equal).nonzero()[0].tolist()
        raise ValueError(
            f"the prompt does not begin with the prefix of {path}: sequence {row} differs at token {position}"
        )


def _damaged(path: Path, fault: str) -> ValueError:
    return ValueError(f"{path} is damaged ({fault}): save the prefix anew")
