#!/usr/bin/env bash
set -euo pipefail
python -m pip install --quiet --require-hashes -r requirements.lock
