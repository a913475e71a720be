#!/usr/bin/env bash
# Times our convolution next to tf.nn.conv2d: each layer of U-Net, VGG16 and ResNet50, then whole training steps.
# scripts/compare_conv.sh [--quick] [--resume] [--publish] [--output_dir DIRECTORY]   JSON goes to DIRECTORY (runs/conv)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-}" TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
case " $* " in
  *" --help "* | *" -h "*) ;; # for which nothing has to be built
  *) .venv/bin/python -m overlap_train.cli build ;;
esac
exec .venv/bin/python -m scripts.bench.conv "$@"
