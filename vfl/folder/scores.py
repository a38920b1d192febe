"""Scores of a recovery, each beside what a guess without gradients gets."""

from pydantic import Field

from vfl.folder.schema import Count, Measure, Part, Word

MARGIN_DB, MARGIN_SSIM = 1.0, 0.05
"""Images so little above the mean image tell nothing."""

MARGIN_R2 = 0.1
"""So little of a column's variance tells nothing; guessing the mean has an R2 of 0."""


class Step(Part):
    """How far the attack was after a round."""

    round: Count
    seconds: Measure = None
    psnr_mean: Measure = None
    mse_mean: Measure = None
    r2: Measure = None


class Right(Part):
    """How many values are right, as shares of all, beside the best guess without gradients: the same value for all.

    It is chosen by the truth, which is generous to it; to draw from the values' frequencies is never better.
    """

    right: Measure = None
    unknown: Measure = None
    """Not recovered: neither right nor wrong."""
    guess: Measure = None
    """What the guess has right."""
    gain: Measure = None
    """How many more are right if the guess stands in for what is unknown."""
    leaked: bool = False
    """Whether that is more than chance explains."""

    @property
    def beyond(self) -> float:
        """Return how much of what a guess leaves open is known: 0 is a guess, 1 is all."""
        left_open = 1 - (self.guess or 0.0)
        return min(1.0, max(0.0, (self.gain or 0.0) / left_open)) if left_open > 0 else 0.0

    @property
    def in_words(self) -> str:
        """Say what share is right, beside the guess's."""
        return f"{self.right or 0.0:.1%} right, guessing {self.guess or 0.0:.1%}"


class ColumnScore(Part):
    """How much of a table's column leaked: R2 of numbers, the share of right categories of words; 1 is all."""

    name: Word
    worker: Count | None = None
    """Who holds it, if not all do."""
    kind: Word = None
    accuracy: Measure = None
    r2: Measure = None
    exact: Right = Field(default_factory=Right)
    """Categories; numbers to a thousandth of their range."""
    near: Right | None = None
    """Numbers to a twentieth of their range."""

    @property
    def score(self) -> float | None:
        """Return the one of the two that the column has."""
        return self.accuracy if self.r2 is None else self.r2

    @property
    def best(self) -> Right:
        """Return the one of the tolerances at which the most is gained over a guess."""
        return max(self.exact, self.near or self.exact, key=lambda one: one.gain or 0.0)

    @property
    def leaked(self) -> bool:
        """Whether the attack knows more of it than a guess; the R2 of the mean is 0."""
        return self.exact.leaked or (self.near or self.exact).leaked or (self.r2 or 0.0) > MARGIN_R2

    @property
    def in_words(self) -> str:
        """Name it, with what is known of it and what a guess gives."""
        holder = "" if self.worker is None else f" of worker {self.worker}"
        within = " to 5 % of its range" if self.best is self.near else ""
        share = self.best.in_words.replace(" right", f" right{within}", 1)
        return f"{self.name}{holder} ({share if self.best.leaked else f'R2 {self.r2 or 0.0:.2f}, guessing 0'})"


class PartyScore(Part):
    """How much of what one worker holds leaked, beside a guess: its slice of images, the mean of its columns."""

    worker: Count
    psnr: Measure = None
    mse: Measure = None
    psnr_baseline: Measure = None
    """Of the mean image's slice."""
    ssim: Measure = None
    ssim_baseline: Measure = None
    values: Right | None = None
    """The mean over its columns, each at the tolerance at which the most is gained."""
    rows: Right | None = None
    """Its rows of which every value is right; the guess is the most frequent row."""

    @property
    def in_words(self) -> str:
        """Say how well its slice was rebuilt, beside the mean image's."""
        scores = [] if self.psnr is None else [f"{self.psnr:.1f} dB (guessing {self.psnr_baseline or 0.0:.1f})"]
        scores += [] if self.ssim is None else [f"SSIM {self.ssim:.3f} (guessing {self.ssim_baseline or 0.0:.3f})"]
        return ", ".join(scores)

    @property
    def leak(self) -> str:
        """Say what the attack knows of its images beyond their mean, if it does."""
        if is_beyond(self.psnr, self.psnr_baseline, MARGIN_DB):
            return f"worker {self.worker}'s part ({self.psnr:.1f} dB, guessing {self.psnr_baseline:.1f})"
        if is_beyond(self.ssim, self.ssim_baseline, MARGIN_SSIM):
            return f"worker {self.worker}'s part (SSIM {self.ssim:.3f}, guessing {self.ssim_baseline:.3f})"
        return ""


def is_beyond(value: float | None, guess: float | None, margin: float) -> bool:
    """Tell whether a score is more than a guess's, by more than a margin."""
    return value is not None and guess is not None and value > guess + margin
