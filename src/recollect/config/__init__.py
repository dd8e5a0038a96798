"""The settings of a training run: schema, recipes, and automatic settings.

``schema.py`` has one frozen dataclass per component; ``recipes.py`` reads recipe files; ``resolve.py`` turns a recipe and
the user's settings into a ``Config``; ``automatic.py`` chooses values for settings that are ``"auto"`` and gives a reason
for each.
"""
