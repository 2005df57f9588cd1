"""What is deployed: images, manifests, the Helm chart and systemd's units hold together and say what the code needs.

Without Helm the chart is rendered by `helm_subset.py`, which knows the few constructs that it keeps to.
"""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from helm_subset import CHART, VALUES, render_chart
from oncehouse import __version__
from oncehouse.config.file_loader import parse_pipeline

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def test_the_charts_values_keep_to_their_schema_and_the_schema_to_them():
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    validator.validate(VALUES)
    assert set(schema["properties"]) == set(VALUES)
    for wrong in ({"drivers": VALUES["drivers"] | {"replicas": "two"}}, {"driver": {}}, {"cache": "much"}):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(VALUES | wrong)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(VALUES | {"pipeline": VALUES["pipeline"] | {"spark": {}}})


def test_the_chart_renders_to_a_pipeline_file_that_loads_and_runs_on_kubernetes(monkeypatch):
    for name in ("POD_IP", "POD_NAME", "PGPASSWORD"):
        monkeypatch.setenv(name, f"told-{name.lower().replace('_', '-')}")
    text = render_chart()["ConfigMap", "shop-pipeline"]["data"]["pipeline.yaml"]
    pipeline = parse_pipeline(text, "pipeline.yaml", folder=ROOT)
    assert pipeline.spark.master == "k8s://https://kubernetes.default.svc"
    assert pipeline.spark.cache == 10 << 30
    settings = pipeline.spark.settings
    assert settings["spark.kubernetes.container.image"] == f"oncehouse:{__version__}"
    assert settings["spark.driver.host"] == "told-pod-ip"
    assert settings["spark.kubernetes.namespace"] == "events"
    assert settings["spark.executor.instances"] == "2"


def test_every_setting_of_sparks_own_comes_through_the_chart():
    chart = render_chart(sparkSettings={"spark.executor.extraJavaOptions": "-XX:+UseG1GC: #1"})
    text = chart["ConfigMap", "shop-pipeline"]["data"]["pipeline.yaml"]
    settings = yaml.safe_load(text)["spark"]["settings"]
    assert settings["spark.executor.extraJavaOptions"] == "-XX:+UseG1GC: #1"


def test_drivers_and_executors_get_the_secrets_and_a_bounded_scratch_and_are_not_root():
    chart = render_chart(secrets=["shop-secrets"])
    driver = chart["Deployment", "shop-driver"]["spec"]["template"]["spec"]
    executor = yaml.safe_load(chart["ConfigMap", "shop-pipeline"]["data"]["executor.yaml"])["spec"]
    for pod in (driver, executor):
        (container,) = pod["containers"]
        assert container["envFrom"] == [{"secretRef": {"name": "shop-secrets"}}]
        assert {"name": "scratch", "mountPath": "/tmp"} in container["volumeMounts"]
        scratch = next(volume for volume in pod["volumes"] if volume["name"] == "scratch")
        assert scratch["emptyDir"] == {"sizeLimit": "16Gi"}
        assert pod["securityContext"]["runAsNonRoot"] is True


def test_the_names_that_objects_of_the_chart_use_of_each_other_are_there():
    chart = render_chart()
    pod = chart["Deployment", "shop-driver"]["spec"]["template"]["spec"]
    assert ("ServiceAccount", pod["serviceAccountName"]) in chart
    mounted = next(volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume)
    assert ("ConfigMap", mounted) in chart
    selector = chart["Deployment", "shop-driver"]["spec"]["selector"]["matchLabels"]
    labels = chart["Deployment", "shop-driver"]["spec"]["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()
    assert chart["PodDisruptionBudget", "shop-driver"]["spec"]["selector"]["matchLabels"] == selector
    assert "PodDisruptionBudget" not in {
        kind for kind, _ in render_chart(drivers=VALUES["drivers"] | {"replicas": 1})
    }


def test_another_pipeline_file_makes_other_driver_pods():
    def mark(chart: dict[tuple[str, str], dict[str, Any]]) -> str:
        template = chart["Deployment", "shop-driver"]["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/pipeline"])

    changes: list[dict[str, Any]] = [
        {"pipeline": VALUES["pipeline"] | {"lease": "10s"}},
        {"executors": VALUES["executors"] | {"instances": 7}},
        {"executors": VALUES["executors"] | {"memory": "3g"}},
        {"sparkSettings": {"spark.sql.shuffle.partitions": "3"}},
        {"cache": "3GB"},
        {"secrets": ["another"]},
        {"scratch": VALUES["scratch"] | {"size": "3Gi"}},
        {"image": VALUES["image"] | {"tag": "another"}},
    ]
    assert mark(render_chart()) == mark(render_chart())
    assert mark(render_chart()) == mark(render_chart(drivers=VALUES["drivers"] | {"replicas": 1}))
    marks = [mark(render_chart()), *(mark(render_chart(**change)) for change in changes)]
    assert len(set(marks)) == len(marks), "each of them is in a file that drivers mount"


def test_helm_itself_takes_the_chart():
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("helm is not on PATH: the chart was rendered by the tests' own subset only")
    for command in (["lint", "--strict", str(CHART)], ["template", "shop", str(CHART)]):
        subprocess.run([helm, *command], check=True, capture_output=True)


def test_versions_of_image_chart_and_application_are_the_packages():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert {chart["appVersion"], VALUES["image"]["tag"]} == {__version__}
    # A chart's own version has to be a semantic one, which Python's between two releases is not.
    assert chart["version"] == __version__.replace(".dev", "-dev.")
    assert f"-t oncehouse:{__version__} " in (DEPLOY / "docker" / "Dockerfile").read_text()
    application = next(yaml.safe_load_all((DEPLOY / "kubernetes" / "spark-operator.yaml").read_text()))
    assert application["spec"]["image"] == f"oncehouse:{__version__}"
    assert f'pyspark=={application["spec"]["sparkVersion"]}"' in (ROOT / "pyproject.toml").read_text()


def test_the_spark_application_names_what_the_image_and_its_own_file_hold():
    application, *others = yaml.safe_load_all((DEPLOY / "kubernetes" / "spark-operator.yaml").read_text())
    spec = application["spec"]
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text()
    copied = re.search(r"COPY (.+) /opt/oncehouse/\n", dockerfile)
    assert copied is not None
    main = spec["mainApplicationFile"].removeprefix("local:///opt/oncehouse/")
    assert f"deploy/docker/{main}" in copied[1].split()
    assert spec["driver"]["serviceAccount"] in {found["metadata"]["name"] for found in others}
    declared = {volume["name"] for volume in spec["volumes"]}
    for pod in (spec["driver"], spec["executor"]):
        assert {mount["name"] for mount in pod["volumeMounts"]} <= declared


def test_what_the_image_copies_is_in_the_repository_and_its_script_is_sound():
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.+)$", dockerfile, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
    subprocess.run(["sh", "-n", str(DEPLOY / "docker" / "entrypoint.sh")], check=True)
    assert (DEPLOY / "docker" / "entrypoint.sh").stat().st_mode & 0o111


@pytest.mark.parametrize("word", ["driver", "executor", "version"])
def test_the_entry_point_starts_what_the_pod_is_for(tmp_path, word):
    """With programs in place of the real ones, which say how they were called."""
    for name in ("java", "oncehouse", "spark-submit"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        show_files = 'for last in "$@"; do case $last in @*) cat "${last#@}";; esac; done'
        program.write_text(f'#!/bin/sh\necho {name} "$@"\n{show_files}\n')
        program.chmod(0o755)
    told = {
        "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
        "SPARK_HOME": str(tmp_path),
        "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.1",
        "SPARK_DRIVER_URL": "spark://d",
        "SPARK_EXECUTOR_ID": "7",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_EXECUTOR_MEMORY": "2g",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
        "SPARK_EXECUTOR_POD_NAME": "pod",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_JAVA_OPT_0": "-Dspark.driver.port=1",
        "SPARK_JAVA_OPT_1": r'-Dspark.name=two "words" \n',
        "TMPDIR": str(tmp_path),
    }
    said = subprocess.run(
        [str(DEPLOY / "docker" / "entrypoint.sh"), word, "more"],
        env=told,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    expected = {
        "driver": "spark-submit --conf spark.driver.bindAddress=10.0.0.1 ",
        "executor": "KubernetesExecutorBackend --driver-url spark://d --executor-id 7 --cores 2 --app-id app ",
        "version": "oncehouse version more\n",
    }
    assert expected[word] in said
    if word == "executor":
        assert '"-Dspark.driver.port=1"\n' in said
        assert r'"-Dspark.name=two \"words\" \\n"' in said


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_an_installed_command_as_nobody_special_and_again_after_its_end(unit):
    parsed = configparser.RawConfigParser(strict=False)
    parsed.optionxform = str
    parsed.read_string(unit.read_text())
    service = parsed["Service"]
    assert service["ExecStart"].split()[0] in {
        "/opt/oncehouse/bin/oncehouse",
        "/opt/oncehouse/bin/oncehouse-spark",
    }
    assert (service["User"], service["Restart"]) == ("oncehouse", "always")
    assert parsed["Install"]["WantedBy"] == "multi-user.target"


def test_systemd_itself_takes_the_units(tmp_path):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not on PATH: the units were parsed only")
    for unit in UNITS:
        # Verified with programs that are there: what is judged is the unit, not this machine.
        text = re.sub(r"/opt/oncehouse/bin/\S+", "/bin/true", unit.read_text())
        (tmp_path / unit.name.replace("@.", "@shop.")).write_text(text)
    found = subprocess.run(
        [analyze, "verify", "--man=no", *map(str, sorted(tmp_path.glob("*.service")))],
        capture_output=True,
        text=True,
        check=False,
    )
    own = [line for line in found.stderr.splitlines() if "oncehouse" in line]
    assert (found.returncode, own) == (0, [])
