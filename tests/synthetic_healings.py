"""A record of a healing with made-up numbers that no two fields share."""

from __future__ import annotations

from twofold.healing.record import (
    ControlRecord,
    Evaluated,
    HealRecord,
    Measured,
    Recall,
    TextRecord,
    TrainingRecord,
    ratios,
)
from twofold.healing.settings import HealingSettings
from twofold.study.record import CurvePoint, Environment, Validation

STEP = 4096


def measured(variant: str, perplexity: float, cache: float, accuracy: float) -> Measured:
    return Measured(
        variant=variant,
        parameters=1_234_567,
        validation=Validation(
            loss=1.5, bits_per_byte=perplexity / 20, perplexity=perplexity, tokens=43_210, bytes=198_765
        ),
        cache_tokens=1024,
        cache_bytes_per_token=cache,
        recall=Recall(
            sequences=32, length=64, asked=2016, accuracy=accuracy, standard_error=0.0123, loss=2.5, loss_first=11.25
        ),
    )


def training(*losses: float, speed: float = 97.0) -> TrainingRecord:
    evaluations = tuple(Evaluated(tokens=STEP * n, loss=loss, seconds=1.5) for n, loss in enumerate(losses))
    steps = len(losses) - 1
    return TrainingRecord(
        trained=765_432,
        parameters=1_234_567,
        tokens=STEP * steps,
        steps=steps,
        seconds=STEP * steps / speed,
        tokens_per_second=speed,
        curve=tuple(CurvePoint(tokens=one.tokens, loss=one.loss) for one in evaluations[1:]),
        evaluations=evaluations,
    )


def environment() -> Environment:
    return Environment(
        twofold="0.0.1",
        python="3.11.0",
        torch="2.0",
        transformers="5.0",
        platform="somewhere",
        processor="a processor",
        threads=2,
        device="cpu",
    )


def synthetic_healing(text: str = "", control: bool = True) -> HealRecord:
    """`text` is put into all that users name."""
    teacher = measured("GQA-3", 12.125, 23_040, 0.875)
    converted = measured(f"MLA{text}", 345.625, 7_680, 0.0625)
    healed = measured(f"MLA{text}", 14.375, 7_680, 0.7188)
    after = measured("GQA-3", 11.75, 23_040, 0.8594)
    made = ControlRecord(
        settings={}, before=teacher, after=after, training=training(2.5, 2.45, 2.44, 2.4625), environment=environment()
    )
    return HealRecord(
        model=f"converted{text}",
        teacher=f"smollm2.gguf{text}",
        command=f"twofold heal converted{text}",
        settings=HealingSettings(tokens=3 * STEP).model_dump(mode="json"),
        text=TextRecord(
            sources=(f"texts{text}",),
            held_out="0.05",
            sha256="a" * 64,
            held_out_sha256="b" * 64,
            documents=17,
            bytes=7_654_321,
            tokens=1_765_432,
            held_out_documents=3,
            sampled_tokens=16_381,
            passes=0.4375,
            tokenizer="c" * 64,
        ),
        before=teacher,
        converted=converted,
        healed=healed,
        training=training(5.8, 3.1, 2.7, 2.66, speed=89.0),
        control=made if control else None,
        control_was_there=control,
        ratios=ratios(teacher, converted, healed, after if control else None),
        environment=environment(),
        packages={"peft": None},
        model_config_of_healed={},
    )
