"""Every variant's fast layer against the slow twin: outputs and all gradients, on awkward sizes in float64."""

from collections import Counter, defaultdict

import pytest
import torch

from attention_chains import Chain, assert_equal, chain, gradients
from every_variant import EVERY, WINDOWED, every_config
from twofold.variants.words import NUMBERED, WORDS

IMPLEMENTATIONS = ("sdpa", "eager")
SHARED = [name for name in EVERY if any(word in name for word in ("=", "CLA", "tied"))]


def loud(output, x):
    """Attention is not drowned by what goes past it."""
    return (output - x).std() > 0.3


@pytest.mark.parametrize("name", EVERY)
def test_layers_equal_the_reference(name):
    layers = chain(name)
    x = layers.inputs()
    of = {"x": x, **layers.parameters}
    slow = layers.slow(x)
    assert loud(slow, x)
    expected = gradients(slow, of)
    silent = {n for n in expected if not expected[n].abs().max() > 1e-3} - unread(layers)
    assert not silent, "a parameter that changes nothing"
    for implementation in IMPLEMENTATIONS:
        fast = layers.fast(x, implementation)
        torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)
        assert_equal(gradients(fast, of), expected)


def unread(layers: Chain) -> set[str]:
    """The bias of a key adds the same to all scores of a query, so that softmax forgets it, where no rotary, scale or
    norm is between."""
    sizes = layers.sizes
    plain = sizes.biases and not (sizes.variant.sharing.value_is_key or sizes.variant.sharing.query_is_key)
    turned = sizes.rotated_dims > 0
    return {f"{n}.k_proj.bias" for n in layers.seams} if plain and not turned and not sizes.variant.latent else set()


@pytest.mark.parametrize("tokens", ["window − 1", "window", "window + 1", "3 windows"])
@pytest.mark.parametrize("name", WINDOWED)
def test_a_window_and_padding_on_the_left(name, tokens):
    layers = chain(name)
    window = layers.sizes.window
    length = {"window − 1": window - 1, "window": window, "window + 1": window + 1, "3 windows": 3 * window}[tokens]
    x = layers.inputs(length=length)
    real = torch.ones(2, length, dtype=torch.bool)
    real[0, : length // 2] = False
    of = {"x": x, **layers.parameters}
    slow = layers.slow(x, real_BT=real)[real]
    expected = gradients(slow, of)
    for implementation in IMPLEMENTATIONS:
        fast = layers.fast(x, implementation, real_BT=real)[real]
        torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)
        assert_equal(gradients(fast, of), expected)


@pytest.mark.parametrize("name", SHARED)
def test_the_gradient_of_what_is_shared_is_the_sum_over_its_uses(name):
    # In the twin every use of a parameter, by a role or by a layer, is a copy with a gradient of its own.
    layers = chain(name)
    sharing = layers.sizes.variant.sharing
    roles = [role for role, shares in (("q", sharing.query_is_key), ("v", sharing.value_is_key)) if shares]
    leaves: dict[str, list[torch.Tensor]] = defaultdict(list)

    def copies(owner):
        made = {}
        for kept, p in layers.seams[owner].named_parameters():
            names = [kept, *(f"{role}{kept[1:]}" for role in roles if kept.startswith("k_proj."))]
            made |= {copy: p.detach().clone().requires_grad_() for copy in names}
            leaves[f"{owner}.{kept}"] += [made[copy] for copy in names]
        return made

    owners = layers.sizes.matrix_owners
    uses = [(copies(owners[n]), copies(owners[layers.sizes.row_owners[n]])) for n in range(layers.sizes.layers)]
    x = layers.inputs()
    slow = layers.slow(x, uses)
    fast = layers.fast(x)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)
    parts = gradients(slow, {(kept, n): leaf for kept, those in leaves.items() for n, leaf in enumerate(those)})
    used = Counter(kept for (kept, _), gradient in parts.items() if gradient.abs().max() > 0)
    assert max(used.values()) > 1
    summed = {kept: sum(parts[kept, n] for n in range(len(those))) for kept, those in leaves.items()}
    assert_equal(gradients(fast, layers.parameters), summed)


def test_every_word_of_the_notation_is_there():
    written = {word for name in EVERY for word in every_config(name).variant.split()}
    known = {word for word, *_ in WORDS.values()} - {"on-read", "derotated", "linear-elu"}
    elsewhere = {word for word in known if word.startswith(("+", "linear"))}  # encoders, recurrences: their own tests
    assert known - elsewhere <= written
    assert all(any(word.startswith(f"{numbered}-") for word in written) for numbered in NUMBERED)
