"""The sections of `abstim validate` and `abstim bench`: predicted against measured cycles, and speed by stage."""

from typing import Any

from bokeh.models import ColumnDataSource, NumeralTickFormatter, Span, TeeHead, Whisker

from abstim.brief import grouped
from abstim.show.report.chart import COLORS, Chart, Section, Table, dots, figure, stacked_bars
from abstim.show.tables import counted, duration, quantity
from abstim.study.bench import geomean

Rows = list[dict[str, Any]]


def validation_section(name: str, data: dict[str, Any]) -> Section:
    """`data`: `Validation.to_json`."""
    found = data["benchmarks"]
    charts = [_scatter_chart(found), _error_chart(found, data["summaries"])] if found else []
    return Section(f"Validation {name}", [("Comparisons", quantity(len(found)))], charts, list(data["skipped"]))


_NAME, _ERROR = ("benchmark", "@benchmark on @variant"), ("error", "@error{+0.00%}")


def _scatter_chart(found: Rows) -> Chart:
    tooltips = [_NAME, ("measured", "@measured_cycles{0,0}"), ("predicted", "@predicted_cycles{0,0}"), _ERROR]
    plot = figure("measured cycles", "predicted cycles", tooltips, x_axis_type="log", y_axis_type="log")
    cycles = [row[key] for row in found for key in ("measured_cycles", "predicted_cycles")]
    ends = [min(cycles) / 1.5, max(cycles) * 1.5]
    plot.line(ends, ends, color=COLORS[6], line_width=1)
    mean = sum(abs(row["error"]) for row in found) / len(found)
    worst = max(found, key=lambda row: abs(row["error"]))
    summary = f"Mean absolute error {mean:.2%}; the worst is {worst['benchmark']} on {worst['variant']} "
    summary += f"with {worst['error']:+.2%}. On the line prediction and measurement are equal."
    columns = "benchmark | group | variant | measured cycles | predicted cycles | error: {error:+.2%}"
    shown = dots(plot, found, "measured_cycles", "predicted_cycles", "variant", alpha=0.7)
    return Chart("Predicted against measured cycles", summary, shown, Table.of(columns, found))


def _error_chart(found: Rows, summaries: Rows) -> Chart:
    plot = figure("benchmark", "error", [_NAME, _ERROR], x_range=list(dict.fromkeys(row["benchmark"] for row in found)))
    plot.yaxis.formatter = NumeralTickFormatter(format="0.0%")
    summary = "; ".join(f"{s['variant']} {s['group']}: mean {s['mean_error']:.2%}" for s in summaries) + "."
    columns = "variant | group | benchmarks | mean: {mean_error:.2%} | median: {median_error:.2%} "
    columns += "| max: {max_error:.2%} | worst"
    shown = dots(plot, found, "benchmark", "error", "variant", alpha=0.7)
    return Chart("Error of every benchmark", summary, shown, Table.of(columns, summaries))


Bench = dict[str, Any]  # `BenchResult.to_json`


def bench_section(data: Bench) -> Section:
    """One result of `abstim bench`."""
    machine = data["machine"]
    facts = [("Memory", data.get("memory_model", "not said"))]
    facts += [("Processor", f"{machine['processor']}, {machine['cpus']} CPUs"), ("abstim", machine["abstim"])]
    for stage, mean in data["geomean"].items():
        facts.append((f"{stage}, geometric mean", f"{quantity(mean['thread_mips'])} thread MIPS"))
    charts = [_speed_chart(data), _share_chart(data), *(_against_charts(data["against"]) if data["against"] else ())]
    charts += [_compare_chart(data["compare"])] if data.get("compare") else []
    points = counted(data["points"], "design point", "design points")
    return Section(f"Speed of abstim on {data['gpu']}, {points}", facts, charts)


def _dots(rows: Rows, key: str, what: str, form: str, series: str, scale: str = "log") -> Any:
    """A figure with a dot for a field of each row, above the row's benchmark."""
    tooltips = [("benchmark", "@benchmark"), (what, f"@{key}{{{form}}}"), ("", f"@{series}")]
    names = list(dict.fromkeys(row["benchmark"] for row in rows))
    return dots(figure("benchmark", what, tooltips, x_range=names, y_axis_type=scale), rows, "benchmark", key, series)


def _speed_chart(data: Bench) -> Chart:
    stages = [(name, stage, own) for name, found in data["benchmarks"].items() for stage, own in found.items()]
    rows = [{"benchmark": name, "stage": stage} | own for name, stage, own in stages]
    summary = "Represented thread instructions a second by stage, in millions; geometric means: "
    summary += ", ".join(f"{stage} {quantity(m['thread_mips'])}" for stage, m in data["geomean"].items()) + "."
    columns = (
        "benchmark | stage | median: {seconds:time} | MAD: {mad_seconds:time} | thread MIPS: {thread_mips} "
        "| warp MIPS: {warp_mips} | stepped thread: {stepped_thread_mips} | stepped warp: {stepped_warp_mips}"
    )
    plot = _dots(rows, "thread_mips", "thread MIPS", "0,0.0", "stage")
    return Chart("Speed of every stage", summary, plot, Table.of(columns, rows))


def _share_chart(data: Bench) -> Chart:
    found, stages = data["benchmarks"], list(data["geomean"])
    seconds = {name: [own[s]["seconds"] if s in own else 0.0 for s in stages] for name, own in found.items()}
    parts = {s: [row[k] / sum(row) for row in seconds.values()] for k, s in enumerate(stages)}
    colors = dict(zip(stages, COLORS, strict=False))
    plot = stacked_bars("benchmark", "share of the time", list(found), parts, colors, "share")
    whole = [sum(column) for column in zip(*seconds.values(), strict=True)]
    shares = ", ".join(f"{stage} {own / sum(whole):.0%}" for stage, own in zip(stages, whole, strict=True))
    rows = [(name, *map(duration, row)) for name, row in seconds.items()]
    summary = f"Where abstim's own time goes, all benchmarks: {shares}."
    return Chart("Where abstim's time goes", summary, plot, Table(("benchmark", *stages), rows))


def _against_charts(rows: Rows) -> list[Chart]:
    columns = (
        "benchmark | variant | measured: {measured_cycles} | predicted: {predicted_cycles} | error: {error:+.2%} "
        "| reference: {reference_seconds:time} | abstim: {seconds:time} "
        "| with parsing and characterising: {all_seconds:time} | speed-up: {speedup} | thread MIPS: {thread_mips}"
    )
    table, variants = Table.of(columns, rows), grouped(rows, lambda row: row["variant"])
    errors = [f"{name} {sum(abs(r['error']) for r in own) / len(own):.2%}" for name, own in variants.items()]
    speeds = [f"{name} {quantity(geomean([r['speedup'] for r in own]))}x" for name, own in variants.items()]
    in_percent = [row | {"error": 100 * row["error"]} for row in rows]
    plot = _dots(in_percent, "error", "error in %", "+0.00", "variant", "linear")
    speed_plot = _dots(rows, "speedup", "times as fast as the reference", "0,0.0", "variant")
    said, speed = f"Mean absolute error: {', '.join(errors)}.", f"Geometric mean of the speed-up: {', '.join(speeds)}."
    error_chart = Chart("Error against the reference", said, plot, table)
    return [error_chart, Chart("Speed-up over the reference", speed, speed_plot, table)]


def _compare_chart(verdicts: Rows) -> Chart:
    names = [v["stage"] for v in verdicts]
    plot = figure("stage", "speed against the earlier result", [("stage", "@x"), ("speed", "@y{0.000}")], x_range=names)
    known = [v for v in verdicts if v["low"] is not None]
    plot.scatter(names, [v["speed"] for v in verdicts], size=10, color=COLORS[0])
    ends = ColumnDataSource({key: [v[key] for v in known] for key in ("stage", "low", "high")})
    head = TeeHead(line_color=COLORS[0], size=10)  # else black, on dark paper too
    style = {"line_color": COLORS[0], "lower_head": head, "upper_head": head}
    plot.add_layout(Whisker(base="stage", lower="low", upper="high", source=ends, **style))
    plot.add_layout(Span(location=1, dimension="width", line_color=COLORS[6]))
    summary = "; ".join(f"{v['stage']}: {v['verdict']} ({v['speed']:.3f}x)" for v in verdicts) + "."
    table = Table.of("stage | verdict | speed | low | high | old MAD: {old_mad} | new MAD: {new_mad}", verdicts)
    return Chart("Against the earlier result", summary, plot, table)
