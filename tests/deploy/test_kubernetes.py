"""The Kubernetes manifests as kubectl renders them: the API knows every field, and the objects agree with each other.

Files are made with the very commands of docs/kubernetes.md, so names in certificates are the documented ones.
"""

import base64
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from itertools import permutations, product
from pathlib import Path

import kubernetes_validate
import pytest
import typer
import yaml
from cryptography import x509

from vfl.cli.app import app
from vfl.config import load_config
from vfl.datasets.slices import WorkerData
from vfl.net.tls import COORDINATOR, load_identity, read_certificate, worker_role
from vfl.partition import partition

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl renders the manifests")

ROOT = Path(__file__).parents[2]
EXAMPLE = Path("deploy/kubernetes/example")
INDEX = "batch.kubernetes.io/job-completion-index"
COMPONENT = "app.kubernetes.io/component"
VERSIONS = ("1.29", "1.33", "1.37")
SECRET_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True)
class Pod:
    """A pod that the rendered Jobs would make, or one that is not ours."""

    name: str
    labels: dict
    namespace: str = "cafe"
    spec: dict = field(default_factory=dict)

    @property
    def component(self):
        return self.labels[COMPONENT]

    @property
    def container(self):
        (only,) = self.spec["containers"]
        assert "initContainers" not in self.spec
        return only

    @property
    def environment(self):
        """What the kubelet puts into the container's environment."""
        found = {}
        for entry in self.container["env"]:
            (source,) = entry["valueFrom"].values()
            label = re.fullmatch(r"metadata\.labels\['(.*)'\]", source.get("fieldPath", ""))
            found[entry["name"]] = self.labels[label[1]] if label else source["resource"]
        return found

    def expand(self, text):
        """What the kubelet makes of $(NAME) in a command or a subPathExpr."""
        return re.sub(r"\$\((\w+)\)", lambda found: self.environment[found[1]], text)

    @property
    def command(self):
        return [self.expand(word) for word in self.container["command"]]


@dataclass(frozen=True)
class Rendered:
    """All objects with one way to have workers (a folder beside base/), and the folder that was rendered."""

    way: str
    folder: Path
    objects: list

    def of(self, kind):
        return {o["metadata"]["name"]: o for o in self.objects if o["kind"] == kind}

    @property
    def config(self):
        return load_config(self.folder / "run.yaml", None)

    @property
    def pods(self):
        return [pod for job in self.of("Job").values() for pod in pods_of(job)]

    @property
    def workers(self):
        return sorted((p for p in self.pods if p.component == "worker"), key=lambda pod: int(pod.labels[INDEX]))

    @property
    def coordinator(self):
        (only,) = (p for p in self.pods if p.component == "coordinator")
        return only

    def files(self, pod, mount):
        """What a container finds below one of its mounts: contents by path."""
        (volume,) = (v for v in pod.spec["volumes"] if v["name"] == mount["name"])
        held = {}
        if "projected" in volume:
            for source in volume["projected"]["sources"]:
                data = self.of("Secret")[source["secret"]["name"]]["data"]
                held |= {item["path"]: base64.b64decode(data[item["key"]]) for item in source["secret"]["items"]}
        elif "secret" in volume:
            data = self.of("Secret")[volume["secret"]["secretName"]]["data"]
            held = {name: base64.b64decode(text) for name, text in data.items()}
        elif "configMap" in volume:
            held = {k: v.encode() for k, v in self.of("ConfigMap")[volume["configMap"]["name"]]["data"].items()}
        elif "persistentVolumeClaim" in volume:
            assert volume["persistentVolumeClaim"]["claimName"] in self.of("PersistentVolumeClaim")
        else:
            assert "emptyDir" in volume
        assert "subPath" not in mount
        folder = pod.expand(mount.get("subPathExpr", "."))
        below = {Path(path): content for path, content in held.items() if Path(path).is_relative_to(folder)}
        return {str(path.relative_to(folder)): content for path, content in below.items()}


def pods_of(job):
    name, spec = job["metadata"]["name"], job["spec"]
    template = spec["template"]
    labels = template["metadata"]["labels"]
    if spec.get("completionMode") != "Indexed":
        return [Pod(name, labels, spec=template["spec"])]
    return [
        Pod(f"{name}-{m}", labels | {INDEX: str(m)}, spec=template["spec"] | {"hostname": f"{name}-{m}"})
        for m in range(spec["completions"])
    ]


def documented(containing):
    """The block of commands in docs/kubernetes.md that has a certain line."""
    blocks = re.findall(r"^```\n(.*?)^```$", (ROOT / "docs" / "kubernetes.md").read_text(), re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if containing in block)
    return block


def shell(commands, folder):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-ec", commands], cwd=folder, env=os.environ | {"PATH": path}, check=True, timeout=200)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The repository's manifests with certificates and slices for four."""
    root = tmp_path_factory.mktemp("repository")
    shutil.copytree(ROOT / "deploy" / "kubernetes", root / "deploy" / "kubernetes")
    shell(documented("cafe certs certs --workers 4"), root)
    return root


@pytest.fixture(scope="module", params=["worker", "strict", "sixteen"])
def rendered(request, example, tmp_path_factory):
    root = shutil.copytree(example, tmp_path_factory.mktemp(request.param) / "repository")
    folder = root / EXAMPLE
    if request.param != "worker":
        shell(documented(f"- ../{request.param}#"), folder)
    text = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=True).stdout
    return Rendered(request.param, folder, list(yaml.safe_load_all(text)))


# the API


@pytest.mark.parametrize("version", VERSIONS)
def test_the_api_knows_every_field(rendered, version):
    for one in rendered.objects:
        assert kubernetes_validate.validate(one, version, strict=True) == version


def test_a_field_that_the_api_does_not_know_would_be_found(rendered):
    job = rendered.of("Job")["coordinator"]
    with pytest.raises(kubernetes_validate.ValidationError, match="was unexpected"):
        kubernetes_validate.validate(job | {"spec": job["spec"] | {"backofLimit": 0}}, VERSIONS[0], strict=True)


def test_everything_is_in_the_namespace_of_the_overlay(rendered):
    assert {one["metadata"]["namespace"] for one in rendered.objects} == {"cafe"}


# who there is


def test_there_is_one_worker_for_each_of_the_config(rendered):
    count = rendered.config.federation.workers
    assert [pod.labels[INDEX] for pod in rendered.workers] == [str(m) for m in range(count)]
    for name, job in rendered.of("Job").items():
        spec = job["spec"]
        assert spec.get("completions", 1) == spec.get("parallelism", 1), f"{name}: not all at once"


def test_names_and_certificates_agree(rendered):
    """Whom a worker calls by a name proves to have it; the documented commands made the certificates."""
    services, holder = rendered.of("Service"), rendered.config.federation.label_holder
    for pod in rendered.workers:
        options = cafe(pod.command)
        assert options["worker"] == int(pod.labels[INDEX])
        host, port = options["coordinator"].split(":")
        assert selected(services[host], rendered) == [rendered.coordinator]
        assert int(port) == services[host]["spec"]["ports"][0]["port"]
        assert host in names_of(rendered.folder / "certs" / "coordinator.pem")
        name, domain = options["advertise"].split(":")[0].split(".")
        assert (pod.spec["hostname"], pod.spec["subdomain"]) == (name, domain)
        assert services[domain]["spec"]["clusterIP"] == "None"
        assert services[domain]["spec"]["publishNotReadyAddresses"] is True
        assert selected(services[domain], rendered) == rendered.workers
        if options["worker"] == holder:
            assert f"{name}.{domain}" in names_of(rendered.folder / "certs" / f"worker-{holder}.pem")


def test_ports_agree(rendered):
    for pod, service in [(rendered.coordinator, "coordinator"), *((pod, "workers") for pod in rendered.workers)]:
        options = cafe(pod.command)
        (port,) = rendered.of("Service")[service]["spec"]["ports"]
        (own,) = pod.container["ports"]
        assert port["targetPort"] == own["name"]
        assert options["listen"] == f"0.0.0.0:{own['containerPort']}"
        assert port["port"] == own["containerPort"]
        assert options.get("advertise", f":{port['port']}").endswith(f":{port['port']}")


def test_only_what_a_coordinator_cannot_repeat_is_not_tried_again(rendered):
    jobs = rendered.of("Job")
    assert jobs["coordinator"]["spec"]["backoffLimit"] == 0
    for pod in rendered.workers:
        spec = jobs[pod.name if pod.name in jobs else "worker"]["spec"]
        assert spec["backoffLimit"] > 0
        first = spec["podFailurePolicy"]["rules"][0]
        assert first["action"] == "FailJob"
        assert first["onExitCodes"] == {"containerName": pod.container["name"], "operator": "In", "values": [2]}
    assert jobs["results"]["spec"]["suspend"] is True


# who connects to whom


def test_exactly_the_flows_of_the_design_are_allowed(rendered):
    coordinator, workers = rendered.coordinator, rendered.workers
    dns = Pod("dns", {"k8s-app": "kube-dns"}, "kube-system")
    others = [
        dns,
        Pod("neighbour", {}),
        Pod("other in kube-system", {}, "kube-system"),
        Pod("coordinator elsewhere", coordinator.labels, "elsewhere"),
        Pod("worker elsewhere", workers[0].labels, "elsewhere"),
        Pod("resolver elsewhere", dns.labels, "elsewhere"),
        Pod("the internet", {}, ""),
    ]
    ours = rendered.pods
    holder = workers[rendered.config.federation.label_holder]
    between = {(worker.name, coordinator.name, "TCP", 7000) for worker in workers}
    between |= {(worker.name, holder.name, "TCP", 7001) for worker in workers if worker != holder}
    asked = {(pod.name, dns.name, kind, 53) for pod in [coordinator, *workers] for kind in ("TCP", "UDP")}
    policies = [policy["spec"] for policy in rendered.of("NetworkPolicy").values()]
    calls = list(product(permutations([*ours, *others], 2), ("TCP", "UDP"), (53, 443, 7000, 7001)))
    # Each end by itself: a hole at one end must not wait for a mistake at the other.
    sent = {(a.name, b.name, *on) for (a, b), *on in calls if a in ours and permits(policies, a, b, "Egress", *on)}
    heard = {(a.name, b.name, *on) for (a, b), *on in calls if b in ours and permits(policies, b, a, "Ingress", *on)}
    assert sent == between | asked
    assert heard == between


def permits(policies, pod, other, direction, kind, port):
    """Whether the policies let a pod take part in a connection: the rules of those that select it, added up."""
    if pod.namespace != "cafe":
        return True
    assert all(set(policy) <= {"podSelector", "policyTypes", "ingress", "egress"} for policy in policies)
    ours = [p for p in policies if direction in p["policyTypes"] and matches(p["podSelector"], pod.labels)]
    peers = {"Ingress": "from", "Egress": "to"}[direction]
    rules = [rule for policy in ours for rule in policy.get(direction.lower(), [])]
    return not ours or any(
        any(is_peer(peer, other) for peer in rule[peers]) and {"protocol": kind, "port": port} in rule["ports"]
        for rule in rules
    )


def is_peer(peer, pod):
    assert set(peer) <= {"podSelector", "namespaceSelector"}, "the test knows no other peers"
    if "namespaceSelector" in peer:
        there = matches(peer["namespaceSelector"], {"kubernetes.io/metadata.name": pod.namespace})
    else:
        there = pod.namespace == "cafe"
    return there and matches(peer.get("podSelector", {}), pod.labels)


def matches(selector, labels):
    assert set(selector) <= {"matchLabels", "matchExpressions"}
    for rule in selector.get("matchExpressions", []):
        assert rule["operator"] in ("In", "NotIn"), "the test knows no other operators"
        if (labels.get(rule["key"]) in rule["values"]) != (rule["operator"] == "In"):
            return False
    return selector.get("matchLabels", {}).items() <= labels.items()


def selected(service, rendered):
    selector = {"matchLabels": service["spec"]["selector"]}
    found = [pod for pod in rendered.pods if matches(selector, pod.labels)]
    return sorted(found, key=lambda pod: int(pod.labels.get(INDEX, 0)))


# who sees what


def test_a_worker_sees_its_own_key_and_slice_only(rendered):
    config = rendered.config.federation
    shape = (3, 32, 32)
    for number, pod in enumerate(rendered.workers):
        seen = {mount["mountPath"]: rendered.files(pod, mount) for mount in pod.container["volumeMounts"]}
        own = {"ca.pem", f"worker-{number}.pem", f"worker-{number}.key", f"worker-{number}.safetensors"}
        assert {path: set(files) for path, files in seen.items()} == {
            "/config": {"run.yaml"},
            "/own": own,
            "/tmp": set(),
        }
        folder = rendered.folder / f"seen-by-{number}"
        write(folder, seen["/own"])
        load_identity(folder, worker_role(number))
        options = cafe(pod.command)
        assert (str(options["file"]), str(options["tls"])) == ("/config/run.yaml", "/own")
        data = WorkerData.load(folder / options["data"].relative_to("/own"))
        assert data.box == partition(shape, config.workers, config.slices)[number]
        assert (data.y is not None) == (number == config.label_holder)
        if rendered.way == "strict":
            sources = pod.spec["volumes"][0]["projected"]["sources"]
            assert [source["secret"]["name"] for source in sources] == [f"worker-{number}"]


def test_the_coordinator_sees_its_own_key_only(rendered):
    pod = rendered.coordinator
    seen = {mount["mountPath"]: rendered.files(pod, mount) for mount in pod.container["volumeMounts"]}
    assert {path: set(files) for path, files in seen.items()} == {
        "/config": {"run.yaml"},
        "/own": {"ca.pem", "coordinator.pem", "coordinator.key"},
        "/results": set(),
        "/tmp": set(),
    }
    write(rendered.folder / "seen-by-coordinator", seen["/own"])
    load_identity(rendered.folder / "seen-by-coordinator", COORDINATOR)
    options = cafe(pod.command)
    assert (str(options["file"]), str(options["tls"])) == ("/config/run.yaml", "/own")
    assert options["out"].parent == Path("/results")
    (volume,) = (v for v in pod.spec["volumes"] if v["name"] == "results")
    assert "persistentVolumeClaim" in volume


def test_secrets_are_read_through_the_group_by_nobody_else_and_fit(rendered):
    for pod in rendered.pods:
        for volume in pod.spec["volumes"]:
            source = volume.get("secret") or volume.get("projected")
            if source:
                assert source["defaultMode"] == 0o440
                assert pod.spec["securityContext"]["fsGroup"] == pod.spec["securityContext"]["runAsGroup"]
        assert "envFrom" not in pod.container
        assert all("secretKeyRef" not in entry["valueFrom"] for entry in pod.container.get("env", []))
    for secret in rendered.of("Secret").values():
        assert sum(len(base64.b64decode(text)) for text in secret["data"].values()) < SECRET_LIMIT_BYTES
    assert "ca.key" not in {name for secret in rendered.of("Secret").values() for name in secret["data"]}


# how they run


def test_containers_have_bounds_and_no_rights(rendered):
    for pod in rendered.pods:
        spec, container = pod.spec, pod.container
        assert spec["automountServiceAccountToken"] is False
        assert spec["restartPolicy"] == "Never"
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        around = spec["securityContext"]
        assert around["runAsNonRoot"] is True
        assert around["runAsUser"] > 0
        assert around["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        for bound in ("requests", "limits"):
            assert set(container["resources"][bound]) == {"cpu", "memory"}
        assert container["image"] == "registry.example.org/cafe-vfl:0.1.0"


def test_what_has_to_be_writable_is(rendered):
    for pod in rendered.pods:
        writable = {mount["mountPath"] for mount in pod.container["volumeMounts"] if not mount.get("readOnly")}
        assert writable == {"coordinator": {"/tmp", "/results"}, "worker": {"/tmp"}, "results": set()}[pod.component]


def test_probes_ask_the_containers_own_port_with_its_own_certificate(rendered):
    for pod in rendered.workers:
        probes = {name for name in pod.container if name.endswith("Probe")}
        assert probes == {"startupProbe", "livenessProbe"}
        for name in probes:
            program, option, line = pod.container[name]["exec"]["command"]
            assert (program, option) == ("sh", "-c")
            assert "$(" not in line, "the kubelet does not fill in $(WORKER) there, and a shell takes it for a command"
            ask, *words = shlex.split(line.replace("$WORKER", pod.environment["WORKER"]))
            assert ask == "exec"
            options = cafe(words)
            assert options["address"] == f"localhost:{pod.container['ports'][0]['containerPort']}"
            assert (str(options["tls"]), options["worker"]) == ("/own", int(pod.labels[INDEX]))
    coordinator = rendered.coordinator.container
    # Its port is closed while the attack computes: a probe that ends it would end the attack.
    assert {name for name in coordinator if name.endswith("Probe")} == {"readinessProbe"}
    options = cafe(coordinator["readinessProbe"]["exec"]["command"])
    assert options["address"] == f"localhost:{coordinator['ports'][0]['containerPort']}"
    assert (str(options["tls"]), options["worker"]) == ("/own", None)


def cafe(words):
    """What the `cafe` command makes of its arguments."""
    assert words[0] == "cafe"
    command = typer.main.get_command(app).commands[words[1]]
    return command.make_context(words[1], list(words[2:])).params


def names_of(certificate):
    names = read_certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.DNSName)


def write(folder, files):
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
