"""The chart's pipeline on Spark's own Kubernetes scheduler, with a fake API that starts the executors' pods.

Pods run the image's entry point as processes. What stays untried is a real API, its scheduler and its containers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
import yaml

from fake_kubernetes import ENTRY_POINT, fake_kubernetes
from helm_subset import VALUES, render_chart
from live_pipeline import make_event
from oncehouse.devstack.jars import connector_jars

# `deploy/docker/main.py`, which also shows what Spark was told in the end.
SUBMITTED = """
from oncehouse.cli.app import main
from oncehouse.pipeline import stages

close = stages.close_session

def show_and_close(spark):
    print("told", spark.conf.get("spark.hadoop.store.password"))
    close(spark)

stages.close_session = show_and_close
main()
"""
DRIVER = {"metadata": {"name": "shop-driver-1"}, "spec": {}}


def write_files(folder: Path, chart, master: str) -> Path:
    """What the driver's pod has mounted, with the API and the mount where they are here."""
    data = chart["ConfigMap", "shop-pipeline"]["data"]
    (folder / "executor.yaml").write_text(data["executor.yaml"])
    text = data["pipeline.yaml"].replace("k8s://https://kubernetes.default.svc", master)
    file = folder / "chart.yaml"
    file.write_text(text.replace("/etc/oncehouse", str(folder)))
    return file


@pytest.mark.long
def test_the_charts_driver_starts_executors_in_pods_of_its_own_and_ends_them(
    make_pipeline, s3, postgres_url, tmp_path
):
    live_pipeline = make_pipeline(
        partitions=2, ledger={"catalog": postgres_url, "files": s3.files(tmp_path.name)}
    )
    live_pipeline.send([make_event(number) for number in range(120)])
    live_pipeline.send([make_event(number) for number in range(60, 120)], partition=1)
    chart = render_chart(
        pipeline={name: section for name, section in live_pipeline.document.items() if name != "spark"},
        executors=VALUES["executors"] | {"cores": 1, "memory": "512m", "memoryOverhead": "384m"},
        sparkSettings={"spark.jars": ",".join(map(str, connector_jars()))},
    )
    with fake_kubernetes(tmp_path / "pods") as (kubernetes, master):
        kubernetes.create("pods", DRIVER)
        file = write_files(tmp_path, chart, master)
        ended = subprocess.run(
            [*live_pipeline.command_line("run")[:-1], str(file), "--once"],
            env=os.environ | {"POD_IP": "127.0.0.1", "POD_NAME": "shop-driver-1"},
            capture_output=True,
            text=True,
            timeout=480,
            check=False,
        )
        pods = [made for (kind, _), made in kubernetes.made.items() if kind == "pods" and made is not DRIVER]
        left = [name for kind, name in kubernetes.objects if kind == "pods" and name != "shop-driver-1"]
    assert ended.returncode == 0, ended.stderr
    live_pipeline.assert_exact()
    assert not left, "executors go with the driver"
    assert len(pods) >= VALUES["executors"]["instances"]
    for pod in pods:
        (container,) = pod["spec"]["containers"]
        told = {entry["name"] for entry in container["env"]}
        assert {"ONCEHOUSE_VERSIONS", "ONCEHOUSE_CACHE_BYTES"} <= told
        assert container["image"] == f"{VALUES['image']['repository']}:{VALUES['image']['tag']}"
        # Spark keeps what the template asks for, and gives the secret to each executor's environment alone.
        template = yaml.safe_load(chart["ConfigMap", "shop-pipeline"]["data"]["executor.yaml"])["spec"]
        assert container["securityContext"] == template["containers"][0]["securityContext"]
        assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/tmp", "/home/oncehouse"}
        assert pod["spec"]["securityContext"] == template["securityContext"]
        assert pod["spec"]["serviceAccountName"] == "shop-executor"
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert "_SPARK_AUTH_SECRET" in told
        assert [owner["name"] for owner in pod["metadata"]["ownerReferences"]] == ["shop-driver-1"]
        assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "executor"


@pytest.mark.long
def test_a_driver_under_spark_submit_runs_the_pipeline_with_the_secret_settings_of_its_file(
    live_pipeline, tmp_path
):
    """As the Spark operator starts it: Java is there before Python is."""
    live_pipeline.send([make_event(number) for number in range(20)])
    live_pipeline.document["spark"]["settings"] = {"spark.hadoop.store.password": "hidden"}
    file = live_pipeline.command_line("run")[-1]
    (tmp_path / "main.py").write_text(SUBMITTED)
    jars = ",".join(map(str, connector_jars()))
    ended = subprocess.run(
        [
            ENTRY_POINT,
            "driver",
            "--master",
            "local[1]",
            "--jars",
            jars,
            tmp_path / "main.py",
            "run",
            file,
            "--once",
        ],
        env=os.environ
        | {
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        },
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "told hidden\n" in ended.stdout
    live_pipeline.assert_exact()
