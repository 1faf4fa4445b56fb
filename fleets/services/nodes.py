"""Nodes come in: join tokens, joining, credentials."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from denvweb.core.errors import ConflictError, DenvError, ForbiddenError, InvalidError
from denvweb.core.ids import Credential, hash_secret, new_credential, parse_credential, secret_matches
from fleets.domain.ports import PORTS_A_RANK
from fleets.domain.protocol import JoinReply, JoinRequest, NodeFacts
from fleets.domain.versions import version_check
from fleets.domain.views import JoinTokenView
from fleets.models import Domain, Fleet, JoinToken, NextGeneration, Node
from fleets.services.refusals import join_refused
from metrics.services import event_append

JOIN_TOKEN_TTL_S = 3600.0
_FLEET_NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_FACTS = [
    *("gpus", "host", "port_base", "port_count", "simulated", "agent_version"),
    *("gpu_memory_bytes", "driver_version", "cuda_version"),
]


def join_token_create(*, fleet: str, created_by: str, ttl_s: float = JOIN_TOKEN_TTL_S) -> str:
    """A token that lets one agent process join its nodes to a fleet, once and within `ttl_s`; it cannot be read again."""
    return join_token_issue(fleet=fleet, created_by=created_by, ttl_s=ttl_s).token


@transaction.atomic
def join_token_issue(*, fleet: str, created_by: str, via: str = "system", ttl_s: float = JOIN_TOKEN_TTL_S) -> JoinTokenView:
    """The same, with what the token is good for; noted in the journal. The fleet comes into being with its first node."""
    if not _FLEET_NAME.fullmatch(fleet):
        problem = "must be 1 to 63 of a-z, 0-9 and -, begin with a letter and end with a letter or a digit"
        raise InvalidError(f"`{fleet}` is no name for a fleet: it {problem}.", code="bad-fleet-name", fields={"fleet": [problem]})
    credential = new_credential("join")
    expires_at = timezone.now() + timedelta(seconds=ttl_s)
    JoinToken.objects.create(
        id=credential.id, secret_hash=credential.secret_hash, fleet=fleet, created_by=created_by, expires_at=expires_at
    )
    sentence = f"{created_by} made join token {credential.id} for fleet {fleet}, good until {expires_at:%H:%M} UTC"
    event_append(kind="join-token.created", sentence=sentence, actor=created_by, via=via, fleet=fleet)
    return JoinTokenView(credential.text, fleet, expires_at)


def nodes_join(*, request: JoinRequest, now: datetime | None = None) -> JoinReply:
    """Trade a join token for a credential of each node. A node that is known already gets a new one, and its old one ends.

    Whoever used the token may use it again with the same key while it lives: the answer may have been lost on its way. A refusal is
    noted in the journal of the token's fleet.
    """
    try:
        return _join(request, now or timezone.now())
    except DenvError as error:
        token = _token_known(request.token)
        join_refused(fleet=token.fleet if token else "", detail=error.detail)
        raise


@transaction.atomic
def _join(request: JoinRequest, now: datetime) -> JoinReply:
    version_check(request.version)
    fleet_name, again = _token_use(request, now)
    _check(request.nodes, fleet_name)
    fleet = _fleet(request.nodes[0])
    _refuse_strangers(fleet, request.nodes)
    for name in sorted({f"{fleet.name}/{facts.domain}" for facts in request.nodes}):
        Domain.objects.get_or_create(name=name, defaults={"fleet": fleet})
    credentials = {facts.name: new_credential("node") for facts in request.nodes}
    Node.objects.bulk_create(
        [_node(facts, credentials[facts.name], now) for facts in sorted(request.nodes, key=lambda facts: facts.name)],
        update_conflicts=True,
        unique_fields=["name"],
        update_fields=["domain", *_FACTS, "credential_id", "secret_hash", "boot", "joined_at"],
    )
    Node.objects.filter(name__in=credentials).update(generation=NextGeneration())
    many = f"{len(credentials)} nodes" if len(credentials) > 1 else f"node {request.nodes[0].name}"
    how = " again, as its answer was lost" if again else ""
    event_append(kind="node.joined", sentence=f"{many} joined fleet {fleet.name}{how}", fleet=fleet.name)
    return JoinReply({name: credential.text for name, credential in credentials.items()})


def _token_known(text: str) -> JoinToken | None:
    """The row of a token whose secret is right, whatever became of it."""
    credential = parse_credential(text)
    token = JoinToken.objects.filter(id=credential.id).first() if credential else None
    return token if credential and token and secret_matches(credential.secret, token.secret_hash) else None


def _token_use(request: JoinRequest, now: datetime) -> tuple[str, bool]:
    """The token's fleet, and whether this asks again; the token is used up, unless the transaction fails."""
    token = _token_known(request.token)
    if token is None:
        raise ForbiddenError("This join token is unknown; make one with `denv token join FLEET`.", code="join-token-unknown")
    if token.expires_at <= now:
        raise ForbiddenError(f"This join token ended at {token.expires_at:%H:%M:%S} UTC; make a new one.", code="join-token-expired")
    key_hash = hash_secret(request.key) if request.key else ""
    if JoinToken.objects.filter(id=token.id, used_at=None).update(used_at=now, used_key_hash=key_hash):
        return token.fleet, False
    token.refresh_from_db()
    if not key_hash or key_hash != token.used_key_hash:
        raise ForbiddenError("This join token was used before, and a token joins once; make a new one.", code="join-token-used")
    return token.fleet, True


def _check(nodes: Sequence[NodeFacts], fleet: str) -> None:
    if not nodes:
        raise InvalidError("A join needs at least one node.", code="no-nodes")
    problems: dict[str, list[str]] = {}
    for number, facts in enumerate(nodes):
        said = []
        if facts.fleet != fleet:
            said.append(f"{facts.name} is of fleet {facts.fleet}, but the token is for {fleet}")
        if not facts.name or not facts.domain or not facts.host:
            said.append("a node needs a name, a domain and a host")
        if facts.gpus < 1:
            said.append(f"{facts.name} has {facts.gpus} GPUs; it must be at least 1")
        if facts.port_count < PORTS_A_RANK or not 0 < facts.port_base <= 65_536 - facts.port_count:
            said.append(f"{facts.name} has {facts.port_count} ports from {facts.port_base}; at least {PORTS_A_RANK} up to 65535 are needed")
        if facts.gpu_kind != nodes[0].gpu_kind:
            said.append(f"{facts.name} has {facts.gpu_kind} and {nodes[0].name} has {nodes[0].gpu_kind}; a fleet has one GPU kind")
        if said:
            problems[f"nodes.{number}"] = said
    if len({facts.name for facts in nodes}) < len(nodes):
        problems["nodes"] = ["two of them have one name"]
    if problems:
        raise InvalidError(next(iter(problems.values()))[0] + ".", code="bad-nodes", fields=problems)


def _fleet(facts: NodeFacts) -> Fleet:
    defaults = {"gpu_kind": facts.gpu_kind, "fabric_spans_nodes": facts.fabric_spans_nodes, "simulated": facts.simulated}
    fleet, _ = Fleet.objects.get_or_create(name=facts.fleet, defaults=defaults)
    if fleet.gpu_kind != facts.gpu_kind:
        raise InvalidError(f"Fleet {fleet.name} has {fleet.gpu_kind}; {facts.name} has {facts.gpu_kind}.", code="gpu-kind-mismatch")
    if fleet.simulated != facts.simulated:
        kinds = ("simulated", "real") if fleet.simulated else ("real", "simulated")
        raise InvalidError(f"Fleet {fleet.name} is {kinds[0]}; {facts.name} is {kinds[1]}.", code="simulated-mismatch")
    return fleet


def _refuse_strangers(fleet: Fleet, nodes: Sequence[NodeFacts]) -> None:
    """A node of another fleet keeps its name and its place: its GPUs may be in use there."""
    names = [facts.name for facts in nodes]
    stranger = Node.objects.filter(name__in=names).exclude(domain__fleet=fleet).select_related("domain").first()
    if stranger is not None:
        raise ConflictError(f"There is a node {stranger.name} in fleet {stranger.domain.fleet_id} already.", code="node-elsewhere")


def _node(facts: NodeFacts, credential: Credential, now: datetime) -> Node:
    return Node(
        name=facts.name,
        domain_id=f"{facts.fleet}/{facts.domain}",
        credential_id=credential.id,
        secret_hash=credential.secret_hash,
        joined_at=now,
        **{name: getattr(facts, name) for name in _FACTS},
    )


def node_authenticate(*, credential: str) -> Node:
    """The node behind a credential; ForbiddenError when there is none."""
    (found,) = nodes_authenticate(credentials=[credential])
    if isinstance(found, ForbiddenError):
        raise found
    return found


def nodes_authenticate(*, credentials: Sequence[str]) -> list[Node | ForbiddenError]:
    """The same of several, in one query; an error stands for each that is not good."""
    parsed = [parse_credential(text) for text in credentials]
    nodes = {
        node.credential_id: node
        for node in Node.objects.filter(credential_id__in={one.id for one in parsed if one}).select_related("domain")
    }
    found: list[Node | ForbiddenError] = []
    for one in parsed:
        node = nodes.get(one.id) if one else None
        if one is not None and node is not None and secret_matches(one.secret, node.secret_hash):
            found.append(node)
        else:
            said = "This node credential is unknown or was replaced; join again with a new token."
            found.append(ForbiddenError(said, code="node-credential-unknown"))
    return found
