"""The native path as a torch operator, which path a step takes and why, and what a user's mistakes are told."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from decode_steps import LAYOUTS, make, reference, spans
from twofold.kernels import decode, decode_native, native, roofline
from twofold.kernels.decode import decode_attention
from twofold.kernels.step import Step

needs_library = pytest.mark.skipif(not native.AVAILABLE, reason=native.why_not())
ROOT = Path(__file__).parent.parent


def case(layout="K=V", rows=31, dtype=torch.float32, positions=2):
    return make(LAYOUTS[layout], batch=2, groups=3, per_group=5, positions=positions, rows=rows, dtype=dtype, seed=1)


def step(of=None, **changed):
    """The step of a case, with arguments of decode_attention changed."""
    of = of or case()
    needed = {"scale": 0.3, "softcap": 0.0, "first_position": 0, **of.options, **changed}
    needed = {re.sub("_[A-Z]+$", "", name): argument for name, argument in needed.items()}
    return Step(**{**dict.fromkeys(Step._fields), "query": of.query, "heads": of.heads, "shared": of.shared, **needed})


class TestAsAnOperator:
    pytestmark = needs_library

    @pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
    @pytest.mark.parametrize("layout", ["K=V", "decoupled"])
    def test_torch_finds_nothing_amiss(self, layout, dtype):
        limits = {"lengths_B": torch.tensor([31, 17]), "starts_B": torch.tensor([0, 3]), "window": 11}
        turns = {"frequencies": torch.tensor([1.0, 0.1]), "first_position": 5, "softcap": 7.0}
        arguments = step(case(layout, dtype=dtype), **limits, **turns)
        torch.library.opcheck(torch.ops.twofold.decode_attention.default, tuple(arguments))

    @pytest.mark.parametrize("query_dtype", [torch.float32, torch.bfloat16])
    def test_compiles_as_one_graph(self, query_dtype):
        of = case(dtype=torch.bfloat16)
        query = of.query.to(query_dtype)

        def attention(query, heads, lengths):
            return decode_attention(query * 1, heads, lengths_B=lengths, **spans(LAYOUTS["K=V"])) * 2

        lengths = torch.tensor([31, 17])
        compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(query, of.heads, lengths), attention(query, of.heads, lengths))

    def test_compiles_once_for_every_size(self):
        def attention(query, heads):
            return decode_attention(query, heads, key=(0, 40), value=(0, 40), window=17, softcap=7.0)

        compiled = torch.compile(attention, fullgraph=True, backend="aot_eager", dynamic=True)
        for rows in (31, 97, 101):
            of = case(rows=rows)
            assert torch.equal(compiled(of.query, of.heads), attention(of.query, of.heads))

    def test_is_exported(self):
        class Attention(torch.nn.Module):
            def forward(self, query, heads):
                return decode_attention(query, heads, **spans(LAYOUTS["K=V"]))

        of = case()
        program = torch.export.export(Attention(), (of.query, of.heads))
        assert "twofold.decode_attention" in program.graph_module.code
        assert torch.equal(program.module()(of.query, of.heads), Attention()(of.query, of.heads))


class TestTheChoice:
    @needs_library
    def test_native_wherever_it_can(self):
        for layout in LAYOUTS:
            for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int8):
                assert decode.choose(step(case(layout, dtype=dtype)))[0] == "native"

    @needs_library
    @pytest.mark.parametrize(
        ("changed", "word"),
        [
            ({"query_BHTD": torch.ones(2, 15, 9, 40)}, "9 query positions"),
            ({"query_BHTD": torch.ones(2, 15, 1, 40).double()}, "float64"),
            ({"heads_BGSW": torch.ones(2, 3, 31, 40).double()}, "float64"),
            ({"key": (0, 36), "query_BHTD": torch.ones(2, 15, 1, 36)}, "multiple of 8"),
            ({"heads_BGSW": torch.ones(2, 3, 40, 31).mT}, "contiguous"),
            ({"heads_BGSW": torch.ones(2, 3, 31, 40, requires_grad=True)}, "gradients"),
            ({"query_BHTD": torch.ones(2, 15, 1, 40, requires_grad=True)}, "gradients"),
            ({"heads_BGSW": torch.ones(2, 3, 31, 40, device="meta")}, "meta"),
            ({"frequencies": torch.ones(3, requires_grad=True)}, "gradients"),
            ({"scales_BGS": torch.ones(2, 3, 31, requires_grad=True)}, "gradients"),
            ({"query_BHTD": torch.ones(2, 0, 1, 40)}, "no query heads"),
            ({"query_BHTD": torch._neg_view(torch.ones(2, 15, 1, 40))}, "negated"),
        ],
    )
    def test_plain_with_its_reason(self, changed, word):
        path, reason = decode.choose(step(**changed))
        assert path == "plain"
        assert word in reason
        with pytest.raises(ValueError, match=word):
            decode.choose(step(**changed), "native")

    @needs_library
    def test_gradients_that_are_switched_off_do_not_matter(self):
        wanted = step(heads_BGSW=torch.ones(2, 3, 31, 40, requires_grad=True))
        with torch.no_grad():
            assert decode.choose(wanted)[0] == "native"

    def test_without_the_library_plain_serves_and_says_why(self, monkeypatch):
        monkeypatch.setattr(native, "AVAILABLE", False)
        monkeypatch.setattr(native, "_WHY_NOT", "there was no compiler")
        of = case()
        (query, heads, _), options = of.arguments()
        torch.testing.assert_close(decode_attention(query, heads, **options).double(), reference(of), rtol=0, atol=1e-5)
        assert decode.choose(step()) == ("plain", "there was no compiler")
        assert "there was no compiler" in decode.describe()

    @needs_library
    def test_describe_names_the_instruction_set(self):
        with native.use_isa("portable"):
            assert "portable" in decode.describe()

    @needs_library
    @pytest.mark.parametrize("name", ["portable", "abacus"])
    def test_the_environment_names_an_instruction_set(self, name):
        script = "from twofold.kernels import native; print(native.isa() if native.AVAILABLE else native.why_not())"
        environment = {**os.environ, native.ISA_VARIABLE: name}
        ran = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        assert ran.stdout.strip() == "portable" if name == "portable" else "TWOFOLD_ISA=abacus" in ran.stdout

    @needs_library
    def test_an_unknown_instruction_set_is_refused(self):
        with pytest.raises(ValueError, match="abacus"), native.use_isa("abacus"):
            pass


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"query_BHTD": torch.ones(2, 15, 40)}, r"\[2, 15, 40\]"),
        ({"query_BHTD": torch.ones(2, 15, 0, 40)}, r"\[2, 15, 0, 40\]"),
        ({"query_BHTD": torch.ones(5, 15, 1, 40)}, "5 sequences and rows of 2"),
        ({"query_BHTD": torch.ones(2, 7, 1, 40)}, "7 query heads do not share 3"),
        ({"query_BHTD": torch.ones(2, 15, 1, 32)}, "32 dims and the rows' keys 40"),
        ({"query_BHTD": torch.ones(2, 15, 1, 40).int()}, "int32"),
        ({"heads_BGSW": torch.ones(2, 3, 31, 40).int()}, "int32"),
        ({"key": (8, 48)}, r"key \[8:48\) does not lie in a part of 40"),
        ({"value": (16, 16)}, r"value \[16:16\)"),
        ({"shared_key": (0, 8)}, "one of them is missing"),
        ({"shared_BSW": torch.ones(2, 31, 8)}, "one of them is missing"),
        ({"shared_BSW": torch.ones(2, 30, 8), "shared_key": (0, 8)}, r"\[2, 30, 8\]"),
        ({"shared_BSW": torch.ones(2, 31, 8).half(), "shared_key": (0, 8)}, "float16"),
        ({"shared_BSW": torch.ones(2, 31, 8), "shared_key": (0, 9)}, r"shared key \[0:9\)"),
        ({"starts_B": torch.zeros(3, dtype=torch.int64)}, r"starts_B must be \[2\]"),
        ({"lengths_B": torch.zeros(2)}, r"int64, not \[2\] of torch.float32"),
        ({"window": 0}, "window holds 1 row or more, not 0"),
        ({"window": 3.0}, "not 3.0"),
        ({"window": 2**63}, "not 9223372036854775808"),
        ({"softcap": -1.0}, "not -1.0"),
        ({"softcap": "much"}, "not 'much'"),
        ({"scale": "0.3"}, "finite number.*not '0.3'"),
        ({"scale": float("nan")}, "finite number.*not nan"),
        ({"first_position": 2**63}, "not 9223372036854775808"),
        ({"first_position": 1.5}, "not 1.5"),
        ({"starts_B": torch.zeros(2, dtype=torch.int64, device="meta")}, "starts on meta"),
        ({"lengths_B": torch.ones(2, dtype=torch.int64, device="meta")}, "queries are on cpu and lengths on meta"),
        ({"frequencies": torch.ones(3, device="meta")}, "frequencies on meta"),
        (
            {
                "heads_BGSW": torch.ones(2, 3, 31, 40).to(torch.int8),
                "scales_BGS": torch.ones(2, 3, 31, device="meta"),
            },
            "scales on meta",
        ),
        ({"frequencies": torch.ones(21)}, r"40 dims, not \[21\]"),
        ({"frequencies": torch.ones(5).half()}, "float16"),
        ({"scales_BGS": torch.ones(2, 3, 31)}, "float32 rows take no scales_BGS"),
        ({"heads_BGSW": torch.ones(2, 3, 31, 40).to(torch.int8)}, "int8 rows need scales_BGS"),
        (
            {"heads_BGSW": torch.ones(2, 3, 31, 40).to(torch.int8), "scales_BGS": torch.ones(2, 31, 3)},
            r"\[2, 3, 31\] of torch.float32, not \[2, 31, 3\]",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_numbers(changed, message):
    with pytest.raises(ValueError, match=message):
        step(**changed).check()


@pytest.mark.parametrize("path", ["plain", pytest.param("native", marks=needs_library)])
@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"lengths_B": [31, 32]}, "sequence 1 starts at row 0 and has 32 rows, and 31 rows are there"),
        ({"lengths_B": [-1, 31]}, "sequence 0 .* has -1 rows"),
        ({"starts_B": [0, -2]}, "sequence 1 starts at row -2"),
    ],
)
def test_limits_outside_the_rows_are_refused(path, limits, message):
    args, options = case().arguments(path=path, **{name: torch.tensor(values) for name, values in limits.items()})
    with pytest.raises(ValueError, match=message):
        decode_attention(*args, **options)


class TestStepsThatWereChecked:
    """`decode_checked`, for rows that a caller made itself."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_are_attended_as_others_are(self, layout, dtype):
        limits = {"starts_B": torch.tensor([3, 0]), "lengths_B": torch.tensor([31, 29]), "window": 17}
        for changed in ({}, limits, {"softcap": 7.0, "frequencies": torch.tensor([1.0, 0.1])}):
            of = case(layout, dtype=dtype)
            args, options = of.arguments(scale=0.3, **changed)
            assert torch.equal(decode.decode_checked(step(of, **changed)), decode_attention(*args, **options))

    def test_leave_to_torch_what_the_native_library_cannot_do(self, monkeypatch):
        of = case()
        wanted = of.query.clone().requires_grad_()
        decode.decode_checked(step(of, query_BHTD=wanted)).sum().backward()
        assert bool(wanted.grad.any())
        heads = of.heads.double()
        torch.testing.assert_close(
            decode.decode_checked(step(of, heads_BGSW=heads)),
            decode_attention(of.query, heads, **of.options, scale=0.3),
        )
        monkeypatch.setattr(native, "AVAILABLE", False)
        torch.testing.assert_close(
            decode.decode_checked(step(of)), decode_attention(of.query, of.heads, **of.options, scale=0.3)
        )

    @pytest.mark.parametrize(
        ("limits", "message"),
        [
            ({"starts_B": torch.tensor([0, -2])}, "sequence 1 starts at row -2"),
            ({"lengths_B": torch.tensor([32, 31])}, "sequence 0 .* has 32 rows"),
            ({"starts_B": torch.tensor([0])}, r"starts_B must be \[2\] of torch.int64"),
            ({"starts_B": torch.tensor([0, 1], dtype=torch.int32)}, "not .* of torch.int32"),
            ({"starts_B": torch.zeros(2, dtype=torch.int64, device="meta")}, "starts on meta"),
        ],
    )
    def test_have_their_limits_checked_all_the_same(self, limits, message):
        with pytest.raises(ValueError, match=message):
            decode.decode_checked(step(**limits))


def test_an_unknown_path_is_refused():
    with pytest.raises(ValueError, match="unknown path 'fast': choose one of auto, native, triton, plain"):
        decode.choose(step(), "fast")


@needs_library
def test_calls_of_several_threads_do_not_disturb_each_other():
    from concurrent.futures import ThreadPoolExecutor

    of = case(rows=997)
    args, options = of.arguments(path="native")
    wanted = decode_attention(*args, **options)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: decode_attention(*args, **options), range(64)))
    assert all(torch.equal(one, wanted) for one in found)


@needs_library
def test_the_roofline_is_of_this_world():
    numbers = torch.ones(1_000_003)
    assert 0.05 < roofline.read_bandwidth(numbers, repeats=3) < 100_000
    assert 0.05 < roofline.fma_peak(repeats=3, rounds=1000) < 1_000_000
    with pytest.raises(ValueError, match="contiguous"):
        roofline.read_bandwidth(numbers[::2])


def test_an_installation_without_a_compiler_goes_on(tmp_path):
    environment = {**os.environ, "CC": "/bin/false", "CXX": "/bin/false"}
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", str(tmp_path / "lib"), "--build-temp"]
    ran = subprocess.run([*command, str(tmp_path)], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert not list(tmp_path.rglob("_native*"))


@needs_library
def test_the_operator_has_no_gradient():
    of = case()
    args, options = of.arguments(path="native")
    args[0].requires_grad_()
    with pytest.raises(ValueError, match="gradients"):
        decode_attention(*args, **options)
    assert decode_native.MOST_POSITIONS == 8
