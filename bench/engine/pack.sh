#!/usr/bin/env bash
# The engine's packages for a machine that reaches no registry but has torch, Triton and transformers: their pinned
# wheels, unpacked, in one archive. There: tar -xf OUT.tar.xz -C FOLDER, and FOLDER first on PYTHONPATH.
#
# usage: bench/engine/pack.sh OUT.tar.xz [PYTHON_VERSION, by default 3.12]
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath "${1:?the first argument is the archive to write}")
python=${2:-3.12}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# entries begin at the line's start; torch, what scores answers beside it, and what these need are there already
awk '/^[a-z0-9]/ { kept = !/^(torch|triton|nvidia|cuda|numpy|sympy|networkx|mpmath|setuptools|safetensors|tokenizers|huggingface|hf-xet|packaging|filelock|fsspec|tqdm|pyyaml)/ }
    kept' requirements/engine.txt >"$scratch/packages.txt"
platforms=()
for each in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux_2_5 manylinux2014 manylinux1; do
    platforms+=(--platform "${each}_x86_64")
done
python3 -m pip install --quiet --no-deps --require-hashes --only-binary=:all: --no-compile --python-version "$python" \
    --implementation cp "${platforms[@]}" --target "$scratch/site" --requirement "$scratch/packages.txt"
tar -cJf "$out" -C "$scratch/site" .
du -h "$out"
