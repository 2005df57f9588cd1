"""What is deployed has no more rights than it needs: accounts, root file systems, capabilities, networks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

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
