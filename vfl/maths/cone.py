"""When a single gradient of a fully connected layer gives a sample of its batch away: as an extreme ray of its cone."""

from torch import Tensor

from vfl.maths.factors import factorize
from vfl.maths.least_squares import beyond


def enough_zeros(samples: int) -> float:
    """Return how many zeros show a sample of so many: any vertex of the cone has one fewer than there are samples."""
    return 1.5 * samples + 5


def given_away(weight: Tensor, h: Tensor, error: float) -> Tensor:
    """Tell which samples, whose inputs h (n, inputs) are known, a layer's gradient (outputs, inputs) gives away: bool.

    G = sum of v_n h_n^T has h_n among its rows' combinations if v_n is none of the other samples' v (then some
    combination of outputs cancels all others), and a gradient that a defence altered has it as nearly as it is true.
    Zeros that a ReLU left single h_n out among these combinations. `error` is relative.
    """
    own = factorize(weight, None, len(h))
    inputs = h.detach().double().cpu()
    lengths = inputs.norm(dim=1)
    away = beyond(own.left, inputs).norm(dim=1)
    zeros = (inputs == 0).sum(dim=1)
    given: Tensor = (inputs >= 0).all(dim=1) & (zeros >= enough_zeros(own.rank)) & (away < error * lengths)
    return given
