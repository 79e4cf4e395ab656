"""Figures of a study of tasks: scores, their parts, how they came about, and what a sweep tried."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from twofold.report.look import BLUE, LINES, NEUTRAL, ORANGE, error_bars, plain, styled, sweep_marker
from twofold.report.trials import part_names
from twofold.study.contrast import Interval, t_interval
from twofold.study.sweep import point_text, value_text
from twofold.trials.published import SOURCE
from twofold.trials.record import TaskRun
from twofold.trials.results import TaskResults, TaskSummary, TriedPoint

SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star", "hexagon")


def scores_figure(task: TaskResults) -> go.Figure:
    """Test score with its 95 % interval over seeds, the published score as another mark, and the score asked for.

    Bars end at 0 and 1, beyond which no score lies; the hover text has the whole interval.
    """
    shown = task.summary[::-1]
    figure = go.Figure()
    if shown:
        figure.add_trace(_scores(shown, task.metric))
    published = [one for one in shown if one.published is not None]
    if published:
        figure.add_trace(_published(published))
    if task.threshold is not None and task.deciding_part is None and shown:
        figure.add_vline(x=task.threshold, line=_asked_line())
    figure.update_xaxes(title=f"{task.metric} on the test set{_dashes(task, task.deciding_part is None)}")
    order = [plain(one.label) for one in shown]
    figure.update_yaxes(categoryorder="array", categoryarray=order, range=[-0.6, len(order) - 0.4])
    return styled(figure)


def parts_figure(tasks: Sequence[TaskResults]) -> go.Figure:
    """Test score against the part (for recall, the number of pairs), a panel for each task that has parts.

    One line for each variant, with 95 % intervals over seeds.
    """
    tasks = [task for task in tasks if part_names(task)]
    if not tasks:
        return go.Figure()
    titles = [plain(task.name) for task in tasks] if len(tasks) > 1 else None
    columns = min(len(tasks), 2)
    rows = -(-len(tasks) // columns)
    figure = make_subplots(rows, columns, subplot_titles=titles, shared_yaxes=True)
    look = _looks_of([one.label for task in tasks for one in task.summary])
    named: set[str] = set()
    for index, task in enumerate(tasks):
        row, column = index // columns + 1, index % columns + 1
        for one in task.summary:
            figure.add_trace(_part_line(task, one, look[one.label], one.label not in named), row, column)
            named.add(one.label)
        if task.threshold is not None and task.deciding_part is not None:
            figure.add_hline(y=task.threshold, line=_asked_line(), row=row, col=column)
        _part_axis(figure, task, row, column)
    asked = any(task.threshold is not None and task.deciding_part is not None for task in tasks)
    figure.update_yaxes(title=f"{tasks[0].metric}{_dashes(tasks[0], asked)}", col=1)
    figure = styled(figure)
    if titles:
        figure.update_layout(legend_y=1.06)
    return figure


def curves_figure(task: TaskResults) -> go.Figure:
    """Training loss in nats per answer against steps, of each variant's first seed."""
    first = {run.label: run for run in reversed(task.runs)}
    look = _looks_of([one.label for one in task.summary] + [run.label for run in task.runs])
    figure = go.Figure()
    for label in look:
        run = first.get(label)
        if run and run.curve:
            last = run.looks[-1].step if run.looks else task.steps  # there is a look at the end
            steps = [round(point.tokens * last / max(run.curve[-1].tokens, 1)) for point in run.curve]
            figure.add_trace(_line(run, steps, [point.loss for point in run.curve], look[label], True))
    figure.update_xaxes(title="training steps")
    figure.update_yaxes(title="training loss, nats per answer")
    return styled(figure)


def looks_figure(task: TaskResults) -> go.Figure:
    """Score on validation examples against training steps, one line for each reported run."""
    figure = go.Figure()
    look = _looks_of([one.label for one in task.summary] + [run.label for run in task.runs])
    named: set[str] = set()
    for run in task.runs:
        if run.looks:
            steps, scores = [one.step for one in run.looks], [one.score for one in run.looks]
            figure.add_trace(_line(run, steps, scores, look[run.label], run.label not in named))
            named.add(run.label)
    if task.threshold is not None and task.deciding_part is None and figure.data:
        figure.add_hline(y=task.threshold, line=_asked_line())
    figure.update_xaxes(title="training steps")
    figure.update_yaxes(title=f"{task.metric} on validation examples")
    return styled(figure)


def sweep_figure(task: TaskResults) -> go.Figure:
    """Validation score against the first swept number, one line for each variant and values of the other keys."""
    figure = go.Figure()
    keys = task.sweep[0].point if task.sweep else {}
    numeric = (key for key in keys if all(_is_number(one.point.get(key)) for one in task.sweep))
    key = next(numeric, None)
    if key is None:
        return figure
    look = _looks_of([one.label for one in task.summary] + [one.label for one in task.sweep])
    lines: dict[tuple[str, str], list[TriedPoint]] = {}
    for one in task.sweep:
        rest = point_text({name: value for name, value in one.point.items() if name != key})
        lines.setdefault((one.label, rest), []).append(one)
    for (label, rest), tries in lines.items():
        scored = sorted((one for one in tries if one.score is not None), key=lambda one: one.point[key])
        if scored:
            name = plain(f"{label}, {rest}" if rest else label)
            figure.add_trace(_sweep_line(name, [one.point[key] for one in scored], scored, look[label]))
    ticks = sorted({one.point[key] for one in task.sweep})
    words = plain(key.partition(".")[2].replace("_", " "))
    logarithmic = ticks[0] > 0
    figure.update_xaxes(title=f"{words} (log scale)" if logarithmic else words, type="log" if logarithmic else "linear")
    figure.update_xaxes(tickvals=ticks, ticktext=[value_text(tick) for tick in ticks])
    figure.update_yaxes(title=f"{task.metric} on validation examples")
    return styled(figure)


def _scores(shown: Sequence[TaskSummary], metric: str) -> go.Scatter:
    bounds = [one.interval or (one.score.mean,) * 2 for one in shown]
    above = [max(0.0, min(high, 1.0) - one.score.mean) for one, (_, high) in zip(shown, bounds, strict=True)]
    below = [max(0.0, one.score.mean - max(low, 0.0)) for one, (low, _) in zip(shown, bounds, strict=True)]
    return go.Scatter(
        x=[one.score.mean for one in shown],
        y=[plain(one.label) for one in shown],
        error_x=error_bars(above, below) | {"color": BLUE},
        mode="markers",
        name="this study, 95 % interval over seeds",
        marker={"symbol": "circle", "size": 11, "color": BLUE},
        hovertext=[f"{plain(one.label)}: {metric} {_with_interval(one.score.mean, one.interval)}" for one in shown],
        hoverinfo="text",
    )


def _published(shown: Sequence[TaskSummary]) -> go.Scatter:
    return go.Scatter(
        x=[one.published for one in shown],
        y=[plain(one.label) for one in shown],
        mode="markers",
        name=SOURCE,
        marker={"symbol": "diamond-open", "size": 11, "color": ORANGE, "line": {"width": 2}},
        hovertemplate="%{y}, " + SOURCE + ": %{x:.3f}<extra></extra>",
    )


def _part_line(task: TaskResults, one: TaskSummary, look: dict[str, str], named: bool) -> go.Scatter:
    parts = part_names(task)
    means = [one.parts[part].mean for part in parts]
    intervals = [_part_interval(task, one.label, part) for part in parts]
    bounds = [interval or (mean, mean) for mean, interval in zip(means, intervals, strict=True)]
    above = [max(0.0, min(high, 1.0) - mean) for mean, (_, high) in zip(means, bounds, strict=True)]
    below = [max(0.0, mean - max(low, 0.0)) for mean, (low, _) in zip(means, bounds, strict=True)]
    name = plain(one.label)
    said = [f"{name}, {plain(p)}: {_with_interval(m, i)}" for p, m, i in zip(parts, means, intervals, strict=True)]
    colour = look["color"]
    return go.Scatter(
        x=_abscissae(parts),
        y=means,
        error_y=error_bars(above, below) | {"color": colour},
        mode="lines+markers",
        line={"color": colour, "dash": look["dash"], "width": 1.8},
        marker={"color": colour, "symbol": look["symbol"], "size": 8},
        name=name,
        legendgroup=name,
        showlegend=named,
        hovertext=said,
        hoverinfo="text",
    )


def _part_interval(task: TaskResults, label: str, part: str) -> Interval | None:
    values = [run.test.parts[part] for run in task.runs if run.label == label and run.test and part in run.test.parts]
    return t_interval(values) if len(values) > 1 else None


def _part_axis(figure: go.Figure, task: TaskResults, row: int, column: int) -> None:
    parts = part_names(task)
    counts = _counts(parts)
    if counts is None:
        figure.update_xaxes(type="category", row=row, col=column)
        return
    words = parts[-1].partition(" ")[2]
    figure.update_xaxes(title=f"{plain(words)} (log scale)", type="log", row=row, col=column)
    figure.update_xaxes(tickvals=counts, ticktext=[f"{count:,}" for count in counts], row=row, col=column)


def _abscissae(parts: Sequence[str]) -> list[int] | list[str]:
    return _counts(parts) or [plain(part) for part in parts]


def _counts(parts: Sequence[str]) -> list[int] | None:
    """[4, 8] of "4 pairs" and "8 pairs"; None where not every part begins with a positive number."""
    starts = [part.partition(" ")[0] for part in parts]
    return [int(start) for start in starts] if all(s.isascii() and s.isdigit() and int(s) for s in starts) else None


def _line(run: TaskRun, steps: list[int], values: list[float], look: dict[str, str], named: bool) -> go.Scatter:
    name = plain(run.label)
    return go.Scatter(
        x=steps,
        y=values,
        mode="lines",
        line={"color": look["color"], "dash": look["dash"], "width": 1.8},
        name=name,
        legendgroup=name,
        showlegend=named,
        hovertemplate=f"{name}, seed {run.seed}, step %{{x}}: %{{y:.4f}}<extra></extra>",
    )


def _sweep_line(name: str, places: list[float], tries: Sequence[TriedPoint], look: dict[str, str]) -> go.Scatter:
    return go.Scatter(
        x=places,
        y=[one.score for one in tries],
        mode="lines+markers",
        line={"color": look["color"], "dash": look["dash"], "width": 1.8},
        marker=sweep_marker(look["color"], [one.chosen for one in tries]),
        name=name,
        hovertemplate=f"{name}, %{{x}}: %{{y:.4f}}<extra></extra>",
    )


def _looks_of(labels: Sequence[str]) -> dict[str, dict[str, str]]:
    """Each label's colour, dash and symbol, in the order in which they come first."""
    distinct = dict.fromkeys(labels)
    return {
        label: LINES[index % len(LINES)] | {"symbol": SYMBOLS[index % len(SYMBOLS)]}
        for index, label in enumerate(distinct)
    }


def _with_interval(mean: float, interval: Interval | None) -> str:
    return f"{mean:.4f}" + (f"<br>95 % interval {interval[0]:.4f} to {interval[1]:.4f}" if interval else "")


def _asked_line() -> dict[str, str | float]:
    return {"color": NEUTRAL, "width": 1.4, "dash": "dash"}


def _dashes(task: TaskResults, drawn: bool) -> str:
    """Names the dashed line on the axis, where there is one."""
    return f" (dashes: {task.threshold:g} is asked)" if drawn and task.threshold is not None else ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
