"""Decode steps of all blocks in one native call equal the full pass, and give way to the blocks where those are changed
or watched."""

import copy

import pytest
import torch
from torch import nn

from every_variant import EVERY, KINDS, WINDOWED, every_model
from small_models import random_ids, small_model
from twofold.kernels import matvec, native
from twofold.kernels.linear import quantise_linear, use_decode_linear
from twofold.kernels.norm import use_decode_norm
from twofold.models import stepping

PROMPT, LENGTH, PADS = 5, 12, (0, 3)
OTHERWISE = (
    "decoupled",
    "MLA",
    "diagonal",
    "no-W",
    "simplified",
    "rank",
    "nonlinear",
    "qk_norm",
    "sinks",
    "layer_variants",
)
"""Words of what is made of more than one matrix for each role, has more in its scores, or differs by layer."""
STYLES = [("K=V", "modern", "full"), ("GQA-2", "paper", "none"), ("K=V GQA-2", "paper", "partial")]
ACTIVATIONS = ("gelu", "gelu_tanh", "relu")

pytestmark = pytest.mark.skipif(not matvec.wins(), reason=native.why_not() or "no vector instructions")


@pytest.fixture
def taken(monkeypatch):
    """Sizes [B, T, M] of the steps that the native call makes."""
    seen, made = [], stepping.decoder_step

    def spy(x_BTM, *arguments, **options):
        seen.append(tuple(x_BTM.shape))
        return made(x_BTM, *arguments, **options)

    monkeypatch.setattr(stepping, "decoder_step", spy)
    return seen


def model(variant="K=V", block="modern", rotary="full", **fields):
    return small_model(variant, block, rotary, head_dim=16, **fields).float()


def left_padding(length=LENGTH):
    mask = torch.ones(len(PADS), length, dtype=torch.long)
    for sequence, pad in enumerate(PADS):
        mask[sequence, :pad] = 0
    return mask


def in_steps(made, ids, size=1, mask=None, cache=None):
    """Logits of a prompt, then of steps of `size` tokens."""
    parts, start, stop = [], 0, PROMPT
    cache = made.model.new_cache() if cache is None else cache
    with torch.no_grad():
        while start < ids.shape[1]:
            seen = None if mask is None else mask[:, :stop]
            parts.append(made(ids[:, start:stop], attention_mask=seen, cache=cache).logits)
            start, stop = stop, min(stop + size, ids.shape[1])
    return torch.cat(parts, dim=1)


def block_by_block(monkeypatch, made, *arguments, **options):
    with monkeypatch.context() as patched:
        patched.setattr(stepping, "step", lambda *others: None)
        return in_steps(made, *arguments, **options)


def assert_same(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=2e-4 * float(other.float().std()))


@pytest.mark.parametrize("name", EVERY)
def test_steps_equal_the_full_pass(name, taken):
    made, ids = every_model(name, deviation=0.3).float(), random_ids(len(PADS), LENGTH)
    with torch.no_grad():
        full = made(ids, use_cache=False).logits
        alone = [made(ids[n : n + 1, pad:], use_cache=False).logits[0] for n, pad in enumerate(PADS)]
    assert_same(in_steps(made, ids, 2), full)
    assert_same(in_steps(made, ids[:1], 4, cache=made.model.new_cache(LENGTH)), full[:1])
    padded = in_steps(made, ids, 1, left_padding())
    for n, pad in enumerate(PADS):
        assert_same(padded[n, pad:], alone[n])
    steps = {shape[:2] for shape in taken}
    if any(word in name for word in OTHERWISE):
        assert not steps
    else:  # a storage for three rows takes no two at once
        assert steps >= ({(2, 1)} if "window" in name else {(2, 1), (2, 2), (1, 4)})


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float16"])
@pytest.mark.parametrize("name", [KINDS[0], *WINDOWED[:4]])
def test_rows_are_rounded_as_the_blocks_round_them(name, dtype, taken, monkeypatch):
    made, ids = every_model(name, deviation=0.3).float(), random_ids(2, LENGTH)
    # Windows over keys that are turned when they are read know no padding.
    mask = torch.ones_like(ids) if "on_read" in name else left_padding()
    one = in_steps(made, ids, 1, mask, made.model.new_cache(dtype=dtype))
    assert len(taken) == LENGTH - PROMPT
    other = block_by_block(monkeypatch, made, ids, 1, mask, made.model.new_cache(dtype=dtype))
    real = mask.bool()
    # What differs in the last bit may be rounded to two sides.
    assert float((one - other)[real].square().mean().sqrt()) < 2e-3 * float(other[real].std())


@pytest.mark.parametrize(("variant", "block", "rotary"), STYLES)
def test_bfloat16_is_no_worse_than_block_by_block(variant, block, rotary, taken, monkeypatch):
    made, ids = model(variant, block, rotary), random_ids(2, LENGTH)
    narrow = copy.deepcopy(made).bfloat16()
    made.load_state_dict(narrow.state_dict())  # what is left is the rounding of activations
    exact = in_steps(made.double(), ids)
    taken.clear()
    one = in_steps(narrow, ids).double()
    assert len(taken) == LENGTH - PROMPT
    other = block_by_block(monkeypatch, narrow, ids).double()
    assert float((one - exact).square().mean()) < 1.2 * float((other - exact).square().mean())
    assert one.dtype == other.dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation, dtype, taken, monkeypatch):
    """As the blocks have them, in float64 too; a model may be given another one at any time."""
    made, ids, exact = model("GQA-2", "paper", "none", position_offset=2).to(dtype), random_ids(2, LENGTH), {}

    def use(name, layers=made.model.layers):
        for layer in layers:
            layer.mlp.activation = name

    for name in ACTIVATIONS:
        use(name)
        exact[name] = in_steps(copy.deepcopy(made).double(), ids)
    use(activation)
    one = in_steps(made, ids)
    assert len(taken) == LENGTH - PROMPT
    off = {name: float((one.double() - expected).std()) for name, expected in exact.items()}
    mine = off.pop(activation)
    other = block_by_block(monkeypatch, made, ids)
    assert mine < 1.2 * float((other.double() - exact[activation]).std()) + 1e-7
    assert dtype == torch.bfloat16 or min(off.values()) > 100 * mine  # whose rounding is as large as a tanh for Φ
    use(ACTIVATIONS[ACTIVATIONS.index(activation) - 1], made.model.layers[1:])
    assert_same(in_steps(made, ids), block_by_block(monkeypatch, made, ids))
    assert len(taken) == LENGTH - PROMPT  # the native call has one for all blocks


@pytest.mark.parametrize("activation", ["gelu_tanh", "relu"])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 0.0, -1e-30])
def test_activations_of_edge_numbers(activation, number, taken, monkeypatch):
    made, ids = model("GQA-2", "paper", "none", activation=activation), random_ids(1, LENGTH)
    with torch.no_grad():
        mlp = made.model.layers[0].mlp
        mlp.up_proj.weight.zero_()
        mlp.up_proj.bias.fill_(number)
        mlp.down_proj.weight.copy_(torch.eye(*mlp.down_proj.weight.shape) / 16)
    one, other = in_steps(made, ids), block_by_block(monkeypatch, made, ids)
    assert len(taken) == LENGTH - PROMPT
    torch.testing.assert_close(one, other, rtol=0, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(("variant", "block", "rotary"), STYLES)
def test_int8_weights(variant, block, rotary, taken, monkeypatch):
    made, ids = model(variant, block, rotary), random_ids(1, LENGTH)
    before = in_steps(made, ids)
    for layer in made.model.layers:
        for name in ("up_proj", "down_proj"):
            setattr(layer.mlp, name, quantise_linear(layer.mlp.get_submodule(name)))
        layer.attention.projections.k_proj = quantise_linear(layer.attention.projections.k_proj)
    taken.clear()
    after = in_steps(made, ids)
    assert len(taken) == LENGTH - PROMPT
    assert not torch.equal(after, before)
    assert_same(after, block_by_block(monkeypatch, made, ids))


@pytest.mark.parametrize("variant", ["QKV", "K=V GQA-2", "Q=K"])
def test_fused_projections(variant, taken, monkeypatch):
    made, ids = model(variant, "paper", "full", fused_projections=True), random_ids(1, LENGTH)
    assert_same(in_steps(made, ids), block_by_block(monkeypatch, made, ids))
    assert len(taken) == LENGTH - PROMPT


def _in_place(made):
    made.model.layers[1].mlp.up_proj.weight.mul_(1.5)


def _new_data(made):
    weight = made.model.layers[0].attention.projections.o_proj.weight
    weight.data = weight.data.flip(0).contiguous()


def _transposed(made):
    weight = made.model.layers[0].mlp.up_proj.weight
    weight.data = weight.data.t().contiguous().t()


def _new_parameter(made):
    norm = made.model.layers[1].mlp_norm
    norm.weight = nn.Parameter(norm.weight * 2)


def _new_bias(made):
    made.model.layers[1].mlp.down_proj.bias = nn.Parameter(torch.full((made.config.hidden_size,), 0.5))


def _new_module(made):
    mlp = made.model.layers[0].mlp
    mlp.down_proj = copy.deepcopy(mlp.down_proj)
    mlp.down_proj.weight.neg_()


def _new_block(made):
    made.model.layers[0] = copy.deepcopy(made.model.layers[1])
    made.model.layers[0].attention.place = made.model.layers[1].attention.place._replace(cached=0)


def _other_epsilon(made):
    made.model.norm.eps = 0.5


def _other_scale(made):
    for layer in made.model.layers:
        layer.attention.scale *= 3


def _fewer_blocks(made):
    made.config.num_hidden_layers = 1


CHANGES = [_in_place, _new_data, _transposed, _new_parameter, _new_bias, _new_module, _new_block]
CHANGES += [_other_epsilon, _other_scale, _fewer_blocks]


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_after_a_step_is_seen(change, taken, monkeypatch):
    made, ids = model(), random_ids(1, LENGTH)
    before = in_steps(made, ids)
    assert len(taken) == LENGTH - PROMPT
    twin = copy.deepcopy(made)
    with torch.no_grad():
        change(made)
    after = in_steps(made, ids)
    assert_same(after, block_by_block(monkeypatch, made, ids))
    if change is not _transposed:  # the same weights, which lie otherwise
        assert not torch.equal(after, before)
    assert torch.equal(in_steps(twin, ids), before)


@pytest.mark.parametrize(
    "path", ["", "0", "0.attention", "1.attention.projections", "0.mlp", "1.mlp.down_proj", "0.mlp_norm", "1.dropout"]
)
@pytest.mark.parametrize("before", [False, True], ids=["hook", "pre-hook"])
def test_hooks_are_called(path, before, taken):
    made, ids, heard = model(), random_ids(1, LENGTH), []
    in_steps(made, ids)
    module = made.model.layers.get_submodule(path) if path else made.model.norm
    register = module.register_forward_pre_hook if before else module.register_forward_hook
    handle = register(lambda *arguments: heard.append(arguments[0]) and None)
    taken.clear()
    in_steps(made, ids)
    assert len(heard) == (LENGTH - PROMPT + 1) * (2 if path.endswith("dropout") else 1)
    assert not taken
    handle.remove()
    in_steps(made, ids)
    assert len(taken) == LENGTH - PROMPT


def _patched_forward(made, monkeypatch):
    made.model.layers[0].forward = made.model.layers[0].forward


def _patched_class(made, monkeypatch):
    kind = type(made.model.layers[0].mlp)
    monkeypatch.setattr(kind, "forward", lambda self, x: x * 0)


def _other_class(made, monkeypatch):
    class Mine(type(made.model.layers[0].mlp)):
        pass

    made.model.layers[0].mlp.__class__ = Mine


def _parametrized(made, monkeypatch):
    nn.utils.parametrizations.weight_norm(made.model.layers[1].mlp.up_proj)


def _global_hook(made, monkeypatch):
    return nn.modules.module.register_module_forward_hook(lambda *arguments: None)


@pytest.mark.parametrize(
    "change",
    [
        _patched_forward,
        _patched_class,
        _other_class,
        _parametrized,
        lambda made, _: made.half(),
        lambda made, _: made.double(),
        lambda made, _: use_decode_linear(made, False),
        lambda made, _: use_decode_norm(made, False),
        lambda made, _: made.set_attn_implementation("eager"),
        _global_hook,
    ],
    ids=["forward", "class's forward", "class", "parametrized", "half", "double", "linear", "norm", "eager", "global"],
)
def test_what_the_native_call_does_not_know_goes_block_by_block(change, taken, monkeypatch):
    made, ids = model(), random_ids(1, LENGTH)
    in_steps(made, ids)
    assert len(taken) == LENGTH - PROMPT
    taken.clear()
    handle = change(made, monkeypatch)
    try:
        in_steps(made, ids)
    finally:
        if hasattr(handle, "remove"):
            handle.remove()
    assert not taken


def test_gradients_autocast_and_dropout_go_block_by_block(taken):
    made, ids = model(dropout=0.3), random_ids(1, LENGTH)
    with torch.no_grad():
        cache = made(ids[:, :PROMPT]).cache
    made.requires_grad_(False)
    made(ids[:, PROMPT : PROMPT + 1], cache=cache)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        made(ids[:, PROMPT : PROMPT + 1], cache=made(ids[:, :PROMPT]).cache)
    made.model.layers[1].dropout.train()
    in_steps(made, ids)
    assert not taken
    made.eval()
    in_steps(made, ids)
    assert taken


def test_more_tokens_than_a_product_takes_go_block_by_block(taken):
    made, ids = model(), random_ids(1, LENGTH)
    in_steps(made, ids, 5)
    assert {shape[:2] for shape in taken} == {(1, 2)}  # what is left at the end


@pytest.mark.system  # tracing takes longer than the rest of this file
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_step_gives_the_same(taken, monkeypatch):
    made, ids = model(num_hidden_layers=1), random_ids(1, LENGTH)
    one = in_steps(made, ids)
    taken.clear()
    compiled = torch.compile(made, backend="eager", dynamic=True)
    with torch.no_grad():
        cache = made(ids[:, :PROMPT]).cache
        steps = [compiled(input_ids=ids[:, n : n + 1], cache=cache).logits for n in range(PROMPT, PROMPT + 3)]
    assert not taken
    assert_same(torch.cat(steps, dim=1), one[:, PROMPT : PROMPT + 3])


def test_generation_gives_the_same_tokens(taken, monkeypatch):
    made, ids = model(), random_ids(2, PROMPT)
    options = {"max_new_tokens": 9, "do_sample": False, "attention_mask": torch.ones_like(ids), "pad_token_id": 0}
    tokens = made.generate(ids, **options)
    assert len(taken) == 8
    monkeypatch.setattr(native, "AVAILABLE", False)
    assert torch.equal(made.generate(ids, **options), tokens)
    assert len(taken) == 8


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512", "neon"])
@pytest.mark.parametrize(("variant", "block", "rotary"), STYLES)
def test_every_instruction_set_gives_the_same(isa, variant, block, rotary, taken):
    made, ids = model(variant, block, rotary), random_ids(2, LENGTH)
    expected = in_steps(made, ids, 2)
    try:
        with native.use_isa(isa):
            assert_same(in_steps(made, ids, 2), expected)
    except ValueError:
        pytest.skip(f"{isa} does not run here")


@pytest.mark.parametrize("table", ["_forward_hooks", "_forward_pre_hooks", "_modules", "_parameters"])
def test_a_table_in_anothers_place_is_seen(table, taken):
    """Clearing hooks by a new dictionary, or giving a module other children, does not leave the old ones at work."""
    ids_BT, outputs = random_ids(1, 10), []
    for native_step in (True, False):
        made = model()
        use_decode_linear(made, native_step)
        cache = made.model.new_cache()
        with torch.inference_mode():
            made(ids_BT[:, :8], cache=cache, use_cache=True)
            made(ids_BT[:, 8:9], cache=cache, use_cache=True)
            changed = made.model.layers[1].mlp
            changed = changed.down_proj if table == "_parameters" else changed
            changed.__dict__[table] = type(changed.__dict__[table])(changed.__dict__[table])
            if table == "_parameters":
                changed._parameters["weight"] = nn.Parameter(2 * changed._parameters["weight"])
            elif table == "_modules":
                changed._modules["down_proj"] = copy.deepcopy(changed._modules["down_proj"])
                changed._modules["down_proj"].weight.mul_(2)
            elif table == "_forward_hooks":
                changed.register_forward_hook(lambda module, given, out: 2 * out)
            else:
                changed.register_forward_pre_hook(lambda module, given: (2 * given[0],))
            outputs.append(made(ids_BT[:, 9:10], cache=cache, use_cache=True).logits)
    assert taken
    assert (outputs[0] - outputs[1]).abs().max() < 1e-4
