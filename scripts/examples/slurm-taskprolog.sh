#!/bin/sh
# TaskProlog of slurm.conf: what it prints as `export NAME=VALUE` is in the environment of the job's tasks. Jobs of the
# partition "harvest" run offline. The word alone makes nobody online; rules by cgroup or user of /etc/tidegate/agent.toml do.
case "$SLURM_JOB_PARTITION" in
    harvest)
        echo "export TIDEGATE_ROLE=offline"
        # All ranks of a job are gated together.
        echo "export TIDEGATE_JOB=slurm-$SLURM_JOB_ID"
        echo "export LD_PRELOAD=/usr/lib/tidegate/libtidegate.so${LD_PRELOAD:+:$LD_PRELOAD}"
        ;;
esac
