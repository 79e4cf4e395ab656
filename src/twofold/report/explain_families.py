"""The families of measures of `twofold explain`, with how each is read and where it comes from: data for its page."""

from __future__ import annotations

from typing import NamedTuple

SECTIONS = {
    "similarity": "How alike the projections are",
    "rank": "How many dimensions they use",
    "circuits": "What heads read and write",
    "attention": "Where heads look",
    "scale": "How large scores are",
    "sharing": "What sharing keys and values costs",
}
VASWANI = "Vaswani et al., arXiv 1706.03762, section 3.2.1"
SOFTMAX = (
    ("entropy", "Entropy of the softmax", "In nats."),
    ("relative_entropy", "Relative entropy of the softmax", "1 where all positions weigh alike, 0 where one has all."),
    ("saturated", "Saturated queries", "The share that gives one position more than 99 % of the weight."),
    ("gradient", "Gradient of the softmax", "The norm of ∂w/∂scores: 0 where the softmax has decided, at most √½."),
)
OLSSON = "Olsson et al., arXiv 2209.11895"
EVEN = "Dotted, even attention."
ELHAGE = "Elhage et al., A Mathematical Framework for Transformer Circuits, 2021"


class Words(NamedTuple):
    """A family of measures, which share a figure: the pattern of their names, and what is said of them.

    The pattern's group, if it has one, names a line among the others. `lines` says what the baselines of the figure
    over the layers are, which other figures of the family do not have.
    """

    pattern: str
    title: str
    reading: str
    source: str = ""
    lines: str = ""

    @property
    def caption(self) -> str:
        """How to read the figure over the layers, and its source."""
        return self._sentences(self.reading, self.lines)

    @property
    def short_caption(self) -> str:
        """The same for a figure without baselines."""
        return self._sentences(self.reading)

    def _sentences(self, *said: str) -> str:
        return " ".join([*filter(None, said), *([f"Source: {self.source}."] if self.source else [])])


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
            "So many dimensions of equal strength have the same entropy of singular values.",
            "Roy and Vetterli, 2007, as in arXiv 2606.04032",
            "Dotted, random matrices of the same shape; dash-dotted, the largest possible.",
        ),
        *(
            Words(
                f"{letter}_spectrum",
                f"Spectrum of {letter}_proj",
                "Singular values from the largest, which is 1, a line for each layer: the sooner it falls, the fewer "
                "dimensions do the work.",
                "Roy and Vetterli, 2007",
            )
            for letter in "qkv"
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
            "The share of their squared norm that the best joint factor with as many dimensions as the values keeps, "
            "of both together and of keys (K) and values (V) alone: 1 where sharing would lose nothing.",
            "Eckart and Young, 1936",
            "Dotted, both together for random matrices.",
        ),
        Words(
            "joint_kv_energy",
            "Energy of joint factors of keys and values",
            "The share of squared norm that the best factor of so many dimensions keeps of both: the sooner a line is "
            "near 1, the less sharing costs.",
            "Eckart and Young, 1936",
        ),
        Words(
            "([qkv])_activations",
            "Effective rank of activations",
            "So many dimensions of equal strength would hold what a projection makes of the text.",
            "Roy and Vetterli, 2007",
            "Dotted, random matrices on the same input, which show what the input itself allows; dash-dotted, the "
            "largest possible.",
        ),
        Words(
            "([qkv])_activations_stable",
            "Stable rank of activations",
            "The squared norm over the largest squared singular value, of what a projection makes of the text.",
            "Rudelson and Vershynin, 2007",
        ),
        Words(
            "maps",
            "Effective rank of attention maps",
            "1 where all queries look alike, the number of tokens where each looks elsewhere.",
            "Roy and Vetterli, 2007",
            "Dotted, the maps of random matrices; dash-dotted, the largest possible.",
        ),
        Words(
            "maps_stable",
            "Stable rank of attention maps",
            "1 where one pattern of attention has all the strength.",
            "Rudelson and Vershynin, 2007",
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
        Words(
            "probe_token_?([qkv]?)",
            "The token itself, read by a linear probe",
            "How often a linear map of queries, keys or values names the token at hand, on positions that it has not "
            "seen. Induction needs it of the values.",
            OLSSON,
            "Dotted, the same of random matrices, and naming the commonest token always.",
        ),
        Words(
            "probe_previous_?([qkv]?)",
            "The token before, read by a linear probe",
            "The same of the token before: a head of induction needs it of the keys, so that with one vector for both "
            "the two ends compete for its dims.",
            OLSSON,
            "Dotted, the same of random matrices, and naming the commonest token always.",
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
            "(before|after|own_without_terms|before_without_terms|after_without_terms)",
            "Which way heads look",
            "The mean weight on all positions before and after the query’s own, which has the rest; under a causal "
            "mask nothing lies after. “Without terms” is what q·k alone would give, less what + adds.",
            "arXiv 2606.04032",
            EVEN,
        ),
        Words(
            "(maps_symmetric_share|maps_symmetric_share_without_terms)",
            "Symmetry of the maps",
            "What mask and softmax leave of the scores’ symmetry: 1 where any two positions weigh each other alike, ½ "
            "where nobody is looked at in turn.",
            lines=EVEN,
        ),
        Words(
            "(first|own|previous)",
            "Weight of the first, the own and the previous position",
            "The mean weight that queries give them. The first position is where causal models put what they do not "
            "need.",
            "Xiao et al., arXiv 2309.17453",
            EVEN,
        ),
        Words(
            "distance",
            "Distance",
            "How many positions back a query looks, weighed by attention.",
            lines=EVEN,
        ),
        Words(
            "(symmetric_share|own_is_largest)",
            "Symmetry and own position of the scores",
            "Of all scores before the mask: the share of their symmetric part, 1 with Q=K, and the share of queries "
            "whose largest score is with themselves.",
            lines="Dotted, by chance.",
        ),
        Words(
            "repeated_(.+)",
            "On random tokens that come twice",
            "Weight from a token’s second occurrence to what followed the first (induction), to the first itself "
            "(duplicate), and to the position before (previous).",
            OLSSON,
            EVEN,
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
    "sharing": (
        Words(
            "(joint|value_from_key)_predicted",
            "Predicted loss of sharing, on the text",
            "The share of keys and values that one matrix for both would lose (joint), and of the values that no map "
            "of the keys gives (value from key), with what the layer is given on the text.",
            "Eckart and Young, 1936; arXiv 2503.05840",
        ),
        Words(
            "(joint|value_from_key)_predicted_weights",
            "Predicted loss of sharing, from weights alone",
            "The share of keys and values that one matrix would lose (joint), and of the values that no map of the "
            "keys gives (value from key), were the input’s components independent: what weights say without a text.",
            "Eckart and Young, 1936; arXiv 2503.05840",
        ),
        Words(
            "(joint|value_from_key)_loss",
            "Measured loss of sharing one layer",
            "What the model’s loss grows by, in nats per token, when this layer alone shares and all others stay as "
            "they are.",
        ),
        Words(
            "(joint|value_from_key)_perplexity_ratio",
            "Perplexity when one layer shares",
            "Over the model’s own: 1 where sharing in this layer costs nothing.",
        ),
    ),
}
