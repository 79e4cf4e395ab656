"""Kill a study again and again, and see that it ends as if nothing had happened.

    python tests/endurance.py --kills 20
    python tests/endurance.py --kills 20 --runners 2

The study runs once undisturbed. Then it is started in another folder and killed with SIGKILL at random moments, again
and again, by the same command (with `--runners 2`, two processes share that folder and one of them is killed each
time); at last it is left to finish. Weights, validation and per-step metrics of both folders must be equal bit by bit.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from twofold.training import checkpoints
from twofold.training.metrics import METRICS_FILE

STUDY = """
name: endurance
data: {source: python-stdlib, context: 64, held_out: 0.002}
model: {preset: tiny, layers: 2, width: 64, heads: 4, mlp: 96, dropout: 0.1}
variants: [QKV, K=V MQA]
seeds: [0]
tokens: 600_000
training: {batch: 4, checkpoints: 40}
sample: {prompt: 32, tokens: 64}
"""


def start(study: Path, out: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "twofold.cli.main", "study", "run", str(study), "--out", str(out)]
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def moment(out: Path) -> str:
    """What the study is doing, as its folder shows."""
    for run in sorted((out / "runs").glob("*")):
        if (run / "record.json").is_file():
            continue
        if any((run / checkpoints.FOLDER).glob("step-*")):
            return "after a checkpoint"
        return "in training, before a checkpoint" if (run / METRICS_FILE).is_file() else "before training"
    return "outside a run"


def kill_often(study: Path, out: Path, kills: int, runners: int) -> Counter:
    """Start, wait a random while, kill; as many times as asked."""
    draw, moments = random.Random(0), Counter()
    running: list[subprocess.Popen] = []
    while moments.total() < kills:
        running = [process for process in running if process.poll() is None]
        running += [start(study, out) for _ in range(runners - len(running))]
        # Start-up takes seconds and nothing happens in it: most kills wait for training to begin.
        if draw.random() < 0.85:
            seen = moment(out)
            before = newest_step(out)
            while all(p.poll() is None for p in running) and moment(out) == seen and newest_step(out) == before:
                time.sleep(0.05)
        time.sleep(draw.uniform(0, 1.5))
        victim = draw.choice(running)
        if victim.poll() is not None:
            raise SystemExit(f"the study ended after {moments.total()} of {kills} kills: raise its tokens")
        moments[moment(out)] += 1
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        print(f"kill {moments.total()} of {kills}: {moment(out)}", flush=True)
    for process in running:
        process.wait()
    return moments


def newest_step(out: Path) -> int:
    """Steps that all metrics files tell of, together."""
    return sum(file.read_text().count("\n") for file in (out / "runs").glob(f"*/{METRICS_FILE}"))


def differences(one: Path, other: Path) -> list[str]:
    """What differs between two finished folders, times and speeds left out."""
    found = []
    for run in sorted((one / "runs").glob("*")):
        twin = other / "runs" / run.name
        if (run / "model/model.safetensors").read_bytes() != (twin / "model/model.safetensors").read_bytes():
            found.append(f"{run.name}: weights")
        if steps(run) != steps(twin):
            found.append(f"{run.name}: metrics")
        records = [json.loads((folder / "record.json").read_text()) for folder in (run, twin)]
        for key in ("validation", "documents", "cache", "sample", "curve"):
            if records[0][key] != records[1][key]:
                found.append(f"{run.name}: {key}")
    return found


def steps(run: Path) -> list[dict]:
    lines = [json.loads(line) for line in (run / METRICS_FILE).read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--runners", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        study, whole, killed = (Path(scratch) / name for name in ("endurance.yaml", "whole", "killed"))
        study.write_text(STUDY)
        print("undisturbed", flush=True)
        if start(study, whole).wait():
            raise SystemExit("the undisturbed study failed")
        moments = kill_often(study, killed, options.kills, options.runners)
        if start(study, killed).wait():
            raise SystemExit("the study failed after the last kill")
        found = differences(whole, killed)
    print(json.dumps({"kills": moments.total(), "moments": moments, "differences": found}))
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
