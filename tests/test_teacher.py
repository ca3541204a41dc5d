"""`teacher=PATH`: another model's answers are learned beside the labels."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from runs_kit import ONE, TINY, run
from test_init import classifier, reader, saved

from vitocr.checkpoint import load_checkpoint
from vitocr.codec import Classes
from vitocr.errors import UserError
from vitocr.heads.classify import ClassTargets
from vitocr.models.model import build_model
from vitocr.preprocess import Preprocess
from vitocr.training.teacher import Teacher

PREPROCESS = Preprocess(size=(16, 16), mean=(0.5,) * 3, std=(0.25,) * 3)


def test_a_teacher_answers_in_the_order_of_the_pupils_classes(tmp_path: Path) -> None:
    there = classifier("abc")
    path, _ = saved(tmp_path, there)
    images = torch.randn(6, 3, 16, 16)
    said = Teacher(path, codec=Classes(("c", "a")), preprocess=PREPROCESS)(images)
    with torch.no_grad():
        expected = there[0].eval()(images)[:, [2, 0]].softmax(dim=1)
    torch.testing.assert_close(said, expected)
    assert not said.requires_grad


def test_what_a_teacher_says_counts_as_much_as_it_is_told_to() -> None:
    model, _ = classifier("abc")
    images, ids, taught = torch.randn(5, 3, 16, 16), torch.tensor([0, 1, 2, 0, 1]), torch.rand(5, 3).softmax(dim=1)
    targets = ClassTargets(ids, mixed=ids.flip(0), share=0.7)
    model.eval()
    labels = model.loss(images, targets)["loss"]
    told = model.loss(images, targets._replace(taught=taught), teacher_weight=0.25)
    teacher = F.cross_entropy(model(images), taught)
    torch.testing.assert_close(told["teacher"], teacher)
    torch.testing.assert_close(told["loss"], 0.75 * labels + 0.25 * teacher)
    assert model.loss(images, targets._replace(taught=taught), teacher_weight=1.0)["loss"] == teacher


def test_a_pupil_learns_what_the_labels_do_not_say() -> None:
    """The labels are noise; the teacher knows."""
    (teacher, there), images = classifier("ab"), torch.randn(32, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = teacher.eval()(images)
    taught = (4 * (logits - logits.mean(dim=0)) / logits.std()).softmax(dim=1)
    torch.manual_seed(1)
    pupil = build_model(there["model"])
    optimizer = torch.optim.AdamW(pupil.parameters(), lr=3e-3)
    for step in range(60):
        labels = torch.randint(0, 2, (32,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        pupil.loss(images, ClassTargets(labels, taught=taught), teacher_weight=0.8)["loss"].backward()
        optimizer.step()
    with torch.no_grad():
        agree = pupil(images).argmax(dim=1) == taught.argmax(dim=1)
    assert 8 < taught.argmax(dim=1).sum() < 24 and agree.float().mean() > 0.9


@pytest.mark.parametrize(
    ("there", "codec", "preprocess", "message"),
    [
        (lambda: reader("abc"), ("a", "b"), PREPROCESS, "a model of kind text"),
        (lambda: classifier("ab"), ("a", "z"), PREPROCESS, "knows no z"),
        (
            lambda: classifier("ab"),
            ("a", "b"),
            Preprocess(size=(16, 16), mean=(0.4,) * 3, std=(0.25,) * 3),
            r"preprocess.mean is \[0.5, 0.5, 0.5\], and this run's \[0.4",
        ),
    ],
)
def test_who_cannot_teach_is_refused(
    tmp_path: Path, there: Any, codec: tuple[str, ...], preprocess: Preprocess, message: str
) -> None:
    path, _ = saved(tmp_path, there())
    with pytest.raises(UserError, match=message):
        Teacher(path, codec=Classes(codec), preprocess=preprocess)


def test_a_run_is_taught_by_another_run(shapes: Path, tmp_path: Path) -> None:
    words = [*TINY, *ONE, f"data.root={shapes}"]
    run([*words, "steps=4", f"run_dir={tmp_path / 'teacher'}"], tmp_path)
    output = run([*words, "steps=4", f"teacher={tmp_path / 'teacher'}", f"run_dir={tmp_path / 'pupil'}"], tmp_path)
    assert "taught by" in output
    _, description = load_checkpoint(tmp_path / "pupil" / "model.safetensors")
    assert description["provenance"]["config"]["teacher"] == str(tmp_path / "teacher")
    refused = run([*words, "steps=1", "teacher=cifar10-tiny", f"run_dir={tmp_path / 'no'}"], tmp_path, code=2)
    assert "teacher=cifar10-tiny knows no" in refused
