"""The causal decoder, an ordinary Hugging Face model whose cache is rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, StaticCache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from twofold.attention.layer import Attention
from twofold.attention.rotary import Rotation, rotation
from twofold.cache.row_cache import RowCache, adopt, check_implementation
from twofold.cache.state_cache import StateCache, adopt_states, check_options
from twofold.kernels.linear import DecodeLinear, use_decode_linear
from twofold.kernels.norm import use_decode_norm
from twofold.models import positions, stepping
from twofold.models.blocks import DecoderBlock, norm
from twofold.models.configuration import TwofoldConfig
from twofold.models.sights import decode_sights, sights


class TwofoldPreTrainedModel(PreTrainedModel):
    """What transformers needs to know of every Twofold model."""

    config_class = TwofoldConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("DecoderBlock",)
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_record_outputs = {"hidden_states": DecoderBlock, "attentions": Attention}  # noqa: RUF012 (read-only there)

    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: dict[str, Any] | None = None, *args: Any, **kwargs: Any
    ) -> None:
        """As in transformers. Raises ValueError for reentrant checkpoints where layers read the rows of others: torch
        would lose the gradients of these rows, and say nothing.
        """
        variant, given = self.config.architecture.variant, activation_checkpointing_kwargs
        if variant.row_layers > 1 and given is not None and given.get("use_reentrant") is not False:
            raise ValueError(
                f"{variant} has layers that read another's rows, to which reentrant checkpoints pass no gradient: "
                "give use_reentrant=False"
            )
        super().activation_checkpointing_enable(given, *args, **kwargs)


class TwofoldModel(TwofoldPreTrainedModel):
    """Embeddings, blocks and the last norm."""

    def __init__(self, config: TwofoldConfig) -> None:
        super().__init__(config)
        self.sizes = sizes = config.architecture
        self.embed_tokens = nn.Embedding(sizes.vocab, sizes.width)
        self.embed_positions = nn.Embedding(sizes.position_rows, sizes.width) if sizes.learned_positions else None
        self.layers = _blocks(config)
        self.norm = norm(sizes)
        use_decode_linear(self)
        use_decode_norm(self)
        self.post_init()

    def new_cache(
        self, capacity: int | None = None, offloading: bool = False, dtype: torch.dtype | str | None = None
    ) -> RowCache | StateCache:
        """An empty row cache for this model; `capacity` in tokens allocates it at once, `dtype` converts the rows (by
        name as well, and "int8" with scales). For a linear recurrence a cache of states, which take any number of
        tokens. Raises ValueError for a `dtype` of those.
        """
        sizes = self.sizes
        if sizes.is_recurrent:
            check_options(capacity, dtype)
            return StateCache(sizes.layers, sizes.state_shape, offloading)
        layouts, kv_heads, windows = sizes.cached_rows
        return RowCache(len(windows), layouts, kv_heads, capacity, offloading, dtype, windows)

    def adopt(self, cache: Cache) -> Cache:
        """`cache` made to store this model's rows or states, see `cache.row_cache.adopt` and `adopt_states`."""
        sizes = self.sizes
        if sizes.is_recurrent:
            return adopt_states(cache, sizes.layers, sizes.state_shape)
        layouts, kv_heads, windows = sizes.cached_rows
        return adopt(cache, len(windows), layouts, kv_heads, windows)

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Token ids [B, T] (or embeddings [B, T, M]) to hidden states [B, T, M].

        `attention_mask` [B, S] covers cached and new positions, 0 for padding. `position_ids` [B, T]; by default they
        count the tokens that are not padding, so that a padded sequence gives what it gives alone; with a cache and
        keys that are turned when they are read they must, from any number on. With `use_cache` (the default outside
        training) the result carries a cache of rows, or of states.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        x_BTM = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        cache = _under_either_name(cache, kwargs)
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if cache is not None:
            cache = self.adopt(cache)
        elif use_cache:
            cache = self.new_cache()
        cached = 0 if cache is None else cache.get_seq_length()
        if position_ids is None:
            position_ids = positions.counted(x_BTM, attention_mask, cached)
        x_BTM = self.placed(x_BTM, position_ids, cached)
        seen = decode_sights(self.config, self.sizes, x_BTM, attention_mask, cache, position_ids)
        blocks = self.config.num_hidden_layers  # an early exit lowers that number for a while
        if seen is not None and cache is not None:
            made_BTM = stepping.step(self, self.sizes, x_BTM, position_ids, seen, cache, blocks)
            if made_BTM is not None:
                return BaseModelOutputWithPast(last_hidden_state=made_BTM, cache=cache)
        by = self.rotations(position_ids, x_BTM.dtype)
        if seen is None:
            seen = sights(self.config, self.sizes, x_BTM, attention_mask, cache, position_ids, by)
        rows = None
        for layer, turned, (mask, row_rotation) in zip(self.layers[:blocks], by, seen, strict=False):
            # The cache by name: checkpointing takes it away.
            x_BTM, lent = layer(x_BTM, turned, mask, cache=cache, row_rotation=row_rotation, borrowed=rows, **kwargs)
            rows = lent or rows
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x_BTM), cache=cache)

    def placed(self, x_BTM: Tensor, position_ids: Tensor, cached: int = 0) -> Tensor:
        """Token embeddings with their scale, and with learned positions where the model has these."""
        if self.sizes.scaled_embeddings:
            x_BTM = x_BTM * self.sizes.width**0.5
        if self.embed_positions is None:
            return x_BTM
        return x_BTM + positions.looked_up(self.embed_positions, position_ids, cached, self.sizes.position_offset)

    def rotations(self, positions_BT: Tensor, dtype: torch.dtype) -> list[Rotation | None]:
        """For each layer what turns its queries and keys; layers that turn alike have one object."""
        angles = [(one.rotated_dims, one.rotary_exponents) for one, _ in self.sizes.kinds]
        made = {
            (dims, exponents): rotation(positions_BT, dims, self.sizes.rotary_base, dtype, exponents) if dims else None
            for dims, exponents in dict.fromkeys(angles)
        }
        return [made[angles[number]] for number in self.sizes.kind_of]


class TwofoldForCausalLM(TwofoldPreTrainedModel, GenerationMixin):
    """The decoder with its language-modelling head; `generate()` works as on any Hugging Face model."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012 (read-only there)

    def __init__(self, config: TwofoldConfig) -> None:
        super().__init__(config)
        self.model = TwofoldModel(config)
        self._is_stateful = config.architecture.is_recurrent  # transformers then refuses what goes back to fewer tokens
        self.lm_head = DecodeLinear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """As `TwofoldModel.forward`, with logits [B, T, V] and, where `labels` or `shift_labels` are given, the loss.

        `labels` [B, T] are shifted here, as usual; `shift_labels` [B, T] already are the next tokens. Positions
        labelled −100 do not count. `logits_to_keep`: the last n positions, or the given ones; 0 for all.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=_under_either_name(cache, kwargs),
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits_BTV = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None or kwargs.get("shift_labels") is not None:
            loss = self.loss_function(logits=logits_BTV, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits_BTV,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """Transformers' `generate`; it ends up with a row cache. Raises ValueError for a mask padded on the right."""
        _refuse_right_padding(kwargs.get("attention_mask"))
        return super().generate(inputs, *args, **kwargs)

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        """Transformers' hook before generation: the cache becomes one of rows, or of states."""
        check_implementation(generation_config.cache_implementation, self.device)
        super()._prepare_cache_for_generation(
            generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
        )
        cache = model_kwargs.get("cache")
        if cache is None:
            return
        if type(cache) in (DynamicCache, StaticCache) and not getattr(cache, "_is_user_defined", False):
            # Not what a static cache says of itself: where it slides, that is its window.
            longest = max(max_cache_length, getattr(generation_config, "max_cache_len", None) or 0)
            capacity = longest if type(cache) is StaticCache else None
            model_kwargs["cache"] = self.model.new_cache(capacity, cache.offloading)
            if generation_config.is_assistant:  # asked of the cache that this one replaces
                model_kwargs["cache"].activate_past_recording()
        else:
            model_kwargs["cache"] = self.model.adopt(cache)

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        """Transformers' continuous batching, refused: it keeps keys and values in pages of its own."""
        raise ValueError(
            "continuous batching stores keys and values in pages, and a Twofold model caches rows: use generate() "
            "with a padded batch and without cache_implementation='paged'"
        )


def _blocks(config: TwofoldConfig) -> nn.ModuleList:
    """The blocks, each with projections of its own or of the layer before that has them."""
    blocks: list[DecoderBlock] = []
    for layer, owner in enumerate(config.architecture.matrix_owners):
        blocks.append(DecoderBlock(config, layer, None if owner == layer else blocks[owner].attention.projections))
    return nn.ModuleList(blocks)


def _under_either_name(cache: Cache | None, kwargs: dict[str, Any]) -> Cache | None:
    """The cache as `cache`, or as `past_key_values`, which transformers called it before."""
    former = kwargs.pop("past_key_values", None)
    return former if cache is None else cache


def _refuse_right_padding(attention_mask: Tensor | None) -> None:
    if attention_mask is not None and attention_mask.ndim == 2 and not bool(attention_mask[:, -1].all()):
        raise ValueError(
            "generate() continues after the last position, and there a sequence of this batch has padding: pad on "
            "the left (tokenizer.padding_side = 'left')"
        )


# Importing this module is what makes the Auto classes know the models; `import twofold` sees to it.
AutoConfig.register(TwofoldConfig.model_type, TwofoldConfig)
AutoModel.register(TwofoldConfig, TwofoldModel)
AutoModelForCausalLM.register(TwofoldConfig, TwofoldForCausalLM)
