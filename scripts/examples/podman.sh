#!/bin/sh
# An online engine and an offline job in containers of podman (4.1 or newer), by the Container Device Interface. The node has
# the package, or `tidegate cdi generate --output /etc/cdi/tidegate.json`; nvidia.com/gpu comes from `nvidia-ctk cdi generate`.
# Neither image is changed. Root in the containers here is the node's: give the roles by rules of /etc/tidegate/agent.toml.
set -e
podman run -d --name online --device nvidia.com/gpu=0 --device tidegate.dev/colo=online \
    docker.io/vllm/vllm-openai:latest --model meta-llama/Llama-3.1-8B-Instruct
# A closed gate may last for hours; the engine has to be told to wait that long.
podman run -d --name offline --device nvidia.com/gpu=0 --device tidegate.dev/colo=offline \
    -e VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=86400 \
    -v "$PWD:/job" --entrypoint python3 docker.io/vllm/vllm-openai:latest /job/batch.py
