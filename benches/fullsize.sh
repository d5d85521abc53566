#!/usr/bin/env bash
# Makes the full-size synthetic checkpoint (6.7 GB, kept between runs) and runs the bench over it.
# Needs the test environment (`make venv`) and about 20 GB of disk. FULLSIZE_DIR says where the checkpoint goes.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${AIMODEL_PYTHON:-.venv/bin/python}
folder=${FULLSIZE_DIR:-target/fullsize}/unlimited-ocr
if [ ! -f "$folder/model.safetensors.index.json" ]; then
    "$python" -m pip install --quiet numpy tokenizers
    "$python" benches/fullsize/make_fullsize.py unlimited-ocr "$folder"
fi
# Warm: the bench measures the export, not the disk.
cat "$folder"/*.safetensors > /dev/null
AIMODEL_PYTHON=$python AIMODEL_FULLSIZE=$folder cargo bench --bench fullsize
