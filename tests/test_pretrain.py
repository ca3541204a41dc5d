"""Pretraining by hidden patches: what is hidden stays hidden, what was learned is kept, and any pictures will do."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from runs_kit import ONE, TWO, assert_same_weights, kill_after_first_checkpoint, run, weights

import vitocr
from vitocr.data.text_rows import Subset
from vitocr.data.unlabelled import PictureArrays, PictureLoader, open_pictures
from vitocr.errors import UserError
from vitocr.heads.reconstruct import normalised
from vitocr.models.flops import training_flops
from vitocr.models.masked import Mask, MaskedModel, encode_visible, join, patches_of, split_patches, take
from vitocr.models.model import build_model
from vitocr.preprocess import Preprocess
from vitocr.training.pretrain import PretrainKit

VIT = {"_target_": "vitocr.models.vit.ViT", "patch": 4, "dim": 32, "depth": 2, "heads": 2}
HEAD = {"_target_": "vitocr.heads.reconstruct.Reconstruct", "pixels": 48, "mask": 0.75, "width": 24, "heads": 2}
SMALL = Preprocess((16, 16), (0.5,) * 3, (0.25,) * 3)
TINY = [
    "task=pretrain", "logger=none", "preprocess.size=[16,16]", "batch_size=8", "backbone.dim=32", "backbone.depth=2",
    "backbone.heads=2", "head.width=24", "head.heads=2", "data.val_size=6", "log_every_steps=1",
]  # fmt: skip


def model_of(size: int = 16, **changes: object) -> MaskedModel:
    torch.manual_seed(0)
    backbone = VIT | {name: value for name, value in changes.items() if name not in HEAD}
    head = HEAD | {name: value for name, value in changes.items() if name in HEAD}
    model = build_model({"image_size": [size, size], "backbone": backbone, "head": head})
    assert isinstance(model, MaskedModel)
    for p in model.parameters():  # untrained, half of it is zero and shows nothing
        torch.nn.init.normal_(p, std=0.1)
    return model.eval()


def images_of(count: int = 3, size: int = 16) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def some_mask(count: int = 3, patches: int = 16, share: float = 0.75) -> Mask:
    return split_patches(torch.rand(count, patches, generator=torch.Generator().manual_seed(2)), share)


def changed(model: MaskedModel, images: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    """The images with other pixels in the patches that `which` (B, n) names."""
    patches = model.vit.cut(images).clone()
    where = which[..., None].expand(-1, -1, patches.shape[2])
    return join(patches.scatter(1, where, torch.randn(where.shape)), tuple(images.shape[2:]), model.vit.patch)


def test_every_patch_is_either_seen_or_hidden_and_the_share_decides_how_many() -> None:
    for share, hidden in ((0.75, 12), (0.5, 8), (0.01, 1), (0.99, 15)):
        mask = some_mask(share=share)
        assert mask.hidden.shape == (3, hidden)
        together = torch.cat(list(mask), dim=1).sort(dim=1).values
        assert torch.equal(together, torch.arange(16).expand(3, 16))
    assert not torch.equal(some_mask().hidden[0], some_mask().hidden[1]), "each image hides its own"


@pytest.mark.parametrize("patch", [4, [8, 2]])
def test_patches_join_to_the_image_they_were_cut_from(patch: int | list[int]) -> None:
    model, images = model_of(patch=patch), images_of()
    assert torch.equal(join(model.vit.cut(images), (16, 16), model.vit.patch), images)


@pytest.mark.parametrize(
    "options",
    [{}, {"class_token": True}, {"norm": "post"}, {"positions": "rotary"}, {"positions": "none"},
     {"attention": "strided"}],
    ids=str,
)  # fmt: skip
def test_seeing_all_patches_is_what_every_other_task_sees(options: dict[str, object]) -> None:
    model, images = model_of(**options), images_of()
    every = torch.arange(16).expand(3, 16)
    torch.testing.assert_close(encode_visible(model.vit, model.vit.cut(images), every), model.vit(images))


def test_nothing_of_a_hidden_patch_reaches_the_backbone() -> None:
    model, images, mask = model_of(class_token=True), images_of(), some_mask()
    other = changed(model, images, mask.hidden)
    assert not torch.equal(images, other)
    before, after = (encode_visible(model.vit, model.vit.cut(x), mask.visible) for x in (images, other))
    assert torch.equal(before, after)
    assert before.shape == (3, 1 + 4, 32), "only the visible ones cost anything"
    assert torch.equal(model.reconstruct(images, mask), model.reconstruct(other, mask))
    assert model.loss(images, mask)["loss"] != model.loss(other, mask)["loss"], "but it is what is asked for"
    visible = changed(model, images, mask.visible)
    assert not torch.allclose(model.reconstruct(images, mask), model.reconstruct(visible, mask))


def test_the_loss_is_that_of_hidden_patches_alone() -> None:
    model, images, mask = model_of(), images_of(), some_mask()
    torch.nn.init.zeros_(model.head.pixels.weight)  # tells every patch grey, whatever it sees
    torch.nn.init.zeros_(model.head.pixels.bias)
    asked = normalised(take(model.vit.cut(images), mask.hidden))[0]
    expected = asked.square().mean()
    found = [model.loss(x, mask)["loss"].item() for x in (images, changed(model, images, mask.visible))]
    assert found == pytest.approx([expected.item()] * 2, rel=1e-6)
    assert expected.item() == pytest.approx(1, abs=0.01), "each patch is measured by its own variance"
    torch.testing.assert_close(asked.mean(dim=2), torch.zeros(3, 12), atol=1e-5, rtol=0)


def test_noise_of_a_flat_patch_is_not_worth_learning() -> None:
    nearly_flat = 0.7 + 0.004 * torch.randn(1, 1, 48)
    assert normalised(nearly_flat)[0].abs().max() < 0.6
    assert torch.equal(normalised(torch.full((1, 1, 48), 0.5))[0], torch.zeros(1, 1, 48))


def test_a_prediction_does_not_depend_on_the_order_patches_are_named_in() -> None:
    model, images, mask = model_of(), images_of(), some_mask()
    flipped = Mask(mask.visible.flip(1), mask.hidden.flip(1))
    torch.testing.assert_close(model.reconstruct(images, flipped).flip(1), model.reconstruct(images, mask))


def test_hiding_more_makes_a_step_cheaper() -> None:
    costs = [training_flops(model_of(mask=share), (16, 16)) for share in (0.25, 0.5, 0.75)]
    assert costs == sorted(costs, reverse=True)


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        ({"stem": [[16, 2]]}, r"the convolutions of its stem \(backbone.stem\) see across patches"),
        ({"_target_": "vitocr.models.timm_adapter.TimmViT"}, "TimmViT takes whole images only"),
        ({"patch": 7}, "does not divide into patches of 7x7"),
        ({"patch": 16}, "is a single patch of 16x16"),
    ],
    ids=str,
)
def test_backbones_that_cannot_leave_patches_out_are_refused(backbone: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        patches_of(VIT | backbone, (16, 16))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"mask": 1.0}, "above 0 and below 1"), ({"depth": 0}, "at least one layer"), ({"heads": 5}, "head.heads=5")],
)
def test_heads_that_make_no_sense_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_model({"image_size": [16, 16], "backbone": VIT, "head": HEAD | options})


# --- pictures of any kind -------------------------------------------------------------------------------------


@pytest.fixture
def loose(tmp_path: Path) -> Path:
    """Nine pictures of several sizes at several depths, with no labels at all."""
    random = np.random.default_rng(0)
    for number in range(9):
        folder = tmp_path / "loose" / ("deep/er" if number % 2 else ".")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (20 + number, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "loose"


def loader_of(source: object, **options: object) -> PictureLoader:
    return PictureLoader(source, **({"preprocess": SMALL, "batch_size": 4, "say": print} | options))  # type: ignore[arg-type]


def test_a_folder_needs_no_labels_and_no_classes(loose: Path) -> None:
    source = open_pictures(loose)
    assert len(source) == 9
    assert len(set(source.fingerprint() for source in (source, open_pictures(loose)))) == 1
    (batch,) = loader_of(source, batch_size=9, shuffle=False, drop_last=False)
    assert batch.images.shape == (9, 16, 16, 3) and batch.images.dtype == torch.uint8
    expected = [SMALL.fit(np.array(Image.open(path))) for path in sorted(loose.rglob("*.png"), key=lambda p: p.parts)]
    found = {image.numpy().tobytes() for image in batch.images}
    assert found == {image.tobytes() for image in expected}


def test_words_of_an_lmdb_are_pictures_as_well(shapes: Path, tmp_path: Path) -> None:
    from vitocr.data.lmdb_store import pack
    from vitocr.data.text_table import TableSource

    files = sorted((shapes / "circle").glob("*.png"))
    (tmp_path / "labels.tsv").write_text("".join(f"{file}\tround\n" for file in files))
    pack(TableSource(tmp_path / "labels.tsv"), tmp_path / "words.lmdb")
    packed, plain = open_pictures(tmp_path / "words.lmdb"), open_pictures(shapes / "circle")
    assert len(packed) == len(plain) == 20
    assert all(np.array_equal(packed.read(row).image, plain.read(row).image) for row in range(20))


def test_what_holds_no_pictures_is_named(tmp_path: Path, loose: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="neither image files nor an LMDB"):
        open_pictures(tmp_path / "empty")
    with pytest.raises(UserError, match="Did you mean 'loose'"):
        open_pictures(tmp_path / "loos")


def test_ranks_share_a_batch_and_a_position_is_taken_up() -> None:
    images = np.random.default_rng(0).integers(0, 256, (22, 16, 16, 3), dtype=np.uint8)
    source = PictureArrays(images, name="some", fingerprint="")
    whole = [batch.images for batch in loader_of(source, seed=3)]
    halves = [[batch.images for batch in loader_of(source, seed=3, rank=rank, world=2)] for rank in (0, 1)]
    assert len(whole) == 5
    assert all(torch.equal(torch.cat(both), one) for both, one in zip(zip(*halves, strict=True), whole, strict=True))
    late = loader_of(source, seed=3)
    late.set_position(3)
    assert all(torch.equal(batch.images, one) for batch, one in zip(late, whole[3:], strict=True))
    again = [batch.images for batch in late]
    assert not torch.equal(again[0], whole[0]), "the next epoch has another order"


def test_a_broken_picture_is_named_and_another_takes_its_place(loose: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (loose / "0.png").write_bytes(b"not a picture")
    (batch,) = loader_of(open_pictures(loose), batch_size=9, max_bad_fraction=0.2)
    assert batch.images.shape[0] == 9
    assert "0.png" in capsys.readouterr().out
    (judged,) = loader_of(open_pictures(loose), batch_size=9, shuffle=False, drop_last=False)
    assert judged.images.shape[0] == 8, "what is judged is not judged twice"
    for number in range(2, 9, 2):
        (loose / f"{number}.png").write_bytes(b"")
    with pytest.raises(UserError, match="images cannot be read, more than the 1"):
        list(loader_of(open_pictures(loose), batch_size=9))


# --- the kit --------------------------------------------------------------------------------------------------


def kit_of(folder: Path, **changes: object) -> PretrainKit:
    config = {
        "preprocess": SMALL.to_dict(),
        "backbone": VIT,
        "head": HEAD,
        "augment": {"kind": "batch", "crop_pad": 2, "flip": True, "cutmix": 0.0, "ops": 0.0},
        "data": {"source": [str(folder)], "val_size": 3, "seed": 0},
        "seed": 5, "batch_size": 4, "eval_batch_size": 2, "max_bad_fraction": 0.05, "budget": None,
    }  # fmt: skip
    return PretrainKit(config | changes, workers=0, say=print)  # type: ignore[arg-type]


def test_ranks_hide_together_what_one_process_hides(loose: Path) -> None:
    kit = kit_of(loose)
    how = {"dtype": torch.bfloat16, "progress": 0.3, "epochs": 1.0}
    images, mask = kit.prepare(next(iter(kit.loader("train", train=True, rank=0, world=1))), rank=0, world=1, **how)
    halves = [
        kit.prepare(next(iter(kit.loader("train", train=True, rank=rank, world=2))), rank=rank, world=2, **how)
        for rank in (0, 1)
    ]
    assert torch.equal(torch.cat([half for half, _ in halves]), images)
    assert torch.equal(torch.cat([half.hidden for _, half in halves]), mask.hidden)
    assert images.dtype == torch.float32, "what is to be told is not rounded"


def test_an_image_is_always_judged_by_the_same_patches(loose: Path) -> None:
    kit, model = kit_of(loose), model_of()
    batches = list(kit.loader("val", train=False, rank=0, world=1))
    assert [len(batch.images) for batch in batches] == [2, 1]
    together = torch.cat([batch.images for batch in batches])
    masks = [kit.fixed_mask(batch.images).hidden for batch in batches]
    assert torch.equal(torch.cat(masks), kit.fixed_mask(together).hidden)
    apart = sum(kit.judge(model, batch, dtype=torch.float32) for batch in batches)
    at_once = kit.judge(model, batches[0]._replace(images=together), dtype=torch.float32)
    torch.testing.assert_close(apart, at_once)
    assert at_once[1] == 3


def test_what_is_held_out_is_not_trained_on(loose: Path) -> None:
    kit = kit_of(loose)
    assert isinstance(kit.train, Subset) and isinstance(kit.val, Subset)
    assert sorted([*kit.train.rows, *kit.val.rows]) == list(range(9)) and kit.sizes == {"train": 6, "val": 3}
    assert "12 of 16 patches are hidden" in kit.summary


def test_a_completed_picture_keeps_what_was_seen(loose: Path) -> None:
    kit, model = kit_of(loose), model_of()
    images = next(iter(kit.loader("val", train=False, rank=0, world=1))).images
    seen, completed = kit.complete(model, images)
    shown = (seen != 232).any(axis=3)
    assert np.abs(completed.astype(int) - images.numpy())[shown].max() <= 1
    assert np.array_equal(seen[shown], images.numpy()[shown])
    assert shown.mean() == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": {"_target_": "vitocr.heads.classify.Classify"}}, "head=reconstruct"),
        ({"augment": {"kind": "image"}}, "use augment=pretrain"),
        ({"data": {"source": [], "val_size": 0}}, "data.source is empty"),
        ({"data": {"source": ["render"], "val_size": 0}}, "use task=pretrain_words"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_pretraining_cannot_do_is_said(changes: dict[str, object], message: str, loose: Path) -> None:
    with pytest.raises(UserError, match=message):
        kit_of(loose, **changes)


# --- the command ----------------------------------------------------------------------------------------------


def test_a_run_learns_and_leaves_a_picture_a_curve_and_a_model_that_says_what_it_is_for(
    shapes: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    output = run([*TINY, *ONE, f"data.source=[{shapes}]", "steps=120", f"run_dir={folder}"], tmp_path)
    assert "val loss" in output and "12 of 16 patches are hidden" in output
    assert {"best.ckpt", "last.ckpt", "model.safetensors", "metrics.json", "samples.png", "curve.png"} <= {
        path.name for path in folder.iterdir()
    }
    with open(folder / "metrics.csv") as file:
        losses = [float(row["val_loss"]) for row in csv.DictReader(file) if row["val_loss"]]
    assert losses[0] > 0.85 and losses[-1] < 0.72, "grey is 1; a third of that is noise nobody can tell"
    figures = json.loads((folder / "metrics.json").read_text())
    assert figures["val"]["loss"] == pytest.approx(min(losses), abs=1e-6), "best is the checkpoint of the lowest loss"
    with pytest.raises(UserError, match="pretrained without labels"):
        vitocr.load(folder)


@pytest.mark.parametrize("ranks", [ONE, TWO], ids=["one process", "two DDP ranks"])
def test_a_killed_run_resumes_to_identical_weights(ranks: list[str], shapes: Path, tmp_path: Path) -> None:
    words = [*TINY, *ranks, f"data.source=[{shapes}]", "steps=120", "save_every_steps=3", "ema=0.9",
             "backbone.drop_path=0.2"]  # fmt: skip
    run([*words, f"run_dir={tmp_path / 'whole'}"], tmp_path)
    broken = [*words, f"run_dir={tmp_path / 'broken'}"]
    step = kill_after_first_checkpoint(broken, tmp_path, tmp_path / "broken", later_s=0.1)
    assert 0 < step < 120, "the kill came too late to show anything"
    assert f"resumed at step {step}" in run([*broken, "resume=auto"], tmp_path)
    assert_same_weights(tmp_path / "whole" / "last.ckpt", tmp_path / "broken" / "last.ckpt")


def test_two_ranks_learn_what_one_process_learns(shapes: Path, tmp_path: Path) -> None:
    words = [*TINY, f"data.source=[{shapes}]", "steps=8", "trainer.precision=32-true"]
    run([*words, *ONE, f"run_dir={tmp_path / 'one'}"], tmp_path)
    run([*words, *TWO, f"run_dir={tmp_path / 'two'}"], tmp_path)
    one, two = weights(tmp_path / "one" / "last.ckpt"), weights(tmp_path / "two" / "last.ckpt")
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=2e-5, rtol=0)


def test_rendered_words_need_nothing_at_all(tmp_path: Path) -> None:
    words = ["task=pretrain_words", "logger=none", *ONE, "render.rows=40", "render.cache=null", "batch_size=8",
             "backbone.dim=32", "backbone.depth=1", "backbone.heads=2", "data.val_size=8", "steps=4"]  # fmt: skip
    output = run([*words, f"run_dir={tmp_path / 'run'}"], tmp_path)
    assert "train 32, val 8 pictures, of which 96 of 128 patches are hidden" in output
    assert (tmp_path / "run" / "samples.png").exists()


def test_a_backbone_with_a_stem_is_refused_in_one_sentence(shapes: Path, tmp_path: Path) -> None:
    output = run(["task=pretrain", f"data.source=[{shapes}]", "backbone=hybrid"], tmp_path, code=2)
    assert "error: pretraining hides patches" in output and "Traceback" not in output
    assert not (tmp_path / "runs").exists()
