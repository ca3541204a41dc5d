"""The benches of options, recomputation and attention: what they run, what they count, and what they make of it."""

import json
import os
import signal
import sys
import time
from argparse import Namespace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

BENCH = Path(__file__).parents[1] / "bench"
sys.path.append(str(BENCH))  # its files are scripts, which find each other beside themselves

import common  # noqa: E402
import ideas_tables  # noqa: E402
import looks  # noqa: E402
import options  # noqa: E402
import recompute  # noqa: E402

TRAINER = """
import json, os, sys, time
from pathlib import Path
options = dict(word.split("=", 1) for word in sys.argv[1:])
if "fail" in options: sys.exit("no such thing")
held = b"x" * (int(options.get("megabytes", 0)) * 2**20)
found = {"given": sys.argv[1:], "cores": sorted(os.sched_getaffinity(0)), "began": time.time()}
time.sleep(float(options.get("seconds", 0.3)))
Path(options["run_dir"], "metrics.json").write_text(json.dumps(found | {"ended": time.time()}))
"""


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A train.py that notes what it was given."""
    (tmp_path / "train.py").write_text(TRAINER)
    monkeypatch.setattr(common, "ROOT", tmp_path)
    return tmp_path / "runs"


def cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


# --- runs ---------------------------------------------------------------------------------------------------


def test_runs_have_a_thread_and_a_core_each_and_no_more_at_a_time_than_cores(trainer: Path) -> None:
    finished: list[Path] = []
    runs = {trainer / name: [f"seed={number}"] for number, name in enumerate("abc")}
    assert common.train_side_by_side(runs, cores=cores()[:1], finished=finished.append) == []
    assert finished == list(runs)
    told = [common.figures_of(folder) for folder in runs]
    for number, one in enumerate(told):
        assert one is not None and one["cores"] == cores()[:1]
        assert {"trainer=cpu", "trainer.devices=1", "trainer.threads=1", f"seed={number}"} <= set(one["given"])
    assert all(a["ended"] <= b["began"] for a, b in pairwise(told))  # type: ignore[index]


def test_a_bench_that_is_told_to_end_leaves_no_run_behind(trainer: Path) -> None:
    if len(cores()) < 2:
        pytest.skip("needs two cores")
    runs = {trainer / "a": ["seconds=0.1"], trainer / "b": ["seconds=1"]}
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        common.train_side_by_side(runs, cores=cores()[:2], finished=lambda folder: os.kill(os.getpid(), signal.SIGTERM))
    time.sleep(1.2)
    assert common.figures_of(trainer / "a") is not None and common.figures_of(trainer / "b") is None
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_run_that_has_finished_is_not_done_again_and_one_that_was_interrupted_goes_on(trainer: Path) -> None:
    folders = [trainer / name for name in ("finished", "interrupted")]
    for folder in folders:
        folder.mkdir(parents=True)
    (folders[0] / "metrics.json").write_text('{"mine": 1}')
    (folders[1] / "last.ckpt").touch()
    common.train_side_by_side(dict.fromkeys(folders, ()), cores=cores()[:1])
    assert common.figures_of(folders[0]) == {"mine": 1} and common.peak_of(folders[0]) is None
    assert f"resume={folders[1]}" in common.figures_of(folders[1])["given"]  # type: ignore[index]
    assert common.train(folders[0], ["never=asked"]) == {"mine": 1}


def test_a_finished_run_with_other_options_is_not_mistaken_for_the_one_asked_for(trainer: Path) -> None:
    common.train_side_by_side({trainer / "a": ["budget=1m"]}, cores=cores()[:1])
    common.train_side_by_side({trainer / "a": ["budget=1m"]}, cores=cores()[:1])
    with pytest.raises(SystemExit, match=r"other options \(budget=1m, budget=5m\)"):
        common.train_side_by_side({trainer / "a": ["budget=5m"]}, cores=cores()[:1])


def test_peak_memory_is_that_of_the_runs_own_process(trainer: Path) -> None:
    runs = {trainer / "small": [], trainer / "large": ["megabytes=80"]}
    common.train_side_by_side(runs, cores=cores()[:1])
    small, large = (common.peak_of(folder) for folder in runs)
    assert small is not None and large is not None and 75 * 2**20 < large - small < 90 * 2**20


def test_a_run_that_fails_is_named_and_keeps_no_other_from_running(trainer: Path) -> None:
    runs = {trainer / "bad": ["fail=1"], trainer / "good": []}
    assert common.train_side_by_side(runs, cores=cores()[:1]) == [trainer / "bad"]
    assert common.figures_of(trainer / "good") is not None
    assert "no such thing" in (trainer / "bad" / "log.txt").read_text()
    with pytest.raises(SystemExit, match="bad failed"):
        common.train(trainer / "bad", ["fail=1"])


# --- options --------------------------------------------------------------------------------------------------


def arguments(tmp_path: Path, **changes: Any) -> Namespace:
    known = {
        "budget": "5m", "words_budget": None, "seeds": 2, "only": ["token"], "render": 9, "test": [], "cifar10": "",
        "str": "", "words": [], "runs": tmp_path / "runs", "out": tmp_path / "out",
    }  # fmt: skip
    return Namespace(**known | changes)


def finish(folder: Path, accuracy: float, **changes: Any) -> None:
    """What a run on CIFAR-10 leaves."""
    folder.mkdir(parents=True)
    trained = {"images_per_second": 500.0, "steps": 9, "seconds": 300.0}
    test = {"accuracy": accuracy, "images": 100, "seconds": 2.0}
    (folder / "metrics.json").write_text(json.dumps({"test": test, "train": trained, "parameters": 1_500_000}))
    (folder / common.PEAK).write_text(str(700 * 2**20))


def test_every_run_has_a_folder_of_its_own_that_needs_no_quotes(tmp_path: Path) -> None:
    args = arguments(tmp_path)
    rows = {(task, words) for task, group in options.GROUPS.values() for words in group.values()}
    folders = {options.folder_of(task, words, 0, args).name for task, words in rows}
    assert len(folders) == len(rows)
    assert not any(set("=[]{},: ") & set(name) for name in folders)


def test_runs_differ_in_their_option_and_seed_alone(tmp_path: Path) -> None:
    args = arguments(tmp_path, words=["clip=2"])
    plain, other = (options.words_of("cifar10", words, 1, args) for words in ("", "backbone.norm=post"))
    assert set(other) - set(plain) == {"backbone.norm=post"} and not set(plain) - set(other)
    assert {"seed=1", "budget=5m", "clip=2"} <= set(plain)
    for_words = options.words_of("str", "", 1, arguments(tmp_path, words_budget="9m", test=["crops"]))
    assert {"budget=9m", "data.test=[crops]"} <= set(for_words) and "budget=5m" not in for_words


def test_every_option_composes() -> None:
    from hydra import compose, initialize_config_dir

    from vitocr.config import conf_dir

    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        for task, rows in options.GROUPS.values():
            configs = [compose("config", overrides=[f"task={task}", *words.split()]) for words in rows.values()]
            assert all(one != other for i, one in enumerate(configs) for other in configs[:i])


def test_the_table_holds_what_has_finished_and_leaves_other_groups_alone(tmp_path: Path) -> None:
    args = arguments(tmp_path, cifar10="backbone.depth=4", words=["clip=2"])
    args.out.mkdir()
    run = {"accuracy": 0.5, "parameters": 1, "trained_per_second": 1, "used_per_second": 1, "peak_bytes": None}
    of_norm = {"task": "cifar10", "budget": "1m", "given": [], "rows": [{"label": "pre", "words": "", "runs": [run]}]}
    (args.out / "options.json").write_text(json.dumps({"groups": {"norm": of_norm}}))
    finish(options.folder_of("cifar10", "", 0, args), 0.8)
    finish(options.folder_of("cifar10", "", 1, args), 0.9)
    groups = options.write(args)
    assert groups["norm"] == of_norm
    (row,) = groups["token"]["rows"]
    assert row["label"] == "average" and [run["accuracy"] for run in row["runs"]] == [0.8, 0.9]
    table = (args.out / "options.md").read_text()
    assert "| average | 85.00 % | 80.00, 90.00 | 1.50 M | 500 | 700 MB |" in table
    assert table.count("All with `backbone.depth=4 clip=2`.") == 1
    options.draw({"token": groups["token"]}, args.out / "options.png")
    assert (args.out / "options.png").stat().st_size > 1000


def test_words_are_judged_by_letters_and_digits_over_all_sets(tmp_path: Path) -> None:
    sets = {name: {"ned": 0.1, "accuracy": {"36": share, "94": 0}, "words_per_second": 50.0}
            for name, share in (("a", 0.5), ("b", 0.7))}  # fmt: skip
    trained = {"images_per_second": 100.0, "steps": 9, "seconds": 300.0}
    (tmp_path / "metrics.json").write_text(json.dumps({**sets, "train": trained, "parameters": 7}))
    found = options.measured("str", tmp_path)
    assert found is not None and found["accuracy"] == pytest.approx(0.6) and found["used_per_second"] == 50


def test_a_group_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exception, match="postions: choose of readers"):
        options.names("norm,postions")


# --- recomputation ------------------------------------------------------------------------------------------


def test_tensors_count_while_they_live_and_views_of_them_do_not() -> None:
    given = torch.ones(1000)
    with recompute.live_bytes_mode() as alive:
        one = given * 2
        assert alive.now == 4000
        view = one.view(10, 100).t()
        one.add_(1)
        assert alive.now == 4000
        other = view.contiguous()
        del one, view
        assert alive.now == 4000 and alive.peak == 8000
        del other
        assert alive.now == 0 and alive.peak == 8000


def test_what_the_backward_pass_makes_counts_as_well() -> None:
    given = torch.ones(1000, requires_grad=True)
    given.grad = torch.zeros(1000)
    with recompute.live_bytes_mode() as alive:
        loss = given.exp().sum()  # exp keeps its result
        held = alive.now
        loss.backward()
    assert held == 4004 and alive.peak >= 8000


def test_savings_are_told_by_what_was_measured() -> None:
    def measured(seconds: float, size: int, gradients: str) -> dict[str, Any]:
        return {"seconds": seconds, "activation_bytes": size, "grown_bytes": size, "gradients": gradients,
                "parameters": 1, "precision": "fp32"}  # fmt: skip

    rounds = {"kept": [measured(1.0, 1000, "a")] * 3, "recomputed": [measured(s, 200, "a") for s in (1.2, 1.3, 9.0)]}
    told = recompute.summarise(rounds)
    assert told["memory_saved"] == pytest.approx(0.8) and told["time_added"] == pytest.approx(0.3)
    assert told["same_gradients"]
    rounds["recomputed"][1] = measured(1.3, 200, "b")
    assert not recompute.summarise(rounds)["same_gradients"]


# --- where a decoder looks ----------------------------------------------------------------------------------


def test_a_box_covers_the_cells_that_it_overlaps_and_not_those_that_it_touches() -> None:
    def cells(*box: float) -> tuple[list[int], list[int]]:
        rows, columns = looks.cells_of(box, (2, 8))
        return list(rows), list(columns)

    assert cells(0.25, 0.0, 0.5, 1.0) == ([0, 1], [2, 3])
    assert cells(0.26, 0.1, 0.27, 0.4) == ([0], [2]), "narrower than a cell"
    assert cells(-0.2, 0.5, 0.1, 1.3) == ([1], [0]), "cut off by the edge"
    assert cells(1.1, 0.0, 1.2, 0.5) == ([0], [7]), "beyond it: the nearest"


@pytest.mark.parametrize(
    ("peak", "inside", "beside"),
    [((0, 3), True, True), ((0, 4), True, True), ((1, 5), False, True), ((0, 2), False, True), ((0, 6), False, False),
     ((2, 3), False, False)],
)  # fmt: skip
def test_a_peak_counts_inside_the_box_or_one_cell_beside_it(peak: tuple[int, int], inside: bool, beside: bool) -> None:
    weights = torch.full((4, 8), 0.01)
    weights[peak] = 0.5
    verdict = looks.judge(weights, (3 / 8, 0.0, 5 / 8, 0.25))
    assert (verdict.inside, verdict.beside) == (inside, beside)
    assert verdict.chance == 2 * 4 / 32


def test_words_to_look_at_have_a_box_for_each_character_that_the_model_knows() -> None:
    description = {
        "codec": {"type": "charset", "characters": "aeiou"},
        "preprocess": {"size": [32, 128]},
        "model": {"head": {"max_length": 12}},
    }
    words = list(looks.words_for(description, 5))
    assert len(words) == 5
    for word in words:
        assert word.pixels.shape == (32, 128, 3) and len(word.ids) == len(word.boxes) > 0
        assert (word.boxes[:, 0] < word.boxes[:, 2]).all()
        assert set(word.ids) <= set(range(5))
    assert [word.ids for word in looks.words_for(description, 5)] == [word.ids for word in words]


# --- the page ---------------------------------------------------------------------------------------------------


def test_both_languages_have_words_for_the_same_things() -> None:
    labels = {label for _, rows in options.GROUPS.values() for label in rows}
    assert set(ideas_tables.ENGLISH) <= set(ideas_tables.KOREAN)
    assert set(ideas_tables.KOREAN) - set(ideas_tables.ENGLISH) <= labels, "a label that no longer exists"


def test_figures_come_from_the_records_and_from_one_of_them_alone(tmp_path: Path) -> None:
    page = "a\n<!-- measured: looks -->\nold\n<!-- /measured -->\nb\n"
    empty = ideas_tables.filled(page, "en", tmp_path)
    assert "old" not in empty and "Not measured yet:* `python bench/looks.py" in empty
    assert ideas_tables.filled(empty, "en", tmp_path) == empty
    told = {
        "words": 3, "grid": [1, 32], "chance": 0.2, "of words read right": None,
        "all": {"characters": 12, "inside": 0.5, "inside or next to": 0.925},
    }  # fmt: skip
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "looks.json").write_text(json.dumps(told))
    assert "| all | 12 | 92.5 % | 50.0 % |" in ideas_tables.filled(page, "en", tmp_path)
    assert "| 전체 | 12 | 92.5 % | 50.0 % |" in ideas_tables.filled(page, "ko", tmp_path)
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "looks.json").write_text(json.dumps(told))
    with pytest.raises(SystemExit, match="keep one of them"):
        ideas_tables.filled(page, "en", tmp_path)
    with pytest.raises(SystemExit, match="there is no table lokos"):
        ideas_tables.filled(page.replace("looks", "lokos"), "en", tmp_path)
