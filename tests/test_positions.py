"""Positions: learned, sinusoidal, rotary, none; with dropped patches, another size of image, a class token."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitocr.errors import UserError
from vitocr.models.flops import training_flops
from vitocr.models.model import build_model
from vitocr.models.positions import angles, coordinates, rotate, sinusoidal, turn_by
from vitocr.models.vit import ViT

CPU = torch.device("cpu")
TOLD = ["learned", "sinusoidal", "rotary", "none"]


def vit(**changes: Any) -> ViT:
    """A small ViT for 16x16 images (a grid of 4x4), with branches that do something."""
    torch.manual_seed(0)
    model = ViT(**{"image_size": 16, "patch": 4, "dim": 32, "depth": 2, "heads": 2} | changes)
    for block in model.blocks:
        nn.init.normal_(block.attention.out.weight, std=0.3)
        nn.init.normal_(block.mlp.down.weight, std=0.1)
    return model.eval()


def images(count: int = 2, height: int = 16, width: int = 16) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1))


def spec(**backbone: Any) -> dict[str, Any]:
    return {
        "image_size": [16, 16],
        "backbone": {"_target_": "vitocr.models.vit.ViT", "patch": 4, "dim": 32, "depth": 1, "heads": 2} | backbone,
        "head": {"_target_": "vitocr.heads.classify.Classify", "classes": 3},
    }


# What they say


def test_coordinates_count_patches_row_by_row() -> None:
    assert coordinates((2, 3), (2, 3), CPU).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]


def test_an_image_of_another_size_is_stretched_over_the_same_coordinates() -> None:
    fine = coordinates((2, 4), (2, 2), CPU).reshape(2, 4, 2)
    assert fine[0, :, 1].tolist() == [-0.25, 0.25, 0.75, 1.25]  # two patches where there was one
    assert fine[:, 0, 0].tolist() == [0, 1]


def test_sinusoidal_positions_tell_rows_and_columns_apart() -> None:
    grid = sinusoidal(coordinates((5, 7), (5, 7), CPU), 32).reshape(5, 7, 32)
    rows = [*range(8), *range(16, 24)]  # of the sines and the cosines, the first half
    columns = [*range(8, 16), *range(24, 32)]
    assert torch.equal(grid[:, 0, rows], grid[:, 6, rows]) and torch.equal(grid[0][:, columns], grid[4][:, columns])
    assert torch.pdist(grid.flatten(0, 1)).min() > 0.5  # no two are alike
    assert torch.allclose(grid.norm(dim=-1), torch.tensor(16.0).sqrt())
    # The nearer, the more alike, along either side.
    assert (grid[0] @ grid[0, 0]).diff()[:3].max() < 0 and (grid[:, 0] @ grid[0, 0]).diff()[:3].max() < 0


def test_rotary_products_depend_on_the_way_from_one_patch_to_the_other_alone() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 16).expand(2, 1, 1, 36, 16)  # the same query and key at each of 6x6 places
    turn = turn_by(angles(coordinates((6, 6), (6, 6), CPU), 4, 100.0)[None], prefix=0, dtype=torch.float32)
    product = (rotate(q, turn) @ rotate(k, turn).transpose(2, 3)).reshape(6, 6, 6, 6)
    assert torch.allclose(
        product[:5, :4, 1:, 2:].diagonal(dim1=0, dim2=2).diagonal(dim1=0, dim2=1), product[0, 0, 1, 2]
    )
    assert not torch.isclose(product[0, 0, 1, 2], product[0, 0, 2, 1])  # down is not across
    assert not torch.isclose(product[0, 0, 1, 2], product[1, 2, 0, 0])  # nor there back
    assert torch.allclose(rotate(q, turn).norm(dim=-1), q.norm(dim=-1))


def test_the_class_token_is_not_turned() -> None:
    x = torch.randn(1, 1, 5, 16)
    turn = turn_by(angles(coordinates((2, 2), (2, 2), CPU), 4, 100.0)[None], prefix=1, dtype=torch.float32)
    turned = rotate(x, turn)
    assert torch.equal(turned[:, :, 0], x[:, :, 0])
    assert not torch.allclose(turned[:, :, 4], x[:, :, 4])


# In a model


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "none"])
def test_only_learned_positions_are_weights(positions: str) -> None:
    assert "positions" in vit().state_dict()
    others = {name for name, _ in vit(positions=positions).named_parameters()}
    assert others == {name for name, _ in vit().named_parameters()} - {"positions"}
    assert vit(positions=positions).state_dict().keys() == others


@pytest.mark.parametrize("class_token", [False, True])
@pytest.mark.parametrize("positions", TOLD)
def test_all_but_none_know_where_a_patch_is(positions: str, class_token: bool) -> None:
    model = vit(positions=positions, class_token=class_token)
    picture = images(1)
    shuffled = model.cut(picture)[:, torch.randperm(16, generator=torch.Generator().manual_seed(2))]
    same = torch.allclose(
        model.encode(model.cut(picture), (4, 4)).mean(dim=1), model.encode(shuffled, (4, 4)).mean(dim=1), atol=1e-4
    )
    assert same == (positions == "none")


@pytest.mark.parametrize("positions", TOLD)
@pytest.mark.parametrize("changes", [{}, {"class_token": True}, {"attention": "strided"}, {"norm": "post"}])
def test_every_kind_works_at_other_sizes_and_shows_its_intermediates(positions: str, changes: dict) -> None:
    model = vit(positions=positions, **changes)
    prefix = model.prefix
    assert model(images(2, 16, 32)).shape == (2, prefix + 32, 32)
    seen: dict[str, Tensor] = {}
    tokens = model(images(2, 8, 8), seen=seen)
    assert tokens.shape == (2, prefix + 4, 32)
    assert torch.allclose(seen["block1.attention"].sum(dim=-1), torch.ones(2, 2, prefix + 4), atol=1e-5)
    assert torch.allclose(model(images(2, 8, 8)), tokens, atol=1e-5)


@pytest.mark.parametrize("positions", TOLD)
@pytest.mark.parametrize("class_token", [False, True])
def test_positions_stay_with_their_patches_when_others_are_dropped(positions: str, class_token: bool) -> None:
    """In whatever order the patches come: all of them, shuffled, give the tokens of the whole image, shuffled."""
    model = vit(positions=positions, class_token=class_token)
    patches = model.cut(images(3))
    order = torch.rand(3, 16, generator=torch.Generator().manual_seed(3)).argsort(dim=1)
    whole, shuffled = model.encode(patches, (4, 4)), model.encode(patches, (4, 4), kept=order)
    expected = whole[:, model.prefix :].gather(1, order[..., None].expand(-1, -1, 32))
    assert torch.allclose(shuffled[:, model.prefix :], expected, atol=1e-5)
    assert torch.allclose(shuffled[:, : model.prefix], whole[:, : model.prefix], atol=1e-5)


def test_rotary_positions_follow_images_that_skip_a_branch() -> None:
    """Stochastic depth takes some images out of the batch; with dropped patches each has positions of its own."""
    model = vit(positions="rotary", drop_path=0.5, depth=2).train()
    patches = model.cut(images(8))
    order = torch.rand(8, 16, generator=torch.Generator().manual_seed(3)).argsort(dim=1)
    torch.manual_seed(5)
    whole = model.encode(patches, (4, 4))
    torch.manual_seed(5)
    shuffled = model.encode(patches, (4, 4), kept=order)
    assert torch.allclose(shuffled, whole.gather(1, order[..., None].expand(-1, -1, 32)), atol=1e-5)


@pytest.mark.parametrize("positions", TOLD)
def test_arithmetic_is_counted_whatever_the_positions(positions: str) -> None:
    counted = training_flops(build_model(spec(positions=positions)), (16, 16), keep=0.5)
    assert counted == training_flops(build_model(spec()), (16, 16), keep=0.5) > 0


def test_a_learned_table_tells_from_the_first_step_which_patches_are_near_each_other() -> None:
    def neighbours_more_alike(**changes: Any) -> float:
        table = vit(**changes).positions
        assert table is not None
        table = table[0] - table[0].mean(dim=(0, 1))  # (4, 4, 32)
        near = torch.cosine_similarity(table[:, :-1], table[:, 1:], dim=-1).mean()
        return float((near - torch.cosine_similarity(table[:, :1], table[:, 3:], dim=-1).mean()).detach())

    assert neighbours_more_alike() > 0.5 > neighbours_more_alike(positions_from="noise")
    assert neighbours_more_alike(dim=34) > 0.5, "channels that make no four keep their noise"


@pytest.mark.parametrize("positions", TOLD)
def test_half_precision_comes_out_half(positions: str) -> None:
    model = vit(positions=positions)
    seen: dict[str, Tensor] = {}
    with torch.autocast("cpu", torch.bfloat16):
        model(images(), seen=seen)
    assert seen["embedded"].dtype == seen["block0.tokens"].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"positions": "rotory"}, "positions=rotory: choose one of learned, sinusoidal, rotary, none"),
        ({"positions_from": "sine"}, "positions_from=sine: choose one of sines, noise"),
        ({"positions": "rotary", "dim": 36, "heads": 6}, "dim=36 over heads=6 is 6, no multiple of 4"),
        ({"positions": "sinusoidal", "dim": 34}, "dim=34 is no multiple of 4"),
    ],
)
def test_an_argument_that_makes_no_sense_is_named(argument: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_model(spec(**argument))
