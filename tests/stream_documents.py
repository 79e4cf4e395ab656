"""A stream of documents that lie in memory, and a tokenizer whose tokens go through characters."""

import numpy as np


class Listed:
    """A `DocumentStream` over a list; `read` counts the documents that were read, of all epochs."""

    def __init__(self, texts):
        self.texts = list(texts)
        self.read = 0
        self._next = 0

    def __iter__(self):
        place, self._next = self._next, 0
        while place < len(self.texts):
            self._at = place + 1
            self.read += 1
            yield self.texts[place]
            place = self._at

    def state(self):
        return {"documents": self._at}

    def resume(self, state):
        self._next = state["documents"]


class Pairs:
    """Two bytes make a token where they can, in a vocabulary of 256 + 256² tokens and END; decodes as BPE does."""

    name = "pairs"
    end = 256 + 256**2
    vocabulary = end + 1

    def encode(self, text):
        whole = np.frombuffer(text[: len(text) // 2 * 2], dtype=np.uint8).reshape(-1, 2).astype(np.uint32)
        pairs = 256 + 256 * whole[:, 0] + whole[:, 1]
        return np.append(pairs, np.frombuffer(text[len(text) // 2 * 2 :], dtype=np.uint8)).astype(np.uint32)

    def encode_batch(self, texts):
        return [self.encode(text) for text in texts]

    def decode(self, ids):
        parts = [bytes([i]) if i < 256 else bytes(divmod(i - 256, 256)) for i in map(int, ids) if i != self.end]
        return b"".join(parts).decode(errors="replace")
