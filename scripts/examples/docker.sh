#!/bin/sh
# As podman.sh, with docker: 25 or newer reads specifications where daemon.json has {"features": {"cdi": true}} (28: always).
set -e
docker run -d --name online --device nvidia.com/gpu=0 --device tidegate.dev/colo=online \
    vllm/vllm-openai:latest --model meta-llama/Llama-3.1-8B-Instruct
# Older: what the specification says, by hand. The socket alone, not its directory, which holds control.sock too.
docker run -d --name offline --gpus device=0 \
    -v /usr/lib/tidegate/libtidegate.so:/opt/tidegate/libtidegate.so:ro \
    -v /run/tidegate/hook.sock:/run/tidegate/hook.sock:ro \
    -e LD_PRELOAD=/opt/tidegate/libtidegate.so -e TIDEGATE_ROLE=offline \
    -e VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=86400 \
    -v "$PWD:/job" --entrypoint python3 vllm/vllm-openai:latest /job/batch.py
