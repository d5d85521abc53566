#!/usr/bin/env bash
# Makes the full-size synthetic checkpoints (6.7 and 2.7 GB, kept between runs) and runs the bench over each, or over
# those named: benches/fullsize.sh glm-ocr
# Needs the test environment (`make venv`) and about 20 GB of disk. FULLSIZE_DIR says where the checkpoints go.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${AIMODEL_PYTHON:-.venv/bin/python}
[ $# -gt 0 ] || set -- unlimited-ocr glm-ocr
for model in "$@"; do
    folder=${FULLSIZE_DIR:-target/fullsize}/$model
    if [ ! -f "$folder/made" ]; then
        "$python" -m pip install --quiet numpy tokenizers
        "$python" benches/fullsize/make_fullsize.py "$model" "$folder"
        touch "$folder/made"
    fi
    # Warm: the bench measures the export, not the disk.
    cat "$folder"/*.safetensors > /dev/null
    AIMODEL_PYTHON=$python AIMODEL_FULLSIZE=$folder cargo bench --bench fullsize
done
