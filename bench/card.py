"""The model card that ships beside a model: made of what `ship.py` measured, never of figures typed by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import markdown

from vitocr.errors import UserError

PROTOCOLS = {
    "36": "letters and digits, case ignored",
    "62": "with case",
    "94": "with punctuation",
    "exact": "all of it",
}
LENGTHS = ((1, 5), (6, 9), (10, 99))  # of words, in characters
LICENCES = {  # of what a model was trained on, by the name of the source
    "render": "Rendered words: the word list SCOWL (free, with its notice), names of the US census (public domain), "
    "words of signs written for this project. {fonts}",
    "blanks": "Crops without text: drawn, and pieces of CIFAR-10's training images (see below).",
    "words": "Photographed words: the training parts of IIIT5k-Words, SVT and ICDAR 2015, which their makers published "
    "for research; the photographs belong to those who took them. The weights contain none of them; who wants to be "
    "certain for another use asks there, or trains on words of their own by the same command.",
    "cifar10": "CIFAR-10 (Krizhevsky 2009), a labelled part of 80 Million Tiny Images. Its makers state no licence; "
    "the photographs were collected from the web and belong to those who took them.",
}
TEXT_LIMITS = (
    "One word or a short line a picture, cut out already: it does not find text in a photograph.",
    "Latin letters, digits and punctuation only; accents are read as the bare letter or as something else.",
    "Handwriting was not among what it learned from, beyond fonts that look like it.",
    "It guesses at what is unreadable. How sure it is stands beside every reading; what is below the threshold is "
    "withheld as an empty text.",
)
CLASS_LIMITS = (
    "It knows these ten classes and nothing else: whatever it is shown is given one of them.",
    "It was trained on pictures of 32x32 pixels that one object fills. Larger ones are made that small first.",
)


def card(told: Mapping[str, Any]) -> str:
    """told: what `ship.measure` returns."""
    parts = (heading(told), limits(told), accuracy(told), mistakes(told), confidence(told), making(told), storage(told),
             licences(told))  # fmt: skip
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def heading(told: Mapping[str, Any]) -> str:
    description = told["description"]
    height, width = description["preprocess"]["size"]
    codec = description["codec"]
    if description["kind"] == "text":
        written = "".join(codec["characters"])
        what = (
            f"Reads words, up to {description['model']['head']['max_length']} characters of these "
            f"{len(codec['characters'])}:\n\n    {written}"
        )
    else:
        what = f"Tells {len(codec['names'])} classes apart: {', '.join(codec['names'])}."
    return f"""# {told["name"]}

{what}

{told["parameters"] / 1e6:.2f} M parameters, {told["bytes"] / 1e6:.1f} MB. Pictures are brought to {height}x{width}.

```bash
vitocr predict {told["name"]} photo.png
```"""


def limits(told: Mapping[str, Any]) -> str:
    lines = TEXT_LIMITS if told["description"]["kind"] == "text" else CLASS_LIMITS
    return "## What it does not do\n\n" + "\n".join(f"- {line}" for line in lines)


def accuracy(told: Mapping[str, Any]) -> str:
    figures, out = told["figures"], "## How good it is\n\n"
    if told["description"]["kind"] == "text":
        rows = [
            [name, f"{each['n']:,}", *(_interval(each["accuracy"][p], each["accuracy_95"][p]) for p in PROTOCOLS),
             f"{100 * each['ece']:.2f} %", f"{each['words_per_second']:.0f}"]
            for name, each in figures.items()
        ]  # fmt: skip
        out += markdown(["set", "words", *PROTOCOLS, "calibration error", "words/s"], rows)
        out += f"\nRight words in per cent, with 95 % bootstrap intervals, by protocol ({_listed(PROTOCOLS)}). "
    else:
        rows = [
            [name, f"{each['images']:,}", _interval(each["accuracy"], each["accuracy_95"]),
             f"{100 * each['ece']:.2f} %", f"{each['nll']:.4f}", f"{each['images_per_second']:.0f}"]
            for name, each in figures.items()
        ]  # fmt: skip
        out += markdown(["set", "images", "accuracy", "calibration error", "nats", "images/s"], rows)
        out += "\nAccuracy in per cent with its 95 % bootstrap interval, no test-time augmentation. "
    seen = told["cores"]
    return out + f"Speed: on {seen} core{'s' * (seen > 1)} of the machine named below, decoding included."


def mistakes(told: Mapping[str, Any]) -> str:
    """Where it errs, in the figures of all sets together."""
    if told["description"]["kind"] != "text":
        shares = next(iter(told["figures"].values()))["per_class"]
        ordered = sorted(shares.items(), key=lambda item: item[1])
        return "By class: " + ", ".join(f"{name} {100 * share:.1f} %" for name, share in ordered) + "."
    lengths, counts = [], {}
    for low, high in LENGTHS:
        cells = [
            cell for each in told["figures"].values()
            for length, cell in each["by_length"].items() if low <= int(length) <= high
        ]  # fmt: skip
        number = sum(cell["n"] for cell in cells)
        if number:
            share = sum(cell["n"] * cell["accuracy"] for cell in cells) / number
            lengths.append(f"{low} to {high}" if high < 99 else f"{low} and more")
            lengths[-1] += f" characters {100 * share:.1f} % of {number:,}"
    for each in told["figures"].values():
        for confusion in each["confusions"]:
            pair = confusion["label"], confusion["read"]
            counts[pair] = counts.get(pair, 0) + confusion["count"]
    worst = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:12]
    shown = ", ".join(f"`{was or '·'}` as `{read or '·'}` {count}" for (was, read), count in worst)
    return f"By length: {'; '.join(lengths)}.\n\nMost often misread (· is nothing): {shown}."


def confidence(told: Mapping[str, Any]) -> str:
    calibration = told["description"].get("calibration")
    out = f"## Confidence\n\n![confidence against accuracy]({told['name']}.png)\n\n"
    if calibration and "scale" in calibration:
        out += (
            f"Fitted on {calibration['words']:,} words that were held back from training: logit(p) becomes "
            f"{calibration['scale']:.3f} logit(p) {calibration['shift']:+.3f}. Readings less sure than "
            f"{calibration['threshold']:.3f} are withheld unless `--threshold` says otherwise."
        )
        if "presence" in calibration:
            out += (
                " Where it is less likely than not that there is any text at all, the odds are a factor of the "
                "confidence: a logistic regression on the mean of the tokens tells them, fitted on these words, "
                "rendered ones and images without text."
            )
        out += "\n\n"
    elif calibration:
        out += (
            f"Temperature {calibration['temperature']:.3f}, fitted on {calibration['images']:,} held-back images.\n\n"
        )
    else:
        out += "It was not calibrated: confidences are the model's own.\n\n"
    out += thresholds(told)
    if told.get("blanks"):
        rows = [
            [kind, f"{each['n']:,}", f"{each['not_empty']:,}", _interval(each["share"], each["share_95"])]
            for kind, each in told["blanks"].items()
        ]
        out += "Crops without any text (`bench/blanks.py`), and how many it read something in all the same:\n\n"
        out += markdown(["crops", "number", "not empty", "per cent"], rows)
    return out


def thresholds(told: Mapping[str, Any]) -> str:
    """Which threshold keeps the share of wrong answers down, and how much is still answered then."""
    rows = [
        [name, f"{100 * point['wanted']:.0f} %", f"{point['threshold']:.3f}", f"{100 * point['kept']:.1f} %"]
        for name, each in told["figures"].items()
        for point in each.get("thresholds", [])
        if point["threshold"] is not None
    ]
    if not rows:
        return ""
    heading = ["set", "wrong answers at most", "threshold", "answers kept"]
    return "Thresholds for those who want fewer wrong answers:\n\n" + markdown(heading, rows) + "\n"


def making(told: Mapping[str, Any]) -> str:
    provenance, train = told["description"]["provenance"], told["train"]
    machine = provenance["hardware"]
    where = machine["gpu"] or f"{machine['cores']} core{'s' * (machine['cores'] > 1)} of {machine['cpu']}, no GPU"
    commit = f"commit `{provenance['git']}`, " if provenance.get("git") else ""
    before = "".join(f"    {command}\n\nmade a model, and from that began\n\n" for command in told["before"])
    parts = [f"{100 * part['share']:.0f} % of {part['name']}" for part in provenance.get("mean_of", [])]
    whole = f"\nThe weights are a mean (`vitocr average`): {', '.join(parts)}, which is the run of that command.\n"
    mean = whole if parts else ""
    return f"""## How it was made

{before}    {told["command"]}
{mean}
{_duration(train["seconds"])}, {train["steps"]:,} steps, {train["images_seen"]:,} images, on {where}; {commit}torch
{machine["torch"]}, vitocr {told["description"]["vitocr"]}. The file's own description holds the whole configuration:
`vitocr.load("{told["name"]}").description`."""


def storage(told: Mapping[str, Any]) -> str:
    compared = told["compared"]
    return (
        f"Matrices are stored as {told['storage']} and computed with in single precision. Of {compared['answers']:,} "
        f"answers {compared['different']:,} differ from those of the run's own file; confidences by at most "
        f"{compared['confidence']:.1g}."
    )


def licences(told: Mapping[str, Any]) -> str:
    notes = [LICENCES[name].format(fonts=told["fonts"]) for name in told["sources"] if name in LICENCES]
    if "blanks" in told["sources"]:
        notes.append(LICENCES["cifar10"])
    unknown = [name for name in told["sources"] if name not in LICENCES]
    if unknown and not told["notes"]:
        raise UserError(f"It was trained on {', '.join(unknown)}, of unknown licence: tell what is known by --note.")
    notes += told["notes"]
    mine = "The weights come under vitocr's own licence (MIT), as far as it is ours to give."
    return "## Licences\n\n" + "\n".join(f"- {note}" for note in [*dict.fromkeys(notes), mine])


def count_fonts(folders: Iterable[Path]) -> str:
    """Which licences the families below these folders carry, from the files that came with them."""
    marks = {
        "SIL Open Font License": "sil open font",
        "Apache License": "apache license",
        "Ubuntu Font Licence": "ubuntu font licence",
        "MIT License": "mit license",
    }
    counts: dict[str, int] = {}
    for family in (entry for folder in folders for entry in sorted(folder.iterdir()) if entry.is_dir()):
        files = [file for file in family.iterdir() if file.suffix in (".txt", "") and file.is_file()]
        text = " ".join(file.read_text(encoding="utf-8", errors="replace").lower() for file in files)
        licence = next((name for name, mark in marks.items() if mark in text), "no licence file")
        counts[licence] = counts.get(licence, 0) + 1
    packages = "Fonts: those that come as Python packages with vitocr (SIL OFL and Apache)"
    if not counts:
        return packages + "."
    listed = ", ".join(f"{count} under the {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
    listed = listed.replace("under the no licence file", "whose package has no licence file")
    return f"{packages} and {sum(counts.values())} families of Google Fonts: {listed}. No font is in the weights."


def _interval(share: float, ends: Sequence[float]) -> str:
    return f"{100 * share:.2f} ({100 * ends[0]:.1f} to {100 * ends[1]:.1f})"


def _listed(meanings: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {meaning}" for name, meaning in meanings.items())


def _duration(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} minutes"
