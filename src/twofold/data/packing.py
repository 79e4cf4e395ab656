"""Documents as one stream of tokens, and training windows cut from it: no padding, no token scored twice."""

from collections.abc import Sequence

import numpy as np
import torch
from torch.utils.data import Dataset

from twofold.data.byte_tokens import END, encode
from twofold.data.corpus import Document


def stream(documents: Sequence[Document]) -> tuple[np.ndarray, np.ndarray]:
    """Join documents to END doc₀ END doc₁ … docₙ END: (tokens uint16, document index int32), of equal length.

    The token after position i is position i's target, so every byte and every closing END is a target exactly
    once. A closing END belongs to the document before it; the opening END is no target and has index −1.
    """
    end = np.array([END], dtype=np.uint16)
    tokens = np.concatenate([end, *(part for document in documents for part in (encode(document.content), end))])
    lengths = [1] + [len(document.content) + 1 for document in documents]
    return tokens, np.repeat(np.arange(-1, len(documents), dtype=np.int32), lengths)


class PackedWindows(Dataset[dict[str, torch.Tensor]]):
    """Training windows: `context` inputs and the `context` tokens that follow each of them.

    Windows are cut at fixed offsets of the stream and share one token at the border, so that every target is
    trained once. Documents are separated by END and nothing else: where a window holds parts of several,
    attention crosses their borders. What is left at the end and fills no window is dropped.

    An item is `{"input_ids": LongTensor[T], "shift_labels": LongTensor[T]}` with T = context; the labels are
    shifted already, which is what transformers' loss takes `shift_labels` to mean.

    Raises ValueError if the context is not positive or the text does not fill one window.
    """

    def __init__(self, documents: Sequence[Document], context: int) -> None:
        if context < 1:
            raise ValueError(f"The context must be at least 1 token, got {context}.")
        self.context = context
        self.tokens, _ = stream(documents)
        if len(self) == 0:
            raise ValueError(
                f"Too little text: {len(documents)} training document(s) give {len(self.tokens)} tokens, and one "
                f"window of context {context} needs {context + 1}; add text, or shorten the context."
            )

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.context

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        start = range(0, len(self) * self.context, self.context)[index]  # the range raises IndexError for us
        window = torch.from_numpy(self.tokens[start : start + self.context + 1].astype(np.int64))
        return {"input_ids": window[:-1], "shift_labels": window[1:]}
