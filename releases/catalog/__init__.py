"""The recipes that ship with denv: one YAML file each, `<name>/<engine>@<version>.yaml`. Read once a process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType

import yaml

from releases.domain.recipes import Recipe, recipe_from


@cache
def catalog() -> Mapping[str, Recipe]:
    """Every recipe by its name, such as `deepseek-v4.1-flash/deepinfer@3`."""
    recipes = (_read(folder.name, file) for folder in files(__name__).iterdir() if folder.is_dir() for file in _recipe_files(folder))
    return MappingProxyType({recipe.name: recipe for recipe in sorted(recipes, key=lambda recipe: recipe.name)})


def _recipe_files(folder: Traversable) -> list[Traversable]:
    return [file for file in folder.iterdir() if file.name.endswith(".yaml")]


def _read(folder: str, file: Traversable) -> Recipe:
    return recipe_from(f"{folder}/{file.name.removesuffix('.yaml')}", yaml.safe_load(file.read_text("utf-8")))
