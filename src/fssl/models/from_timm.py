"""Networks of the library timm, by timm's names: `timm:convnext_tiny`. Nothing is ever downloaded."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

from torch import Tensor, nn

from ..errors import UserError, error_text, nearest
from .resnet import Head

PREFIX = "timm:"


class TimmNet(nn.Module):
    """A timm network up to its features, followed by fssl's head."""

    def __init__(self, body: Any, classes: int, dropout: float) -> None:
        super().__init__()
        self.body, self.classifier = body, str(body.default_cfg.get("classifier") or "")
        self.head = Head(getattr(body, "head_hidden_size", None) or body.num_features, classes, dropout)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        feature, logits = self.head(self.body(x))
        return feature, logits

    def our_name(self, name: str) -> str:
        """Return fssl's name for a tensor of timm's weights."""
        layer, _, last = name.rpartition(".")
        return f"head.linear.{last}" if layer == self.classifier else f"body.{name}"


def find_timm(name: str) -> Callable[..., nn.Module]:
    """Return the builder of a timm network."""
    timm = load_timm(name)
    known = name.removeprefix(PREFIX)
    if not timm.is_model(known):
        near = nearest(known, timm.list_models())
        hint = f"; did you mean {' or '.join(f'{PREFIX}{other}' for other in near)}?" if near else ""
        raise UserError(f"network '{name}' is unknown to timm {timm.__version__}{hint}")

    def build(
        channels: int, classes: int, width: int, size: int = 224, dropout: float = 0.0, drop_path: float = 0.0
    ) -> TimmNet:
        if width != 4:
            raise UserError(f"model.width = {width}: network '{name}' has a single width; remove it")
        facts = timm.get_pretrained_cfg(known)
        fixed = {"img_size": size} if facts and facts.fixed_input_size else {}  # else any size works
        given = fixed | ({"drop_path_rate": drop_path} if drop_path else {})
        try:
            body = timm.create_model(known, pretrained=False, num_classes=0, in_chans=channels, **given)
        except Exception as error:  # timm raises errors of many types
            raise UserError(
                f"network '{name}' cannot be built for images of {size} pixels: {error_text(error)}"
            ) from error
        return TimmNet(body, classes, dropout)

    return build


def load_timm(name: str) -> ModuleType:
    try:
        import timm
    except Exception as error:  # a torchvision that does not fit torch is a RuntimeError
        raise UserError(f"network '{name}' needs packages: pip install 'fssl[timm]' ({error_text(error)})") from None
    return cast(ModuleType, timm)
