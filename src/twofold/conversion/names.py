"""Name maps between checkpoints: lines of data with an inverse, and the pure tensor steps that they ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

SHOWN = 4
"""Names that an error lists."""


class Line(NamedTuple):
    """One tensor of theirs, and ours that it holds, stacked along their outputs in equal parts.

    `{}` in a name is the layer's number. `transposed`: theirs lies as [inputs, outputs], as GPT-2's `Conv1D` has it.
    """

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False

    def inward(self, tensor: Tensor) -> list[Tensor]:
        """Our tensors, copies, from theirs."""
        parts = (tensor.T if self.transposed else tensor).chunk(len(self.ours))
        return [part.contiguous().clone() for part in parts]

    def outward(self, tensors: Sequence[Tensor]) -> Tensor:
        """Their tensor, a copy, from ours."""
        stacked = torch.cat(list(tensors))
        return stacked.T.contiguous() if self.transposed else stacked


class NameMap(NamedTuple):
    """Lines outside of the blocks, lines of each block, and the output matrix, which tied models do not store."""

    whole: tuple[Line, ...]
    block: tuple[Line, ...]
    embedding: Line
    head: Line

    def lines(self, layers: int, *, tied: bool) -> Iterator[Line]:
        """Every line of a model of so many layers, with its numbers filled in."""
        yield self.embedding
        yield from self.whole
        for number in range(layers):
            for line in self.block:
                ours = tuple(name.format(number) for name in line.ours)
                yield line._replace(theirs=line.theirs.format(number), ours=ours)
        if not tied:
            yield self.head


def renamed(
    *pairs: tuple[str, str], theirs: str = "", ours: str = "", kinds: Sequence[str] = ("weight",)
) -> list[Line]:
    """Lines for modules that differ in their names alone, for each kind of tensor; the prefixes stand before all."""
    return [Line(f"{theirs}{a}.{kind}", (f"{ours}{b}.{kind}",)) for a, b in pairs for kind in kinds]


def tensors_in(names: NameMap, tensors: Mapping[str, Tensor], layers: int, *, tied: bool) -> dict[str, Tensor]:
    """Our tensors, copies, from those of a checkpoint; every one of theirs is used.

    Raises ValueError for tensors that are missing or unknown, by name, and for a tied model with two matrices.
    """
    lines = list(names.lines(layers, tied=tied))
    given = _untied(dict(tensors), names.embedding.theirs, names.head.theirs) if tied else dict(tensors)
    require_all([line.theirs for line in lines], given)
    return {name: part for line in lines for name, part in zip(line.ours, line.inward(given[line.theirs]), strict=True)}


def tensors_out(names: NameMap, tensors: Mapping[str, Tensor], layers: int, *, tied: bool) -> dict[str, Tensor]:
    """Their tensors, copies, from ours: the inverse of `tensors_in`, with equal errors."""
    lines = list(names.lines(layers, tied=tied))
    given = _untied(dict(tensors), names.embedding.ours[0], names.head.ours[0]) if tied else dict(tensors)
    require_all([name for line in lines for name in line.ours], given)
    return {line.theirs: line.outward([given[name] for name in line.ours]) for line in lines}


def require_all(expected: Sequence[str], given: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless exactly the expected tensors are there."""
    for fault, names in (
        ("lacks", [name for name in expected if name not in given]),
        ("has, and nothing would read,", sorted(set(given) - set(expected))),
    ):
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            raise ValueError(
                f"the checkpoint {fault} {', '.join(names[:SHOWN])}{more}: its tensors and its configuration do not "
                "belong together"
            )


def require_shapes(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    """Raise ValueError where a tensor has not the shape of its model's."""
    for name, tensor in tensors.items():
        if tensor.shape != like[name].shape:
            raise ValueError(
                f"{name} is {list(tensor.shape)} and its configuration says {list(like[name].shape)}: tensors and "
                "configuration do not belong together"
            )


def _untied(tensors: dict[str, Tensor], embedding: str, head: str) -> dict[str, Tensor]:
    """Without the head, which is the embedding. ValueError where it is not."""
    made = tensors.pop(head, None)
    if made is not None and embedding in tensors and not torch.equal(made, tensors[embedding]):
        raise ValueError(
            f"{head} is not {embedding}, and the configuration ties them: set tie_word_embeddings to false"
        )
    return tensors
