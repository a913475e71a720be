#!/usr/bin/env bash
# Brings TensorFlow 2.21 to a GPU machine that has CUDA 13 but no network, and runs what needs it.
#
# Where there is a network:
#     scripts/gpu_tensorflow.sh fetch WHEELS [--jax]      the wheels for Python 3.12, some gigabytes
#     scripts/gpu_tensorflow.sh slim WHEELS SMALL         a tenth of them: one card's machine code, packed well
#     scripts/gpu_tensorflow.sh cut SMALL PIECES          pieces of at most 60 MiB, and their digests: manifest
# On the GPU machine, once for each load of pieces, the manifest always among them:
#     scripts/gpu_tensorflow.sh bring FOLDER              says which pieces are still missing
# There, when none is:
#     scripts/gpu_tensorflow.sh run [--output DIRECTORY]  page: docs/results/<date>-<card>-tensorflow.md
# Here, without a GPU:
#     scripts/gpu_tensorflow.sh run --emulate [--quick]   every check, on the CPU
#     scripts/gpu_tensorflow.sh run --plan                which call does what, by times of an H100
#
# Every command may be cut off and repeated: what is done is skipped (run --again repeats it). Exit status of run:
# 0 all done and right, 1 something is wrong, 3 run it again. What decides most takes six calls of ten minutes:
# scripts/gpu_evidence.sh once, and run five times. Every network in every way (the stage "further") takes more.
# Pieces come together in $OVERLAP_TRAIN_STORE (/tmp/overlap_train_tensorflow).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
store=${OVERLAP_TRAIN_STORE:-/tmp/overlap_train_tensorflow}
python=${PYTHON:-}
if [ -z "$python" ]; then
  python=python3
  case " $* " in *" --emulate "*) if [ -x "$here/.venv/bin/python" ]; then python=$here/.venv/bin/python; fi ;; esac
fi
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-1}"

fail() {
  echo "$1" >&2
  exit 1
}

fetch() {  # WHEELS [--jax]
  local flags=(--python-version 3.12 --implementation cp --abi cp312 --abi abi3 --abi none) lists=(-r "$here/scripts/gpu/wheels.txt")
  for version in 2_39 2_35 2_34 2_31 2_28 2_27 2_24 2_17 2_12 2_5; do flags+=(--platform "manylinux_${version}_x86_64"); done
  if [ "${2:-}" = "--jax" ]; then lists+=(-r "$here/scripts/gpu/wheels_jax.txt"); fi
  "$python" -m pip download --no-deps --only-binary=:all: "${flags[@]}" --platform manylinux2014_x86_64 --dest "$1" "${lists[@]}"
  "$python" -m pip wheel --no-deps --wheel-dir "$1" gpustat promise # which have no wheels, and nothing to compile
}

cut_into() {  # WHEELS PIECES; a command may bring 64 MiB in all
  mkdir -p "$2"
  rm -f "$2"/piece-* "$2/manifest"
  tar -C "$1" -cf - . | split --bytes="${PIECE_BYTES:-60M}" --numeric-suffixes --suffix-length=3 - "$2/piece-"
  (cd "$2" && sha256sum piece-* > manifest.draft && mv manifest.draft manifest && wc -l manifest)
}

bring() {  # FOLDER; pieces come in any order and any number of times, and are taken if they are whole
  local digest name missing=() damaged=()
  [ -s "$1/manifest" ] || fail "$1 holds no manifest of pieces; bring it with every command"
  mkdir -p "$store"
  [ -e "$store/manifest" ] || cp "$1/manifest" "$store/manifest"
  cmp -s "$1/manifest" "$store/manifest" || fail "$store holds pieces of another manifest; empty it, or name another"
  while read -r digest name; do
    if [ -d "$store/site" ] || [ -e "$store/$name" ]; then continue; fi
    if [ ! -e "$1/$name" ]; then
      missing+=("$name")
    elif cp "$1/$name" "$store/draft" && sha256sum --check --status <<< "$digest  $store/draft"; then
      mv "$store/draft" "$store/$name"
    else
      damaged+=("$name")
    fi
  done < "$store/manifest"
  [ ${#damaged[@]} -eq 0 ] || fail "damaged on the way: ${damaged[*]}; bring them again"
  if [ ${#missing[@]} -gt 0 ]; then
    echo "still missing: ${missing[*]}"
    return
  fi
  if [ ! -d "$store/site" ]; then
    rm -rf "$store/wheels" "$store/unpacked"
    mkdir "$store/wheels"
    cat "$store"/piece-* | tar -C "$store/wheels" -xf -
    for wheel in "$store"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$store/unpacked"; done
    mv "$store/unpacked" "$store/site"
    rm -rf "$store"/piece-* "$store/wheels"
  fi
  echo "all pieces are here"
}

lend() {  # CUDA 13's libraries under the names by which a TensorFlow for CUDA 12 asks
  local pair folder
  mkdir -p "$store/lent"
  for pair in libcublas.so.12:libcublas.so.13 libcublasLt.so.12:libcublasLt.so.13 libcufft.so.11:libcufft.so.12 \
    libcusolver.so.11:libcusolver.so.12 libcusparse.so.12:libcusparse.so.12 libcudnn.so.9:libcudnn.so.9; do
    for folder in /usr/local/cuda/lib64 /usr/lib/x86_64-linux-gnu; do
      if [ -e "$folder/${pair#*:}" ]; then
        ln -sfn "$folder/${pair#*:}" "$store/lent/${pair%:*}"
        break
      fi
    done
  done
  export LD_LIBRARY_PATH="$store/site/nvidia/cuda_runtime/lib:$store/site/nvidia/cuda_cupti/lib:$store/lent:\
/usr/local/cuda/lib64:/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
}

command=${1:-help}
shift || true
case "$command" in
  fetch) fetch "$@" ;;
  slim) exec "$python" -m scripts.gpu.slim "$@" ;;
  cut) cut_into "$@" ;;
  bring) bring "$@" ;;
  run)
    case " $* " in
      *" --emulate "*) export CUDA_VISIBLE_DEVICES="" ;;
      *" --plan "* | *" --help "*) ;;
      *)
        [ -d "$store/site" ] || fail "there is no TensorFlow in $store; bring the pieces first, or rehearse with --emulate"
        export PYTHONPATH="$store/site:$PYTHONPATH"
        lend
        ;;
    esac
    exec "$python" -m scripts.gpu.tensorflow_runs "$@"
    ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2 && exit 2 ;;
esac
