"""An attack: rounds come in through `observe`, the estimate goes out of `recover`."""

import torch

from attacker.interface import Attack, AttackPlugin, Observation, Progress, Recovery, Setting


class ClassCounts(AttackPlugin):
    """Zhao et al. 2020 (iDLG), their observation: the top bias's gradient is the mean of softmax minus label."""

    def start(self, setting: Setting) -> Attack:
        """Begin."""
        return _Counting()


class _Counting:
    def __init__(self) -> None:
        self._gradients: list[torch.Tensor] = []

    def observe(self, observation: Observation) -> None:
        """Keep one small tensor of each round."""
        self._gradients.append(observation.gradients.top["fc.bias"])

    def recover(self, progress: Progress) -> Recovery:
        """Say which class is there more often than the model expects."""
        mean = torch.stack(self._gradients).mean(0)
        return Recovery(used=("gradients",), notes=(f"Class {int(mean.argmin())} is more frequent than expected.",))
