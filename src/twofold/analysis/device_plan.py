"""A model on a device: seconds, tokens per second and price at best, and what fits its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from twofold.analysis import costs
from twofold.analysis.decoding import decode_work, longest_context, prefill_work
from twofold.analysis.devices import Device
from twofold.analysis.published import PublishedCache
from twofold.analysis.published_decoding import PublishedWeights, published_decode_work, published_prefill_work
from twofold.analysis.roofline import Roof, Work, price_per_million, roof
from twofold.models.architecture import Architecture
from twofold.variants.layout import item_bytes


@dataclass(frozen=True)
class Use:
    """How a model is used: sequences at once, tokens each holds, dtype of weights and rows, the share of the roof
    that is reached, and the price of an hour where it is known.
    """

    context: int
    batch: int = 1
    dtype: str = "bfloat16"
    efficiency: float = 1.0
    price_per_hour: float | None = None


@dataclass(frozen=True)
class DevicePlan:
    """One model, or one way to cache it, on one device.

    `largest_batch` holds at the use's context beside the weights, `largest_context` at its batch: None without a limit.
    Both leave no room for activations. `price_per_million_tokens` is of generated tokens, in the currency of the price;
    None without a price, and for what does not fit.
    """

    name: str
    device: Device
    use: Use
    decode: Work
    decode_time: Roof
    prefill: Work
    prefill_time: Roof
    stored_weight_bytes: int
    cache_bytes: int
    largest_batch: int
    largest_context: int | None
    price_per_million_tokens: float | None

    @property
    def tokens_per_second(self) -> float:
        """New tokens of the whole batch per second of decoding."""
        return self.use.batch / self.decode_time.seconds

    @property
    def fits(self) -> bool:
        """Whether weights and caches fit the device's memory."""
        return self.stored_weight_bytes + self.cache_bytes <= self.device.memory_bytes

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON takes it."""
        return {
            "device": self.device.name,
            **asdict(self.use),
            "computes_in": self.device.computes_in(self.use.dtype),
            "decode": {**self.decode.as_dict(), **self.decode_time.as_dict()},
            "tokens_per_second": self.tokens_per_second,
            "prefill": {**self.prefill.as_dict(), **self.prefill_time.as_dict()},
            "memory_bytes": self.device.memory_bytes,
            "weight_bytes": self.stored_weight_bytes,
            "cache_bytes": self.cache_bytes,
            "fits": self.fits,
            "largest_batch": self.largest_batch,
            "largest_context": self.largest_context,
            "price_per_million_tokens": self.price_per_million_tokens,
        }


def on_device(arch: Architecture, device: Device, use: Use) -> DevicePlan:
    """A decoder of this package on a device. Raises ValueError as `costs.plan` and `roofline.roof`."""
    return _plan(
        str(arch.variant),
        device,
        use,
        works=(
            decode_work(arch, use.context, use.dtype, use.batch),
            prefill_work(arch, use.context, use.dtype, use.batch),
        ),
        weights=costs.weight_bytes(arch, use.dtype),
        cache=lambda tokens, batch: costs.cache_bytes(arch, tokens, use.dtype, batch),
    )


def published_on_device(
    name: str, cache: PublishedCache, weights: PublishedWeights, device: Device, use: Use, *, stored: bool = False
) -> DevicePlan:
    """A published model on a device, with the rows that it needs, or those that transformers `stored`.

    Raises ValueError as `roofline.roof`.
    """
    count = cache.stored_bytes if stored else cache.needed_bytes
    return _plan(
        name,
        device,
        use,
        works=(
            published_decode_work(cache, weights, use.context, use.dtype, use.batch, stored=stored),
            published_prefill_work(cache, weights, use.context, use.dtype, use.batch),
        ),
        weights=weights.total * item_bytes(use.dtype),
        cache=lambda tokens, batch: count(tokens, use.dtype, batch),
    )


def assumptions(device: Device, use: Use) -> str:
    """In a sentence, what the times on a device rest on."""
    computed = device.computes_in(use.dtype)
    widened = "" if computed == use.dtype else f", computed in {computed}"
    share = "the whole roof" if use.efficiency == 1 else f"{100 * use.efficiency:g} % of the roof"
    return (
        f"{device.name}: {device.bandwidth_gb_s:,g} GB/s (10⁹ bytes), {device.peak(use.dtype) / 1e12:,g} TFLOPS dense "
        f"for {use.dtype}{widened}, {device.memory_gb:,g} GB; {share} is reached; {device.source}"
    )


def _plan(
    name: str, device: Device, use: Use, *, works: tuple[Work, Work], weights: int, cache: Callable[[int, int], int]
) -> DevicePlan:
    decode, prefill = works
    decode_time, prefill_time = (roof(work, device, use.dtype, use.efficiency) for work in works)
    room = device.memory_bytes - weights
    price = None
    if use.price_per_hour is not None:
        price = price_per_million(use.price_per_hour, use.batch / decode_time.seconds)
    return DevicePlan(
        name=name,
        device=device,
        use=use,
        decode=decode,
        decode_time=decode_time,
        prefill=prefill,
        prefill_time=prefill_time,
        stored_weight_bytes=weights,
        cache_bytes=cache(use.context, use.batch),
        largest_batch=max(0, room // cache(use.context, 1)),
        largest_context=longest_context(lambda tokens: cache(tokens, use.batch), room),
        price_per_million_tokens=price if cache(use.context, use.batch) <= room else None,
    )
