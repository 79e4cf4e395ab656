"""Open a model and its teacher, and see that they speak of the same tokens."""

from __future__ import annotations

from typing import NamedTuple

from transformers import PreTrainedModel

from twofold.conversion.convert import convert_in
from twofold.conversion.families import FAMILIES
from twofold.conversion.source import open_source, source_tokenizer
from twofold.data.tokenizer import BYTES, Tokenizer
from twofold.explain.load import Opened, open_model
from twofold.models.decoder import TwofoldForCausalLM


class Pair(NamedTuple):
    """A model, its teacher, both in float32 on the CPU, and the tokenizer of both."""

    model: TwofoldForCausalLM
    teacher: PreTrainedModel
    tokenizer: Tokenizer


def open_pair(model: str, teacher: str) -> Pair:
    """The Twofold model in a folder, and a teacher from a folder, a .gguf file or the hub (`conversion.source`).

    A teacher of a family that converts is converted, which changes no number, so that both models are measured and
    trained by the same code; another one stays as it is. The tokenizer is the model's, or the teacher's where none lies
    with the model. Raises ValueError for a model that is no Twofold one, and for different vocabularies.
    """
    student = open_model(model)
    if not isinstance(student.model, TwofoldForCausalLM):
        raise ValueError(
            f"{model} is a {student.model.config.model_type!r} model: healing takes what `twofold convert` or training "
            "wrote"
        )
    opened = open_source(teacher)
    return Pair(student.model.float(), _as_twofold(opened.model).float(), _common(student, opened))


def _as_twofold(teacher: PreTrainedModel) -> PreTrainedModel:
    if teacher.config.model_type not in FAMILIES:
        return teacher
    try:
        return convert_in(teacher).eval()
    except ValueError:  # an option that the decoder does not have
        return teacher


def _common(student: Opened, teacher: Opened) -> Tokenizer:
    """The tokenizer of both. Which pieces a token's number stands for must be equal; how text is split may not be."""
    own, taught = _tokenizer(student), _tokenizer(teacher)
    if own is None and taught is None:
        raise ValueError(f"neither {student.name} nor {teacher.name} has a tokenizer: put its files beside the model")
    if own is None or taught is None:
        return own or taught  # type: ignore[return-value]  # one of them is there
    one, other = (tokenizer.for_transformers().get_vocab() for tokenizer in (own, taught))
    if one != other:
        differing = len(set(one.items()) ^ set(other.items()))
        raise ValueError(
            f"the tokenizers of {student.name} and {teacher.name} have {len(one):,} and {len(other):,} tokens, and "
            f"{differing:,} have no equal on the other side: a teacher must speak of the same tokens"
        )
    return own


def _tokenizer(opened: Opened) -> Tokenizer | None:
    """The tokenizer beside a model; that of bytes beside a Twofold model of as many tokens; or None."""
    if source_tokenizer(opened) is not None:
        return opened.tokenizer()
    return BYTES if opened.is_own and opened.model.config.vocab_size == BYTES.vocabulary else None
