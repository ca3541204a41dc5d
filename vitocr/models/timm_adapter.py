"""Any timm Vision Transformer as a backbone: `backbone=timm backbone.name=deit_tiny_patch16_224`."""

import difflib
from collections.abc import Sequence

import timm
from torch import Tensor, nn

from vitocr.errors import UserError
from vitocr.models.stem import pair, patch_grid


class TimmViT(nn.Module):
    """`overrides` go to timm's constructor as they are (patch_size, embed_dim, depth, ...)."""

    def __init__(
        self,
        *,
        image_size: int | Sequence[int],
        name: str,
        pretrained: bool = False,
        drop_path: float = 0.0,
        overrides: dict[str, object] | None = None,
    ) -> None:
        super().__init__()
        if not timm.is_model(name):
            near = difflib.get_close_matches(name, timm.list_models("*vit*") + timm.list_models("*deit*"), n=3)
            hint = f" Did you mean {', '.join(near)}?" if near else " timm.list_models('*vit*') lists them."
            raise ValueError(f"backbone.name={name}: timm has no such model.{hint}")
        self.image_size = pair(image_size)
        not_a_vit = f"backbone.name={name} is not a Vision Transformer: it has no patch embedding"
        try:
            self.vit = timm.create_model(
                name,
                pretrained=pretrained,
                img_size=self.image_size,
                num_classes=0,
                drop_path_rate=drop_path,
                **(overrides or {}),
            )
        except TypeError as error:
            raise ValueError(not_a_vit if "'img_size'" in str(error) else f"timm's {error}") from error
        if not hasattr(self.vit, "patch_embed") or not hasattr(self.vit, "num_prefix_tokens"):
            raise ValueError(not_a_vit)
        patch_grid(self.image_size, pair(self.vit.patch_embed.patch_size))  # timm would cut off the odd pixels
        self.dim: int = self.vit.num_features
        self.grid: tuple[int, int] = tuple(self.vit.patch_embed.grid_size)
        self.prefix: int = self.vit.num_prefix_tokens

    def forward(self, images: Tensor, *, keep: float = 1.0, seen: dict[str, Tensor] | None = None) -> Tensor:
        if keep < 1.0:
            raise UserError("a timm backbone sees every patch: call it with keep=1")
        if seen is None:
            return self.vit.forward_features(images)
        tokens, layers = self.vit.forward_intermediates(images, output_fmt="NLC", return_prefix_tokens=False)
        seen |= {f"block{i}.tokens": layer for i, layer in enumerate(layers)}
        return tokens
