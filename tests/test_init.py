"""`init=PATH` takes exactly what it says it takes; `freeze=backbone` leaves the backbone as it was, bit by bit."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from runs_kit import ONE, TINY, run, weights
from torch import Tensor

from vitocr.checkpoint import load_checkpoint, save_model
from vitocr.description import describe
from vitocr.errors import UserError
from vitocr.heads.classify import ClassTargets
from vitocr.models.model import Model, build_model
from vitocr.training.initialise import Moved, initialise, start_from

VIT: dict[str, Any] = {"_target_": "vitocr.models.vit.ViT", "patch": 4, "dim": 32, "depth": 2, "heads": 2}
CLASSIFY = {"_target_": "vitocr.heads.classify.Classify"}
READER = {"_target_": "vitocr.heads.transformer.Transformer", "heads": 2, "ctc": 0.5}
PREPROCESS = {"size": [16, 16], "mean": [0.5] * 3, "std": [0.25] * 3, "resize": "stretch", "interpolation": "bilinear"}


def made(
    head: dict[str, Any], codec: dict[str, Any], *, size: tuple[int, int] = (16, 16), seed: int = 0, **backbone: Any
) -> tuple[Model, dict[str, Any]]:
    """A model without a zero in it, and its description."""
    torch.manual_seed(seed)
    spec = {"image_size": list(size), "backbone": VIT | backbone, "head": head}
    model = build_model(spec)
    for p in model.parameters():
        torch.nn.init.normal_(p)
    kind = "text" if codec["type"] == "charset" else "classify"
    return model, describe(task="some", kind=kind, model=spec, codec=codec, preprocess=PREPROCESS)


def classifier(names: str = "ab", **options: Any) -> tuple[Model, dict[str, Any]]:
    return made(CLASSIFY | {"classes": len(names)}, {"type": "classes", "names": list(names)}, **options)


def reader(characters: str, *, max_length: int = 5, head: dict[str, Any] = READER, **options: Any):  # type: ignore[no-untyped-def]
    spec = head | {"symbols": len(characters), "max_length": max_length}
    return made(spec, {"type": "charset", "characters": list(characters)}, size=(16, 64), **options)


def saved(tmp_path: Path, there: tuple[Model, dict[str, Any]]) -> tuple[str, dict[str, Tensor]]:
    path = tmp_path / "there.safetensors"
    state = {name: value.clone() for name, value in there[0].state_dict().items()}
    save_model(path, state, there[1])
    return str(path), state


def moved_from(tmp_path: Path, there: Any, here: Any) -> tuple[Moved, dict[str, Tensor], dict[str, Tensor], Any]:
    """What moved; the weights there, and here before and after."""
    path, state = saved(tmp_path, there)
    before = {name: value.clone() for name, value in here[0].state_dict().items()}
    moved = initialise(here[0], here[1], path)
    return moved, state, before, here[0].state_dict()


def everything(moved: Moved, model: Model) -> str:
    return "\n".join(moved.lines(model.state_dict()))


def test_the_same_model_is_taken_whole(tmp_path: Path) -> None:
    here = classifier(seed=1)
    moved, there, before, after = moved_from(tmp_path, classifier(), here)
    assert set(moved.taken) == set(after) and not (moved.left or moved.missing or moved.resized or moved.by_row)
    assert all(torch.equal(after[name], there[name]) for name in after)
    assert not any(torch.equal(before[name], there[name]) for name in after), "else the test shows nothing"
    assert moved.origin.endswith("there.safetensors (some, ViT patch=4 dim=32 depth=2)")


def test_another_head_stays_as_it_was(tmp_path: Path) -> None:
    pretrained = made(
        {"_target_": "vitocr.heads.reconstruct.Reconstruct", "pixels": 48, "width": 24, "heads": 2}, {"type": "none"}
    )
    here = classifier(seed=1)
    moved, there, before, after = moved_from(tmp_path, pretrained, here)
    for name in after:
        assert torch.equal(after[name], (there if name.startswith("backbone.") else before)[name]), name
        assert (name in moved.taken) == name.startswith("backbone.")
    assert moved.left == ["the head, Classify here and Reconstruct there"]


def test_position_embeddings_are_interpolated_to_another_grid(tmp_path: Path) -> None:
    old = classifier()
    moved, there, _, after = moved_from(tmp_path, old, classifier(seed=1, size=(16, 32)))
    expected = old[0].backbone.positions_for((4, 8)).view(1, 4, 8, 32)  # type: ignore[operator]
    torch.testing.assert_close(after["backbone.positions"], expected)
    assert moved.resized == ["backbone.positions from a grid of 4x4 to 4x8 (rows x columns)"]
    assert torch.equal(after["backbone.embed.weight"], there["backbone.embed.weight"])


def test_timm_positions_are_interpolated_and_its_class_token_kept(tmp_path: Path) -> None:
    timm = {"_target_": "vitocr.models.timm_adapter.TimmViT", "name": "vit_tiny_patch16_224",
            "overrides": {"patch_size": 4, "embed_dim": 24, "depth": 1, "num_heads": 2}}  # fmt: skip

    def model(size: tuple[int, int], seed: int) -> tuple[Model, dict[str, Any]]:
        torch.manual_seed(seed)
        spec = {"image_size": list(size), "backbone": timm, "head": CLASSIFY | {"classes": 2}}
        codec = {"type": "classes", "names": ["a", "b"]}
        return build_model(spec), describe(task="t", kind="classify", model=spec, codec=codec, preprocess=PREPROCESS)

    moved, there, _, after = moved_from(tmp_path, model((16, 16), 0), model((16, 32), 1))
    name = "backbone.vit.pos_embed"
    assert after[name].shape == (1, 1 + 32, 24)
    assert torch.equal(after[name][:, 0], there[name][:, 0])
    means = (there[name][:, 1:].mean(dim=1), after[name][:, 1:].mean(dim=1))
    torch.testing.assert_close(*means, atol=2e-3, rtol=0)
    assert moved.resized == [f"{name} from a grid of 4x4 to 4x8 (rows x columns)"]


def test_a_class_token_that_was_not_pretrained_stays_fresh_and_is_named(tmp_path: Path) -> None:
    moved, _, before, after = moved_from(tmp_path, classifier(class_token=False), classifier(seed=1, class_token=True))
    assert torch.equal(after["backbone.class_token"], before["backbone.class_token"])
    assert moved.missing == ["backbone.class_token"]
    assert "class_token is False there and True here" in moved.notes[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dim": 64}, "ViT patch=4 dim=32 depth=2, is built otherwise .* dim=64 depth=2: dim is 32 there and 64 here"),
        ({"depth": 3}, "depth is 2 there and 3 here. Give backbone.depth=2 to start from it"),
        ({"patch": [8, 2]}, r"patch is 4 there and \[8, 2\] here"),
        ({"heads": 4}, "heads is 2 there and 4 here"),  # of the same shapes, and yet another function
        (
            {"_target_": "vitocr.models.timm_adapter.TimmViT", "name": "vit_tiny_patch16_224"},
            "Choose the same backbone",
        ),
    ],
    ids=str,
)
def test_a_backbone_built_otherwise_is_refused_with_both_sides_named(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    there = classifier(**{key: VIT[key] for key in change if key in VIT and key != "_target_"})
    here = classifier()
    here[1]["model"]["backbone"] = VIT | change
    model = here[0]
    if change.get("_target_") is None:
        model, here[1]["model"] = (made_again := classifier(**change))[0], made_again[1]["model"]
    with pytest.raises(UserError, match=message):
        initialise(model, here[1], saved(tmp_path, there)[0])


def test_classes_are_matched_by_name_not_by_place(tmp_path: Path) -> None:
    moved, there, before, after = moved_from(tmp_path, classifier("abc"), classifier("cxab", seed=1))
    for name in ("head.logits.weight", "head.logits.bias"):
        assert torch.equal(after[name][[0, 2, 3]], there[name][[2, 0, 1]])
        assert torch.equal(after[name][1], before[name][1])
    assert list(moved.by_row) == ["3 of 4 classes"]


def test_as_many_classes_in_another_order_are_not_taken_as_they_stand(tmp_path: Path) -> None:
    _, there, _, after = moved_from(tmp_path, classifier("ab"), classifier("ba", seed=1))
    assert torch.equal(after["head.logits.weight"], there["head.logits.weight"].flip(0))


HEADS = {
    "transformer": READER,
    "permuted": READER | {"_target_": "vitocr.heads.permuted.Permuted"},
    "lstm": {"_target_": "vitocr.heads.lstm.Lstm", "hidden": 16, "ctc": 0.5},
    "ctc": {"_target_": "vitocr.heads.ctc.Ctc"},
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_rows_of_a_text_head_move_by_character_and_the_last_stays_last(head: dict[str, Any], tmp_path: Path) -> None:
    here = reader("c2!a", head=head, seed=1)
    moved, there, before, after = moved_from(tmp_path, reader("abc", head=head), here)
    by_row = [name for names in moved.by_row.values() for name in names]
    assert {name.split(".")[-2] for name in by_row} == {"logits"} | ({"embed"} if "ctc" in head else set())
    for name in by_row:
        assert torch.equal(after[name][[0, 3, 4]], there[name][[2, 0, 3]]), "c, a, and the blank or the end"
        assert torch.equal(after[name][[1, 2]], before[name][[1, 2]]), "2 and ! are new"
    for name in set(after) - set(by_row):
        assert torch.equal(after[name], there[name]), name
    assert "row by row: 2 of 4 characters (new: 2 !)" in everything(moved, here[0])


def test_a_capital_starts_as_the_letter_that_stood_for_both(tmp_path: Path) -> None:
    _, there, _, after = moved_from(tmp_path, reader("ab"), reader("abAB", seed=1))
    assert torch.equal(after["head.logits.weight"], there["head.logits.weight"][[0, 1, 0, 1, 2]])


@pytest.mark.parametrize(("old", "new"), [(5, 8), (8, 5)])
def test_places_in_a_text_are_kept_when_texts_get_longer_or_shorter(old: int, new: int, tmp_path: Path) -> None:
    here = reader("abc", max_length=new, seed=1)
    moved, there, before, after = moved_from(tmp_path, reader("abc", max_length=old), here)
    name = "head.positions"
    assert torch.equal(after[name][:, :6], there[name][:, :6])
    assert torch.equal(after[name][:, 6:], before[name][:, 6:])
    assert f"head.positions: 6 of {new + 1} places" in everything(moved, here[0])


def test_a_head_of_the_same_shapes_but_another_build_stays_as_it_was(tmp_path: Path) -> None:
    there = reader("abc", head=READER | {"heads": 4})
    moved, _, before, after = moved_from(tmp_path, there, reader("abc", seed=1))
    assert all(torch.equal(after[name], before[name]) for name in after if name.startswith("head."))
    assert moved.left == ["the head: heads is 4 there and 2 here"]


CTC = {"_target_": "vitocr.heads.ctc.Ctc"}


@pytest.mark.parametrize("one", [READER, READER | {"_target_": "vitocr.heads.permuted.Permuted"}])
def test_ctc_is_taken_out_from_beside_a_decoder_and_put_beside_one(one: dict[str, Any], tmp_path: Path) -> None:
    alone = reader("cab", head=CTC, seed=1)
    moved, there, _, after = moved_from(tmp_path, reader("abc", head=one), alone)
    order = [2, 0, 1, 3]  # c, a, b, blank
    assert torch.equal(after["head.logits.weight"], there["head.ctc.logits.weight"][order])
    assert moved.notes[-1].endswith(" and Ctc here, the CTC is what comes along")
    assert moved.unused and not any("ctc" in name for name in moved.unused)

    both = reader("abc", head=one, seed=2)
    moved, there, before, after = moved_from(tmp_path, alone, both)
    assert torch.equal(after["head.ctc.logits.weight"], there["head.logits.weight"][[1, 2, 0, 3]])
    assert moved.missing and all(torch.equal(before[name], after[name]) for name in moved.missing)
    assert not moved.unused and not any("ctc" in name for name in moved.missing)


def test_a_head_without_ctc_gives_a_reader_nothing(tmp_path: Path) -> None:
    moved, _, before, after = moved_from(tmp_path, reader("abc", head=READER | {"ctc": 0}), reader("abc", head=CTC))
    assert moved.left == ["the head, Ctc here and Transformer there"]
    assert all(torch.equal(before[name], after[name]) for name in after if name.startswith("head."))


def test_parts_that_only_one_of_them_has_are_named(tmp_path: Path) -> None:
    deeper, shallow = READER | {"depth": 2, "ctc": 0.0}, READER
    here = reader("abc", head=deeper, seed=1)
    moved, there, before, after = moved_from(tmp_path, reader("abc", head=shallow), here)
    assert moved.missing and all(name.startswith("head.blocks.1.") for name in moved.missing)
    assert all(torch.equal(after[name], before[name]) for name in moved.missing)
    assert set(moved.unused) == {"head.ctc.logits.weight", "head.ctc.logits.bias"}
    assert torch.equal(after["head.blocks.0.mlp.up.weight"], there["head.blocks.0.mlp.up.weight"])
    assert "not taken, for this model lacks them: head.ctc.logits.bias, head.ctc.logits.weight" in everything(
        moved, here[0]
    )


def test_another_normalisation_of_pixels_is_said(tmp_path: Path) -> None:
    here = classifier(seed=1)
    here[1]["preprocess"] = PREPROCESS | {"mean": [0.4] * 3}
    moved = moved_from(tmp_path, classifier(), here)[0]
    assert "pixels were normalised otherwise: mean is [0.5, 0.5, 0.5] there and [0.4, 0.4, 0.4] here" in moved.notes


@pytest.mark.parametrize(("seed", "size", "said"), [(0, 500, False), (1, 500, True), (0, 400, True), (1, 0, False)])
def test_a_run_that_holds_back_other_rows_than_its_origin_is_told_so(
    seed: int, size: int, said: bool, tmp_path: Path
) -> None:
    there, here = classifier(), classifier(seed=1)
    there[1]["provenance"]["config"] = {"name": "str", "seed": 0, "data": {"val_size": 500}}
    here[1]["provenance"]["config"] = {"name": "str", "seed": seed, "data": {"val_size": size}}
    moved = moved_from(tmp_path, there, here)[0]
    assert any("seed=0 data.val_size=500 holds back the same" in note for note in moved.notes) == said


# --- freezing -------------------------------------------------------------------------------------------------


def test_a_frozen_backbone_computes_as_in_evaluation_and_gets_no_gradient() -> None:
    """With a stem: the running statistics of its norms are no parameters, but must not move either."""
    model, _ = classifier(stem=[[8, 2]], patch=2, drop_path=0.5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.freeze_backbone()
    model.train()
    images = torch.randn(4, 3, 16, 16)
    losses = [model.loss(images, ClassTargets(torch.tensor([0, 1, 0, 1])))["loss"] for _ in range(2)]
    assert torch.equal(*losses), "nothing is drawn at random"
    losses[0].backward()
    for name, p in model.named_parameters():
        assert (p.grad is None) == name.startswith("backbone."), name
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.head.training and not model.backbone.training


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"freeze": "head"}, "classify", "give freeze=backbone, which trains the head alone"),
        ({"freeze": "backbone"}, "classify", "has learned nothing: give init=PATH as well"),
        ({"freeze": "backbone", "init": "x"}, "pretrain", "leaves nothing to pretrain"),
        ({"init": "nowhere.ckpt"}, "classify", "There is no checkpoint at nowhere.ckpt"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], kind: str, message: str) -> None:
    model, description = classifier()
    config = {"init": None, "freeze": None, "backbone": VIT} | options
    with pytest.raises(UserError, match=message):
        start_from(config, model, description | {"kind": kind}, resuming=False, say=print)


@pytest.fixture(scope="session")
def pretrained(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained")
    words = ["task=pretrain", *TINY[2:], "head.width=24", f"data.source=[{shapes}]", "data.val_size=6", "steps=30"]
    run([*words, *ONE, f"run_dir={folder / 'run'}"], folder)
    return folder / "run"


def test_a_linear_probe_trains_the_head_alone(pretrained: Path, shapes: Path, tmp_path: Path) -> None:
    words = [*TINY, *ONE, f"data.root={shapes}", "steps=40", "ema=0.9", "backbone.drop_path=0.2", "optim.lr=1e-2",
             f"init={pretrained}", "freeze=backbone", f"run_dir={tmp_path / 'probe'}"]  # fmt: skip
    output = run(words, tmp_path)
    assert "taken: backbone, 17 tensors" in output and "only the head learns" in output
    there, _ = load_checkpoint(pretrained / "model.safetensors")
    for probe in (weights(tmp_path / "probe" / "last.ckpt"), load_checkpoint(tmp_path / "probe" / "last.ckpt")[0]):
        probe = {name.removeprefix("model."): value for name, value in probe.items()}
        for name in (name for name in probe if name.startswith("backbone.")):
            assert torch.equal(probe[name], there[name]), name
        assert probe["head.logits.weight"].abs().max() > 0


def test_a_run_that_goes_on_needs_no_longer_what_it_started_from(
    pretrained: Path, shapes: Path, tmp_path: Path
) -> None:
    start = tmp_path / "start"
    shutil.copytree(pretrained, start)
    words = [*TINY, *ONE, f"data.root={shapes}", f"init={start}", f"run_dir={tmp_path / 'run'}"]
    assert "starting from" in run([*words, "steps=4"], tmp_path)
    shutil.rmtree(start)
    (tmp_path / "run" / "metrics.json").unlink()
    output = run([*words, "steps=8", "resume=auto"], tmp_path)
    assert "resumed at step 4" in output and "starting from" not in output
    _, description = load_checkpoint(tmp_path / "run" / "model.safetensors")
    origin = description["provenance"]["started_from"]
    assert origin["task"] == origin["provenance"]["config"]["name"] == "pretrain", "but it is not forgotten"


def test_fine_tuning_from_another_image_size_says_what_was_resized(
    pretrained: Path, shapes: Path, tmp_path: Path
) -> None:
    words = [*TINY, *ONE, f"data.root={shapes}", "steps=2", "preprocess.size=[24,24]", f"init={pretrained}"]
    output = run([*words, f"run_dir={tmp_path / 'run'}"], tmp_path)
    assert "resized: backbone.positions from a grid of 4x4 to 6x6" in output
    assert "left fresh: the head, Classify here and Reconstruct there" in output
