"""An attack on what a coordinator recorded, without a federation."""

from pathlib import Path

from attacker.interface import attacks
from attacker.witness import Witness
from server.main import recover
from vfl.config import RunConfig
from vfl.progress import Reporter
from vfl.results import Record, clear_run
from vfl.transcript import Transcript


def attack_transcript(recorded: Transcript, config: RunConfig, folder: Path, reporter: Reporter) -> None:
    """Show the config's attack all complete rounds, let it recover, and write the folder as a run would."""
    running = Witness(attacks.build(config.attack).start(recorded.setting))
    for done, observation in enumerate(recorded, start=1):
        if observation.complete:
            running.observe(observation)
        reporter.step("rounds", done, recorded.rounds)
    clear_run(folder)
    recover(config, recorded.setting, running, Record(rounds=recorded.rounds), folder, reporter)
    reporter.close()
