"""What one of several processes does in `test_training_distributed.py`: the runs that are named, one after the other.

    torchrun --nproc-per-node 2 tests/distributed_training.py FOLDER TEXTS NAME...

What a run ends with is written as FOLDER/NAME.pt by the first process and as FOLDER/NAME.second by the second. Last of
all `twofold train` is called on TEXTS; what it prints comes as FOLDER/command.pt and FOLDER/command.second.
"""

import io
import shutil
import sys
import warnings
from contextlib import redirect_stdout, suppress
from pathlib import Path

import torch

from stream_documents import Listed
from tiny_study import CONTEXT, documents, tiny_model
from twofold.cli.main import main as command_line
from twofold.data.packing import Windows
from twofold.data.stream_windows import StreamWindows
from twofold.data.tokenizer import BYTES
from twofold.data.tokens import tokenise
from twofold.training import checkpoints, processes
from twofold.training.metrics import DivergedError
from twofold.training.run import train
from twofold.training.settings import TrainingSettings

STEPS, SEED = 6, 5
SAVED = 4  # the step of the last checkpoint of a run that is interrupted

PAPER = {"block": "paper", "tied": True}
MODERN = {"block": "modern", "tied": False}
CASES = {
    # name: (variant, sizes, settings)
    "ddp": ("K=V", MODERN, {"gradient_checkpointing": True, "accumulation": 2}),
    "ddp_tied": ("Q=K=V", PAPER, {}),
    "ddp_stream": ("K=V", PAPER, {"accumulation": 2}),
    "ddp_dropout": ("K=V", {**PAPER, "dropout": 0.3}, {}),
    "fsdp": ("K=V GQA-2", MODERN, {"fsdp": True, "accumulation": 2}),
    "fsdp_tied": ("K=V MQA", PAPER, {"fsdp": True, "gradient_checkpointing": True}),
    "fsdp_bfloat16": ("K=V", MODERN, {"fsdp": True, "precision": "bfloat16"}),
}


def run(name, folder, *, poison=False, **changes):
    """A case's weights and steps, in as many processes as there are; `changes` replace its settings."""
    variant, sizes, settings = CASES[name]
    model = tiny_model(variant, seed=SEED, **sizes)
    if poison:
        torch.nn.init.constant_(model.lm_head.weight, torch.nan)
    chosen = TrainingSettings(batch=4, checkpoints=STEPS // 2, learning_rate=1e-2, **{**settings, **changes})
    windows = Windows(tokenise(documents(), BYTES), CONTEXT)
    if name == "ddp_stream":  # so short that it comes round
        windows = StreamWindows(Listed(document.content for document in documents(3)), CONTEXT, BYTES, "separate")
    said, told = [], []
    steps = train(
        model,
        windows,
        chosen,
        steps=STEPS,
        length=CONTEXT,
        seed=SEED,
        folder=folder,
        progress=told.append,
        resume=True,
        say=said.append,
    )
    assert bool(told) == processes.is_first()
    assert all(type(tensor) is torch.nn.Parameter for tensor in model.parameters())
    return model.state_dict(), steps, said


def interrupt(folder):
    """Make what a run that was killed after step `SAVED` leaves of one that has ended."""
    for place in (folder / checkpoints.FOLDER).glob("step-*"):
        if place.name != f"step-{SAVED}":
            place.rename(place.with_name(f"late-{place.name}"))


def command(texts, out, *settings):
    """The words of a `twofold train`."""
    sizes = ("model.layers=2", "model.width=24", "model.mlp=31", f"data.context={CONTEXT}", "data.held_out=0.2")
    quick = ("training.batch=4", "sample.prompt=13", "sample.tokens=7")
    words = ["train", "--variant", "K=V MQA", "--data", str(texts), "--tokens", "500", "--out", str(out), "--json"]
    return [*words, *(word for setting in (*sizes, *quick, *settings) for word in ("--set", setting))]


def called(arguments):
    """What the command line prints."""
    with redirect_stdout(io.StringIO()) as printed, suppress(SystemExit):
        command_line(arguments)
    return printed.getvalue()


def main(out, texts, *names):
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    processes.join()
    end = "pt" if processes.is_first() else "second"
    for name in names:
        case, _, how = name.partition("-")
        if how == "again" and processes.is_first():
            shutil.copytree(out / case, out / name)
            interrupt(out / name)
        processes.wait()
        try:
            weights, steps, said = run(case, out / name, poison=how == "poisoned")
            result = (weights, [tuple(step) for step in steps], said, torch.rand(()).item())
        except DivergedError as error:
            result = str(error)
        torch.save(result, out / f"{name}.{end}")
    torch.save(called(command(texts, out / "command", "training.fsdp=true")), out / f"command.{end}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]), *sys.argv[3:])
