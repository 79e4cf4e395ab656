"""KL divergence and cross entropy from hidden states, a few positions at a time.

Logits of a batch are [B, T, V]: for 1,024 tokens of 49,152 that is 200 MB in float32, and autograd would keep several
of them. Here the head is applied to a few positions, their loss and its gradient by their hidden states are taken at
once, and the logits are dropped. The gradient is known in closed form: by the student's logits s, with softmax p_s,
that of T² KL(p_t ‖ p_s) at temperature T is T (p_s − p_t) (Hinton et al. 2015, arXiv 1503.02531, equation 2, times T²),
and that of cross entropy is p_s − one-hot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

NUMBERS_AT_ONCE = 2**23
"""Logits that are held at a time, 32 MiB in float32."""

TeacherLogits = Callable[[slice], Tensor]
"""The teacher's logits [n, V] at these of N positions."""


class _Score(torch.autograd.Function):
    """Sum over positions, with its gradients taken on the way; see `token_loss`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NM: Tensor,
        head_VM: Tensor,
        targets_N: Tensor,
        teacher: TeacherLogits | None,
        temperature: float,
        cross_entropy: float,
        at_once: int,
    ) -> Tensor:
        wants_hidden, wants_head = ctx.needs_input_grad[:2]
        by_hidden_NM = torch.empty_like(hidden_NM) if wants_hidden else None
        by_head_VM = torch.zeros_like(head_VM) if wants_head else None
        total = torch.zeros((), dtype=torch.float64, device=hidden_NM.device)
        share = 1 / len(hidden_NM)
        for start in range(0, len(hidden_NM), at_once):
            places = slice(start, start + at_once)
            logits_NV = _wide(hidden_NM[places] @ head_VM.mT)
            loss, by_logits_NV = _of_logits(
                logits_NV,
                targets_N[places],
                None if teacher is None else _wide(teacher(places)),
                temperature,
                cross_entropy,
            )
            total += loss.double()
            by_logits_NV = by_logits_NV.mul_(share).to(hidden_NM.dtype)
            if by_hidden_NM is not None:
                torch.mm(by_logits_NV, head_VM, out=by_hidden_NM[places])
            if by_head_VM is not None:
                by_head_VM.addmm_(by_logits_NV.mT, hidden_NM[places])
        ctx.save_for_backward(by_hidden_NM, by_head_VM)
        return (total * share).to(torch.promote_types(hidden_NM.dtype, torch.float32))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        made = [None if each is None else each * gradient.to(each.dtype) for each in ctx.saved_tensors]
        return (*made, None, None, None, None, None)


def token_loss(
    hidden_NM: Tensor,
    head_VM: Tensor,
    targets_N: Tensor,
    teacher: TeacherLogits | None,
    *,
    temperature: float = 1.0,
    cross_entropy: float = 0.0,
    at_once: int | None = None,
) -> Tensor:
    """The mean over N positions of T² · KL(teacher ‖ student) + `cross_entropy` · −log p_student(target), in nats.

    Student logits are `hidden_NM` · `head_VM`ᵀ; distributions are softmax(logits / T) for the divergence, and of the
    logits as they are for cross entropy. Without a `teacher` there is no divergence. Computed in float32 or better,
    `at_once` positions at a time, with gradients by `hidden_NM` and `head_VM`. The teacher gets none.
    """
    at_once = at_once or max(1, NUMBERS_AT_ONCE // len(head_VM))
    loss: Tensor = _Score.apply(hidden_NM, head_VM, targets_N, teacher, temperature, cross_entropy, at_once)
    return loss


def _of_logits(
    logits_NV: Tensor, targets_N: Tensor, teacher_NV: Tensor | None, temperature: float, cross_entropy: float
) -> tuple[Tensor, Tensor]:
    """The sum over positions, and its gradient by the logits. In place where it can be: each pass costs as much as the
    arithmetic.
    """
    loss = logits_NV.new_zeros(())
    gradient_NV: Tensor | None = None
    if cross_entropy or teacher_NV is None:
        weight = cross_entropy if teacher_NV is not None else 1.0
        own_NV = logits_NV.log_softmax(-1)
        places_N = torch.arange(len(targets_N), device=targets_N.device)
        loss = loss - weight * own_NV[places_N, targets_N].sum()
        gradient_NV = own_NV.exp_()
        gradient_NV[places_N, targets_N] -= 1
        gradient_NV *= weight
    if teacher_NV is not None:
        student_NV = _scaled(logits_NV, temperature).log_softmax(-1)
        teacher_NV = _scaled(teacher_NV, temperature).log_softmax(-1)
        likely_NV = teacher_NV.exp()
        # Differences first: of alike models little is left, which a difference of two sums would round away.
        loss = loss + temperature**2 * torch.dot(likely_NV.flatten(), teacher_NV.sub_(student_NV).flatten())
        divergence_NV = student_NV.exp_().sub_(likely_NV)
        divergence_NV = divergence_NV if temperature == 1 else divergence_NV.mul_(temperature)
        gradient_NV = divergence_NV if gradient_NV is None else gradient_NV.add_(divergence_NV)
    assert gradient_NV is not None
    return loss, gradient_NV


def _scaled(logits_NV: Tensor, temperature: float) -> Tensor:
    return logits_NV if temperature == 1 else logits_NV / temperature


def _wide(logits_NV: Tensor) -> Tensor:
    return logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
