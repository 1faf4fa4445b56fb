"""vLLM: `vllm serve`, its flags as 0.32 and 0.33 take them, on GPUs and on its CPU build; KV by NIXL, pulled or pushed, or by Mooncake."""

from __future__ import annotations

import json

from denvweb.core.errors import InvalidError
from fleets.domain.ports import EVENTS, GANG, SIDE_CHANNEL, SPARE, GroupPorts, replay_port
from fleets.domain.protocol import RankSpec
from fleets.domain.types import KV_LEASE_S, MOONCAKE_LEASE_S, Role
from fleets.engines.base import (
    Capabilities,
    LaunchCommand,
    environment_options,
    gpu_env,
    listens,
    option_flags,
    replica_gpus,
    weights_path,
)
from fleets.engines.prometheus import mapped

_PULL, _PUSH, _MOONCAKE = "vllm-nixl", "vllm-nixl-push", "vllm-mooncake"
# By a recipe's protocol; the two that pull are one and the same.
_CONNECTORS = {_PULL: ("NixlConnector", "NixlPullConnector"), _PUSH: ("NixlPushConnector",), _MOONCAKE: ("MooncakeConnector",)}
_LOAD_FAILURE_POLICIES = ("fail", "recompute")
_KV_ROLE = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}
# The words of recipes for what KV is kept in, and vLLM's. It has no word for 32 bits: there KV is kept as the model computes.
_KV_DTYPES = {"auto": "auto", "float32": "auto", "fp32": "auto", "bf16": "bfloat16", "fp16": "float16", "fp8": "fp8", "fp4": "nvfp4"}
_GIB = 2**30
_LEASE_LEAST_S = 6
_SHUTDOWN_S = 8  # from SIGTERM: less than an agent waits before SIGKILL, and the router has sent nothing new for long by then
CPU = "CPU"  # the GPU kind of nodes that compute on their processors

NAMES = {
    "kv_use": "vllm:kv_cache_usage_perc",
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "preemptions": "vllm:num_preemptions_total",
    "kv_transfers": "vllm:nixl_xfer_time_seconds_count",
    "kv_transfer_bytes": "vllm:nixl_bytes_transferred_sum",
    "kv_transfers_failed": "vllm:nixl_num_failed_transfers_total",
    "kv_expired": "vllm:nixl_num_kv_expired_reqs_total",
    "kv_fetched_late": "vllm:nixl_num_notifications_after_expiry_total",  # what decode read then may be another request's
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
}
MOONCAKE_NAMES = {
    "kv_transfers": "vllm:mooncake_xfer_time_seconds_count",
    "kv_transfer_bytes": "vllm:mooncake_bytes_transferred_sum",
    "kv_transfers_failed": "vllm:mooncake_num_failed_transfers_total",
    "kv_expired": "vllm:mooncake_num_kv_expired_reqs_total",
}
RATIOS = {"prefix_hit": ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")}
# denv's names, which become parts of other flags.
_OWN_OPTIONS = frozenset(
    {
        "kv-lease-s",
        "kv-load-failure-policy",
        "kv-connector",
        "mooncake-protocol",
        "kv-offload-bytes",
        "kv-events",
        "num-speculative-tokens",
        "speculative-method",
        "speculative-model",
    }
)


class VllmAdapter:
    """`vllm serve`, one process per rank."""

    name = "vllm"
    program = "vllm"
    capabilities = Capabilities(disaggregate=True, local_prefill_on_decode=True, hetero_tensor_parallel=True, role_switch=False)

    def command(self, spec: RankSpec, *, speed: float = 1.0, engine_id: str = "") -> LaunchCommand:
        """Prefill and decode differ in `kv_role` only, which vLLM takes as advice over NIXL and goes by over Mooncake.

        The KV identity is new with each start: peers refuse a restarted engine under its old one for good. vLLM makes it, but where the
        router has to know it before prefill has answered: there it is `engine_id`.
        """
        engine = spec.engine
        model, revision = weights_path(engine.weights)
        argv = ["vllm", "serve", model, "--host", spec.leader_host, "--port", str(spec.port), "--served-model-name", engine.model]
        argv += ["--revision", revision] if revision else []
        argv += _parallel_flags(spec)
        argv += _kv_cache_flags(spec)
        argv += _speculative_flags(spec)
        argv += option_flags(engine.options, but=_OWN_OPTIONS)
        argv += _wanted_by_denv(spec)
        env = _device_env(spec)
        if spec.role in _KV_ROLE:
            argv += ["--kv-transfer-config", json.dumps(_kv_config(spec, engine_id))]
            env |= _mooncake_env(spec) if spec.engine.protocol == _MOONCAKE else _side_channel_env(spec)
        env |= environment_options(engine.options)
        ports = _listens(spec)
        if spec.index:
            return LaunchCommand(tuple(argv), env, ready_path="", metrics_path="", listens=ports)
        return LaunchCommand(tuple(argv), env, listens=ports)

    def map_metrics(self, text: str) -> dict[str, float]:
        """Gauges by denv's names."""
        names = NAMES | MOONCAKE_NAMES if "vllm:mooncake_" in text else NAMES
        return mapped(text, names, RATIOS)


def _wanted_by_denv(spec: RankSpec) -> list[str]:
    """Cached tokens in usage, which the router's figures need, and time to end streams after SIGTERM; a recipe's own words win."""
    flags = []
    if spec.index == 0 and "enable-prompt-tokens-details" not in spec.engine.options:
        flags += ["--enable-prompt-tokens-details"]
    if "shutdown-timeout" not in spec.engine.options:
        flags += ["--shutdown-timeout", str(_SHUTDOWN_S)]
    return flags


def _device_env(spec: RankSpec) -> dict[str, str]:
    """GPUs that the process may see; the CPU build has none, and is told its address because it would take any that it finds."""
    if spec.gpu_kind.upper() == CPU:
        return {"VLLM_HOST_IP": spec.own_host}
    return gpu_env(spec)


def _listens(spec: RankSpec) -> dict[int, str]:
    """vLLM that finds a port of its KV channels taken neither serves nor ends."""
    here, ports = GroupPorts.of(spec), listens(spec)
    if spec.engine.protocol == _MOONCAKE:
        ports |= {spec.port + SIDE_CHANNEL: "KV bootstrap"} if spec.role is Role.PREFILL else {}
    elif spec.role in _KV_ROLE:
        first = SIDE_CHANNEL if here.groups == 1 else here.side_channels
        ports |= {spec.port + first + group: "KV handshakes" for group in range(here.groups)}
    if _wide_groups(spec) > 1 and spec.index == 0:
        ports[spec.port + SPARE] = "data-parallel ranks"
    if spec.engine.options.get("kv-events", "false") == "true":
        first = EVENTS if here.groups == 1 else here.events
        ports |= {spec.port + first + group: "KV events" for group in range(here.groups)}
        ports |= {replay: "KV events again"} if (replay := replay_port(spec)) else {}
    return ports


def _side_channel_env(spec: RankSpec) -> dict[str, str]:
    """Where NIXL's handshakes are answered. vLLM adds a rank's data-parallel index to the port, so the first local rank's is taken off."""
    here = GroupPorts.of(spec)
    port = spec.port + SIDE_CHANNEL if here.groups == 1 else spec.port + here.side_channels
    return {"VLLM_NIXL_SIDE_CHANNEL_HOST": spec.own_host, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port - here.first_group)}


def _mooncake_env(spec: RankSpec) -> dict[str, str]:
    """Prefill's bootstrap server, the address that both sides tell, and for how long either waits for the other."""
    lease_s = _lease_s(spec.engine.options.get("kv-lease-s", f"{MOONCAKE_LEASE_S:g}"))
    env = {"VLLM_HOST_IP": spec.own_host, "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": str(lease_s)}
    return env | ({"VLLM_MOONCAKE_BOOTSTRAP_PORT": str(spec.port + SIDE_CHANNEL)} if spec.role is Role.PREFILL else {})


def _kv_config(spec: RankSpec, engine_id: str) -> dict[str, object]:
    options, cpu = spec.engine.options, spec.gpu_kind.upper() == CPU
    policy = options.get("kv-load-failure-policy", "fail")
    if policy not in _LOAD_FAILURE_POLICIES:
        raise InvalidError(f"the option kv-load-failure-policy is {policy!r}; write `fail` or `recompute`", code="option-invalid")
    connector = _connector(spec)
    config: dict[str, object] = {"kv_connector": connector, "kv_role": _KV_ROLE[spec.role], "kv_load_failure_policy": policy}
    if spec.engine.tensor_parallel > len(spec.gpus):
        # Ranks of one group on several nodes must say the same identity: that of the placement, new with every one.
        config["engine_id"] = spec.replica
    elif engine_id and spec.role is Role.PREFILL and spec.engine.protocol != _PULL and _is_one_group(spec):
        config["engine_id"] = engine_id
    if spec.engine.protocol == _MOONCAKE:
        _refuse_for_mooncake(spec, cpu=cpu)
        return config | {"kv_connector_extra_config": {"mooncake_protocol": options.get("mooncake-protocol", "rdma")}}
    extra: dict[str, object] = {"kv_lease_duration": _lease_s(options.get("kv-lease-s", f"{KV_LEASE_S:g}"))}
    if cpu:
        config["kv_buffer_device"] = "cpu"
        extra["num_threads"] = 1
    return config | {"kv_connector_extra_config": extra}


def _connector(spec: RankSpec) -> str:
    """That of the recipe's protocol; a recipe or release that names another is refused, for the router would speak the wrong one."""
    known = _CONNECTORS.get(spec.engine.protocol, _CONNECTORS[_PULL])
    connector = spec.engine.options.get("kv-connector", known[0])
    if connector in known:
        return connector
    other = next((protocol for protocol, names in _CONNECTORS.items() if connector in names), "")
    cure = f"it goes with a recipe of protocol {other}" if other else "the router does not drive it"
    raise InvalidError(
        f"the option kv-connector is {connector!r}, but the recipe hands over by {spec.engine.protocol}: {cure}; "
        f"leave the option out, or write {' or '.join(known)}",
        code="option-invalid",
    )


def _refuse_for_mooncake(spec: RankSpec, *, cpu: bool) -> None:
    """InvalidError for a layout whose prefill workers the router could not name to decode."""
    if cpu:
        raise InvalidError(
            "Mooncake moves KV between accelerators, and these nodes compute on CPUs; take a recipe that hands over by vllm-nixl",
            code="kv-connector-unsupported",
        )
    if spec.role is Role.PREFILL and not _is_one_group(spec):
        raise InvalidError(
            f"over Mooncake a prefill replica is one tensor-parallel group on one node; this one has {replica_gpus(spec)} GPUs on "
            f"{spec.count} nodes in groups of {spec.engine.tensor_parallel}. Give it {spec.engine.tensor_parallel} GPUs of one node, "
            "or take a recipe that hands over by vllm-nixl or vllm-nixl-push",
            code="kv-connector-unsupported",
        )


def _is_one_group(spec: RankSpec) -> bool:
    """Whether the replica is a single process group on one node, which alone says the identity that it is told."""
    return spec.count == 1 and spec.engine.tensor_parallel == len(spec.gpus)


def _lease_s(text: str) -> int:
    """Whole seconds; vLLM's decode renews a lease every sixth of it, and rounds that down."""
    if not text.isdecimal() or int(text) < _LEASE_LEAST_S:
        raise InvalidError(
            f"the option kv-lease-s is {text!r}; vLLM takes whole seconds, and at least {_LEASE_LEAST_S}", code="option-invalid"
        )
    return int(text)


def _kv_cache_flags(spec: RankSpec) -> list[str]:
    """The release's `kv-cache` section; InvalidError for a data type that vLLM has no word for."""
    engine, options = spec.engine, spec.engine.options
    dtype = _KV_DTYPES.get(engine.kv_dtype)
    if dtype is None:
        raise InvalidError(
            f"vLLM has no KV cache of {engine.kv_dtype}; write one of {', '.join(_KV_DTYPES)}, or `auto`", code="kv-dtype-unsupported"
        )
    flags = ["--block-size", str(engine.block_tokens)]
    flags += [] if dtype == "auto" else ["--kv-cache-dtype", dtype]
    flags += ["--enable-prefix-caching" if engine.prefix_caching else "--no-enable-prefix-caching"]
    if offload_bytes := int(options.get("kv-offload-bytes", "0")):
        if spec.role in _KV_ROLE:
            raise InvalidError(
                "vLLM's offload to host memory takes the place of its connector between prefill and decode; "
                "leave kv-cache.offload out, or write an aggregated topology",
                code="kv-offload-unsupported",
            )
        flags += ["--kv-offloading-size", f"{offload_bytes / _GIB:g}", "--kv-offloading-backend", "native"]
    if options.get("kv-events", "false") == "true":
        if _wide_groups(spec) > 1:
            raise InvalidError(
                "tensor-parallel groups that span nodes, more than one, leave no port for KV events; leave kv-cache.events out",
                code="kv-setting-unsupported",
            )
        flags += ["--kv-events-config", json.dumps(_events_config(spec))]
    return flags


def _events_config(spec: RankSpec) -> dict[str, object]:
    """A wildcard address, so that vLLM listens; with any other it would connect to a subscriber that it expects there."""
    here = GroupPorts.of(spec)
    port = spec.port + EVENTS if here.groups == 1 else spec.port + here.events - here.first_group
    config: dict[str, object] = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{port}", "topic": "kv-events"}
    return config | ({"replay_endpoint": f"tcp://*:{replay}"} if (replay := replay_port(spec)) else {})


def _speculative_flags(spec: RankSpec) -> list[str]:
    """Drafted tokens are one of several fields of a JSON flag. Without a draft model the model's own draft layers (`mtp`) are meant."""
    options = spec.engine.options
    count = int(options.get("num-speculative-tokens", "0"))
    if not count:
        return []
    method = options.get("speculative-method", "" if "speculative-model" in options else "mtp")
    config: dict[str, object] = {"num_speculative_tokens": count}
    config |= {"method": method} if method else {}
    config |= {"model": options["speculative-model"]} if "speculative-model" in options else {}
    return ["--speculative-config", json.dumps(config)]


def _wide_groups(spec: RankSpec) -> int:
    """How many tensor-parallel groups the replica has, when each spans nodes; else 0."""
    tensor = spec.engine.tensor_parallel
    return replica_gpus(spec) // tensor if spec.count > 1 and tensor > len(spec.gpus) else 0


def _parallel_flags(spec: RankSpec) -> list[str]:
    """Tensor-parallel groups inside nodes or over several, and data-parallel copies of the attention when there is more than one."""
    tensor, total = spec.engine.tensor_parallel, replica_gpus(spec)
    groups = total // tensor
    flags = ["--tensor-parallel-size", str(tensor)]
    if spec.count > 1 and tensor > len(spec.gpus):
        flags += ["--nnodes", str(spec.count), "--node-rank", str(spec.index), "--master-addr", spec.leader_host]
        flags += ["--master-port", str(spec.leader_port + GANG)]
        if groups > 1:  # each node's group is inferred from its number
            flags += ["--data-parallel-size", str(groups), "--data-parallel-address", spec.leader_host]
            flags += ["--data-parallel-rpc-port", str(spec.leader_port + SPARE)]
    elif groups > 1:
        here = GroupPorts.of(spec)
        flags += ["--data-parallel-size", str(groups), "--data-parallel-size-local", str(here.groups)]
        if spec.count > 1:
            flags += ["--data-parallel-address", spec.leader_host, "--data-parallel-rpc-port", str(spec.leader_port + GANG)]
            flags += ["--data-parallel-start-rank", str(here.first_group)] if spec.index else []
    return flags + (["--headless"] if spec.index else [])


ADAPTER = VllmAdapter()
