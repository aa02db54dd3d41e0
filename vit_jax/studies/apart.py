"""Work of a study that needs the devices, in a process of its own."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function, computed in a new process that ends with it.

    The process of a study leaves the devices to its trainings. Function and arguments are pickled.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()
