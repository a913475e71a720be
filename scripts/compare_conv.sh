#!/usr/bin/env bash
# Times our convolution beside tf.nn.conv2d: each layer of U-Net, VGG16 and ResNet50, then whole training steps.
# scripts/compare_conv.sh [--quick] [DIRECTORY]   JSON, plots and the log go to DIRECTORY (runs/conv)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-}" TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}" MPLBACKEND=Agg
budget=1.0 batches="1 8" networks="unet vgg16 resnet50" steps="unet:1 unet:8 vgg16:4 mnist:128"
if [ "${1:-}" = --quick ]; then
  budget=0.3 batches=1 networks=unet steps="unet:1 mnist:128"
  shift
fi
output=${1:-runs/conv}
mkdir -p "$output"
.venv/bin/python -m overlap_train.conv.build
{
  for network in $networks; do
    for batch in $batches; do
      .venv/bin/python -m scripts.bench.conv_layers --network "$network" --batch "$batch" \
        --budget_s $budget --output "$output/$network-$batch.json"
    done
  done
  for step in $steps; do
    .venv/bin/python -m scripts.bench.conv_training --model "${step%:*}" --batch "${step#*:}" \
      --output "$output/step-${step%:*}-${step#*:}.json"
  done
} 2> >(grep -v -e '^WARNING: All log' -e '^[IE]0000' >&2) | tee "$output/log.txt"
