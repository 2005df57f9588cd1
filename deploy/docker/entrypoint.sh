#!/bin/sh
# Spark on Kubernetes starts its pods with the word `driver` or `executor`; anything else is a command of oncehouse.
set -eu

java_options() {
    # Spark hands its options over one by one, in variables with a number; Java reads them from a file, quoted.
    env | sed -n 's/[\\"]/\\&/g; s/^SPARK_JAVA_OPT_[0-9]*=\(.*\)/"\1"/p'
}

case "${1:-}" in
driver)
    shift
    exec "$SPARK_HOME/bin/spark-submit" \
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
