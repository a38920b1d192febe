"""What can be tuned about the inversion of representations, and what values data can have."""

from collections.abc import Sequence
from typing import Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from vfl.cluster import check_cluster
from vfl.models.layers import FullyConnected
from vfl.observation import Setting


class InversionOptions(BaseModel):
    """The tunables of step III; the defaults are measured on photographs, digits and faces."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tolerance: float = Field(1e-5, gt=0, description="relative residual at which a sample is finished (about 95 dB)")
    acceptable: float = Field(1e-3, gt=0, description="relative residual below which a sample gets no other attempt")
    hopeless: float = Field(0.3, gt=0, description="relative residual above which there is none either: h is not h(x)")
    levels: int = Field(256, ge=0, description="values a pixel can have, tried where they lower the residual; 0: any")
    attempts: int = Field(10, ge=1, description="per sample at most: from grey, repaired, from grey, repaired, …")
    search_steps: int = Field(50, ge=1, description="Adam steps of the first search; later ones take longer")
    learning_rate: float = Field(0.15, gt=0, description="of Adam")
    smoothness: float = Field(0.03, ge=0, description="weight of the roughness of images at the start of a search")
    sharpness: float = Field(4.0, gt=0, description="of the softened gradient of max-pooling at the start of a search")
    noise: float = Field(0.05, ge=0, description="standard deviation of the start around grey, or the mean row")
    polish_steps: int = Field(150, ge=0, description="quasi-Newton steps after a search at most")
    chunk: int | None = Field(None, ge=1, description="samples worked on together; by default what suits the device")
    engine: Literal["local", "ray"] = Field("local", description="where chunks are worked on: here, or as Ray tasks")
    address: str | None = Field(None, description="ray: the cluster, HOST:PORT or auto; without it one made here")

    @model_validator(mode="after")
    def _belongs_to_ray(self) -> Self:
        if self.address is not None and self.engine != "ray":
            raise ValueError(f"address {self.address}: belongs to engine ray")
        return self

    def check_engine(self) -> None:
        """Refuse an engine that is not to be had, before there is anything to lose."""
        if self.engine == "ray":
            check_cluster(self.address, ADDRESS)


ADDRESS = "attack.inversion.engine ray"
"""What the sentences about the cluster begin with."""


FAR = 1.0
"""Standard deviation of later starts for tables: that of their columns."""


PIXELS = "pixels between 0 and 1"
"""What an attack says in its ledger if it keeps images in range: that comes from no gradient."""


def prior(setting: Setting, layers: Sequence[FullyConnected], options: InversionOptions | None) -> tuple[str, ...]:
    """Return what step III takes for granted of what lies before these layers, for the ledger; of tables nothing."""
    hidden = [len(box.shape) == 3 for layer, box in zip(layers, setting.boxes, strict=True) if not layer.sees_data]
    if options is None or not any(hidden):
        return ()
    return (f"{PIXELS} on {options.levels} levels" if options.levels else PIXELS,)


def is_image(x: Tensor) -> bool:
    """Tell images (samples, channels, height, width) from rows of tables (samples, columns)."""
    return x.dim() == 4


def nothing_known(x: Tensor) -> Tensor:
    """Return the middle of what data like x can be: grey, or every column's mean."""
    return torch.full_like(x, 0.5 if is_image(x) else 0.0)


def start_near(x: Tensor, near: float, first: bool) -> float:
    """Return how far from its middle a search starts.

    What h does not tell of a row stays where it started, so that the first start is near the mean.
    """
    return near if first or is_image(x) else FAR


def allowed(x: Tensor) -> Tensor:
    """Return x with pixels in range; a table's columns have none."""
    return x.clamp(0, 1) if is_image(x) else x


def in_levels(x: Tensor, levels: int) -> Tensor | None:
    """Return x rounded to the values that a pixel can have; None for tables, and where any value will do."""
    return (x * (levels - 1)).round() / (levels - 1) if levels and is_image(x) else None


def on_levels(x: Tensor, options: InversionOptions | None) -> Tensor:
    """Tell which samples have values that pixels can have, and no others: what is off by a little has not."""
    rounded = in_levels(x, options.levels) if options else None
    if rounded is None:
        return torch.zeros(len(x), dtype=torch.bool)
    return ((x - rounded).abs() < 1e-6).flatten(1).all(dim=1)


NEAR = 0.2
"""Of a level: how far off pixels are in the mean square when rounding begins to find them; at random it is 0.29."""


def near_levels(x: Tensor, levels: int) -> Tensor:
    """Tell of each sample whether its pixels have come near values that pixels can have: rounding is worth a try."""
    rounded = in_levels(allowed(x), levels)
    if rounded is None:
        return torch.zeros(len(x), dtype=torch.bool, device=x.device)
    return (rounded - allowed(x)).flatten(1).square().mean(1).sqrt() < NEAR / (levels - 1)


def likeliest_length(x: Tensor) -> Tensor:
    """Return data of which the directions are known alone: as bright as an image can be, or as far off as a row is."""
    flat = x.flatten(1)
    length = flat.abs().amax(dim=1) if is_image(x) else flat.square().mean(dim=1).sqrt()
    return x / length.view(-1, *[1] * (x.dim() - 1))
