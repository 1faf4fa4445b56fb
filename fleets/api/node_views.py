"""Nodes over REST: tokens to join with, cordons, drains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from denvweb.access import Action
from denvweb.api import schema_of
from denvweb.auth import via_of
from denvweb.core import wire
from denvweb.core.errors import ForbiddenError
from denvweb.idempotency import idempotent, idempotent_secret
from denvweb.listing import ChoiceOfField, FlagField, ListQuery, WordField, checked, cut
from fleets.api.access import access_fleet_maps, access_nodes
from fleets.domain.drain import DrainPlan
from fleets.domain.types import NodeState
from fleets.domain.views import FleetMap, JoinTokenView, NodeStanding
from fleets.selectors import drain_plan, node_standing, nodes_found
from fleets.services import fleet_thaw, join_token_issue, node_cordon, node_drain

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JoinTokenBody:
    """The fleet that the nodes will join."""

    fleet: str


@dataclass(frozen=True, slots=True)
class NodeBody:
    """Why, for the journal."""

    reason: str = ""


def _body(request: Request, into: type[T]) -> T:
    return wire.from_plain(request.data or {}, into)


class JoinTokensView(APIView):
    """POST /join-tokens."""

    @extend_schema(request=schema_of(JoinTokenBody), responses={201: schema_of(JoinTokenView)}, operation_id="join_token_create")
    @idempotent_secret
    def post(self, request: Request) -> Response:
        """A one-use token with which an agent joins its nodes to a fleet; administrators only."""
        if not request.user.is_superuser:
            raise ForbiddenError("Only an administrator may make a join token: whoever has one can add nodes to the fleet.")
        fleet = _body(request, JoinTokenBody).fleet
        made = join_token_issue(fleet=fleet, created_by=request.user.get_username(), via=via_of(request))
        return Response(wire.to_plain(made), status=status.HTTP_201_CREATED)


class NodesQuery(ListQuery):
    """Which nodes."""

    fleet = WordField(max_length=63)
    state = ChoiceOfField([state.value for state in NodeState])
    cordoned = FlagField()
    draining = FlagField()
    after = WordField(help_text="`next` of the page before")


@dataclass(frozen=True, slots=True)
class NodesPage:
    """Nodes by name; `next` is the `after` of the next page."""

    results: tuple[NodeStanding, ...]
    next: str | None


class NodesView(APIView):
    """GET /nodes."""

    @extend_schema(operation_id="nodes_list", parameters=[NodesQuery], responses=schema_of(NodesPage))
    def get(self, request: Request) -> Response:
        """Every node: its state, its GPUs, its last report and what is wrong with it."""
        wanted = checked(NodesQuery, request)
        limit = wanted.pop("limit")
        found = nodes_found(**wanted, limit=limit + 1)
        return Response(wire.to_plain(NodesPage(*cut(found, limit, lambda node: node.node))))


class NodeView(APIView):
    """GET /nodes/{name}."""

    @extend_schema(operation_id="nodes_retrieve", responses=schema_of(NodeStanding))
    def get(self, request: Request, name: str) -> Response:
        """One node: its state, its GPUs, its last report and what is wrong with it."""
        return Response(wire.to_plain(node_standing(node=name)))


class CordonView(APIView):
    """POST /nodes/{name}/cordon."""

    @extend_schema(request=schema_of(NodeBody), responses=schema_of(NodeStanding), operation_id="node_cordon")
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Have a node take nothing new; what runs there goes on."""
        return _cordon(request, name, cordoned=True)


class UncordonView(APIView):
    """POST /nodes/{name}/uncordon."""

    @extend_schema(request=schema_of(NodeBody), responses=schema_of(NodeStanding), operation_id="node_uncordon")
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Have a node take new ranks again; a drain of it ends."""
        return _cordon(request, name, cordoned=False)


class DrainPlanView(APIView):
    """GET /nodes/{name}/drain-plan."""

    @extend_schema(responses=schema_of(DrainPlan), operation_id="node_drain_plan")
    def get(self, request: Request, name: str) -> Response:
        """What a drain would make of each unit on the node, by what is free now; nothing is changed."""
        access_nodes(request.user)
        return Response(wire.to_plain(drain_plan(node=name)))


class DrainView(APIView):
    """POST /nodes/{name}/drain."""

    @extend_schema(request=schema_of(NodeBody), responses=schema_of(DrainPlan), operation_id="node_drain")
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Cordon the node and replace its units elsewhere, each as soon as there is room; the plan as it stands."""
        access_nodes(request.user, Action.PAUSE)
        reason = _body(request, NodeBody).reason
        node_drain(node=name, actor=request.user.get_username(), via=via_of(request), reason=reason)
        return Response(wire.to_plain(drain_plan(node=name)))


class ThawView(APIView):
    """POST /fleets/{name}/thaw."""

    @extend_schema(request=schema_of(NodeBody), responses=schema_of(FleetMap), operation_id="fleet_thaw")
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Act on the silence of a frozen fleet's nodes although so many are silent; takes a reason."""
        access_nodes(request.user, Action.PAUSE)
        reason = _body(request, NodeBody).reason
        fleet_thaw(fleet=name, actor=request.user.get_username(), via=via_of(request), reason=reason)
        return Response(wire.to_plain(access_fleet_maps(request.user, names=[name])[0]))


def _cordon(request: Request, name: str, *, cordoned: bool) -> Response:
    access_nodes(request.user, Action.PAUSE)
    reason = _body(request, NodeBody).reason
    node_cordon(node=name, cordoned=cordoned, actor=request.user.get_username(), via=via_of(request), reason=reason)
    return Response(wire.to_plain(node_standing(node=name)))
