#!/bin/sh
# Spark on Kubernetes starts its pods with the word `driver` or `executor`; `hold` runs a command of oncehouse whose
# container is not restarted when that cannot help; anything else is a command of oncehouse.
set -eu

# Exit codes of oncehouse that no restart helps, as in the systemd unit. spark-submit ends with 1 for reasons of its own.
final_exit_codes="1 2 5 6 8"
final_exit_codes_submitted="2 5 6 8"
# While it exists the pod is not ready.
held_file="${TMPDIR:-/tmp}/oncehouse-held"

java_options() {
    # Spark hands its options over one by one, in variables with a number; Java reads them from a file, quoted.
    env | sed -n 's/[\\"]/\\&/g; s/^SPARK_JAVA_OPT_[0-9]*=\(.*\)/"\1"/p'
}

# Kubernetes restarts every container that ends. After a final exit code this one waits instead, until it is stopped.
hold() {
    final=$1
    shift
    rm -f "$held_file"
    stopping=
    "$@" &
    command=$!
    trap 'stopping=1; kill -TERM "$command" 2>/dev/null || true' TERM INT
    code=0
    wait "$command" || code=$?
    # A signal ends `wait` before the command has ended.
    while kill -0 "$command" 2>/dev/null; do
        code=0
        wait "$command" || code=$?
    done
    case " $final " in
    *" $code "*) ;;
    *) exit "$code" ;;
    esac
    trap 'exit "$code"' TERM INT
    [ -z "$stopping" ] || exit "$code"
    : >"$held_file"
    echo "Ended with exit code $code, which a restart cannot help. The container waits until the pod is deleted." >&2
    # In the background, because the shell acts upon a signal only while it waits.
    sleep infinity &
    wait
}

case "${1:-}" in
hold)
    shift
    hold "$final_exit_codes" oncehouse "$@"
    ;;
driver)
    shift
    hold "$final_exit_codes_submitted" "$SPARK_HOME/bin/spark-submit" \
        --conf "spark.driver.bindAddress=${SPARK_DRIVER_BIND_ADDRESS}" \
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=${SPARK_DRIVER_BIND_ADDRESS}" \
        --deploy-mode client "$@"
    ;;
executor)
    shift
    options=$(mktemp)
    java_options >"$options"
    exec java "@$options" \
        "-Xms${SPARK_EXECUTOR_MEMORY}" "-Xmx${SPARK_EXECUTOR_MEMORY}" \
        -cp "${SPARK_CLASSPATH:-}:$SPARK_HOME/jars/*:${SPARK_DIST_CLASSPATH:-}" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" \
        --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
*)
    exec oncehouse "$@"
    ;;
esac
