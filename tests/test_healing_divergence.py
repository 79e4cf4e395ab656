"""The loss of tokens: a few positions at a time equals all at once, gradients included."""

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from twofold.healing.divergence import token_loss

M, V = 11, 29


def drawn(positions, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden_NM = torch.randn(positions, M, generator=generator, dtype=torch.float64).requires_grad_()
    head_VM = torch.randn(V, M, generator=generator, dtype=torch.float64).requires_grad_()
    teacher_NV = 2 * torch.randn(positions, V, generator=generator, dtype=torch.float64)
    targets_N = torch.randint(V, (positions,), generator=generator)
    return hidden_NM, head_VM, teacher_NV, targets_N


def plain(hidden_NM, head_VM, targets_N, teacher_NV, temperature, cross_entropy):
    """The same by torch's own losses over whole logits."""
    logits_NV = hidden_NM @ head_VM.mT
    loss = cross_entropy * F.cross_entropy(logits_NV, targets_N)
    if teacher_NV is None:
        return F.cross_entropy(logits_NV, targets_N)
    log_p, log_q = ((each / temperature).log_softmax(-1) for each in (teacher_NV, logits_NV))
    return loss + temperature**2 * (log_p.exp() * (log_p - log_q)).sum(-1).mean()


@given(
    positions=st.integers(1, 31),
    at_once=st.integers(1, 37),
    temperature=st.sampled_from([1.0, 0.7, 3.0]),
    cross_entropy=st.sampled_from([0.0, 0.4]),
    taught=st.booleans(),
)
def test_a_few_positions_at_a_time_equal_all_at_once(positions, at_once, temperature, cross_entropy, taught):
    hidden_NM, head_VM, teacher_NV, targets_N = drawn(positions)
    made = token_loss(
        hidden_NM,
        head_VM,
        targets_N,
        teacher_NV.__getitem__ if taught else None,
        temperature=temperature,
        cross_entropy=cross_entropy,
        at_once=at_once,
    )
    wanted = plain(hidden_NM, head_VM, targets_N, teacher_NV if taught else None, temperature, cross_entropy)
    torch.testing.assert_close(made, wanted, rtol=1e-12, atol=1e-13)
    ours = torch.autograd.grad(1.7 * made, [hidden_NM, head_VM])
    theirs = torch.autograd.grad(1.7 * wanted, [hidden_NM, head_VM])
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_nothing_is_lost_where_both_say_the_same():
    hidden_NM, head_VM, _, targets_N = drawn(13)
    teacher_NV = (hidden_NM @ head_VM.mT).detach()
    loss = token_loss(hidden_NM, head_VM, targets_N, teacher_NV.__getitem__, at_once=13)
    loss.backward()
    assert loss.item() == 0.0
    assert not hidden_NM.grad.any()
    assert not head_VM.grad.any()


def test_what_does_not_learn_gets_no_gradient():
    hidden_NM, head_VM, teacher_NV, targets_N = drawn(5)
    head_VM.requires_grad_(False)
    teacher_NV.requires_grad_()
    token_loss(hidden_NM, head_VM, targets_N, teacher_NV.__getitem__).backward()
    assert hidden_NM.grad is not None
    assert head_VM.grad is None
    assert teacher_NV.grad is None


def test_half_precision_is_summed_in_float32():
    hidden_NM, head_VM, teacher_NV, targets_N = (each.detach() for each in drawn(17))
    half = (hidden_NM.bfloat16().requires_grad_(), head_VM.bfloat16())
    made = token_loss(*half, targets_N, teacher_NV.__getitem__, at_once=4)
    assert made.dtype == torch.float32
    exact = plain(half[0].double(), half[1].double(), targets_N, teacher_NV, 1.0, 0.0)
    torch.testing.assert_close(made.item(), exact.item(), rtol=1e-2, atol=0)
    made.backward()
    assert half[0].grad.dtype == torch.bfloat16
