"""An attack on what a coordinator recorded, without a federation."""

from pathlib import Path

from attacker.interface import start_attack
from attacker.witness import Witness
from server.main import recover
from vfl.config import RunConfig
from vfl.errors import in_words
from vfl.journal import Journal
from vfl.results import Record, clear_run
from vfl.transcript import Transcript


def attack_transcript(recorded: Transcript, config: RunConfig, folder: Path) -> None:
    """Show the config's attack all complete rounds, let it recover, and write the folder as a run would."""
    setting = recorded.setting
    running = Witness(start_attack(config.attack, setting))
    clear_run(folder)
    journal = Journal(folder)
    journal.run(config.model_dump(mode="json"), setting.samples, setting.rounds)
    journal.state("attacking")
    try:
        for done, observation in enumerate(recorded, start=1):
            if observation.shown:
                running.observe(observation)
            journal.step("observing", done, recorded.rounds)
        recover(config, setting, running, Record(rounds=recorded.rounds), folder, journal)
    except Exception as error:
        journal.state("ended", str(in_words(error)))
        raise
    finally:
        journal.close()
