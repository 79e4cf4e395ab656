"""What is said of each model: its loss on held-out text, the bytes of its cache, and what it recalls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from twofold.data.corpus import Document
from twofold.data.tokenizer import Tokenizer
from twofold.evaluation.heldout import evaluate, evaluation_mode
from twofold.explain.attention_patterns import repeated_tokens
from twofold.healing.record import Measured, Recall
from twofold.models.decoder import TwofoldForCausalLM
from twofold.study.record import Validation
from twofold.training.metrics import DivergedError

RECALL_LENGTH, RECALL_SEQUENCES = 64, 32
BATCH = 4


def measure(
    model: PreTrainedModel,
    documents: Sequence[Document],
    tokenizer: Tokenizer,
    context: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> Measured:
    """All that tables say of a model. Raises `DivergedError` where its held-out loss is no number."""
    found = evaluate(model, documents, context, batch_size=BATCH, progress=progress, tokenizer=tokenizer)
    if not math.isfinite(found.perplexity):
        raise DivergedError(f"the held-out loss is {found.loss}: lower the learning rate, or convert less at once")
    return Measured(
        variant=variant_label(model),
        parameters=model.num_parameters(),
        validation=Validation(**found.as_dict()),
        cache_tokens=context,
        cache_bytes_per_token=cache_bytes(model, context, seed) / context,
        recall=recall(model, min(RECALL_LENGTH, context // 2, model.config.vocab_size), RECALL_SEQUENCES, seed),
    )


def most_positions(model: PreTrainedModel) -> float:
    """Tokens that a window may have; infinite where positions turn queries and keys. What another family's
    configuration says, whatever its positions are: a model reads nothing well that is longer than all it has learnt.
    """
    if isinstance(model, TwofoldForCausalLM):
        sizes = model.config.architecture
        return sizes.positions if sizes.learned_positions else math.inf
    return getattr(model.config, "max_position_embeddings", None) or math.inf


def variant_label(model: PreTrainedModel) -> str:
    """The notation of its variant, of several those of its layers with their number; another family's model type."""
    if not isinstance(model, TwofoldForCausalLM):
        return str(model.config.model_type)
    return model.config.described


@torch.no_grad()
def cache_bytes(model: PreTrainedModel, tokens: int, seed: int = 0) -> int:
    """Bytes of the storages, each once, of the cache of one sequence of so many random tokens.

    A Twofold model's is made for that many; what transformers makes for others has no room to spare.
    """
    generator = torch.Generator().manual_seed(seed)
    ids_BT = torch.randint(model.config.vocab_size, (1, tokens), generator=generator).to(model.device)
    with evaluation_mode(model):
        if isinstance(model, TwofoldForCausalLM):
            recurrent = model.config.architecture.is_recurrent
            cache = model.model.new_cache(None if recurrent else tokens)
            model(ids_BT, cache=cache, logits_to_keep=1)
            return cache.bytes_reserved
        made = model(ids_BT, use_cache=True, logits_to_keep=1).past_key_values
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for layer in made.layers
        for tensor in (layer.keys, layer.values)
        if isinstance(tensor, Tensor)
    }
    return sum(storages.values())


@torch.no_grad()
def recall(model: PreTrainedModel, length: int, sequences: int, seed: int = 0) -> Recall:
    """How well a model goes on with a random sequence that it reads for the second time.

    `length` different tokens, drawn at random, come twice. That the second copy has begun only its first token can
    tell, so the other `length` − 1 are asked: the share that the likeliest token names right. A text's statistics are
    of no use here, only looking back is (Olsson et al. 2022, arXiv 2209.11895). Without any training on it.
    """
    ids_BT = repeated_tokens(model.config.vocab_size, length, sequences, seed).to(model.device)
    right, losses = [], []
    with evaluation_mode(model):
        for batch_BT in ids_BT.split(BATCH):
            logits_BTV = model(batch_BT, use_cache=False).logits[:, :-1].float()
            targets_BT = batch_BT[:, 1:]
            right.append((logits_BTV.argmax(-1) == targets_BT)[:, length:].double().mean(-1))
            losses.append(F.cross_entropy(logits_BTV.mT, targets_BT, reduction="none").double())
    right_B, losses_BT = torch.cat(right), torch.cat(losses)
    deviation = float(right_B.std()) if sequences > 1 else 0.0
    return Recall(
        sequences=sequences,
        length=length,
        asked=sequences * (length - 1),
        accuracy=float(right_B.mean()),
        standard_error=deviation / math.sqrt(sequences),
        loss=float(losses_BT[:, length:].mean()),
        loss_first=float(losses_BT[:, : length - 1].mean()),
    )
