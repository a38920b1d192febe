"""A GPU for the attack, in compose and in Kubernetes: the coordinator's container alone asks for one."""

import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[2]


def test_in_compose_the_server_alone_reserves_one():
    files = ("docker-compose.yml", "deploy/compose/gpu.yml")
    whole, overlay = (yaml.safe_load((ROOT / path).read_text(encoding="utf-8")) for path in files)
    assert set(overlay["services"]) == {"server"} <= set(whole["services"])
    (device,) = overlay["services"]["server"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl renders the manifests")
def test_in_kubernetes_the_coordinators_pod_alone_asks_for_one():
    command = ["kubectl", "kustomize", "deploy/kubernetes/gpu"]
    rendered = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    objects = [one for one in yaml.safe_load_all(rendered) if one]
    (job,) = [one for one in objects if one["kind"] == "Job" and one["metadata"]["name"] == "coordinator"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert rendered.count("nvidia.com/gpu") == 1
    assert kubernetes_validate.validate(job, "1.33", strict=True) == "1.33"
