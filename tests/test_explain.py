"""What a model sees: the figures mean what they say, every kind of model is explained, the page stands alone."""

import base64
import io
import json
import re
import resource
import shutil
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from heads_kit import DECODERS, half_taught, head_of, random_texts, targets_of, tokens_showing, train, unclear_tokens
from PIL import Image
from torch import Tensor, nn

from vitocr import cli
from vitocr.checkpoint import save_model
from vitocr.codec import Charset, Classes
from vitocr.description import describe
from vitocr.errors import UserError
from vitocr.explain import collect
from vitocr.explain.collect import Explanation, explain, first_filters, position_embeddings, run
from vitocr.explain.draw import Panel, Row, boxed, distance_plot, heat, sheet, similarity_picture, tile_size
from vitocr.explain.looks import cross_attention, ctc_looks, looks_of
from vitocr.explain.measures import attention_distance, even_distance, principal_components, rollout, similarity
from vitocr.explain.page import write
from vitocr.heads.text import boxes
from vitocr.models.model import Model, build_model
from vitocr.models.timm_adapter import TimmViT
from vitocr.preprocess import Preprocess

NAMES = ["red", "green", "blue"]
LETTERS = "abc고<"
VIT = {"_target_": "vitocr.models.vit.ViT", "patch": 8, "dim": 32, "depth": 2, "heads": 2}
TIMM = {
    "_target_": "vitocr.models.timm_adapter.TimmViT",
    "name": "vit_tiny_patch16_224",
    "overrides": {"embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 8},
}
CLASSIFY = {"_target_": "vitocr.heads.classify.Classify", "classes": len(NAMES)}


def reader_head(name: str, **changes: Any) -> dict[str, Any]:
    return {"_target_": f"vitocr.heads.{name.lower()}.{name}", "symbols": len(LETTERS), "max_length": 4} | changes


def described(spec: dict[str, Any]) -> dict[str, Any]:
    text = "symbols" in spec["head"]
    return describe(
        task="toys",
        kind="text" if text else "classify",
        model=spec,
        codec=(Charset(tuple(LETTERS)) if text else Classes(tuple(NAMES))).to_dict(),
        preprocess={
            "size": spec["image_size"],
            "mean": [0.5] * 3,
            "std": [0.25] * 3,
            "resize": "stretch",
            "interpolation": "bilinear",
        },
    )


def model_of(
    backbone: dict[str, Any] = VIT, head: dict[str, Any] = CLASSIFY, size: tuple[int, int] = (32, 32)
) -> Model:
    """A small model with random weights that all do something."""
    torch.manual_seed(1)
    model = build_model({"image_size": list(size), "backbone": backbone, "head": head})
    for parameter in model.parameters():
        if not parameter.any():  # what starts at zero would leave everything as it is
            nn.init.normal_(parameter, std=0.3)
    return model


def explain_one(model: Model, *paths: Path) -> Explanation:
    return explain(model, described(model.spec), paths)


def save_picture(path: Path, seed: int = 0, size: tuple[int, int] = (32, 32)) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling.NEAREST).save(path)
    return path


def redness(picture: Image.Image) -> np.ndarray:
    """How much redder than green each pixel is: heat's peak, on a grey image."""
    pixels = np.asarray(picture.convert("RGB"), np.float32)
    return pixels[..., 0] - pixels[..., 1]


def peak_cell(picture: Image.Image, grid: tuple[int, int]) -> tuple[int, int]:
    """Row and column of the patch that the reddest pixel lies in."""
    y, x = np.unravel_index(redness(picture).argmax(), (picture.height, picture.width))
    return int(y * grid[0] // picture.height), int(x * grid[1] // picture.width)


# --- measures -------------------------------------------------------------------------------------------


def random_attention(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).softmax(dim=-1)


def test_every_row_of_a_rollout_sums_to_one() -> None:
    flow = rollout(random_attention(5, 3, 10, 10))
    assert torch.allclose(flow.sum(dim=-1), torch.ones(10), atol=1e-5) and (flow >= 0).all()


def test_rollout_follows_attention_through_the_layers_in_their_order() -> None:
    """Token 1 gathers from 2 in the first layer and 0 from 1 in the second: a quarter of 2 reaches 0, not of 0, 2."""
    first, second = torch.eye(3), torch.eye(3)
    first[1] = torch.tensor([0.0, 0.0, 1.0])
    second[0] = torch.tensor([0.0, 1.0, 0.0])
    flow = rollout(torch.stack([first, second])[:, None])
    assert flow[0].tolist() == [0.5, 0.25, 0.25]
    assert flow[2].tolist() == [0, 0, 1]
    backwards = rollout(torch.stack([second, first])[:, None])
    assert backwards[0].tolist() == [0.5, 0.5, 0]


def test_rollout_averages_the_heads() -> None:
    heads = random_attention(1, 2, 4, 4)
    assert torch.allclose(rollout(heads), (heads[0].mean(dim=0) + torch.eye(4)) / 2, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 7, 32])
def test_looking_everywhere_alike_on_a_line_is_as_far_as_the_formula_says(count: int) -> None:
    """The mean of |i - j| over all pairs of n places is (n^2 - 1) / 3n."""
    assert even_distance((1, count), (8.0, 4.0)) == pytest.approx(4 * (count**2 - 1) / (3 * count), rel=1e-5)
    assert even_distance((count, 1), (8.0, 4.0)) == pytest.approx(8 * (count**2 - 1) / (3 * count), rel=1e-5)


def test_looking_everywhere_alike_on_two_by_two_patches() -> None:
    """Itself, a side, a side, and the diagonal."""
    assert even_distance((2, 2), (3.0, 4.0)) == pytest.approx((0 + 3 + 4 + 5) / 4)


def test_a_head_that_looks_at_itself_has_distance_zero_and_at_its_neighbour_one_patch() -> None:
    itself, neighbour = torch.eye(6), torch.eye(6)[[1, 0, 3, 2, 5, 4]]
    distance = attention_distance(torch.stack([itself, neighbour])[None], prefix=0, grid=(3, 2), cell=(8.0, 4.0))
    assert distance.tolist() == [[0, 4]]


def test_what_goes_to_the_class_token_has_no_distance() -> None:
    among = random_attention(2, 3, 6, 6)
    whole = torch.full((2, 3, 7, 7), 1 / 7)
    whole[..., 1:, 0] = 0.75
    whole[..., 1:, 1:] = 0.25 * among
    told = attention_distance(whole, prefix=1, grid=(2, 3), cell=(4.0, 4.0))
    assert torch.allclose(told, attention_distance(among, prefix=0, grid=(2, 3), cell=(4.0, 4.0)), atol=1e-5)


def test_a_position_is_like_itself_and_like_those_that_point_the_same_way() -> None:
    positions = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    positions[1, 2] = -3 * positions[0, 0]
    cosines = similarity(positions)
    assert cosines.shape == (2, 3, 2, 3)
    flat = cosines.view(6, 6)
    assert torch.allclose(flat.diagonal(), torch.ones(6), atol=1e-5) and torch.allclose(flat, flat.T)
    assert cosines[0, 0, 1, 2] == pytest.approx(-1, abs=1e-5)


def test_principal_components_find_the_directions_that_filters_were_made_of() -> None:
    random = torch.Generator().manual_seed(0)
    made_of = torch.linalg.qr(torch.randn(12, 2, generator=random))[0].T  # (2, 12), at right angles
    filters = 5 + torch.randn(400, 2, generator=random) * torch.tensor([3.0, 1.0]) @ made_of
    components, shares = principal_components(filters.view(400, 3, 2, 2), limit=5)
    assert components.shape == (5, 3, 2, 2)
    for component, direction in zip(components, made_of, strict=False):
        assert abs(component.flatten() @ direction) > 0.99
        assert component.flatten()[component.abs().argmax()] > 0
    assert shares[0] == pytest.approx(0.9, abs=0.03) and shares[:2].sum() == pytest.approx(1, abs=1e-4)


def test_few_filters_have_few_components() -> None:
    components, shares = principal_components(torch.randn(4, 3, 2, 2), limit=28)
    assert components.shape == (3, 3, 2, 2) and shares.sum() == pytest.approx(1, abs=1e-5)


# --- pictures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("height", "width"), [(32, 32), (32, 128), (300, 200)])
def test_heat_is_red_over_the_patch_that_gets_most_and_grey_elsewhere(height: int, width: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 1), dtype=np.uint8).repeat(3, axis=2)
    share = np.zeros((4, 8), np.float32)
    share[1, 6] = 1
    picture = heat(pixels, share)
    assert picture.size == tile_size(pixels)
    assert peak_cell(picture, (4, 8)) == (1, 6)
    far = redness(picture)[:, : picture.width // 2]
    assert np.abs(far).max() <= 1


def test_an_even_map_has_no_colour_and_a_nearly_even_one_little() -> None:
    pixels = np.full((32, 32, 3), 128, np.uint8)
    even, nearly, peaked = (np.full((4, 4), 1 / 16, np.float32) for _ in range(3))
    nearly[2, 2] *= 1.2
    peaked[2, 2] *= 3
    most = [redness(heat(pixels, share)).max() for share in (even, nearly, peaked)]
    assert most[0] == 0 and 0 < most[1] < 0.6 * most[2]


def test_a_frame_goes_around_its_box_alone() -> None:
    plain = Image.new("RGB", (100, 40), "white")
    framed = np.asarray(boxed(plain, (0.25, 0.5, 0.75, 1.0)))
    rows, columns = np.nonzero((framed != 255).any(axis=2))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (20, 39, 25, 74)
    assert (framed[25:35, 30:70] == 255).all()


def test_the_grid_of_grids_is_brightest_where_a_panel_shows_its_own_position() -> None:
    positions = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))
    cosines = similarity(positions).numpy()
    picture = np.asarray(similarity_picture(cosines).convert("RGBA"), np.int64)
    # The gaps between panels are transparent; the brightest yellow is the only colour of a similarity of one.
    yellow = (np.abs(picture - picture[0, 0]).sum(axis=2) <= 3) & (picture[..., 3] == 255)
    height, width = yellow.shape
    for row in range(2):
        for column in range(3):
            panel = yellow[row * height // 2 : (row + 1) * height // 2, column * width // 3 : (column + 1) * width // 3]
            rows, columns = np.nonzero(panel)
            middle = rows.mean() / panel.shape[0], columns.mean() / panel.shape[1]
            assert middle == pytest.approx(((row + 0.5) / 2, (column + 0.5) / 3), abs=0.06)


@pytest.mark.parametrize("grid", [(1, 32), (8, 1), (8, 8), (14, 14), (2, 32), (1, 1), (40, 40)])
def test_positions_of_any_grid_make_a_picture_of_sensible_size(grid: tuple[int, int]) -> None:
    picture = similarity_picture(similarity(torch.randn(*grid, 8)).numpy())
    assert 100 <= picture.width <= 1200 and picture.height <= 1200


def test_the_plot_of_distances_has_a_version_for_dark_pages() -> None:
    distance = np.random.default_rng(0).random((3, 2), dtype=np.float32) * 10
    light, dark = (np.asarray(distance_plot(distance, 6.0, dark=dark), np.int64) for dark in (False, True))
    assert light.shape == dark.shape and (light[..., 3] == 255).all()
    assert (dark[..., 3] == 0).mean() > 0.5  # the page's own ground shows through
    drawn = dark[dark[..., 3] > 200]
    assert drawn[:, :3].max(axis=1).min() > 120  # no dark ink


def test_a_sheet_holds_every_panel_and_hangul_captions() -> None:
    colours = [(10, 200, 30), (200, 10, 30), (20, 30, 220)]
    panels = [Panel(Image.new("RGB", (90, 40), colour), "고 99 %", "") for colour in colours]
    pixels = np.asarray(
        sheet("제목", "A few words. " * 30, [Row("layer 1", panels[:2]), Row("layer 2", panels[2:])], columns=2)
    )
    for colour in colours:
        assert (pixels == colour).all(axis=2).sum() == 90 * 40


# --- what is collected ----------------------------------------------------------------------------------


def seeker() -> Model:
    """A model whose first head looks at light patches and whose second looks at dark ones, whoever asks."""
    spec = {"image_size": [32, 64], "backbone": VIT | {"dim": 16}, "head": CLASSIFY}
    model = build_model(spec)
    state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    state["backbone.embed.weight"][0] = 1 / 192  # the first number of a token is its brightness
    for block in ("backbone.blocks.0", "backbone.blocks.1"):
        state[f"{block}.norm1.weight"] += 1
        state[f"{block}.attention.query.bias"] += 1
        state[f"{block}.attention.key.weight"][:8, 0] = 1
        state[f"{block}.attention.key.weight"][8:, 0] = -1
    model.load_state_dict(state)
    return model


def test_attention_is_drawn_over_the_pixels_that_got_it(tmp_path: Path) -> None:
    pixels = np.full((32, 64, 3), 40, np.uint8)
    pixels[16:24, 40:48] = 220  # the patch in row 2, column 5 of 4 x 8
    Image.fromarray(pixels).save(tmp_path / "spot.png")
    found = explain_one(seeker(), tmp_path / "spot.png")
    (seen,) = found.images
    assert seen.heads is not None and seen.heads.shape == (2, 2, 4, 8)
    for light, dark in seen.heads:
        assert divmod(int(light.argmax()), 8) == (2, 5) and light.max() > 0.9
        assert dark[2, 5] < 1e-3 and dark[0, 0] == pytest.approx(1 / 31, rel=0.01)
    assert seen.chosen == (2, 5)
    assert seen.rolled is not None and divmod(int(seen.rolled.argmax()), 8) == (2, 5)
    assert seen.from_chosen is not None and seen.from_chosen[0, 0, 2, 5] > 0.9
    write(found, tmp_path / "out", model="seeker")
    shown = Image.open(tmp_path / "out/01-spot-rollout.png")
    redder = redness(shown)
    y, x = np.unravel_index(redder.argmax(), redder.shape)
    # Where the patch stands in the second panel of the sheet: found by the first panel, which is as bright there.
    bright = np.argwhere((np.asarray(shown.convert("RGB")) == 220).all(axis=2))
    (top, left), (bottom, right) = bright.min(axis=0), bright.max(axis=0)
    shift = tile_size(pixels)[0]
    assert top <= y <= bottom and left + shift < x < right + shift + 60


def test_maps_are_those_of_the_class_token_where_it_is_what_is_read(tmp_path: Path) -> None:
    model = model_of(VIT | {"class_token": True}, CLASSIFY | {"pool": "cls"})
    path = save_picture(tmp_path / "a.png")
    (seen,) = explain_one(model, path).images
    told: dict[str, Tensor] = {}
    with torch.inference_mode():
        pixels = Preprocess.from_dict(described(model.spec)["preprocess"])(Image.open(path))
        model(torch.from_numpy(pixels)[None], seen=told)
    assert seen.heads is not None
    assert torch.allclose(seen.heads[1], told["block1.attention"][0, :, 0, 1:].view(2, 4, 4), atol=1e-6)


def test_distances_are_a_mean_over_the_images(tmp_path: Path) -> None:
    paths = [save_picture(tmp_path / f"{seed}.png", seed) for seed in range(3)]
    model = model_of()
    alone = [explain_one(model, path).distance for path in paths]
    together = explain_one(model, *paths)
    assert together.distance is not None and together.distance.shape == (2, 2)
    assert torch.allclose(together.distance, torch.stack([one for one in alone if one is not None]).mean(dim=0))
    assert together.even_distance == even_distance((4, 4), (8.0, 8.0))


def test_timm_models_tell_their_attention_and_are_left_as_they_were() -> None:
    backbone = TimmViT(image_size=(16, 32), name=str(TIMM["name"]), overrides=TIMM["overrides"]).eval()  # type: ignore[arg-type]
    images = torch.randn(1, 3, 16, 32)
    fused = [block.attn.fused_attn for block in backbone.vit.blocks]
    missing: list[str] = []
    with torch.inference_mode():
        tokens, attention = run(backbone, images, missing)
        assert attention is not None and attention.shape == (2, 2, 9, 9) and missing == []
        assert torch.allclose(attention.sum(dim=-1), torch.ones(2, 2, 9), atol=1e-5)
        attn = backbone.vit.blocks[0].attn
        q, k, _ = attn.qkv(backbone.vit.blocks[0].norm1(embedded(backbone, images))).view(1, 9, 3, 2, 16).unbind(dim=2)
        scores = torch.einsum("bnhd,bmhd->bhnm", q, k) / 4
        assert torch.allclose(attention[0], scores.softmax(dim=-1)[0], atol=1e-5)
        assert torch.allclose(tokens[:, -8:], backbone(images)[:, -8:], atol=1e-5)
    assert [block.attn.fused_attn for block in backbone.vit.blocks] == fused
    assert not any(block.attn.attn_drop._forward_hooks for block in backbone.vit.blocks)


def embedded(backbone: TimmViT, images: Tensor) -> Tensor:
    return backbone.vit.norm_pre(backbone.vit.patch_drop(backbone.vit._pos_embed(backbone.vit.patch_embed(images))))


def test_filters_and_positions_are_the_models_own() -> None:
    plain = model_of().backbone
    weights, what = first_filters(plain) or pytest.fail("no filters")
    assert weights.shape == (32, 3, 8, 8) and "patch embedding" in what
    # A filter answers a patch as the layer itself does.
    patch = torch.randn(1, 3, 8, 8)
    answer = nn.functional.linear(plain.cut(patch), plain.embed.weight)[0, 0]  # type: ignore[operator, union-attr]
    assert torch.allclose((weights * patch).sum(dim=(1, 2, 3)), answer, atol=1e-4)
    positions = position_embeddings(plain)
    assert positions is not None and torch.equal(positions, plain.positions[0])  # type: ignore[index]
    stem = model_of(VIT | {"stem": [[8, 2]], "patch": 4}).backbone
    weights, what = first_filters(stem) or pytest.fail("no filters")
    assert weights.shape == (8, 3, 3, 3) and "first convolution" in what
    timm = model_of(TIMM).backbone
    weights, what = first_filters(timm) or pytest.fail("no filters")
    assert weights.shape == (32, 3, 8, 8) and "patch embedding" in what
    positions = position_embeddings(timm)
    assert positions is not None and torch.equal(positions.flatten(0, 1), timm.vit.pos_embed[0, 1:])  # type: ignore


# --- where a reader looked ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*DECODERS, "ctc"])
def test_the_place_of_a_character_is_the_one_the_decoding_told(name: str) -> None:
    head, tokens = half_taught(name), unclear_tokens(12)
    compared = 0
    with torch.inference_mode():
        for one in tokens[:, None]:
            (looks,) = looks_of(head, one)
            decoded = head.decode(one)
            if name == "permuted" and not torch.equal(decoded.ids, head.read(one, refine=0).ids):
                continue  # refined from another text than it became
            n = int(decoded.lengths[0])
            assert looks.ids == decoded.ids[0, :n].tolist() and looks.probs == decoded.probs[0, :n].tolist()
            told = boxes(looks.weights.flatten(1)[None], torch.tensor([n]), rows=1)
            assert torch.allclose(told, decoded.where, atol=1e-6) or name == "ctc"
            assert torch.equal(looks.boxes, decoded.where[0])
            compared += n
    assert compared > 10


@pytest.mark.parametrize("name", ["ctc", "transformer", "permuted", "lstm"])
def test_a_head_that_was_taught_where_characters_stand_looks_at_them(name: str) -> None:
    texts = random_texts(32, seed=1)
    targets, tokens, head = targets_of(texts), tokens_showing(texts), head_of(name)
    train(head, tokens, targets, steps=150, align=1.0)
    inside = []
    with torch.inference_mode():
        for text, spans, one in zip(texts, targets.spans, tokens[:, None], strict=True):
            (looks,) = looks_of(head, one)
            if looks.ids == text and text:
                peaks = (looks.weights[:, 0].argmax(dim=1) + 0.5) / 24
                left, right = spans[: len(text)].unbind(dim=1)
                inside += ((left < peaks) & (peaks < right)).tolist()
    assert len(inside) > 40 and np.mean(inside) > 0.9


def test_ctc_reads_a_character_from_the_columns_of_its_box_alone() -> None:
    head, tokens = half_taught("ctc", grid=(2, 12), max_length=8), unclear_tokens(8)
    with torch.inference_mode():
        for one in tokens[:, None]:
            looks = ctc_looks(head, one)
            for weights, prob, box in zip(looks.weights, looks.probs, looks.boxes, strict=True):
                first, last = round(float(box[0]) * 12), round(float(box[2]) * 12)
                assert (weights[:, first:last] > 0).all()
                assert (weights[:, :first] == 0).all() and (weights[:, last:] == 0).all()
                assert weights.sum(dim=0).max() == pytest.approx(prob, abs=1e-5)


def test_two_readers_are_told_apart() -> None:
    with torch.inference_mode():
        head = model_of(VIT, reader_head("Lstm", ctc=0.5), size=(16, 64)).eval().head
        assert [looks.who for looks in looks_of(head, torch.randn(1, 16, 32))] == ["decoder", "CTC"]
        weights = cross_attention(head, torch.randn(1, 16, 32), head.decode(torch.randn(1, 16, 32), by="decoder"))  # type: ignore
        assert torch.allclose(weights.sum(dim=1), torch.ones(len(weights)), atol=1e-5)


# --- every kind of model --------------------------------------------------------------------------------


class Silent(nn.Module):
    """A backbone that tells nothing but its tokens, and begins with neither a convolution nor patches."""

    def __init__(self) -> None:
        super().__init__()
        self.dim, self.grid, self.prefix = 32, (2, 4), 0
        self.mix = nn.Linear(16 * 32, 8 * 32)

    def forward(self, images: Tensor, *, keep: float = 1.0, seen: dict[str, Tensor] | None = None) -> Tensor:
        return self.mix(images.mean(dim=1).flatten(1)).view(-1, 8, 32)


KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[int, int]]] = {
    "average": (VIT, CLASSIFY, (32, 32)),
    "class token": (VIT | {"class_token": True, "norm": "post"}, CLASSIFY | {"pool": "cls"}, (32, 32)),
    "class token, average": (VIT | {"class_token": True, "keep_patches": 0.5}, CLASSIFY, (32, 32)),
    "one patch": (VIT, CLASSIFY, (8, 8)),
    "stem": (VIT | {"stem": [[8, 2]], "patch": 4}, CLASSIFY, (32, 32)),
    "timm": (TIMM, CLASSIFY, (16, 32)),
    "grey": (VIT | {"channels": 3, "depth": 1}, CLASSIFY, (16, 16)),
    "ctc": (VIT | {"patch": [16, 4]}, reader_head("Ctc", rows="learned"), (32, 64)),
    "transformer": (VIT | {"patch": [32, 4]}, reader_head("Transformer", heads=2), (32, 64)),
    "permuted": (VIT | {"class_token": True}, reader_head("Permuted", heads=2, ctc=0.5), (32, 64)),
    "lstm": (TIMM, reader_head("Lstm", ctc=0.5), (32, 64)),
}


class Links(HTMLParser):
    """What a page is made of; raises on tags that do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.pictures: list[dict[str, str | None]] = []
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        assert tag != "script" and not any(name.startswith("on") for name in told)
        self.addresses += [told[name] or "" for name in ("src", "href", "srcset") if name in told]
        if tag == "img":
            self.pictures.append(told)
        if tag not in ("img", "meta", "link", "source"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def check_page(path: Path) -> Links:
    text = path.read_text(encoding="utf-8")
    page = Links(text)
    assert page.pictures
    for address in page.addresses:
        assert address.startswith(("data:", "#")), address[:80]
    assert "url(" not in text and "@import" not in text
    for picture in page.pictures:
        assert picture["alt"]
        image = Image.open(io.BytesIO(base64.b64decode((picture["src"] or "").split(",", 1)[1])))
        image.load()
        assert image.size == (int(picture["width"] or 0), int(picture["height"] or 0))
    ids = re.findall(r'id="([^"]+)"', text)
    assert [address[1:] for address in page.addresses if address.startswith("#")] == ids
    return page


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_is_explained(kind: str, tmp_path: Path) -> None:
    backbone, head, size = KINDS[kind]
    model = model_of(backbone, head, size=size)
    found = explain_one(model, save_picture(tmp_path / "a.png", size=size), save_picture(tmp_path / "b.png", 2))
    assert found.missing == []
    written = write(found, tmp_path / "out", model=kind)
    check_page(written[0])
    names = {path.name for path in written[1:]}
    wanted = {"model-filters.png", "model-positions.png", "model-distance.png"}
    wanted |= {f"{image}-{what}.png" for image in ("01-a", "02-b") for what in ("rollout", "heads", "patch")}
    read = [looks for seen in found.images for looks in seen.looks if looks.ids]
    assert not read or "symbols" in head
    readers = {looks.who for seen in found.images for looks in seen.looks}
    expected = {"ctc": {"CTC"}, "transformer": {"decoder"}, "permuted": {"decoder", "CTC"}, "lstm": {"decoder", "CTC"}}
    assert readers == expected.get(kind, set())
    assert names - {f"{image}-{who}.png" for image in ("01-a", "02-b") for who in ("decoder", "ctc")} == wanted
    for path in written[1:]:
        with Image.open(path) as picture:
            assert picture.format == "PNG" and picture.width >= 400
            assert len(picture.convert("RGB").getcolors(10**7) or ()) > 10


@pytest.mark.parametrize("changes", [{"positions": "rotary"}, {"positions": "none", "attention": "strided"}])
def test_models_without_learned_positions_or_with_sparse_attention_are_explained(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    found = explain_one(model_of(VIT | changes), save_picture(tmp_path / "a.png"))
    assert found.missing == ["Similarity of positions: this backbone learns no position embeddings."]
    assert found.distance is not None and found.distance.shape == (2, 2)
    assert "model-positions.png" not in {path.name for path in write(found, tmp_path / "out", model="m")}


def test_a_pretrained_backbone_is_explained_without_an_answer(tmp_path: Path) -> None:
    model = model_of()
    found = explain(model, described(model.spec) | {"kind": "pretrain"}, [save_picture(tmp_path / "a.png")])
    assert found.images[0].answer is None and found.images[0].heads is not None
    page = check_page(write(found, tmp_path / "out", model="encoder")[0])
    assert "has no answers yet" in " ".join(page.words)


def silent() -> Model:
    backbone = Silent()
    head = {"_target_": "vitocr.heads.classify.Classify", "classes": 3}
    spec = {"image_size": [16, 32], "backbone": {"_target_": "somebody.elses.Silent"}, "head": head}
    built = build_model({"image_size": [16, 32], "backbone": VIT, "head": head})
    return Model(backbone, built.head, spec)


def test_what_does_not_apply_is_said_on_the_page(tmp_path: Path) -> None:
    found = explain_one(silent(), save_picture(tmp_path / "a.png"))
    assert [sentence.split(":")[0] for sentence in found.missing] == [
        "Filters",
        "Similarity of positions",
        "Attention, rollout and distances",
    ]
    written = write(found, tmp_path / "out", model="silent")
    page = " ".join(check_page(written[0]).words)
    for sentence in found.missing:
        assert f"Not shown: {sentence}" in page
    assert [path.name for path in written] == ["index.html", "01-a-rollout.png"]


def test_attention_too_large_to_hold_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "MOST_BYTES", 4 * 4 * 16 * 16 - 1)  # 2 layers of 2 heads over 16 tokens
    found = explain_one(model_of(), save_picture(tmp_path / "a.png"))
    assert found.images[0].heads is None and found.positions is not None
    assert found.missing == ["Attention, rollout and distances: 4 heads over 16 tokens would take 0.0 GB an image."]
    monkeypatch.setattr(collect, "MOST_BYTES", 4 * 4 * 16 * 16)
    assert explain_one(model_of(), save_picture(tmp_path / "a.png")).missing == []


def test_names_and_characters_are_written_as_text_not_as_html(tmp_path: Path) -> None:
    model = model_of(VIT | {"patch": [32, 4]}, reader_head("Ctc"), size=(32, 64))
    head = model.head
    nn.init.zeros_(head.logits.weight)  # type: ignore[union-attr, arg-type]
    head.logits.bias.data = torch.tensor([0, 0, 0, 0, 9.0, 0])  # type: ignore[union-attr]  # "<" everywhere
    path = save_picture(tmp_path / "<b> & 고양이.png", size=(32, 64))
    written = write(explain_one(model, path), tmp_path / "out", model="<i>")
    page = check_page(written[0])
    words = "\n".join(page.words)
    assert "What <i> sees" in words and "<b> & 고양이.png" in words and "Read as “<”" in words
    assert "01-_b_고양이-ctc.png" in {path.name for path in written}


# --- the command ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def word_reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    backbone, head, size = KINDS["permuted"]
    model = model_of(backbone, head, size=size)
    path = tmp_path_factory.mktemp("reader") / "model.safetensors"
    save_model(path, model.state_dict(), described(model.spec))
    return path


def vitocr_command(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    return int(left.value.code or 0)


def test_the_command_writes_a_page_and_pictures(
    word_reader: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    save_picture(tmp_path / "in/a.png")
    assert vitocr_command("explain", str(word_reader.parent), str(tmp_path / "in"), "--out", str(tmp_path / "out")) == 0
    pictures = sorted((tmp_path / "out").glob("*.png"))
    assert f"wrote {tmp_path / 'out/index.html'} and {len(pictures)} pictures" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.suffix != ".png") == ["index.html"]
    check_page(tmp_path / "out/index.html")


def test_an_image_that_cannot_be_read_is_named_and_the_others_are_explained(
    word_reader: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = save_picture(tmp_path / "good.png"), tmp_path / "bad.png"
    bad.write_bytes(b"no pixels")
    assert vitocr_command("explain", str(word_reader), str(bad), str(good), "--out", str(tmp_path / "out")) == 1
    told = capsys.readouterr().err
    assert "bad.png' cannot be read as an image" in told and "1 of 2 images could not be read" in told
    assert "Left out: " in " ".join(check_page(tmp_path / "out/index.html").words)
    assert vitocr_command("explain", str(word_reader), str(bad), "--out", str(tmp_path / "none")) == 2
    assert "bad.png' cannot be read as an image" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_mistakes_are_explained(word_reader: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = str(save_picture(tmp_path / "a.png"))
    assert vitocr_command("explain", str(word_reader), str(tmp_path / "absent.png"), "--out", str(tmp_path / "o")) == 2
    assert "There is no image" in capsys.readouterr().err
    assert vitocr_command("explain", str(word_reader), picture, "--out", picture) == 2
    assert "a.png is a file; name a folder" in capsys.readouterr().err
    (tmp_path / "many").mkdir()
    for number in range(25):
        shutil.copy(picture, tmp_path / f"many/{number}.png")
    assert vitocr_command("explain", str(word_reader), str(tmp_path / "many"), "--out", str(tmp_path / "o")) == 2
    assert "25 images are more than a page can show: name 24 at most" in capsys.readouterr().err
    with pytest.raises(UserError, match="no image to explain"):
        explain_one(model_of())


def test_explaining_takes_seconds_and_imports_no_training(word_reader: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from vitocr.cli import app\n"
        "try: app(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(sorted({'lightning', 'hydra', 'albumentations'} & set(sys.modules)))"
    )
    words = ["explain", str(word_reader), str(save_picture(tmp_path / "a.png")), "--out", str(tmp_path / "out")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout.splitlines()[-1] == "[]"
    assert after.ru_utime - before.ru_utime < 10  # of the CPU: other work on the machine does not count


# --- in a browser ---------------------------------------------------------------------------------------

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
in_a_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here to open the page in")

# Opens the page in a frame as wide as a phone or a desk, and writes down what the page tells of itself.
FRAME = """<!doctype html><link rel="icon" href="data:,">
<iframe src="{page}" style="width: {width}px; height: 800px; border: 0"></iframe>
<script>addEventListener("message", event => {{ document.body.dataset.told = event.data }})</script>"""
TELL = """<script>addEventListener("load", () => {
  const page = document.documentElement, images = [...document.images]
  parent.postMessage(JSON.stringify({
    client: page.clientWidth, scroll: page.scrollWidth, images: images.length,
    broken: images.filter(image => !image.complete || !image.naturalWidth).length,
    narrowest: Math.min(...images.map(image => image.getBoundingClientRect().width)),
    letters: Math.min(...[...document.querySelectorAll("p, h3, h4, figcaption")].map(
      part => parseFloat(getComputedStyle(part).fontSize))),
    ground: getComputedStyle(document.body).backgroundColor,
  }), "*")
})</script></body>"""


def browse(page: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [
        f"--user-data-dir={page.parent.parent / 'profile'}",
        "--virtual-time-budget=5000",
        *words,
        page.as_uri(),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def word_page(word_reader: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    paths = [save_picture(folder / f"{seed}.png", seed, (32, 64)) for seed in range(2)]
    assert vitocr_command("explain", str(word_reader), *map(str, paths), "--out", str(folder / "out")) == 0
    return folder / "out/index.html"


@in_a_browser
def test_the_page_opens_without_a_word_on_the_console(word_page: Path, tmp_path: Path) -> None:
    told = browse(word_page, "--dump-dom")
    assert "The model" in told.stdout and "CONSOLE" not in told.stderr
    # A page that did ask for something would be heard of.
    asking = tmp_path / "asking.html"
    asking.write_text(word_page.read_text().replace("</main>", '<img src="https://example.org/a.png" alt=""></main>'))
    assert "CONSOLE" in browse(asking, "--dump-dom").stderr


@in_a_browser
@pytest.mark.parametrize("width", [380, 1200])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_a_phone_and_a_desk_by_day_and_by_night(
    word_page: Path, tmp_path: Path, width: int, dark: bool
) -> None:
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", word_page.read_text())
    (tmp_path / "page.html").write_text(text.replace("</body>", TELL))
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(page="page.html", width=width))
    told = browse(frame, "--dump-dom", *(["--blink-settings=preferredColorScheme=0"] if dark else []))
    found = re.search(r'data-told="([^"]*)"', told.stdout)
    assert found, told.stderr
    facts = json.loads(unescape(found.group(1)))
    assert facts["images"] == len(Links(word_page.read_text()).pictures) > 20
    assert facts["broken"] == 0
    assert facts["scroll"] <= facts["client"] <= width  # nothing sticks out at the side
    assert facts["narrowest"] >= 40 and facts["letters"] >= 12
    assert facts["ground"] == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")
