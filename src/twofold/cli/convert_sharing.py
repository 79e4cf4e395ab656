"""The part of `twofold convert` that shares: a model of ordinary attention as a variant, fitted to a text."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twofold.cli.quantities import parse_count
from twofold.variants.notation import parse
from twofold.variants.variant import Variant

if TYPE_CHECKING:
    from twofold.cli.convert_record import ConversionRecord
    from twofold.conversion.sharing_plan import Sharing
    from twofold.data.corpus import Corpus
    from twofold.data.tokenizer import Tokenizer
    from twofold.evaluation.heldout import Evaluation
    from twofold.explain.load import Opened
    from twofold.models.decoder import TwofoldForCausalLM

BATCH = 2
"""Windows that perplexities are taken on at once."""


@dataclass(frozen=True)
class Options:
    """The options that are for sharing alone, as they were written; by default they say nothing."""

    text: tuple[str, ...] = ()
    method: str = ""
    layers: str | None = None
    cache: float | None = None
    latent: int = 0
    groups: int = 1
    rotary_dims: int = 0
    spaced: bool = True
    refit: bool = True
    weighed: bool = True
    tokens: str = "16384"
    context: int = 1024
    test: str | None = None

    @property
    def given(self) -> list[str]:
        """Those that say something, as they are written."""
        names = {"spaced": "any-pairs", "refit": "no-refit", "weighed": "plain"}
        differing = [one.name for one in fields(self) if getattr(self, one.name) != one.default]
        return [f"--{names.get(name, name).replace('_', '-')}" for name in differing]

    def sharing(self, variant: Variant) -> Sharing:
        """What is asked of the conversion. ValueError where an option cannot be read, or is missing."""
        from twofold.cli.explain import parse_layers
        from twofold.conversion.sharing_plan import Sharing

        if not self.text:
            raise ValueError(f"sharing as {variant} is fitted to a text: name one with --text")
        return Sharing(
            variant,
            method=self.method,
            latent=self.latent,
            groups=self.groups,
            rotary_dims=self.rotary_dims,
            spaced=self.spaced,
            layers=None if self.layers is None else parse_layers(self.layers),
            cache=self.cache,
            weighed=self.weighed,
            refit=self.refit,
        )


def variant_of(to: str) -> Variant:
    """The variant that --to names. ValueError for what is none, with the nearest family or variant."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    from twofold.conversion.families import FAMILIES, REFUSED, family_of

    try:
        return parse(to)
    except ValueError:
        if to in REFUSED or to in CONFIG_MAPPING_NAMES:
            family_of(to)  # which says why not
        if near := difflib.get_close_matches(to.lower(), FAMILIES, n=1, cutoff=0.75):
            raise ValueError(
                f"{to!r} is no variant, and no family: did you mean {near[0]!r}? Families are {', '.join(FAMILIES)}; "
                "variants, such as MLA on_read, stand in docs/conversion.md"
            ) from None
        raise


def convert_sharing(opened: Opened, asked: Sharing, out: Path, options: Options, command: str) -> ConversionRecord:
    """Convert, write the folder with its record, and give the record. ValueError before anything is written."""
    from twofold.cli.convert_record import RECORD_FILE, ConversionRecord
    from twofold.cli.progress import reading
    from twofold.conversion.share import share
    from twofold.conversion.source import source_tokenizer, write_model
    from twofold.conversion.windows import read_windows
    from twofold.data.corpus import load_corpus
    from twofold.environment import environment

    model = _decoder(opened)
    tokens, tokenizer = parse_count(options.tokens), opened.tokenizer()
    context = min(options.context, model.config.max_position_embeddings)
    test = None if options.test is None else load_corpus(options.test)
    with reading("reading", of="the text") as stages:
        fitted = read_windows(options.text, tokenizer, tokens, context, stages)
        if test is not None:
            fitted.require_apart(test)
    before = _scored(model, opened.name, test, tokenizer, context)
    with reading("measuring", of="the model's layers") as stages:
        made, record = share(model, asked, fitted.ids_BT, stages)
    after = _scored(made, "the new model", test, tokenizer, context)
    windows = list(fitted.ids_BT.shape)
    found = ConversionRecord.model_validate(
        {
            "model": opened.name,
            "command": command,
            **record.as_dict(),
            "text": {"sources": fitted.sources, "sha256": fitted.sha256, "windows": windows},
            "perplexity": _perplexities(test, before, after),
            "environment": environment(),
        }
    )
    write_model(made, out, source_tokenizer(opened), files={RECORD_FILE: found.model_dump_json(indent=2) + "\n"})
    return found


def _decoder(opened: Opened) -> TwofoldForCausalLM:
    from twofold.conversion.convert import convert_in
    from twofold.models.decoder import TwofoldForCausalLM

    if not opened.is_own:
        return convert_in(opened.model)
    if not isinstance(opened.model, TwofoldForCausalLM):
        raise ValueError(f"{opened.name} is an encoder, and sharing is for decoders")
    return opened.model


def _scored(
    model: TwofoldForCausalLM, name: str, test: Corpus | None, tokenizer: Tokenizer, context: int
) -> Evaluation | None:
    """What the model says of the test text, if there is one. ValueError where that is no number."""
    from twofold.cli.progress import evaluating
    from twofold.evaluation.heldout import evaluate

    if test is None:
        return None
    with evaluating() as progress:
        scored = evaluate(model, test.documents, context, BATCH, progress, tokenizer)
    if not math.isfinite(scored.perplexity):
        raise ValueError(f"{name} has no finite perplexity on {test.name}: give its kind of text, or leave --test out")
    return scored


def _perplexities(test: Corpus | None, before: Evaluation | None, after: Evaluation | None) -> dict[str, Any] | None:
    if test is None or before is None or after is None:
        return None
    return {
        "source": test.name,
        "sha256": test.sha256,
        "tokens": before.tokens,
        "before": before.perplexity,
        "after": after.perplexity,
    }
