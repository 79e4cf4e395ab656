"""What was foretold of sharing keys and values against what it cost, one point for each layer."""

from __future__ import annotations

import plotly.graph_objects as go

from twofold.explain.record import Explanation, Sharing
from twofold.report.look import BLUE, ORANGE, styled

METHODS = {"joint": ("one matrix for both", BLUE, "circle"), "value_from_key": ("values from keys", ORANGE, "diamond")}
"""What a way to share is called, its colour and its mark."""
FORETOLD = (
    "Each point is a layer that shares alone: to the right what its weights and inputs foretell, upwards what the loss "
    "grows by. A measure that foretells well puts the points on a rising line."
)


def sharing_figure(one: Explanation) -> go.Figure:
    """Predicted against measured loss of sharing, a mark for each layer and way; empty where none was measured."""
    figure = go.Figure()
    for method, (said, colour, symbol) in METHODS.items():
        pairs = [
            (layer.layer, layer.number("sharing", f"{method}_predicted"), layer.number("sharing", f"{method}_loss"))
            for layer in one.layers
        ]
        whole = [(layer, foretold, lost) for layer, foretold, lost in pairs if None not in (foretold, lost)]
        if whole:
            layers, foretold, lost = zip(*whole, strict=True)
            figure.add_trace(
                go.Scatter(
                    x=foretold,
                    y=lost,
                    mode="markers",
                    name=said,
                    marker={"color": colour, "symbol": symbol, "size": 9},
                    customdata=layers,
                    hovertemplate="layer %{customdata}: foretold %{x:.4g}, measured %{y:.4g}<extra></extra>",
                )
            )
    figure.update_xaxes(title="predicted share lost", rangemode="tozero")
    figure.update_yaxes(title="nats per token")
    return styled(figure)


def correlations(sharing: Sharing) -> str:
    """Spearman's ρ of each way and what foretells it, with its interval, as a sentence; also where it is near 0."""
    said = []
    for found in sharing.correlations:
        name = METHODS.get(found.method, (found.method,))[0]
        if found.spearman is None or found.low is None or found.high is None:
            said.append(f"{name} by {found.predictor}: none of {found.layers} layers")
        else:
            said.append(f"{name} by {found.predictor}: {found.spearman:.2f} [{found.low:.2f}, {found.high:.2f}]")
    text = "; ".join(said).replace("-", "−")
    return f"Rank correlation (Spearman) with its 95 % interval over layers: {text}." if said else ""
