"""Recipes: what is known of which model on which engine, and what would it take?"""

from __future__ import annotations

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from frontend.pages.base import PageRequest, page, show
from releases.selectors.releases import recipes_view


@require_safe
@page
def recipes(request: PageRequest) -> HttpResponse:
    """The catalogue."""
    return show(request, "recipes", {"title": "Recipes", "section": "recipes", "recipes": recipes_view()})
