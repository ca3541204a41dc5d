"""What docs/ideas.md quotes stands in the files it names, what it shows works, and the Korean page agrees."""

import functools
import hashlib
import os
import re
import runpy
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "bench"
sys.path.append(str(BENCH))  # its files are scripts, which find each other beside themselves

import common  # noqa: E402
import ideas_tables  # noqa: E402

PAGES = {"en": ROOT / "docs" / "ideas.md", "ko": ROOT / "docs" / "ideas.ko.md"}
TEXT = {language: path.read_text(encoding="utf-8") for language, path in PAGES.items()}


def blocks(kind: str, text: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)


def commands(text: str) -> list[str]:
    return [line.split("#")[0].strip() for block in blocks("bash", text) for line in block.splitlines()]


COMMANDS = commands(TEXT["en"])


# --- what is quoted ---------------------------------------------------------------------------------------


def quotations(text: str) -> list[tuple[str, list[str]]]:
    """Each piece of code, and the files named since the last heading, of which one should hold it."""
    found = []
    for section in re.split(r"^#+ ", text, flags=re.MULTILINE):
        for match in re.finditer(r"```python\n(.*?)```", section, re.DOTALL):
            named = re.findall(r"\]\(\.\./(vitocr/[\w/]+\.py)\)", section[: match.start()])
            found += [(piece, named) for piece in re.split(r"^\.\.\.\n", match[1], flags=re.MULTILINE)]
    return found


def stands_in(piece: str, source: str) -> bool:
    """Whether these lines follow one another in the source, indented by any amount."""
    wanted = piece.rstrip("\n").splitlines()
    lines = source.splitlines()
    return any(
        textwrap.dedent("\n".join(lines[at : at + len(wanted)])).splitlines() == wanted for at in range(len(lines))
    )


@pytest.mark.parametrize(("piece", "files"), quotations(TEXT["en"]), ids=lambda value: str(value)[:40])
def test_quoted_code_stands_in_a_file_that_is_named(piece: str, files: list[str]) -> None:
    assert files, "a quotation names its file"
    assert any(stands_in(piece, (ROOT / file).read_text(encoding="utf-8")) for file in files), piece


def test_a_quotation_that_drifted_would_be_noticed() -> None:
    source = "def f():\n    a = 1\n    if a:\n        b = 2\n"
    assert stands_in("a = 1\nif a:\n    b = 2\n", source) and stands_in("b = 2\n", source)
    assert not stands_in("a = 1\nb = 2\n", source) and not stands_in("a = 2\n", source)


def test_both_languages_show_the_same() -> None:
    one, other = TEXT["en"], TEXT["ko"]
    assert commands(one) == commands(other)
    assert quotations(one) == quotations(other)
    assert blocks("math", one) == blocks("math", other)
    for shown in (r"^(#+) ", r"<!-- measured: (\w+) -->", r"!\[[^]]*\]\(([^)]+)\)"):
        assert re.findall(shown, one, re.MULTILINE) == re.findall(shown, other, re.MULTILINE)


@pytest.mark.parametrize("language", PAGES)
def test_every_link_leads_somewhere(language: str) -> None:
    text = TEXT[language]
    headings = [
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    ]
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings, target
        else:
            assert (PAGES[language].parent / target).exists(), target


@pytest.mark.parametrize("language", PAGES)
def test_the_tables_are_what_the_records_say(language: str) -> None:
    """After a bench: python bench/ideas_tables.py"""
    assert ideas_tables.filled(TEXT[language], language, ROOT / "docs" / "records") == TEXT[language]


# --- what is commanded ------------------------------------------------------------------------------------

IMAGES_A_CLASS = {"train": 40, "test": 2}
LIMITS = {  # of the scripts; what is given later counts
    "attention_scaling.py": "--kinds strided --lengths 512 1024 --rounds 1 --seconds 0 --threads 1",
    "recompute.py": "--backbone vit_micro --depth 2 --batch 2 --size 16 --rounds 1 --steps 1 --threads 1",
    "pretraining.py": "--seeds 1 --jobs 1",
    "options.py": "--seeds 1 --only smoothing --jobs 1",
    "looks.py": "--words 3",
}


def limited(words: Sequence[str]) -> list[str]:
    """The same run, only two steps of a tiny model long."""
    words = [word for word in words if not word.startswith(("budget=", "steps=", "val_every="))]
    for group in ("trainer=cpu", "logger=none"):
        words += [group] if group not in words else []
    words += ["steps=2", "batch_size=8", "eval_batch_size=16", "trainer.threads=1", "trainer.precision=32-true"]
    crnn = "backbone=crnn" in words
    words += ["backbone.hidden=8"] if crnn else ["backbone.dim=24", "backbone.depth=1", "backbone.heads=2"]
    task = next(word for word in words if word.startswith("task=")).removeprefix("task=")
    if task.startswith("pretrain"):
        words += ["head.width=24", "head.heads=2", "head.depth=1"]
    if task in ("str", "pretrain_words"):
        words += ["render.cache=null", "render.rows=24"]
    return [*words, "data.val_size=4" if task in ("str", "pretrain_words") else "data.val_size=10"]


def train_here(folder: Path, words: Sequence[str], core: int | None = None) -> subprocess.Popen[bytes]:
    """In place of common.start_training: the same run without the seconds that a new process takes to import torch."""
    from vitocr.train import main

    folder.mkdir(parents=True, exist_ok=True)
    main(limited([*words, f"run_dir={folder}"]))
    return subprocess.Popen(["true"])


class Workshop:
    """A folder in which the commands of the page are run, each once, those first that it builds on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.left: dict[str, set[tuple[Path, int]]] = {}

    def files(self) -> set[tuple[Path, int]]:
        return {(path, path.stat().st_mtime_ns) for path in self.folder.rglob("*") if path.is_file()}

    def run(self, line: str) -> set[tuple[Path, int]]:
        """The files that the command wrote, and when."""
        if line in self.left:
            return self.left[line]
        words = shlex.split(line)
        for needed in re.findall(r"(?<!run_dir=)\bruns/[\w-]+", line):
            self.run(next(other for other in COMMANDS if other.endswith(f"run_dir={needed}")))
        files = self.files()
        if words[:2] == ["python", "train.py"]:
            from vitocr.train import main

            before = set(self.folder.glob("runs/**/metrics.json"))
            main(limited(words[2:]))
            assert len(set(self.folder.glob("runs/**/metrics.json")) - before) == 1
        elif words[0] == "python":
            script = ROOT / words[1]
            sys.argv = [str(script), *words[2:], *LIMITS.get(script.name, "").split()]
            runpy.run_path(str(script), run_name="__main__")
        else:
            from vitocr.cli import main as vitocr_command

            assert words[0] == "vitocr"
            try:
                vitocr_command(words[1:])
            except SystemExit as left:
                assert not left.code
            assert (self.folder / words[words.index("--out") + 1] / "index.html").exists()
        self.left[line] = self.files() - files
        return self.left[line]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    import vitocr.data.cifar10 as cifar10
    import vitocr.training.pretrain as pretrain

    folder = tmp_path_factory.mktemp("workshop")
    (folder / "data" / "cifar10").mkdir(parents=True)
    (folder / "docs" / "records").mkdir(parents=True)
    random, arrays = np.random.default_rng(0), {}
    for split, each in IMAGES_A_CLASS.items():
        labels = (np.arange(10 * each) % 10).astype(np.uint8)
        arrays[f"{split}_labels"] = labels
        arrays[f"{split}_images"] = random.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8)
    for name, array in arrays.items():
        np.save(folder / "data" / "cifar10" / f"{name}.npy", array)
    sha256 = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in arrays.items()}
    small = cifar10.Edition(per_class=IMAGES_A_CLASS, sha256=sha256)
    Image.fromarray(arrays["test_images"][0]).save(folder / "photo.png")
    word = Image.new("RGB", (128, 32), "white")
    ImageDraw.Draw(word).text((8, 2), "vitocr", fill="black", font=ImageFont.load_default(22))
    word.save(folder / "word.png")
    for path in PAGES.values():
        (folder / "docs" / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")

    environment, argv, load = dict(os.environ), sys.argv, cifar10.load_cifar10

    @functools.wraps(load)
    def load_small(*args, **kwargs):  # type: ignore[no-untyped-def]
        return load(*args, edition=small, download=False, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(cifar10, "load_cifar10", load_small)
        patch.setattr(pretrain, "load_cifar10", load_small)
        patch.setattr(common, "start_training", train_here)
        yield Workshop(folder)
    sys.argv = argv
    os.environ.clear()
    os.environ.update(environment)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_runs_as_written(line: str, workshop: Workshop) -> None:
    assert workshop.run(line), "it left nothing behind"


def test_what_the_benches_measured_is_what_the_page_then_says(workshop: Workshop) -> None:
    for line in COMMANDS:
        if line.startswith("python bench/"):
            workshop.run(line)
    for language in PAGES:
        page = (workshop.folder / "docs" / PAGES[language].name).read_text(encoding="utf-8")
        said = {match[2]: match[0] for match in ideas_tables.BLOCK.finditer(page)}
        missing = ideas_tables.LANGUAGES[language]["missing"].split("{")[0]
        for name in ("scaling", "recompute", "pretraining", "looks", "smoothing"):
            assert "| -: |" in said[name] and missing not in said[name], said[name]
        for picture in ("scaling", "pretraining", "options"):
            assert f"](records/ideas/{picture}.png)" in page
            assert (workshop.folder / "docs" / "records" / "ideas" / f"{picture}.png").exists()
