"""Small datasets in folders: Parquet and JSON files, and what `save_to_disk` writes."""

import json
from pathlib import Path

import datasets

COLUMN = "story"


def stories(count: int = 23, start: int = 0) -> list[str | None]:
    """Texts of different lengths, of which some are empty or missing."""
    blank = {4: "", 9: None, 10: "", 18: None}
    return [blank.get(i, f"Story {i}: naïve return self " * (1 + i % 5)) for i in range(start, start + count)]


def parquet(folder: Path, split: str = "train", shards: int = 3, per_shard: int = 7) -> Path:
    """Several files of one split, with small groups of rows, so that a shard is read in pieces."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        rows = stories(per_shard, shard * per_shard)
        table = datasets.Dataset.from_dict({COLUMN: rows, "n": list(range(len(rows)))})
        table.to_parquet(folder / f"{split}-{shard:05}-of-{shards:05}.parquet", batch_size=3)
    return folder


def json_lines(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({COLUMN: text}) for text in stories()]
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def saved(folder: Path) -> Path:
    """Two splits, as `save_to_disk` writes them."""
    splits = {"train": stories(), "test": ["held out one", "held out two"]}
    datasets.DatasetDict({k: datasets.Dataset.from_dict({COLUMN: v}) for k, v in splits.items()}).save_to_disk(folder)
    return folder


def texts_of(rows: list[str | None]) -> list[bytes]:
    """The documents that rows make."""
    return [text.encode() for text in rows if text]
