"""What each measure is called, how it is read, and where it comes from: for the page of `twofold explain`."""

from __future__ import annotations

import re
from typing import NamedTuple

SECTIONS = {
    "similarity": "How alike the projections are",
    "rank": "How many dimensions they use",
    "circuits": "What heads read and write",
    "attention": "Where heads look",
    "scale": "How large scores are",
}
PAIRS = {"kv": "K–V", "qk": "Q–K", "qv": "Q–V", "ov": "OV", "q": "Q", "k": "K", "v": "V"}
UNDRAWN = {"dims"}
"""What is the same in every layer."""
MARKS = {"random": "random", "most": "most possible", "chance": "chance"}
BASELINE = re.compile(r"_(random|most|chance)(?=_|$)")
"""What marks a number as one to hold another against: of random matrices, the largest possible, of even attention."""
VASWANI = "Vaswani et al., arXiv 1706.03762, section 3.2.1"
SOFTMAX = (
    ("entropy", "Entropy of the softmax", "In nats."),
    ("relative_entropy", "Relative entropy of the softmax", "1 where all positions weigh alike, 0 where one has all."),
    ("saturated", "Saturated queries", "The share that gives one position more than 99 % of the weight."),
    ("gradient", "Gradient of the softmax", "The norm of ∂w/∂scores: 0 where the softmax has decided, at most √½."),
)
ELHAGE = "Elhage et al., A Mathematical Framework for Transformer Circuits, 2021"
NO_WORDS = "As the record names it; docs/explain.md says what it is."


class Words(NamedTuple):
    """A family of measures, which share a figure: the pattern of their names, and what is said of them.

    The pattern's group, if it has one, names a line among the others.
    """

    pattern: str
    title: str
    reading: str
    source: str = ""

    @property
    def caption(self) -> str:
        """One sentence how to read the figure, and its source."""
        return f"{self.reading} Source: {self.source}." if self.source else self.reading


FAMILIES: dict[str, tuple[Words, ...]] = {
    "similarity": (
        Words(
            "cosine_(.+)",
            "Entrywise cosine",
            "1 where two weight matrices are equal up to scale, 0 where they are unrelated; it depends on the basis of "
            "each head, so that two heads which do the same may show 0.",
            "arXiv 2606.04032",
        ),
        Words(
            "overlap_(.+)",
            "Overlap of row spaces",
            "The mean squared cosine of the principal angles between what two projections of a head read: 1 where they "
            "read the same subspace of the input, about d / M at random.",
            "Björck and Golub, 1973",
        ),
        Words(
            "procrustes_(.+)",
            "Procrustes residual",
            "What the best rotation and scale of one matrix leave of the other: 0 where they are equal up to those, "
            "near 1 where they are unrelated.",
            "Schönemann and Carroll, 1970",
        ),
        Words(
            "cka_(.+)",
            "Linear CKA of activations",
            "How alike two projections arrange the tokens of the text: 1 up to a rotation and a scale.",
            "Kornblith et al., arXiv 1905.00414",
        ),
        Words(
            "r2_(.+)",
            "R² of one from the other",
            "The share of one projection’s variance on the text that a linear map of the other one gives: 1 where it "
            "could be computed from it.",
            "least squares",
        ),
    ),
    "rank": (
        Words(
            "([qkv])",
            "Effective rank",
            "So many dimensions of equal strength have the same entropy of singular values; dotted are a random matrix "
            "of the same shape and the largest possible.",
            "Roy and Vetterli, 2007, as in arXiv 2606.04032",
        ),
        Words(
            "([qkv])_stable",
            "Stable rank",
            "The squared norm over the largest squared singular value: 1 where one direction has all the strength.",
            "Rudelson and Vershynin, 2007",
        ),
        Words(
            "joint_kv_kept_?(.*)",
            "What one matrix for keys and values could keep",
            "The share of their squared norm that the best joint factor with as many dimensions as the values keeps: 1 "
            "where sharing would lose nothing, dotted for random matrices.",
            "Eckart and Young, 1936",
        ),
        Words(
            "joint_kv_energy",
            "Energy of joint factors of keys and values",
            "The share of squared norm that the best factor of so many dimensions keeps of both: the sooner a line is "
            "near 1, the less sharing costs.",
            "Eckart and Young, 1936",
        ),
    ),
    "circuits": (
        Words(
            "(qk|ov)_norm",
            "Norms of QK and OV",
            "How much a head compares (QK) and moves (OV), as the Frobenius norm of the product of its two matrices.",
            ELHAGE,
        ),
        Words(
            "(qk_matching|ov_copying|ov_copying_tokens)",
            "Copying",
            "The sum of the eigenvalues over the sum of their sizes: near 1 a head looks for (QK) or writes (OV) the "
            "same as it reads, near −1 its opposite, and random matrices give about 0.",
            ELHAGE,
        ),
        Words(
            "composition_(query|key|value)",
            "Composition with the layer below",
            "How much of what that layer’s heads write the queries, keys or values of this one’s read, as a share "
            "of the norms: the mean over pairs of heads, and by head the largest.",
            ELHAGE,
        ),
        Words(
            "qk_symmetric",
            "Symmetric share of QK",
            "The share of QK’s squared norm in its symmetric part: 1 where two tokens score each other alike, as with "
            "Q=K, and ½ for random matrices.",
        ),
    ),
    "attention": (
        Words(
            "(relative_entropy|saturated)",
            "How sharply heads look",
            "Relative entropy is 1 where all positions weigh alike and 0 where one has all the weight; saturated is "
            "the share of queries that give one position more than 99 %.",
            "Zhai et al., arXiv 2303.06296",
        ),
        Words("entropy", "Entropy of the attention", "In nats: the exponential is the number of positions looked at."),
        Words(
            "(first|own|previous)",
            "Weight of the first, the own and the previous position",
            "The mean weight that queries give them; dotted, what even attention would give. The first position is "
            "where causal models put what they do not need.",
            "Xiao et al., arXiv 2309.17453",
        ),
        Words(
            "distance",
            "Distance",
            "How many positions back a query looks, weighed by attention; dotted, even attention.",
        ),
        Words(
            "(symmetric_share|own_is_largest)",
            "Symmetry and own position of the scores",
            "Of all scores before the mask: the share of their symmetric part, 1 with Q=K, and the share of queries "
            "whose largest score is with themselves; dotted, by chance.",
        ),
        Words(
            "repeated_(.+)",
            "On random tokens that come twice",
            "Weight from a token’s second occurrence to what followed the first (induction), to the first itself "
            "(duplicate), and to the position before (previous); dotted, even attention.",
            "Olsson et al., arXiv 2209.11895",
        ),
    ),
    "scale": (
        Words(
            "(variance|variance_within)",
            "Variance of q·k",
            "Over all pairs, and over what one query sees: for independent components of variance 1 it would be d.",
            VASWANI,
        ),
        Words("variance_per_dim", "Variance of q·k per dim", "1 for independent components of variance 1.", VASWANI),
        *(
            Words(f"{name}_(scaled|unscaled)", title, f"{reading} Of q·k / √d (scaled) and of q·k (unscaled).", VASWANI)
            for name, title, reading in SOFTMAX
        ),
    ),
}


def words_of(section: str, name: str) -> Words:
    """The family of a measure or of its baseline; one of its own for a name that is not known here."""
    base = BASELINE.sub("", name)
    known = next((words for words in FAMILIES[section] if re.fullmatch(words.pattern, base)), None)
    return known or Words(re.escape(base), base.replace("_", " "), NO_WORDS)


def is_baseline(name: str) -> bool:
    """Whether the number is one to hold another against."""
    return BASELINE.search(name) is not None


def line_name(section: str, name: str) -> str:
    """What a line is called beside the others of its family: `K–V`, `V from K`, `K–V, random`."""
    base, words = BASELINE.sub("", name), words_of(section, name)
    match = re.fullmatch(words.pattern, base)
    rest = (match[1] if match and match.re.groups else "") or words.title
    said = " ".join(PAIRS.get(word, word) for word in rest.split("_"))
    mark = BASELINE.search(name)
    return f"{said}, {MARKS[mark[1]]}" if mark else said
