"""A Twofold model as a model of lm-evaluation-harness (EleutherAI), known there as `twofold`.

The harness's own adapter for Hugging Face models is not used: it leaves out the end token that begins every document
in training, scores a text that nobody wrote (or fails) where a token spans context and continuation, and fails at a
continuation or at `max_gen_toks` longer than the model's context. Importing this module needs the extra `downstream`.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from twofold.data.tokenizer import BYTES, Tokenizer, load_tokenizer
from twofold.environment import device_type
from twofold.evaluation.downstream_generation import generate_batch, settings
from twofold.evaluation.downstream_tokens import Pieces, encode, encode_pair, rolling_windows, windows
from twofold.evaluation.heldout import evaluation_mode
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.load import load_model

RECORD_FILE = "record.json"

logger = logging.getLogger(__name__)


@register_model("twofold")
class TwofoldLM(LM):
    """Log-likelihoods, rolling log-likelihoods and generations of a Twofold model.

    `cut` counts the requests whose context lost its beginning because it did not fit; a warning tells of them too.
    """

    def __init__(
        self,
        pretrained: str | Path | TwofoldForCausalLM,
        *,
        tokenizer: Tokenizer | None = None,
        batch_size: int | str = 16,
        max_length: int | None = None,
        device: str | None = None,
    ) -> None:
        """`pretrained`: a folder that `train` or `study run` wrote, or a model (over bytes without `tokenizer`).

        `max_length`: tokens per forward pass; by default the context that the folder's run trained with, else what the
        model's configuration states. `device`: by default an accelerator if there is one. `lm_eval` says cuda:0 where
        its user says nothing, so a CUDA that is not there counts as nothing said.

        Raises ValueError where there is no such model, and for sizes that cannot be.
        """
        super().__init__()
        if isinstance(pretrained, TwofoldForCausalLM):
            self.model, trained = pretrained, None
        else:
            self.model, trained = load_model(Path(pretrained)), trained_context(Path(pretrained))
            tokenizer = tokenizer or load_tokenizer(Path(self.model.name_or_path))
            self.model.to(_device(device))
        self._device = self.model.device
        tokenizer = tokenizer or BYTES
        sizes = self.model.config.architecture
        if tokenizer.vocabulary > sizes.vocab:
            raise ValueError(
                f"the tokenizer has {tokenizer.vocabulary:,} tokens and the model {sizes.vocab:,}: give the tokenizer "
                "that the model was trained with"
            )
        self.tokenizer, self.end = tokenizer.for_transformers(), tokenizer.end
        self.batch_size = _at_least_one("batch_size", batch_size)
        self.max_length = _at_least_one("max_length", max_length or trained or sizes.positions)
        if sizes.learned_positions and self.max_length > sizes.positions:
            raise ValueError(
                f"max_length is {self.max_length:,} and the model has {sizes.positions:,} learned positions: give at "
                "most that"
            )
        self.cut = 0

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """For each (context, continuation): natural log of the probability, and whether greedy decoding gives it."""
        pairs = [encode_pair(self.tokenizer, self.end, *request.args) for request in requests]
        self._tell_cut(sum(len(context) + len(scored) > self.max_length + 1 for context, scored in pairs))
        return self._scores([list(windows(*pair, self.max_length)) for pair in pairs], disable_tqdm)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """For each (text,): natural log of its probability as a document, each token scored once; END is not."""
        texts = [encode(self.tokenizer, *request.args) for request in requests]
        cut = [list(rolling_windows(self.end, text, self.max_length)) for text in texts]
        return [likelihood for likelihood, _ in self._scores(cut, disable_tqdm)]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """For each (context, settings): the continuation up to a stop string, END or `max_gen_toks`, with the cache.

        The context keeps what `max_gen_toks` leaves of the model's length, as in the harness; where it leaves nothing,
        each gets half.
        """
        alike: dict[str, list[int]] = defaultdict(list)
        prompts = [encode_pair(self.tokenizer, self.end, context, "") for context, _ in (r.args for r in requests)]
        for number, request in enumerate(requests):
            alike[json.dumps(request.args[1], sort_keys=True)].append(number)
        made = [""] * len(requests)
        with evaluation_mode(self.model), _bar("generating", len(requests), disable_tqdm) as bar:
            for numbers in alike.values():
                chosen = settings(requests[numbers[0]].args[1], self.max_length)
                whole = {number: [*prompts[number][0], *prompts[number][1]] for number in numbers}
                self._tell_cut(sum(len(ids) > chosen.prompt for ids in whole.values()))
                numbers.sort(key=lambda number: -len(whole[number]))
                for batch in _batches(numbers, self.batch_size):
                    ids = [whole[number][-chosen.prompt :] for number in batch]
                    texts = generate_batch(self.model, self.tokenizer, self.end, ids, chosen)
                    for number, text in zip(batch, texts, strict=True):
                        made[number] = text
                    bar.update(len(batch))
        return made

    def _scores(self, cut: Sequence[Sequence[Pieces]], quiet: bool) -> list[tuple[float, bool]]:
        """Summed log-probability of the targets of each request's windows, and whether all are the likeliest."""
        # Windows that read the same tokens are one pass, as for choices that differ in their last token alone.
        readers: dict[tuple[int, ...], list[tuple[int, list[int]]]] = defaultdict(list)
        for request, pieces in enumerate(cut):
            for inputs, targets in pieces:
                readers[tuple(inputs)].append((request, targets))
        totals, greedy = [0.0] * len(cut), [True] * len(cut)
        longest_first = sorted(readers, key=lambda inputs: (-len(inputs), inputs))
        with evaluation_mode(self.model), torch.no_grad(), _bar("scoring", len(readers), quiet) as bar:
            for batch in _batches(longest_first, self.batch_size):
                rows = [(row, *reader) for row, inputs in enumerate(batch) for reader in readers[inputs]]
                scored = self._score_targets(batch, [(row, targets) for row, _, targets in rows])
                for (_, request, _), (likelihood, likeliest) in zip(rows, scored, strict=True):
                    totals[request] += likelihood
                    greedy[request] &= likeliest
                bar.update(len(batch))
        return list(zip(totals, greedy, strict=True))

    def _score_targets(
        self, inputs: Sequence[Sequence[int]], targets: Sequence[tuple[int, list[int]]]
    ) -> list[tuple[float, bool]]:
        """Of each (row, tokens): the log-probability of the tokens as what follows that row's last inputs.

        Rows are padded on the right, where a causal model never looks; only scored positions reach the head.
        """
        width = max(map(len, inputs))
        ids_BT = torch.tensor([[*row, *[self.end] * (width - len(row))] for row in inputs], device=self.device)
        hidden_BTM = self.model.model(ids_BT, use_cache=False).last_hidden_state
        rows = [row for row, tokens in targets for _ in tokens]
        columns = [len(inputs[row]) - len(tokens) + n for row, tokens in targets for n in range(len(tokens))]
        logits_NV = self.model.lm_head(hidden_BTM[rows, columns])
        logs_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32)).log_softmax(-1)
        wanted_N = torch.tensor([token for _, tokens in targets for token in tokens], device=logs_NV.device)
        sizes = [len(tokens) for _, tokens in targets]
        taken = logs_NV.gather(1, wanted_N[:, None])[:, 0].double().cpu().split(sizes)
        likeliest = (logs_NV.argmax(-1) == wanted_N).cpu().split(sizes)
        return [(float(a.sum()), bool(b.all())) for a, b in zip(taken, likeliest, strict=True)]

    def _tell_cut(self, count: int) -> None:
        self.cut += count
        if count:
            logger.warning("%d contexts did not fit into %d tokens and lost their beginning", count, self.max_length)


def trained_context(folder: Path) -> int | None:
    """Tokens per window that the run in or above `folder` trained with; None where it has left no record."""
    for place in (folder, folder.parent):
        if (place / RECORD_FILE).is_file():
            try:
                return int(json.loads((place / RECORD_FILE).read_bytes())["configuration"]["data"]["context"])
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{place / RECORD_FILE} is damaged, or of a model trained on a task, which reads no text"
                ) from error
    return None


def _device(asked: str | None) -> str:
    missing = asked is not None and asked.startswith("cuda") and not torch.cuda.is_available()
    return device_type() if asked is None or missing else asked


def _at_least_one(name: str, value: int | str) -> int:
    if not str(value).isdecimal() or int(value) < 1:
        raise ValueError(f"{name} must be a number from 1, not {value!r}")
    return int(value)


def _batches(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[first : first + size] for first in range(0, len(items), size)]


def _bar(what: str, total: int, quiet: bool) -> tqdm:
    """A bar on a terminal, as the harness's models have one; nothing elsewhere."""
    return tqdm(total=total, desc=what, leave=False, disable=True if quiet else None)
