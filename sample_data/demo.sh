#!/usr/bin/env bash
# The main job on real files: compress every sample checkpoint, restore it, and compare it byte for byte.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(dirname "$here")/.demo
rm -rf "$work" && mkdir -p "$work"

for file in "$here"/checkpoints/*; do
    name=$(basename "$file")
    echo "\$ nvckpt compress $name"
    nvckpt compress "$file" -o "$work/$name.nvckpt"
done

echo
echo "Restoring, and comparing with the originals:"
for file in "$here"/checkpoints/*; do
    name=$(basename "$file")
    nvckpt decompress -q "$work/$name.nvckpt"
    cmp "$file" "$work/$name"
    before=$(stat -c %s "$file") after=$(stat -c %s "$work/$name.nvckpt")
    awk -v n="$name" -v b="$before" -v a="$after" \
        'BEGIN { printf "  %-24s %9d -> %9d bytes, ratio %.3f, identical\n", n, b, a, b / a }'
done
