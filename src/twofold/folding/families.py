"""Which attention layers fold, and how: by the class of their module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from twofold.folding.forms import Fold, Unfolded

PlanLayer = Callable[[PreTrainedModel, Any, str, str, dict[str, Any]], Fold | Unfolded | None]
"""None for an attention layer that keeps no cache of its own tokens: an encoder's, or one across to it."""

FAMILIES = {
    "gemma4": ("Gemma4TextAttention", "gemma4"),
    "gemma4_unified": ("Gemma4UnifiedTextAttention", "gemma4"),
    "deepseek_v2": ("DeepseekV2Attention", "deepseek"),
    "deepseek_v3": ("DeepseekV3Attention", "deepseek"),
    "glm4_moe_lite": ("Glm4MoeLiteAttention", "deepseek"),
    "youtu": ("YoutuAttention", "deepseek"),
    "axk1": ("AXK1Attention", "deepseek"),
    "minicpm3": ("MiniCPM3Attention", "deepseek"),
    "deepseek_v4": ("DeepseekV4Attention", "deepseek_v4"),
    "gpt2": ("GPT2Attention", "gpt2"),
    "opt": ("OPTAttention", "opt"),
    "whisper": ("WhisperAttention", "whisper"),
}
"""For each family of transformers the class of its attention layers, and the module here that folds them."""


def attention_layers(model: PreTrainedModel) -> Iterator[tuple[str, nn.Module, PreTrainedModel, Any]]:
    """Each attention layer that a family here knows: its name, itself, the model around it, and the family's module."""
    known = dict(FAMILIES.values())
    around: dict[str, PreTrainedModel] = {}
    for name, module in model.named_modules():
        if isinstance(module, PreTrainedModel):
            around[name] = module
        if (here := known.get(type(module).__name__)) and type(module).__module__.startswith("transformers."):
            nearest = max((path for path in around if name.startswith(path)), key=len)
            yield name, module, around[nearest], import_module(f"twofold.folding.{here}")


def family_of(module: nn.Module) -> str:
    """The family of an attention layer that `attention_layers` gave."""
    return next(family for family, (name, _) in FAMILIES.items() if name == type(module).__name__)
