"""YAML from any source: no aliases, and a limit on nesting and on numbers."""

from collections import Counter
from typing import Any

import yaml

from vfl.limits import CONFIG_DEPTH

_LARGEST = (1 << 63) - 1


class YamlError(ValueError):
    """A text that is not YAML, or has what is not read here; the message says why in one line."""


def parse_yaml(text: str) -> Any:
    """Return what a YAML text holds."""
    try:
        return yaml.load(text, _Loader)  # a stricter safe loader  # nosec B506
    # Impossible dates and numbers raise ValueError.
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise YamlError(" ".join(str(error).split())) from None


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader (plain values only), without what lets a short text become a large tree."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse aliases: a few lines of them can stand for more values than any memory holds."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not read here: write the value out")
        self._depth += 1
        if self._depth > CONFIG_DEPTH:
            raise yaml.YAMLError(f"it is nested more than {CONFIG_DEPTH} deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Refuse a key that stands twice: whoever reads the first of them would be misled, as the last one counts."""
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((key for key, count in Counter(keys).items() if count > 1), None)
        if twice is not None:
            raise yaml.YAMLError(f"the key {twice[:100]!r} stands there twice")
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: Any) -> int:
        """Refuse numbers of more than 64 bits."""
        number: int = super().construct_yaml_int(node)
        if abs(number) > _LARGEST:
            raise yaml.YAMLError("it holds a whole number of more than 64 bits")
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
