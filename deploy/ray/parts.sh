#!/bin/bash
# Predict or embed many images on a running Ray cluster: a job of Ray, whose actors fill one folder
# of parts. The same line submitted again continues what is missing.
#   RAY_ADDRESS=http://head:8265 ./parts.sh embed /shared/runs/photos '/shared/shards/{000..999}.tar' --out /shared/features
# Every node needs `pip install 'vitlab[ray]'` and sees the weights, the images and the folder under
# the same whole paths.
set -u
if [ $# -lt 3 ]; then
    echo "usage: parts.sh embed|predict WEIGHTS DATA --out FOLDER [options]" >&2
    exit 2
fi

exec ray job submit -- vitlab "$@" --on ray
