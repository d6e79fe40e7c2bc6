"""The checks of the tasks of an hour, by chapter: `TASKS`. `course/check.py` runs them."""

from checks import attention, model
from checks.base import TASKS

__all__ = ["TASKS", "attention", "model"]
