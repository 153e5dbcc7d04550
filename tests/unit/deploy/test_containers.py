"""The files for containers, systemd and Kubernetes have the right form and agree with the program.

What can be checked without a container engine is checked here, and `test_dockerfile.py` runs the commands of
the Dockerfile by hand.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from millrace.node.config import Config

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
yaml: Any = pytest.importorskip("yaml", reason="PyYAML (extra `docs`) is not here")


def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def manifests() -> dict[tuple[str, str], Any]:
    """Kind and name of each Kubernetes object, and the object."""
    found = yaml.safe_load_all((DEPLOY / "kubernetes" / "millrace.yaml").read_text())
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def environment_names() -> set[str]:
    """Every MILLRACE_SECTION__KEY that a file in deploy/ sets."""
    files = [DEPLOY / "Dockerfile", DEPLOY / "compose.yaml", DEPLOY / "kubernetes" / "millrace.yaml"]
    return {name for file in files for name in re.findall(r"MILLRACE_[A-Z_]+__[A-Z_]+", file.read_text())}


def test_every_setting_in_an_environment_exists() -> None:
    known = {
        f"MILLRACE_{section}__{key}".upper()
        for section in Config.__struct_fields__
        for key in getattr(getattr(Config(), section), "__struct_fields__", ())
    }
    assert environment_names() <= known
    assert len(environment_names()) >= 6


def test_the_nodes_of_the_compose_file_form_one_cluster() -> None:
    services = compose()["services"]
    nodes = [services[name] for name in ("n1", "n2", "n3")]
    assert [one["environment"]["MILLRACE_NODE__ID"] for one in nodes] == ["n1", "n2", "n3"]
    joined = ",".join(one["environment"]["MILLRACE_CLUSTER__ADVERTISE"] for one in nodes)
    assert {one["environment"]["MILLRACE_CLUSTER__JOIN"] for one in nodes} == {joined}
    for one in nodes:
        assert one["read_only"] and one["cap_drop"] == ["ALL"] and one["secrets"] == ["cluster_secret"]
    published = [port for one in services.values() for port in one.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert len({port.rsplit(":", 1)[0] for port in published}) == len(published)


def test_what_the_compose_file_mounts_is_in_the_repository() -> None:
    made_by_hand = {"cluster.secret", "root.password"}
    for service in compose()["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).exists(), source
    files = {Path(one["file"]).name for one in compose()["secrets"].values()}
    assert files == made_by_hand


def test_the_stateful_set_has_probes_an_identity_and_a_place_for_data() -> None:
    found = manifests()
    spec = found["StatefulSet", "millrace"]["spec"]
    headless = found["Service", "millrace-nodes"]["spec"]
    assert headless["clusterIP"] == "None" and headless["publishNotReadyAddresses"]
    assert spec["serviceName"] == "millrace-nodes"
    (container,) = spec["template"]["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert spec["template"]["spec"]["securityContext"]["runAsNonRoot"]
    # The first pod forms the cluster once the others answer: they must not wait until it is ready.
    values = {one["name"]: one.get("value") for one in container["env"]}
    advertised = values["MILLRACE_CLUSTER__ADVERTISE"]
    pods = [advertised.replace("$(POD_NAME)", f"millrace-{number}") for number in range(spec["replicas"])]
    assert values["MILLRACE_CLUSTER__JOIN"] == ",".join(pods)
    assert spec["podManagementPolicy"] == "Parallel"
    claim = spec["volumeClaimTemplates"][0]["metadata"]["name"]
    assert claim in [mount["name"] for mount in container["volumeMounts"]]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {port["name"] for port in found["Service", "millrace"]["spec"]["ports"]} <= set(ports)


def test_http_answers_the_names_of_the_service_in_every_namespace() -> None:
    """Names with a dot are answered 421 unless they are named."""
    found = manifests()
    (container,) = found["StatefulSet", "millrace"]["spec"]["template"]["spec"]["containers"]
    values = {one["name"]: one.get("value") for one in container["env"]}
    before = [one["name"] for one in container["env"]]
    assert before.index("POD_NAMESPACE") < before.index("MILLRACE_LISTENERS__HOSTS"), "used once it is set"
    hosts = values["MILLRACE_LISTENERS__HOSTS"].replace("$(POD_NAMESPACE)", "plant").split(",")
    assert hosts == ["millrace.plant", "millrace.plant.svc", "millrace.plant.svc.cluster.local"]
    assert ("Service", "millrace") in found


def test_the_ports_that_are_named_are_those_on_which_the_program_listens() -> None:
    image = (DEPLOY / "Dockerfile").read_text()
    exposed = {int(port) for port in re.findall(r"\d+", re.findall(r"^EXPOSE (.+)$", image, re.M)[0])}
    listens = {int(port) for port in re.findall(r"MILLRACE_LISTENERS__\w+=0\.0\.0\.0:(\d+)", image)}
    (container,) = manifests()["StatefulSet", "millrace"]["spec"]["template"]["spec"]["containers"]
    peers = {
        int(one["environment"]["MILLRACE_LISTENERS__PEER"].rsplit(":", 1)[1])
        for name, one in compose()["services"].items()
        if name in ("n1", "n2", "n3")
    }
    assert exposed == listens | peers
    assert {port["containerPort"] for port in container["ports"]} == exposed
    probes = [
        container[name]["httpGet"]["port"] for name in ("livenessProbe", "readinessProbe", "startupProbe")
    ]
    assert set(probes) == {"http"}
    for target in re.findall(r'"n\d:(\d+)"', (DEPLOY / "compose" / "prometheus.yml").read_text()):
        assert int(target) in listens


def test_a_majority_stays_when_nodes_are_taken_away_on_purpose() -> None:
    found = manifests()
    replicas = found["StatefulSet", "millrace"]["spec"]["replicas"]
    budget = found["PodDisruptionBudget", "millrace"]["spec"]
    assert replicas - budget["maxUnavailable"] > replicas // 2
    labels = found["StatefulSet", "millrace"]["spec"]["template"]["metadata"]["labels"]
    for kind, name in found:
        if kind in ("Service", "PodDisruptionBudget"):
            selector = found[kind, name]["spec"]["selector"]
            assert selector.get("matchLabels", selector) == labels


def test_the_image_runs_without_rights_and_says_whether_it_lives() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    last = text[text.rindex("\nFROM ") :]
    assert re.search(r"^USER 10001$", last, re.M)
    assert "HEALTHCHECK" in last and "/livez" in last
    assert 'ENTRYPOINT ["millrace"]' in last and 'CMD ["start"]' in last
    assert "gcc" not in last and "COPY ." not in text


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    unit = tmp_path / "millrace.service"
    text = (DEPLOY / "systemd" / "millrace.service").read_text()
    # The program and the user are not installed where this runs.
    text = text.replace("/opt/millrace/bin/millrace", "/bin/true")
    unit.write_text(re.sub(r"^(User|Group)=.*\n", "", text, flags=re.M))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
