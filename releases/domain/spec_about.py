"""What each key of a spec file means, in one sentence, and an example of its value: what editors show beside it."""

from __future__ import annotations

from collections.abc import Mapping

Example = str | int | float | bool

# `section.key`; a key that means the same in each section is by itself.
ABOUT: Mapping[str, tuple[str, Example]] = {
    "gpus": ("GPUs of one replica.", 4),
    "replicas": ("Replicas in each unit; a range such as { min: 1, max: 3 } lets the number move without a release.", 2),
    "stage.replicas": ("Serving units; a range lets the number move without a release.", 2),
    "min": ("The fewest.", 1),
    "max": ("The most.", 3),
    "conditional.local-prefill-below": ("Prompts with fewer uncached tokens are prefilled by decode itself.", 1000),
    "conditional.prefill-queue-above": ("With more prompts waiting than this, decode prefills too.", 64),
    "kv-cache.dtype": ("Type of keys and values; the recipe says which there are.", "fp8"),
    "kv-cache.block-size": ("Tokens of one block.", 64),
    "kv-cache.prefix-caching": ("Whether prompts that begin alike share their cache.", True),
    "kv-cache.offload": ("Host memory of each replica for what does not fit the GPUs.", "256GiB"),
    "kv-cache.events": ("Whether engines tell routers what they hold.", True),
    "faults.slow-factor": ("Every step takes so many times as long.", 3),
    "faults.error-ratio": ("Share of the requests that fail.", "5%"),
    "faults.hang-ratio": ("Share of the requests that never answer.", "1%"),
    "faults.crash-after-requests": ("The engine dies after so many requests.", 100),
    "faults.kv-fail-ratio": ("Share of the KV transfers that fail.", "5%"),
    "faults.kv-corrupt": ("Whether KV arrives damaged.", True),
    "faults.start-delay": ("How much longer a start takes.", "30s"),
    "engine.prefill": ("Flags of prefill engines, as the engine calls them, without dashes.", "{ max-num-seqs: 64 }"),
    "engine.decode": ("Flags of decode engines.", "{ max-num-seqs: 256 }"),
    "engine.aggregated": ("Flags of engines that do both.", "{ max-num-seqs: 256 }"),
    "secrets": ("Environment variables of the engines, each by the name of a stored secret (`denv secret`).", "{ HF_TOKEN: hf-read }"),
    "stages": ("Where it runs, by name; rolled out in this order.", "prod-us"),
    "rollout.canary": ("Share of the traffic that the first new unit gets; at most the first step.", "10%"),
    "rollout.steps": ("Shares after the canary, rising to 100%.", "100%"),
    "rollout.hold": ("How long each step is watched at least.", "10m"),
    "rollout.bake": ("How long alarms still roll back after the last step.", "30m"),
    "rollout.keep-warm": ("How long a unit of the old release stays up after success, while its GPUs are not needed.", "1h"),
    "rollout.deadline": ("How long anything that waits for machines may take.", "30m"),
    "rollout.min-requests": ("Requests after which a step may pass without proof of health, if no alarm is broken.", 100),
    "rollout.max-wait": ("How long a step waits for its proof before a person decides.", "30m"),
    "probe.rate": ("Requests a second or minute, to each of the two releases.", "1/s"),
    "probe.prompts": ("A file with one prompt a line, beside this one, or a list of prompts.", "prompts.txt"),
    "probe.tokens": ("Tokens of each answer.", 64),
}
