"""timm's Vision Transformers behind our seams."""

from typing import Any

import pytest
import torch
from torch import Tensor

from vitocr.errors import UserError
from vitocr.models.model import build_model
from vitocr.models.timm_adapter import TimmViT

SMALL: dict[str, Any] = {"embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 8}


def small(image_size: Any = (16, 32), name: str = "vit_tiny_patch16_224", **changes: Any) -> TimmViT:
    torch.manual_seed(0)
    return TimmViT(image_size=image_size, name=name, overrides=SMALL, **changes).eval()


def images() -> Tensor:
    return torch.randn(2, 3, 16, 32, generator=torch.Generator().manual_seed(1))


def test_a_timm_model_is_built_for_the_image_size_at_hand() -> None:
    backbone = small()
    assert (backbone.dim, backbone.grid, backbone.prefix) == (32, (2, 4), 1)
    assert backbone(images()).shape == (2, 1 + 2 * 4, 32)


def test_a_model_named_with_nothing_else_has_timms_own_shape() -> None:
    backbone = TimmViT(image_size=32, name="vit_tiny_patch16_224")
    assert (backbone.dim, backbone.grid, len(backbone.vit.blocks)) == (192, (2, 2), 12)


def test_distilled_models_have_two_tokens_before_the_grid() -> None:
    assert small(name="deit_tiny_distilled_patch16_224").prefix == 2


def test_its_tokens_are_timms_own_features() -> None:
    backbone = small()
    assert torch.equal(backbone(images()), backbone.vit.forward_features(images()))


def test_intermediates_come_by_name_and_leave_the_output_alone() -> None:
    backbone = small()
    seen: dict[str, Tensor] = {}
    tokens = backbone(images(), seen=seen)
    assert list(seen) == ["block0.tokens", "block1.tokens"]
    assert all(layer.shape == (2, 8, 32) for layer in seen.values())
    assert torch.allclose(tokens, backbone(images()), atol=1e-5)


def test_a_whole_model_is_built_around_it() -> None:
    spec = {
        "image_size": [16, 32],
        "backbone": {"_target_": "vitocr.models.timm_adapter.TimmViT", "name": "vit_tiny_patch16_224"}
        | {"overrides": SMALL},
        "head": {"_target_": "vitocr.heads.classify.Classify", "classes": 5, "pool": "cls"},
    }
    assert build_model(spec)(images()).shape == (2, 5)


def test_a_misspelt_name_gets_near_matches() -> None:
    with pytest.raises(ValueError, match=r"vit_tinny_patch16_224: timm has no such model.*vit_tiny_patch16_224"):
        small(name="vit_tinny_patch16_224")


def test_a_name_like_nothing_says_how_to_list_the_names() -> None:
    with pytest.raises(ValueError, match="list_models"):
        small(name="zzzzzzzz")


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv3_small_050"])
def test_a_model_that_is_no_vision_transformer_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is not a Vision Transformer"):
        TimmViT(image_size=32, name=name)


def test_every_family_of_timms_plain_vits_keeps_to_the_seams() -> None:
    for name in (
        "vit_tiny_patch16_224",
        "deit3_small_patch16_224",
        "vit_base_patch16_clip_224",
        "beit_base_patch16_224",
    ):
        backbone = small(name=name)
        tokens = backbone(images())
        assert tokens.shape == (2, backbone.prefix + backbone.grid[0] * backbone.grid[1], backbone.dim), name


def test_an_unknown_override_is_named() -> None:
    spec = {
        "image_size": [16, 32],
        "backbone": {"_target_": "vitocr.models.timm_adapter.TimmViT", "name": "vit_tiny_patch16_224"}
        | {"overrides": SMALL | {"depht": 3}},
        "head": {"_target_": "vitocr.heads.classify.Classify", "classes": 5},
    }
    with pytest.raises(UserError, match=r"backbone: .*depht"):
        build_model(spec)


def test_dropping_patches_is_refused_with_what_to_set() -> None:
    with pytest.raises(UserError, match="call it with keep=1"):
        small()(images(), keep=0.5)


def test_a_size_that_does_not_divide_is_refused() -> None:
    spec = {
        "image_size": [20, 32],
        "backbone": {"_target_": "vitocr.models.timm_adapter.TimmViT", "name": "vit_tiny_patch16_224"}
        | {"overrides": SMALL},
        "head": {"_target_": "vitocr.heads.classify.Classify", "classes": 5},
    }
    with pytest.raises(UserError, match=r"20x32 .*does not divide into patches of 8x8.*such as 16x32"):
        build_model(spec)
