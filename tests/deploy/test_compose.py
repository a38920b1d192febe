"""`docker compose up` in a real engine: the numbers of `cafe run`, exit codes, and who can see and do what."""

import contextlib
import http.client
import json
import re
import socket
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch

from tests.deploy.compose_support import IMAGE, Composed, build_image, docker, engine_answers, page_lines
from tests.integration.command_support import cafe, wait_for
from vfl.config import load_config
from vfl.datasets.slices import WorkerData, load_data, slice_for
from vfl.folder.schema import as_json
from vfl.folder.summary import load_summary
from vfl.maths.metrics import psnr

pytestmark = [
    pytest.mark.skipif(
        not engine_answers(), reason="no Docker engine: `docker info` or `docker compose version` fails"
    ),
    pytest.mark.timeout(1500),
]

CONFIG = """
seed: 1
data: {name: photos, samples: 24, test_samples: 20}
federation: {workers: 4, batch_size: 4, epochs: 1, join_timeout: 600}
model: {name: mlp, hidden: [16]}
"""
CHOSEN = {
    "CAFE_DATASET": "digits",
    "CAFE_ATTACK": "least_squares",
    "CAFE_DEFENCE": "noise",
    "CAFE_ROUNDS": "48",
    "CAFE_SET": "seed=4 defence.scale=0.01 federation.fixed_secrets=true",
}
THE_SAME = ["data.name=digits", "attack.name=least_squares", "defence={name: noise, scale: 0.01}", "seed=4"]
THE_SAME += ["federation={workers: 4, batch_size: 4, rounds: 48, fixed_secrets: true}"]

LONG = """
seed: 2
data: {name: digits, samples: 60, test_samples: 20}
federation: {workers: 4, batch_size: 6, rounds: 600, join_timeout: 900, rejoin_timeout: 300, fixed_secrets: true}
model: {name: mlp, hidden: [16]}
attack: {name: least_squares}
defence: {name: noise, scale: 0.01}
transcript: true
"""
UP, DOWN, UP_SIXTEEN, DOWN_SIXTEEN = page_lines()
GATHERED = ["server", "worker-0", "worker-1", "worker-2"]


@pytest.fixture(scope="module", autouse=True)
def image(tmp_path_factory):
    yield build_image(tmp_path_factory.mktemp("image"))
    docker("image", "rm", "--force", IMAGE)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "run.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def long_config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "long.yaml"
    path.write_text(LONG)
    return path


@pytest.fixture(scope="module")
def gathering(long_config, tmp_path_factory):
    """A federation that waits for its last worker."""
    with Composed("gathering", long_config, tmp_path_factory.mktemp("gathering") / "results") as composed:
        composed.compose("up", "--detach", *GATHERED)
        yield composed


def same_run(config, changes, tmp_path):
    settings = [word for change in changes for word in ("--set", change)]
    done = cafe("run", config, "--out", tmp_path / "here", "--quiet", *settings)
    assert done.returncode == 0, done.stderr
    return load_summary(tmp_path / "here")


def assert_the_numbers_of_a_run(results, config, changes, tmp_path):
    found, expected = as_json(load_summary(results)), as_json(same_run(config, changes, tmp_path))
    assert found["train"] == expected["train"]
    assert len(found["train"]["losses"]) == found["rounds"]
    assert psnr_of_each(results) == pytest.approx(psnr_of_each(tmp_path / "here"), abs=1e-3)
    assert found["attack"]["psnr_mean"] == pytest.approx(expected["attack"]["psnr_mean"], abs=1e-3)


def owners(results):
    return {(path.stat().st_uid, path.stat().st_gid) for path in (results, *results.rglob("*"))}


def psnr_of_each(results):
    with np.load(results / "recovered.npz") as arrays:
        return psnr(torch.tensor(arrays["x"]), torch.tensor(arrays["x_true"])).tolist()


def test_four_workers_give_the_numbers_of_a_run_and_leave_nothing_behind(config, tmp_path):
    with Composed("four", config, tmp_path / "results", **CHOSEN) as composed:
        code, words = composed.say(UP)
        assert code == 0, words
        assert all(f"worker {m}: done after 48 rounds" in words for m in range(4)), words
        assert composed.say(DOWN)[0] == 0
        assert composed.left() == []
    written = {"report.html", "summary.json", "recovered.npz", "recovered.png"}
    assert written <= {path.name for path in composed.results.iterdir()}
    assert owners(composed.results) == {(1000, 1000)}
    assert_the_numbers_of_a_run(composed.results, config, THE_SAME, tmp_path)


def test_sixteen_workers_end_by_themselves_and_a_curious_one_leaves_what_it_found(config, tmp_path):
    """Whoever the results belong to: the coordinator's, and in a folder of its own those of worker 2."""
    seat = {"CAFE_DEFENCE": "", "CAFE_ATTACK": "label_clusters", "CAFE_ADVERSARY": "{worker: 2}"}
    environment = {**CHOSEN, **seat, "CAFE_SET": "seed=4", "CAFE_USER": "4321:4322"}
    with Composed("sixteen", config, tmp_path / "results", **environment) as composed:
        code, words = composed.say(with_seats(UP_SIXTEEN))
        assert code == 0, words
        assert all(f"worker {m}: done after 48 rounds" in words for m in range(16)), words
        services = ["setup", "server", *(f"worker-{m}" for m in range(16))]
        assert [composed.inspect(service)["State"]["ExitCode"] for service in services] == [0] * 18
        seats = {f"worker-{m}": {"/results": None} for m in range(4)}
        expected = {name: own | seats.get(name, {}) for name, own in expected_mounts(composed, 16).items()}
        assert {service: mounts(composed, service) for service in services[1:]} == expected
        assert composed.say(with_seats(DOWN_SIXTEEN))[0] == 0
        assert composed.left() == []
    found = tmp_path / "results-seats"
    assert owners(composed.results) | owners(found / "worker-2") == {(4321, 4322)}
    assert [path.name for path in found.iterdir()] == ["worker-2"]
    changes = ["data.name=digits", "attack.name=label_clusters", "adversary={worker: 2}", "seed=4"]
    changes += ["federation={workers: 16, batch_size: 4, rounds: 48}"]
    here = same_run(config, changes, tmp_path)
    assert load_summary(composed.results).train == here.train
    assert load_summary(composed.results).attack.elsewhere
    assert load_summary(found / "worker-2").attack.labels == here.attack.labels
    assert not (composed.results / "recovered.npz").exists()


def test_a_coalitions_parties_keep_what_they_saw_and_one_command_puts_it_together(config, tmp_path):
    coalition = {"CAFE_ATTACK": "label_clusters", "CAFE_ADVERSARY": "[coordinator, {worker: 2}]", "CAFE_ROUNDS": "12"}
    environment = {"CAFE_DATASET": "digits", **coalition}
    with Composed("coalition", config, tmp_path / "results", **environment) as composed:
        code, words = composed.say(UP)
        assert code == 2, words
        assert "worker 2's container has no folder for what it finds; add -f deploy/compose/seats.yml" in words
        assert composed.say(DOWN)[0] == 0
        code, words = composed.say(with_seats(UP))
        assert code == 0, words
        assert composed.say(with_seats(DOWN))[0] == 0
    seen = ("--volume", f"{composed.results}:/seen", "--volume", f"{tmp_path / 'results-seats/worker-2'}:/seen-2")
    recorded = ("/seen/coordinator/transcript", "/seen-2/worker-2/transcript")
    docker("run", "--rm", "--user", "1000:1000", *seen, IMAGE, "attack", *recorded, "--out", "/seen/together")
    assert load_summary(composed.results).attack.elsewhere
    found = load_summary(composed.results / "together").attack
    assert found.name == "label_clusters"
    assert found.label_accuracy > 0.5  # ten classes


def with_seats(line):
    """A command of docs/docker.md, with the folders for curious workers."""
    files = "" if " -f " in line else " -f docker-compose.yml"
    words = line.split("#")[0].replace("docker compose", f"docker compose{files}", 1)
    return re.sub(r"((?: -f \S+)+)", r"\1 -f deploy/compose/seats.yml", words)


def mounts(composed, service):
    return {mount["Destination"]: mount.get("Name") for mount in composed.inspect(service)["Mounts"]}


def expected_mounts(composed, workers):
    named = {"server": {"/run.yaml": None, "/results": None, "/certs": f"{composed.project}_certs-server"}}
    for m in range(workers):
        own = {"/certs": f"{composed.project}_certs-{m}", "/slice": f"{composed.project}_slice-{m}"}
        named[f"worker-{m}"] = {"/run.yaml": None, "/state": f"{composed.project}_state-{m}", **own}
    return named


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"CAFE_SET": "federation.batchsize=3"}, "federation.batchsize"),
        ({"CAFE_DATASET": "digits", "CAFE_ATTACK": "least_squares"}, "cafe: attack least_squares cannot run here"),
    ],
    ids=["found by the set-up", "found by the server"],
)
def test_bad_input_ends_all_with_the_servers_exit_code(config, tmp_path, environment, words):
    with Composed("bad", config, tmp_path / "results", **environment) as composed:
        code, said = composed.say(UP)
        assert code == 2, said
        assert words in said
        assert "Traceback" not in said
        assert composed.say(DOWN)[0] == 0
        assert composed.left() == []


def test_the_live_page_is_this_machines_alone_and_wants_its_token(config, tmp_path):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = str(free.getsockname()[1])
    with Composed("page", config, tmp_path / "results", **CHOSEN, CAFE_UI_PORT=port) as composed:
        composed.compose("-f", "docker-compose.yml", "-f", "deploy/compose/ui.yml", "up", "--detach", "server")
        said = re.compile(rf"live page: (http://127\.0\.0\.1:{port}/)(\?token=\S+)")
        wait_for(lambda: said.search(composed.compose("logs", "server").stdout))
        page, token = said.search(composed.compose("logs", "server").stdout).groups()
        bound = composed.inspect("server")["NetworkSettings"]["Ports"][f"{port}/tcp"]
        assert bound == [{"HostIp": "127.0.0.1", "HostPort": port}]
        wait_for(lambda: status(page) is not None)
        assert (status(page), status(page + token)) == (403, 303)
        shipped = "from vfl.ui.app import STATIC; print((STATIC / 'vendor' / 'uPlot.iife.min.js').is_file())"
        assert composed.call("server", "python", "-c", shipped).stdout == "True\n"


def status(url):
    """What the page answers, redirections not followed; None while nobody does."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=20)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}")
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


@pytest.mark.slow
def test_when_the_server_is_killed_the_others_end_by_themselves(config, tmp_path):
    with Composed("killed", config, tmp_path / "results", **CHOSEN) as composed:
        composed.compose("up", "--detach", "server", "worker-1")
        assert composed.running() == {"setup", "server", "worker-1"}
        docker("kill", composed.container("server"))
        wait_for(lambda: not composed.running())


def test_no_container_has_anothers_slice_or_key(gathering, long_config, tmp_path):
    for service in ("setup", *GATHERED):
        own = {
            "server": {"/certs/coordinator.key"},
            "setup": {f"/parties/worker-{m}/{file}" for m in range(4) for file in secrets(m)}
            | {"/parties/server/certs/coordinator.key"},
        }
        expected = own.get(service) or {f"/{file}" for file in secrets(service[-1])}
        everywhere = ["find", "/", "-xdev", "-name", "*.key", "-o", "-name", "*.safetensors"]
        mounted = ["/certs", "/slice", "/parties", "/results", "/tmp", "/dev/shm"]
        found = gathering.call(service, *everywhere, user="0", check=False).stdout.split()
        for place in mounted:
            found += gathering.call(service, "find", place, *everywhere[3:], check=False).stdout.split()
        assert set(found) == expected
    assert mounts(gathering, "server") == expected_mounts(gathering, 4)["server"]
    gathering.call("worker-2", "sh", "-c", 'touch "$XDG_STATE_HOME/kept"')  # where its secret outlasts a restart
    path = tmp_path / "slice"
    docker("cp", f"{gathering.container('worker-2')}:/slice/worker-2.safetensors", path)
    config = load_config(long_config)
    held, expected = WorkerData.load(path), slice_for(load_data(config), config, 2)
    assert held.box == expected.box
    assert torch.equal(held.x, expected.x)
    assert held.y is None


def secrets(worker):
    return {f"certs/worker-{worker}.key", f"slice/worker-{worker}.safetensors"}


REACH = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20).close()"


def test_there_is_no_way_out(gathering):
    network = docker("network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}")
    outside = network.stdout.strip()  # an address of this machine, outside the federation's network
    with contextlib.closing(socket.create_server((outside, 0))) as listener:
        where = [outside, listener.getsockname()[1]]
        docker("run", "--rm", "--entrypoint", "python", IMAGE, "-c", REACH, *where)  # others do get there
        for service in ("setup", *GATHERED):
            stopped = gathering.call(service, "python", "-c", REACH, *where, check=False)
            assert "Network is unreachable" in stopped.stderr
            routes = gathering.call(service, "cat", "/proc/net/route").stdout.splitlines()[1:]
            assert [route for route in routes if route.split()[1] == "00000000"] == []


def test_containers_may_do_nothing_that_they_need_not(gathering):
    for service in ("setup", *GATHERED):
        host = gathering.inspect(service)["HostConfig"]
        assert (host["ReadonlyRootfs"], host["Init"], host["CapDrop"]) == (True, True, ["ALL"])
        assert host["SecurityOpt"] == ["no-new-privileges:true"]
        assert all(host[limit] > 0 for limit in ("Memory", "NanoCpus", "PidsLimit"))
        assert host["PortBindings"] in (None, {})
        written = gathering.call(service, "touch", "/opt/cafe/x", user="0", check=False)
        assert "Read-only file system" in written.stderr
        gathering.call(service, "touch", "/tmp/x")
    for service in GATHERED:
        status = gathering.call(service, "cat", "/proc/1/status").stdout
        lines = dict(line.split(":\t", 1) for line in status.splitlines())
        assert lines["Uid"].split() == ["1000"] * 4
        assert (lines["CapBnd"], lines["NoNewPrivs"]) == ("0000000000000000", "1")
        written = gathering.call(service, "touch", "/certs/x", check=False)
        assert "Read-only file system" in written.stderr


def test_the_image_is_slim(image):
    tools = "for tool in gcc cc g++ make ld; do command -v $tool; done; true"
    assert docker("run", "--rm", "--entrypoint", "sh", image, "-c", tools).stdout == ""
    assert docker("run", "--rm", "--entrypoint", "id", image, "-u").stdout == "1000\n"
    assert "Usage: cafe" in docker("run", "--rm", image).stdout


def test_the_image_has_its_bill_of_materials(image):
    bill = json.loads(docker("run", "--rm", "--entrypoint", "cat", image, "/opt/cafe/sbom.cdx.json").stdout)
    versions = {one["name"]: one["version"] for one in bill["components"]}
    assert bill["bomFormat"] == "CycloneDX"
    assert versions["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert {"cafe-vfl", "grpcio", "cryptography", "opacus"} <= versions.keys()
    assert "cyclonedx-bom" not in versions


def test_the_health_checks_turn_healthy(gathering):
    wait_for(lambda: {health(gathering, service) for service in GATHERED} == {"healthy"})
    last = gathering.inspect("worker-2")["State"]["Health"]["Log"][-1]
    assert (last["ExitCode"], last["Output"]) == (0, "127.0.0.1:7001 is serving\n")
    asked = gathering.call("worker-2", "cafe", "health", "server:7000", "--tls", "/certs", "--id", "2")
    assert asked.stdout == "server:7000 is serving\n"
    refused = gathering.call("worker-2", "cafe", "health", "server:7000", check=False)
    assert (refused.returncode, refused.stderr) == (
        1,
        "cafe: server:7000 is not serving: it speaks TLS, give --tls DIR [E60]\n",
    )


def health(composed, service):
    return composed.inspect(service)["State"]["Health"]["Status"]


def test_killed_workers_that_are_started_again_change_no_number(gathering, long_config, tmp_path):
    """The last test: it lets the federation that waits begin."""
    gathering.compose("up", "--detach", "worker-3")
    for worker, rounds in (("worker-2", 20), ("worker-0", 200)):
        wait_for(lambda rounds=rounds: (gathering.results / "transcript" / f"round-{rounds:07d}.safetensors").exists())
        docker("kill", gathering.container(worker))
        docker("start", gathering.container(worker))
    assert docker("wait", gathering.container("server")).stdout == "0\n", gathering.compose("logs").stdout
    disturbances = gathering.summary()["disturbances"]
    assert len(disturbances) >= 2, disturbances
    wait_for(lambda: not gathering.running())
    assert_the_numbers_of_a_run(gathering.results, long_config, [], tmp_path)
