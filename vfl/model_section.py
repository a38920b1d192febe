"""The config's `model` section: one model for all workers, or different ones, and a top model of its own."""

from pydantic import Field, model_validator

from vfl.registry import PluginSection


class ModelSection(PluginSection):
    """`{name: …, option: …}` as for any plug-in; `top`, `bottoms` and `shared` are the section's own keys."""

    top: PluginSection | None = Field(None, description="another top model than the one that belongs to the name")
    bottoms: dict[int, PluginSection] = Field({}, description="other bottom models, by worker")
    shared: bool = Field(False, description="all workers' bottom models have the same parameters")

    @model_validator(mode="after")
    def _consistent(self) -> "ModelSection":
        if self.shared and self.bottoms:
            raise ValueError("shared: workers with bottom models of their own (bottoms) cannot share parameters")
        return self


def bottom_section(section: PluginSection, worker: int) -> PluginSection:
    """Return the section that names a worker's bottom model."""
    return section.bottoms.get(worker, section) if isinstance(section, ModelSection) else section


def top_section(section: PluginSection) -> PluginSection | None:
    """Return the section that names the top model, None where it comes with the bottom models."""
    return section.top if isinstance(section, ModelSection) else None


def is_shared(section: PluginSection) -> bool:
    """Tell whether all bottom models have the same parameters."""
    return isinstance(section, ModelSection) and section.shared
