"""What workers draw from is theirs alone: an attack that knows everything else gains nothing, and a restart goes on."""

import contextlib
import json
import shutil
import stat
import threading
from pathlib import Path

import pytest
import torch

from attacker.interface import AttackPlugin, Progress
from attacker.start import start_attack
from tests.integration.command_support import wait_for
from tests.integration.federation_support import Federation, assert_same_numbers
from tests.integration.test_resume import kill_coordinator, run
from tests.support import assert_same, flat, run_in_one_process, run_in_processes, small_config
from tests.test_secrets import found_in, spellings
from vfl.cli.ending import finish
from vfl.datasets.slices import boxes_of, load_data
from vfl.errors import RunFailedError
from vfl.files import state_folder
from vfl.folder.summary import load_summary
from vfl.folder.words import defence_lines
from vfl.local.launch import run_federation
from vfl.local.one_process import OneProcess
from vfl.observation import ModelTensors, Observation, Setting
from vfl.recovery import Recovery
from vfl.registry import PluginSection
from worker.keys import FixedSecret, Secret

SEED = 3
DEVIATION = 0.7
BY_WORKER = {
    0: {"name": "noise", "scale": DEVIATION, "relative": False},
    1: {"name": "dp", "noise_multiplier": DEVIATION / 6, "clip": 3.0, "batches": "known"},
    2: {"name": "fake_gradients", "nu": 5},
}
FIXED = {"fixed_secrets": True}


def redrawn(worker: int, number: int, uploaded: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The noise of a worker's upload as the code and the run's seed would give it."""
    draws = FixedSecret(SEED, f"worker {worker}").draws(f"defence 0 of worker {worker}", number)
    return {name: DEVIATION * draws.normal(uploaded[name].shape) for name in in_order(uploaded)}


def in_order(tensors: dict[str, torch.Tensor]) -> list[str]:
    """The names as a worker's model has them, which a transcript does not keep: weights come before biases."""
    return sorted(tensors, key=lambda name: (name.startswith("top "), name.rpartition(".")[0], name.endswith("bias")))


class Subtracts(AttackPlugin):
    """Knows the run's seed, the code and the defence; takes the noise that they give off, and goes on as `exact`."""

    def start(self, setting: Setting) -> "_Subtracting":
        """Begin."""
        return _Subtracting(setting)


class _Subtracting:
    def __init__(self, setting: Setting) -> None:
        self._inner = start_attack(PluginSection(name="exact"), setting)

    def observe(self, observation: Observation) -> None:
        """Show the inner attack what is left."""
        bottoms = []
        for worker, (bottom, top) in enumerate(
            zip(observation.gradients.bottoms, [observation.gradients.top, {}, {}, {}], strict=True)
        ):
            noise = redrawn(worker, observation.round, {**bottom, **{f"top {name}": one for name, one in top.items()}})
            bottoms.append({name: tensor - noise[name] for name, tensor in bottom.items()})
        left = ModelTensors(tuple(bottoms), observation.gradients.top)
        self._inner.observe(Observation(**{**vars(observation), "gradients": left}))

    def recover(self, progress: Progress) -> Recovery:
        """Return what the inner attack has."""
        return self._inner.recover(progress)


def psnr_of(out: Path, attack: str, **federation: bool) -> float:
    config = small_config(
        seed=SEED,
        federation={"rounds": 9, **federation},
        model={"name": "mlp", "hidden": [48]},
        defence={"name": "noise", "scale": DEVIATION, "relative": False},
        attack={"name": attack},
        transcript=False,
    )
    data = load_data(config)
    run_federation(config, data, out)
    finish(out, config, data)
    return json.loads((out / "summary.json").read_text())["attack"]["psnr_mean"]


def test_an_attack_that_knows_the_seed_gains_nothing_unless_secrets_are_fixed(tmp_path):
    knows = f"{__name__}:Subtracts"
    plain = psnr_of(tmp_path / "plain", "exact")
    assert psnr_of(tmp_path / "knows", knows) < plain + 2
    assert psnr_of(tmp_path / "fixed", knows, **FIXED) > plain + 20


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folders and rounds of two default runs and one with fixed secrets, and the true gradients."""
    found = {}
    for name, federation in (("one", {}), ("other", {}), ("fixed", FIXED)):
        out = tmp_path_factory.mktemp(name)
        config = small_config(seed=SEED, defence={"workers": BY_WORKER}, federation=federation)
        found[name] = (out, run_in_processes(config, out))
    return found, run_in_one_process(small_config(seed=SEED))


def left_over(rounds: list[Observation], truth: list[Observation], worker: int) -> float:
    """What is left of the noise without what the seed gives: 0 if that is it, and more than before if it is not."""
    errors = []
    for seen, true in zip(rounds, truth, strict=True):
        uploaded = dict(seen.gradients.bottoms[worker])
        if worker == 0:  # the label holder uploads the top model too
            uploaded |= {f"top {name}": tensor for name, tensor in seen.gradients.top.items()}
        noise = redrawn(worker, seen.round, uploaded)
        errors += [(uploaded[n] - noise[n] - g) / DEVIATION for n, g in true.gradients.bottoms[worker].items()]
    return float(torch.cat([one.flatten() for one in errors]).square().mean().sqrt())


@pytest.mark.parametrize("worker", [0, 1], ids=["noise", "dp"])
def test_noise_cannot_be_taken_away_again_with_the_seed(runs, worker):
    found, truth = runs
    for name in ("one", "other"):
        assert left_over(found[name][1], truth, worker) == pytest.approx(2**0.5, abs=0.15)
    assert left_over(found["fixed"][1], truth, worker) < 1e-5


def test_fake_gradients_hide_where_the_zeros_are_from_the_seed(runs):
    found, truth = runs

    def agreement(rounds):
        """Of the zeros of a weight: how well their order is the one that the seed gives."""
        seen, true = rounds[0].gradients.bottoms[2], truth[0].gradients.bottoms[2]
        draws = FixedSecret(SEED, "worker 2").draws("defence 0 of worker 2", 1)
        for name in in_order(seen):
            shuffle = 2 * draws.integer(27) + 1
            zeros = (true[name] == 0).flatten().nonzero().flatten()
            if name == "1.weight":
                tags = zeros * shuffle % 2**28
                ranks = [one.argsort().argsort() for one in (seen[name].flatten()[zeros], tags)]
                assert len(zeros) > 40
                return float(torch.corrcoef(torch.stack(ranks).double())[0, 1])
        raise AssertionError

    assert agreement(found["fixed"][1]) > 0.99
    assert all(abs(agreement(found[name][1])) < 0.6 for name in ("one", "other"))


def test_two_runs_with_a_defence_that_draws_differ_and_those_of_other_workers_do_not(runs):
    found, _ = runs
    one, other = (flat(found[name][1][0].gradients) for name in ("one", "other"))
    differ = {name.split(".")[0] for name in one if not torch.equal(one[name], other[name])}
    assert differ == {"0", "1", "2", "top"}  # worker 3 has no defence; the label holder is worker 0


def test_two_runs_without_one_are_equal(tmp_path):
    config = small_config(training={"lr": 0.1}, defence=[{"name": "clip", "norm": 0.1}, {"name": "prune"}])
    assert_same(*(run_in_processes(config, tmp_path / name) for name in ("a", "b")))


def test_rows_cannot_be_found_with_the_seed(tmp_path):
    def rows_are_known(name, **federation):
        config = small_config(seed=SEED, defence={"name": "indices"}, federation=federation)
        first = run_in_processes(config, tmp_path / name)[0]
        guessed = FixedSecret(SEED, "all workers").draws("permuted", 0).permutation(24)[first.indices]
        data = load_data(config)
        oracle = OneProcess(Setting.of(config, boxes_of(data, config), data.classes, 24), data.x, data.y)
        expected, _ = oracle(first.parameters, guessed)
        seen, expected = first.gradients.bottoms[1]["1.weight"], expected.bottoms[1]["1.weight"]
        return torch.allclose(seen, expected, rtol=1e-3, atol=1e-6)

    assert rows_are_known("fixed", **FIXED)
    assert not rows_are_known("default")


def test_fixed_secrets_are_said_loudly_and_only_where_something_was_drawn(runs):
    found, _ = runs
    for name, (out, _) in found.items():
        reports = load_summary(out).defence
        lines = [line for line in defence_lines(reports) if "NOT TESTED FOR REAL" in line]
        warned = [report.worker for report in reports if report.warning]
        assert (lines, warned) == ([], []) if name != "fixed" else len(lines) == 1 and warned == [0, 1, 2]


CONFIG = """
seed: 3
data: {name: digits, samples: 60, test_samples: 20}
federation: {workers: 2, batch_size: 10, rounds: 120, label_holder: 1, checkpoint_every: 20, rejoin_timeout: 120}
model: {name: mlp, hidden: [16]}
training: {optimizer: adam, lr: 0.001}
transcript: true
defence: [{name: noise, scale: 0.01}, {name: indices, policy: one_shot, KEY}]
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG.replace(", KEY", ""))
    return path


def undisturbed(config: Path, out: Path, keys: list[Path], common: Path) -> Path:
    """A run of the same secrets from key files, which nothing disturbs."""
    keyed = config.with_name("keyed.yaml")
    keyed.write_text(CONFIG.replace("KEY", f"key_file: {common}"))
    federation = Federation(keyed, out)
    with contextlib.closing(federation):
        for number, key in enumerate(keys):
            federation.worker(number, "--key-file", key)
        federation.finished()
    return out


def test_a_resumed_run_goes_on_with_the_workers_secrets_which_are_in_no_file_of_the_run(config, tmp_path):
    out = tmp_path / "out"
    running = threading.Thread(target=_fails, args=(config, out))
    running.start()
    wait_for(lambda: (out / "transcript" / "round-0000045.safetensors").exists() or not running.is_alive())
    kill_coordinator()
    running.join()
    kept = [path for path in state_folder("runs").rglob("*") if path.is_file()]
    assert sorted(path.parent.name for path in kept) == ["common", "worker-0", "worker-1"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in kept} == {0o700}
    copies = {path.parent.name: shutil.copy(path, tmp_path / path.parent.name) for path in kept}
    run(config, out, resume=True)
    assert [path for path in state_folder("runs").rglob("*") if path.is_file()] == []
    needles = set().union(*(spellings(Path(copy).read_bytes()) for copy in copies.values()))
    assert found_in({str(path): path.read_bytes() for path in out.rglob("*") if path.is_file()}, needles) == set()
    keys = [Path(copies[f"worker-{number}"]) for number in range(2)]
    assert_same_numbers(out, undisturbed(config, tmp_path / "again", keys, Path(copies["common"])))


def _fails(config: Path, out: Path) -> None:
    with contextlib.suppress(RunFailedError):
        run(config, out)


def test_a_restarted_worker_goes_on_with_its_secret_and_forgets_it_at_the_end(config, tmp_path):
    common = tmp_path / "common"
    common.write_bytes(bytes(range(32)))
    config.write_text(CONFIG.replace("KEY", f"key_file: {common}"))
    states = [tmp_path / f"state-{number}" for number in range(2)]
    federation = Federation(config, tmp_path / "out")
    with contextlib.closing(federation):
        workers = [federation.worker(number, "--state", state) for number, state in enumerate(states)]
        federation.reaches(20)
        keys = [Path(shutil.copy(state / "secret", tmp_path / f"key-{n}")) for n, state in enumerate(states)]
        workers[0].kill()
        federation.worker(0, "--state", states[0])
        federation.finished()
        assert workers[1].wait(30) == 0
    assert [list(state.iterdir()) for state in states] == [[], []]
    assert keys[0].read_bytes() != keys[1].read_bytes()
    assert_same_numbers(tmp_path / "out", undisturbed(config, tmp_path / "again", keys, common))


def test_a_worker_that_comes_back_without_its_secret_says_so():
    secret = Secret(kept=Path("nowhere") / "secret")
    secret.go_on()
    with pytest.raises(RunFailedError, match=r"comes back without the secret .* \(nowhere/secret: No such file"):
        secret.draws("noise").normal((2,))


def test_a_secret_that_cannot_be_kept_serves_this_process(tmp_path, capfd):
    (tmp_path / "file").write_text("")
    secret = Secret(kept=tmp_path / "file" / "secret")
    assert torch.equal(secret.draws("noise").normal((9,)), secret.draws("noise").normal((9,)))
    assert "cannot be kept in" in capfd.readouterr().err
