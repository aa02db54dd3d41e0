"""Tasks: what is learned, from batches to losses; see `base.py`."""

from typing import TYPE_CHECKING

from vit_jax.lazy import lazy_names

if TYPE_CHECKING:
    from vit_jax.tasks.base import Loss, Setting, Task
    from vit_jax.tasks.registry import get_task, list_tasks, make_task, register_task

__all__ = ["Loss", "Setting", "Task", "get_task", "list_tasks", "make_task", "register_task"]

_HOMES = {
    **dict.fromkeys(("Loss", "Setting", "Task"), "base"),
    **dict.fromkeys(("get_task", "list_tasks", "make_task", "register_task"), "registry"),
}

__getattr__, __dir__ = lazy_names(__name__, globals(), _HOMES)
