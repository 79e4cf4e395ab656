"""Made-up records of `twofold explain`, with every kind of number that a page shows."""

from twofold.explain.record import AttentionMap, Correlation, Cost, Explanation, LayerMeasures, Sharing, TextRead

LAYERS, HEADS, TOKENS = (0, 2, 3), 5, 7


def layer_measures(layer, name=""):
    share = (layer + 1) / 7
    return LayerMeasures(
        layer=layer,
        similarity={
            "cosine_kv": -share,
            "cosine_kv_random": 0.011,
            "overlap_kv": share,
            "overlap_kv_random": 0.11,
            "cka_kv": share,
            "r2_v_from_k": None if layer == 2 else share,
            **({name: 0.5} if name else {}),
        },
        rank={"k": 13.0, "k_most": 17.0, "k_random": 15.0, "joint_kv_dims": (0, 1, 17), "joint_kv_energy": (0, 0.6, 1)}
        | {"k_spectrum": (1, share, 0.1), "k_dims": (1, 5, 17), "maps": 3.0, "k_activations": 9.0},
        circuits={
            "qk_symmetric": 0.5,
            "probe_token_k": share,
            "probe_token_k_random": 0.4,
            "probe_token_chance": 0.2,
            "probe_classes": 11.0,
        },
        attention={"entropy": 1.25, "before": share, "before_chance": 0.5, "before_without_terms": 0.4},
        sharing={"joint_predicted": share, "joint_loss": None if layer == 2 else share / 3, "dims": 40.0},
        heads={
            "similarity.overlap_kv": tuple(share / (head + 1) for head in range(HEADS)),
            "similarity.overlap_kv_random": (0.1,) * HEADS,
            "circuits.ov_copying": tuple(0.3 * head - 0.7 for head in range(HEADS)),
        },
    )


def synthetic_explanation(model="runs/made-up", text="", measure=""):
    """`text` stands in every place that takes any, and `measure` names a measure that nobody knows."""
    rows = tuple(tuple(1 / (query + 1) for _ in range(query + 1)) for query in range(TOKENS))
    return Explanation(
        model=model + text,
        variant=f"QKV{text}",
        architecture={"type": f"twofold{text}", "layers": 4, "width": 29},
        seed=3,
        text=TextRead(
            source=f"story.txt{text}", sha256="a" * 64, tokens=31, window=31, pieces=(f"once{text}", *"upon a"[:6])
        ),
        layers=tuple(layer_measures(layer, measure) for layer in LAYERS),
        maps=tuple(AttentionMap(layer=layer, head=head, weights=rows) for layer in LAYERS for head in range(HEADS)),
        cost=Cost(
            parameters=1_234_567,
            parameters_by_part={f"attention{text}": 1_234_567},
            macs={"total": 7_654_321},
            context=101,
            dtype="bfloat16",
            cache_bytes_per_token={f"QKV{text}": 928},
            cache_bytes={f"QKV{text}": 93_728},
        ),
        sharing=Sharing(
            baseline_loss=2.5,
            fitted_tokens=13,
            scored_tokens=17,
            correlations=(
                Correlation(method="joint", predictor="joint_predicted", layers=3, spearman=-0.25, low=-0.75, high=0.5),
                Correlation(
                    method="value_from_key", predictor=f"1{text}", layers=3, spearman=None, low=None, high=None
                ),
            ),
        ),
        notes=(f"made up{text}",),
        command=f"twofold explain made-up{text}",
        environment={"twofold": "0", "torch": f"2{text}"},
    )
