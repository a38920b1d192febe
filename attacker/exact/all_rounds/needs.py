"""What lacks for all samples of all rounds to be looked for at once."""

from collections.abc import Sequence

from torch import nn

from attacker.exact.all_rounds.stacking import is_affine, second_of
from attacker.refusal import Lack
from vfl.models.layers import FullyConnected
from vfl.models.whole import first_model
from vfl.observation import Setting

EPOCHS = 6
"""Rounds of each sample that it takes at the least."""
MOST_NUMBERS = 6000
"""Unknown numbers that are solved for at once: a matrix has the square of that."""
MOST_CLASSES = 10
"""Every sample is tried in each class."""


def lack(setting: Setting, bottoms: Sequence[nn.Module], layers: Sequence[FullyConnected]) -> Lack | None:
    """Return what lacks; None if the rounds can be looked at together."""
    if setting.loss.hides_divisor:
        return Lack("rounds that are divided by a number it knows", "class weights hide what a batch was divided by")
    if setting.local_steps > 1:
        return Lack("one step in each round", f"workers upload the mean of {setting.local_steps}")
    for worker, (bottom, layer, box) in enumerate(zip(bottoms, layers, setting.boxes, strict=True)):
        if second_of(bottom, layer, box.shape) is None:
            needs = "at each worker a layer that sees the data, a ReLU and one layer more"
            return Lack(needs, f"worker {worker}'s model has another form")
    model = first_model(setting)
    if not is_affine(model.top, sum(model.widths)):
        return Lack("a top model without hidden layers", "it has some")
    numbers = setting.samples * (sum(layer.inputs for layer in layers) + setting.loss.of_number)
    if numbers > MOST_NUMBERS or setting.classes > MOST_CLASSES:
        found = f"there are {setting.samples} with {numbers // setting.samples}, and {setting.classes} classes"
        return Lack(f"at most {MOST_NUMBERS} unknown numbers (samples times columns), {MOST_CLASSES} classes", found)
    per_epoch = setting.rounds_per_epoch
    if setting.rounds < EPOCHS * per_epoch:
        needs = f"{EPOCHS} epochs ({EPOCHS * per_epoch} rounds)"
        return Lack(needs, f"the run has {setting.rounds} rounds")
    return None
