"""What is deployed has no more rights than it needs: accounts, root file systems, capabilities, networks."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from confinement import read_service
from helm_subset import VALUES, render_chart
from oncehouse.config.file_loader import parse_pipeline
from oncehouse.errors import ConfigurationError

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
Pod = dict[str, Any]


def chart_pods() -> dict[str, Pod]:
    chart = render_chart()
    return {
        "driver": chart["Deployment", "shop-driver"]["spec"]["template"],
        "executor": yaml.safe_load(chart["ConfigMap", "shop-pipeline"]["data"]["executor.yaml"]),
    }


def chart_settings() -> dict[str, str]:
    settings: dict[str, str] = yaml.safe_load(
        render_chart()["ConfigMap", "shop-pipeline"]["data"]["pipeline.yaml"]
    )["spark"]["settings"]
    return settings


def operator_documents() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    application, *others = yaml.safe_load_all((DEPLOY / "kubernetes" / "spark-operator.yaml").read_text())
    return application["spec"], others


def restricted_pods() -> dict[str, Pod]:
    """Each pod's context, its container's context, its mounts, and its volumes by name."""
    found: dict[str, Pod] = {}
    for role, pod in chart_pods().items():
        (container,) = pod["spec"]["containers"]
        found[f"chart-{role}"] = {
            "pod": pod["spec"]["securityContext"],
            "container": container["securityContext"],
            "mounts": container["volumeMounts"],
            "volumes": {volume["name"]: volume for volume in pod["spec"]["volumes"]},
        }
    spec, _ = operator_documents()
    for role in ("driver", "executor"):
        found[f"operator-{role}"] = {
            "pod": spec[role].get("podSecurityContext", {}),
            "container": spec[role]["securityContext"],
            "mounts": spec[role]["volumeMounts"],
            "volumes": {volume["name"]: volume for volume in spec["volumes"]},
        }
    return found


@pytest.mark.parametrize("name", ["chart-driver", "chart-executor", "operator-driver", "operator-executor"])
def test_a_pod_keeps_to_the_restricted_standard_of_kubernetes_with_a_read_only_root(name):
    pod = restricted_pods()[name]
    assert pod["pod"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert pod["container"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("name", ["chart-driver", "chart-executor", "operator-driver", "operator-executor"])
def test_a_pod_may_write_to_temporary_files_and_to_its_home_only_and_both_are_bounded(name):
    pod = restricted_pods()[name]
    home = re.findall(r"^WORKDIR (.+)$", (DEPLOY / "docker" / "Dockerfile").read_text(), re.MULTILINE)[-1]
    writable = {mount["mountPath"]: mount["name"] for mount in pod["mounts"] if not mount.get("readOnly")}
    assert set(writable) == {"/tmp", home}
    for volume in writable.values():
        assert pod["volumes"][volume]["emptyDir"] == {"sizeLimit": VALUES["scratch"]["size"]}


def test_executors_of_the_chart_have_an_account_of_their_own_without_rights_and_without_its_token():
    chart = render_chart()
    pods = chart_pods()
    executor = chart_settings()["spark.kubernetes.authenticate.executor.serviceAccountName"]
    driver = pods["driver"]["spec"]["serviceAccountName"]
    assert executor != driver
    bound = {
        subject["name"]
        for (kind, _), document in chart.items()
        if kind in {"RoleBinding", "ClusterRoleBinding"}
        for subject in document["subjects"]
    }
    assert bound == {driver}
    assert pods["executor"]["spec"]["automountServiceAccountToken"] is False
    # Whatever else is started under these accounts gets no token either, unless it asks for one as the driver does.
    for account in (driver, executor):
        assert chart["ServiceAccount", account]["automountServiceAccountToken"] is False
    assert pods["driver"]["spec"]["automountServiceAccountToken"] is True


def test_executors_under_the_operator_have_an_account_of_their_own_without_rights_and_without_its_token():
    spec, others = operator_documents()
    accounts = {found["metadata"]["name"]: found for found in others if found["kind"] == "ServiceAccount"}
    bound = {
        subject["name"] for found in others if found["kind"] == "RoleBinding" for subject in found["subjects"]
    }
    assert bound == {spec["driver"]["serviceAccount"]}
    executor = spec["executor"]["serviceAccount"]
    assert executor not in bound
    assert accounts[executor]["automountServiceAccountToken"] is False


def test_only_pods_of_the_same_release_may_connect_to_drivers_and_executors():
    policy = render_chart()["NetworkPolicy", "shop"]["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    (source,) = rule["from"]
    assert source == {"podSelector": policy["podSelector"]}
    chosen = policy["podSelector"]["matchLabels"].items()
    for pod in chart_pods().values():
        assert chosen <= pod["metadata"]["labels"].items()


def test_drivers_and_executors_on_kubernetes_authenticate_and_encrypt():
    spec, _ = operator_documents()
    for settings in (chart_settings(), spec["sparkConf"]):
        assert settings["spark.authenticate"] == "true"
        assert settings["spark.network.crypto.enabled"] == "true"


def test_values_of_the_chart_cannot_switch_authentication_off_unnoticed(monkeypatch):
    for name in ("POD_IP", "POD_NAME", "PGPASSWORD"):
        monkeypatch.setenv(name, "given")
    chart = render_chart(sparkSettings={"spark.authenticate": "false"})
    with pytest.raises(ConfigurationError, match=r"spark\.authenticate.*twice"):
        parse_pipeline(chart["ConfigMap", "shop-pipeline"]["data"]["pipeline.yaml"], "p.yaml", folder=ROOT)


UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
STARTER = DEPLOY / "systemd" / "oncehouse-spark"
# What `systemd-analyze security` may find at most, in tenths of a point of ten: the network and machine code are left.
MOST_EXPOSED = 20


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_may_write_to_its_own_folders_only_and_do_what_ordinary_services_do(unit):
    service = read_service(unit)
    expected = {
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "",
        "AmbientCapabilities": "",
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "PrivateTmp": "yes",
        "PrivateDevices": "yes",
        "ProtectControlGroups": "yes",
        "ProtectKernelModules": "yes",
        "ProtectKernelTunables": "yes",
        "ProtectProc": "invisible",
        "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
        "RestrictNamespaces": "yes",
        "RestrictSUIDSGID": "yes",
        "StateDirectory": "oncehouse",
        "StateDirectoryMode": "0700",
        "UMask": "0077",
    }
    assert {name: service.get(name) for name in expected} == {
        name: [value] for name, value in expected.items()
    }
    assert service["SystemCallFilter"] == ["@system-service", "~@privileged"]
    assert "ReadWritePaths" not in service
    # Java writes machine code and runs it, and reads the memory of the machine in /proc.
    assert {"MemoryDenyWriteExecute", "ProcSubset"}.isdisjoint(service)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_itself_finds_little_that_a_unit_exposes(unit):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not on PATH: the units' options were compared only")
    found = subprocess.run(
        [analyze, "security", "--offline=true", "--no-pager", f"--threshold={MOST_EXPOSED}", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr


def test_master_and_worker_are_started_with_the_secret_of_the_cluster():
    for unit in UNITS:
        if "spark" in unit.name:
            service = read_service(unit)
            (start,) = service["ExecStart"]
            assert start.split()[0] == "/opt/oncehouse/bin/oncehouse-spark"
            assert service["RestartPreventExitStatus"] == [str(ConfigurationError.exit_code)]


def start_spark(folder: Path, secret: bytes | None, rights: int = 0o600) -> subprocess.CompletedProcess[str]:
    """The script next to a program in place of Spark's, which says how it was called and what it was given."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    shutil.copy(STARTER, bin_folder)
    program = bin_folder / "spark-class"
    program.write_text(
        '#!/bin/sh\necho "called $*"\necho "options $SPARK_DAEMON_JAVA_OPTS"\nenv | grep _SPARK_AUTH\n'
    )
    program.chmod(0o755)
    file = folder / "spark.secret"
    if secret is not None:
        file.write_bytes(secret)
        file.chmod(rights)
    return subprocess.run(
        [bin_folder / STARTER.name, "org.apache.spark.deploy.master.Master", "--port", "7077"],
        env={
            "PATH": "/usr/bin:/bin",
            "SPARK_SECRET_FILE": str(file),
            "SPARK_DAEMON_JAVA_OPTS": "-Dspark.authenticate=false",
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_spark_gets_the_secret_by_its_environment_and_not_by_its_command_line(tmp_path):
    started = start_spark(tmp_path, b"0123456789abcdef" * 4 + b"\n")
    assert started.returncode == 0, started.stderr
    called, options, given = started.stdout.splitlines()
    assert called == "called org.apache.spark.deploy.master.Master --port 7077"
    assert given == "_SPARK_AUTH_SECRET=" + "0123456789abcdef" * 4
    assert "0123456789abcdef" not in options
    # Java takes the last of two, so that the machine's own options cannot take it back.
    told = dict(option.split("=", 1) for option in options.split()[1:])
    assert told == {
        "-Dspark.authenticate": "true",
        "-Dspark.network.crypto.enabled": "true",
        "-Dspark.network.crypto.saslFallback": "false",
        "-Dspark.master.rest.enabled": "false",
        "-Dspark.ui.killEnabled": "false",
    }


@pytest.mark.parametrize(
    ("secret", "rights", "reason"),
    [
        (None, 0o600, "there is no file {file}"),
        (b"", 0o600, "{file} holds 0 characters"),
        (b"\r\n\n", 0o600, "{file} holds 0 characters"),
        (b"short\n", 0o600, "{file} holds 5 characters"),
        (b"0123456789abcdef" * 4, 0o644, "{file} is open to every user"),
    ],
)
def test_spark_is_not_started_without_a_secret_that_nobody_can_guess_or_read(
    tmp_path, secret, rights, reason
):
    refused = start_spark(tmp_path, secret, rights)
    assert refused.returncode == ConfigurationError.exit_code
    assert reason.format(file=tmp_path / "spark.secret") in refused.stderr
    assert "openssl rand -hex 32" in refused.stderr
    assert not refused.stdout


def test_the_image_is_built_on_an_exact_base_and_runs_as_nobody_special():
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text()
    (base,) = re.findall(r"^ARG BASE=(.+)$", dockerfile, re.MULTILINE)
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-bookworm@sha256:[0-9a-f]{64}", base)
    assert set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) == {"${BASE}"}
    user, group = re.findall(r"^USER (\d+):(\d+)$", dockerfile, re.MULTILINE)[-1]
    assert f"useradd --uid {user} --gid {group} " in dockerfile
    assert "0" not in {user, group}
