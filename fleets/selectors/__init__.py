"""What the fleets app answers: every value is a view, and costs a fixed number of queries whatever its size."""

from fleets.selectors.fleets import fleet_maps, fleet_names, fleet_views
from fleets.selectors.heads import fleet_heads, unit_heads, unit_releases, weights_view
from fleets.selectors.keys import keys_view
from fleets.selectors.loads import UnitsLoad, units_load
from fleets.selectors.nodes import node_standing, nodes_found
from fleets.selectors.placement import defrag_advice, placement_explained
from fleets.selectors.rooms import UnitRoom, unit_rooms
from fleets.selectors.routing import router_table, routers_view, routers_views, table_generation
from fleets.selectors.secrets import secret_names, secrets_view
from fleets.selectors.snapshot import node_snapshot
from fleets.selectors.standing import drain_plan, standing_units
from fleets.selectors.totals import FleetTotals, PoolTotals, fleet_totals, pool_totals
from fleets.selectors.units import service_views, units_view, units_views

__all__ = [
    "FleetTotals",
    "PoolTotals",
    "UnitRoom",
    "UnitsLoad",
    "defrag_advice",
    "drain_plan",
    "fleet_heads",
    "fleet_maps",
    "fleet_names",
    "fleet_totals",
    "fleet_views",
    "keys_view",
    "node_snapshot",
    "node_standing",
    "nodes_found",
    "placement_explained",
    "pool_totals",
    "router_table",
    "routers_view",
    "routers_views",
    "secret_names",
    "secrets_view",
    "service_views",
    "standing_units",
    "table_generation",
    "unit_heads",
    "unit_releases",
    "unit_rooms",
    "units_load",
    "units_view",
    "units_views",
    "weights_view",
]
