"""Changes to fleets. Each runs in its caller's transaction, and pokes once that is committed."""

from fleets.services.cordons import fleet_thaw, node_cordon, node_drain
from fleets.services.heartbeats import reports_take
from fleets.services.keys import key_create, key_revoke, keys_require
from fleets.services.logs import LogWanted, log_asks_extend, log_asks_keep, log_asks_open, log_piece_take, log_texts_take
from fleets.services.nodes import join_token_create, join_token_issue, nodes_join
from fleets.services.reports import report_take
from fleets.services.routers import router_report_take
from fleets.services.routing import conditional_set, routing_set, synthetic_set
from fleets.services.secrets import secret_remove, secret_set
from fleets.services.units import unit_create, unit_drain, unit_request_probe, unit_retarget, unit_scale, unit_set_routable, unit_stop

__all__ = [
    "LogWanted",
    "conditional_set",
    "fleet_thaw",
    "join_token_create",
    "join_token_issue",
    "key_create",
    "key_revoke",
    "keys_require",
    "log_asks_extend",
    "log_asks_keep",
    "log_asks_open",
    "log_piece_take",
    "log_texts_take",
    "node_cordon",
    "node_drain",
    "nodes_join",
    "report_take",
    "reports_take",
    "router_report_take",
    "routing_set",
    "secret_remove",
    "secret_set",
    "synthetic_set",
    "unit_create",
    "unit_drain",
    "unit_request_probe",
    "unit_retarget",
    "unit_scale",
    "unit_set_routable",
    "unit_stop",
]
