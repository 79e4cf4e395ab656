"""What arXiv 2606.04032 reports for its tasks, so that it can stand beside what is measured here."""

from __future__ import annotations

SOURCE = "arXiv 2606.04032"

_SYNTHETIC = ("QKV", "Q=K", "Q=K +", "K=V", "Q=K=V", "Q=K=V +")
_VISION = ("QKV", "Q=K", "Q=K +", "K=V", "Q=K=V")
_SCORES: dict[str, tuple[tuple[str, ...], tuple[float | None, ...]]] = {
    "reverse": (_SYNTHETIC, (0.698, 0.705, 0.718, 0.701, 0.514, 0.581)),
    "sort": (_SYNTHETIC, (0.971, 0.967, 0.963, 0.958, 0.939, 0.957)),
    "subtract": (_SYNTHETIC, (1.0, 1.0, 1.0, 1.0, 1.0, 1.0)),
    "swap": (_SYNTHETIC, (0.588, 0.597, 0.671, 0.590, 0.446, 0.576)),
    "copy": (_SYNTHETIC, (1.0, 1.0, 1.0, 1.0, 1.0, 1.0)),
    "images:mnist": (_VISION, (0.981, 0.981, 0.982, 0.976, 0.978)),
    "images:fashion-mnist": (_VISION, (0.887, 0.885, 0.884, 0.883, 0.877)),
    "images:cifar10": (_VISION, (0.663, 0.666, 0.662, 0.659, 0.672)),
    "images:cifar100": (_VISION, (0.363, 0.369, 0.366, 0.358, 0.376)),
    "images:tiny-imagenet": (_VISION, (0.229, 0.236, None, None, 0.266)),
    "anomaly:cifar100": (_VISION, (0.942, 0.954, 0.966, 0.949, 0.933)),
}
"""Accuracy by task (and source, of images) and variant. Of the synthetic tasks they are means over settings, whose
standard deviation the paper gives as 0.35 to 0.42; sets are of features of a trained network.
"""


def published_score(task: str, source: str, variant: str) -> float | None:
    """The paper's accuracy of a variant; None where it has none."""
    key = f"{task}:{source.partition(':')[0]}" if source else task  # files may lie in a folder that the source names
    variants, scores = _SCORES.get(key, ((), ()))
    return dict(zip(variants, scores, strict=True)).get(variant)
