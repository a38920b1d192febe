"""Classes of some samples that a worker knows from elsewhere, as the config says them."""

from collections.abc import Mapping

from attacker.interface import Lack, RefusalError, Setting


def check_known(attack: str, known: Mapping[int, int], setting: Setting) -> None:
    """Refuse samples and classes that the run does not have, and samples that leave none to find out about."""
    for sample, label in known.items():
        if not (0 <= sample < setting.samples and 0 <= label < setting.classes):
            found = f"attack.known says {label} of sample {sample}"
            needs = f"samples below {setting.samples} and classes below {setting.classes}"
            raise RefusalError(attack, Lack(needs, found))
    if len(known) >= setting.samples:
        raise RefusalError(attack, Lack("a sample whose class is not known", "attack.known names all of them"))


def told_words(known: Mapping[int, int]) -> str:
    """Return them for the ledger."""
    return f"the classes of {len(known)} samples"
