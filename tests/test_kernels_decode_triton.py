"""The Triton path: its laws in Triton's interpreter, its kernels compiled for GPUs that are only named, its choice."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from decode_steps import LAYOUTS, make
from twofold.kernels import decode, decode_triton
from twofold.kernels.step import Step

HERE = Path(__file__).parent
LEAST_SHARED_MEMORY = 99 * 1024
"""Bytes that one program may have on the smallest devices of compute capability 8 and above (8.6, 8.9, 12.0)."""
needs_triton = [
    pytest.mark.system,
    pytest.mark.skipif(not decode_triton.AVAILABLE, reason="triton is not installed: pip install 'twofold[triton]'"),
]


def run(*command, interpreted, tmp_path):
    """A process of its own: whether Triton interprets is settled when it is imported, and torch may have done that."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(tmp_path)}
    environment |= {"TRITON_INTERPRET": "1"} if interpreted else {}
    ran = subprocess.run([sys.executable, *command], cwd=HERE, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    return ran.stdout


class TestTheKernels:
    pytestmark = needs_triton

    def test_keep_the_laws_of_the_other_paths(self, tmp_path):
        # What numpy, which stands in for a GPU, thinks of infinities is no finding.
        options = ("-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning")
        said = run("-m", "pytest", "interpreted_triton.py", *options, interpreted=True, tmp_path=tmp_path)
        assert re.search(r"^\d\d passed", said, re.MULTILINE), said

    @pytest.mark.parametrize("capability", ["80", "90"])
    def test_compile_and_read_each_row_once(self, capability, tmp_path):
        """Overlapping spans have one load between them, spans that do not overlap one each."""
        lines = run("triton_machine.py", capability, interpreted=False, tmp_path=tmp_path).splitlines()
        found = [json.loads(line) for line in lines]
        assert len(found) > 8
        for kernel in found:
            assert kernel["row_loads"] == (2 if kernel["case"].startswith("QKV") else 1), kernel
            wide = kernel["case"].startswith("latent")
            assert kernel["shared_bytes"] <= (decode_triton.WIDE_FLOAT_BYTES if wide else LEAST_SHARED_MEMORY), kernel


def step(**changed):
    case = make(LAYOUTS["K=V"], batch=2, groups=3, per_group=5, positions=2, rows=31, dtype=torch.float32, seed=1)
    needed = {"key": (0, 40), "value": (0, 40), "scale": 0.3, "softcap": 0.0, "first_position": 0}
    return Step(**{**dict.fromkeys(Step._fields), "query": case.query, "heads": case.heads, **needed, **changed})


class TestTheChoice:
    def test_auto_never_interprets(self, monkeypatch):
        monkeypatch.setattr(decode_triton, "INTERPRETED", True)
        assert decode.choose(step())[0] != "triton"

    def test_without_triton_it_says_what_to_install(self, monkeypatch):
        monkeypatch.setattr(decode_triton, "AVAILABLE", False)
        with pytest.raises(ValueError, match=r"triton path cannot .* pip install 'twofold\[triton\]'"):
            decode.choose(step(), "triton")

    @pytest.mark.parametrize(
        ("changed", "word"),
        [
            ({}, "needs CUDA, and queries are on cpu"),
            ({"query": torch.ones(2, 15, 9, 40)}, "9 query positions"),
            ({"query": torch.ones(2, 15, 1, 40).double()}, "float64"),
            ({"heads": torch.ones(2, 3, 31, 40, device="meta")}, "meta"),
            ({"heads": torch.ones(2, 3, 40, 31).mT}, "contiguous"),
            ({"heads": torch.ones(2, 3, 31, 40, requires_grad=True)}, "gradients"),
            ({"heads": torch.ones(2, 3, 31, 520), "value": (7, 520)}, "1024 numbers wide is more than 512"),
        ],
    )
    def test_what_it_cannot_do_has_its_reason(self, changed, word, monkeypatch):
        monkeypatch.setattr(decode_triton, "AVAILABLE", True)
        monkeypatch.setattr(decode_triton, "INTERPRETED", bool(changed))
        assert word in decode_triton.obstacle(step(**changed))


class TestOnADevice:
    """The choice on a GPU, by what torch says of one that is not there."""

    class OnCuda(torch.Tensor):
        is_cuda = True
        is_cpu = False

    def step(self, monkeypatch, major=9, shared_bytes=232_448, **changed):
        device = SimpleNamespace(major=major, minor=5, shared_memory_per_block_optin=shared_bytes)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
        monkeypatch.setattr(decode_triton, "AVAILABLE", True)
        made = step(**changed)
        return made._replace(query=made.query.as_subclass(self.OnCuda))

    def test_auto_takes_triton(self, monkeypatch):
        assert decode.choose(self.step(monkeypatch)) == ("triton", "it reads each row once")

    def test_describe_says_so(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        for available, word in ((True, "the Triton kernels"), (False, "triton is not installed")):
            monkeypatch.setattr(decode_triton, "AVAILABLE", available)
            assert word in decode.describe()

    def test_plain_serves_an_old_device(self, monkeypatch):
        path, reason = decode.choose(self.step(monkeypatch, major=7))
        assert path == "plain"
        assert "7.5 is below 8.0" in reason

    @pytest.mark.parametrize(("shared_bytes", "path"), [(101_376, "plain"), (166_912, "triton")])
    def test_wide_float_rows_need_a_large_device(self, shared_bytes, path, monkeypatch):
        wide = {"heads": torch.ones(2, 3, 31, 512), "query": torch.ones(2, 15, 1, 512)}
        spans = {"key": (0, 512), "value": (0, 512)}
        assert decode.choose(self.step(monkeypatch, shared_bytes=shared_bytes, **wide, **spans))[0] == path


@pytest.mark.slow
def test_the_checks_on_a_gpu_say_that_there_is_none():
    if torch.cuda.is_available():
        pytest.skip("this machine has one: run `python tests/gpu_checks.py`")
    ran = subprocess.run([sys.executable, "gpu_checks.py"], cwd=HERE, capture_output=True, text=True)
    assert ran.returncode == 2
    assert "no CUDA device" in ran.stderr
    assert "Traceback" not in ran.stderr
