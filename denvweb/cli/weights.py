"""`denv weights`: what a checkpoint weighs, and whether it fits, before anything is fetched."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import click
import httpx
import msgspec

from denvweb.cli.output import echo_json, json_option, paint
from denvweb.core.errors import InvalidError, NotFoundError, UnavailableError
from denvweb.core.units import format_bytes
from fleets.agent.weights.headers import read_checkpoint
from fleets.domain.hardware import GPUS
from fleets.domain.rank_fit import RankFit, rank_fit
from fleets.domain.safetensors import Checkpoint, Tensor, checkpoint, header_length, read_header
from fleets.engines.base import weights_path

_FIRST_BYTES = 256 * 1024  # nearly always the whole header in one request
_AT_ONCE = 8
_KV_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5}


@click.command()
@click.argument("weights")
@click.option(
    "--gpu-kind", default="H200", show_default=True, type=click.Choice(list(GPUS), case_sensitive=False), help="Kind of the GPUs."
)
@click.option("--gpus", default=1, show_default=True, type=click.IntRange(1), help="GPUs of one replica.")
@click.option("--tensor-parallel", type=click.IntRange(1), help="Of the attention; the GPUs of a replica when left out.")
@click.option("--context", type=click.IntRange(1), help="Tokens of one sequence; the model's own when left out.")
@click.option("--kv-dtype", default="bf16", show_default=True, type=click.Choice(list(_KV_BYTES)), help="Of the KV cache.")
@json_option
def weights(weights: str, gpu_kind: str, gpus: int, tensor_parallel: int | None, context: int | None, kv_dtype: str, as_json: bool) -> None:
    """Read the headers of WEIGHTS (hf://org/name@revision, file:///path, or a folder), and say whether they fit a replica's GPUs.

    Exit status 1 when they do not fit.
    """
    model = _read(weights)
    fit = rank_fit(
        model,
        memory_bytes=GPUS[gpu_kind].memory_bytes,
        gpus=gpus,
        tensor_parallel=tensor_parallel or gpus,
        context=context or model.context_tokens,
        kv_value_bytes=_KV_BYTES[kv_dtype],
    )
    if as_json:
        echo_json({"checkpoint": model, "fit": fit, "fits": fit.fits})
    else:
        _print(model, fit, f"{gpus} {gpu_kind}")
    if not fit.fits:
        raise SystemExit(1)


def _print(model: Checkpoint, fit: RankFit, where: str) -> None:
    cache = "one latent cache for all heads" if model.latent else f"{model.kv_heads} KV heads"
    click.echo(f"{model.params / 1e9:.3g} billion parameters, {format_bytes(model.weight_bytes)}, {model.layers} layers, {cache}")
    word, level = ("fits", "ok") if fit.fits else ("does not fit", "bad")
    click.echo(f"{paint(word, level)} {where}: {fit.arithmetic}")


def _read(uri: str) -> Checkpoint:
    if uri.startswith("hf://"):
        return _of_hub(*weights_path(uri))
    folder = Path(weights_path(uri)[0] if uri.startswith("file://") else uri)
    found = read_checkpoint(folder)
    if found is None:
        raise NotFoundError(f"there are no safetensors with a config.json in {folder}", code="no-checkpoint")
    return found


def _of_hub(repo: str, revision: str) -> Checkpoint:
    """From the hub, by ranges; HF_ENDPOINT and HF_TOKEN count."""
    endpoint, token = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/"), os.environ.get("HF_TOKEN", "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(headers=headers, follow_redirects=True, timeout=30.0) as client:
        get = partial(_get, client)
        info = msgspec.json.decode(get(f"{endpoint}/api/models/{repo}/revision/{revision or 'main'}"), type=dict[str, Any])
        base = f"{endpoint}/{repo}/resolve/{info['sha']}"
        names = sorted(str(one["rfilename"]) for one in info["siblings"])
        files = [name for name in names if name.endswith(".safetensors") and "/" not in name]
        if not files:
            raise NotFoundError(f"{repo} has no safetensors at {revision or 'main'}", code="no-checkpoint")
        config = msgspec.json.decode(get(f"{base}/config.json"), type=dict[str, Any])
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = list(pool.map(lambda name: _tensors(get, f"{base}/{name}"), files))
    return checkpoint(config, [tensor for tensors in found for tensor in tensors])


def _tensors(get: Any, url: str) -> tuple[Tensor, ...]:
    first = get(url, 0, _FIRST_BYTES)
    length = header_length(first)
    if len(first) < 8 + length:
        first += get(url, len(first), 8 + length - len(first))
    return read_header(first[8 : 8 + length])


def _get(client: httpx.Client, url: str, start: int | None = None, count: int = 0) -> bytes:
    headers = {} if start is None else {"Range": f"bytes={start}-{start + count - 1}"}
    try:
        answer = client.get(url, headers=headers)
    except httpx.TransportError as error:
        raise UnavailableError(f"the hub does not answer: {error}", code="hub") from error
    if answer.status_code in (401, 403, 404):
        raise InvalidError(f"the hub refuses {httpx.URL(url).path} ({answer.status_code}): set HF_TOKEN if it is gated", code="hub")
    if answer.is_error:
        raise UnavailableError(f"the hub answered {answer.status_code}", code="hub")
    return answer.content[:count] if count else answer.content
