"""The choices that a variant is made of; the value of each is its word in the notation."""

from __future__ import annotations

from enum import Enum

ROLES = ("query", "key", "value")


class Sharing(Enum):
    """Which of query, key and value are made by one matrix; the value is the notation."""

    QKV = "QKV"
    QUERY_KEY = "Q=K"
    KEY_VALUE = "K=V"
    ALL = "Q=K=V"

    @property
    def query_is_key(self) -> bool:
        """Query and key are one vector: scores before the mask are symmetric."""
        return self in (Sharing.QUERY_KEY, Sharing.ALL)

    @property
    def value_is_key(self) -> bool:
        """Key and value are one vector: the row keeps it once."""
        return self in (Sharing.KEY_VALUE, Sharing.ALL)

    @property
    def sources(self) -> dict[str, str]:
        """Role → the role whose matrix makes it. The shared matrix is always the key's: only a key must exist."""
        return {
            "query": "key" if self.query_is_key else "query",
            "key": "key",
            "value": "key" if self.value_is_key else "value",
        }

    @property
    def matrices(self) -> tuple[str, ...]:
        """The distinct matrices, in the order query, key, value."""
        return tuple(role for role in ROLES if self.sources[role] == role)


class Treatment(Enum):
    """What becomes of a value that is also a key, where keys are rotated; the value is the notation."""

    DEROTATED = "derotated"
    """Rows are rotated, and what was read is rotated back at the query's position (arXiv 2606.19348)."""
    ON_READ = "on_read"
    """Rows are kept as they are made, and a key is rotated when it is read."""
    KEPT = "kept"
    """The rotated dims of the key are kept beside the raw ones (Gemma 4, arXiv 2607.02770)."""
    DECOUPLED = "decoupled"
    """Content is not rotated; a rotary key that all heads share stands beside it (after arXiv 2405.04434)."""


class PositionTerm(Enum):
    """What is done to the scores of an encoder; the value is the notation."""

    NONE = ""
    PUBLISHED = "+"
    """A 2-D sinusoid of m channels and a 1×1 convolution (arXiv 2606.04032)."""
    TEMPERATURE = "+temperature"
    """Of that, only the factor on the scores."""
    KEY_BIAS = "+key-bias"
    """Of that, only the bias for each key position."""
    RELATIVE = "+relative"
    """A bias for each distance between query and key."""


class Recurrence(Enum):
    """Attention without softmax, as a recurrence over a state of constant size; the value is the notation."""

    NONE = ""
    ELU = "linear"
    """φ(x) = elu(x) + 1 (arXiv 2006.16236)."""
    RELU = "linear-relu"
    """φ made of relu."""
